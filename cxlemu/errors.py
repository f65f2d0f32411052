"""Every exception of the project, and the exit code each one means.

    CxlemuError
    ├── InputError               what was given is wrong; nothing was created            exit 2
    │   ├── ConfigError            a topology file: names file, key and line
    │   ├── ArgumentError          a call or a flag: wrong shape, dtype, rank, size
    │   │   ├── TruncationError      ... a message that does not fit the array that receives it
    │   │   └── DeclinedError        ... a call that an algorithm does not take, or has no room for
    │   ├── PlanError              a plan that cannot be executed, proved or simulated
    │   │   └── PlanRuleError        ... since its algorithm breaks a rule: rank, stream, instruction   exit 1
    │   │       └── BuilderError       ... or misuses the builder, or fails: file and line
    │   │           └── EndlessError     ... or has no end
    │   ├── PlanFileError          a plan file that is foreign, truncated or damaged
    │   ├── PoolError              a pool, card or superblock that is absent, foreign or damaged
    │   ├── TokenError             a replay token that is damaged, foreign or too large
    │   ├── CapacityError          more of the pool than is free, or than is free in one piece
    │   └── AccessError            a plan that would touch what its tenant does not hold
    └── RunError                 the input was fine, the run failed                      exit 1
        ├── DeadlineError          a wait ended without what it waited for
        │   ├── PeerLostError      ... because a peer went silent
        │   └── DeadlockError      ... because no rank rings the doorbell, in any order of the plan
        ├── FaultError             the hardware failed
        │   ├── PoisonError          ... a line that reads as an error
        │   ├── CardLostError        ... a card that is gone
        │   ├── LinkDownError        ... a host that reaches the pool no more
        │   ├── IntegrityError       ... bytes that arrived are not those that were sent
        │   │   └── PlaceError         ... and tell of an array that it lies where it cannot
        │   └── CutOffError          ... no way is left from a host to memory that it needs
        ├── DeviceError            an accelerator, its driver or its memory failed
        ├── RevokedError           the communicator was given up, by this rank or by another one
        ├── ForkedError            a forked child went on with what is its parent's
        ├── ExcludedError          the others went on without this rank, which they took for dead
        ├── MismatchError          ranks called different collectives or with different arguments
        ├── ContractError          a plan does not compute what its collective promises
        ├── CancelledError         stopped from outside: Ctrl-C, or another rank failed long ago
        ├── RankDiedError          a rank's process ended without a result
        ├── WorkerLostError        a process that judged is gone: nothing is known              exit 3
        ├── NothingJudgedError     all was declined: nothing is known                           exit 3
        └── RankFailures           what every failed rank of a world raised, root cause first

Bad input raises, findings are verdicts, bugs assert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial


class CxlemuError(Exception):
    """The base of all errors. The message is one sentence a user can act on; ``exit_code`` is that of a command."""

    exit_code = 1


class InputError(CxlemuError):
    """The input is wrong; nothing was created."""

    exit_code = 2


class ConfigError(InputError):
    """A topology file, or another file that describes a machine or a run, is wrong; the message says where."""


class ArgumentError(InputError, ValueError):
    """An argument of a call or a flag does not fit: wrong shape, dtype, rank or size."""


class TruncationError(ArgumentError):
    """A message does not fit the array that receives it: it is longer, or its elements are of another size."""


class _Refusal(CxlemuError):
    """A builder does not do what an algorithm asks; `refusals` lists it also where the algorithm catches it."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        if (noted := _noted.get()) is not None:
            noted.append(self)


_noted: ContextVar[list[CxlemuError] | None] = ContextVar("refusals", default=None)


@contextmanager
def refusals() -> Iterator[list[CxlemuError]]:
    """List what builders refuse from here on, as a DeclinedError or a BuilderError, in order."""
    noted: list[CxlemuError] = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


class DeclinedError(_Refusal, ArgumentError):
    """An algorithm does not take this call, or its slots and doorbells do not suffice for it: no mistake of its own."""


class PlanError(InputError):
    """A plan cannot be executed, proved or simulated."""


class UntoldError(PlanError):
    """A plan reads a peer's array before a doorbell has told where it lies."""


class PlanRuleError(PlanError):
    """A mistake found in an algorithm. A file whose plan breaks a rule is bad input: a PlanFileError."""

    exit_code = 1


class BuilderError(_Refusal, PlanRuleError):
    """An algorithm misuses the builder, or fails, so that there is no plan."""


class EndlessError(BuilderError):
    """An algorithm has had its time, and built nothing; it is not asked again, whatever the call."""


class PlanFileError(InputError):
    """A plan or trace file is foreign, truncated or damaged."""


class PoolError(InputError):
    """A pool, card or superblock is absent, foreign or damaged."""


class TokenError(InputError):
    """A replay token is damaged, foreign or too large."""


class CapacityError(InputError):
    """A tenant asks for more of the pool than is free, or than is free in one piece."""


class AccessError(InputError):
    """A plan would touch memory that its tenant does not hold."""


class RunError(CxlemuError):
    """The input was fine, and the run failed.

    ``reported_by`` is the rank that found it, None where that is the one that raises this.
    """

    exit_code = 1
    reported_by: int | None = None


