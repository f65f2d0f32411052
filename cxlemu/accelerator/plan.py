"""The plan of a rank whose arrays live on a device: its copies and folds move to queues, the rest stays on the host.

Each stream of a plan becomes two. What moves bytes or multiplies (WRITE, READ, REDUCE, COPY, COMPUTE) goes to the
stream's queue on the device, which works in order, and late. What orders memory (FLUSH, FENCE, INVALIDATE, SIGNAL,
WAIT) stays with the host. Between them stand events, where the plan's order would otherwise be lost, and nowhere else:

    host:   ------------- AWAIT e -> FLUSH -> FENCE -> SIGNAL      WAIT -> INVALIDATE -> RECORD f -------------
    queue:  WRITE -> RECORD e                                                  AWAIT f -> READ

The result is a plan like any other. The reference engine says what it means, with queues that are as late as
its interleaving has them; the prover decides whether it is right, and rules, mutations and pictures take it as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan import Frame, Instruction, Layout, Op, Operand, Plan, RankPart, Stream, accesses, encode
from cxlemu.plan.features import declared
from cxlemu.plan.instructions import Kind
from cxlemu.plan.kernels import KERNELS
from cxlemu.plan.plan import Buffer

MODELS = declared(  # of plans for the host, from which those for devices are made
    "EVENTS FOLDS HEAP MATRIX_PRODUCTS NON_TEMPORAL OWN_MEMORIES PAYLOADS PROCESS_ARRAYS TOLD_PLACES UNEVEN_BLOCKS "
    "UNIFORM_ORDER"
)

QUEUE = ".queue"  # ends the name of a stream that runs on the device
BOUNCE = "bounce"  # pinned memory of the host, through which doorbells' payloads come and go

_ON_DEVICE = (Op.WRITE, Op.WRITE_NT, Op.READ, Op.REDUCE, Op.REDUCE_LOCAL, Op.COPY, Op.COMPUTE)
_DROPS = (Op.FLUSH, Op.INVALIDATE)
# what the host did in one stream before it does this in another: all else reaches it by way of a queue, or not at all
_HOST_NEEDS = {
    Op.SIGNAL: (*accesses.WAITS, Op.FENCE),
    Op.SIGNAL_DATA: (*accesses.WAITS, Op.FENCE),
    Op.FENCE: (Op.FLUSH,),
    Op.INVALIDATE: accesses.WAITS,
}

_CELL = 10  # log2 of the size of a cell, by which steps that touch it are found: bytes of buffers
_LINE_CELL = 4  # the same for lines of the pool

Place = tuple[int, int]  # an instruction of the new part: its stream, and its number there before RECORDs are added
_Name = Hashable
Range = tuple[int, int, int]  # a space of memory, and where the range begins and ends in it


def is_queue(stream: Stream) -> bool:
    return stream.name.endswith(QUEUE)


def device_plan(plan: Plan) -> Plan:
    """Turn a plan into one for ranks whose arrays live on a device."""
    if plan.call.heap is not None and plan.call.heap.is_written_by_peers:
        raise ArgumentError(f"{plan.call}: peers write results in the pool, not on a device: choose another variant")

    def build(rank: int) -> tuple[Frame, RankPart]:
        part = plan.part(rank)
        return plan.frame, device_part(plan.frame, plan.layout, part)

    return Plan(plan.call, plan.layout, build)


def device_part(frame: Frame, layout: Layout, part: RankPart) -> RankPart:
    """Turn one rank's part into one for arrays on a device; see `device_plan`."""
    return _Lowering(frame, layout, part).run()


