"""A second kind of buffer is one class: a toy device, whose memory no code of the host touches, runs whole plans."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from collectives.algorithms import catalog
from collectives.layouts import layout_for
from cxlemu.engines.mover import HOST_MOVER, Buffer, BufferPart, HostMover, Mover
from cxlemu.engines.reference import Runner
from cxlemu.engines.streams import Binding, run_together
from cxlemu.errors import ArgumentError
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.plan import Call, Plan, RedOp
from cxlemu.plan.address import StridedRun
from cxlemu.plan.reduction import fold
from tests.helpers.tables import with_rows

RANKS, NBYTES = 3, 6000


class DeviceBuffer:
    """A bytearray behind a handle. NumPy, buffers and slices of the host come to nothing with it."""

    def __init__(self, nbytes: int) -> None:
        self.device_bytes = bytearray(b"\xee" * nbytes)

    def __array__(self, *why: object, **else_: object) -> Bytes:
        raise AssertionError("the host touches a device's memory")

    def __getitem__(self, where: object) -> object:
        raise AssertionError("the host touches a device's memory")


@dataclass
class ToyMover:
    """A device whose stores to the pool wait in a queue of its own until they are flushed or fenced."""

    queued: list[tuple[HostMemory, int, int, bytes, bool]] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    drains: bool = True

    def _count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def _drain(self) -> None:
        for memory, card, offset, data, non_temporal in self.queued if self.drains else ():
            (memory.write_nt if non_temporal else memory.write)(card, offset, np.frombuffer(data, np.uint8))
        self.queued.clear()

    def nbytes(self, buffer: DeviceBuffer) -> int:
        return len(buffer.device_bytes)

    def temporary(self, nbytes: int) -> BufferPart:
        return BufferPart(DeviceBuffer(nbytes), 0, nbytes)

    def get(self, part: BufferPart) -> Bytes:
        return np.frombuffer(bytes(part.buffer.device_bytes[part.offset : part.offset + part.nbytes]), np.uint8)

    def put(self, part: BufferPart, data: Bytes) -> None:
        assert data.nbytes == part.nbytes
        part.buffer.device_bytes[part.offset : part.offset + part.nbytes] = data.tobytes()

    def store(self, memory: HostMemory, run: StridedRun, source: BufferPart, *, non_temporal: bool) -> None:
        self._count("store")
        data = run.local(self.get(source)).tobytes()
        self.queued.append((memory, run.card, run.card_offset, data, non_temporal))

    def load(self, memory: HostMemory, run: StridedRun, target: BufferPart) -> None:
        self._count("load")
        self._drain()
        data = np.empty(run.nbytes, np.uint8)
        memory.read(run.card, run.card_offset, data)
        whole = self.get(target).copy()
        run.local(whole)[:] = data.reshape(run.blocks, run.block_bytes)
        self.put(target, whole)

    def copy(self, target: BufferPart, source: BufferPart) -> None:
        self._count("copy")
        self.put(target, self.get(source))

    def fold(self, target: BufferPart, dtype: int, redop: RedOp, sources: Sequence[BufferPart], divisor: int) -> None:
        self._count("fold")
        self.put(target, fold(dtype, redop, [self.get(source) for source in sources], divisor))

    def flush(self, memory: HostMemory, card: int, offset: int, nbytes: int, *, drop: bool) -> None:
        self._count("flush")
        self._drain()
        (memory.invalidate if drop else memory.flush)(card, offset, nbytes)

    def fence(self, memory: HostMemory) -> None:
        self._count("fence")
        self._drain()
        memory.fence()


def plan_of(collective: str, variant: str) -> Plan:
    layout = layout_for(ranks=RANKS, cards=2, card_bytes=4 << 20, interleave_bytes=512)
    redop = "sum" if collective == "all_reduce" else "none"
    call = Call(collective, variant, RANKS, NBYTES if variant != "line" else 48, dtype="f32", redop=redop)
    return catalog.build(catalog.recipe(collective, variant), layout, call)


def outputs(plan: Plan, movers: Sequence[Mover]) -> list[bytes]:
    """The output of each rank, on hosts of their own, without coherence."""
    cards = [np.zeros(plan.layout.extent_bytes, np.uint8) for _ in range(plan.layout.cards)]
    runners, buffers = [], []
    for rank, mover in enumerate(movers):
        part = plan.part(rank)
        its: list[Buffer] = [mover.temporary(buffer.nbytes).buffer for buffer in part.buffers]
        size = part.buffers[0].nbytes
        data = np.random.default_rng(rank).standard_normal(size // 4).astype(np.float32).view(np.uint8)
        mover.put(BufferPart(its[0], 0, size), data)
        memory = MemorySpec(seed=rank).open(cards, host_cache=HostCache.private(cards), host=rank, rank=rank)
        binding = Binding(plan.layout, 0, 1, plan.call.tag())
        runners.append(Runner(plan.call, plan.frame, part, binding, memory=memory, buffers=its, mover=mover))
        buffers.append(its)
    run_together(runners, lambda choices: choices[-1])
    return [
        mover.get(BufferPart(its[1], 0, plan.part(rank).buffers[1].nbytes)).tobytes()
        for rank, (mover, its) in enumerate(zip(movers, buffers, strict=True))
    ]


@with_rows(("all_reduce", "two_shot"), ("all_gather", "all"), ("all_reduce", "line"))
def test_a_device_computes_what_the_host_computes(collective: str, variant: str) -> None:
    plan = plan_of(collective, variant)
    expected = outputs(plan, [HOST_MOVER] * RANKS)
    devices = [ToyMover() for _ in range(RANKS)]
    assert outputs(plan, devices) == expected
    assert outputs(plan, [HostMover(), ToyMover(), HostMover()]) == expected  # kinds of ranks may differ
    if variant != "line":
        assert all(device.done["store"] and device.done["fence"] and device.done["flush"] for device in devices)
    if collective == "all_reduce":
        assert all(device.done["fold"] for device in devices)


def test_a_mover_that_loses_stores_is_seen() -> None:
    plan = plan_of("all_gather", "all")
    movers = [ToyMover(), ToyMover(drains=False), ToyMover()]
    assert outputs(plan, movers) != outputs(plan, [HOST_MOVER] * RANKS)


def test_a_buffer_that_is_too_small_is_refused_by_the_size_that_its_mover_says() -> None:
    plan = plan_of("all_gather", "all")
    part, cards = plan.part(0), [np.zeros(plan.layout.extent_bytes, np.uint8) for _ in range(2)]
    memory = MemorySpec("shm").open(cards, host_cache=None, host=0, rank=0)
    small = [DeviceBuffer(max(buffer.nbytes - 1, 0)) for buffer in part.buffers]
    with pytest.raises(ArgumentError, match="the plan needs"):
        Runner(
            plan.call, plan.frame, part, Binding(plan.layout, 0, 1, 0), memory=memory, buffers=small, mover=ToyMover()
        )
