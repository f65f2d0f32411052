"""What the calls of one communicator run on: a memory, an engine and a queue, so that it waits for no other one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collectives.communicator.calls.progress import CallQueue
from cxlemu.engines import Engine, engine_for
from cxlemu.engines.native import NativeEngine
from cxlemu.memory.protocol import HostMemory
from cxlemu.world import RankContext


@dataclass(frozen=True)
class CallLane:
    """One rank's memory, engine and queue, for the calls of one communicator."""

    memory: HostMemory  # the rank's view of the pool
    engine: Engine
    queue: CallQueue
    # makes the lane of another communicator: one of its own, or this one where ranks have but one
    beside: Callable[[], CallLane]

    @classmethod
    def of(cls, context: RankContext, engine: str | Engine, *, paced: bool, spins: int = 0) -> CallLane:
        """Make a lane; a rank's first one is on the context's own memory."""
        if not isinstance(engine, str):
            return cls._shared(context, engine)
        pacer = context.pacer if paced else None
        number = 0 if pacer else next(context.lanes)
        memory = context.open_memory() if number else context.memory
        made = engine_for(engine, context.backend, memory, context.pool.cards, pacer)
        if pacer is not None:
            return cls._shared(context, made)
        if isinstance(made, NativeEngine):
            made.spins = spins
        queue = CallQueue(context.at_end, context.rank)
        return cls(memory, made, queue, lambda: cls.of(context, engine, paced=paced, spins=_spins(made)))

    @classmethod
    def _shared(cls, context: RankContext, engine: Engine) -> CallLane:
        lane = cls(context.memory, engine, CallQueue(context.at_end, context.rank), lambda: lane)
        return lane

    def poll_often(self, spins: int) -> None:
        """Poll a doorbell ``spins`` times before the core is given away, in an engine in C."""
        if isinstance(self.engine, NativeEngine):
            self.engine.spins = spins

    def settle(self) -> None:
        """Fence what was written through this lane: nothing of it arrives later."""
        self.memory.fence()
        if (native := vars(self.memory).get("native")) is not None:  # an emulated memory's in C, once it was used
            native.fence()

    @property
    def quick(self) -> HostMemory:
        """The lane's memory, in C where it has one. What goes through it is fenced through it."""
        through = self.engine.through if isinstance(self.engine, NativeEngine) else None
        return self.memory if through is None else through


def _spins(engine: Engine) -> int:
    return engine.spins if isinstance(engine, NativeEngine) else 0
