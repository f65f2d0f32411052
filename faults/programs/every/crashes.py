"""Every crash of a host in every interleaving: ``cxlemu exec --every --crash every``.

The crash is an event of its own. It is tried behind all that comes before the last stage, and from there moved to the
front by its races. What it leaves of a line is chosen when somebody fetches the line: when all that follows one choice
was tried, the same crash is made again with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from faults.programs.crashes import Losses
from faults.programs.every.events import Actor, Trace
from faults.programs.every.search import Branch, EverySearch, Turns
from faults.programs.result import RunResult
from faults.programs.turns import CRASH


class CrashSearch(EverySearch[RunResult]):
    """All executions of a program in which a host crashes before the last stage, and those in which it does not.

    Args:
        run: As that of EverySearch, with what is lost in the crash.
        host: The one that crashes.
        last: The number of the last stage.
    """

    def __init__(
        self, run: Callable[[Turns, int, Losses], tuple[RunResult, Trace]], host: int, last: int, **how: Any
    ) -> None:
        super().__init__(self._once, **how)
        self._make, self._last = run, last
        self._crash: Actor = (CRASH, host, 0, 0)
        # By the number of a line, in the order of first fetches: how many stores are lost, and of how many.
        self._lost: dict[int, tuple[int, int]] = {}
        self._same_crash = False
        self.leaves = False  # whether some crash leaves a line of which not all stores have arrived for sure

    def _once(self, turns: Turns, sure: int) -> tuple[RunResult, Trace]:
        losses = tuple(self._lost.get(number, (0, 0))[0] for number in range(max(self._lost, default=-1) + 1))
        result, trace = self._make(turns, sure, losses)
        for arrival in result.crashes.arrivals if result.crashes else ():
            self._lost.setdefault(arrival.number, (arrival.lost, arrival.stores))
        return result, trace

    def _explore(self, branch: Branch | None) -> RunResult:
        if not self._same_crash and not any(place.does(self._crash) for place in self.places[:-1]):
            self._lost.clear()
        result = super()._explore(branch)
        self._same_crash = False
        return result

    def _again(self) -> None:
        """Lose one more store of the last line of which more can be lost."""
        place = self.places[-1]
        if self._same_crash or not place.does(self._crash):
            return
        while self._lost:
            number, (lost, stores) = self._lost.popitem()
            if lost < stores:
                self._lost[number] = (lost + 1, stores)
                place.todo.insert(0, Branch(self._crash))
                self._same_crash = True
                return

    def state(self) -> dict[str, Any]:
        """Return what is lost in the last crash, and whether any crash leaves something."""
        lost = [[number, *its] for number, its in self._lost.items()]
        return {"lost": lost, "same_crash": self._same_crash, "leaves": self.leaves}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on behind the last crash."""
        self._lost = {number: (lost, stores) for number, lost, stores in state["lost"]}
        self._same_crash, self.leaves = state["same_crash"], state["leaves"]

    def open_places(self) -> int:
        """Count the places at which something is still to be tried."""
        return super().open_places() + any(lost < stores for lost, stores in self._lost.values())

    def _possible(self, trace: Trace, offset: int) -> list[Actor]:
        """Add the crash: behind a fetch it shows something else, though all steps that could come there sleep."""
        steps = [event.stage < self._last for event in trace.events[offset:] if isinstance(event.actor, int)]
        crash = [self._crash] if any(steps) and not any(event.crashes for event in trace.events[:offset]) else []
        return [*super()._possible(trace, offset), *crash]

    def _try_unasked(self, trace: Trace) -> None:
        """Try the crash behind all that comes before the last stage; without a reduction everywhere there."""
        super()._try_unasked(trace)
        crash = next((event for event in trace.events if event.crashes), None)
        if crash is not None:
            self.faults += 1
            self.leaves |= bool(crash.arrived)
            return
        if not self.places:  # no program touched a pool
            return
        steps = [k for k, event in enumerate(trace.events) if isinstance(event.actor, int)]
        first = next((k for k in steps if trace.events[k].stage == self._last), len(trace.events))
        behind = max((k for k in steps if k < first), default=0)
        for k in (behind,) if self._reduced else range(behind + 1):
            self.places[k].add(self._crash)