@dataclass(frozen=True)
class _Step:
    """An instruction of the new part, and what it touches: bytes of buffers, and lines of the pool."""

    instruction: Instruction
    frame: Frame = field(repr=False)
    part: RankPart = field(repr=False)
    layout: Layout = field(repr=False)

    def _ranges(self, operands: Iterator[Operand]) -> list[Range]:
        ranges: list[Range] = []
        for operand in operands:
            if operand.kind == Kind.REGION:
                ranges += self._lines(operand)
            else:
                ranges.append(self._bytes(operand, self.instruction.nbytes))
        return ranges

    @cached_property
    def _of_kernel(self) -> list[Range]:
        """Of a COMPUTE: what it stores, and then what it loads, from the first byte that it touches to the last."""
        i = self.instruction
        kernel = self.frame.kernels[i.arg]
        sizes = KERNELS[kernel.name].sizes(kernel.parameters)
        operands = [operand for operand in (i.dst, i.a, i.b, i.c) if operand.kind]
        return [self._bytes(operand, nbytes) for operand, nbytes in zip(operands, sizes, strict=True)]

    def _bytes(self, operand: Operand, nbytes: int) -> Range:
        buffers = self.part.buffers
        space, offset = operand.id, operand.offset
        if space < len(buffers) and buffers[space].inside:
            offset += buffers[space].at
            space = next(k for k, buffer in enumerate(buffers) if buffer.name == buffers[space].inside)
        return -1 - space, offset, offset + nbytes

    def _lines(self, operand: Operand) -> Iterator[Range]:
        for card, offset, nbytes in accesses.pool_extents(self.frame, self.layout, 0, operand, self.instruction.nbytes):
            yield card, offset // LINE_BYTES, -(-(offset + nbytes) // LINE_BYTES)

    @cached_property
    def loads(self) -> list[Range]:
        if self.instruction.op == Op.COMPUTE:
            return self._of_kernel[1:]
        return self._ranges(accesses.loaded(self.instruction))

    @cached_property
    def stores(self) -> list[Range]:
        if self.instruction.op == Op.COMPUTE:
            return self._of_kernel[:1]
        return self._ranges(accesses.stored(self.instruction))

    @cached_property
    def drops(self) -> list[Range]:
        return list(self._lines(self.instruction.a)) if self.instruction.op in _DROPS else []

    @cached_property
    def in_pool(self) -> list[Range]:
        return [r for r in self.loads + self.stores if r[0] >= 0]

    @property
    def loads_pool(self) -> bool:
        return any(space >= 0 for space, _, _ in self.loads)

    @cached_property
    def names(self) -> list[_Name]:
        names: list[_Name] = [self.instruction.op] + (["loads pool"] if self.loads_pool else [])
        for kind, ranges in (("load", self.loads), ("store", self.stores), ("drop", self.drops)):
            names += _cells(kind, ranges)
        return names

    def conflicts(self, other: _Step) -> bool:
        """Whether one of the two stores bytes that the other touches."""
        return _meet(self.stores, other.stores) or _meet(self.stores, other.loads) or _meet(self.loads, other.stores)


def _cells(kind: str, ranges: Sequence[Range]) -> Iterator[_Name]:
    for space, begin, end in ranges:
        size = _CELL if space < 0 else _LINE_CELL
        for cell in range(begin >> size, -(-end >> size)):
            yield kind, space, cell


def _meet(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)


