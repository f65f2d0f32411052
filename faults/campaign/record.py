"""Watches an execution: runs it again, looks at every cache after each move, and finds what is to blame.

That is the first read that was wrong or, in a deadlock, the wait that never ends.

An execution in lockstep is data (calls, inputs, a schedule), so it can be watched as often as needed. What a read
should have returned comes from the calls as they were meant, run coherently: control flow does not depend on data, so
the n-th load of a stream is the same load in both.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cxlemu.errors import CxlemuError
from cxlemu.memory import MemorySpec
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.plan import Instruction, Layout, Op, Plan, accesses
from cxlemu.plan.accesses import RINGS
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import Order, replay
from faults.lockstep.schedule import LockstepMove, StreamStep

CallsWithInputs = Sequence[tuple[Plan, Sequence[Bytes]]]


@dataclass(frozen=True)
class Execution:
    """Calls on a ring of their own, in the order of a schedule."""

    layout: Layout
    program: CallsWithInputs  # the plan of each call, with its inputs for each rank
    moves: Sequence[LockstepMove]
    memory: MemorySpec = field(default_factory=MemorySpec)  # the memory, and the seed of its adversary
    hosts: Sequence[int] | None = None  # the host of each rank; None: each rank on its own
    meant: CallsWithInputs | None = None  # the calls without the mistake; None: ``program`` has none

    def world(self, order: Order, memory: MemorySpec | None = None) -> Lockstep:
        """Make a world for the calls; nothing runs yet."""
        return Lockstep(self.layout, hosts=self.hosts, memory=memory or self.memory, order=order)

    def waited(self, done: Done) -> Iterator[tuple[int, int]]:
        """Yield each doorbell that a step waits for, and the epoch that it has to show."""
        i = done.instruction
        if i.op in accesses.WAITS:
            for doorbell in accesses.doorbells(self.program[done.call][0].frame, i):
                yield doorbell, done.epoch + i.value


class LinePiece(NamedTuple):
    """Bytes of one line of the pool that an instruction stores, loads, flushes, invalidates or rings."""

    card: int
    line: int  # number of the line on its card
    first: int  # the first byte, counted from the line's begin
    last: int  # the byte after its last


class Done(NamedTuple):
    rank: int
    call: int
    stream: str
    at: int  # number of the instruction in the stream
    instruction: Instruction
    epoch: int  # the first epoch of its call


class WrongRead(NamedTuple):
    move: int
    piece: LinePiece  # the bytes of the pool that it loaded
    right: bytes  # what they should have been


class Watch:
    """Follows an order, and tells after every move what was done.

    It counts the instructions of each stream itself: nothing is asked of the world.
    """

    def __init__(
        self, execution: Execution, program: CallsWithInputs, see: Callable[[Lockstep, int, Done | None], None]
    ) -> None:
        self._streams = {step: deque(queue) for step, queue in queues(program).items()}
        self._see, self._seen = see, 0
        self._program = program

    def run(self, world: Lockstep) -> str:
        """Run the calls in this world; return the error that ended them, or nothing."""
        follow, world.order = world.order, self._following(world, world.order)
        try:
            world.calls(self._program)
        except CxlemuError as error:
            return str(error)
        finally:
            self._catch_up(world)
            world.order = follow
        return ""

    def left(self) -> dict[StreamStep, list[Done]]:
        """List for every stream the instructions that it has not executed."""
        return {step: list(queue) for step, queue in self._streams.items()}

    def _following(self, world: Lockstep, order: Order) -> Order:
        def choose(steps: Sequence[StreamStep]) -> LockstepMove:
            self._catch_up(world)
            return order(steps)

        return choose

    def _catch_up(self, world: Lockstep) -> None:
        for number in range(self._seen, len(world.moves)):
            move = world.moves[number]
            self._see(world, number, self._streams[move].popleft() if isinstance(move, StreamStep) else None)
        self._seen = len(world.moves)


def queues(program: CallsWithInputs) -> dict[StreamStep, list[Done]]:
    """List for every stream of every rank the instructions that it executes, call after call."""
    steps: dict[StreamStep, list[Done]] = defaultdict(list)
    epoch = 1
    for call, (plan, _) in enumerate(program):
        for part in plan.parts:
            for number, stream in enumerate(part.streams):
                steps[StreamStep(part.rank, number)] += [
                    Done(part.rank, call, stream.name, index, instruction, epoch)
                    for index, instruction in enumerate(stream.instructions)
                ]
        epoch += plan.rounds
    return steps


def pieces(world: Lockstep, plan: Plan, done: Done, *, stores: bool) -> Iterator[LinePiece]:
    """Split what an instruction touches in the pool's regions into pieces of lines."""
    i = done.instruction
    for operand in accesses.in_regions(accesses.stored(i) if stores else (i.a, i.b, i.c)):
        for extent in accesses.pool_extents(plan.frame, world.layout, done.epoch, operand, i.nbytes):
            begin, end = world.base + extent.offset, world.base + extent.offset + extent.nbytes
            while begin < end:
                line = begin // LINE_BYTES
                stop = min(end, (line + 1) * LINE_BYTES)
                yield LinePiece(extent.card, line, begin - line * LINE_BYTES, stop - line * LINE_BYTES)
                begin = stop


