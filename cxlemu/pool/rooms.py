"""Room in the pool, taken and given back by the ranks that use it, without the other ranks.

There are no atomic operations between hosts. A rank claims room by a line of its own in the ledger, and then looks at
all other ranks' lines. Of two ranks that claim the same bytes, at least one sees the other's line and withdraws.

A room may have several holders. The first one claims it; the others hold it as well while the first one still does, so
that some line covers the room from its claim until the last holder has let it go. A rank that looks may miss a room
that is handed on between two of its looks at the lines of the old and the new holder. As a room is handed on once, from
the rank that claimed it, it cannot be missed twice: a claim is good when two looks at all lines find no other.
``examples/protocols/group_room.py`` is this protocol, for the explorer.

What a rank that died held stays held: its host's cache may still write there.
"""

import gc
import hashlib
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from cxlemu.errors import ArgumentError
from cxlemu.pool.arena import ARENA_ALIGN_BYTES, Arena
from cxlemu.pool.ledger import ALL_CARDS, FIRST_HOLD, Hold, HoldState, Identity, Ledger
from cxlemu.pool.orders import ORDERS, order_of
from cxlemu.rounding import round_up

Holes = list[tuple[int, int]]  # (begin, end) of what is free, ascending

TRIES = 64
PAUSE_S = 100e-6  # after the first claim that met another; it grows with every further one
REFUSALS = 4
FULL_LOOKS = 3  # how often a rank looks again before it says that there is no room: claims may be withdrawn

_SEARCH = threading.RLock()  # a thread's collection does nothing while another's runs


class NoRoomError(ArgumentError):
    """The pool has no room as large as was asked for."""


