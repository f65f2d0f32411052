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

Every rank has a host, and so a cache, of its own. A rank may loop until it sees what it waits for; a variable that
counts the turns makes each of them a new state. It must do the same again when it is given the same values again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from cxlemu.errors import ArgumentError
from faults.explore.frames import NotComparableError, freeze, key
from faults.machine.program import Do, Program, Step, Word

RANKS_MAX, WORDS_MAX, VALUE_MAX = 8, 64, 2**31 - 1
NODES_MAX, HISTORY_MAX = 100_000, 500  # of one rank; operations from its begin to a node


class Operation(NamedTuple):
    """``place`` is a word; flushes and invalidates take the whole line that it lies in."""

    do: Do
    place: str = ""
    value: int = 0


T = TypeVar("T")
Steps: TypeAlias = Generator[Operation, int, T]
Final: TypeAlias = Callable[[Mapping[str, int], Sequence[Any]], None]


def Store(word: str, value: int) -> Operation:
    return Operation(Do.STORE, word, value)


def StoreNT(word: str, value: int) -> Operation:
    return Operation(Do.STORE_NT, word, value)


def Load(word: str) -> Operation:
    return Operation(Do.LOAD, word)


def Flush(word: str, *, keep: bool = False) -> Operation:
    return Operation(Do.FLUSH_KEEP if keep else Do.FLUSH, word)


def Fence() -> Operation:
    return Operation(Do.FENCE)


def Invalidate(word: str) -> Operation:
    return Operation(Do.INVALIDATE, word)


def Signal(word: str, value: int) -> Operation:
    return Operation(Do.SIGNAL, word, value)


def Wait(word: str, value: int) -> Operation:
    """Until the word is at least ``value``."""
    return Operation(Do.WAIT, word, value)


def Crash() -> Operation:
    """The rank's host crashes here."""
    return Operation(Do.CRASH)


@dataclass(frozen=True)
class Protocol:
    function: Callable[[int, int], Steps[Any]]
    lines: tuple[str, ...]
    initial: Mapping[str, int]
    final: Final | None

    @property
    def name(self) -> str:
        return self.function.__name__

    def judge(self, memory: Mapping[str, int], results: Sequence[Any]) -> str:
        """What ``final`` says against this end, or nothing."""
        try:
            if self.final:
                self.final(memory, results)
        except Exception as error:
            return said(error)
        return ""

    def program(self, ranks: int) -> Program:
        """Raises ArgumentError for a protocol that cannot be: a word in two lines, too many ranks."""
        if not 1 <= ranks <= RANKS_MAX:
            raise ArgumentError(f"{self.name} of {ranks} ranks cannot be searched: there can be 1 to {RANKS_MAX}")
        names = [(word, line) for line, text in enumerate(self.lines) for word in text.split()]
        places = dict(names)
        if len(places) < len(names) or not 1 <= len(names) <= WORDS_MAX:
            raise ArgumentError(f"{self.name}: @protocol takes 1 to {WORDS_MAX} words, each in one line only")
        for word, value in self.initial.items():
            if word not in places or not _is_value(value):
                raise ArgumentError(f"{self.name}: initial {word!r}: {value!r} is not a word and a number from 0 on")
        words = tuple(Word(word, line, self.initial.get(word, 0)) for word, line in names)
        threads = tuple(RankThread(self, places, rank, ranks) for rank in range(ranks))
        return Program(threads, words, tuple("+".join(text.split()) for text in self.lines))


def protocol(
    *lines: str, initial: Mapping[str, int] | None = None, final: Final | None = None
) -> Callable[[Callable[[int, int], Steps[Any]]], Protocol]:
    """Each of ``lines`` names the words of one line of the pool: "head tail". ``final(memory, results)`` asserts what
    holds when all ranks have returned, everything posted has arrived; a crashed rank's result is None."""

    def decorate(function: Callable[[int, int], Steps[Any]]) -> Protocol:
        return Protocol(function, lines, dict(initial or {}), final)

    return decorate


@dataclass
class _Node:
    history: tuple[int, ...]  # what the rank received on one way that leads here
    step: Step | None
    failure: str = ""
    result: Any = None
    next: dict[int, int] = field(default_factory=dict)  # value received -> node


