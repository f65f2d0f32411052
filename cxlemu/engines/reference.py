"""The living definition: what each instruction means, one step at a time, over any memory.

A Runner executes one rank's part on real bytes, one instruction per step; `run` drives it in real time, with a deadline
on every wait. `streams.run_together` drives the Runners of all ranks in one thread instead, for tests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

import numpy as np

from cxlemu.clock import SYSTEM_CLOCK, Clock
from cxlemu.engines.mover import HOST_MOVER, Buffer, BufferPart, Mover
from cxlemu.engines.streams import NO_BREAKPOINTS, NO_PLACE, Blocked, Breakpoints, Running, Streams, Watch
from cxlemu.errors import ArgumentError, PlanError
from cxlemu.memory.protocol import HostMemory
from cxlemu.plan import Flag, Instruction, Kind, Op, Operand, accesses
from cxlemu.plan.address import AddressMap, StridedRun
from cxlemu.plan.features import Feature
from cxlemu.plan.kernels import KERNELS
from cxlemu.plan.layout import PLACES_AT, TAG_BITS, doorbell_word, is_damaged
from cxlemu.plan.plan import Ints

MODELS = frozenset(Feature)  # whatever plans have is defined here
ADDRESSES = Struct("=QQ")  # with a doorbell: where a rank's input and output lie in its process
PLACES = Struct("=qq")  # with a doorbell: where they lie in the rank's strip of the heap


class Berth(NamedTuple):
    """From which byte on of which buffer of which rank an operand's bytes lie in that rank's process."""

    owner: int
    buffer: int
    offset: int


@dataclass
class Runner(Streams):
    """One rank in the middle of one call, on real bytes."""

    memory: HostMemory = field(kw_only=True)  # the rank's view of the pool
    # the rank's local buffers, by index, of the mover's kind: on the host 1-D uint8 arrays
    buffers: list[Buffer] = field(kw_only=True)
    mover: Mover = field(default=HOST_MOVER, kw_only=True)  # moves bytes between the buffers and the pool
    _maps: list[AddressMap] = field(init=False)
    _berths: Ints | None = field(init=False)
    _in_process: bool = field(init=False)
    _needs: dict[tuple[int, int], int] = field(init=False)
    _told: dict[int, tuple[int, int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for array, buffer in zip(self.buffers, self.part.buffers, strict=True):
            if (nbytes := self.mover.nbytes(array)) < buffer.nbytes:
                raise ArgumentError(f"buffer {buffer.name} has {nbytes} bytes, the plan needs {buffer.nbytes}")
        self._maps = [region.map for region in self.frame.regions]
        self._berths, self._needs = self.berths, self.needs
        self._in_process = self.call.heap is not None and self.call.heap.in_process
        if self._berths is not None and not self._in_process and not self._learn(self.part.rank, self.places):
            raise PlanError(f"an array of rank {self.part.rank} that peers read does not lie in its part of the heap")

    def execute(self, instruction: Instruction) -> Blocked | None:
        """Do what the instruction says on the rank's buffers and the pool, or say why it cannot be done yet."""
        return _EXECUTE[instruction.op](self, instruction)

    # --- where bytes are -------------------------------------------------------------------------------------

    def local(self, operand: Operand, nbytes: int) -> BufferPart:
        return BufferPart(self.buffers[operand.id], operand.offset, nbytes)

    def _card_base(self, operand: Operand) -> int:
        binding = self.binding
        base = binding.base + accesses.region_base(self.frame, binding.layout, binding.epoch, operand)
        if self._berths is None or not self.frame.regions[operand.id].heap:
            return base
        owner, buffer, offset = self._berths[operand.id].tolist()
        if owner not in self._told:
            raise self.untold(owner)
        place: int = self._told[owner][buffer] + offset
        return base + place - self.frame.regions[operand.id].start

    def _learn(self, owner: int, places: tuple[int, int]) -> bool:
        """Learn a rank's places. Returns whether each array that this rank's instructions name lies in the strip."""
        strip_bytes, heaps = self.binding.layout.heap_rank_bytes, [NO_PLACE, NO_PLACE]
        for number, place in enumerate(places):
            if (need := self._needs.get((owner, number), 0)) > 0:
                if not 0 <= place <= strip_bytes - need:
                    return False
                heaps[number] = place
        self._told[owner] = (heaps[0], heaps[1])
        return True

    def _runs(self, operand: Operand, nbytes: int) -> Iterator[StridedRun]:
        """Give the runs of a region operand's bytes on the cards."""
        base = self._card_base(operand)
        for run in self._maps[operand.id].runs(operand.offset, nbytes):
            yield run._replace(card_offset=base + run.card_offset)

    def _berth(self, operand: Operand) -> Berth | None:
        """Say where a region operand's bytes lie that are in a rank's process; None where they lie in the pool."""
        if self._berths is None or not self._in_process or self._berths[operand.id, 0] < 0:
            return None
        owner, buffer, offset = self._berths[operand.id].tolist()
        return Berth(owner, buffer, offset + operand.offset)

    def _own(self, lies: Berth, nbytes: int) -> BufferPart:
        return BufferPart(self.buffers[lies.buffer], lies.offset, nbytes)

    def store(self, operand: Operand, source: BufferPart, *, non_temporal: bool = False) -> None:
        if (lies := self._berth(operand)) is not None:
            self.mover.copy(self._own(lies, source.nbytes), source)
            return
        for run in self._runs(operand, source.nbytes):
            self.mover.store(self.memory, run, source, non_temporal=non_temporal)

    def load(self, operand: Operand, target: BufferPart) -> None:
        if (lies := self._berth(operand)) is not None:
            peers = self.binding.peers
            assert peers is not None
            if lies.owner == peers.own:
                self.mover.copy(target, self._own(lies, target.nbytes))
            else:
                peers.read(lies.owner, self._told[lies.owner][lies.buffer] + lies.offset, self.mover.get(target))
            return
        for run in self._runs(operand, target.nbytes):
            self.mover.load(self.memory, run, target)

    def fetch(self, operand: Operand, nbytes: int) -> BufferPart:
        """Get an operand's bytes, wherever it lives: from the pool, they are loaded into a temporary buffer."""
        if operand.kind == Kind.BUFFER:
            return self.local(operand, nbytes)
        out = self.mover.temporary(nbytes)
        self.load(operand, out)
        return out

    def sources(self, i: Instruction) -> list[BufferPart]:
        return [self.fetch(operand, i.nbytes) for operand in (i.a, i.b, i.c) if operand.kind]

    def doorbell_at(self, doorbell: int, epoch: int) -> tuple[int, int]:
        """Return the card and the byte offset of a doorbell, in the slot of its epoch."""
        card, offset = self.binding.layout.doorbell_address(doorbell, epoch)
        return card, self.binding.base + offset

    # --- what instructions do --------------------------------------------------------------------------------

    def _write(self, i: Instruction) -> None:
        self.store(i.dst, self.local(i.a, i.nbytes), non_temporal=i.op == Op.WRITE_NT)

    def _flush(self, i: Instruction) -> None:
        if self._berth(i.a) is not None:
            return  # the kernel's copies are coherent
        base = self._card_base(i.a)
        for extent in self._maps[i.a.id].extents(i.a.offset, i.nbytes):
            self.mover.flush(self.memory, extent.card, base + extent.offset, extent.nbytes, drop=i.op != Op.FLUSH)

    def _fence(self, i: Instruction) -> None:
        self.mover.fence(self.memory)

    def _places(self) -> bytes:
        """Return what this rank's doorbells tell of where its arrays lie."""
        if self._in_process:
            return ADDRESSES.pack(*(array.ctypes.data for array in self.buffers[:2]))
        return PLACES.pack(*self.places)

    def _signal(self, i: Instruction) -> None:
        epoch = self.binding.epoch + i.value
        payload = self.mover.get(self.local(i.a, i.nbytes)).tobytes() if i.op == Op.SIGNAL_DATA else b""
        if self._berths is not None and i.flags & Flag.PLACES:
            payload = payload.ljust(PLACES_AT, b"\0") + self._places()
        self.memory.signal(*self.doorbell_at(i.arg, epoch), doorbell_word(epoch, self.binding.tag), payload)

    def _look(self, i: Instruction, doorbell: int) -> tuple[Blocked | None, bytes]:
        """Look at a doorbell once: blocked, or the payload that came with it."""
        layout, wanted = self.binding.layout, self.binding.epoch + i.value
        line = self.memory.poll(*self.doorbell_at(doorbell, wanted))
        shows, owner = line.word >> TAG_BITS, layout.owner(doorbell)
        if is_damaged(line.word):
            raise self.damaged_doorbell(doorbell)
        if shows < wanted:
            return Blocked("", 0, i, doorbell, owner, wanted, shows), b""
        # done doorbells outlive calls, so only published ones say which call rang them
        rung = doorbell_word(wanted, self.binding.tag)
        if shows == wanted and doorbell < layout.published_count and line.word != rung:
            raise self.mismatch(doorbell)
        if self._berths is not None and i.flags & Flag.PLACES and owner != self.part.rank:
            places = (ADDRESSES if self._in_process else PLACES).unpack_from(line.payload, PLACES_AT)
            if self._in_process:
                self._told[owner] = places
            elif not self._learn(owner, places):
                raise self.misplaced(doorbell)
        return None, line.payload

    def _wait(self, i: Instruction) -> Blocked | None:
        blocked, payload = self._look(i, i.arg)
        if blocked is None and i.op == Op.WAIT_DATA:
            self.mover.put(self.local(i.dst, i.nbytes), np.frombuffer(payload, np.uint8, i.nbytes))
        return blocked

    def _wait_all(self, i: Instruction) -> Blocked | None:
        if self.binding.epoch + i.value <= 0:
            return None  # before the communicator's first round: doorbells start at 0
        for doorbell in self.frame.groups[i.arg].doorbells:
            blocked, _ = self._look(i, doorbell)
            if blocked is not None:
                return blocked
        return None

    def _read(self, i: Instruction) -> None:
        self.load(i.a, self.local(i.dst, i.nbytes))
        self._store_again(i)

    def _reduce(self, i: Instruction) -> None:
        divisor = i.arg if i.flags & Flag.DIVIDE else 1
        self.mover.fold(self.local(i.dst, i.nbytes), i.dtype, i.redop, self.sources(i), divisor)
        self._store_again(i)

    def _store_again(self, i: Instruction) -> None:
        """Store what the first destination got to a second one in the pool, if there is one."""
        if i.dst2.kind:
            self.store(i.dst2, self.local(i.dst, i.nbytes))

    def _copy(self, i: Instruction) -> None:
        self.mover.copy(self.local(i.dst, i.nbytes), self.local(i.a, i.nbytes))

    def _compute(self, i: Instruction) -> None:
        kernel = self.frame.kernels[i.arg]
        kind = KERNELS[kernel.name]
        _, *sizes = kind.sizes(kernel.parameters)
        get, target = self.mover.get, self.local(i.dst, i.nbytes)
        inputs = [get(self.local(operand, size)) for operand, size in zip((i.a, i.b, i.c), sizes, strict=False)]
        result = get(target).copy()  # a kernel may add to what is there
        kind.run(kernel.parameters, result, inputs)
        self.mover.put(target, result)

    def _record(self, i: Instruction) -> None:
        self.events.add(i.arg)

    def _await(self, i: Instruction) -> Blocked | None:
        return None if i.arg in self.events else Blocked("", 0, i)


