"""Every exception of the project, and the exit code each one means.

    CxlemuError
    ├── InputError               what was given is wrong; nothing was created            exit 2
    │   ├── ConfigError            a topology file: names file, key and line
    │   ├── ArgumentError          a call or a flag: wrong shape, dtype, rank, size
    │   ├── PlanError              a plan that cannot be executed, proved or simulated
    │   │   └── PlanRuleError        ... since its algorithm breaks a rule: rank, stream, instruction   exit 1
    │   ├── PlanFileError          a plan file that is foreign, truncated or damaged
    │   ├── PoolError              a pool, card or superblock that is absent, foreign or damaged
    │   ├── TokenError             a replay token that is damaged, foreign or too large
    │   ├── CapacityError          more of the pool than is free, or than is free in one piece
    │   └── AccessError            a plan that would touch what its tenant does not hold
    └── RunError                 the input was fine, the run failed                      exit 1
        ├── DeadlineError          a wait ended without what it waited for
        │   ├── PeerLostError      ... because a peer went silent
        │   └── DeadlockError      ... that its plan has nobody ring, whatever the order
        ├── FaultError             the hardware failed
        │   ├── PoisonError          ... a line that reads as an error
        │   ├── CardLostError        ... a card that is gone
        │   ├── LinkDownError        ... a host that reaches the pool no more
        │   ├── IntegrityError       ... bytes that arrived are not those that were sent
        │   └── CutOffError          ... no way is left from a host to memory that it needs
        ├── RevokedError           the communicator was given up, by this rank or by another one
        ├── ExcludedError          the others went on without this rank, which they took for dead
        ├── MismatchError          ranks called different collectives or with different arguments
        ├── ContractError          a plan does not compute what its collective promises
        ├── CancelledError         stopped from outside: Ctrl-C, or another rank failed long ago
        ├── RankDiedError          a rank's process ended without a result
        └── RankFailures           what every failed rank of a world raised, root cause first

Bad input raises, findings are verdicts, bugs assert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial


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


class PlanRuleError(PlanError):
    """A mistake found in an algorithm. A file whose plan breaks a rule is bad input: a PlanFileError."""

    exit_code = 1


class PlanFileError(InputError):
    pass


class PoolError(InputError):
    pass


class TokenError(InputError):
    pass


class CapacityError(InputError):
    pass


class AccessError(InputError):
    pass


class RunError(CxlemuError):
    """``reported_by`` is the rank that found it, None where that is the one that raises this."""

    exit_code = 1
    reported_by: int | None = None


class DeadlineError(RunError, TimeoutError):
    pass


class PeerLostError(DeadlineError):
    """``ranks`` are the silent ones."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class DeadlockError(DeadlineError):
    pass


class RevokedError(RunError):
    pass


class ExcludedError(RunError):
    pass


class FaultError(RunError):
    """Hardware failed."""

    def __init__(self, what: str, *where: int, reported_by: int | None = None) -> None:
        super().__init__(what if reported_by is None else f"{what}, as rank {reported_by} reports")
        self.where = where  # the arguments of the class, so that errors travel as a few numbers
        self.reported_by = reported_by

    def __reduce__(self) -> tuple[partial[FaultError], tuple[int, ...]]:
        return partial(type(self), reported_by=self.reported_by), self.where


class PoisonError(FaultError):
    """The line at ``offset`` of ``card`` reads as an error until it is overwritten or cleared."""

    def __init__(self, card: int, offset: int, *, reported_by: int | None = None) -> None:
        super().__init__(f"card {card} is poisoned at byte {offset}", card, offset, reported_by=reported_by)
        self.card, self.offset = card, offset


class CardLostError(FaultError):
    """Nothing can be read from ``card`` any more, and what was on it is gone."""

    def __init__(self, card: int, *, reported_by: int | None = None) -> None:
        super().__init__(f"card {card} is lost", card, reported_by=reported_by)
        self.card = card


class LinkDownError(FaultError):
    """The link of ``host`` to the pool is down: it reads nothing, and what it wrote may be lost."""

    def __init__(self, host: int, *, reported_by: int | None = None) -> None:
        super().__init__(f"the link of host {host} is down", host, reported_by=reported_by)
        self.host = host


class IntegrityError(FaultError):
    """What ``rank`` published is not what arrived: a checksum does not fit. ``card`` is where the bytes begin."""

    def __init__(self, rank: int, card: int, *, reported_by: int | None = None) -> None:
        what = f"what rank {rank} published from card {card} on did not arrive as it was sent"
        super().__init__(what, rank, card, reported_by=reported_by)
        self.rank, self.card = rank, card


class CutOffError(FaultError):
    """On a modelled fabric: after links or switches failed, ``host`` has no way to ``card``. ``why`` says what did."""

    def __init__(self, host: int, card: int, why: str = "", *, reported_by: int | None = None) -> None:
        super().__init__(f"host {host} has no way to card {card}{why}", host, card, reported_by=reported_by)
        self.host, self.card = host, card


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
    if isinstance(error, DeadlockError):
        return 0
    if isinstance(error, CancelledError):
        return 2
    if isinstance(error, RunError) and error.reported_by is not None:
        return 1
    return 1 if isinstance(error, DeadlineError | RevokedError | ExcludedError) else 0


def _told(error: BaseException) -> str:
    if isinstance(error, RankDiedError | CancelledError):
        return str(error)
    return f"failed: {error}" if isinstance(error, CxlemuError) else f"failed: {error!r}"


def name_ranks(ranks: Iterable[int]) -> str:
    """For messages: "rank 3", "ranks 0, 2", "ranks 1 to 299"."""
    return name_numbers("rank", ranks)


def name_numbers(noun: str, numbers: Iterable[int]) -> str:
    """For messages: "card 3", "cards 0, 2", "cards 1 to 299"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"{noun}{'s' * (len(runs) > 1 or len(runs[0]) > 1)} {', '.join(words)}"