class RankThread:
    """The automaton of one rank: nodes are found as a search reaches them, by running the generator up to there."""

    def __init__(self, protocol: Protocol, places: Mapping[str, int], rank: int, ranks: int) -> None:
        self.host = self.rank = rank
        self.name = f"rank {rank}"
        self._protocol, self._places, self._ranks = protocol, places, ranks
        self._words = list(places)
        self._nodes: list[_Node] = []
        self._known: dict[Hashable, int] = {}
        self.first = self._node(())

    def step(self, node: int) -> Step | None:
        return self._nodes[node].step

    def next(self, node: int, value: int) -> int:
        here = self._nodes[node]
        if value not in here.next:
            here.next[value] = self._node((*here.history, value), here.step)
        return here.next[value]

    def failure(self, node: int) -> str:
        """What the exception said, where the step is a FAIL."""
        return self._nodes[node].failure

    def result(self, node: int) -> Any:
        return self._nodes[node].result

    def _node(self, history: tuple[int, ...], before: Step | None = None) -> int:
        node, where = self._run(history, before)
        if where not in self._known:
            if len(self._nodes) == NODES_MAX or len(history) > HISTORY_MAX:
                raise ArgumentError(
                    f"{self._who()} never comes back to where it was: does a variable count the turns of its loop?"
                )
            self._known[where] = len(self._nodes)
            self._nodes.append(node)
        return self._known[where]

    def _run(self, history: tuple[int, ...], before: Step | None) -> tuple[_Node, Hashable]:
        """A fresh generator, brought to where these values lead. The last of them is what step ``before`` receives."""
        generator = self._protocol.function(self.rank, self._ranks)
        if not isinstance(generator, GeneratorType):
            raise ArgumentError(f"{self._protocol.name} is no generator: it has no yield")
        try:
            operation = next(generator)
            for left, value in zip(reversed(range(len(history))), history, strict=True):
                if left == 0 and self._step(operation) != before:
                    raise ArgumentError(f"{self._who()} does not do the same again when it is given the same values")
                operation = generator.send(value) if operation.do == Do.LOAD else next(generator)
        except StopIteration as stop:
            result = stop.value
            return _Node(history, None, result=result), self._comparable(lambda: ("returned", freeze(result)))
        except ArgumentError:
            raise
        except Exception as error:
            return _Node(history, Step(Do.FAIL), failure=said(error)), ("failed", said(error))
        return _Node(history, self._step(operation)), self._comparable(lambda: key(generator))

    def _comparable(self, make: Callable[[], Hashable]) -> Hashable:
        try:
            return make()
        except NotComparableError as error:
            what = f"{self._who()} holds a {error}, and two of these cannot be compared"
            raise ArgumentError(f"{what}: keep numbers, text, tuples, lists, dicts and sets") from None

    def _step(self, operation: object) -> Step:
        if not isinstance(operation, Operation):
            raise ArgumentError(f"{self._who()} yields {operation!r:.60}: yield operations such as Load('x')")
        do, place, value = operation
        if do in {Do.FENCE, Do.CRASH}:
            return Step(do)
        if place not in self._places:
            raise ArgumentError(f"{self._who()}: there is no word {place!r:.60}, only {', '.join(self._words)}")
        if not _is_value(value):
            raise ArgumentError(f"{self._who()}: {place} can hold 0 to {VALUE_MAX}, not {value!r:.60}")
        by_line = do in {Do.FLUSH, Do.FLUSH_KEEP, Do.INVALIDATE}
        return Step(do, self._places[place] if by_line else self._words.index(place), value)

    def _who(self) -> str:
        return f"{self._protocol.name}, rank {self.rank}"


def said(error: Exception) -> str:
    """What an assertion says; of anything else the kind of error, too."""
    text = str(error).partition("\n")[0]
    if isinstance(error, AssertionError) and text:
        return text
    return f"{type(error).__name__}{': ' if text else ''}{text}"


def _is_value(value: object) -> bool:
    return type(value) is int and 0 <= value <= VALUE_MAX
