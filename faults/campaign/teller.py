"""Follows one line of the pool through an execution, as a Story. What is told besides, a subclass says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Op, Plan
from cxlemu.plan.text import text
from faults.campaign.record import Done, Execution, Watch
from faults.campaign.story import Event, Held, Signalled, Story
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import replay
from faults.lockstep.schedule import Step

EVENTS_MAX = 32


class Teller(ABC):
    """Tells every move that changes the line, and those that ``concerns`` picks, up to move ``until``."""

    def __init__(self, execution: Execution, card: int, line: int, until: int) -> None:
        self.execution, self.card, self.line, self._until = execution, card, line, until
        self.title = f"card {card}, line {line} of {LINE_BYTES} bytes"
        hosts = list(execution.hosts or range(execution.layout.ranks))
        self._hosts, self._columns = hosts, sorted(set(hosts))
        self._versions: dict[bytes, int] = {bytes(LINE_BYTES): 0}
        self._names = ["zeros, as the pool was at first"]
        self._events: list[tuple[Event, int, Done | None]] = []
        self._now: tuple[tuple[Held, ...], int] = ((Held(),) * len(self._columns), 0)

    @abstractmethod
    def concerns(self, world: Lockstep, done: Done) -> bool:
        """Whether this step is part of the story even if the line stays as it was."""

    def verdict(self, number: int, held: Held) -> str:
        """What is wrong with move ``number``, after which its host holds this of the line; nothing: it is right."""
        return ""

    def ending(self) -> Iterator[tuple[Done, str]]:
        """Steps that were never made, and what is wrong with them."""
        return iter(())

    def story(self) -> Story:
        Watch(self.execution, self.execution.program, self._see).run(self.execution.world(replay(self.execution.moves)))
        moves = len(self.execution.moves)
        for done, wrong in self.ending():
            place = f"{self._place(done)}, waiting"
            event = Event(self._column(done), self._words(done), place, *self._now, wrong=wrong)
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
        if content is None:
            return None
        if content not in self._versions:
            self._versions[content] = len(self._versions)
            self._names.append(author or "what nature made of it")
        return self._versions[content]

    def versions(self) -> Iterator[tuple[bytes, int]]:
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
        host = self._columns.index(self._hosts[move.rank] if isinstance(move, Step) else move.host)
        words = self._words(done) if done else str(move).partition(" ")[0]
        place = self._place(done) if done else "nature"
        event = Event(host, words, place, *after, wrong=self.verdict(number, caches[host]))
        self._events.append((event, number, done))

    def _heading(self, host: int) -> str:
        return f"host {host} · " + ", ".join(f"rank {rank}" for rank, its in enumerate(self._hosts) if its == host)

    def _column(self, done: Done) -> int:
        return self._columns.index(self._hosts[done.rank])

    def _words(self, done: Done) -> str:
        return text(done.instruction, self.plan(done), done.rank)

    def _place(self, done: Done) -> str:
        return f"call {done.call} {done.stream}:{done.at}"


def _signals(shown: Sequence[Done | None], execution: Execution) -> Iterator[Signalled]:
    """Which shown signal a shown wait was waiting for."""
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
