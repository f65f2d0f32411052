"""Protocols of your own: a rank is a Python generator that yields memory operations and receives what its loads see.

    @protocol("data", "flag")                  # the pool's lines, each with the words that lie in it
    def handover(rank: int, ranks: int) -> Steps[None]:
        if rank == 0:
            yield Store("data", 42)
            yield Flush("data")
            yield Fence()
            yield Signal("flag", 1)
        else:
            yield Wait("flag", 1)
            yield Invalidate("data")
            value = yield Load("data")
            assert value == 42, value

Every rank has a host, and so a cache, of its own, unless the protocol says that ``ranks_per_host`` share one. A rank
may loop until it sees what it waits for; a variable that counts the turns makes each of them a new state. It must do
the same again when it is given the same values again. ``cxlemu explore`` searches all executions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cxlemu.asserts import asserts, check_asserts, judging_lines
from cxlemu.errors import ArgumentError
from cxlemu.userfile import limited
from faults.explore.automaton import RankFunction, RankThread, said
from faults.explore.operations import (
    Crash,
    Fence,
    Flush,
    Invalidate,
    Load,
    ProtocolOperation,
    Signal,
    Steps,
    Store,
    StoreNT,
    Wait,
    is_value,
)
from faults.explore.unyielded import check_yielded
from faults.machine.program import MachineProgram, Word

__all__ = [
    "Crash",
    "Fence",
    "Flush",
    "Invalidate",
    "Load",
    "ProtocolOperation",
    "RankProtocol",
    "Signal",
    "Steps",
    "Store",
    "StoreNT",
    "Wait",
    "protocol",
]

RANKS_MAX, WORDS_MAX = 8, 64
NOTHING_ASSERTED = "nothing was judged but that all ranks end: they came to no assert, and no final asserts anything"
FINAL_S = 10.0  # longest time that ``final`` takes for one end

Final: TypeAlias = Callable[[Mapping[str, int], Sequence[Any]], None]


@dataclass(frozen=True)
class RankProtocol:
    """A protocol: what `protocol` makes of a generator function.

    Attributes:
        function: Called with a rank and the number of ranks; returns this rank's generator.
        lines: For each line of the pool, the names of its words, separated by spaces.
        initial: Values of words in the beginning; 0 for words that are absent.
        final: Asserts what holds in the end, as for `protocol`.
        ranks_per_host: Count of consecutive ranks that share a host and its cache.
    """

    function: RankFunction
    lines: tuple[str, ...]
    initial: Mapping[str, int]
    final: Final | None
    ranks_per_host: int = 1

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    @property
    def line_names(self) -> tuple[str, ...]:
        """A name for each line: its words, joined by ``+``."""
        return tuple("+".join(text.split()) for text in self.lines)

    @property
    def judges(self) -> bool:
        """Whether the protocol decides about executions: by assertions or exceptions, of ranks or of ``final``."""
        return self._final_judges or asserts(self.function)

    @property
    def _final_judges(self) -> bool:
        return self.final is not None and asserts(self.final)

    def judged(self, threads: Iterable[RankThread]) -> bool:
        """Whether an execution of these threads came to an assertion or a raise, or ``final`` has one."""
        lines = judging_lines(self.function)
        if self._final_judges or lines is None:
            return True
        return any(not ran or ran & lines for thread in threads for ran in thread.runs())  # under a debugger none ran

    def judge(self, memory: Mapping[str, int], results: Sequence[Any]) -> str:
        """Check the end of an execution with ``final``.

        Args:
            memory: The pool's value of each word.
            results: The results of the ranks, in rank order; None for a rank that crashed.

        Returns:
            The assertion of ``final`` that fails; empty if none does or the protocol has no ``final``.
        """
        try:
            if self.final:
                with limited(FINAL_S):
                    left: object = self.final(memory, results)
                if left is not None:
                    raise ArgumentError(f"{self.name}: final returns {left!r:.60}, which decides nothing: use assert")
        except ArgumentError:
            raise
        except Exception as error:
            return said(error)
        return ""

    def hosts(self, ranks: int) -> tuple[int, ...]:
        """Return the host of each rank: blocks of consecutive ranks. The last host may have fewer."""
        return tuple(rank // self.ranks_per_host for rank in range(ranks))

    def words(self) -> tuple[Word, ...]:
        """List the words in the order of @protocol, each with the number of the line that it lies in.

        Raises:
            ArgumentError: The protocol is invalid: a word is in two lines, there are no words or more than
                WORDS_MAX, or an initial value or ``ranks_per_host`` does not fit; or Python has removed its assertions.
        """
        for function in filter(None, (self.function, self.final)):
            check_asserts(function, self.name)
            check_yielded(function, self.name)
        names = [(word, line) for line, text in enumerate(self.lines) for word in text.split()]
        places = dict(names)
        if len(places) < len(names) or not 1 <= len(names) <= WORDS_MAX:
            raise ArgumentError(f"{self.name}: @protocol takes 1 to {WORDS_MAX} words, each in one line only")
        for word, value in self.initial.items():
            if word not in places or not is_value(value):
                raise ArgumentError(f"{self.name}: initial {word!r}: {value!r} is not a word and a number from 0 on")
        if type(self.ranks_per_host) is not int or self.ranks_per_host < 1:
            raise ArgumentError(f"{self.name}: ranks_per_host is 1 or more, not {self.ranks_per_host!r:.60}")
        return tuple(Word(word, line, self.initial.get(word, 0)) for word, line in names)

    def program(self, ranks: int) -> MachineProgram:
        """Make the program that searches run, with a thread for each rank.

        Raises:
            ArgumentError: As `words`; or there are not 1 to RANKS_MAX ranks; or `RankThread` refuses a rank.
        """
        words = self.words()
        if not 1 <= ranks <= RANKS_MAX:
            raise ArgumentError(f"{self.name} of {ranks} ranks cannot be searched: there can be 1 to {RANKS_MAX}")
        places = {word.name: word.line for word in words}
        threads = tuple(
            RankThread(self.function, places, rank, ranks, host) for rank, host in enumerate(self.hosts(ranks))
        )
        return MachineProgram(threads, words, self.line_names)


def protocol(
    *lines: str, initial: Mapping[str, int] | None = None, final: Final | None = None, ranks_per_host: int = 1
) -> Callable[[RankFunction], RankProtocol]:
    """Declare a generator function as a protocol.

    Args:
        *lines: Each names the words of one line of the pool: "head tail".
        initial: Values of words in the beginning; all others are 0.
        final: Called as ``final(memory, results)``, asserts what holds when all ranks have returned or crashed and
            everything posted has arrived or was lost. ``memory`` maps words to the pool's values; a crashed rank's
            result is None.
        ranks_per_host: Count of consecutive ranks that share a host and its coherent cache: with 2, ranks 0 and 1, then
            2 and 3.

    Returns:
        A decorator, which makes a `RankProtocol`. Its `words` and `program` raise for an invalid declaration.
    """

    def decorate(function: RankFunction) -> RankProtocol:
        return RankProtocol(function, lines, dict(initial or {}), final, ranks_per_host)

    return decorate