class Rooms:
    """One rank's part in taking and giving back room. Threads of the rank share it."""

    def __init__(self, ledger: Ledger, ranks: int, session: int, identity: Identity) -> None:
        """Begin with nothing held, and say which process this rank is."""
        self.ledger = ledger
        self._ranks, self._session = ranks, session
        self._identity = identity._replace(lines=FIRST_HOLD)
        self._mine: dict[int, Hold] = {}  # by line
        self._seen: list[Hold] = []  # the others', at the last look
        self._names: Counter[tuple[tuple[int, ...], str]] = Counter()
        self._lock = threading.RLock()
        self._refused: deque[int] = deque()  # names
        self._dropped: deque[Callable[[], None]] = deque()  # finalizers append, at any moment and in any thread
        ledger.identify(self._identity)

    def name(self, members: Sequence[int], key: str) -> int:
        """Return the next room's name: the same on all that ask equally often for these members and this key.

        Where they list the members in other orders, the lower halves of their names differ by these (`orders`).
        """
        which = (tuple(sorted(members)), key)
        with self._lock:
            self._names[which] += 1
            text = repr((self._session, which, self._names[which]))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") ^ order_of(members)

    # --- claiming ---------------------------------------------------------------------------------------------

    def claim(self, name: int, arena: Arena, wanted: Callable[[int], int], card: int = ALL_CARDS) -> Hold:
        """Claim whole pages that no other rank holds or claims, of as many bytes as ``wanted`` says of the largest free
        part."""
        with self._lock:
            self.collect()
            line, full = self._free_line(), 0
            for attempt in range(TRIES):
                free = self._free(arena, card)
                try:
                    nbytes = round_up(wanted(_largest(free)), ARENA_ALIGN_BYTES)
                    nbytes = max(nbytes, ARENA_ALIGN_BYTES)
                    offset = next((begin for begin, end in free if end - begin >= nbytes), None)
                    if offset is None:
                        raise NoRoomError(_exhausted(nbytes, free, arena))
                except ArgumentError:
                    if full == FULL_LOOKS:
                        raise
                    full += 1
                    self._look_again(attempt if full > 1 else 0)
                    continue
                claimed = Hold(name, offset, offset + nbytes, card, HoldState.CLAIMED)
                self._post(line, claimed)
                if not any(claimed.overlaps(other) for _ in range(2) for other in self._look()):
                    return self._post(line, claimed._replace(state=HoldState.HELD))
                self._post(line, None)
                self._look_again(attempt)
            raise NoRoomError(f"other ranks claimed the same room {TRIES} times")

    def refuse(self, name: int, why: HoldState = HoldState.REFUSED) -> None:
        """Tell the members of a group that it gets no room, until as many later groups got such an answer."""
        with self._lock:
            self._refused.append(name)
            if len(self._refused) > REFUSALS:
                self.release(self._refused.popleft())
            with suppress(ArgumentError):  # no line for it: they wait for their deadlines
                self._post(self._free_line(), Hold(name, 0, 0, ALL_CARDS, why))

    def join(self, leader: int, room: Hold) -> bool:
        """Hold a room that ``leader`` claimed; False if the leader let it go, so that another rank may have it."""
        with self._lock:
            self.collect()
            self._post(self._free_line(), room)
        if self.find(leader, room.name) == room:  # then this rank's line was there before the leader's goes
            return True
        self.release(room.name)
        return False

    def find(self, rank: int, name: int) -> Hold | None:
        """Find the room of this name among those that ``rank`` holds; a claim that may be withdrawn is none yet.

        Where it holds none, this is what it says about the room.
        """
        holds = (hold for hold in self.ledger.holds(rank) if hold.name == name and hold.state != HoldState.CLAIMED)
        return min(holds, key=lambda hold: hold.state, default=None)

    def other_order(self, rank: int, name: int, members: Sequence[int]) -> int | None:
        """Return the order in which ``rank`` lists the members for the room of this name, where that is another one."""
        its = (hold.name for hold in self.ledger.holds(rank) if hold.name != name)
        found = next((other for other in its if other // ORDERS == name // ORDERS), None)
        return None if found is None else (found ^ name) ^ order_of(members)

    def fits(self, hold: Hold, arena: Arena) -> bool:
        """Whether a communicator of ``arena`` can have this room: what lies in the pool may be anything."""
        whole = not (hold.at % ARENA_ALIGN_BYTES or hold.end % ARENA_ALIGN_BYTES)
        return whole and hold.card == ALL_CARDS and arena.at <= hold.at < hold.end <= arena.end

    # --- saying -----------------------------------------------------------------------------------------------

    @contextmanager
    def saying(self, name: int, word: HoldState) -> Iterator[None]:
        """Say to the members of a group that its room is SHORT or SEARCHED for, for as long as the block lasts."""
        with self._lock:
            line = self._free_line()
            self._post(line, Hold(name, 0, 0, ALL_CARDS, word))
        try:
            yield
        finally:
            with self._lock:
                self._post(line, None)

    # --- giving back ------------------------------------------------------------------------------------------

    def release(self, name: int) -> None:
        """Let the room of this name go, if this rank holds it: nothing that this rank wrote there may arrive later."""
        with self._lock:
            self.ledger.memory.fence()  # lines of the room's board may be on their way
            for line in [line for line, hold in self._mine.items() if hold.name == name]:
                self._post(line, None)

    def later(self, give_back: Callable[[], None]) -> None:
        """Have ``give_back`` called when this rank next takes or gives back room: for finalizers."""
        self._dropped.append(give_back)

    def collect(self) -> None:
        with self._lock:
            for _ in range(len(self._dropped)):  # some come back later
                self._dropped.popleft()()

    def search(self) -> None:
        """Find what was dropped and is in reference cycles, as communicators are, and give it back.

        Python finds it in its own time, or never where a program turned collection off.
        """
        with _SEARCH:
            gc.collect()
        self.collect()

    @property
    def held(self) -> list[Hold]:
        """The rooms that this rank holds, in the order of its lines."""
        with self._lock:
            return [self._mine[line] for line in sorted(self._mine)]

    def free_bytes(self, arena: Arena) -> int:
        """Return how many bytes of ``arena`` no rank holds now, on every card."""
        with self._lock:
            self.collect()
            self._look()
            return sum(end - begin for begin, end in self._free(arena, ALL_CARDS))

    # --- lines ------------------------------------------------------------------------------------------------

    def _free_line(self) -> int:
        line = next(line for line in range(FIRST_HOLD, self.ledger.lines + 1) if line not in self._mine)
        if line == self.ledger.lines:
            raise ArgumentError(
                f"rank {self.ledger.rank} holds {len(self._mine)} rooms of the pool, the most that it can: "
                f"close unused communicators"
            )
        return line

    def _post(self, line: int, hold: Hold | None) -> Hold:
        if line >= self._identity.lines:  # first, so that no rank overlooks the line
            self._identity = self._identity._replace(lines=line + 1)
            self.ledger.identify(self._identity)
        self.ledger.post(line, hold)
        if hold is None:
            return self._mine.pop(line)
        self._mine[line] = hold
        return hold

    def _look(self) -> list[Hold]:
        others = (rank for rank in range(self._ranks) if rank != self.ledger.rank)
        self._seen = [hold for rank in others for hold in self.ledger.holds(rank)]
        return self._seen

    def _look_again(self, attempt: int) -> None:
        """Look after a while, so that of ranks that claim the same one is first."""
        if attempt:
            time.sleep(random.uniform(0, attempt * PAUSE_S))
        self._look()

    def _free(self, arena: Arena, card: int) -> Holes:
        """Return what is free of the arena, as far as this rank knows; a claim finds out."""
        whole = Hold(0, arena.at, arena.end, card, HoldState.CLAIMED)
        taken = sorted((hold.at, hold.end) for hold in (*self._mine.values(), *self._seen) if hold.overlaps(whole))
        holes, offset = [], arena.at
        for begin, end in taken:
            if begin > offset:
                holes.append((offset, begin))
            offset = max(offset, round_up(end, ARENA_ALIGN_BYTES))  # a line may say anything
        return [*holes, (offset, arena.end)] if offset < arena.end else holes


def _largest(free: Holes) -> int:
    return max((end - begin for begin, end in free), default=0)


def _exhausted(nbytes: int, free: Holes, arena: Arena) -> str:
    return (
        f"the pool has no room for {nbytes} bytes on every card: of {arena.nbytes} bytes "
        f"{sum(end - begin for begin, end in free)} are free, {_largest(free)} of them contiguous; close "
        f"communicators, or give the pool larger cards"
    )
