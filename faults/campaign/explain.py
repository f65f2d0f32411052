"""Explains an execution as the story of one line: the line of a read that was wrong, or of a wait that never ends.

A story is data: what every host did to the line, and what its cache and the pool held after each step.
`faults/campaign/picture.py` draws it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Op, Plan
from cxlemu.plan.text import text
from faults.campaign.record import LOADS, Done, Execution, Stuck, Watch, WrongRead, pieces, queues, stuck, wrong_read
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import replay
from faults.lockstep.schedule import StreamStep

EVENTS_MAX = 32


class Held(NamedTuple):
    """A host's view of the line; versions are indices into `Story.versions`."""

    cached: int | None = None  # the version in the host's cache; None: the line is not in the cache
    dirty: bool = False  # whether the cached line is dirty
    posted: int | None = None  # the version of a write-back on its way, if there is one


@dataclass(frozen=True)
class StoryEvent:
    """A step of a rank, a move of nature or a fault, and the line's state after it."""

    host: int  # column of the host, an index into `Story.hosts`
    text: str  # the instruction, or nature's move
    place: str  # such as "call 1 main:4", or "nature"
    caches: tuple[Held, ...]  # each host's view of the line
    pool: int  # the version in the pool
    wrong: str = ""  # why the step is wrong; empty if it is right
    left_out: int = 0  # steps before this one that have nothing to do with the line


class Signalled(NamedTuple):
    signal: int
    wait: int


@dataclass(frozen=True)
class Story:
    line: str  # the line, in words
    hosts: tuple[str, ...]  # headings of the hosts' columns
    versions: tuple[str, ...]  # for each content that the line ever had, the step that wrote it
    events: tuple[StoryEvent, ...]  # the steps, in order; of a long story the last EVENTS_MAX
    signals: tuple[Signalled, ...] = ()  # the signals that shown waits found
    left_out_at_the_end: int = 0  # steps after the last event


def story(execution: Execution) -> Story | None:
    """Tell the story of an execution's first wrong read or, without one, of its wait that never ends; None: neither."""
    wrong = wrong_read(execution)
    if wrong is not None:
        return OfRead(execution, wrong).story()
    for_ever = stuck(execution)
    return None if for_ever is None else OfWait(execution, for_ever).story()


class Teller(ABC):
    """Tells every move up to ``until`` that changes the line, and those that `concerns` picks; it runs them again."""

    def __init__(self, execution: Execution, card: int, line: int, until: int) -> None:
        self.execution, self.card, self.line, self._until = execution, card, line, until
        self.title = f"card {card}, line {line} of {LINE_BYTES} bytes"
        hosts = list(execution.hosts or range(execution.layout.ranks))
        self._hosts, self._columns = hosts, sorted(set(hosts))
        self._versions: dict[bytes, int] = {bytes(LINE_BYTES): 0}
        self._names = ["zeros, as the pool was at first"]
        self._events: list[tuple[StoryEvent, int, Done | None]] = []
        self._now: tuple[tuple[Held, ...], int] = ((Held(),) * len(self._columns), 0)

    @abstractmethod
    def concerns(self, world: Lockstep, done: Done) -> bool:
        """Say whether a step is part of the story even if the line stays as it was, right after the step."""

    def verdict(self, number: int, held: Held) -> str:
        """Say what is wrong with a move, after which its host holds this of the line; empty: it is right."""
        return ""

    def ending(self) -> Iterator[tuple[Done, str]]:
        """Yield steps that were never made, and what is wrong with each."""
        return iter(())

    def story(self) -> Story:
        Watch(self.execution, self.execution.program, self._see).run(self.execution.world(replay(self.execution.moves)))
        moves = len(self.execution.moves)
        for done, wrong in self.ending():
            place = f"{self._place(done)}, waiting"
            event = StoryEvent(self._column(done), self._words(done), place, *self._now, wrong=wrong)
            self._events.append((event, moves - 1, done))
        shown = self._events[-EVENTS_MAX:]
        events, last = [], -1
        for event, number, _ in shown:
            events.append(replace(event, left_out=max(0, number - last - 1)))
            last = number
        return Story(
            line=self.title,
            hosts=tuple(self._heading(host) for host in self._columns),
            versions=tuple(self._names),
            events=tuple(events),
            signals=tuple(_signals([done for _, _, done in shown], self.execution)),
            left_out_at_the_end=moves - last - 1,
        )

    def version(self, content: bytes | None, author: str = "") -> int | None:
        """Number a content of the line, an index into `Story.versions`; None: there is no line.

        A new content gets the next number, and the step that wrote it as its author; empty: nature.
        """
        if content is None:
            return None
        if content not in self._versions:
            self._versions[content] = len(self._versions)
            self._names.append(author or "bytes that nature mixed")
        return self._versions[content]

    def versions(self) -> Iterator[tuple[bytes, int]]:
        """Yield every content that the line had so far, with its number."""
        return iter(self._versions.items())

    def plan(self, done: Done) -> Plan:
        return self.execution.program[done.call][0]

    def _see(self, world: Lockstep, number: int, done: Done | None) -> None:
        if number > self._until:
            return
        author = f"rank {done.rank}, {self._place(done)} {done.instruction.op.name}" if done else ""
        looks = [world.caches[host].cards[self.card].look(self.line) for host in self._columns]
        pool = world.cards[self.card][self.line * LINE_BYTES :][:LINE_BYTES].tobytes()
        caches = tuple(
            Held(self.version(look.cached, author), look.dirty, self.version(look.posted, author)) for look in looks
        )
        after = (caches, self.version(pool, author) or 0)
        changed, self._now = after != self._now, after
        if not changed and not (done is not None and self.concerns(world, done)):
            return
        move = world.moves[number]
        host = self._columns.index(self._hosts[move.rank] if isinstance(move, StreamStep) else move.host)
        words = self._words(done) if done else str(move).partition(" ")[0]
        place = self._place(done) if done else "nature"
        event = StoryEvent(host, words, place, *after, wrong=self.verdict(number, caches[host]))
        self._events.append((event, number, done))

    def _heading(self, host: int) -> str:
        return f"host {host} · " + ", ".join(f"rank {rank}" for rank, home in enumerate(self._hosts) if home == host)

    def _column(self, done: Done) -> int:
        return self._columns.index(self._hosts[done.rank])

    def _words(self, done: Done) -> str:
        return text(done.instruction, self.plan(done), done.rank)

    def _place(self, done: Done) -> str:
        return f"call {done.call} {done.stream}:{done.at}"


