"""A pool that tenants share: what they get, what they may touch, and that nothing of it is ever lost."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from collectives.algorithms import catalog
from collectives.layouts import layout_for
from cxlemu.capacity import Account, FabricManager, Grant, GuardedEngine
from cxlemu.capacity.touches import Touch, outside, touches
from cxlemu.engines import Engine
from cxlemu.engines.native import NativeEngine
from cxlemu.engines.reference import ReferenceEngine
from cxlemu.engines.streams import Binding, Running
from cxlemu.errors import AccessError, ArgumentError, CapacityError, PlanError
from cxlemu.memory import HostCache
from cxlemu.memory.backend import EVERYTHING
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import Bytes
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.plan import Call, Frame, Layout, Plan, RankPart
from cxlemu.topology import Topology
from tests.helpers.native_lockstep import card
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S, examples

KIB = 1 << 10
BLOCK, CARDS, CARD_BYTES = 64 * KIB, 2, 1 << 20
RANKS = 3
Begun: TypeAlias = tuple[Grant, ExitStack]


def a_manager() -> tuple[FabricManager, list[Bytes]]:
    memory = [card(CARD_BYTES) for _ in range(CARDS)]
    return FabricManager(card_bytes=CARD_BYTES, cards=CARDS, block_bytes=BLOCK, memory=memory), memory


def a_plan(room_bytes: int, nbytes: int = 8 * KIB, collective: str = "all_gather") -> Plan:
    """For a communicator that takes so much of every card at most."""
    layout = layout_for(RANKS, CARDS, room_bytes, 4096, region_bytes=CARDS * room_bytes)
    call = Call(collective, "naive", RANKS, nbytes, "f32", "sum" if collective == "all_reduce" else "none")
    return catalog.build(catalog.recipe(collective, "naive"), layout, call)


def run(
    engine_of: Callable[[int], Callable[..., None]], plan: Plan, base: int, inputs: Sequence[Bytes], epoch: int = 1
) -> list[Bytes]:
    """One call by as many threads as ranks; what each got."""

    def one(rank: int) -> Bytes:
        part = plan.part(rank)
        buffers = [np.zeros(buffer.nbytes, np.uint8) for buffer in part.buffers]
        buffers[0][:] = inputs[rank]
        running = Running(plan.call, plan.frame, part, Binding(plan.layout, base, epoch, plan.call.tag()))
        engine_of(rank)(running, buffers, deadline_s=PATIENT_S)
        return buffers[1]

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(one, range(RANKS)))


def some_inputs(seed: int, nbytes: int = 8 * KIB) -> list[Bytes]:
    return list(np.random.default_rng(seed).integers(0, 256, (RANKS, nbytes), np.uint8))


# --- lending and counting --------------------------------------------------------------------------------------------


def test_a_grant_is_the_lowest_piece_that_is_free() -> None:
    manager, _ = a_manager()
    red, blue = manager.add("red", 3 * BLOCK - 1), manager.add("blue", BLOCK)
    assert red == Grant(1, "red", 0, 3 * BLOCK) and blue == Grant(2, "blue", 3 * BLOCK, BLOCK)
    manager.release(red)
    assert manager.add("blue", 2 * BLOCK).at == 0
    assert manager.account("red") == Account("red", 0, 0, 3 * BLOCK, 3 * BLOCK, 3 * BLOCK, 0)
    assert manager.account("blue") == Account("blue", 3 * BLOCK, 0, 3 * BLOCK, 3 * BLOCK, 0, 0)


def test_exhaustion_says_who_has_it() -> None:
    manager, _ = a_manager()
    manager.add("red", 8 * BLOCK)
    manager.add("blue", 5 * BLOCK)
    with pytest.raises(CapacityError) as caught:
        manager.add("green", 4 * BLOCK)
    assert str(caught.value) == (
        "tenant green asks for 256 KiB of each of 2 cards, but 192 KiB are free of 1 MiB: "
        "the rest is lent: red 512 KiB, blue 320 KiB"
    )
    assert manager.accounts() == [manager.account("red"), manager.account("blue")]


def test_fragmentation_is_another_thing_than_exhaustion() -> None:
    manager, _ = a_manager()
    grants = [manager.add(name, 4 * BLOCK) for name in ("red", "blue", "red", "blue")]
    manager.release(grants[0])
    manager.release(grants[2])
    with pytest.raises(CapacityError) as caught:
        manager.add("green", 5 * BLOCK)
    assert str(caught.value) == (
        "tenant green asks for 320 KiB of each of 2 cards, but the free 512 KiB lie in 2 pieces, the largest of "
        "256 KiB: ask for less, or release the grants between them (blue 512 KiB)"
    )
    assert manager.free_bytes == 8 * BLOCK


def test_what_is_given_back_is_wiped_and_nothing_beside_it() -> None:
    manager, memory = a_manager()
    red, blue = manager.add("red", BLOCK), manager.add("blue", BLOCK)
    for bytes_of in memory:
        bytes_of[:] = 7
    manager.release(red)
    for bytes_of in memory:
        assert not bytes_of[red.at : red.end].any()
        assert (bytes_of[blue.at :] == 7).all()


def test_nobody_gives_back_twice_or_what_is_not_theirs() -> None:
    manager, _ = a_manager()
    red = manager.add("red", BLOCK)
    with pytest.raises(AccessError, match="tenant blue no longer holds grant 1"):
        manager.release(replace(red, tenant="blue"))
    with (
        manager.using(red, Lending.call, Lending.layout, Lending.frame, red.at),
        pytest.raises(CapacityError, match="1 plan runs in it"),
    ):
        manager.release(red)
    manager.release(red)
    with pytest.raises(AccessError, match="tenant red no longer holds grant 1"):
        manager.release(red)
    assert manager.free_bytes == CARD_BYTES


@pytest.mark.parametrize(("tenant", "nbytes"), [("", BLOCK), ("a\nb", BLOCK), ("red", 0), ("red", -1)])
def test_a_request_that_means_nothing_changes_nothing(tenant: str, nbytes: int) -> None:
    manager, _ = a_manager()
    with pytest.raises(ArgumentError):
        manager.add(tenant, nbytes)
    assert manager.accounts() == [] and manager.free_bytes == CARD_BYTES


@with_rows(
    {"card_bytes": 100, "cards": 1, "block_bytes": 128},
    {"card_bytes": 128, "cards": 0, "block_bytes": 64},
    {"card_bytes": 128, "cards": 1, "block_bytes": 100},
    {"card_bytes": 128, "cards": 1, "block_bytes": 0},
    {"card_bytes": 128, "cards": 2, "block_bytes": 64, "memory": [np.zeros(128, np.uint8)]},
    {"card_bytes": 128, "cards": 1, "block_bytes": 64, "memory": [np.zeros(64, np.uint8)]},
)
def test_a_machine_without_a_block_to_lend_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ArgumentError):
        FabricManager(**wrong)  # type: ignore[arg-type]


def test_a_topologys_space_says_how_much_there_is() -> None:
    manager = FabricManager.of(Topology.load("titan2-6xcz120"), "pool", block_bytes=256 << 20)
    assert (manager.cards, manager.card_bytes) == (6, 128 << 30)
    with pytest.raises(ArgumentError, match="has no space 'tier2' on cards: it has pool"):
        FabricManager.of(Topology.load("titan2-6xcz120"), "tier2", block_bytes=256 << 20)
    with pytest.raises(ArgumentError, match="it has no memory"):
        manager.window(manager.add("red", 1))


class Lending(RuleBasedStateMachine):
    """Against a list that says of every block who has it. ``leaving`` blocks are in use by plans of who lost them."""

    grants: Bundle[Grant] = Bundle("grants")
    running: Bundle[Begun] = Bundle("running")
    layout, frame = Layout(1, CARDS, 4, 64, 1, 4096), Frame()
    call = Call("barrier", "naive", 1, 0)

    def __init__(self) -> None:
        super().__init__()
        self.manager, self.memory = a_manager()
        self.holder: list[int] = [0] * (CARD_BYTES // BLOCK)  # by number of the grant
        self.held: dict[int, Grant] = {}
        self.users: dict[int, int] = {}

    @rule(target=grants, tenant=st.sampled_from(["red", "blue", "green"]), blocks=st.integers(1, 9))
    def add(self, tenant: str, blocks: int) -> Grant | MultipleResults[Grant]:
        at = next((at for at in range(len(self.holder)) if self.holder[at : at + blocks] == [0] * blocks), None)
        if at is None:
            words = "lie in" if self.holder.count(0) >= blocks else "are free of"
            with pytest.raises(CapacityError, match=words):
                self.manager.add(tenant, blocks * BLOCK)
            return multiple()
        grant = self.manager.add(tenant, blocks * BLOCK)
        assert (grant.at, grant.nbytes) == (at * BLOCK, blocks * BLOCK)
        self.holder[at : at + blocks] = [grant.number] * blocks
        self.held[grant.number] = grant
        for window in self.manager.window(grant):
            assert not window.any()
            window[:] = grant.number % 256
        return grant

    @rule(grant=grants)
    def release(self, grant: Grant) -> None:
        if grant.number not in self.held:
            with pytest.raises(AccessError):
                self.manager.release(grant)
        elif self.users.get(grant.number):
            with pytest.raises(CapacityError, match=r"plans? runs? in it"):
                self.manager.release(grant)
        else:
            self.manager.release(grant)
            self.gone(grant)

    @rule(tenant=st.sampled_from(["red", "blue", "green"]))
    def force(self, tenant: str) -> None:
        its = [grant for grant in self.held.values() if grant.tenant == tenant]
        assert list(self.manager.force(tenant)) == its
        for grant in its:
            del self.held[grant.number]
            if not self.users.get(grant.number):
                self.gone(grant)

    @rule(target=running, grant=grants)
    def begin(self, grant: Grant) -> Begun | MultipleResults[Begun]:
        stack = ExitStack()
        using = self.manager.using(grant, self.call, self.layout, self.frame, grant.at)
        if grant.number not in self.held:
            with pytest.raises(AccessError, match="no longer holds"):
                stack.enter_context(using)
            return multiple()
        stack.enter_context(using)
        self.users[grant.number] = self.users.get(grant.number, 0) + 1
        return grant, stack

    @rule(one=consumes(running))
    def end(self, one: Begun) -> None:
        grant, stack = one
        stack.close()
        self.users[grant.number] -= 1
        if not self.users[grant.number] and grant.number not in self.held:
            self.gone(grant)

    def gone(self, grant: Grant) -> None:
        self.held.pop(grant.number, None)
        self.holder = [0 if number == grant.number else number for number in self.holder]

    @invariant()
    def every_block_is_counted_once(self) -> None:
        assert self.manager.free_bytes == self.holder.count(0) * BLOCK
        runs = "".join("." if number == 0 else "x" for number in self.holder).split("x")
        assert self.manager.largest_bytes == max(map(len, runs)) * BLOCK
        accounts = self.manager.accounts()
        assert sum(its.held_bytes + its.leaving_bytes for its in accounts) + self.manager.free_bytes == CARD_BYTES
        for its in accounts:
            assert its.held_bytes == sum(g.nbytes for g in self.held.values() if g.tenant == its.tenant)
            assert its.added_bytes == its.held_bytes + its.released_bytes + its.forced_bytes
            assert its.held_bytes <= its.peak_bytes <= its.added_bytes

    @invariant()
    def everyones_bytes_are_their_own(self) -> None:
        for block, number in enumerate(self.holder):
            for bytes_of in self.memory:
                assert (bytes_of[block * BLOCK : (block + 1) * BLOCK : 4096] == number % 256).all()


TestLending = Lending.TestCase
TestLending.settings = examples(60, stateful_step_count=30)


# --- what a plan may touch -------------------------------------------------------------------------------------------


def test_touches_are_all_that_instructions_name() -> None:
    """Every byte that a run of the plan changes or reads is in them: here, what it changes."""
    plan, base = a_plan(4 * BLOCK), BLOCK
    memory = [card(CARD_BYTES, 0xEE) for _ in range(CARDS)]
    layout = plan.layout
    for bytes_of in memory:
        bytes_of[base : base + layout.data_offset] = 0  # doorbells begin at 0
    before = [bytes_of.copy() for bytes_of in memory]
    run(lambda rank: NativeEngine(memory).run, plan, base, some_inputs(1))
    allowed = [np.zeros(CARD_BYTES, bool) for _ in range(CARDS)]
    for touch in touches(layout, plan.frame, base):
        allowed[touch.card][touch.begin : touch.end] = True
    for bytes_of, was, may in zip(memory, before, allowed, strict=True):
        changed = bytes_of != was
        assert changed.any() and not (changed & ~may).any()


@with_rows(
    ([(0, 100)], None),
    ([(0, 20), (20, 100)], None),
    ([(0, 20), (30, 100)], (20, 30)),
    ([(0, 35)], (35, 40)),
    ([(0, 5), (5, 35)], (35, 40)),
    ([(0, 5), (10, 40)], None),
    ([(10, 20), (0, 5), (20, 40)], None),
    ([(15, 100)], (10, 15)),
    ([(50, 100)], (10, 40)),
    ([], (10, 40)),
)
def test_the_first_bytes_outside_are_found(ranges: list[tuple[int, int]], expected: tuple[int, int] | None) -> None:
    found = outside([Touch("x", 0, 10, 40)], ranges, 1)
    assert (None if found is None else (found.begin, found.end)) == expected
    assert outside([Touch("x", 1, 10, 40)], [(0, 100)], 1) == Touch("x", 1, 10, 40)


def test_a_plan_inside_its_grant_is_right_and_disturbs_nobody() -> None:
    """Two tenants at once; each gets its result, and not a byte outside of their grants changes."""
    manager, memory = a_manager()
    red, blue = manager.add("red", 4 * BLOCK), manager.add("blue", 6 * BLOCK)
    for bytes_of in memory:
        bytes_of[blue.end :] = 9
    plans = {red: a_plan(red.nbytes), blue: a_plan(blue.nbytes)}
    for grant, plan in plans.items():
        manager.check(grant.tenant, plan, grant.at)

    def one(grant: Grant) -> list[Bytes]:
        engines = [GuardedEngine(manager, grant) for _ in range(RANKS)]
        return run(lambda rank: engines[rank].run, plans[grant], grant.at, some_inputs(grant.number))

    with ThreadPoolExecutor(2) as pool:
        for grant, outputs in zip(plans, pool.map(one, plans), strict=True):
            for output in outputs:
                assert (output == np.concatenate(some_inputs(grant.number))).all()
    assert all((bytes_of[blue.end :] == 9).all() for bytes_of in memory)


def _native(cards: Sequence[Bytes]) -> Engine:
    return NativeEngine(cards)


def _through_a_cache(cards: Sequence[Bytes]) -> Engine:
    return NativeEngine(cards, EVERYTHING, ShadowMemory(HostCache.private(cards)).native)


def _reference(cards: Sequence[Bytes]) -> Engine:
    return ReferenceEngine(DirectMemory(cards))


@pytest.mark.parametrize("make", [_native, _through_a_cache, _reference])
def test_a_plan_of_one_tenant_that_reaches_into_anothers_is_refused_before_it_runs(
    make: Callable[[Sequence[Bytes]], Engine],
) -> None:
    manager, memory = a_manager()
    red, blue = manager.add("red", 4 * BLOCK), manager.add("blue", 6 * BLOCK)
    large = a_plan(6 * BLOCK)  # it does not fit into red's four blocks
    before = [bytes_of.copy() for bytes_of in memory]
    with pytest.raises(AccessError, match=r"^tenant red may not run \[all_gather naive .*are tenant blue's$"):
        manager.check("red", large, red.at)
    engine = GuardedEngine(manager, red, make)
    with pytest.raises(AccessError, match="are tenant blue's"):
        run(lambda rank: engine.run, large, red.at, some_inputs(1))
    with pytest.raises(AccessError, match="are tenant blue's"):
        run(lambda rank: engine.run, a_plan(4 * BLOCK), blue.at, some_inputs(1))
    assert all((now == was).all() for now, was in zip(memory, before, strict=True))
    manager.check("blue", large, blue.at)


@pytest.mark.parametrize("make", [_native, _through_a_cache])
@pytest.mark.parametrize("base", ["its own", "blue's", "before"])
def test_the_native_engines_bounds_refuse_it_as_well(make: Callable[[Sequence[Bytes]], Engine], base: str) -> None:
    """Without asking the manager: the engine has no bytes but the grant's."""
    manager, memory = a_manager()
    green = manager.add("green", BLOCK)
    red, blue = manager.add("red", 4 * BLOCK), manager.add("blue", 6 * BLOCK)
    before = [bytes_of.copy() for bytes_of in memory]
    plan = a_plan(6 * BLOCK) if base == "its own" else a_plan(4 * BLOCK)
    at = {"its own": red.at, "blue's": blue.at, "before": green.at}[base]
    engine = GuardedEngine(manager, red, make)
    with pytest.raises(PlanError):
        run(lambda rank: engine.unchecked, plan, at, some_inputs(1))
    assert all((now == was).all() for now, was in zip(memory, before, strict=True))


