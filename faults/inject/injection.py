"""The effects of faults in one call of one rank: acts before its instructions, while it waits and at its end."""

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


class FaultTally(NamedTuple):
    """A rank's message when it leaves its world: what the faults of the script came to, as far as it knows."""

    rank: int
    calls: int  # how many calls it made since it was armed
    # why faults of its own that its calls came to did not come, or moved nothing, by their numbers in the script
    missed: dict[int, str]
    met: tuple[int, ...]  # faults of the hardware, its own and others', that an access met


class LinesMoved(NamedTuple):
    """A rank's message at its end: how many lines its adversary moved."""

    lines: int


class Happened(NamedTuple):
    """A rank's message: a fault of the script has come."""

    fault: int
    rank: int
    delay_s: float = 0.0  # for how long the fault holds the rank up, in seconds


@dataclass
class Injection:
    """One rank's call, and what happens in it: the effects of faults add their acts."""

    context: RankContext
    memory: HostMemory  # the engine's view of the pool
    seed: int  # the script's seed, of everything that is random
    running: Running
    buffers: list[Bytes]  # the call's arrays, as bytes
    came: set[int] = field(default_factory=set)  # the faults that have come, in this call or one before it
    missed: dict[int, str] = field(default_factory=dict)  # why other faults did not come
    acts: dict[InstructionPlace, list[Act]] = field(default_factory=dict)  # what happens before each instruction
    # called whenever the rank has waited for a while
    while_waiting: list[Callable[[], object]] = field(default_factory=list)
    # called when the rank has executed all its instructions
    at_end: list[Callable[[], object]] = field(default_factory=list)

    def at(self, where: InstructionPlace, act: Act) -> None:
        """Let acts happen before an instruction, in the order of their addition; true leaves the instruction out."""
        self.acts.setdefault(where, []).append(act)

    def happened(self, number: int, delay_s: float = 0.0) -> None:
        """Report that a fault has come; a second report of the same fault is none."""
        if number not in self.came:
            self.came.add(number)
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
        for index in range(start.at, len(self.running.part.streams[start.stream].records)):
            yield InstructionPlace(start.stream, index)

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
        """Find the bytes that an instruction touches, else the next one of its stream, else the call's first one."""
        for where in (*self.onward(start), *self.everywhere()):
            if places := about(self.running, self.instruction(where)):
                return places
        return []


def _all(acts: list[Act]) -> bool:
    """Do all acts; return true when any of them leaves the instruction out."""
    left_out = [act() for act in acts]
    return any(left_out)
