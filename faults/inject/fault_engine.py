"""An engine to which a script's faults happen: any engine stops before the instructions in question and asks here.

This is the only way in: a communicator made with such an engine runs its calls as ever, on the reference engine or on
the native one, in threads or in processes. One made without it knows nothing of faults, and pays nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from cxlemu.engines import Engine, engine_for
from cxlemu.engines.reference import ReferenceEngine
from cxlemu.engines.streams import NO_BREAKPOINTS, Breakpoints, Running, Watch
from cxlemu.memory.protocol import LINE_BYTES, Bytes, HostMemory
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.units import counted
from cxlemu.world import RankContext
from faults.inject.fault import FAULTS, Fault
from faults.inject.injection import FaultTally, Injection
from faults.inject.places import place
from faults.inject.script import Script


@dataclass
class FaultEngine:
    """An engine to which a script's faults happen."""

    inner: Engine  # executes the instructions
    context: RankContext
    memory: HostMemory  # the view of the pool that ``inner`` has
    script: Script  # the faults; those of other ranks are passed over
    armed: bool = False  # whether faults happen and calls are counted; see `arm`
    calls: int = 0  # how many calls were made since then
    came: set[int] = field(default_factory=set)  # the faults of this rank that have come
    missed: dict[int, str] = field(default_factory=dict)  # why others did not come though their call did

    def __post_init__(self) -> None:
        self.context.at_end.append(self._tell_end)

    def _tell_end(self) -> None:
        memory = self.context.memory
        met = tuple(memory.cache.damage.met()) if isinstance(memory, ShadowMemory) else ()
        self.context.emit(FaultTally(self.context.rank, max(self.calls, 0), self.missed, met))

    def _absent(self, fault: Fault) -> str:
        """Say which card or line of a fault is not there; empty: all are."""
        cards = self.context.pool.cards
        if (fault.card or 0) >= len(cards):
            return f"there is no card {fault.card}: the pool has {counted(len(cards), 'card')}"
        lines = cards[fault.card or 0].nbytes // LINE_BYTES
        if (last := (fault.line or 0) + (fault.lines or 1) - 1) >= lines:
            return f"there is no line {last}: card {fault.card} has {counted(lines, 'line')}"
        return ""

    def arm(self) -> None:
        """Let faults happen from now on: the next call is call 0 of the script."""
        self.armed = True

    def _due(self, running: Running) -> Iterator[tuple[int, Fault, int]]:
        """Yield the faults of what runs now, each with its number and its instruction's in the plan; count the call."""
        call, self.calls = self.calls, self.calls + 1
        for number, fault in enumerate(self.script.faults):
            if (fault.rank, fault.when.call) == (self.context.rank, call):
                yield number, fault, fault.when.instruction

    def run(
        self,
        running: Running,
        buffers: list[Bytes],
        *,
        deadline_s: float,
        watch: Watch | None = None,
        stops: Breakpoints = NO_BREAKPOINTS,
    ) -> None:
        """Run one rank's part of a call to its end, as `Engine.run` does; when armed, with the faults of this call."""
        if not self.armed:
            self.inner.run(running, buffers, deadline_s=deadline_s, watch=watch, stops=stops)
            return
        injection = Injection(
            self.context, self.memory, self.script.seed, running, buffers, came=self.came, missed=self.missed
        )
        for number, fault, instruction in self._due(running):
            kind = FAULTS[fault.kind]
            start = place(running.part, instruction)
            where = None if start is None else kind.where(injection, start)
            if absent := self._absent(fault):
                self.missed[number] = absent
            elif where is not None:
                self.missed.pop(number, None)
                kind.effect(injection, number, fault, where)
            elif start is not None:
                self.missed[number] = f"{fault.kind} finds nothing to act on from there on"
            else:
                its = fault.when.instruction - instruction + running.part.instruction_count
                self.missed[number] = f"rank {fault.rank} has {counted(its, 'instruction')} in that call"
        self.inner.run(running, buffers, deadline_s=deadline_s, watch=injection.watching(watch), stops=injection.stops)
        for each in injection.at_end:
            each()


def prepared(context: RankContext, engine: str | Engine) -> tuple[Engine, HostMemory]:
    """Make the engine that executes instructions; return it and its view of the pool."""
    if isinstance(engine, str):
        engine = engine_for(engine, context.backend, context.memory, context.pool.cards, context.pacer)
    if isinstance(engine, ReferenceEngine):
        return ReferenceEngine(context.memory, context.session.clock), context.memory
    return engine, context.backend.native_memory(context.memory) or context.memory


def injected(context: RankContext, engine: str | Engine, script: Script) -> FaultEngine:
    """Make the engine of one rank to which a script's faults happen, from when it is armed."""
    inner, memory = prepared(context, engine)
    return FaultEngine(inner, context, memory, script)


def armed(context: RankContext, engine: str | Engine, script: Script) -> FaultEngine:
    """Make an armed engine for `Communicator.world`, whose own first call does not count."""
    made = injected(context, engine, script)
    made.arm()
    made.calls = -1
    return made
