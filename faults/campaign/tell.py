"""Tells an execution as the story of the one line that was read wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Op, Plan
from cxlemu.plan.text import text
from faults.campaign.record import LOADS, Done, Execution, Watch, WrongRead, pieces, queues, wrong_read
from faults.campaign.story import Event, Held, Signalled, Story
from faults.campaign.svg import svg
from faults.lockstep import Lockstep
from faults.orders import replay
from faults.schedule import Step

EVENTS_MAX = 32


def story(execution: Execution, wrong: WrongRead) -> Story:
    """What happened to the line of a wrong read, up to that read and a little further."""
    teller = Teller(execution, wrong)
    Watch(execution, execution.program, teller.see).run(execution.world(replay(execution.moves)))
    return teller.story()


def drawn(execution: Execution) -> str | None:
    """The picture of its first wrong read; None where nothing was read wrong."""
    wrong = wrong_read(execution)
    return None if wrong is None else svg(story(execution, wrong))


class Teller:
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