_EXECUTE: dict[Op, Callable[[Runner, Instruction], Blocked | None]] = {
    Op.WRITE: Runner._write,
    Op.WRITE_NT: Runner._write,
    Op.FLUSH: Runner._flush,
    Op.FENCE: Runner._fence,
    Op.SIGNAL: Runner._signal,
    Op.WAIT: Runner._wait,
    Op.WAIT_ALL: Runner._wait_all,
    Op.INVALIDATE: Runner._flush,
    Op.READ: Runner._read,
    Op.REDUCE: Runner._reduce,
    Op.COPY: Runner._copy,
    Op.REDUCE_LOCAL: Runner._reduce,
    Op.COMPUTE: Runner._compute,
    Op.RECORD: Runner._record,
    Op.AWAIT: Runner._await,
    Op.SIGNAL_DATA: Runner._signal,
    Op.WAIT_DATA: Runner._wait,
}


@dataclass(frozen=True)
class ReferenceEngine:
    memory: HostMemory  # the rank's view of the pool
    clock: Clock = SYSTEM_CLOCK  # measures and spends the time of waits
    mover: Mover = HOST_MOVER  # moves bytes between the rank's buffers and the pool

    def run(
        self,
        running: Running,
        buffers: list[Buffer],
        *,
        deadline_s: float,
        watch: Watch | None = None,
        stops: Breakpoints = NO_BREAKPOINTS,
    ) -> None:
        """Run one rank's part of a call to its end.

        Arguments are those of `Engine.run`; buffers are of the mover's kind.
        """
        r = running
        runner = Runner(
            r.call, r.frame, r.part, r.binding, memory=self.memory, buffers=buffers, stops=stops, mover=self.mover
        )
        run(runner, deadline_s=deadline_s, watch=watch, clock=self.clock)


def run(runner: Runner, *, deadline_s: float, watch: Watch | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
    """Run one rank's part to its end, in real time."""
    progress = clock.now()
    idle_rounds = 0
    while True:
        overdue = clock.now() - progress > deadline_s  # before the look: this rank may stall at any moment
        blocked, stepped = runner.advance()
        if not blocked:
            return
        if stepped:
            progress, idle_rounds = clock.now(), 0
            continue
        waited_s = clock.now() - progress
        if watch is not None:
            watch(runner, blocked, waited_s)
        if overdue:
            raise runner.deadline(blocked, waited_s)
        idle_rounds += 1
        # Yield at first, then back off: more ranks than cores is the normal case here.
        clock.sleep(0 if idle_rounds < 20 else min(1e-3, 2e-5 * (idle_rounds - 19)))
