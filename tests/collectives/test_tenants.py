"""Worlds of tenants in one pool: what was lent reaches them, and they reach nothing else; between processes as well."""

import ctypes
import errno
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.helpers.tenant_programs as programs
from collectives.algorithms.catalog import plan_of, recipe
from collectives.communicator.communicator import Communicator
from cxlemu.capacity import FabricManager, PoolManager
from cxlemu.capacity.lease import Tenant, lease_for
from cxlemu.capacity.lines import (
    HEADER_OFFSET,
    SLOTS,
    GrantLine,
    GrantState,
    Header,
    Lines,
    TableChange,
    UseLine,
    page_bytes_for,
    tenant_bytes,
    uses_range,
)
from cxlemu.capacity.manager import Grant
from cxlemu.capacity.table import Table, header_of
from cxlemu.capacity.tenancy import Tenancy
from cxlemu.capacity.tenant_pool import TenantPool
from cxlemu.engines.native import NativeEngine
from cxlemu.engines.pace import Pace
from cxlemu.engines.streams import Binding, Running
from cxlemu.errors import AccessError, ArgumentError, CapacityError, CxlemuError, PlanError, PoolError
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.adversary import Adversary
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.memory.rates import DEFAULT_RATES
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.plan import Call
from cxlemu.pool.dax import DaxPool
from cxlemu.pool.life import LifeLock
from cxlemu.pool.owner import NOBODY, Owner
from cxlemu.pool.pool import Pool
from cxlemu.pool.session_area import COUNT_MAX
from cxlemu.pool.shm import ShmPool
from cxlemu.rounding import round_up
from cxlemu.world import RankContext, from_environment, launch
from tests.helpers.card_files import MIB, blank_cards, cxlemu, device_flags
from tests.helpers.pool_helpers import own_name
from tests.helpers.tiers import PATIENT_S, examples

BLOCK, CARDS = 64 << 10, 2
SHM = MemorySpec("shm")


@pytest.fixture
def pool() -> Iterator[ShmPool]:
    with own_name() as name, ShmPool.create(name, **_SIZES) as made:
        yield made


_SIZES: dict[str, Any] = {"cards": CARDS, "card_bytes": 16 * MIB, "interleave_bytes": 4096, "hosts": 0, "max_ranks": 1}


@pytest.fixture
def manager(pool: ShmPool) -> PoolManager:
    return PoolManager.begin(pool, BLOCK, ranks=8)


def again(manager: PoolManager) -> PoolManager:
    """What another process would find."""
    return PoolManager.open(manager.pool)


def books(manager: PoolManager) -> tuple[Any, ...]:
    return manager.entries(), manager.accounts(), manager.free_bytes, manager.largest_bytes


# --- the table -------------------------------------------------------------------------------------------------------


def test_another_manager_finds_everything_and_goes_on(manager: PoolManager) -> None:
    red, blue = manager.add("red", MIB), manager.add("blue", 1)
    assert (red.number, red.nbytes, blue.nbytes) == (1, MIB, BLOCK)
    other = again(manager)
    assert books(other) == books(manager)
    other.release(red)
    green = other.add("green", 2 * BLOCK)
    assert (green.number, green.at) == (3, red.at)
    manager.refresh()
    assert books(manager) == books(other)
    assert manager.account("red").released_bytes == MIB
    with pytest.raises(AccessError, match="tenant red no longer holds grant 1"):
        manager.release(red)


