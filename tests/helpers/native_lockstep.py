"""Both engines in one thread: ranks run as far as they can, in an order that a seed decides, the same for both.

faults/lockstep/lockstep.py interleaves single instructions, which the native engine cannot. Cards are allocated to the
byte, so that an address sanitizer sees any access beside them.
"""

import ctypes
import random
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cxlemu import _native
from cxlemu.engines.native import DONE, IDLE, KERNEL, MISMATCH, MISPLACED, NativeEngine, compute
from cxlemu.engines.reference import Runner
from cxlemu.engines.streams import Binding, Blocked, Running
from cxlemu.errors import IntegrityError, MismatchError, UntoldError
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.adversary import AdversaryStats
from cxlemu.memory.backend import EVERYTHING, CoherenceStep
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import LINE_BYTES, Bytes, HostMemory
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.plan import Layout, Plan
from faults.lockstep.lockstep import fresh_buffers

_LIBC = ctypes.CDLL(None)
_LIBC.aligned_alloc.argtypes, _LIBC.aligned_alloc.restype = [ctypes.c_size_t] * 2, ctypes.c_void_p
_LIBC.free.argtypes, _LIBC.free.restype = [ctypes.c_void_p], None


def card(nbytes: int, fill: int = 0) -> Bytes:
    """Bytes that begin at a whole line, with nothing of ours before or after them."""
    at = _LIBC.aligned_alloc(LINE_BYTES, nbytes)
    memory = (ctypes.c_ubyte * nbytes).from_address(at)
    weakref.finalize(memory, _LIBC.free, at).atexit = False
    array = np.frombuffer(memory, np.uint8)
    array[:] = fill
    return array


def as_far_as_it_goes(runner: Runner) -> list[Blocked]:
    """The streams in turn, until none can go on."""
    while True:
        blocked, stepped = runner.advance()
        if not stepped:
            return blocked


class Deadlock(Exception):
    """No rank can go on."""


class InTurns(ABC):
    """Ranks on hosts (default: each on its own) around one communicator's part of the cards, with an engine.

    ``memory`` None: directly on the cards. Ring, caches and epoch live on from call to call.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        memory: MemorySpec | None = None,
        hosts: Sequence[int] | None = None,
        seed: int = 0,
        base: int = 4096,
    ) -> None:
        self.layout, self.base, self.epoch = layout, base, 1
        self.cards = [card(base + layout.extent_bytes) for _ in range(layout.cards)]
        self.memories: list[HostMemory] = [DirectMemory(self.cards) for _ in range(layout.ranks)]
        self.caches: dict[int, HostCache] = {}
        if memory is not None:
            hosts = hosts or range(layout.ranks)
            self.caches = {host: HostCache.private(self.cards) for host in hosts}
            self.memories = [
                memory.open(self.cards, host_cache=self.caches[host], host=host, rank=rank)
                for rank, host in enumerate(hosts)
            ]
        self._random = random.Random(seed)

    @abstractmethod
    def begin(self, running: Running, buffers: list[Bytes]) -> Any:
        """A rank's call that has not begun."""

    @abstractmethod
    def advance(self, call: Any) -> list[Any]:
        """Go on as far as it goes: what each stream waits for then, as Obstacles. Raises MismatchError."""

    @abstractmethod
    def stats(self) -> list[AdversaryStats]:
        """Of each rank that goes through a cache."""

    def calls(self, program: Sequence[tuple[Plan, Sequence[Bytes]]]) -> list[list[Bytes]]:
        """Every rank's output of every call; ranks may be calls apart. Raises Deadlock or MismatchError."""
        queues: list[deque[Any]] = [deque() for _ in range(self.layout.ranks)]
        self.outputs: list[list[Bytes]] = []
        for plan, inputs in program:
            binding = Binding(self.layout, self.base, self.epoch, plan.call.tag())
            self.epoch += plan.rounds
            buffers = [fresh_buffers(part, given) for part, given in zip(plan.parts, inputs, strict=True)]
            self.outputs.append([mine[1] for mine in buffers])
            for rank, queue in enumerate(queues):
                queue.append((Running(plan.call, plan.frame, plan.part(rank), binding), buffers[rank]))
        self._run(queues)
        return self.outputs

    def _run(self, queues: list[deque[Any]]) -> None:
        begun: dict[int, Any] = {}
        stands: dict[int, list[Any]] = {}  # of each rank whose call has begun
        stuck: set[int] = set()
        while pending := [rank for rank, queue in enumerate(queues) if queue]:
            choices = [rank for rank in pending if rank not in stuck]
            if not choices:
                raise Deadlock(str(stands))
            rank = self._random.choice(choices)
            if rank not in begun:
                begun[rank] = self.begin(*queues[rank][0])
            obstacles = self.advance(begun[rank])
            if obstacles and stands.get(rank) == obstacles:
                stuck.add(rank)
                continue
            stuck.clear()
            stands[rank] = obstacles
            if not obstacles:
                queues[rank].popleft()
                del begun[rank], stands[rank]

    def seen(self) -> list[bytes]:
        """What is on the cards, and then what each host finds when it loads everything."""
        images = [where.tobytes() for where in self.cards]
        for cache in self.caches.values():
            for number, where in enumerate(self.cards):
                out = np.empty_like(where)
                ShadowMemory(cache).read(number, 0, out)
                images.append(out.tobytes())
        return images


