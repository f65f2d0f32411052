"""An execution told as the story of one line: runs it again, looks at every cache after each move, and finds the read
that was wrong.

An execution in lockstep is data (calls, inputs, a schedule), so that it can be watched as often as one likes. What a
read should have returned comes from the calls as they were meant, run coherently: control flow does not depend on
data, so the n-th load of a stream is the same load in both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cxlemu.errors import CxlemuError
from cxlemu.memory import MemorySpec
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.plan import Instruction, Kind, Layout, Op, Plan
from cxlemu.plan.text import text
from faults.campaign.story import Event, Held, Signalled, Story
from faults.lockstep import Lockstep
from faults.orders import Order, replay
from faults.schedule import Move, Step

EVENTS_MAX = 32

Program = Sequence[tuple[Plan, Sequence[Bytes]]]


@dataclass(frozen=True)
class Execution:
    """Calls on a ring of their own, in the order of a schedule. ``meant``: the calls without the mistake."""

    layout: Layout
    program: Program
    moves: Sequence[Move]
    memory: MemorySpec = field(default_factory=MemorySpec)
    hosts: Sequence[int] | None = None
    meant: Program | None = None

    def world(self, order: Order, memory: MemorySpec | None = None) -> Lockstep:
        return Lockstep(self.layout, hosts=self.hosts, memory=memory or self.memory, order=order)


class Piece(NamedTuple):
    """Bytes of one line of the pool that an instruction stores, loads, flushes, invalidates or rings."""

    card: int
    line: int
    first: int
    last: int


class Done(NamedTuple):
    """An instruction that was executed."""

    rank: int
    call: int
    stream: str
    at: int
    instruction: Instruction
    epoch: int  # its call's first


class WrongRead(NamedTuple):
    move: int  # number of the move that read it
    piece: Piece
    right: bytes


class _Watch:
    """Follows an order and tells after every move what was done. Positions are its own count: nothing is asked."""

    def __init__(
        self, execution: Execution, program: Program, see: Callable[[Lockstep, int, Done | None], None]
    ) -> None:
        self._streams = {step: iter(queue) for step, queue in queues(program).items()}
        self._see, self._seen = see, 0
        self._program = program

    def run(self, world: Lockstep) -> str:
        """The error that ended it, or nothing."""
        follow, world.order = world.order, self._following(world, world.order)
        try:
            world.calls(self._program)
        except CxlemuError as error:
            return str(error)
        finally:
            self._catch_up(world)
            world.order = follow
        return ""

    def _following(self, world: Lockstep, order: Order) -> Order:
        def choose(steps: Sequence[Step]) -> Move:
            self._catch_up(world)
            return order(steps)

        return choose

    def _catch_up(self, world: Lockstep) -> None:
        for number in range(self._seen, len(world.moves)):
            move = world.moves[number]
            self._see(world, number, next(self._streams[move]) if isinstance(move, Step) else None)
        self._seen = len(world.moves)


def queues(program: Program) -> dict[Step, list[Done]]:
    """Of every stream of every rank, what it executes, call after call."""
    found: dict[Step, list[Done]] = defaultdict(list)
    epoch = 1
    for call, (plan, _) in enumerate(program):
        for part in plan.parts:
            for number, stream in enumerate(part.streams):
                found[Step(part.rank, number)] += [
                    Done(part.rank, call, stream.name, at, instruction, epoch)
                    for at, instruction in enumerate(stream.instructions)
                ]
        epoch += plan.rounds
    return found


def pieces(world: Lockstep, plan: Plan, done: Done, *, stores: bool) -> Iterator[Piece]:
    """What an instruction stores to the pool's regions; or else, what it loads, flushes or invalidates there."""
    i = done.instruction
    operands = (i.dst, i.dst2) if stores else (i.a, i.b, i.c)
    for operand in operands:
        if operand.kind != Kind.REGION:
            continue
        region = plan.frame.regions[operand.id]
        base = world.layout.heap_offset if region.heap else world.layout.slot_offset(done.epoch + operand.seq)
        for extent in region.map.extents(operand.offset, i.nbytes):
            at, end = world.base + base + extent.offset, world.base + base + extent.offset + extent.nbytes
            while at < end:
                line = at // LINE_BYTES
                stop = min(end, (line + 1) * LINE_BYTES)
                yield Piece(extent.card, line, at - line * LINE_BYTES, stop - line * LINE_BYTES)
                at = stop


LOADS = (Op.READ, Op.REDUCE)


def wrong_read(execution: Execution) -> WrongRead | None:
    """The first load that did not get what it gets when the calls are run as they were meant."""
    meant = execution.meant or execution.program
    right: dict[tuple[int, int, str], list[list[bytes | None]]] = defaultdict(list)

    def learn(world: Lockstep, number: int, done: Done | None) -> None:
        if done is not None and done.instruction.op in LOADS:
            right[done.rank, done.call, done.stream].append(
                [loaded(world, done.rank, piece) for piece in pieces(world, meant[done.call][0], done, stores=False)]
            )

    _Watch(execution, meant, learn).run(execution.world(replay(()), MemorySpec()))
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

    _Watch(execution, execution.program, compare).run(execution.world(replay(execution.moves)))
    return found[0] if found else None


def loaded(world: Lockstep, rank: int, piece: Piece) -> bytes | None:
    """What the rank's host has in its cache, right after a load; None where the adversary was quicker."""
    seen = world.caches[world.hosts[rank]].cards[piece.card].look(piece.line).cached
    return None if seen is None else seen[piece.first : piece.last]


def story(execution: Execution, wrong: WrongRead) -> Story:
    """What happened to the line of a wrong read, up to that read and a little further."""
    teller = _Teller(execution, wrong)
    _Watch(execution, execution.program, teller.see).run(execution.world(replay(execution.moves)))
    return teller.story()