def test_too_much_and_too_scattered_are_refused_and_change_nothing(manager: PoolManager) -> None:
    third = manager.free_bytes // 3 // BLOCK * BLOCK
    grants = [manager.add(name, third) for name in ("red", "blue", "green")]
    manager.release(grants[0])
    manager.release(grants[2])
    before = books(manager)
    with pytest.raises(CapacityError, match=r"lie in 2 pieces, the largest of .* release the grants between them"):
        manager.add("red", third + manager.free_bytes // 2)
    with pytest.raises(CapacityError, match=r"are free of .*: the rest is lent: blue"):
        manager.add("red", 1 << 30)
    assert books(manager) == books(again(manager)) == before


def test_the_table_has_so_many_lines(manager: PoolManager) -> None:
    for number in range(SLOTS):
        manager.add(f"t{number}", 1)
    with pytest.raises(CapacityError, match="all 64 lines of the pool's table hold grants"):
        manager.add("late", 1)
    manager.force("t5")
    assert manager.add("late", 1).number == SLOTS + 1  # t5's account makes room for it
    assert {its.tenant for its in again(manager).accounts()} == {f"t{n}" for n in range(SLOTS) if n != 5} | {"late"}


@pytest.mark.parametrize("tenant", ["", "a:b", "x" * 25, "a\nb"])
def test_names_that_do_not_fit_are_refused(manager: PoolManager, tenant: str) -> None:
    with pytest.raises(ArgumentError):
        manager.add(tenant, 1)
    assert manager.entries() == again(manager).entries() == []


class Died(BaseException):
    pass


@pytest.mark.parametrize("what", ["add", "release", "force"])
def test_a_manager_that_dies_between_any_two_lines_leaves_books_that_balance(
    pool: ShmPool, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Lines.store
    for stores in itertools.count():
        manager = PoolManager.begin(pool, BLOCK, ranks=8)
        red, _ = manager.add("red", 3 * BLOCK), manager.add("blue", BLOCK)
        left = [stores]

        def dying(lines: Lines, *arguments: Any, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Died
            store(lines, *arguments)

        change: partial[Any] = {
            "add": partial(manager.add, "red", 2 * BLOCK),
            "release": partial(manager.release, red),
            "force": partial(manager.force, "red"),
        }[what]
        with monkeypatch.context() as patch, suppress(Died):
            patch.setattr(Lines, "store", dying)
            change()
        next_one = again(manager)
        assert all(state != GrantState.RELEASING for _, state in next_one.table.entries().values())
        its = next_one.account("red")
        assert its.added_bytes == its.held_bytes + its.released_bytes + its.forced_bytes
        assert its.leaving_bytes == 0 and next_one.account("blue").held_bytes == BLOCK
        lent = sum(entry.grant.nbytes for entry in next_one.entries())
        assert lent + next_one.free_bytes == next_one.card_bytes - next_one.first_byte
        assert books(again(next_one)) == books(next_one)
        if left[0] >= 0:
            assert stores >= 4
            return


def test_nothing_of_another_pool_or_of_nobody_is_believed(pool: ShmPool, manager: PoolManager) -> None:
    manager.add("red", BLOCK)
    memory = DirectMemory(pool.cards)
    assert header_of(pool, memory) is not None
    strange = Table(memory, uuid4(), pool.data_offset, pool.card_bytes, 8)
    assert strange.entries() == {} and strange.accounts() == {}
    pool.uuid = uuid4()
    assert header_of(pool, memory) is None
    with pytest.raises(PoolError, match="this pool's capacity is not lent"):
        PoolManager.open(pool)


@examples(30)
@given(st.integers(0, 2 + SLOTS - 1), st.integers(0, LINE_BYTES - 1), st.integers(1, 255))
def test_a_damaged_line_is_no_line(line: int, byte: int, flip: int) -> None:
    with own_name() as name, ShmPool.create(name, **_SIZES) as pool:
        manager = PoolManager.begin(pool, BLOCK, ranks=8)
        red, blue = manager.add("red", BLOCK), manager.add("blue", BLOCK)
        at = HEADER_OFFSET if line == 0 else pool.data_offset + (line - 1) * LINE_BYTES
        was = pool.cards[0][at : at + LINE_BYTES].copy()
        pool.cards[0][at + byte] ^= flip
        if line == 0:
            assert header_of(pool, manager.memory) is None
        else:
            found = {entry.grant for entry in manager.table.entries().values()}
            assert found == {red, blue} - {{2: red, 3: blue}.get(line)}  # in slots 1 and 2
            if line <= SLOTS:
                with pytest.raises(PoolError, match=f"line {line - 1} of the pool's capacity table is damaged"):
                    again(manager)
        pool.cards[0][at : at + LINE_BYTES] = was
        assert books(again(manager)) == books(manager)


@pytest.mark.parametrize(
    "line",
    [
        GrantLine(9, 0, BLOCK, GrantState.HELD, tenant_bytes("evil")),  # the superblock
        GrantLine(9, 15 * MIB, 2 * MIB, GrantState.HELD, tenant_bytes("evil")),  # past the end
        GrantLine(9, 2 * MIB, 0, GrantState.HELD, tenant_bytes("evil")),
        GrantLine(9, 2 * MIB + 1, BLOCK, GrantState.HELD, tenant_bytes("evil")),
        GrantLine(9, 2**63, 2**63, GrantState.HELD, tenant_bytes("evil")),
        GrantLine(9, 2 * MIB, BLOCK, 77, tenant_bytes("evil")),
        GrantLine(0, 2 * MIB, BLOCK, GrantState.HELD, tenant_bytes("evil")),
        GrantLine(9, 2 * MIB, BLOCK, GrantState.HELD, tenant_bytes("")),
    ],
)
def test_a_sealed_line_that_cannot_be_is_no_line(manager: PoolManager, line: GrantLine) -> None:
    manager.table.store_grant(5, line)
    assert manager.table.entries() == {}
    with pytest.raises(PoolError, match="line 5 of the pool's capacity table is damaged"):
        again(manager)


@pytest.mark.parametrize(
    "change", [{"first_byte": 0}, {"end_byte": 1 << 40}, {"block_bytes": 0}, {"ranks": 1 << 20}, {"ranks": 0}]
)
def test_a_sealed_header_that_cannot_be_is_refused(manager: PoolManager, change: dict[str, int]) -> None:
    manager.table.store_header(manager.table.header()._replace(**change))
    with pytest.raises(PoolError, match="damaged"):
        again(manager)


def test_overlapping_grants_are_never_both_believed(manager: PoolManager) -> None:
    red = manager.add("red", 2 * BLOCK)
    line = GrantLine(9, red.at + BLOCK, 2 * BLOCK, GrantState.HELD, tenant_bytes("evil"))
    manager.table.store_grant(9, line)
    with pytest.raises(PoolError, match="its grant 9 overlaps an older one"):
        again(manager)


def test_a_grant_that_is_there_twice_is_never_believed(manager: PoolManager) -> None:
    red = manager.add("red", BLOCK)
    manager.table.store_grant(9, GrantLine(red.number, red.end, BLOCK, GrantState.HELD, tenant_bytes("red")))
    with pytest.raises(PoolError, match="it has a grant 1 twice"):
        again(manager)


def test_a_table_without_numbers_gives_no_grant(manager: PoolManager) -> None:
    manager.table.store_header(manager.table.header()._replace(given=COUNT_MAX))
    with pytest.raises(CapacityError, match="has used all grant numbers"):
        manager.add("red", BLOCK)


def test_in_a_grant_is_who_says_so_of_this_grant_and_may_run(manager: PoolManager, pool: ShmPool) -> None:
    red = manager.add("red", BLOCK)
    slot, owner = manager._slots[red.number], Owner.current()
    dead = replace(owner, start_ticks=owner.start_ticks + 1)
    said = [(owner, 0, True), (owner, red.number, False), (dead, red.number, True), (dead, red.number, True)]
    for rank, (who, number, inside) in enumerate(said):
        manager.table.store_use(slot, rank, UseLine.of(number, who, inside=inside))
    assert manager.users_of(red) == []
    lock = LifeLock(pool.lock_path, manager.table.life_at(slot, 3))  # it looks dead from here, and lives
    assert manager.users_of(red) == [dead]
    lock.release()
    manager.table.store_use(slot, 0, UseLine.of(red.number, owner, inside=True))
    assert manager.users_of(red) == [owner]


def test_what_is_given_back_is_zero_in_the_pool_and_not_in_a_cache(manager: PoolManager, pool: ShmPool) -> None:
    red = manager.add("red", MIB)
    for card in pool.cards:
        card[red.at : red.end] = 9
    manager.memory = ShadowMemory(HostCache.private(pool.cards))
    manager.release(red)
    assert not any(card[red.at : red.end].any() for card in pool.cards)


def test_a_rank_says_that_it_is_in_before_it_looks(pool: ShmPool, manager: PoolManager) -> None:
    memory, did = DirectMemory(pool.cards), []

    class Noted:
        def __getattr__(self, name: str) -> Any:
            did.append(name)
            return getattr(memory, name)

    table = manager.table.shown_by(Noted())  # type: ignore[arg-type]
    table.store_use(0, 0, UseLine.of(1, Owner.current(), inside=True))
    assert did == ["signal", "fence"]


def test_lines_arrive_between_hosts_that_share_no_cache(pool: ShmPool) -> None:
    """The manager on one host, a reader on another, each behind a cache, whatever nature does."""
    for seed in (None, *range(20)):
        caches = [HostCache.private(pool.cards, host=host) for host in range(2)]
        lines = pool.card_bytes // LINE_BYTES
        there, here = (
            ShadowMemory(cache)
            if seed is None
            else ShadowMemory(cache, Adversary(seed, DEFAULT_RATES, host=host, rank=host, card_lines=lines))
            for host, cache in enumerate(caches)
        )
        writer = Table(there, pool.uuid, pool.data_offset, pool.card_bytes, 8)
        reader = writer.shown_by(here)
        writer.store_header(Header(TableChange.NOTHING, 0, BLOCK, MIB, 15 * MIB, 0, 8, 4096))
        for state in (GrantState.HELD, GrantState.RELEASING, GrantState.HELD, GrantState.FORCED, GrantState.FREE):
            writer.store_grant(3, GrantLine(7, 2 * MIB, BLOCK, state, tenant_bytes("red")))
            entry = reader.entry(3)
            assert (entry.state if entry else GrantState.FREE) == state
        reader.store_use(3, 1, UseLine.of(7, Owner.current(), inside=True))
        found = writer.use(3, 1)
        assert found is not None and found.owner == Owner.current()


def test_who_comes_and_who_takes_away_never_miss_each_other(pool: ShmPool) -> None:
    """All interleavings of: say that I am in, look; take away, look who is in. Each on a host of its own."""
    orders = set(itertools.permutations("ssmm"))
    assert len(orders) == 6
    for order in orders:
        caches = [HostCache.private(pool.cards, host=host) for host in range(2)]
        manages = Table(ShadowMemory(caches[0]), pool.uuid, pool.data_offset, pool.card_bytes, 8)
        comes = manages.shown_by(ShadowMemory(caches[1]))
        owner = Owner.current()
        manages.store_grant(0, GrantLine(1, MIB, BLOCK, GrantState.HELD, tenant_bytes("red")))
        comes.store_use(0, 0, UseLine.of(1, owner, inside=False))
        comes.entry(0), manages.use(0, 0)  # old lines are in both caches
        seen: dict[str, bool] = {}

        def say(comes: Table = comes, owner: Owner = owner) -> None:
            comes.store_use(0, 0, UseLine.of(1, owner, inside=True))

        def look(comes: Table = comes, seen: dict[str, bool] = seen) -> None:
            entry = comes.entry(0)
            seen["enters"] = entry is not None and entry.state == GrantState.HELD

        def take(manages: Table = manages) -> None:
            manages.store_grant(0, GrantLine(1, MIB, BLOCK, GrantState.FORCED, tenant_bytes("red")))

        def look_who(manages: Table = manages, seen: dict[str, bool] = seen) -> None:
            line = manages.use(0, 0)
            seen["sees"] = line is not None and bool(line.inside)

        steps = {"s": iter((say, look)), "m": iter((take, look_who))}
        for who in order:
            next(steps[who])()
        assert seen["sees"] or not seen["enters"]


@examples(25)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "release", "force", "reopen"]), st.integers(0, 2), st.integers(1, 60)),
        max_size=25,
    )
)
def test_what_is_published_is_what_a_fabric_manager_counts(steps: list[tuple[str, int, int]]) -> None:
    with own_name() as name, ShmPool.create(name, **_SIZES) as pool:
        one = PoolManager.begin(pool, BLOCK, ranks=8)
        managers = [one, again(one)]
        room = {"first_byte": one.first_byte, "card_bytes": one.card_bytes}
        oracle = FabricManager(cards=CARDS, block_bytes=BLOCK, **room)
        for number, (what, tenant, blocks) in enumerate(steps):
            red = f"t{tenant}"
            its = oracle.grants(red)
            told = []
            for manager in (managers[number % 2], oracle):
                try:
                    if what == "add":
                        told.append(manager.add(red, blocks * BLOCK))
                    elif what == "release" and its:
                        manager.release(its[blocks % len(its)])
                    elif what == "force":
                        told.append(manager.force(red))
                except CapacityError as error:
                    told.append(str(error))
            assert told[0:1] == told[1:2]
            if what == "reopen":
                managers[number % 2] = again(one)
        for manager in (*managers, again(one)):
            manager.refresh()
            assert [entry.grant for entry in manager.entries()] == sorted(oracle._held.values(), key=lambda g: g.number)
            assert sorted(manager.accounts(), key=str) == sorted(oracle.accounts(), key=str)
            assert (manager.free_bytes, manager.largest_bytes) == (oracle.free_bytes, oracle.largest_bytes)


