"""Streams of instructions and which of them may go on: what all engines that step through plans have in common.

A rank has a few ordered streams. An instruction that has to wait yields to the rank's other streams. `run_together`
and `run_in_turn` step all ranks of a world in one thread, so that a test decides the interleaving and a deadlock is
seen at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cxlemu.engines.peer_memory import PeerMemory
from cxlemu.errors import DeadlineError, DeadlockError, IntegrityError, MismatchError, PlaceError, UntoldError
from cxlemu.plan import Call, Frame, Instruction, Kind, Layout, Op, RankPart
from cxlemu.plan.instructions import OPERAND_FIELDS
from cxlemu.plan.kernels import ChecksumError
from cxlemu.plan.plan import Ints, berths

NO_PLACE = -1  # of an array that is not in the heap


@dataclass(frozen=True, slots=True)
class Binding:
    """What makes a position-independent part concrete: where the communicator lies, and the call's first epoch."""

    layout: Layout  # the communicator's slots and doorbells
    base: int  # offset of the communicator's extent on every card, in bytes
    epoch: int  # the epoch of the call's first round
    tag: int  # a mark of this call and those before it: see Call.tag
    peers: PeerMemory | None = None  # the ranks' processes, for a call whose arrays lie there
    # where this rank's input and output begin in its strip, for a call whose doorbells tell that; NO_PLACE for one that
    # lies elsewhere, which no peer reads. None: where the plan places them
    places: tuple[int, int] | None = None


class Blocked(NamedTuple):
    """A stream that cannot go on, and why."""

    stream: str
    at: int  # the index of the instruction that waits
    instruction: Instruction
    doorbell: int = -1  # the doorbell waited for; -1 for an event of the rank's own, -2 for a modelled time
    owner: int = -1  # the rank that rings the doorbell; -1 without one
    wanted: int = 0  # the epoch that the doorbell must show; for a modelled time, that time in nanoseconds
    shows: int = 0


@dataclass
class Running:
    call: Call
    frame: Frame
    part: RankPart
    binding: Binding  # where the part runs
    verb: str = ""  # what the user called, where that is not the collective

    @property
    def name(self) -> str:
        """The call in words, which begin with what the user called."""
        return f"{self.verb}: {self.call}" if self.verb else str(self.call)

    @property
    def berths(self) -> Ints | None:
        """Which arrays of which ranks the regions are parts of, as `cxlemu.plan.plan.berths` says, where these tell."""
        heap = self.call.heap
        return berths(self.frame, self.binding.layout, heap) if heap is not None and heap.is_told else None

    @property
    def places(self) -> tuple[int, int]:
        """Where this rank's input and output begin in its strip, for a call whose doorbells tell that."""
        heap, bound = self.call.heap, self.binding.places
        assert heap is not None
        return heap.places(self.part.rank) if bound is None else bound

    @property
    def needs(self) -> dict[tuple[int, int], int]:
        """How many bytes of each rank's input (0) and output (1) this rank's instructions name, where ranks tell."""
        epochs: dict[tuple[int, int], int] = {}
        if (lie := self.berths) is None:
            return epochs
        for stream in self.part.streams:
            for name in OPERAND_FIELDS:
                record = stream.records[name]
                for number in np.unique(record["id"][record["kind"] == Kind.REGION]).tolist():
                    owner, buffer, offset = lie[number].tolist()
                    if owner >= 0:
                        end = offset + self.frame.regions[number].nbytes
                        epochs[owner, buffer] = max(end, epochs.get((owner, buffer), 0))
        return epochs

    def misplaced(self, doorbell: int) -> PlaceError:
        """Make the error of a doorbell that tells of an array that it lies where it cannot."""
        layout = self.binding.layout
        owner = layout.owner(doorbell)
        return PlaceError(owner, layout.heap_strip(owner).card)

    def untold(self, owner: int) -> UntoldError:
        """Make the error of a plan that reads a rank's array before that has told where it lies."""
        return UntoldError(
            f"rank {self.part.rank} of [{self.name}] reads an array of rank {owner} without having waited for a "
            f"doorbell that carries its place"
        )

    def describe(self, blocked: Blocked) -> str:
        """Say what the rank waits for, as the end of a sentence."""
        where = f"{blocked.stream}:{blocked.at} {blocked.instruction.op.name}"
        if blocked.doorbell == -2:
            return f"the time that the model gives it ({where})"
        if blocked.doorbell < 0:
            return f"its own event {blocked.instruction.arg} ({where})"
        name = self.binding.layout.doorbell_name(blocked.doorbell)
        return f"rank {blocked.owner} to ring {name} with epoch {blocked.wanted} (it shows {blocked.shows}; {where})"

    def deadline(self, blocked: list[Blocked], waited_s: float) -> DeadlineError:
        """Make the error of a rank that waited too long."""
        waits_for = ", and for ".join(map(self.describe, blocked))
        return DeadlineError(f"rank {self.part.rank} waited {waited_s:.1f} s in [{self.name}] for {waits_for}")

    def damaged_doorbell(self, doorbell: int) -> IntegrityError:
        """Make the error of a doorbell that shows a word that no rank rings."""
        layout = self.binding.layout
        return IntegrityError(layout.owner(doorbell), layout.doorbell_address(doorbell, self.binding.epoch)[0])

    def mismatch(self, doorbell: int) -> MismatchError:
        """Make the error of a doorbell that its owner rang for this epoch, but not in this call."""
        layout = self.binding.layout
        return MismatchError(
            f"rank {self.part.rank} is in [{self.name}] but rank {layout.owner(doorbell)} rang "
            f"{layout.doorbell_name(doorbell)} in another call or after others: all ranks must call the same "
            f"collectives with the same arguments",
            (self.part.rank, layout.owner(doorbell)),
        )

    def damaged(self, stream: int, index: int) -> IntegrityError:
        """Make the error of a checksum that does not fit.

        The WAIT_DATA and the READ before it say which rank sent it and on which card the bytes begin; in a plan that
        lacks them, each is -1.
        """
        before = self.part.streams[stream].instructions[:index]
        rung, read = (next((i for i in reversed(before) if i.op == op), None) for op in (Op.WAIT_DATA, Op.READ))
        owner = -1 if rung is None else self.binding.layout.owner(rung.arg)
        card = -1 if read is None else self.frame.regions[read.a.id].map.locate(read.a.offset)[0]
        return IntegrityError(owner, card)