class _Lowering:
    """One rank's part on the way. Streams 0 to n - 1 are the host's, stream n + s is the queue of stream s."""

    def __init__(self, frame: Frame, layout: Layout, part: RankPart) -> None:
        self.n = len(part.streams)
        self.frame, self.layout, self.part = frame, layout, part
        count = 2 * self.n
        # of each new stream: its steps (None: it awaits `awaits`), what each knows, and whose plan instruction it is
        self.steps: list[list[_Step | None]] = [[] for _ in range(count)]
        self.knows: list[list[tuple[int, ...]]] = [[] for _ in range(count)]
        self.came: list[list[int]] = [[] for _ in range(count)]
        self.named: list[dict[_Name, list[int]]] = [defaultdict(list) for _ in range(count)]
        self.clock = [[0] * count for _ in range(count)]
        self.seen = [[0] * self.n for _ in range(self.n)]  # of each old stream: how far it knows the old ones
        self.awaits: dict[Place, Place] = {}
        self.bounced = 0

    def run(self) -> RankPart:
        recorded: dict[int, list[int]] = {}
        todo = [list(stream.instructions) for stream in self.part.streams]
        offset = [0] * self.n
        while any(offset[s] < len(todo[s]) for s in range(self.n)):
            before = list(offset)
            for s in range(self.n):
                while offset[s] < len(todo[s]):
                    i = todo[s][offset[s]]
                    if i.op == Op.AWAIT:
                        if i.arg not in recorded:
                            break
                        self.seen[s] = list(map(max, self.seen[s], recorded[i.arg]))
                    elif i.op == Op.RECORD:
                        recorded[i.arg] = list(self.seen[s])
                    else:
                        self._place(s, i)
                    offset[s] += 1
                    self.seen[s][s] = offset[s]
            if before == offset:
                raise ArgumentError(f"rank {self.part.rank} awaits events that it never records")
        return self._part()

    def _place(self, s: int, i: Instruction) -> None:
        if i.op == Op.COMPUTE and not KERNELS[(kernel := self.frame.kernels[i.arg]).name].product:
            raise ArgumentError(f"{kernel.name} runs on host arrays: a plan with checksums takes no device arrays")
        queue, bounce = self.n + s, Operand(Kind.BUFFER, len(self.part.buffers), 0, self.bounced)
        if i.op in _ON_DEVICE:
            self._append(queue, s, i)
        elif i.op == Op.SIGNAL_DATA:
            self.bounced += PAYLOAD_BYTES
            self._append(queue, s, Instruction(Op.COPY, nbytes=i.nbytes, dst=bounce, a=i.a))
            self._append(s, s, i._replace(a=bounce))
        elif i.op == Op.WAIT_DATA:
            self.bounced += PAYLOAD_BYTES
            self._append(s, s, i._replace(dst=bounce))
            self._append(queue, s, Instruction(Op.COPY, nbytes=i.nbytes, dst=i.dst, a=bounce))
        else:
            self._append(s, s, i)

    def _append(self, stream: int, s: int, i: Instruction) -> None:
        """Put an instruction of plan stream ``s`` at the end of a new stream, after what it has to come after."""
        step = _Step(i, self.frame, self.part, self.layout)
        for other in self._nearest_first(stream):
            offset = self._last_needed(step, stream, other, s)
            if offset >= 0:
                self._await(stream, (other, offset), s)
        self._note(stream, s, step)

    def _last_needed(self, step: _Step, stream: int, other: int, s: int) -> int:
        """Return the last step of another stream that has to come first and is not known to; -1 if there is none."""
        whose, best = other % self.n, self.clock[stream][other] - 1
        end = len(self.steps[other]) if whose == s else bisect_left(self.came[other], self.seen[s][whose])
        last = -1
        for name in _asks(step, stream >= self.n, other >= self.n):
            places = self.named[other].get(name, ())
            for k in range(bisect_left(places, end) - 1, -1, -1):
                offset = places[k]
                if offset <= best:
                    break
                earlier = self.steps[other][offset]
                if earlier is not None and _needs(step, stream >= self.n, earlier, other >= self.n):
                    last = best = offset
                    break
        return last

    def _nearest_first(self, stream: int) -> list[int]:
        """The other new streams: queues first, as what the host did before them is then known as well."""
        others = [k for k in range(2 * self.n) if k != stream]
        return sorted(others, key=lambda k: (k < self.n, k % self.n != stream % self.n))

    def _await(self, stream: int, place: Place, s: int) -> None:
        self.awaits[stream, len(self.steps[stream])] = place
        self._note(stream, s, None)
        other, offset = place
        self.clock[stream] = list(map(max, self.clock[stream], self.knows[other][offset]))

    def _note(self, stream: int, s: int, step: _Step | None) -> None:
        if step is not None:
            for name in step.names:
                self.named[stream][name].append(len(self.steps[stream]))
        self.steps[stream].append(step)
        self.clock[stream][stream] = len(self.steps[stream])
        self.knows[stream].append(tuple(self.clock[stream]))
        self.came[stream].append(self.seen[s][s])

    def _part(self) -> RankPart:
        events = {place: number for number, place in enumerate(sorted(set(self.awaits.values())))}
        names = [stream.name for stream in self.part.streams]
        streams = []
        for k, name in enumerate([*names, *(name + QUEUE for name in names)]):
            instructions = []
            for index, step in enumerate(self.steps[k]):
                if step is None:
                    instructions.append(Instruction(Op.AWAIT, arg=events[self.awaits[k, index]]))
                else:
                    instructions.append(step.instruction)
                if (k, index) in events:
                    instructions.append(Instruction(Op.RECORD, arg=events[k, index]))
            streams.append(Stream(name, encode(instructions)))
        bounce = (Buffer(BOUNCE, self.bounced),) if self.bounced else ()
        buffers = (*self.part.buffers, *bounce)
        return RankPart(self.part.rank, buffers, tuple(streams), len(events))


def _asks(step: _Step, on_device: bool, earlier_on_device: bool) -> Iterator[_Name]:
    op = step.instruction.op
    yield from _cells("store", step.loads + step.stores)
    yield from _cells("load", step.stores)
    if on_device and not earlier_on_device and step.in_pool:
        yield from accesses.WAITS
        yield from _cells("drop", step.in_pool)
    if not on_device and earlier_on_device:
        yield from _cells("store", step.drops)
        if op == Op.FENCE:
            yield Op.WRITE_NT
        if op in accesses.RINGS:
            yield "loads pool"
    if not on_device and not earlier_on_device:
        yield from _HOST_NEEDS.get(op, ())


def _needs(step: _Step, on_device: bool, earlier: _Step, earlier_on_device: bool) -> bool:
    """Whether a step has to come after an earlier one of another stream, given that the plan has them in this order."""
    op, before = step.instruction.op, earlier.instruction.op
    if on_device and earlier_on_device:
        return step.conflicts(earlier)
    if on_device:  # the slot is free, or the bytes are published; a stale line is gone; a payload is there
        if before in accesses.WAITS and step.in_pool:
            return True
        return _meet(step.in_pool, earlier.drops) if before == Op.INVALIDATE else step.conflicts(earlier)
    if earlier_on_device:
        if op in _DROPS:  # only bytes that have come can be written back
            return _meet(step.drops, earlier.stores)
        if op == Op.FENCE:
            return before == Op.WRITE_NT
        if op in accesses.RINGS and earlier.loads_pool:  # the signal may say that bytes were read
            return True
        return step.conflicts(earlier)
    return before in _HOST_NEEDS.get(op, ())
