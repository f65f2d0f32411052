"""What happens in one call of one rank: acts before its instructions, while it waits and at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from cxlemu.engines.streams import Blocked, Breakpoints, Running, Watch
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.plan import Instruction
from cxlemu.plan.accesses import RINGS
from cxlemu.world import RankContext
from faults.inject.places import InstructionPlace, Span, touched

Act = Callable[[], bool]
"""What happens before an instruction; true where it is left out."""


class Happened(NamedTuple):
    """A rank's message: a fault of the script has come. ``delay_s``: for how long it holds the rank up."""

    fault: int
    rank: int
    delay_s: float = 0.0


@dataclass
class Injection:
    """One rank's call, and what happens in it: the effects of faults add their acts.

    Attributes:
        context: the rank's.
        memory: the engine's view of the pool.
        seed: the script's, of everything that is random.
        running: the call.
        buffers: the call's arrays, as bytes.
        acts: what happens before each instruction.
        while_waiting: called whenever the rank has waited for a while.
        at_end: called when the rank has executed all its instructions.
    """

    context: RankContext
    memory: HostMemory
    seed: int
    running: Running
    buffers: list[Bytes]
    acts: dict[InstructionPlace, list[Act]] = field(default_factory=dict)
    while_waiting: list[Callable[[], object]] = field(default_factory=list)
    at_end: list[Callable[[], object]] = field(default_factory=list)

    def at(self, where: InstructionPlace, act: Act) -> None:
        """Let ``act`` happen before the instruction there; several acts happen in the order in which they came."""
        self.acts.setdefault(where, []).append(act)

    def happened(self, number: int, delay_s: float = 0.0) -> None:
        """Report that fault ``number`` has come, and for how long it holds the rank up."""
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

    def instruction(self, where: InstructionPlace) -> Instruction:
        return self.running.part.streams[where.stream].instructions[where.at]

    def onward(self, start: InstructionPlace) -> Iterator[InstructionPlace]:
        """Its own stream from there on."""
        for at in range(start.at, len(self.running.part.streams[start.stream].records)):
            yield InstructionPlace(start.stream, at)

    def everywhere(self) -> Iterator[InstructionPlace]:
        for stream in range(len(self.running.part.streams)):
            yield from self.onward(InstructionPlace(stream, 0))

    def next_ring(self, start: InstructionPlace) -> InstructionPlace | None:
        return next((where for where in self.onward(start) if self.instruction(where).op in RINGS), None)

    def spans(
        self, start: InstructionPlace, about: Callable[[Running, Instruction], list[Span]] = touched
    ) -> list[Span]:
        """What the instruction is ``about`` or, where that is nothing, the next one of its stream; or any other."""
        for where in (*self.onward(start), *self.everywhere()):
            if found := about(self.running, self.instruction(where)):
                return found
        return []


def _all(acts: list[Act]) -> bool:
    """Do them all; true when one says so."""
    left_out = [act() for act in acts]
    return any(left_out)
