"""A generator as an automaton: nodes are found as a search reaches them, by running the generator up to there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, TypeAlias

from cxlemu.errors import ArgumentError
from cxlemu.userfile import foreign, told
from faults.explore.frames import NotComparableError, freeze, key
from faults.explore.leash import RanAwayError, leash, noted
from faults.explore.operations import Steps, as_step
from faults.explore.outside import Outside
from faults.machine.program import Do, Step

NODES_MAX, HISTORY_MAX = 100_000, 500  # nodes of one rank; operations from its begin to a node

RankFunction: TypeAlias = Callable[[int, int], Steps[Any]]


@dataclass
class _Node:
    history: tuple[int, ...]  # values that the rank received on one way that leads here
    step: Step | None
    failure: str = ""
    result: Any = None
    next: dict[int, int] = field(default_factory=dict)  # value received -> node


class RankThread:
    """The automaton of one rank: nodes are found as a search reaches them, by running the generator up to there.

    Every method that finds a node raises ArgumentError for a function that is not a generator, yields something else
    than operations, does not repeat what it did when it receives the same values, changes a variable outside itself,
    holds variables that cannot be compared, runs on without a yield, or never comes back to a node where it was.
    """

    def __init__(self, function: RankFunction, places: Mapping[str, int], rank: int, ranks: int, host: int) -> None:
        """Find the first node of a function, which is called anew, with ``rank`` and ``ranks``, for each node."""
        self.rank, self.host = rank, host
        self.name = f"rank {rank}"
        self._function, self._places, self._ranks = function, places, ranks
        self._nodes: list[_Node] = []
        self._known: dict[Hashable, int] = {}
        self._outside = Outside(function)
        self.first = self._node(())

    def step(self, node: int) -> Step | None:
        return self._nodes[node].step

    def next(self, node: int, value: int) -> int:
        """Return the node after a node, found once; ``value`` is what a LOAD saw, 0 for any other step."""
        here = self._nodes[node]
        if value not in here.next:
            here.next[value] = self._node((*here.history, value), here.step)
        return here.next[value]

    def reached(self) -> dict[int, tuple[Step, dict[int, int]]]:
        """Return every node found so far that has a step, each with the nodes that follow, by the value received."""
        return {k: (node.step, dict(node.next)) for k, node in enumerate(self._nodes) if node.step is not None}

    def runs(self) -> Iterator[set[tuple[str, int]]]:
        """Yield the lines of each run from the begin to the end of a way between nodes, the last that was found first.

        A line is a file and a number. Each run happens once more, when it is asked for.
        """
        ways = [((*node.history, value), node.step) for node in reversed(self._nodes) for value in node.next]
        for history, before in [*ways, ((), None)]:
            ran: set[tuple[str, int]] = set()
            with noted(ran):
                self._led(history, before)
            yield ran

    def failure(self, node: int) -> str:
        """Return what the exception said, where the step is a FAIL; else the empty text."""
        return self._nodes[node].failure

    def result(self, node: int) -> Any:
        """Return what the rank returned where it has ended at this node; else None."""
        return self._nodes[node].result

    def _node(self, history: tuple[int, ...], before: Step | None = None) -> int:
        node, where = self._run(history, before)
        if where not in self._known:
            if len(self._nodes) == NODES_MAX or len(history) > HISTORY_MAX:
                raise ArgumentError(
                    f"{self._who()} never returns to an earlier state: does a variable count the turns of its loop?"
                )
            self._known[where] = len(self._nodes)
            self._nodes.append(node)
        return self._known[where]

    def _run(self, history: tuple[int, ...], before: Step | None) -> tuple[_Node, Hashable]:
        """A fresh generator, brought to where these values lead. The last of them is what step ``before`` receives."""
        try:
            with leash():
                led = self._led(history, before)
        except RanAwayError:
            raise ArgumentError(f"{self._who()} runs too long without a yield") from None
        if changed := self._outside.changed():
            raise ArgumentError(
                f"{self._who()} changes {changed}, which lies outside its generator: other ranks and executions would "
                f"see that without the pool; make it a variable of the generator"
            )
        return led

    def _led(self, history: tuple[int, ...], before: Step | None) -> tuple[_Node, Hashable]:
        generator: Any = None
        try:
            with foreign():
                generator = begun(self._function, self.rank, self._ranks)
                operation = next(generator)
                for left, value in zip(reversed(range(len(history))), history, strict=True):
                    if left == 0 and self._step(operation) != before:
                        raise ArgumentError(f"{self._who()} takes different steps for the same values")
                    operation = generator.send(value) if operation.do == Do.LOAD else next(generator)
        except StopIteration as stop:
            result = stop.value
            return _Node(history, None, result=result), self._comparable(lambda: ("returned", freeze(result)))
        except ArgumentError:
            raise
        except Exception as error:
            return _Node(history, Step(Do.FAIL), failure=said(error)), ("failed", said(error))
        else:
            return _Node(history, self._step(operation)), self._comparable(lambda: key(generator))
        finally:
            with _unheard():
                generator = None

    def _comparable(self, make: Callable[[], Hashable]) -> Hashable:
        try:
            return make()
        except NotComparableError as error:
            what = f"{self._who()} holds a {error}, and two of these cannot be compared"
            raise ArgumentError(f"{what}: keep numbers, text, tuples, lists, dicts and sets") from None

    def _step(self, operation: object) -> Step:
        return as_step(operation, self._places, self._who())

    def _who(self) -> str:
        return f"{self._function.__name__}, rank {self.rank}"


@contextmanager
def _unheard() -> Iterator[None]:
    """Drop what a generator raises as it goes: it stands midway, and Python would print that it goes on or fails."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda raised: None
    try:
        yield
    finally:
        sys.unraisablehook = hook


def begun(function: RankFunction, rank: int, ranks: int) -> GeneratorType[Any, Any, Any]:
    """Call a rank's function; what it returns has to be a generator."""
    generator = function(rank, ranks)
    if not isinstance(generator, GeneratorType):
        raise ArgumentError(f"{function.__name__} is not a generator: it has no yield")
    return generator


def said(error: Exception) -> str:
    """Tell an assertion's text; for any other error, its kind and its text."""
    text = told(error)
    return text.removeprefix("AssertionError: ") if isinstance(error, AssertionError) else text