# --- rights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [SHM, MemorySpec(), MemorySpec(seed=3)], ids=["shm", "worst case", "adversary"])
def test_two_worlds_at_once_are_right_and_touch_nothing_else(
    pool: ShmPool, manager: PoolManager, memory: MemorySpec
) -> None:
    red, gap, blue = manager.add("red", 4 * MIB), manager.add("gap", MIB), manager.add("blue", 3 * MIB)
    outside = np.ones(pool.card_bytes, bool)
    outside[: manager.first_byte] = False
    for grant in (red, blue):
        outside[grant.at : grant.end] = False
    for card in pool.cards:
        card[gap.at : gap.end] = 9
    before = [card[outside].copy() for card in pool.cards]
    with ThreadPoolExecutor(2) as worlds:
        begun = [
            worlds.submit(launch, programs.sums, ranks=ranks, memory=memory, pool_name=pool.name, tenant=tenant)
            for tenant, ranks in (("red", 3), ("blue", 4))
        ]
        threes, fours = (its.result() for its in begun)
    assert threes == [(6000.0, 2.0, red.nbytes), (6000.0, 1.0, red.nbytes), (6000.0, 2.0, red.nbytes)]
    assert [row[:2] for row in fours] == [(10000.0, 2.0), (10000.0, 4.0)] * 2
    for card, was in zip(pool.cards, before, strict=True):
        assert (card[outside] == was).all()
    assert [manager.users_of(grant) for grant in (red, gap, blue)] == [[], [], []]