class ReferenceInTurns(InTurns):
    def begin(self, running: Running, buffers: list[Bytes]) -> Runner:
        r, memory = running, self.memories[running.part.rank]
        return Runner(r.call, r.frame, r.part, r.binding, memory=memory, buffers=buffers)

    def advance(self, call: Runner) -> list[Any]:
        streams = [stream.name for stream in call.part.streams]
        return [
            (streams.index(blocked.stream), blocked.at, blocked.doorbell, blocked.wanted, blocked.shows)
            for blocked in as_far_as_it_goes(call)
        ]

    def stats(self) -> list[AdversaryStats]:
        return [memory.stats for memory in self.memories if isinstance(memory, ShadowMemory)]


@dataclass
class Call:
    running: Running
    program: _native.Program
    buffers: list[Bytes]


class NativeLockstep(InTurns):
    def __init__(self, layout: Layout, *, elides: CoherenceStep = EVERYTHING, **others: Any) -> None:
        super().__init__(layout, **others)
        self._through = [memory.native for memory in self.memories if isinstance(memory, ShadowMemory)]
        through = self._through or [None] * layout.ranks
        self._engines = [NativeEngine(self.cards, elides, memory) for memory in through]

    def begin(self, running: Running, buffers: list[Bytes]) -> Call:
        program = self._engines[running.part.rank].program(running)
        program.start(running.binding.epoch, running.binding.tag, *buffers)
        return Call(running, program, buffers)

    def advance(self, call: Call) -> list[Any]:
        status, obstacles = call.program.advance(0, 0)
        while status == KERNEL:
            compute(call.running, call.buffers, stream=obstacles[0][0], at=obstacles[0][1])
            call.program.skip(obstacles[0][0])
            status, obstacles = call.program.advance(0, 0)
        if status == MISMATCH:
            raise call.running.mismatch(obstacles[0][2])
        if status == MISPLACED:
            _, _, doorbell, owner, _ = obstacles[0]
            raise call.running.misplaced(doorbell) if doorbell >= 0 else call.running.untold(owner)
        assert status in (DONE, IDLE), (status, obstacles)
        return obstacles

    def stats(self) -> list[AdversaryStats]:
        return [memory.stats for memory in self._through]


def outcome(world: InTurns, program: Sequence[tuple[Plan, Sequence[Bytes]]]) -> tuple[Any, ...]:
    """All that can be told from outside after the calls of a program, or of as much of it as can be executed."""
    ended = ""
    try:
        world.calls(program)
    except (Deadlock, IntegrityError, MismatchError, UntoldError) as error:
        ended = type(error).__name__
    outputs = [[out.tobytes() for out in call] for call in world.outputs]
    return ended, outputs, world.seen(), world.stats()
