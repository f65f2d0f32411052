"""An engine to which a script's faults happen: any engine stops before the instructions in question and asks here.

This is the only way in: a communicator made with such an engine runs its calls as ever, on the reference engine or on
the native one, in threads or in processes. One made without it knows nothing of faults, and pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from cxlemu.engines import Engine
from cxlemu.engines.streams import NO_BREAKPOINTS, Blocked, Breakpoints, Running, Watch
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.plan import Instruction
from cxlemu.plan.accesses import RINGS
from cxlemu.world import RankContext
from faults.inject.places import Span, touched
from faults.inject.script import Fault, Place, Script, place

Act = Callable[[], bool]
"""What happens before an instruction; true where it is left out."""


class Happened(NamedTuple):
    """A rank's message: a fault of the script has come. ``delay_s``: for how long it holds the rank up."""

    fault: int
    rank: int
    delay_s: float = 0.0


@dataclass
class Injection:
    """One rank's call, and what happens in it. Kinds of faults add their acts (faults/inject/effects.py)."""

    context: RankContext
    memory: HostMemory  # the engine's
    script: Script
    running: Running
    buffers: list[Bytes]
    acts: dict[Place, list[Act]] = field(default_factory=dict)
    while_waiting: list[Callable[[], object]] = field(default_factory=list)
    at_end: list[Callable[[], object]] = field(default_factory=list)

    def at(self, where: Place, act: Act) -> None:
        self.acts.setdefault(where, []).append(act)

    def happened(self, number: int, delay_s: float = 0.0) -> None:
        self.context.emit(Happened(number, self.context.rank, delay_s))

    @property
    def stops(self) -> Breakpoints:
        return {where: partial(_all, acts) for where, acts in self.acts.items()}

    def watching(self, watch: Watch | None) -> Watch:
        def waits(running: Running, blocked: list[Blocked], waited_s: float) -> None:
            for each in self.while_waiting:
                each()
            if watch is not None:
                watch(running, blocked, waited_s)

        return waits

    # --- places in the call ------------------------------------------------------------------------------------

    def instruction(self, where: Place) -> Instruction:
        return self.running.part.streams[where.stream].instructions[where.at]

    def onward(self, start: Place) -> Iterator[Place]:
        """Its own stream from there on."""
        for at in range(start.at, len(self.running.part.streams[start.stream].records)):
            yield Place(start.stream, at)

    def everywhere(self) -> Iterator[Place]:
        for stream in range(len(self.running.part.streams)):
            yield from self.onward(Place(stream, 0))

    def next_ring(self, start: Place) -> Place | None:
        return next((where for where in self.onward(start) if self.instruction(where).op in RINGS), None)

    def spans(self, start: Place, about: Callable[[Running, Instruction], list[Span]] = touched) -> list[Span]:
        """What the instruction is ``about`` or, where that is nothing, the next one of its stream; or any other."""
        for where in (*self.onward(start), *self.everywhere()):
            if found := about(self.running, self.instruction(where)):
                return found
        return []


def _all(acts: list[Act]) -> bool:
    """Do them all; true when one says so."""
    left_out = [act() for act in acts]
    return any(left_out)


@dataclass
class Injected:
    """``inner``, and what ``script`` does to this rank; from `arm` on, which is when its calls are counted from."""

    inner: Engine
    context: RankContext
    memory: HostMemory
    script: Script
    add: Callable[[Injection, int, Fault, Place], None]
    armed: bool = False
    calls: int = 0

    def arm(self) -> None:
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
        """As `Engine.run`. Raises what the faults do besides: see `faults.inject.effects.Killed`."""
        if not self.armed:
            self.inner.run(running, buffers, deadline_s=deadline_s, watch=watch, stops=stops)
            return
        call, self.calls = self.calls, self.calls + 1
        injection = Injection(self.context, self.memory, self.script, running, buffers)
        for number, fault in enumerate(self.script.faults):
            start = place(running.part, fault.when.instruction)
            if (fault.rank, fault.when.call) == (self.context.rank, call) and start is not None:
                self.add(injection, number, fault, start)
        self.inner.run(running, buffers, deadline_s=deadline_s, watch=injection.watching(watch), stops=injection.stops)
        for each in injection.at_end:
            each()
