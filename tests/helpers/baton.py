"""Threads that hand a baton on at each step in the pool, as a seed says: the same code that runs, in any order.

Ranks run one at a time. Before each operation on a memory of the baton's, and in each wait, the next rank is drawn. A
rank may be stopped for long, as by SIGSTOP, or be killed. What a rank signals is posted: it arrives at any time before
the rank's next fence, perhaps its payload first, as where the line is evicted between the two stores. Time is the
baton's own: now and then it leaps, so that any rank may take any other for dead, wrongly.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import Bytes, DoorbellLine

STEPS_MAX = 200_000  # of one run: more means that it would not end


class Killed(BaseException):
    """The rank's process has ended here; no handler of the program's can go on."""


class Baton:
    """One run of several ranks, which is its clock as well: ``seed`` draws everything.

    Steps stop their rank for long (how often: ``stops``), take up to ``leap_s`` (``leaps``), or kill it (``deaths``):
    what it signalled last may then never arrive; ``survivors`` are not killed.
    """

    def __init__(
        self,
        seed: int,
        *,
        stops: float = 0.03,
        leaps: float = 0.0,
        leap_s: float = 1.0,
        deaths: float = 0.0,
        survivors: int = 1,
    ) -> None:
        self.chance = random.Random(seed)
        self.steps = 0
        self._stops, self._leaps, self._leap_s, self._now_s = stops, leaps, leap_s, 0.0
        self._deaths, self._survivors = deaths, survivors
        self._turns: dict[int, threading.Semaphore] = {}  # by thread
        self._until: dict[int, int] = {}  # by thread: the step up to which it is stopped
        self._killed: set[int] = set()
        self.posting: list[PostedMemory] = []  # memories of which something is on its way
        self.arrived: Callable[[int, bytes], None] = lambda offset, payload: None  # told of each line that arrives

    def run(self, *programs: Callable[[], Any]) -> list[Any]:
        """Run the programs to their ends; return what each returned or raised."""
        became: list[Any] = [None] * len(programs)
        ready = threading.Barrier(len(programs) + 1)

        def live(number: int) -> None:
            me = threading.get_ident()
            self._turns[me], self._until[me] = threading.Semaphore(0), 0
            ready.wait()
            self._turns[me].acquire()
            try:
                became[number] = programs[number]()
            except BaseException as error:
                became[number] = error
            del self._turns[me]
            if self._turns:
                self._turns[self._drawn()].release()

        threads = [threading.Thread(target=live, args=[number], daemon=True) for number in range(len(programs))]
        for thread in threads:
            thread.start()
        ready.wait()
        self._turns[self._drawn()].release()
        for thread in threads:
            thread.join()
        return became

    def memory(self, cards: Sequence[Bytes], *, writable: bool = True) -> PostedMemory:
        """Open another memory for these cards."""
        return PostedMemory(self, cards, writable=writable)

    def kill(self) -> None:
        """End the process of the rank that calls this: nothing that it does from here on happens."""
        me = threading.get_ident()
        self._killed.add(me)
        for memory in self.posting:
            if memory.user == me and self.chance.random() < 0.5:
                memory.lose()
        raise Killed

    def step(self, attempt: int = 0) -> None:
        """Let any rank go on, and nature; threads of other programs just pass. Also a session's ``wait``."""
        me = threading.get_ident()
        if me in self._killed:
            raise Killed
        if me not in self._turns:
            return
        self.steps += 1
        if self.steps > STEPS_MAX:
            self._killed |= self._turns.keys()
            raise AssertionError(f"after {STEPS_MAX} steps ranks still go on")
        self._now_s += self.chance.uniform(0, self._leap_s) if self.chance.random() < self._leaps else 1e-6
        for memory in self.posting:
            memory.arrive(0.2)
        self.posting = [memory for memory in self.posting if memory.posted]
        if self.chance.random() < self._deaths and len(self._turns) > self._survivors:
            self.kill()
        if self.chance.random() < self._stops:
            self._until[me] = self.steps + self.chance.randint(1, 400)
        following = self._drawn()
        if following != me:
            self._turns[following].release()
            self._turns[me].acquire()
        if me in self._killed:
            raise Killed

    @property
    def runs(self) -> bool:
        """Whether the thread that asks is one of this run."""
        return threading.get_ident() in self._turns

    def now(self) -> float:
        """The time in seconds: this is a Clock."""
        return self._now_s

    def _drawn(self) -> int:
        going = [thread for thread in self._turns if self._until[thread] <= self.steps]
        return self.chance.choice(going) if going else min(self._turns, key=self._until.__getitem__)


class PostedMemory(DirectMemory):
    """A rank's memory whose signals arrive later; all else is coherent."""

    def __init__(self, baton: Baton, cards: Sequence[Bytes], *, writable: bool = True) -> None:
        super().__init__(cards, writable=writable)
        self._baton = baton
        self.posted: list[tuple[int, int, int, bytes, bool]] = []
        self.user = 0  # the thread that used it last

    def lose(self) -> None:
        """Let what is on its way never arrive, or never its word."""
        self.posted.clear()

    def arrive(self, share: float = 1.0) -> None:
        """Let each posted line take its next step with this probability; 1: let all arrive."""
        left, waits = [], set()
        for card, offset, word, payload, halved in self.posted:
            if (card, offset) in waits or (share < 1 and self._baton.chance.random() >= share):
                left.append((card, offset, word, payload, halved))
            elif share < 1 and not halved and self._baton.chance.random() < 0.5:
                DirectMemory.signal(self, card, offset, DirectMemory.poll(self, card, offset).word, payload)
                left.append((card, offset, word, payload, True))
            else:
                DirectMemory.signal(self, card, offset, word, payload)
                self._baton.arrived(offset, payload)
                continue
            waits.add((card, offset))
        self.posted = left

    def signal(self, card: int, offset: int, word: int, payload: bytes = b"") -> None:
        self._step()
        self.posted.append((card, offset, word, payload, False))
        if self not in self._baton.posting:
            self._baton.posting.append(self)
        if not self._baton.runs:
            self.arrive()

    def poll(self, card: int, offset: int) -> DoorbellLine:
        self._step()
        while any(offset == posted[1] for posted in self.posted):
            self.arrive()
        return super().poll(card, offset)

    def fence(self) -> None:
        self._step()
        self.arrive()

    def write(self, card: int, offset: int, data: Bytes) -> None:
        self._step()
        super().write(card, offset, data)

    def _step(self) -> None:
        self.user = threading.get_ident()
        self._baton.step()
