"""Ranks with fake devices around one communicator's part of a pool, in one thread: every step is a seed's choice."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cxlemu.accelerator.device import DeviceBuffer
from cxlemu.accelerator.fake import DmaWrites, FakeDevice
from cxlemu.accelerator.plan import BOUNCE
from cxlemu.accelerator.runner import DeviceEngine, DeviceRunner
from cxlemu.engines.mover import BufferPart
from cxlemu.engines.streams import Binding, Blocked, Running, deadlock
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import Layout, Plan, RankPart
from faults.lockstep.lockstep import POISON

BASE = 4096


@dataclass
class DeviceCall:
    """A rank's part of one call, from its arrays to its output."""

    runner: DeviceRunner
    device: FakeDevice
    buffers: list[DeviceBuffer]
    output: Bytes = field(init=False)

    def end(self) -> None:
        self.runner.synchronize()
        self.output = self.device.read(BufferPart(self.buffers[1], 0, self.buffers[1].nbytes))


class DeviceWorld:
    """``dma_writes`` and ``eagerness`` are those of `FakeDevice`; the seed chooses steps and the devices' moves."""

    def __init__(
        self,
        layout: Layout,
        seed: int = 0,
        *,
        memory: MemorySpec | None = None,
        dma_writes: DmaWrites = "cache",
        eagerness: float | None = None,
    ) -> None:
        spec = memory or MemorySpec()
        self.layout, self.epoch, self.rng = layout, 1, random.Random(f"steps {seed}")
        self.fair = self.rng.random() < 0.4  # else some streams always come first, and others are as late as can be
        self.favour: dict[tuple[int, int], float] = {}
        self.cards = [np.zeros(BASE + -(-layout.extent_bytes // 64) * 64, np.uint8) for _ in range(layout.cards)]
        self.devices = [
            FakeDevice(seed * layout.ranks + rank, dma_writes=dma_writes, eagerness=eagerness)
            for rank in range(layout.ranks)
        ]
        emulated = spec.backend.emulates_caches
        self.engines = [
            DeviceEngine(
                spec.open(
                    self.cards,
                    host_cache=HostCache.private(self.cards, host=rank) if emulated else None,
                    host=rank,
                    rank=rank,
                ),
                device,
            )
            for rank, device in enumerate(self.devices)
        ]

    def calls(self, program: Sequence[tuple[Plan, Sequence[Bytes]]]) -> list[list[Bytes]]:
        """Run calls of devices' plans; ranks may be calls apart. Every rank's output of every call."""
        made = [
            [self._call(plan, rank, epoch, inputs[rank]) for rank in range(self.layout.ranks)]
            for epoch, (plan, inputs) in zip(self._epochs([plan for plan, _ in program]), program, strict=True)
        ]
        turn = [0] * self.layout.ranks
        stuck: dict[tuple[int, int], Blocked] = {}
        while True:
            for rank in range(self.layout.ranks):
                while turn[rank] < len(made) and not made[turn[rank]][rank].runner.pending():
                    made[turn[rank]][rank].end()
                    turn[rank] += 1
            now = {rank: made[at][rank].runner for rank, at in enumerate(turn) if at < len(made)}
            if not now:
                return [[one.output for one in call] for call in made]
            steps = [(r, s) for r, runner in now.items() for s in runner.pending() if (r, s) not in stuck]
            if not steps:
                raise deadlock(now, stuck)
            rank, stream = self.rng.choice(steps) if self.fair else min(steps, key=self._rank_of)
            blocked = now[rank].step(stream)
            if blocked is None:
                stuck.clear()
            else:
                stuck[rank, stream] = blocked

    def _rank_of(self, step: tuple[int, int]) -> float:
        return self.favour.setdefault(step, self.rng.random())

    def _epochs(self, plans: Sequence[Plan]) -> list[int]:
        found = []
        for plan in plans:
            found.append(self.epoch)
            self.epoch += plan.rounds
        return found

    def _call(self, plan: Plan, rank: int, epoch: int, given: Bytes) -> DeviceCall:
        device, part = self.devices[rank], plan.part(rank)
        buffers = device_buffers(device, part)
        for buffer in (buffers[0], *buffers[3:]):  # those of a product after scratch memory are inputs, too
            if buffer.nbytes and given.size:
                device.write(BufferPart(buffer, 0, buffer.nbytes), given[: buffer.nbytes])
                given = given[buffer.nbytes :]
        binding = Binding(self.layout, BASE, epoch, plan.call.tag())
        runner = self.engines[rank].runner(Running(plan.call, plan.frame, part, binding), buffers)
        return DeviceCall(runner, device, buffers)


def device_buffers(device: FakeDevice, part: RankPart) -> list[DeviceBuffer]:
    """A part's buffers on a device, those that lie in another one there; all bytes are poison."""
    plain = [buffer for buffer in part.buffers if buffer.name != BOUNCE]
    made = {buffer.name: device.allocate(buffer.nbytes) for buffer in plain if not buffer.inside}
    for buffer in made.values():
        device.write(BufferPart(buffer, 0, buffer.nbytes), np.full(buffer.nbytes, POISON, np.uint8))
    return [made[b.name] if not b.inside else made[b.inside].part(b.at, b.nbytes) for b in plain]
