"""An engine to which a script's faults happen: any engine stops before the instructions in question and asks here.

This is the only way in: a communicator made with such an engine runs its calls as ever, on the reference engine or on
the native one, in threads or in processes. One made without it knows nothing of faults, and pays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from cxlemu.engines import Engine, engine_for
from cxlemu.engines.reference import ReferenceEngine
from cxlemu.engines.streams import NO_BREAKPOINTS, Breakpoints, Running, Watch
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.world import RankContext
from faults.inject.fault import FAULTS
from faults.inject.injection import Injection
from faults.inject.places import place
from faults.inject.script import Script


@dataclass
class FaultEngine:
    """An engine to which a script's faults happen.

    Attributes:
        inner: Executes the instructions.
        context: The rank's context.
        memory: The view of the pool that ``inner`` has.
        script: The faults; those of other ranks are passed over.
        armed: Whether faults happen and calls are counted; see `arm`.
        calls: How many calls were made since then.
    """

    inner: Engine
    context: RankContext
    memory: HostMemory
    script: Script
    armed: bool = False
    calls: int = 0

    def arm(self) -> None:
        """Let faults happen from now on: the next call is call 0 of the script."""
        self.armed = True

    def run(
        self,
        running: Running,
        buffers: list[Bytes],
        *,
        deadline_s: float,
        watch: Watch | None = None,
        stops: Breakpoints = NO_BREAKPOINTS,
    ) -> None:
        """Run one rank's part of a call to its end, as `Engine.run` does; when armed, with the faults of this call.

        Args:
            running: The call, the rank's part in it, and where its communicator lies.
            buffers: The rank's buffers in the part's order, each a 1-D uint8 array of at least the part's bytes.
            deadline_s: How long no stream may progress, in seconds.
            watch: Called now and then while the rank waits.
            stops: Called when a stream comes to these records, unless armed: then the faults' own stops take their
                place.

        Raises:
            Exception: Those of `Engine.run`, and those of faults, such as `faults.inject.effects.Killed`.
        """
        if not self.armed:
            self.inner.run(running, buffers, deadline_s=deadline_s, watch=watch, stops=stops)
            return
        call, self.calls = self.calls, self.calls + 1
        injection = Injection(self.context, self.memory, self.script.seed, running, buffers)
        for number, fault in enumerate(self.script.faults):
            if (fault.rank, fault.when.call) == (self.context.rank, call):
                kind = FAULTS[fault.kind]
                start = place(running.part, fault.when.instruction)
                where = None if start is None else kind.where(injection, start)
                if where is not None:
                    kind.effect(injection, number, fault, where)
        self.inner.run(running, buffers, deadline_s=deadline_s, watch=injection.watching(watch), stops=injection.stops)
        for each in injection.at_end:
            each()


def injected(context: RankContext, engine: str, script: Script) -> FaultEngine:
    """Make the engine of one rank to which a script's faults happen, from when it is armed.

    Args:
        context: The rank's context.
        engine: Name of the engine that executes the instructions, ``reference`` or ``native``.
        script: The faults of all ranks.

    Raises:
        ArgumentError: There is no such engine here, as `cxlemu.engines.engine_for` says.
    """
    inner: Engine = engine_for(engine, context.backend, context.memory, context.pool.cards, context.pacer)
    memory: HostMemory = context.memory
    if isinstance(inner, ReferenceEngine):
        inner = ReferenceEngine(context.memory, context.session.clock)
    else:
        memory = context.backend.native_memory(memory) or memory
    return FaultEngine(inner, context, memory, script)


def armed(context: RankContext, engine: str, script: Script) -> FaultEngine:
    """Make an armed engine for `Communicator.world`, whose own first call does not count.

    Args:
        context: The rank's context.
        engine: Name of the engine that executes the instructions, ``reference`` or ``native``.
        script: The faults of all ranks.

    Raises:
        ArgumentError: There is no such engine here.
    """
    made = injected(context, engine, script)
    made.arm()
    made.calls = -1
    return made