def test_a_region_that_says_another_card_range_is_seen() -> None:
    """A plan whose table was changed: it reaches further than its slot, and no rule of plans was asked."""
    manager, _ = a_manager()
    red = manager.add("red", 4 * BLOCK)
    manager.add("blue", 4 * BLOCK)
    plan = a_plan(4 * BLOCK)
    first, *others = plan.frame.regions
    evil = replace(plan.frame, regions=(replace(first, base=first.base + 4 * BLOCK), *others))
    with (
        pytest.raises(AccessError, match=r"where its region 0 would be, are tenant blue's"),
        manager.using(red, plan.call, plan.layout, evil, red.at),
    ):
        pytest.fail("it ran")

    def build(rank: int) -> tuple[Frame, RankPart]:
        return evil, plan.part(rank)

    with pytest.raises(PlanError, match="rule regions"):
        manager.check("red", Plan(plan.call, plan.layout, build), red.at)


def test_cards_that_are_not_lent_are_not_reached() -> None:
    memory = [card(CARD_BYTES)]
    manager = FabricManager(card_bytes=CARD_BYTES, cards=1, block_bytes=BLOCK, memory=memory)
    red = manager.add("red", 8 * BLOCK)
    with pytest.raises(AccessError, match="of card 1, where its doorbells would be, are not there"):
        manager.check("red", a_plan(8 * BLOCK), red.at)