@pytest.mark.parametrize("room", [True, False], ids=["communicator", "plan"])
def test_what_would_touch_anothers_bytes_is_refused_before_it_runs(
    pool: ShmPool, manager: PoolManager, room: bool
) -> None:
    red, blue = manager.add("red", 4 * MIB), manager.add("blue", 4 * MIB)
    before = [card[blue.at : blue.end].copy() for card in pool.cards]
    main = partial(programs.reach, there=blue.at - red.at, room=room)
    sentence, _ = launch(main, ranks=2, memory=SHM, pool_name=pool.name, tenant="red")
    what = "open a communicator" if room else r"run \[all_reduce"
    assert re.match(f"tenant red may not {what}.* are tenant blue's$", sentence)
    for card, was in zip(pool.cards, before, strict=True):
        assert (card[blue.at : blue.end] == was).all()


def test_the_engine_has_no_other_bytes(pool: ShmPool, manager: PoolManager) -> None:
    """Without asking anybody: its bounds refuse it."""
    red, blue = manager.add("red", 4 * MIB), manager.add("blue", 4 * MIB)

    def main(context: RankContext) -> None:
        with Communicator.world(context) as comm:
            assert {card.nbytes for card in context.pool.cards} == {red.nbytes}
            call = Call("barrier", "line", comm.size, 0)
            plan, _ = plan_of(recipe("barrier", "line"), comm.layout, call, comm.rank)
            for base in (blue.at - red.at, -red.at, red.nbytes - 4096):
                running = Running(call, plan.frame, plan.part(comm.rank), Binding(comm.layout, base, 1, call.tag()))
                with pytest.raises(PlanError):
                    NativeEngine(context.pool.cards).run(running, [], deadline_s=1)
            with pytest.raises(ArgumentError):
                context.memory.write(0, red.nbytes, np.zeros(64, np.uint8))

    launch(main, ranks=2, memory=SHM, pool_name=pool.name, tenant="red")


