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

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cxlemu.errors import ArgumentError
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

Final: TypeAlias = Callable[[Mapping[str, int], Sequence[Any]], None]


@dataclass(frozen=True)
class RankProtocol:
    function: RankFunction
    lines: tuple[str, ...]
    initial: Mapping[str, int]
    final: Final | None
    ranks_per_host: int = 1

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def line_names(self) -> tuple[str, ...]:
        return tuple("+".join(text.split()) for text in self.lines)

    def judge(self, memory: Mapping[str, int], results: Sequence[Any]) -> str:
        """What ``final`` says against this end, or nothing."""
        try:
            if self.final:
                self.final(memory, results)
        except Exception as error:
            return said(error)
        return ""

    def hosts(self, ranks: int) -> tuple[int, ...]:
        """The host of each rank: blocks of consecutive ranks. The last host may have fewer."""
        return tuple(rank // self.ranks_per_host for rank in range(ranks))

    def words(self) -> tuple[Word, ...]:
        """In the order of @protocol, with the number of the line that each lies in.

        Raises ArgumentError for a protocol that cannot be, such as one with a word in two lines.
        """
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
        """What searches run. Raises ArgumentError as `words`, and for too many ranks."""
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
    """Each of ``lines`` names the words of one line of the pool: "head tail". ``final(memory, results)`` asserts what
    holds when all ranks have returned, everything posted has arrived; a crashed rank's result is None. Of consecutive
    ranks, ``ranks_per_host`` share a host and its coherent cache: with 2, ranks 0 and 1, then 2 and 3."""

    def decorate(function: RankFunction) -> RankProtocol:
        return RankProtocol(function, lines, dict(initial or {}), final, ranks_per_host)

    return decorate
