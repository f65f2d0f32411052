"""An engine that leaves out instructions: the mistake in an implementation that a comparison is to find.

It counts those that it leaves out, and those among them that would have done something there and then: an INVALIDATE of
a line that the host's cache holds, a FLUSH of a line that is dirty there, a FENCE in a call in which the rank flushes
or writes around its cache. All other instructions always matter.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from collectives.layouts import SLOTS_MAX
from cxlemu.engines import Engine
from cxlemu.engines.streams import NO_BREAKPOINTS, Breakpoints, Running, Watch
from cxlemu.memory.protocol import Bytes
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.plan import Op, RankPart
from cxlemu.world import RankContext
from faults.inject.places import InstructionPlace, data

NEEDLESS = {
    Op.INVALIDATE: "no line was in its host's cache, because its slot was not read before: "
    f"a group's slots are used again after {SLOTS_MAX} calls at most, so train for more",
    Op.FLUSH: "no line was dirty in its host's cache",
    Op.FENCE: "it flushed nothing in these calls",
}
"""Why leaving out an instruction changes nothing, for those that may change nothing."""


def without(part: RankPart, ops: frozenset[Op]) -> RankPart:
    numbers = [int(op) for op in ops]
    streams = tuple(
        replace(stream, records=stream.records[~np.isin(stream.records["op"], numbers)]) for stream in part.streams
    )
    return replace(part, streams=streams)


@dataclass
class LeavingOut:
    """An engine that executes every part without some kinds of instructions."""

    inner: Engine  # executes the instructions
    context: RankContext  # the rank's context
    ops: frozenset[Op]  # what is left out
    left_out: Counter[Op] = field(default_factory=Counter)  # how many instructions of each kind were left out
    mattered: Counter[Op] = field(default_factory=Counter)  # how many of them would have done something
    _places: dict[int, tuple[RankPart, list[InstructionPlace]]] = field(default_factory=dict)

    def run(
        self,
        running: Running,
        buffers: list[Bytes],
        *,
        deadline_s: float,
        watch: Watch | None = None,
        stops: Breakpoints = NO_BREAKPOINTS,
    ) -> None:
        """Run one rank's part of a call to its end, as `Engine.run` does, without what is left out."""
        part = running.part
        if id(part) not in self._places:
            self._places[id(part)] = (part, self._found(part))  # the part keeps its id its own
        leave: dict[tuple[int, int], Callable[[], bool]]
        leave = {where: partial(self._leave, running, where, stops.get(where)) for where in self._places[id(part)][1]}
        self.inner.run(running, buffers, deadline_s=deadline_s, watch=watch, stops={**stops, **leave})

    def _found(self, part: RankPart) -> list[InstructionPlace]:
        numbers = [int(op) for op in self.ops]
        return [
            InstructionPlace(number, int(offset))
            for number, stream in enumerate(part.streams)
            for offset in np.flatnonzero(np.isin(stream.records["op"], numbers))
        ]

    def _leave(self, running: Running, where: InstructionPlace, other: object) -> bool:
        if callable(other):
            other()
        op = Op(running.part.streams[where.stream].instructions[where.at].op)
        self.left_out[op] += 1
        self.mattered[op] += self._matters(op, running, where)
        return True

    def _matters(self, op: Op, running: Running, where: InstructionPlace) -> bool:
        memory = self.context.memory
        if op not in NEEDLESS or self.context.backend.on_devices:
            return True
        if not isinstance(memory, ShadowMemory):
            return False  # the memory is coherent
        if op is Op.FENCE:
            return any(np.isin(stream.records["op"], self._posts).any() for stream in running.part.streams)
        cards, dirty = memory.cache.cards, op is Op.FLUSH
        spans = data(running, running.part.streams[where.stream].instructions[where.at])
        return any(cards[span.card].holds(*span.lines, dirty=dirty) for span in spans)

    @property
    def _posts(self) -> list[int]:
        return [int(op) for op in {Op.FLUSH, Op.WRITE_NT} - self.ops]