# Called while a rank waits, with everything that blocks it: keeps the heartbeat going, checks on the peers, and
# may raise. The last argument is how long the rank has made no progress, in seconds.
Watch = Callable[[Running, list[Blocked], float], None]


# Functions called before some instructions of one call, by (stream, at); true where the instruction is then left out.
# A stop happens once, when its stream comes to it, whether or not the instruction can then go on.
Breakpoints = Mapping[tuple[int, int], Callable[[], bool]]
NO_BREAKPOINTS: Breakpoints = {}


@dataclass
class Streams(Running, ABC):
    """A rank whose streams are stepped one instruction at a time.

    Attributes:
        stops: Functions called before some instructions.
        position: For each stream, the index of its next instruction.
        events: The events that have been recorded.
    """

    stops: Breakpoints = field(default_factory=dict, kw_only=True)
    position: list[int] = field(init=False)
    events: set[int] = field(init=False, default_factory=set)
    _stopped: set[tuple[int, int]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.position = [0] * len(self.part.streams)

    @abstractmethod
    def execute(self, instruction: Instruction) -> Blocked | None:
        """Do what the instruction says, or return what blocks it; the caller fills in ``stream`` and ``at``."""

    def step(self, stream: int) -> Blocked | None:
        """Execute the next instruction of a stream that has not ended, or say what blocks it."""
        index = self.position[stream]
        if self.stops and self._stop(stream, index):
            self.position[stream] += 1
            return None
        try:
            blocked = self.execute(self.part.streams[stream].instructions[index])
        except ChecksumError:
            raise self.damaged(stream, index) from None
        if blocked is not None:
            return blocked._replace(stream=self.part.streams[stream].name, at=index)
        self.position[stream] += 1
        return None

    @property
    def executed(self) -> int:
        return sum(self.position)

    def _stop(self, stream: int, index: int) -> bool:
        """Call the stop at this instruction, if there is one; true where the instruction is left out."""
        stop = self.stops.get((stream, index))
        if stop is None or (stream, index) in self._stopped:
            return False
        self._stopped.add((stream, index))
        return stop()

    def ended(self, stream: int) -> bool:
        """Whether the stream of this index has executed all its instructions."""
        return self.position[stream] == len(self.part.streams[stream].records)

    def pending(self) -> list[int]:
        return [stream for stream in range(len(self.position)) if not self.ended(stream)]

    def advance(self) -> tuple[list[Blocked], bool]:
        """Step each stream in turn as far as it goes; return what blocks each of them, and whether any made a step."""
        blocked: list[Blocked] = []
        stepped = False
        for stream in self.pending():
            while not self.ended(stream):
                obstacle = self.step(stream)
                if obstacle is not None:
                    blocked.append(obstacle)
                    break
                stepped = True
        return blocked, stepped


# A wait that was not satisfied can only be satisfied after one of these.
RELEASES = frozenset({Op.SIGNAL, Op.SIGNAL_DATA, Op.RECORD})

# Chooses among the (rank's index, stream) pairs that may be tried next.
Schedule = Callable[[Sequence[tuple[int, int]]], tuple[int, int]]


def run_together(ranks: Sequence[Streams], schedule: Schedule) -> None:
    """Run all ranks in this thread, one instruction at a time, in the order the schedule chooses."""
    candidates = [(r, s) for r, stream in enumerate(ranks) for s in stream.pending()]
    stuck: dict[tuple[int, int], Blocked] = {}
    while candidates:
        choices = [c for c in candidates if c not in stuck]
        if not choices:
            raise deadlock(ranks, stuck)
        rank, stream = schedule(choices)
        obstacle = ranks[rank].step(stream)
        if obstacle is not None:
            stuck[rank, stream] = obstacle
            continue
        stuck.clear()
        if ranks[rank].ended(stream):
            candidates.remove((rank, stream))


def run_in_turn(ranks: Sequence[Streams]) -> None:
    """Run all ranks in this thread, every stream as far as it goes: one interleaving, the fastest to execute."""
    candidates = [(r, s) for r, stream in enumerate(ranks) for s in stream.pending()]
    while candidates:
        stuck: dict[tuple[int, int], Blocked] = {}
        progress = False
        for rank, stream in candidates:
            while not ranks[rank].ended(stream):
                obstacle = ranks[rank].step(stream)
                if obstacle is not None:
                    stuck[rank, stream] = obstacle
                    break
                progress = True
        if stuck and not progress:
            raise deadlock(ranks, stuck)
        candidates = list(stuck)


def deadlock(
    ranks: Sequence[Running] | Mapping[int, Running], stuck: Mapping[tuple[int, int], Blocked]
) -> DeadlockError:
    waits = (f"rank {ranks[r].part.rank} waits for {ranks[r].describe(b)}" for (r, _), b in sorted(stuck.items()))
    return DeadlockError("deadlock: " + "; ".join(waits))