def test_nobodys_capacity_is_not_everybodys() -> None:
    manager, _ = a_manager()
    manager.add("red", 4 * BLOCK)
    with pytest.raises(AccessError, match="are nobody's"):
        manager.check("red", a_plan(8 * BLOCK), 0)


def test_a_tenant_whose_capacity_was_taken_away_is_refused() -> None:
    """Its engine still knows the bytes: they may be another's by now."""
    manager, memory = a_manager()
    red, plan = manager.add("red", 4 * BLOCK), a_plan(4 * BLOCK)
    engines = [GuardedEngine(manager, red) for _ in range(RANKS)]
    run(lambda rank: engines[rank].run, plan, red.at, some_inputs(1))
    assert manager.force("red") == (red,)
    blue = manager.add("blue", 4 * BLOCK)
    assert blue.at == red.at and not any(bytes_of[: blue.end].any() for bytes_of in memory)
    with pytest.raises(AccessError, match="tenant red no longer holds grant 1"):
        run(lambda rank: engines[rank].run, plan, red.at, some_inputs(1))
    with pytest.raises(AccessError, match="are tenant blue's"):
        manager.check("red", plan, red.at)
    assert not any(bytes_of[: blue.end].any() for bytes_of in memory)


def test_what_a_running_plan_uses_goes_to_nobody_else_before_it_ends() -> None:
    manager, _ = a_manager()
    red, plan = manager.add("red", 4 * BLOCK), a_plan(4 * BLOCK)
    with manager.using(red, plan.call, plan.layout, plan.frame, red.at):
        manager.force("red")
        assert manager.account("red").leaving_bytes == 4 * BLOCK
        assert manager.add("blue", 4 * BLOCK).at == 4 * BLOCK
        with pytest.raises(AccessError, match="are being taken away from red"):
            manager.check("red", plan, red.at)
    assert manager.account("red").leaving_bytes == 0
    assert manager.add("blue", 4 * BLOCK).at == 0


class Watched(dict[int, Grant]):
    """A manager's grants, which nobody goes through without its lock."""

    def __init__(self, manager: FabricManager, found: dict[int, Grant]) -> None:
        super().__init__(found)
        self.manager, self.looks = manager, 0

    def values(self):  # type: ignore[no-untyped-def]
        assert self.manager._lock._is_owned()  # type: ignore[attr-defined]
        self.looks += 1
        return super().values()


def test_nothing_goes_through_grants_that_another_thread_may_change() -> None:
    manager, _ = a_manager()
    manager.add("red", BLOCK)
    manager._held = Watched(manager, manager._held)
    manager._leaving = Watched(manager, manager._leaving)
    assert manager.grants("red") and manager.account("red").held_bytes == BLOCK and len(manager.accounts()) == 1
    assert manager._held.looks == 3 and manager._leaving.looks == 2
    assert manager.free_bytes == manager.largest_bytes == CARD_BYTES - BLOCK
