"""Lockstep's twin in C, for many runs of calls that differ in their plans only: the same moves, the same bytes.

`Lockstep`, on emulated caches without an adversary, is the definition; tests/faults/test_twin.py holds the twin to it.
It takes orders that are tables: a priority for each stream and, between two steps, the same moves of nature. All that
the runs share is made once, and each of them begins with a copy of it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cxlemu.compiled import check_compiled
from cxlemu.engines import native
from cxlemu.engines.streams import Binding, Running, deadlock
from cxlemu.errors import PlanError
from cxlemu.memory.adversary import Action
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.plan import Buffer, Plan
from cxlemu.plan.layout import layout_record
from cxlemu.plan.plan import berths, group_table, region_table
from cxlemu.rounding import round_up
from faults.lockstep import _world
from faults.lockstep.lockstep import POISON, Ended, fill_inputs, no_such_line
from faults.lockstep.orders import Disturbed, Order, Ranked
from faults.lockstep.places import epochs
from faults.lockstep.schedule import LockstepMove, Nature, StreamStep

check_compiled("faults.lockstep._world", _world.CONSTANTS, {"DONE": native.DONE, "MISMATCH": native.MISMATCH})
STREAMS, BUFFERS, STUCK, SPENT, DAMAGED, UNKNOWN, UNCHECKED = (
    _world.CONSTANTS[name]
    for name in ("MAX_STREAMS", "MAX_BUFFERS", "STUCK", "SPENT", "DAMAGED", "UNKNOWN", "UNCHECKED")
)
BASE = 4096  # where the communicator's part begins on every card, as in Lockstep
SCRIPTS_KEPT = 64
_ACTIONS = list(Action)


class StepsSpentError(Exception):
    """An execution was cut off because the time for it is spent."""


class OrderTable(NamedTuple):
    priority: NDArray[np.int32]  # by rank and stream
    moves: list[Nature]  # what nature does between two steps, the last one first


def table_of(order: Order, ranks: int) -> OrderTable | None:
    """Write an order that has chosen nothing yet as a table; None if no table can say it."""
    ranked, moves = (order.order, order.moves) if isinstance(order, Disturbed) else (order, [])
    if not isinstance(ranked, Ranked) or ranked.begun:
        return None
    given = [ranked.priority(StreamStep(rank, stream)) for rank in range(ranks) for stream in range(STREAMS)]
    ascending = {priority: number for number, priority in enumerate(sorted(set(given)))}
    return OrderTable(np.array([ascending[priority] for priority in given], np.int32), moves)


class _Script(NamedTuple):
    """A plan as C runs it; ``plan`` is held so that its id stays its own."""

    plan: Plan
    its: _world.Script
    tag: int


class Twin:
    """Calls with their inputs, and a world in C to run them in, with other plans in their places as well."""

    def __init__(
        self,
        plans: Sequence[Plan],
        inputs: Sequence[Sequence[Bytes]],
        right: Sequence[Sequence[Bytes | int]],
        hosts: Sequence[int] | None,
    ) -> None:
        """Make the world; ``right[call][rank]`` is the output that is right, UNKNOWN or UNCHECKED. Nothing runs yet."""
        self._layout, self._ranks = plans[0].layout, range(plans[0].ranks)
        self._hosts = {host: number for number, host in enumerate(dict.fromkeys(hosts or self._ranks))}
        of_ranks = np.array([self._hosts[host] for host in hosts or self._ranks], np.int32)
        self._record = layout_record(self._layout)
        self._world = _world.World(self._record, BASE, of_ranks)
        self._steps = [StreamStep(rank, stream) for rank in self._ranks for stream in range(STREAMS)]
        self._scripts: OrderedDict[int, _Script] = OrderedDict()
        self._buffers = [[plan.part(rank).buffers for rank in self._ranks] for plan in plans]
        self._offsets, nbytes = buffer_offsets(self._buffers)
        self._image, self._arena = np.full(nbytes, POISON, np.uint8), np.empty(nbytes, np.uint8)
        for number, call in enumerate(inputs):
            for rank, given in enumerate(call):
                fill_inputs(self._arrays(self._image, number, rank), given)
        known = [each for call in right for each in call if not isinstance(each, int)]
        self._right = np.concatenate([*known, np.empty(0, np.uint8)])
        begins = iter(np.cumsum([0, *(each.nbytes for each in known)]))
        self._right_at = np.array(
            [each if isinstance(each, int) else next(begins) for call in right for each in call], np.int64
        )

    def takes(self, plans: Sequence[Plan]) -> bool:
        """Say whether plans can take the place of the first ones: their ranks have the same buffers."""
        return all(
            plan.part(rank).buffers == buffers
            for plan, buffer in zip(plans, self._buffers, strict=True)
            for rank, buffers in enumerate(buffer)
        )

    def run(self, plans: Sequence[Plan], order: OrderTable, ended: Ended, end_s: float) -> None:
        """Run calls as `Lockstep.calls` does, in a new world; ``ended`` is called only for wrong or UNKNOWN outputs."""
        self._moves = order.moves
        scripts = [self._script(plan) for plan in plans]
        running = [
            (plan, Binding(self._layout, BASE, epoch, script.tag))
            for (plan, epoch), script in zip(epochs(plans), scripts, strict=True)
        ]

        def rank_in(number: int, rank: int) -> Running:
            plan, binding = running[number]
            return Running(plan.call, plan.frame, plan.part(rank), binding)

        def end(number: int, rank: int) -> None:
            ended(number, rank, self._arrays(self._arena, number, rank)[1].copy())

        def kernel(number: int, rank: int, stream: int, index: int) -> None:
            native.compute(rank_in(number, rank), self._arrays(self._arena, number, rank), stream=stream, at=index)

        status, places = self._world.run(
            [(script.its, binding.epoch, script.tag) for script, (_, binding) in zip(scripts, running, strict=True)],
            self._arena,
            self._offsets,
            self._image,
            self._right,
            self._right_at,
            order.priority,
            self._blows(order.moves),
            end_s,
            end,
            kernel,
        )
        if status == SPENT:
            raise StepsSpentError
        if status == STUCK:
            now = {rank: rank_in(number, rank) for number, rank, *_ in places}
            raise deadlock(now, {(r, place[0]): native.blocked_at(now[r], *place) for _, r, *place in places})
        if status != native.DONE:
            [(number, rank, _, _, doorbell, wanted, *_)] = places
            state = rank_in(number, rank)
            if status == native.MISPLACED:
                raise state.misplaced(doorbell) if doorbell >= 0 else state.untold(wanted)
            assert status in (native.MISMATCH, DAMAGED), status
            raise state.mismatch(doorbell) if status == native.MISMATCH else state.damaged_doorbell(doorbell)

    @property
    def moves(self) -> tuple[LockstepMove, ...]:
        return self._world.moves(self._steps, self._moves)

    def spans(self, call: int) -> list[tuple[int, int]]:
        """Return when each rank did its first and its last instruction of a call, on a clock of all ranks."""
        return self._world.spans(call)

    def _blows(self, moves: Sequence[Nature]) -> NDArray[np.int64]:
        first, last = BASE // LINE_BYTES, (BASE + self._layout.extent_bytes - 1) // LINE_BYTES
        for move in moves:
            if move.host not in self._hosts or move.card >= self._layout.cards or first + move.line > last:
                raise no_such_line(move, len(self._hosts), self._layout.cards)
        rows = [(_ACTIONS.index(m.action), self._hosts[m.host], m.card, first + m.line) for m in moves]
        return np.array(rows, np.int64)

    def _script(self, plan: Plan) -> _Script:
        """Bind a plan; the SCRIPTS_KEPT that were used last are kept."""
        if (known := self._scripts.get(id(plan))) is not None:
            self._scripts.move_to_end(id(plan))
            return known
        frame, heap = plan.frame, plan.call.heap
        told = heap if heap is not None and heap.told else None
        berthed = np.empty(0, np.int64) if told is None else berths(frame, plan.layout, told)
        parts = [
            (
                part.events,
                np.array([buffer.nbytes for buffer in part.buffers], np.int64),
                [stream.records for stream in part.streams],
                None if told is None else native.told_places(self._layout, part.rank, told.places(part.rank), berthed),
            )
            for part in plan.parts
        ]
        tables = region_table(frame.regions), group_table(frame.groups)
        try:
            script = _world.Script(self._record, BASE, *tables, parts)
        except ValueError as error:
            raise PlanError(f"[{plan.call}]: {error}") from error
        self._scripts[id(plan)] = made = _Script(plan, script, plan.call.tag())
        if len(self._scripts) > SCRIPTS_KEPT:
            self._scripts.popitem(last=False)
        return made

    def _arrays(self, where: Bytes, call: int, rank: int) -> list[Bytes]:
        buffers = self._buffers[call][rank]
        return [
            where[offset : offset + buffer.nbytes]
            for offset, buffer in zip(self._offsets[call, rank], buffers, strict=False)
        ]


def buffer_offsets(buffers: Sequence[Sequence[Sequence[Buffer]]]) -> tuple[NDArray[np.int64], int]:
    """Return where each buffer begins, by call, rank and buffer, as `fresh_buffers` lays them out, and all bytes."""
    offsets, end = np.zeros((len(buffers), len(buffers[0]), BUFFERS), np.int64), 0
    for number, call in enumerate(buffers):
        for rank, rank_buffers in enumerate(call):
            offset = offsets[number, rank]
            for index, buffer in enumerate(rank_buffers):
                offset[index], end = end, end + round_up(buffer.nbytes, LINE_BYTES)
            if rank_buffers[0].inside:
                offset[0] = offset[1] + rank_buffers[0].at
            if rank_buffers[1].inside:
                offset[1] = offset[0] + rank_buffers[1].at
    return offsets, end
