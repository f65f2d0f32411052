"""Whatever lies in a pool, sealed and all: who reads it gets a sentence, or goes on, and every number is bounded.

A line's seal says that it arrived as it was written. These lines were written by something that is not sane: every
field of every line takes values at its ends, and all that reads such a line runs on it.
"""

import itertools
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.communicator.calls import revocation
from collectives.communicator.membership.shrink import Agreement, Roster
from cxlemu.capacity import PoolManager
from cxlemu.capacity.lines import (
    HEADER_OFFSET,
    SLOTS,
    AccountLine,
    GrantLine,
    GrantState,
    Header,
    Lines,
    TableChange,
    UseLine,
    tenant_bytes,
)
from cxlemu.clock import Clock
from cxlemu.errors import CxlemuError, RunError
from cxlemu.memory import MemorySpec
from cxlemu.memory.damage import Damage
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import Bytes
from cxlemu.pool import board as boards
from cxlemu.pool import superblock
from cxlemu.pool.arena import Arena
from cxlemu.pool.board import Board, Cause, Notice, Stage, Vote
from cxlemu.pool.ledger import FIRST_HOLD, Hold, HoldState, Identity, Ledger
from cxlemu.pool.owner import Owner
from cxlemu.pool.pool import Pool
from cxlemu.pool.rooms import NoRoomError, Rooms
from cxlemu.pool.session import Session
from cxlemu.pool.session_area import Answer, Checkin, Line, Record, SessionArea, Status
from cxlemu.pool.superblock import Geometry, Superblock
from tests.helpers.tiers import examples

