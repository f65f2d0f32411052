"""Every exception of the project, and the exit code each one means.

    CxlemuError
    ├── InputError               what was given is wrong; nothing was created            exit 2
    │   ├── ConfigError            a topology file: names file, key and line
    │   ├── ArgumentError          a call or a flag: wrong shape, dtype, rank, size
    │   ├── PlanError              a plan that breaks a rule: rank, stream, instruction, rule
    │   ├── PlanFileError          a plan file that is foreign, truncated or damaged
    │   ├── PoolError              a pool, card or superblock that is absent, foreign or damaged
    │   └── TokenError             a replay token that is damaged, foreign or too large
    └── RunError                 the input was fine, the run failed                      exit 1
        ├── DeadlineError          a wait ended without what it waited for
        │   └── PeerLostError      ... because a peer went silent
        ├── MismatchError          ranks called different collectives or with different arguments
        ├── ContractError          a plan does not compute what its collective promises
        ├── CancelledError         stopped from outside: Ctrl-C, or another rank failed long ago
        ├── RankDiedError          a rank's process ended without a result
        └── RankFailures           what every failed rank of a world raised, root cause first

Bad input raises, findings are verdicts, bugs assert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class CxlemuError(Exception):
    """Base of all. The message is one sentence a user can act on."""

    exit_code = 1


class InputError(CxlemuError):
    exit_code = 2


class ConfigError(InputError):
    pass


class ArgumentError(InputError, ValueError):
    pass


class PlanError(InputError):
    pass


class PlanFileError(InputError):
    pass


class PoolError(InputError):
    pass


class TokenError(InputError):
    pass


class RunError(CxlemuError):
    exit_code = 1


class DeadlineError(RunError, TimeoutError):
    pass


class PeerLostError(DeadlineError):
    """``ranks`` are the silent ones."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks

    def __reduce__(self) -> tuple[type[PeerLostError], tuple[str, tuple[int, ...]]]:
        return type(self), (str(self), self.ranks)


class MismatchError(RunError):
    pass


class ContractError(RunError):
    pass


class CancelledError(RunError):
    pass


class RankDiedError(RunError):
    pass


class RankFailures(RunError):
    """``failures``: what each failed rank raised; causes before consequences, each in order of arrival."""

    def __init__(self, failures: Mapping[int, BaseException]) -> None:
        self.failures = dict(sorted(failures.items(), key=lambda item: _consequence(item[1])))
        super().__init__("\n".join(f"rank {rank} {_told(error)}" for rank, error in self.failures.items()))

    def __reduce__(self) -> tuple[type[RankFailures], tuple[dict[int, BaseException]]]:
        return type(self), (self.failures,)


def _consequence(error: BaseException) -> int:
    """Ranks that stop because another one failed raise these; one that died had nobody to wait for."""
    if isinstance(error, CancelledError):
        return 2
    return 1 if isinstance(error, DeadlineError) else 0


def _told(error: BaseException) -> str:
    if isinstance(error, RankDiedError | CancelledError):
        return str(error)
    return f"failed: {error}" if isinstance(error, CxlemuError) else f"failed: {error!r}"


def name_ranks(ranks: Iterable[int]) -> str:
    """For messages: "rank 3", "ranks 0, 2", "ranks 1 to 299"."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' * (len(runs) > 1 or len(runs[0]) > 1)} {', '.join(words)}"