class OfRead(Teller):
    """Tells which ranks stored to the line, which loaded it, and how they synchronized, up to the wrong read."""

    def __init__(self, execution: Execution, wrong: WrongRead) -> None:
        super().__init__(execution, wrong.piece.card, wrong.piece.line, wrong.move)
        self._wrong = wrong
        world = execution.world(replay(()))
        everything = [done for queue in queues(execution.program).values() for done in queue]
        loads = [done for done in everything if done.instruction.op in LOADS]
        self._stores = {(d.rank, d.call) for d in everything if self._touches(world, d, stores=True)}
        self._loads = {(d.rank, d.call) for d in loads if self._touches(world, d, stores=False)}

    def concerns(self, world: Lockstep, done: Done) -> bool:
        return any(self._touches(world, done, stores=stores) for stores in (True, False)) or self._synchronizes(done)

    def verdict(self, number: int, held: Held) -> str:
        if number != self._wrong.move:
            return ""
        piece = self._wrong.piece
        for content, known in self.versions():
            if content[piece.first : piece.last] == self._wrong.right and known != held.cached:
                return f"reads v{held.cached}, should be v{known}"
        return f"reads v{held.cached} too early: the right version is not written yet"

    def _touches(self, world: Lockstep, done: Done, *, stores: bool) -> bool:
        lines = pieces(world, self.plan(done), done, stores=stores)
        return any((piece.card, piece.line) == (self.card, self.line) for piece in lines)

    def _synchronizes(self, done: Done) -> bool:
        """Whether a step orders a store to the line before loads of the same call, or those before the next store."""
        i, layout, me = done.instruction, self.execution.layout, (done.rank, done.call)
        match i.op:
            case Op.FENCE | Op.WAIT_ALL:
                return me in self._stores
            case Op.WAIT:
                return me in self._loads and (layout.owner(i.arg), done.call) in self._stores
            case Op.SIGNAL:
                return me in (self._loads if i.arg >= layout.published_count else self._stores)
        return False


class OfWait(Teller):
    """Tells the doorbell's line, what its owner did in the call instead of ringing it, and the waits of the end."""

    def __init__(self, execution: Execution, for_ever: Stuck) -> None:
        card, offset = execution.layout.doorbell_address(for_ever.doorbell, for_ever.epoch)
        base = execution.world(replay(())).base
        super().__init__(execution, card, (base + offset) // LINE_BYTES, len(execution.moves))
        self._stuck, self._owner = for_ever, execution.layout.owner(for_ever.doorbell)
        self.title += f", {execution.layout.doorbell_name(for_ever.doorbell)}"

    def concerns(self, world: Lockstep, done: Done) -> bool:
        return (done.rank, done.call) == (self._owner, self._stuck.waits.call)

    def ending(self) -> Iterator[tuple[Done, str]]:
        for done in self._stuck.others:
            yield done, ""
        yield self._stuck.waits, f"waits for epoch {self._stuck.epoch}, for ever"


def _signals(shown: Sequence[Done | None], execution: Execution) -> Iterator[Signalled]:
    """Match every shown wait with the shown signal that it was waiting for."""
    rung: dict[tuple[int, int], int] = {}  # (doorbell, epoch) -> event
    for index, done in enumerate(shown):
        if done is None:
            continue
        if done.instruction.op in (Op.SIGNAL, Op.SIGNAL_DATA):
            rung[done.instruction.arg, done.epoch + done.instruction.value] = index
        for doorbell, epoch in execution.waited(done):
            signal = rung.get((doorbell, epoch))
            other = None if signal is None else shown[signal]
            if signal is not None and other is not None and other.rank != done.rank:
                yield Signalled(signal, index)