RANKS, SESSION_AT, DEADLINE_S = 3, 4096, 1.0
ENDS = (0, 1, 2, 63, 64, 4095, 4096, 2**16, 2**31, 2**46 - 1, 2**46, 2**47, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
BLOCK, CARD_BYTES = 64 << 10, 4 << 20


class Ticking(Clock):
    """Time that goes on by looks alone."""

    shortest_sleep_s = 0.0

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        self._now += 0.001
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def numbers(bits: int) -> st.SearchStrategy[int]:
    ends = sorted({end for end in ENDS if end < 1 << bits} | {(1 << bits) - 1})
    return st.sampled_from(ends) | st.integers(0, (1 << bits) - 1)


U16, U32, U64, DIGEST = numbers(16), numbers(32), numbers(64), st.sampled_from([b"same".ljust(16, b"\0"), bytes(16)])
NAMES = st.sampled_from([b"red", b"blue", b"", b"a:b", b"\xff\xfe", b"\x1b[2J", b"x" * 24, b"r\0d"]) | st.binary(
    max_size=24
)


# --- the session's lines ---------------------------------------------------------------------------------------------

SESSION = st.sampled_from([7, 8, 2**64 - 1])
SESSION_LINES = (
    st.tuples(st.builds(Record, SESSION, U32, U32, U32, DIGEST), st.just(0))
    | st.tuples(st.builds(Checkin, SESSION, U64, U64, U32, U32, U32, DIGEST), st.integers(0, RANKS - 1))
    | st.tuples(st.builds(Answer, SESSION, U64, U64, U32, U32), st.integers(0, RANKS - 1))
    | st.tuples(
        st.builds(Status, SESSION, U64, U64, U32, U16, numbers(8), st.binary(max_size=24)), st.integers(0, RANKS - 1)
    )
)


@examples(60)
@given(st.lists(SESSION_LINES, max_size=4), st.integers(0, RANKS - 1))
def test_a_session_survives_every_line(lines: list[tuple[Line, int]], rank: int) -> None:
    card = np.zeros(SESSION_AT + 4096, np.uint8)
    memory = DirectMemory([card])
    area = SessionArea(memory, SESSION_AT)
    begun = False

    def wait(attempt: int) -> None:
        nonlocal begun
        if not begun:  # after this rank has written its own
            begun = True
            for line, its in lines:
                area.store(line, its)

    session = Session(
        area, rank=rank, ranks=RANKS, host=0, fingerprint=b"same".ljust(16, b"\0"), wait=wait, clock=Ticking()
    )
    for step in (session.gather if rank == 0 else session.join, session.barrier):
        with suppress(RunError) as _:
            step(DEADLINE_S)
    session.id = 7
    for its in range(RANKS):
        status = session.peek(its)
        assert status is None or status.text.isprintable()
        session.checkin(its)
    session.departed(range(RANKS))
    session.silent(range(RANKS), 0.1)


# --- the board -------------------------------------------------------------------------------------------------------


@examples(80)
@given(
    st.lists(st.tuples(st.integers(0, RANKS - 1), U16, U16, st.lists(U64, min_size=5, max_size=5)), max_size=3),
    st.lists(st.tuples(st.integers(0, RANKS - 1), U32, U16, U64, U64, U32, U64, U64, U32), max_size=3),
    st.integers(0, RANKS - 1),
)
def test_revocation_and_agreement_survive_every_line(
    notices: list[tuple[int, int, int, list[int]]], votes: list[tuple[int, ...]], rank: int
) -> None:
    card = np.zeros(1 << 20, np.uint8)
    memory, board_at = DirectMemory([card]), 8192
    clock = Ticking()
    session = Session(
        SessionArea(memory, SESSION_AT), rank=rank, ranks=RANKS, host=0, fingerprint=bytes(16), wait=lambda _: None,
        clock=clock,
    )  # fmt: skip
    session.id = 7
    board = session.board(board_at, RANKS, session.id)
    for its, cause, count, told in notices:
        fields = boards._NOTICE.pack(7, cause % 12, count % 8, *told)
        board._store(3 * its, boards._NOTICE_MAGIC, fields)
    for its in range(RANKS):
        board.vote(its, Vote(Stage.READY))
    for its, number, stage, *others in votes:
        board._store(3 * its + 1 + number % 2, boards._VOTE_MAGIC, boards._VOTE.pack(7, number, stage % 6, *others))
    if (notice := revocation.poll(board)) is not None:
        error = revocation.as_error(*notice, "rank 0 waits")
        assert str(error) and set(getattr(error, "ranks", ())) <= set(range(RANKS))
    assert revocation.lost(board) <= set(range(RANKS))
    arena = Arena(65536, card.size)
    ledger = Ledger(session.memory, 32768, 32, session.id, rank)
    agreement = Agreement(
        session,
        board,
        rank,
        tuple(range(RANKS)),
        Rooms(ledger, RANKS, session.id, Identity(FIRST_HOLD, 1, 2)),
        arena,
        lambda ranks, largest: largest // 8 // 4096 * 4096,
        deadline_s=0.05,
    )
    with suppress(RunError):
        roster: Roster = agreement.reach(frozenset())
        assert rank in roster.ranks and arena.at <= roster.room.end <= card.size


@examples(60)
@given(st.lists(st.tuples(U64, U64, U64, numbers(31), st.sampled_from(HoldState)), max_size=4), U32)
def test_rooms_survive_every_ledger(lines: list[tuple[int, int, int, int, HoldState]], used: int) -> None:
    card = np.zeros(1 << 20, np.uint8)
    theirs, mine = (Ledger(DirectMemory([card]), 4096, 8, 7, rank) for rank in (0, 1))
    theirs.identify(Identity(used, 1, 2))
    for line, (name, at, end, of, state) in enumerate(lines, FIRST_HOLD):
        theirs.post(line, Hold(name, at, end, of, state))
    rooms, arena = Rooms(mine, 2, 7, Identity(FIRST_HOLD, 1, 2)), Arena(65536, card.size)
    for name, *_ in lines:
        found = rooms.find(0, name)
        assert found is None or found.end >= found.at
        assert found is None or not rooms.fits(found, arena) or arena.at <= found.at < found.end <= arena.end
    with suppress(NoRoomError):
        room = rooms.claim(9, arena, lambda largest: min(largest, 8192))
        assert rooms.fits(room, arena)


# --- the capacity table ----------------------------------------------------------------------------------------------


class Lockable(Pool):
    """A pool in this process's memory, whose managers have a file to lock."""

    path: Path

    @property
    def lock_path(self) -> Path:
        return self.path


def a_pool(path: Path) -> Pool:
    geometry = Geometry(2, 0, 1, CARD_BYTES, 4096)
    cards: list[Bytes] = [np.zeros(CARD_BYTES, np.uint8) for _ in range(2)]
    pool = Lockable("untrusted", Superblock.new(geometry, Owner.current()), cards)
    pool.path = path
    return pool


@pytest.fixture(scope="module")
def lock_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lock") / "lock"
    path.touch()
    return path


TABLE_LINES: Any = (
    st.tuples(
        st.just(HEADER_OFFSET), st.just(0),
        st.builds(Header, U64, U64, st.just(BLOCK) | U64, st.just(16 * BLOCK) | U64, st.just(32 * BLOCK) | U64, U64,
                  st.just(8) | U32, st.just(4096) | U32),
    )
    | st.tuples(
        st.just(-1), st.integers(0, SLOTS - 1),
        st.builds(GrantLine, U64, st.just(20 * BLOCK) | U64, st.just(BLOCK) | U64, st.integers(0, 3) | U64,
                  NAMES.map(lambda name: name.ljust(24, b"\0"))),
    )
    | st.tuples(
        st.just(-2), st.integers(0, SLOTS - 1),
        st.builds(AccountLine, NAMES.map(lambda name: name.ljust(24, b"\0")), U64, U64, U64, U64),
    )
    | st.tuples(
        st.just(-3), st.integers(0, 7),
        st.builds(UseLine, st.integers(1, 3) | U64, U32, U32, U32, U64, U64, st.binary(min_size=16, max_size=16)),
    )
)  # fmt: skip


@examples(120)
@given(lines=st.lists(TABLE_LINES, max_size=4))
def test_managers_and_tenants_survive_every_line(lines: list[tuple[int, int, Any]], lock_path: Path) -> None:
    pool = a_pool(lock_path)
    manager = PoolManager.begin(pool, BLOCK, ranks=8)
    manager.add("red", BLOCK)
    table = manager.table
    for kind, index, line in lines:
        if kind == HEADER_OFFSET:
            Lines(manager.memory, pool.uuid).store(HEADER_OFFSET, line)
        elif kind == -1:
            table.store_grant(index, line)
        elif kind == -2:
            table.store_account(index, line)
        else:
            table.store_use(1, index, line)
    steps: list[Callable[[], Any]] = [
        lambda: PoolManager.open(pool),
        lambda: manager.add("blue", BLOCK),
        lambda: manager.force("red"),
        lambda: manager.add("red", 2 * BLOCK),
        lambda: [manager.account(its.tenant) for its in manager.accounts()],
        lambda: [manager.users_of(entry.grant) for entry in manager.entries()],
    ]
    for step in steps:
        with suppress(CxlemuError):
            step()
    with suppress(CxlemuError):
        again = PoolManager.open(pool)
        for entry in again.entries():
            assert again.first_byte <= entry.grant.at < entry.grant.end <= again.card_bytes
            assert entry.grant.tenant.isprintable() and ":" not in entry.grant.tenant


@pytest.mark.parametrize("field", Header._fields)
def test_the_largest_numbers_of_a_header_are_a_sentence(field: str, lock_path: Path) -> None:
    pool = a_pool(lock_path)
    manager = PoolManager.begin(pool, BLOCK, ranks=8)
    most = 2**32 - 1 if field in ("ranks", "page_bytes") else 2**64 - 1
    header = manager.table.header()._replace(**{field: most})
    Lines(manager.memory, pool.uuid).store(HEADER_OFFSET, header)
    with pytest.raises(CxlemuError, match="damaged"):
        manager.add("red", 1)


def test_a_grant_that_is_there_twice_is_damage(lock_path: Path) -> None:
    pool = a_pool(lock_path)
    manager = PoolManager.begin(pool, BLOCK, ranks=8)
    red = manager.add("red", BLOCK)
    line = GrantLine(red.number, red.at + BLOCK, BLOCK, GrantState.HELD, tenant_bytes("red"))
    manager.table.store_grant(9, line)
    with pytest.raises(CxlemuError, match="it has a grant 1 twice"):
        PoolManager.open(pool)


def test_numbers_of_grants_end_with_a_sentence(lock_path: Path) -> None:
    pool = a_pool(lock_path)
    manager = PoolManager.begin(pool, BLOCK, ranks=8)
    manager.table.store_header(manager.table.header()._replace(given=2**62 - 1, epoch=2**62))
    assert manager.add("red", BLOCK).number == 2**62
    with pytest.raises(CxlemuError, match="used all grant numbers"):
        manager.add("red", BLOCK)
    assert PoolManager.open(pool).entries() == manager.entries()
    assert manager.table.header().change == TableChange.NOTHING


# --- the superblock, and the page that says what is broken -----------------------------------------------------------


@given(st.tuples(U64, U32, U32, U32, U32, U64, U32, U32, U32, U64, U64, U64))
def test_a_superblock_is_refused_or_can_be(fields: tuple[int, ...]) -> None:
    pool, card, cards, hosts, ranks, card_bytes, interleave, uid, pid, ticks, namespace, created = fields
    body = superblock._BODY.pack(
        pool.to_bytes(16, "little"), card, cards, hosts, ranks, card_bytes, interleave % 2**64, uid, pid, ticks,
        namespace, bytes(16), created,
    )  # fmt: skip
    packed = superblock._HEAD.pack(superblock.MAGIC, superblock.VERSION) + body
    packed += struct.pack("<I", zlib.crc32(packed))
    with suppress(CxlemuError):
        found = superblock.parse(packed, "a card")
        assert found.geometry.flaw() is None and found.card < found.geometry.cards
        assert found.owner.state() in ("alive", "dead", "unknown")


@given(st.lists(st.tuples(st.integers(0, 62), U64), max_size=5))
def test_a_page_of_damage_names_only_what_can_break(words: list[tuple[int, int]]) -> None:
    damage = Damage.none()
    damage.arm()
    for entry, word in words:
        damage.page.view("<u8")[1 + entry] = word
    for host, card in itertools.product(range(2), range(2)):
        damage.cut_off(host, card)
        damage.poisoned(card, 0, 8)
    damage.overwritten(0, 0, np.ones(8, np.bool_))


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("count", range(6))
def test_a_notice_with_the_wrong_numbers_is_none(cause: Cause, count: int) -> None:
    card = np.zeros(boards.board_bytes(2), np.uint8)
    board = Board(MemorySpec("shm").open([card], host_cache=None, host=0, rank=0), 0, 7, 2)
    board.post(0, Notice(cause, (2**64 - 1,) * count))
    for reporter, notice in board.notices().items():
        assert str(revocation.as_error(reporter, notice, "rank 1 waits"))
        assert cause not in (Cause.POISON, Cause.CARD_LOST, Cause.LINK_DOWN, Cause.INTEGRITY)
        assert cause not in (Cause.PEER_LOST, Cause.MISMATCH) or notice.numbers == ()  # there are no such ranks