class _Teller:
    def __init__(self, execution: Execution, wrong: WrongRead) -> None:
        self._execution, self._wrong = execution, wrong
        hosts = list(execution.hosts or range(execution.layout.ranks))
        self._hosts, self._columns = hosts, sorted(set(hosts))
        self._versions: dict[bytes, int] = {bytes(LINE_BYTES): 0}
        self._names = ["zeros, as the pool was at first"]
        self._events: list[tuple[Event, int, Done | None]] = []
        self._before: tuple[tuple[Held, ...], int] = ((Held(),) * len(self._columns), 0)
        world = execution.world(replay(()))
        everything = [done for queue in queues(execution.program).values() for done in queue]
        loads = [done for done in everything if done.instruction.op in LOADS]
        self._stores = {(d.rank, d.call) for d in everything if self._touches(world, d, stores=True)}
        self._loads = {(d.rank, d.call) for d in loads if self._touches(world, d, stores=False)}

    def see(self, world: Lockstep, number: int, done: Done | None) -> None:
        if number > self._wrong.move:
            return
        piece, author = self._wrong.piece, self._author(done)
        looks = [world.caches[host].cards[piece.card].look(piece.line) for host in self._columns]
        pool = world.cards[piece.card][piece.line * LINE_BYTES :][:LINE_BYTES].tobytes()
        caches = tuple(
            Held(self._version(look.cached, author), look.dirty, self._version(look.posted, author)) for look in looks
        )
        after = (caches, self._version(pool, author) or 0)
        changed, self._before = after != self._before, after
        touches = done is not None and any(self._touches(world, done, stores=stores) for stores in (True, False))
        if not changed and not touches and not self._synchronizes(done):
            return
        move = world.moves[number]
        host = self._columns.index(self._hosts[move.rank] if isinstance(move, Step) else move.host)
        words = text(done.instruction, self._plan(done), done.rank) if done else str(move).partition(" ")[0]
        place = f"call {done.call} {done.stream}:{done.at}" if done else "nature"
        bad = self._reason(host, after[0]) if number == self._wrong.move else ""
        self._events.append((Event(host, words, place, *after, wrong=bad), number, done))

    def story(self) -> Story:
        piece = self._wrong.piece
        ending = next(at for at, (_, number, _) in enumerate(self._events) if number == self._wrong.move) + 1
        shown = self._events[max(0, ending - EVENTS_MAX) : ending]
        events, last = [], -1
        for event, number, _ in shown:
            events.append(Event(**{**event.__dict__, "left_out": number - last - 1}))
            last = number
        hosts = [
            f"host {host} · " + ", ".join(f"rank {rank}" for rank, its in enumerate(self._hosts) if its == host)
            for host in self._columns
        ]
        return Story(
            line=f"card {piece.card}, line {piece.line} of {LINE_BYTES} bytes",
            hosts=tuple(hosts),
            versions=tuple(self._names),
            events=tuple(events),
            signals=tuple(_signals([done for _, _, done in shown], self._execution)),
            left_out_at_the_end=len(self._execution.moves) - last - 1,
        )

    def _plan(self, done: Done) -> Plan:
        return self._execution.program[done.call][0]

    def _author(self, done: Done | None) -> str:
        return f"rank {done.rank}, call {done.call} {done.stream}:{done.at} {done.instruction.op.name}" if done else ""

    def _version(self, content: bytes | None, author: str) -> int | None:
        if content is None:
            return None
        if content not in self._versions:
            self._versions[content] = len(self._versions)
            self._names.append(author or "what nature made of it")
        return self._versions[content]

    def _touches(self, world: Lockstep, done: Done, *, stores: bool) -> bool:
        wanted = self._wrong.piece
        found = pieces(world, self._plan(done), done, stores=stores)
        return any((piece.card, piece.line) == (wanted.card, wanted.line) for piece in found)

    def _synchronizes(self, done: Done | None) -> bool:
        """Who stores to the line with who loads it in the same call; and who loaded it with who stores to it next."""
        if done is None:
            return False
        i, layout, me = done.instruction, self._execution.layout, (done.rank, done.call)
        match i.op:
            case Op.FENCE | Op.WAIT_ALL:
                return me in self._stores
            case Op.WAIT:
                return me in self._loads and (layout.owner(i.arg), done.call) in self._stores
            case Op.SIGNAL:
                return me in (self._loads if i.arg >= layout.published_count else self._stores)
        return False

    def _reason(self, host: int, caches: tuple[Held, ...]) -> str:
        piece, held = self._wrong.piece, caches[host]
        known = [
            number
            for content, number in self._versions.items()
            if content[piece.first : piece.last] == self._wrong.right and number != held.cached
        ]
        if known:
            return f"reads v{held.cached}, should be v{known[0]}"
        return f"reads v{held.cached} too early: what is right is not written yet"


def _signals(shown: Sequence[Done | None], execution: Execution) -> Iterator[Signalled]:
    """Which shown signal a shown wait was waiting for."""
    rung: dict[tuple[int, int], int] = {}  # (doorbell, epoch) -> event
    for index, done in enumerate(shown):
        if done is None:
            continue
        i, epoch = done.instruction, done.epoch + done.instruction.value
        if i.op == Op.SIGNAL:
            rung[i.arg, epoch] = index
        elif i.op in (Op.WAIT, Op.WAIT_ALL):
            groups = execution.program[done.call][0].frame.groups
            doorbells = groups[i.arg].doorbells if i.op == Op.WAIT_ALL else (i.arg,)
            for doorbell in doorbells:
                signal = rung.get((doorbell, epoch))
                other = None if signal is None else shown[signal]
                if signal is not None and other is not None and other.rank != done.rank:
                    yield Signalled(signal, index)