def test_a_plan_is_held_to_its_rights_once(
    pool: ShmPool, manager: PoolManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.add("red", 4 * MIB)
    asked: list[Call] = []
    require, look = Tenancy.require, Tenancy.look
    looks = [0]

    def counted(tenancy: Tenancy, call: Call, *others: Any) -> None:
        asked.append(call)
        require(tenancy, call, *others)

    def looked(tenancy: Tenancy, **options: Any) -> None:
        looks[0] += threading.current_thread().name == "rank 0"
        look(tenancy, **options)

    monkeypatch.setattr(Tenancy, "require", counted)
    monkeypatch.setattr(Tenancy, "look", looked)

    def main(context: RankContext) -> int:
        with Communicator.world(context) as comm:
            x = np.zeros(100, np.float32)
            comm.all_reduce(x)
            asked.clear()
            before = looks[0]
            for _ in range(100):
                comm.all_reduce(x)
            return looks[0] - before

    (looked_then,) = launch(main, ranks=1, memory=SHM, pool_name=pool.name, tenant="red")
    assert asked == [] and looked_then == 0


def test_every_message_asks_whether_the_grant_is_still_there(
    pool: ShmPool, manager: PoolManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no courier carries them, which would not ask."""
    manager.add("red", 4 * MIB)
    looks: dict[str, int] = {"rank 0": 0, "rank 1": 0}
    look = Tenancy.look

    def looked(tenancy: Tenancy, **options: Any) -> None:
        if (name := threading.current_thread().name) in looks:
            looks[name] += 1
        look(tenancy, **options)

    monkeypatch.setattr(Tenancy, "look", looked)

    def main(context: RankContext) -> int:
        with Communicator.world(context) as comm:
            x = np.zeros(2, np.float32)
            before = 0
            for turn in range(120):
                if turn == 20:  # where there is no tenant, couriers carry them by now
                    before = looks[f"rank {comm.rank}"]
                (comm.send if comm.rank == turn % 2 else comm.recv)(x, 1 - comm.rank)
            return looks[f"rank {comm.rank}"] - before

    assert min(launch(main, ranks=2, memory=SHM, pool_name=pool.name, tenant="red")) >= 100


# --- while they run --------------------------------------------------------------------------------------------------

NEVER_S = 100 * PATIENT_S


def begin(
    worlds: ThreadPoolExecutor, pool: ShmPool, main: Callable[[RankContext], Any], how: str, **options: Any
) -> tuple[Future[Any], threading.Event]:
    """A world of two ranks of tenant red, and what says that one of them is at work. No deadline ends its calls."""
    ready = threading.Event()
    options = {"memory": SHM, "deadline_s": NEVER_S, "ranks": 2, "tenant": "red"} | options
    world = worlds.submit(
        partial(launch, main, pool_name=pool.name, how=how, on_message=lambda _: ready.set(), **options)
    )
    return world, ready


@pytest.mark.parametrize("main", [programs.until_told, programs.wait_for_nobody])
@pytest.mark.parametrize("memory", [SHM, MemorySpec(seed=1)], ids=["shm", "adversary"])
def test_what_is_taken_away_ends_calls_and_is_wiped_when_all_have_left(
    pool: ShmPool, manager: PoolManager, main: Callable[[RankContext], None], memory: MemorySpec
) -> None:
    grant = manager.add("red", 4 * MIB)
    with ThreadPoolExecutor(1) as worlds:
        world, ready = begin(worlds, pool, main, "threads", memory=memory)
        assert ready.wait(PATIENT_S)
        with pytest.raises(CapacityError, match="2 ranks are in it; wait until it is unused, or force it"):
            manager.release(grant)
        time.sleep(0.2)
        assert not world.done()  # a release that was refused disturbed nobody
        assert manager.force("red", wait_s=PATIENT_S) == (grant,)
        with pytest.raises(AccessError, match=r"grant 1 of tenant red, 4 MiB of each of 2 cards of pool .* taken away"):
            world.result(PATIENT_S)
    assert books(again(manager))[2] == manager.card_bytes - manager.first_byte
    assert not any(card[grant.at : grant.end].any() for card in pool.cards)


def test_bytes_of_who_has_not_left_go_to_nobody(manager: PoolManager, pool: ShmPool) -> None:
    everything = manager.add("red", manager.free_bytes)
    elsewhere = UseLine.of(everything.number, Owner.current(), inside=True)._replace(pid_namespace=1)
    manager.table.store_use(manager._slots[everything.number], 5, elsewhere)
    assert manager.force("red") == (everything,) and manager.account("red").leaving_bytes == everything.nbytes
    other = again(manager)
    with pytest.raises(CapacityError, match="0 B are free"):
        other.add("blue", 1)
    other.force("red", gone=True)
    assert other.add("blue", 1).at == everything.at
    assert other.account("red").forced_bytes == everything.nbytes


def test_a_rank_that_comes_too_late_is_refused_and_writes_nothing(manager: PoolManager, pool: ShmPool) -> None:
    red = manager.add("red", MIB)
    with TenantPool.attach(lease_for("red", SHM, pool.name, wait_s=0), SHM, 1.0) as late:
        manager.force("red")
        blue = manager.add("blue", MIB)
        assert blue.at == red.at
        before = [card.copy() for card in pool.cards]
        with pytest.raises(AccessError, match="was taken away or given back"):
            Tenancy(late, 0).enter()
        assert all((card == was).all() for card, was in zip(pool.cards, before, strict=True))


def test_a_rank_that_comes_while_its_grant_is_released_is_refused(
    manager: PoolManager, pool: ShmPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the manager has looked who is in and before it wipes: it would wipe under the rank."""
    red = manager.add("red", MIB)
    lease, users_of, looked = lease_for("red", SHM, pool.name, wait_s=0), manager.users_of, []

    def meanwhile(grant: Grant) -> list[Owner]:
        found = users_of(grant)
        looked.append(found)
        with TenantPool.attach(lease, SHM, 1.0) as mine, pytest.raises(AccessError, match="taken away or given back"):
            Tenancy(mine, 0).enter()
        return found

    monkeypatch.setattr(manager, "users_of", meanwhile)
    manager.release(red)
    assert looked == [[]]


def test_no_line_of_who_has_left_arrives_later(manager: PoolManager, pool: ShmPool) -> None:
    """Stored and never flushed, on either card: a host that writes it back later would write into who comes next."""
    red = manager.add("red", MIB)
    with TenantPool.attach(lease_for("red", SHM, pool.name, wait_s=0), SHM, 1.0) as mine:
        cache, place = HostCache.private(mine.cards), Tenancy(mine, 0)
        memory = ShadowMemory(cache)
        place.enter()
        for card in range(CARDS):
            memory.write(card, MIB - LINE_BYTES, np.full(LINE_BYTES, 9, np.uint8))
        place.leave(memory)
        manager.release(red)
        beside = ShadowMemory(cache)  # of another rank of the same host, whose lines go to the pool
        for card in range(CARDS):
            beside.flush(card, 0, MIB)
        beside.fence()
    assert not any(card[red.at : red.end].any() for card in pool.cards)


@pytest.mark.parametrize("said", [False, True])
def test_a_rank_whose_grant_goes_while_it_enters_is_refused(
    said: bool, manager: PoolManager, pool: ShmPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its looks, before or after it has ``said`` that it is in: nobody gets its bytes until it left."""
    manager.add("red", MIB)
    say, seen = Tenancy._say, []

    def meanwhile(self: Tenancy, *, inside: bool) -> None:
        if not inside or said:
            say(self, inside=inside)
        if inside:
            manager.force("red")
            seen.append(manager.account("red").leaving_bytes)
        if inside and not said:
            say(self, inside=inside)

    monkeypatch.setattr(Tenancy, "_say", meanwhile)
    with TenantPool.attach(lease_for("red", SHM, pool.name, wait_s=0), SHM, 1.0) as mine:
        with pytest.raises(AccessError, match="was taken away or given back"):
            Tenancy(mine, 0).enter()
        line = mine.table.use(mine.lease.slot, 0)
    assert seen == [MIB] and line is not None and not line.inside
    manager.reclaim()
    assert manager.account("red").leaving_bytes == 0 and manager.free_bytes == manager.card_bytes - manager.first_byte


def test_a_rank_whose_line_another_one_stored_over_is_still_in(manager: PoolManager, pool: ShmPool) -> None:
    """As does the same rank of another world, or of a grant that had the slot before, when it comes and goes."""
    red = manager.add("red", MIB)
    lease = lease_for("red", SHM, pool.name, wait_s=0)
    with TenantPool.attach(lease, SHM, 1.0) as one, TenantPool.attach(lease, SHM, 1.0) as another:
        stays, goes = Tenancy(one, 0), Tenancy(another, 0)
        stays.enter()
        goes.enter()
        goes.leave(DirectMemory(another.cards))
        with pytest.raises(CapacityError, match="1 rank is in it"):
            manager.release(red)
        assert manager.users_of(red) == [NOBODY]
        stays.leave(DirectMemory(one.cards))
    manager.release(red)


def test_what_is_added_reaches_who_waits_for_it(manager: PoolManager, pool: ShmPool) -> None:
    with ThreadPoolExecutor(1) as worlds:
        world, _ = begin(worlds, pool, programs.sums, "threads")
        time.sleep(0.2)
        assert not world.done()
        manager.add("red", 4 * MIB)
        assert world.result(PATIENT_S)[0][0] == 3000.0


def test_what_is_added_can_be_used_by_who_runs(manager: PoolManager, pool: ShmPool) -> None:
    first = manager.add("red", 4 * MIB)
    with ThreadPoolExecutor(1) as worlds:
        world, ready = begin(worlds, pool, programs.grows, "threads")
        assert ready.wait(PATIENT_S) and not world.done()
        second = manager.add("red", 6 * MIB)
        assert world.result(PATIENT_S) == [(6 * MIB, 2.0, 4.0)] * 2
    assert manager.users_of(first) == manager.users_of(second) == []
    with pytest.raises(ArgumentError, match="only a tenant on the backend shm or dax can take another grant"):
        launch(programs.grows, ranks=1, pool_name=pool.name, tenant="red")


def test_a_tenant_without_anything_is_told_who_has_it(manager: PoolManager, pool: ShmPool) -> None:
    manager.add("blue", MIB)
    with pytest.raises(AccessError, match=f"tenant red holds nothing of pool {pool.name}; its tenants: blue"):
        launch(programs.sums, ranks=2, memory=SHM, pool_name=pool.name, tenant="red", deadline_s=0.1)
    with pytest.raises(AccessError, match="tenant blue holds no grant 7"):
        launch(programs.sums, ranks=2, memory=SHM, pool_name=pool.name, tenant="blue:7", deadline_s=0.1)
    assert lease_for("blue:1", SHM, pool.name, wait_s=0).grant.nbytes == MIB


@pytest.mark.parametrize("text", ["", ":1", "red:", "red:x", "red:1:2"])
def test_tenants_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="invalid tenant"):
        Tenant.parse(text)


def test_what_tenants_cannot_have_is_refused(manager: PoolManager, pool: ShmPool) -> None:
    manager.add("red", 4 * MIB)
    options: dict[str, Any] = {"pool_name": pool.name, "tenant": "red"}
    with pytest.raises(ArgumentError, match="a pace is for a whole pool"):
        launch(programs.sums, ranks=2, pace=Pace(), **options)
    with pytest.raises(ArgumentError, match="8"):
        launch(programs.sums, ranks=9, memory=SHM, deadline_s=2.0, **options)
    with pytest.raises(ArgumentError, match="give the pool's name"):
        launch(programs.sums, ranks=2, tenant="red")


@pytest.mark.deep
def test_processes_too(manager: PoolManager, pool: ShmPool) -> None:
    """One world is right, behind emulated caches; another is thrown out; ranks of a third are killed in a call."""
    blue, green = manager.add("blue", 3 * MIB), manager.add("green", 2 * MIB)
    red = manager.add("red", 3 * MIB)
    with ThreadPoolExecutor(3) as worlds:
        right, _ = begin(worlds, pool, programs.sums_and_maps, "processes", memory=MemorySpec(seed=1), tenant="blue")
        endless, ready = begin(worlds, pool, programs.until_told, "processes")
        dying, _ = begin(worlds, pool, programs.killed, "processes", tenant="green")
        assert ready.wait(PATIENT_S)
        assert len({owner.pid for owner in manager.users_of(red)}) == 2
        assert manager.force("red", wait_s=PATIENT_S) == (red,)
        with pytest.raises(AccessError, match="was taken away"):
            endless.result(PATIENT_S)
        its_uses = 4096  # no other byte of the cards is there
        maps = {
            "card0 r-": round_up(manager.table.end, 4096),
            "card0 rw": its_uses + blue.nbytes,
            "card1 rw": blue.nbytes,
        }
        assert right.result(PATIENT_S) == [(3000.0, maps)] * 2
        with pytest.raises(CxlemuError, match="was killed by SIGKILL"):
            dying.result(PATIENT_S)
    manager.release(green)  # nobody of them said goodbye, but they are dead
    manager.release(blue)
    assert manager.free_bytes == manager.card_bytes - manager.first_byte


REFUSED = dict.fromkeys(("store_grant", "header", "use", "in_grant"), "AccessError") | {
    "lines": "TypeError",
    "numpy": "ValueError",
}


@pytest.mark.deep(rows=lambda on: on == "files")
@pytest.mark.parametrize("on", ["shm", "files"])
def test_a_tenants_process_reaches_no_byte_of_another(pool: ShmPool, tmp_path: Path, on: str) -> None:
    """What its rank maps and has open, and what its table and its contexts give away, in a process of its own."""
    with ExitStack() as stack:
        whole: Pool = pool
        memory, name = SHM, pool.name
        if on == "files":
            paths = blank_cards(tmp_path, CARDS, 16 * MIB)
            cxlemu("pool", "format", *device_flags(paths))
            memory, whole = MemorySpec("dax", devices=tuple(paths)), stack.enter_context(DaxPool.attach(paths))
            name = str(whole.uuid)
        manager = PoolManager.begin(whole, BLOCK, ranks=8)
        red, blue = manager.add("red", 4 * MIB), manager.add("blue", MIB)
        for card in whole.cards:
            card[blue.at : blue.end] = 7
        main = partial(programs.attack, blue_at=blue.at, blue_bytes=blue.nbytes)
        options: dict[str, Any] = {"memory": memory, "pool_name": name, "deadline_s": 2.0}
        (became,) = launch(main, ranks=1, tenant="red", how="processes", **options)
        assert {name: became[name] for name in REFUSED} == REFUSED and became["own"]
        if on == "shm":
            maps = {
                "card0 r-": round_up(manager.table.end, 4096),
                "card0 rw": 4096 + red.nbytes,
                "card1 rw": red.nbytes,
            }
            assert became["maps"] == maps
        assert all(its.endswith(" r") for its in became["descriptors"]) and len(became["descriptors"]) == 1
        assert all((card[blue.at : blue.end] == 7).all() for card in whole.cards)
        assert {entry.grant for entry in again(manager).entries()} == {red, blue}


def test_a_read_only_mapping_cannot_be_made_writable(pool: ShmPool) -> None:
    part = pool.part(0, 0, 4096, writable=False)
    with pytest.raises(ValueError, match="WRITEABLE flag"):
        part.flags.writeable = True
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(part.ctypes.data)
    assert libc.mprotect(address, ctypes.c_size_t(4096), 3) == -1 and ctypes.get_errno() == errno.EACCES


def test_who_asks_the_kernel_for_more_gets_it_as_the_page_on_tenants_says(pool: ShmPool) -> None:
    """Isolation is against mistakes: a longer mapping of a grant reaches the bytes behind it in the card's file."""
    manager = PoolManager.begin(pool, BLOCK)
    red, blue = manager.add("red", BLOCK), manager.add("blue", BLOCK)
    assert red.end == blue.at
    pool.cards[0][blue.at : blue.end] = 7
    part = pool.part(0, red.at, red.nbytes)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mremap.restype = ctypes.c_void_p
    address, nbytes, may_move = ctypes.c_void_p(part.ctypes.data), ctypes.c_size_t(part.nbytes), 1
    grown = libc.mremap(address, nbytes, ctypes.c_size_t(part.nbytes + 4096), may_move)
    assert ctypes.string_at(grown + part.nbytes, 4096) == b"\7" * 4096
    back = libc.mremap(ctypes.c_void_p(grown), ctypes.c_size_t(part.nbytes + 4096), nbytes, may_move | 2, address)
    assert back == part.ctypes.data  # MREMAP_FIXED: where the array expects it
    page = (Path(__file__).parents[2] / "docs/tenants.md").read_text()
    assert "grows a mapping with `mremap` | nothing: it reaches every byte of the pool" in page


@pytest.mark.parametrize("align", [4096, 65536])
def test_each_slots_uses_are_pages_of_their_own(align: int) -> None:
    page = page_bytes_for(align, 64 * MIB)
    assert page == align
    ranges = [uses_range(8192, 64, page, slot) for slot in range(SLOTS)]
    assert all(begin % align == end % align == 0 and end - begin >= 64 * LINE_BYTES for begin, end in ranges)
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(ranges))
    assert ranges[0][0] >= 8192 + 2 * SLOTS * LINE_BYTES
    assert page_bytes_for(1 << 30, 64 * MIB) == 4096  # a card has no room for pages of 1 GiB


# --- on devices, and from the command line ---------------------------------------------------------------------------


@pytest.fixture
def cards(tmp_path: Path) -> list[str]:
    paths = blank_cards(tmp_path, CARDS, 16 * MIB)
    cxlemu("pool", "format", *device_flags(paths), "--lend", "1M")
    return paths


def capacity(paths: list[str], *words: str, code: int = 0) -> str:
    return cxlemu("pool", "capacity", *words, *device_flags(paths), code=code).output


def test_capacity_from_the_command_line(cards: list[str]) -> None:
    assert "grant 1: 4 MiB of each of 2 cards from byte 1048576, for red" in capacity(cards, "add", "red", "4M")
    assert json.loads(capacity(cards, "add", "blue", "100K", "--json", "-")) == {
        "number": 2,
        "tenant": "blue",
        "at": 5 * MIB,
        "bytes": MIB,
    }
    assert "10 MiB are free of 15 MiB: the rest is lent: red 4 MiB, blue 1 MiB" in capacity(
        cards, "add", "green", "11M", code=2
    )
    run = ("run", "all_reduce", "-n", "2", "-e", "1K", "--launch", "threads", "--backend", "dax", *device_flags(cards))
    assert "grant 1 of tenant red, 4 MiB of each of 2 cards" in cxlemu(*run, "--tenant", "red").output
    assert "is lent to tenants: name this world's tenant, or take another pool" in cxlemu(*run, code=2).output
    litmus = ("litmus", "examples/handover.yaml", "--backend", "dax", *device_flags(cards), "--rounds", "50")
    litmus = (*litmus, "--launch", "threads")
    assert "name this world's tenant" in cxlemu(*litmus, code=2).output
    cxlemu(*litmus, "--tenant", "red", code=0)
    cxlemu(*litmus, code=0, env={"CXLEMU_TENANT": "red"})
    facts = json.loads(capacity(cards, "show", "--json", "-"))
    assert [(row["tenant"], row["state"], row["ranks"]) for row in facts["grants"]] == [
        ("red", "held", 0),
        ("blue", "held", 0),
    ]
    assert facts["free_bytes"] == facts["largest_bytes"] == 10 * MIB and facts["lent_bytes"] == 15 * MIB
    assert "released: grant 1 of red" in capacity(cards, "release", "red")
    assert "tenant red holds no grant" in capacity(cards, "release", "red", code=2)
    assert "lie in 2 pieces, the largest of 10 MiB" in capacity(cards, "add", "green", "12M", code=2)
    assert "taken away: grant 2 of blue, 1 MiB of each card" in capacity(cards, "force", "blue")
    assert "tenant blue holds nothing" in capacity(cards, "force", "blue", code=2)
    shown = capacity(cards, "show")
    assert "15 MiB of 15 MiB of each of 2 cards are free" in shown and "forced" in shown


def test_force_says_who_is_still_in_it_until_somebody_knows_better(cards: list[str]) -> None:
    capacity(cards, "add", "red", "4M")
    with DaxPool.attach(cards) as pool:
        manager = PoolManager.open(pool)
        elsewhere = UseLine.of(1, Owner.current(), inside=True)._replace(boot_id=bytes(16))
        manager.table.store_use(manager._slots[1], 0, elsewhere)  # of another host: nothing is known of it here
    assert "1 rank is in it; wait until it is unused, or force it" in capacity(cards, "release", "red", code=2)
    assert "1 rank is still in it" in capacity(cards, "force", "red", "--wait-s", "0.1", code=1)
    assert json.loads(capacity(cards, "show", "--json", "-"))["grants"][0]["state"] == "forced"
    assert "taken away: grant 1 of red" in capacity(cards, "force", "red", "--gone")
    assert json.loads(capacity(cards, "show", "--json", "-"))["grants"] == []


def test_which_pool_has_to_be_said_and_has_to_be_lent(tmp_path: Path) -> None:
    assert "name the pool" in cxlemu("pool", "capacity", "show", code=2).output
    paths = blank_cards(tmp_path, CARDS)
    cxlemu("pool", "format", *device_flags(paths), "--max-ranks", "16")
    assert "this pool's capacity is not lent" in capacity(paths, "show", code=2)
    for lend in ("1000", "1M"):
        result = cxlemu("pool", "format", *device_flags(paths), "--yes", "--lend", lend, code=2)
        assert "blocks of whole pages" in result.output or "have no block of 1 MiB to lend" in result.output


def test_formatting_again_lends_nothing_of_before(cards: list[str]) -> None:
    capacity(cards, "add", "red", "4M")
    cxlemu("pool", "format", *device_flags(cards), "--yes", "--lend", "2M")
    facts = json.loads(capacity(cards, "show", "--json", "-"))
    assert (facts["grants"], facts["accounts"], facts["block_bytes"]) == ([], [], 2 * MIB)


def test_a_launchers_ranks_can_be_a_tenant(cards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    capacity(cards, "add", "red", "4M")
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "t"}.items():
        monkeypatch.setenv(name, value)
    with from_environment(memory=MemorySpec("dax", devices=tuple(cards)), tenant="red") as context:
        assert programs.sums(context)[2] == 4 * MIB
        assert context.tenancy is not None and context.tenancy.lease.grant == Grant(1, "red", MIB, 4 * MIB)
    with (
        pytest.raises(ArgumentError, match="under a launcher, take the backend shm or dax"),
        from_environment(tenant="red"),
    ):
        pytest.fail("it began")


def test_cards_of_no_bytes_are_refused() -> None:
    with own_name() as name:
        assert (
            "card_bytes is 0"
            in cxlemu("pool", "capacity", "hold", name, "-c", "laptop", "--card-size", "0", code=2).output
        )
