"""What became of the ranks of a world, and for how long the rest may go on after the first failure."""

import time
from typing import Generic, TypeVar

from cxlemu.errors import InputError, RankFailures

GRACE_S = 2.0

T = TypeVar("T")


class Outcome(Generic[T]):
    """Results and failures of a world's ranks, as they arrive.

    The first failure starts a clock: the others have one deadline and a little grace to notice by themselves, as they
    would have to on several machines. Where ``survivors`` may go on after a failure, the clock starts when the first of
    them is through.
    """

    def __init__(self, ranks: int, deadline_s: float, *, survivors: bool = False) -> None:
        """Begin with every rank pending; after the first failure others have ``deadline_s`` and the grace."""
        self.ranks = ranks
        self._survivors = survivors
        self.results: dict[int, T] = {}
        self.failures: dict[int, BaseException] = {}  # in order of arrival
        self._patience_s = deadline_s + GRACE_S
        self._ends: float | None = None

    def succeeded(self, rank: int, result: T) -> None:
        self.results[rank] = result
        self._start_clock()

    def failed(self, rank: int, error: BaseException) -> None:
        """Record that ``rank`` failed with ``error``; its first failure counts."""
        self.failures.setdefault(rank, error)
        self._start_clock()

    def _start_clock(self) -> None:
        if self._ends is None and self.failures and (self.results or not self._survivors):
            self._ends = time.monotonic() + self._patience_s

    def pending(self) -> set[int]:
        """Return the ranks that have neither ended nor failed."""
        return set(range(self.ranks)) - self.results.keys() - self.failures.keys()

    def overdue(self) -> bool:
        """Return whether the pending ranks have had their time since the first failure."""
        return self._ends is not None and time.monotonic() >= self._ends

    def in_rank_order(self) -> list[T]:
        """Return all results in rank order, or raise the root cause."""
        if not self.failures:
            return [self.results[rank] for rank in range(self.ranks)]
        for error in self.failures.values():
            if isinstance(error, InputError):
                raise error
        failures = RankFailures(self.failures)
        raise failures from next(iter(failures.failures.values()))
