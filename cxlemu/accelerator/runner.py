"""Runs a rank's part of a device's plan: what is in queues goes to the device, what orders memory the host does.

This is the reference engine with another mover. A queue's instruction is done when it has been queued; events of queues
are events of the device, and a host's stream that awaits one goes on when the device says that it has happened.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cxlemu.accelerator.device import ComputeDevice, DeviceBuffer, Event, Queue, TileProduct
from cxlemu.accelerator.plan import BOUNCE, is_queue
from cxlemu.clock import SYSTEM_CLOCK, Clock
from cxlemu.engines.mover import Buffer, BufferPart
from cxlemu.engines.reference import Runner, run
from cxlemu.engines.streams import NO_BREAKPOINTS, Blocked, Breakpoints, Running, Watch
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.plan import Instruction, Op, RankPart, RedOp
from cxlemu.plan.address import StridedRun
from cxlemu.plan.kernels import KERNELS


@dataclass
class DeviceMover:
    """The `Mover` of a device's buffers: all that it moves, it queues. ``queue`` is the one whose turn it is.

    Temporary buffers belong to a queue, and to one instruction of it: the next one may use them again, as it is done
    after this one.
    """

    device: ComputeDevice
    queue: Queue = None
    _spare: dict[tuple[int, int], DeviceBuffer] = field(init=False, default_factory=dict)
    _used: int = field(init=False, default=0)

    def turn(self, queue: Queue) -> None:
        """Queue what comes now in ``queue``; None for the host's instructions."""
        self.queue, self._used = queue, 0

    def nbytes(self, buffer: Buffer) -> int:
        return int(buffer.nbytes)

    def temporary(self, nbytes: int) -> BufferPart:
        key = id(self.queue), self._used
        self._used += 1
        allocate = self._spare.get(key)
        if allocate is None or allocate.nbytes < nbytes:
            if allocate is not None:
                self.device.synchronize(self.queue)  # what uses the smaller one has to be done before it is freed
            allocate = self._spare[key] = self.device.allocate(nbytes)
        return BufferPart(allocate, 0, nbytes)

    def get(self, part: BufferPart) -> Bytes:
        return self.device.read(part)

    def put(self, part: BufferPart, data: Bytes) -> None:
        self.device.write(part, data)

    def store(self, memory: HostMemory, run: StridedRun, source: BufferPart, *, non_temporal: bool) -> None:
        self.device.publish(self.queue, memory, run, source, non_temporal=non_temporal)

    def load(self, memory: HostMemory, run: StridedRun, target: BufferPart) -> None:
        self.device.retrieve(self.queue, memory, run, target)

    def copy(self, target: BufferPart, source: BufferPart) -> None:
        self.device.copy(self.queue, target, source)

    def fold(self, target: BufferPart, dtype: int, redop: RedOp, sources: Sequence[BufferPart], divisor: int) -> None:
        self.device.fold(self.queue, target, dtype, redop, sources, divisor)

    def flush(self, memory: HostMemory, card: int, offset: int, nbytes: int, *, drop: bool) -> None:
        (memory.invalidate if drop else memory.flush)(card, offset, nbytes)

    def fence(self, memory: HostMemory) -> None:
        memory.fence()


@dataclass
class DeviceRunner(Runner):
    """One rank in the middle of a call of a device's plan. ``mover`` is a DeviceMover."""

    mover: DeviceMover = field(kw_only=True)
    # the device's queue of each stream that is one, by the stream's number
    queues: dict[int, Queue] = field(kw_only=True)
    _recorded: dict[int, Event] = field(init=False, default_factory=dict)

    def step(self, stream: int) -> Blocked | None:
        self.mover.turn(self.queues.get(stream))
        return super().step(stream)

    def execute(self, instruction: Instruction) -> Blocked | None:
        queue, device, event = self.mover.queue, self.mover.device, instruction.arg
        if instruction.op == Op.RECORD and queue is not None:
            self._recorded[event] = device.record(queue)
            return None
        if instruction.op == Op.AWAIT and event in self._recorded:
            if queue is not None:
                device.wait(queue, self._recorded[event])
            elif not device.happened(self._recorded[event]):
                return Blocked("", 0, instruction)
            return None
        if instruction.op == Op.COMPUTE:
            self._multiply(instruction)
            return None
        return super().execute(instruction)

    def _multiply(self, i: Instruction) -> None:
        kernel = self.frame.kernels[i.arg]
        kind, (m, n, k, *leading) = KERNELS[kernel.name], kernel.parameters
        parts = map(self.local, (i.dst, i.a, i.b), kind.sizes(kernel.parameters))
        target, a, b = parts
        product = TileProduct(kind.product, m, n, k, *(leading or (k, n, n)))
        self.mover.device.multiply(self.mover.queue, target, product, a, b)

    def synchronize(self) -> None:
        """Wait until the device has done all that the part queued."""
        for queue in self.queues.values():
            self.mover.device.synchronize(queue)


@dataclass
class DeviceEngine:
    """Runs parts of plans that `cxlemu.accelerator.plan.device_plan` made, for one rank and its device."""

    memory: HostMemory  # the rank's view of the pool
    device: ComputeDevice
    clock: Clock = SYSTEM_CLOCK  # measures and spends the time of waits
    _queues: list[Queue] = field(init=False, default_factory=list)
    _mover: DeviceMover = field(init=False)

    def __post_init__(self) -> None:
        self._mover = DeviceMover(self.device)

    def runner(
        self, running: Running, buffers: Sequence[DeviceBuffer], stops: Breakpoints = NO_BREAKPOINTS
    ) -> DeviceRunner:
        r = running
        queues = dict(zip(queue_streams(r.part), self._queues_for(r.part), strict=True))
        mine = [*buffers, *(self.device.pinned(b.nbytes) for b in r.part.buffers if b.name == BOUNCE)]
        return DeviceRunner(
            *(r.call, r.frame, r.part, r.binding),
            memory=self.memory,
            buffers=mine,
            stops=stops,
            mover=self._mover,
            queues=queues,
        )

    def run(
        self,
        running: Running,
        buffers: Sequence[DeviceBuffer],
        *,
        deadline_s: float,
        watch: Watch | None = None,
        stops: Breakpoints = NO_BREAKPOINTS,
        after: Sequence[Event] = (),
    ) -> list[Event]:
        """Queue one rank's part of a call; return one event per queue, which happens when the result is there."""
        runner = self.runner(running, buffers, stops)
        for queue in runner.queues.values():
            for event in after:
                self.device.wait(queue, event)
        run(runner, deadline_s=deadline_s, watch=watch, clock=self.clock)
        return [self.device.record(queue) for queue in runner.queues.values()]

    def synchronize(self) -> None:
        """Wait until the device has done all that was queued. Raises DeviceError where work failed."""
        for queue in self._queues:
            self.device.synchronize(queue)

    def _queues_for(self, part: RankPart) -> list[Queue]:
        needed = len(queue_streams(part))
        while len(self._queues) < needed:
            self._queues.append(self.device.queue())
        return self._queues[:needed]


def queue_streams(part: RankPart) -> list[int]:
    return [k for k, stream in enumerate(part.streams) if is_queue(stream)]
