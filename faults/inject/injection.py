"""The effects of faults in one call of one rank: acts before its instructions, while it waits and at its end."""

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
"""A function that is called before an instruction; it returns true to leave the instruction out."""


class Happened(NamedTuple):
    """A rank's message: a fault of the script has come.

    Attributes:
        fault: Number of the fault in the script.
        rank: The rank.
        delay_s: For how long the fault holds the rank up, in seconds.
    """

    fault: int
    rank: int
    delay_s: float = 0.0


@dataclass
class Injection:
    """One rank's call, and what happens in it: the effects of faults add their acts.

    Attributes:
        context: The rank's context.
        memory: The engine's view of the pool.
        seed: The script's seed, of everything that is random.
        running: The call.
        buffers: The call's arrays, as bytes.
        acts: What happens before each instruction.
        while_waiting: Called whenever the rank has waited for a while.
        at_end: Called when the rank has executed all its instructions.
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
        """Let an act happen before an instruction; several acts happen in the order in which they were added.

        Args:
            where: The instruction.
            act: Called when the rank comes to it; returns true to leave the instruction out.
        """
        self.acts.setdefault(where, []).append(act)

    def happened(self, number: int, delay_s: float = 0.0) -> None:
        """Report that a fault has come.

        Args:
            number: Number of the fault in the script.
            delay_s: For how long it holds the rank up, in seconds.
        """
        self.context.emit(Happened(number, self.context.rank, delay_s))

    @property
    def stops(self) -> Breakpoints:
        """The acts, as the engine wants them: one stop for each instruction that has any."""
        return {where: partial(_all, acts) for where, acts in self.acts.items()}

    def watching(self, watch: Watch | None) -> Watch:
        """Return a watch that calls ``while_waiting``, and then ``watch``."""

        def waits(running: Running, blocked: list[Blocked], waited_s: float) -> None:
            for each in self.while_waiting:
                each()
            if watch is not None:
                watch(running, blocked, waited_s)

        return waits

    # --- places in the call ------------------------------------------------------------------------------------

    def instruction(self, where: InstructionPlace) -> Instruction:
        """Look up the instruction at a place of the rank's part."""
        return self.running.part.streams[where.stream].instructions[where.at]

    def onward(self, start: InstructionPlace) -> Iterator[InstructionPlace]:
        """Yield the places of a stream from ``start`` on."""
        for at in range(start.at, len(self.running.part.streams[start.stream].records)):
            yield InstructionPlace(start.stream, at)

    def everywhere(self) -> Iterator[InstructionPlace]:
        """Yield all places of the rank's part, stream after stream."""
        for stream in range(len(self.running.part.streams)):
            yield from self.onward(InstructionPlace(stream, 0))

    def next_ring(self, start: InstructionPlace) -> InstructionPlace | None:
        """Find the next instruction of the stream, from ``start`` on, that rings a doorbell; None: there is none."""
        return next((where for where in self.onward(start) if self.instruction(where).op in RINGS), None)

    def spans(
        self, start: InstructionPlace, about: Callable[[Running, Instruction], list[Span]] = touched
    ) -> list[Span]:
        """Find bytes of the pool that an instruction touches.

        Args:
            start: The instruction. If it touches none, the next instruction of its stream that touches some takes its
                place; if there is none, the first such instruction of the call.
            about: Locates the bytes of an instruction; by default all that it touches.

        Returns:
            Bytes of one instruction; empty if no instruction of the call touches any.
        """
        for where in (*self.onward(start), *self.everywhere()):
            if found := about(self.running, self.instruction(where)):
                return found
        return []


def _all(acts: list[Act]) -> bool:
    """Do all acts; return true when any of them leaves the instruction out."""
    left_out = [act() for act in acts]
    return any(left_out)
