"""A fabric on which several jobs go on at once: plans that begin at any time, single transfers, events in between.

All of it is in one total order of time, and queues at the same engines, links and cards, with the virtual engine's
costs. At one moment, what a job has scheduled goes before what plans do.
"""

import heapq
from collections.abc import Callable

import numpy as np

from cxlemu.cost import CostModel
from cxlemu.engines.transfers import Transfers
from cxlemu.engines.virtual import PAUSED, VirtualCall, add_calls, check_outcome
from cxlemu.errors import ArgumentError

EVENTS_MAX = 20_000_000
ENDLESS_NS = 1 << 62

Event = Callable[[int], None]


class SharedFabric:
    """Jobs schedule events and begin calls; `run` lets them happen."""

    def __init__(self, model: CostModel) -> None:
        self.model, self.transfers, self.now_ns = model, Transfers(model), 0
        self._events: list[tuple[int, int, Event]] = []
        self._scheduled = 0
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}  # by a plan's id and its ranks, the engine's call
        self._calls: list[VirtualCall] = []
        self._done: dict[int, Event] = {}  # by call, what its job does at its end

    def schedule(self, at_ns: int, event: Event) -> None:
        """Let something happen at a time that is not over."""
        self._scheduled += 1
        heapq.heappush(self._events, (at_ns, self._scheduled, event))

    def begin(self, call: VirtualCall, now_ns: int, done: Event) -> None:
        """Begin a call on ranks that are in none; its ring is as new as if there had been no call before."""
        assert call.members is not None
        key = id(call.plan), call.members
        if key not in self._numbers:
            self._numbers[key] = len(self._calls)
            self._calls.append(call)
            add_calls(self.transfers.core, self.model, [call], [call.members], warm=False)
        number = self._numbers[key]
        self.transfers.core.begin(number, np.array(call.members, np.int32), now_ns)
        self._done[number] = done

    def run(self, going: Callable[[], bool], seen: Event | None = None) -> None:
        """Let things happen while ``going()``; ``seen`` hears the time now and then. Return where nothing is left."""
        happened = 0
        while going():
            until_ns = self._events[0][0] if self._events else ENDLESS_NS
            if self._done and self._ended(until_ns):
                continue
            if not self._events:
                return
            self.now_ns, _, event = heapq.heappop(self._events)
            event(self.now_ns)
            happened += 1
            if happened > EVENTS_MAX:
                raise ArgumentError(f"more than {EVENTS_MAX} events: take fewer with --requests")
            if seen is not None and not happened % 4096:
                seen(self.now_ns)

    def _ended(self, until_ns: int) -> bool:
        """Let plans go on to the end of a call, or to a time; return whether a call ended."""
        (outcome, *where), call, at_ns = self.transfers.core.advance(until_ns)
        if outcome != PAUSED:
            check_outcome(self.transfers.core, self.model, self._calls, outcome, *where)
        if call < 0:
            return False
        self.now_ns = at_ns
        self._done.pop(call)(at_ns)
        return True