class WorkerLostError(RunError):
    """A process that judged is gone, and nothing is known of its work."""

    exit_code = 3


class NothingJudgedError(RunError):
    """All that was asked for was declined, so nothing was judged."""

    exit_code = 3


class DeadlineError(RunError, TimeoutError):
    """A wait ended without what it waited for."""


class PeerLostError(DeadlineError):
    """A wait ended because peers went silent.

    Args:
        message: One sentence.
        ranks: The silent ranks.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class DeadlockError(DeadlineError):
    """A rank waits for a doorbell that no rank rings, in any order of the plan."""


class RevokedError(RunError):
    """This rank or another one gave up the communicator."""


class ForkedError(RunError):
    """A forked child used what belongs to its parent: a communicator, a message, a world."""


class ExcludedError(RunError):
    """The other ranks took this one for dead and went on without it."""


class FaultError(RunError):
    """Hardware failed.

    Args:
        what: One sentence.
        where: The arguments of the subclass that say where: numbers of cards, hosts, ranks, or bytes.
        reported_by: The rank that found it, None where that is the one that raises this.
    """

    def __init__(self, what: str, *where: int, reported_by: int | None = None) -> None:
        super().__init__(what if reported_by is None else f"{what}, as rank {reported_by} reports")
        self.where = where  # the arguments of the class, so that errors travel as a few numbers
        self.reported_by = reported_by

    def __reduce__(self) -> tuple[Callable[..., FaultError], tuple[int, ...]]:
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
    """Bytes that ``rank`` published did not arrive as sent: a checksum does not fit. They begin on ``card``."""

    def __init__(self, rank: int, card: int, *, reported_by: int | None = None) -> None:
        what = f"data that rank {rank} published, from card {card} on, did not arrive as sent"
        super().__init__(what, rank, card, reported_by=reported_by)
        self.rank, self.card = rank, card


class PlaceError(IntegrityError):
    """``rank`` tells by a doorbell that an array lies in its part of the heap, on ``card``, where it cannot lie."""

    def __init__(self, rank: int, card: int, *, reported_by: int | None = None) -> None:
        what = f"rank {rank} reports an address of its array that lies outside its part of the heap, on card {card}"
        FaultError.__init__(self, what, rank, card, reported_by=reported_by)
        self.rank, self.card = rank, card


class CutOffError(FaultError):
    """On a modelled fabric, ``host`` has no way to ``card`` after links or switches failed; ``why`` names them."""

    def __init__(self, host: int, card: int, why: str = "", *, reported_by: int | None = None) -> None:
        super().__init__(f"host {host} has no route to card {card}{why}", host, card, reported_by=reported_by)
        self.host, self.card, self.why = host, card, why

    def __reduce__(self) -> tuple[Callable[..., FaultError], tuple[int, ...]]:
        return partial(type(self), why=self.why, reported_by=self.reported_by), self.where


class DeviceError(RunError):
    """An accelerator, its driver or its memory failed, or cannot do what is asked; the message says what it said."""


class MismatchError(RunError):
    """Ranks called different collectives, or one with different arguments.

    Args:
        message: One sentence.
        ranks: The two ranks whose calls differ; none where the message says who.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class ContractError(RunError):
    """A plan does not compute what its collective promises."""


class CancelledError(RunError):
    """The run was stopped from outside: by Ctrl-C, or because another rank failed long ago."""


class RankDiedError(RunError):
    """A rank's process ended without a result."""


class RankFailures(RunError):
    """Ranks of a world failed.

    Args:
        failures: For each failed rank the exception that it raised, in order of arrival. The attribute ``failures`` has
            causes before consequences, each in that order.
    """

    def __init__(self, failures: Mapping[int, BaseException]) -> None:
        self.failures = dict(sorted(failures.items(), key=lambda item: _consequence(item[1])))
        super().__init__("\n".join(f"rank {rank} {_told(error)}" for rank, error in self.failures.items()))

    def __reduce__(self) -> tuple[type[RankFailures], tuple[dict[int, BaseException]]]:
        return type(self), (self.failures,)


def _consequence(error: BaseException) -> int:
    """0 for a cause, more for an error that a rank raises because another one failed.

    A rank that died or is in a deadlock is a cause: it did not stop because of another one.
    """
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
    return f"failed: {error}" if isinstance(error, CxlemuError | MemoryError) else f"failed: {error!r}"


def name_ranks(ranks: Iterable[int]) -> str:
    """Name ranks for messages: "rank 3", "ranks 0, 2", "ranks 1 to 299"."""
    return name_numbers("rank", ranks)


def name_numbers(noun: str, numbers: Iterable[int]) -> str:
    """Name numbered things for messages: "card 3", "cards 0, 2", "cards 1 to 299"."""
    runs = runs_of(sorted(set(numbers)))
    words = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    one = len(runs) == 1 == len(runs[0])
    return f"{noun if one else noun + 's'} {', '.join(words)}"


def runs_of(numbers: Iterable[int]) -> list[list[int]]:
    """Cut ascending numbers into runs without gaps."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs
