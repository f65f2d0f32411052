"""What hosts agree on, in any order of their steps: delays, wrong suspicions and deaths at every one of them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from collectives.communicator.calls import revocation
from collectives.communicator.membership import opening
from cxlemu.capacity import PoolManager
from cxlemu.capacity.lease import Lease
from cxlemu.capacity.lines import GrantState
from cxlemu.capacity.manager import Grant
from cxlemu.capacity.table import Table
from cxlemu.capacity.tenancy import Tenancy
from cxlemu.capacity.tenant_pool import TenantPool
from cxlemu.errors import AccessError, ArgumentError, CapacityError, PoolError, RevokedError, RunError
from cxlemu.memory.protocol import Bytes
from cxlemu.pool.arena import Arena
from cxlemu.pool.ledger import FIRST_HOLD, Hold, HoldState, Identity, Ledger
from cxlemu.pool.rooms import NoRoomError, Rooms
from cxlemu.pool.session import Session
from cxlemu.pool.session_area import SessionArea
from cxlemu.pool.shm import ShmPool
from cxlemu.world import RankContext
from tests.helpers.baton import Baton, Killed
from tests.helpers.pool_helpers import own_name
from tests.helpers.tiers import seeds

HELD = HoldState.HELD
PAGE, LINES, SESSION = 4096, 16, 7
ARENA = Arena(16 * PAGE, 32 * PAGE)


class Owners:
    """Who owns which page now; several holders of one room are one owner."""

    def __init__(self) -> None:
        self.holders: dict[int, tuple[int, set[int]]] = {}  # by page: the room's name, and its ranks

    def enter(self, rank: int, hold: Hold) -> None:
        for page in range(hold.at, hold.end, PAGE):
            name, ranks = self.holders.setdefault(page, (hold.name, set()))
            assert name == hold.name, f"rank {rank} holds page {page} in room {hold.name}, ranks {ranks} in {name}"
            ranks.add(rank)

    def leave(self, rank: int, hold: Hold) -> None:
        for page in range(hold.at, hold.end, PAGE):
            self.holders[page][1].discard(rank)
            if not self.holders[page][1]:
                del self.holders[page]


def live_in_rooms(baton: Baton, rooms: Rooms, rank: int, ranks: int, owners: Owners) -> None:
    """Claim rooms, join those of others, use them and let them go."""
    mine: list[Hold] = []
    for number in range(8):
        if mine and baton.chance.random() < 0.5:
            hold = mine.pop(baton.chance.randrange(len(mine)))
            owners.leave(rank, hold)
            rooms.release(hold.name)
        leader = baton.chance.randrange(ranks)
        if leader == rank:
            try:
                size = baton.chance.randint(2, 8)
                hold = rooms.claim(1000 * rank + number + 1, ARENA, lambda largest, n=size: n * PAGE)
            except NoRoomError:
                continue
        else:
            its = [hold for hold in rooms.ledger.holds(leader) if hold.name // 1000 == leader and hold.state == HELD]
            if not its or any(hold.name == its[0].name for hold in mine) or not rooms.join(leader, its[0]):
                continue
            hold = its[0]
        owners.enter(rank, hold)
        mine.append(hold)
    for hold in mine:
        owners.leave(rank, hold)
        rooms.release(hold.name)


@pytest.mark.deep(rows=lambda ranks: ranks > 2)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_no_two_ranks_hold_the_same_bytes(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank held that is dead stays held. Red where a torn line hides what its rank holds."""
    monkeypatch.setattr("cxlemu.pool.rooms.time.sleep", lambda seconds: None)
    for seed in seeds(3000):
        baton, owners = Baton(seed, deaths=0.001), Owners()
        cards = [np.zeros(ARENA.end, np.uint8)]
        opened = [
            Rooms(Ledger(baton.memory(cards), PAGE, LINES, SESSION, rank), ranks, SESSION, Identity(FIRST_HOLD, 1, 2))
            for rank in range(ranks)
        ]
        became = baton.run(*(partial(live_in_rooms, baton, opened[rank], rank, ranks, owners) for rank in range(ranks)))
        assert all(end is None or isinstance(end, Killed) for end in became), (seed, became)


# --- capacity that is lent --------------------------------------------------------------------------------------------

BLOCK = 64 << 10


class Inside:
    """Which ranks are in which grant, as they know themselves."""

    def __init__(self) -> None:
        self.ranks: defaultdict[int, set[int]] = defaultdict(set)
        self.managed = 0  # how many managers have come to their ends

    def wiped(self, grant: Grant) -> None:
        assert not self.ranks[grant.number], f"grant {grant.number} is given back, ranks {self.ranks} are in it"


def manage(baton: Baton, pool: ShmPool, inside: Inside, turn: int) -> None:
    """Lend and take away; the next manager goes on when this one has ended or died."""
    try:
        while inside.managed < turn:
            baton.step()
        manager = PoolManager.open(pool)
        for _ in range(12):
            tenant = baton.chance.choice(["red", "blue"])
            try:
                match baton.chance.randrange(4):
                    case 0 | 1:
                        manager.add(tenant, BLOCK * baton.chance.randint(1, 8))
                    case 2 if its := manager.grants(tenant):
                        manager.release(its[0])
                    case _:
                        manager.force(tenant)
            except (CapacityError, AccessError):
                pass
            baton.step()
    finally:
        inside.managed += 1


def come_and_go(baton: Baton, pool: ShmPool, inside: Inside, me: int, tenant: str, rank: int) -> None:
    table = Table.of(pool, pool.line_memory())
    while inside.managed < 2:
        baton.step()
        its = [(slot, e) for slot, e in table.entries().items() if e.grant.tenant == tenant and e.state == HELD_GRANT]
        if not its:
            continue
        slot, entry = baton.chance.choice(its)
        lease = Lease(pool.name, slot, entry.grant, len(pool.cards), pool.interleave_bytes)
        tenancy = Tenancy(TenantPool(pool, lease), rank)
        try:
            tenancy.enter()
        except AccessError:
            continue
        inside.ranks[entry.grant.number].add(me)
        for _ in range(baton.chance.randrange(20)):
            baton.step()
        inside.ranks[entry.grant.number].discard(me)
        tenancy.leave(pool.line_memory(tenancy._pool.cards))


HELD_GRANT = GrantState.HELD


@pytest.mark.deep(rows=lambda locks: not locks)
@pytest.mark.parametrize(("slots", "locks"), [(2, True), (32, False)])
def test_no_grant_is_given_back_while_a_rank_is_in_it(slots: int, locks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one machine whatever slot is lent again; between machines, without ``locks``, as long as no slot is."""
    if not locks:
        monkeypatch.setattr("cxlemu.capacity.pool_manager.is_held_at", lambda path, at: False)
    for module in ("lines", "table", "pool_manager"):
        monkeypatch.setattr(f"cxlemu.capacity.{module}.SLOTS", slots)
    monkeypatch.setattr(Tenancy, "_keep_watch", lambda self: None)
    sizes = {"cards": 1, "card_bytes": 1 << 20, "interleave_bytes": 4096, "hosts": 0, "max_ranks": 1}
    for seed in seeds(200):
        baton, inside = Baton(seed, stops=0.1, deaths=0.0005), Inside()
        clock = SimpleNamespace(monotonic=baton.now, sleep=lambda seconds, b=baton: b.step())
        monkeypatch.setattr("cxlemu.capacity.pool_manager.time", clock)

        def line_memory(
            pool: ShmPool, cards: Sequence[Bytes] | None = None, *, writable: bool = True, b: Baton = baton
        ):
            return b.memory(pool.cards if cards is None else cards, writable=writable)

        monkeypatch.setattr(ShmPool, "line_memory", line_memory)
        monkeypatch.setattr(PoolManager, "_wipe", lambda self, grant, i=inside: i.wiped(grant))
        with own_name() as name, ShmPool.create(name, **sizes) as pool:
            PoolManager.begin(pool, BLOCK, ranks=2)
            became = baton.run(
                *(partial(manage, baton, pool, inside, turn) for turn in range(2)),
                *(
                    partial(come_and_go, baton, pool, inside, me, *who)
                    for me, who in enumerate([("red", 0), ("red", 1), ("blue", 0)])
                ),
            )
        died = isinstance(became[0], Killed) or isinstance(became[1], Killed)  # maybe within a line, which stays torn
        fine = (Killed, PoolError) if died else Killed
        assert all(end is None or isinstance(end, fine) for end in became), (seed, became)


# --- sessions ---------------------------------------------------------------------------------------------------------

SESSION_AREA: dict[str, Any] = {"session_offset": 0, "max_ranks": 4, "fingerprint": b"same"}


class Events:
    """What every process of every run did: sessions in which it was accepted, and barriers that it entered."""

    def __init__(self) -> None:
        self.opened: list[Session] = []
        self.entered: defaultdict[tuple[int, int], set[int]] = defaultdict(set)  # (session, barrier): ranks


def meet(baton: Baton, cards: list[Bytes], rank: int, ranks: int, events: Events) -> None:
    """Open a session, three times at most, and pass barriers in it."""
    for _ in range(3):
        try:
            session = Session.open(
                baton.memory(cards),
                rank=rank,
                ranks=ranks,
                deadline_s=0.5,
                wait=baton.step,
                clock=baton,
                **SESSION_AREA,
            )
            break
        except RunError:
            continue
    else:
        return
    events.opened.append(session)
    with suppress(RunError):
        for number in range(3):
            events.entered[session.id, number].add(rank)
            session.barrier(0.5)
            assert len(events.entered[session.id, number]) == ranks, f"rank {rank} passed barrier {number} alone"
        session.leave()


@pytest.mark.deep(rows=lambda ranks, runs: (ranks, runs) not in ((2, 2), (3, 1)))
@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("ranks", [2, 3])
def test_who_opened_a_session_opened_the_same_one_with_all_ranks(runs: int, ranks: int) -> None:
    """Ranks of one run that die and come late, or two runs at once in one pool: then at most one passes a barrier."""
    for seed in seeds(500):
        baton, events = Baton(seed, leaps=0.002, deaths=0.001), Events()
        cards = [np.zeros(4096, np.uint8)]
        became = baton.run(
            *(partial(meet, baton, cards, rank, ranks, events) for rank in range(ranks) for _ in range(runs))
        )
        assert all(end is None or isinstance(end, Killed) for end in became), (seed, became)
        roots = {session.id: session for session in events.opened if session.rank == 0}
        for session in events.opened:
            if session.rank and (root := roots.get(session.id)) is not None:
                assert root._nonces[session.rank] == session._nonce, f"seed {seed}: rank 0 took another process for it"


# --- communicators ----------------------------------------------------------------------------------------------------


class Suspicion:
    """Signs of life that are wrong now and then, differently on every rank: a LifeSigns."""

    def __init__(self, baton: Baton) -> None:
        self._baton = baton

    def ended(self, ranks: Iterable[int]) -> dict[int, int]:
        return {rank: 1 for rank in ranks if self._baton.chance.random() < 0.003}

    def watched(self, rank: int) -> bool:
        return True

    def pulse(self, rank: int) -> int:
        return 0

    def stop(self) -> None: ...


class Room:
    """What is known of one communicator's room: who was ready in it, and whether any rank saw that it was given up."""

    def __init__(self) -> None:
        self.ready: set[int] = set()
        self.seen = False


def live_in_communicators(
    baton: Baton, rooms: Rooms, session: Session, ranks: int, owners: Owners, made: defaultdict[tuple[int, int], Room]
) -> None:
    """Open groups with others as communicators do, give some up, look whether others did, and leave."""
    rank = session.rank
    context = cast(
        RankContext,
        SimpleNamespace(rank=rank, rooms=rooms, session=session, arena=ARENA, lost_after_s=1.0, stopped_after_s=inf),
    )
    for members in (tuple(range(ranks)), (ranks - 1, 0), (0, ranks - 1), tuple(range(ranks))):
        if rank not in members:
            continue
        name = rooms.name(members, "")
        try:
            room = opening.find_room(context, members, name, lambda largest: 6 * PAGE, 2.0)
        except (RunError, ArgumentError):
            continue
        owners.enter(rank, room)
        board, its = session.board(room.at, len(members), name), made[name, room.at]
        its.ready.add(rank)
        try:
            opening.await_ready(context, board, members, 2.0)
            assert its.ready >= set(members), f"rank {rank} begins with {its.ready} of {members}"
            for _ in range(baton.chance.randrange(6)):
                seen = its.seen
                found = revocation.poll(board)
                assert found is not None or not seen, f"rank {rank} does not see what another one saw"
                its.seen = its.seen or found is not None
            if baton.chance.random() < 0.3:
                raise RevokedError("enough")
        except RunError as error:
            revocation.publish(board, session, members.index(rank), error)
        owners.leave(rank, room)
        rooms.release(name)
    session.leave()


@pytest.mark.deep(rows=lambda ranks: ranks > 2)
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_communicator_begins_when_all_are_ready_and_is_given_up_for_all(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of its board arrives when its room is another one's."""
    monkeypatch.setattr("cxlemu.pool.rooms.time.sleep", lambda seconds: None)
    monkeypatch.setattr("cxlemu.pool.rooms.gc.collect", lambda: 0)
    for seed in seeds(500):
        baton, owners = Baton(seed, deaths=0.0003, leaps=0.001), Owners()
        made: defaultdict[tuple[int, int], Room] = defaultdict(Room)
        cards = [np.zeros(ARENA.end, np.uint8)]
        memories = [baton.memory(cards) for _ in range(ranks)]
        sessions = [
            Session(
                SessionArea(memory, 0),
                rank=rank,
                ranks=ranks,
                host=rank,
                fingerprint=bytes(16),
                wait=baton.step,
                clock=baton,
            )
            for rank, memory in enumerate(memories)
        ]
        for session in sessions:
            session.id, session.life = SESSION, Suspicion(baton)
        opened = [
            Rooms(Ledger(memory, 4 * PAGE, LINES, SESSION, rank), ranks, SESSION, Identity(FIRST_HOLD, 1, 2))
            for rank, memory in enumerate(memories)
        ]

        late: list[tuple[int, int]] = []

        def arrived(offset: int, payload: bytes, o: Owners = owners, late: list[tuple[int, int]] = late) -> None:
            name = int.from_bytes(payload[:8], "little")  # of a board's line
            if offset >= ARENA.at and o.holders.get(offset // PAGE * PAGE, (name,))[0] != name:
                late.append((offset, name))

        baton.arrived = arrived
        became = baton.run(
            *(
                partial(live_in_communicators, baton, opened[rank], sessions[rank], ranks, owners, made)
                for rank in range(ranks)
            )
        )
        assert all(end is None or isinstance(end, Killed) for end in became), (seed, became)
        assert not late, (seed, late)
