"""Damage in every interleaving: ``cxlemu exec --every`` with ``--poison every`` or ``--lose-card every``.

The damage is an event of its own, one in an execution: of each line, or card, that is fetched or arrives. It is tried
before the last stage, and from there moved to the front by its races.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from faults.programs.area import POOLS
from faults.programs.every.events import Trace
from faults.programs.every.search import EverySearch, Turns
from faults.programs.result import RunResult
from faults.programs.turns import LOSE, POISON


class DamageSearch(EverySearch[RunResult]):
    """All executions of a program in which a line or a card breaks before the last stage, and those in which none does.

    Args:
        run: As that of EverySearch.
        what: What breaks, by its field in ExecSetting: poison or lose.
        last: The number of the last stage.
    """

    def __init__(self, run: Callable[[Turns, int], tuple[RunResult, Trace]], what: str, last: int, **how: Any) -> None:
        super().__init__(run, **how)
        self._action, self._last = {"poison": POISON, "lose": LOSE}[what], last

    def _try_unasked(self, trace: Trace) -> None:
        """Try damage before the last stage; without a reduction everywhere until then."""
        super()._try_unasked(trace)
        if any(event.damages for event in trace.events):
            self.faults += 1
            return
        lines = set().union(*(event.fetched | event.arrived for event in trace.events))
        damages = {(self._action, 0, pool, line * (self._action == POISON)) for pool, line in lines if pool < POOLS}
        begins = min((event.number for event in trace.events if event.stage == self._last), default=inf)
        behind = next((k for k, event in enumerate(trace.events) if event.number >= begins), len(trace.events) - 1)
        for k in range(behind if self._reduced else 0, behind + 1):
            for actor in sorted(damages):
                self.places[k].add(actor)