LOADS = (Op.READ, Op.REDUCE)


def wrong_read(execution: Execution) -> WrongRead | None:
    """Find the first load that got other bytes than in the calls as they were meant; None if there is none."""
    meant = execution.meant or execution.program
    right: dict[tuple[int, int, str], list[list[bytes | None]]] = defaultdict(list)

    def learn(world: Lockstep, number: int, done: Done | None) -> None:
        if done is not None and done.instruction.op in LOADS:
            right[done.rank, done.call, done.stream].append(
                [loaded(world, done.rank, piece) for piece in pieces(world, meant[done.call][0], done, stores=False)]
            )

    Watch(execution, meant, learn).run(execution.world(replay(()), MemorySpec()))
    found: list[WrongRead] = []

    def compare(world: Lockstep, number: int, done: Done | None) -> None:
        if found or done is None or done.instruction.op not in LOADS:
            return
        plan = execution.program[done.call][0]
        queue = right[done.rank, done.call, done.stream]
        expected = queue.pop(0) if queue else []
        for piece, bytes_ in zip(pieces(world, plan, done, stores=False), expected, strict=False):
            got = loaded(world, done.rank, piece)
            if got is not None and bytes_ is not None and got != bytes_:
                found.append(WrongRead(number, piece, bytes_))
                return

    Watch(execution, execution.program, compare).run(execution.world(replay(execution.moves)))
    return found[0] if found else None


def loaded(world: Lockstep, rank: int, piece: LinePiece) -> bytes | None:
    """Return what a load got, right after it, from its host's cache; None if the adversary evicted the line first."""
    seen = world.caches[world.hosts[rank]].cards[piece.card].look(piece.line).cached
    return None if seen is None else seen[piece.first : piece.last]


class Stuck(NamedTuple):
    waits: Done
    doorbell: int
    epoch: int  # the awaited epoch, which the doorbell never shows
    others: tuple[Done, ...]  # the steps at which other streams stand


def stuck(execution: Execution) -> Stuck | None:
    """Find the wait to blame for an execution that does not end; None: it ends.

    To blame is first a wait for a doorbell that no rank is going to ring; without one, ranks wait for each other.
    """
    rung: set[tuple[int, int]] = set()

    def see(world: Lockstep, number: int, done: Done | None) -> None:
        if done is not None and done.instruction.op in RINGS:
            rung.add(_rings(done))

    watch = Watch(execution, execution.program, see)
    if not watch.run(execution.world(replay(execution.moves))):
        return None
    left = watch.left()
    heads = _heads(left)
    coming = {_rings(done) for queue in left.values() for done in queue if done.instruction.op in RINGS}
    vain = [
        Stuck(done, doorbell, epoch, tuple(head for head in heads if head is not done))
        for done in heads
        for doorbell, epoch in execution.waited(done)
        if not _shown(execution, rung, doorbell, epoch)
    ]
    never = [one for one in vain if not _shown(execution, coming, one.doorbell, one.epoch)]
    return next(iter(never or vain), None)


def _rings(done: Done) -> tuple[int, int]:
    return done.instruction.arg, done.epoch + done.instruction.value


def _shown(execution: Execution, rung: set[tuple[int, int]], doorbell: int, epoch: int) -> bool:
    """Whether one of these signals makes the doorbell's line show ``epoch`` or more."""
    address = execution.layout.doorbell_address
    line = address(doorbell, epoch)
    return any(other >= epoch and address(which, other) == line for which, other in rung if which == doorbell)


def _heads(left: dict[StreamStep, list[Done]]) -> list[Done]:
    """List the next step of every stream whose rank is in that call: a call begins when the one before has ended."""
    heads = [queue[0] for queue in left.values() if queue]
    return [head for head in heads if head.call == min(other.call for other in heads if other.rank == head.rank)]
