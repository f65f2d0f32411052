"""The native engine in one thread: ranks run as far as they can, in an order that a seed decides.

The counterpart of lockstep.py, which does the same for the reference engine. Cards are allocated to the byte, so that
an address sanitizer sees any access beside them.
"""

from __future__ import annotations

import ctypes
import random
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
from lockstep import fresh_buffers

from cxlemu import _native
from cxlemu.backends import EVERYTHING, Step
from cxlemu.engines.native import DONE, IDLE, NativeEngine, Obstacles
from cxlemu.engines.streams import Binding, Running
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.plan import Layout, Plan

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


class NativeLockstep:
    """Ranks around one communicator's part of the cards. Ring and epoch live on from call to call."""

    def __init__(self, layout: Layout, *, elides: Step = EVERYTHING, seed: int = 0, base: int = 4096) -> None:
        self.layout, self.base, self.epoch = layout, base, 1
        self.cards = [card(base + layout.extent_bytes) for _ in range(layout.cards)]
        self._engines = [NativeEngine(self.cards, layout.ranks, elides) for _ in range(layout.ranks)]
        self._random = random.Random(seed)

    def calls(self, program: Sequence[tuple[Plan, Sequence[Bytes]]]) -> list[list[Bytes]]:
        """Every rank's output of every call; ranks may be calls apart. AssertionError for a deadlock or a mismatch."""
        queues: list[deque[tuple[_native.Program, Binding, list[Bytes]]]] = [deque() for _ in range(self.layout.ranks)]
        outputs = []
        for plan, inputs in program:
            binding = Binding(self.layout, self.base, self.epoch, plan.call.tag())
            self.epoch += plan.rounds
            buffers = [fresh_buffers(part, given) for part, given in zip(plan.parts, inputs, strict=True)]
            outputs.append([mine[1] for mine in buffers])
            for rank, queue in enumerate(queues):
                running = Running(plan.call, plan.frame, plan.part(rank), binding)
                queue.append((self._engines[rank]._program(running), binding, buffers[rank]))
        self._run(queues)
        return outputs

    def _run(self, queues: list[deque[tuple[_native.Program, Binding, list[Bytes]]]]) -> None:
        stands: dict[int, Obstacles] = {}  # of each rank whose call has begun
        stuck: set[int] = set()
        while pending := [rank for rank, queue in enumerate(queues) if queue]:
            choices = [rank for rank in pending if rank not in stuck]
            assert choices, f"deadlock: {stands}"
            rank = self._random.choice(choices)
            program, binding, buffers = queues[rank][0]
            if rank not in stands:
                program.start(binding.epoch, binding.tag, *buffers)
            status, obstacles = program.advance(0, 0)
            assert status in (DONE, IDLE), (status, obstacles)
            if status == IDLE and stands.get(rank) == obstacles:
                stuck.add(rank)
                continue
            stuck.clear()
            if status == DONE:
                queues[rank].popleft()
                stands.pop(rank, None)
            else:
                stands[rank] = obstacles
