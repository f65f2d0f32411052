"""The cost model against closed forms, to the nanosecond, and against max-min fair sharing as an oracle."""

import re

import pytest

from collectives.algorithms import catalog
from cxlemu.cost import CostModel, bytes_per_ms, duration_ns
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError, ConfigError, DeadlineError, PlanError
from cxlemu.plan import NOTHING, Call, DoorbellGroup, Instruction, Kind, Layout, Op, Operand, Plan, Region
from tests.helpers.by_hand import FENCE, signal, wait
from tests.helpers.fabric_helpers import LOAD_NS, WAY_NS, ends, fabric, ns, plan, read, simulated, used, write
from tests.helpers.max_min import Flow, max_min_ends_ns
from tests.helpers.tables import with_rows

MB = 1_000_003  # no rate here divides it
LOOK_NS = LOAD_NS  # without doorbell_observe_ns
ENGINES = {"to_pool_gbytes_per_s": 20, "from_pool_gbytes_per_s": 20}


@with_rows(
    (20, ENGINES),
    (8, ENGINES | {"host_link": 8}),
    (5.5, ENGINES | {"card_link": 5.5}),
    (10, ENGINES | {"write": 10, "read": 10}),
    (22.5, {}),
)
def test_one_rank_one_card_is_as_fast_as_the_slowest_part(slowest: float, figures: dict[str, float]) -> None:
    assert simulated(fabric(1, 1, **figures), [[[write(0, MB)]]]).time_ns == ns(MB, slowest)
    assert simulated(fabric(1, 1, **figures), [[[read(0, MB)]]]).time_ns == ns(MB, slowest) + LOAD_NS


def test_a_fence_waits_for_the_way_there_and_back() -> None:
    run = simulated(fabric(1, 1, fence_ns=7, **ENGINES), [[[write(0, MB), FENCE, FENCE]]])
    assert run.time_ns == ns(MB, 20) + 2 * WAY_NS + 7 + 7


def test_n_readers_of_one_card_come_one_after_another() -> None:
    run = simulated(fabric(5, 1, host_link=40, card_link=40, read=25, total=47.5), [[[read(0, MB)]]] * 5)
    assert ends(run) == [(k + 1) * ns(MB, 25) + LOAD_NS for k in range(5)]
    stood = sum(range(5))  # first before the card as a whole, then, as that is faster, before its reads
    assert used(run)["card0 both ways"] == (5 * MB, 5 * ns(MB, 47.5), stood * ns(MB, 47.5))
    assert used(run)["card0 reads"] == (5 * MB, 5 * ns(MB, 25), stood * (ns(MB, 25) - ns(MB, 47.5)))
    assert run.ops[Op.READ].queue_ns == stood * ns(MB, 25)


def test_n_readers_of_n_cards_do_not_meet() -> None:
    run = simulated(fabric(5, 5, **ENGINES), [[[read(rank, MB)]] for rank in range(5)])
    assert ends(run) == [ns(MB, 20) + LOAD_NS] * 5
    assert all(queue == 0 for _, _, queue in used(run).values())


def test_saturation_leaves_a_card_no_idle_moment() -> None:
    ranks, copies = 6, 7
    run = simulated(fabric(ranks, 1, write=9, **ENGINES), [[[write(0, MB)] * copies]] * ranks)
    assert run.time_ns == ranks * copies * ns(MB, 9)
    assert used(run)["card0 writes"][:2] == (ranks * copies * MB, run.time_ns)


def test_reads_and_writes_share_a_card() -> None:
    """The reader has the card when the writer's bytes are through it, and its own reads are the slower part."""
    topology = fabric(2, 1, total=30)
    assert ends(simulated(topology, [[[write(0, MB)]], [[read(0, MB)]]])) == [
        ns(MB, 22.5),
        ns(MB, 30) + ns(MB, 22.5) + LOAD_NS,
    ]
    full_duplex = fabric(2, 1)
    assert ends(simulated(full_duplex, [[[write(0, MB)]], [[read(0, MB)]]])) == [
        ns(MB, 22.5),
        ns(MB, 45) + ns(MB, 22.5) + LOAD_NS,
    ]


def test_directions_of_a_rank_are_apart_unless_they_share() -> None:
    streams = [[[write(0, MB)], [read(1, MB)]]]
    assert ends(simulated(fabric(1, 2, **ENGINES), streams)) == [ns(MB, 20) + LOAD_NS]
    run = simulated(fabric(1, 2, both_gbytes_per_s=30, **ENGINES), streams)
    assert ends(run) == [ns(MB, 30) + ns(MB, 20) + LOAD_NS]


def test_a_copy_engine_is_held_until_its_transfer_is_over() -> None:
    """Though the slow card alone is what takes the first one so long."""
    topology = fabric(1, 2, card_link=5, **ENGINES)
    run = simulated(topology, [[[write(0, MB)], [write(1, MB)]]])
    assert run.time_ns == 2 * ns(MB, 5)
    assert used(run)["up host0 to the pool"] == (2 * MB, 2 * ns(MB, 63), 0)  # which was free long before


def test_copies_of_one_stream_pass_one_after_another() -> None:
    run = simulated(
        fabric(1, 2, copy_ns=5000, call_ns=20_000, **ENGINES), [[[write(0, MB), write(1, MB), write(0, MB)]]]
    )
    assert run.time_ns == 20_000 + 3 * (5000 + ns(MB, 20))


def test_lines_are_flushed_and_invalidated_one_by_one() -> None:
    topology = fabric(1, 1, flush_line_ns=24, invalidate_line_ns=11)
    area = Operand(Kind.REGION, 0)
    both = [Instruction(Op.FLUSH, nbytes=65, a=area), Instruction(Op.INVALIDATE, nbytes=64, a=area)]
    assert simulated(topology, [[both]]).time_ns == 2 * 24 + 11


def test_local_work_has_its_own_rates() -> None:
    here = Operand(Kind.BUFFER)
    three = Instruction(Op.REDUCE_LOCAL, nbytes=MB, dst=here, a=here, b=here, c=here)
    two = Instruction(Op.REDUCE_LOCAL, nbytes=MB, dst=here, a=here, b=here)
    copy = Instruction(Op.COPY, nbytes=MB, dst=here, a=here)
    topology = fabric(1, 1, local_copy_gbytes_per_s=7, reduce_gbytes_per_s=11)
    assert simulated(topology, [[[three, two, copy]]]).time_ns == ns(3 * MB, 11) + ns(2 * MB, 11) + ns(MB, 7)
    assert simulated(fabric(1, 1), [[[three, two, copy]]]).time_ns == 0  # what is absent costs nothing


def test_a_reduce_reads_its_operands_in_turn_and_then_publishes() -> None:
    there, here = Operand(Kind.REGION, 0), Operand(Kind.BUFFER)
    fold = Instruction(Op.REDUCE, nbytes=MB, dst=here, dst2=Operand(Kind.REGION, 1), a=there, b=here, c=there)
    topology = fabric(1, 2, copy_ns=100, reduce_gbytes_per_s=11, **ENGINES)
    each = 100 + ns(MB, 20)
    assert simulated(topology, [[[fold]]]).time_ns == 2 * (each + LOAD_NS) + ns(3 * MB, 11) + each
    alone = fold._replace(a=here, c=NOTHING, dst2=NOTHING)
    assert simulated(topology, [[[alone]]]).time_ns == ns(2 * MB, 11)


def test_a_doorbell_goes_back_and_forth() -> None:
    rounds = 9
    one = [i for k in range(rounds) for i in (signal(0, k), wait(8, k))]
    other = [i for k in range(rounds) for i in (wait(0, k), signal(8, k))]
    topology = fabric(2, 1, doorbell_ring_ns=1500, doorbell_observe_ns=2142)
    run = simulated(topology, [[one], [other]], rounds=rounds)
    assert run.time_ns == 2 * rounds * (1500 + WAY_NS + 2142 + LOOK_NS)
    assert run.exposed_wait_ns.tolist() == [
        run.time_ns - rounds * 1500,
        run.time_ns - WAY_NS - 2142 - LOOK_NS - rounds * 1500,
    ]


def test_a_chain_is_bound_by_latency() -> None:
    """Rank k waits for rank k - 1."""
    ranks = 40
    chain = [[[wait(8 * (rank - 1)), signal(8 * rank)] if rank else [signal(0)]] for rank in range(ranks)]
    run = simulated(fabric(ranks, 3, doorbell_ring_ns=50), chain)
    assert ends(run) == [(rank + 1) * 50 + rank * (WAY_NS + LOOK_NS) for rank in range(ranks)]


def test_who_comes_late_looks_once() -> None:
    run = simulated(fabric(2, 1, local_copy_gbytes_per_s=1), [[[signal(0)]], [[busy(10_000), wait(0)]]])
    assert ends(run) == [0, 10_000 + LOOK_NS]


def busy(nbytes: int) -> Instruction:
    return Instruction(Op.COPY, nbytes=nbytes, dst=Operand(Kind.BUFFER), a=Operand(Kind.BUFFER))


def test_a_group_is_there_when_its_last_doorbell_is() -> None:
    everyone = Instruction(Op.WAIT_ALL, arg=0)
    topology = fabric(3, 2, local_copy_gbytes_per_s=1)
    for late in range(2):
        ranks = [[[busy(5000 if rank == late else 10), signal(8 * rank)]] for rank in range(2)]
        run = simulated(topology, [*ranks, [[everyone]]], groups=(DoorbellGroup(0, 2, 8),))
        assert ends(run)[2] == 5000 + WAY_NS + LOOK_NS


def test_who_waits_for_a_later_round_sleeps_through_earlier_ones() -> None:
    done = 2 * 8  # done[0], which shows round after round
    rings = [[busy(10), signal(done, 0), busy(5000), signal(done, 1)]]  # the other rank waits before any is rung
    run = simulated(fabric(2, 1, local_copy_gbytes_per_s=1), [rings, [[wait(done, 1)]]], rounds=2)
    assert ends(run)[1] == 5010 + WAY_NS + LOOK_NS
    run = simulated(fabric(2, 1, local_copy_gbytes_per_s=1), [rings, [[wait(done, 0)]]], rounds=2)
    assert ends(run)[1] == 10 + WAY_NS + LOOK_NS


def test_a_wait_is_exposed_only_while_no_other_stream_is_busy() -> None:
    topology = fabric(2, 1, local_copy_gbytes_per_s=1)
    streams = [[busy(3000)], [busy(1000), wait(8)]]
    run = simulated(topology, [streams, [[busy(4000), signal(8)]]])
    assert ends(run)[0] == 4000 + WAY_NS + LOOK_NS
    assert run.exposed_wait_ns.tolist() == [1000 + WAY_NS + LOOK_NS, 0]


def test_a_barrier_scans_a_group() -> None:
    ranks = 7
    topology = fabric(ranks, 2, doorbell_ring_ns=50, doorbell_observe_ns=30, doorbell_scan_ns=10, call_ns=1000)
    barrier = catalog.build(
        catalog.recipe("barrier", "line"), Layout(ranks, 2, 4, 4096, 64, 256), Call("barrier", "line", ranks, 0)
    )
    run = simulate(CostModel.of(topology, ranks), [VirtualCall(barrier)])
    assert ends(run) == [1000 + 50 + WAY_NS + 30 + LOOK_NS + (ranks - 1) * 10 + 50] * ranks


def test_what_a_doorbell_takes_to_arrive_is_hidden_behind_others() -> None:
    """One who waits for each of many doorbells pays it once; what it costs to see one is paid each time."""
    for name, times in (("doorbell_arrival_ns", 1), ("doorbell_observe_ns", 5)):
        usual, slow = (
            simulated(fabric(2, 2, **costs), [[[signal(k) for k in range(5)]], [[wait(k) for k in range(5)]]])
            for costs in ({}, {name: 7000})
        )
        assert ends(slow)[1] - ends(usual)[1] == times * 7000


def test_a_ring_passes_a_block_on() -> None:
    """Each step: write, fence, ring; wait for the one before, read its card."""
    ranks = 6
    topology = fabric(ranks, ranks, doorbell_ring_ns=50, **ENGINES)

    def steps(rank: int) -> list[Instruction]:
        before = (rank - 1) % ranks
        return [
            i
            for step in range(ranks - 1)
            for i in (write(rank, MB), FENCE, signal(8 * rank + step), wait(8 * before + step), read(before, MB))
        ]

    step_ns = ns(MB, 20) + 2 * WAY_NS + 50 + WAY_NS + LOOK_NS + ns(MB, 20) + LOAD_NS
    run = simulated(topology, [[steps(rank)] for rank in range(ranks)])
    assert ends(run) == [(ranks - 1) * step_ns] * ranks


def test_a_broadcast_is_a_pipeline() -> None:
    """The slower of root and reader sets the pace; the other one is filled and drained once."""
    chunks = 5
    root = [i for k in range(chunks) for i in (write(k, MB), FENCE, signal(k))]
    reader = [i for k in range(chunks) for i in (wait(k), read(k, MB))]
    run = simulated(fabric(2, chunks, doorbell_ring_ns=50, **ENGINES), [[root], [reader]])
    published = ns(MB, 20) + 2 * WAY_NS + 50
    read_ns = LOOK_NS + ns(MB, 20) + LOAD_NS
    assert read_ns > published
    assert ends(run) == [chunks * published, published + WAY_NS + chunks * read_ns]
    # a slower root is what they wait for
    slow = fabric(2, chunks, doorbell_ring_ns=50, to_pool_gbytes_per_s=2, from_pool_gbytes_per_s=20)
    published = ns(MB, 2) + 2 * WAY_NS + 50
    assert ends(simulated(slow, [[root], [reader]])) == [chunks * published, chunks * published + WAY_NS + read_ns]


def test_two_levels_of_switches_share_what_joins_them() -> None:
    ranks, far = 4, 20 + 100 + 30 + 100 + 20
    run = simulated(fabric(ranks, ranks, trunk=12), [[[read(rank, MB)]] for rank in range(ranks)])
    assert ends(run) == [(rank + 1) * ns(MB, 12) + 2 * far + 378 for rank in range(ranks)]
    assert used(run)["trunk from the pool"][:2] == (ranks * MB, ranks * ns(MB, 12))


@pytest.mark.parametrize(("flit", "payload"), [(68, 64), (640, 628), (272, 256), (1, 1)])
def test_a_link_carries_whole_flits_and_takes_its_time_for_each_message(flit: int, payload: int) -> None:
    """InfiniBand's messages, NVLink's and UALink's flits: a link that is slower than anything else."""
    up = f", message_ns: 700, flit_bytes: {flit}, flit_payload_bytes: {payload}"
    each = 700 + ns(-(-MB // payload) * flit, 12)
    run = simulated(fabric(1, 1, host_link=12, up=up), [[[write(0, MB)] * 3]])
    assert run.time_ns == 3 * each
    assert used(run)["up host0 to the pool"][:2] == (3 * MB, 3 * each)
    assert (
        ends(simulated(fabric(2, 2, host_link=12, up=up), [[[read(rank, MB)]] for rank in range(2)]))
        == [each + LOAD_NS] * 2
    )


@with_rows(
    (", flit_bytes: 68", "links[0].flit_payload_bytes is missing: how much of a flit's 68 bytes is payload"),
    (", flit_payload_bytes: 64", "links[0].flit_bytes is missing"),
    (", flit_bytes: 64, flit_payload_bytes: 68", "links[0].flit_payload_bytes is 68 but should be 64 at most"),
    (", message_ns: -1", "links[0].message_ns is -1 but should be greater than or equal to 0"),
)
def test_flits_that_carry_no_payload_are_refused(more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        fabric(1, 1, up=more)


def test_interleaved_bytes_move_at_once() -> None:
    granule, cards = 4096, 4
    spread = (Region(0, cards, granule, 0, 0, 1 << 30),)
    nbytes = 40 * granule  # ten granules on each card
    fast = fabric(1, cards, write=2, host_link=63)
    assert simulated(fast, [[[write(0, nbytes)]]], regions=spread).time_ns == ns(nbytes // cards, 2)
    slow_link = fabric(1, cards, write=2, host_link=3)
    run = simulated(slow_link, [[[write(0, nbytes)]]], regions=spread)
    assert run.time_ns == ns(nbytes, 3)
    assert used(run)["up host0 to the pool"] == (nbytes, ns(nbytes, 3), 0)
    assert [used(run)[f"card{card} writes"][0] for card in range(cards)] == [nbytes // cards] * cards


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 1), (100, 4096), (4095, 2), (4000, 9 * 4096), (1, 40_000)])
def test_broken_granules_lie_where_the_address_map_says(offset: int, nbytes: int) -> None:
    spread = Region(1, 3, 4096, 0, 64, 1 << 30)
    there = write(0, nbytes)._replace(dst=Operand(Kind.REGION, 0, 0, offset))
    run = simulated(fabric(1, 4), [[[there]]], regions=(spread,))
    expected = {f"card{e.card} writes": 0 for e in spread.map.extents(offset, nbytes)}
    for piece in spread.map.runs(offset, nbytes):
        expected[f"card{piece.card} writes"] += piece.nbytes
    assert {name: its[0] for name, its in used(run).items() if name.endswith("writes")} == expected


def test_calls_follow_each_other() -> None:
    once = [[[write(0, MB), FENCE, signal(0)]], [[wait(0), read(0, MB)]]]
    topology = fabric(2, 1, call_ns=500, **ENGINES)
    run = simulated(topology, once, calls=3)
    write_ns = 500 + ns(MB, 20) + 2 * WAY_NS
    assert [its.tolist()[0] for its in run.end_ns] == [write_ns, 2 * write_ns, 3 * write_ns]
    assert run.begin_ns[1].tolist() == run.end_ns[0].tolist()


def gathering(ranks: int) -> Plan:
    """Plan an all_gather anew, on as many cards."""
    layout = Layout(ranks, ranks, 4, 4096, 64, 256)
    return catalog.build(catalog.recipe("all_gather", "all"), layout, Call("all_gather", "all", ranks, 1 << 16, "f32"))


def test_a_plan_that_is_called_again_is_packed_once_and_takes_its_time_again() -> None:
    model, its = CostModel.of(fabric(3, 3), 3), gathering(3)
    again, anew = (simulate(model, [VirtualCall(its), VirtualCall(more)]) for more in (its, gathering(3)))
    assert [ends.tolist() for ends in again.end_ns] == [ends.tolist() for ends in anew.end_ns]
    assert again.instructions == anew.instructions == 2 * sum(part.instruction_count for part in its.parts)


def test_parts_of_large_worlds_are_built_for_one_use(monkeypatch: pytest.MonkeyPatch) -> None:
    its, kept = gathering(4), gathering(4)
    monkeypatch.setattr("cxlemu.plan.plan.KEPT_RANKS", 3)
    assert [part.rank for part in its.each_part()] == [0, 1, 2, 3]
    first = its.part(1)
    assert list(its.each_part())[1] is first
    assert next(its.each_part()) is not next(its.each_part())
    monkeypatch.setattr("cxlemu.plan.plan.KEPT_RANKS", 4)
    assert all(one is other for one, other in zip(kept.each_part(), kept.parts, strict=True))
    assert its.digest == kept.digest


def test_a_split_world_makes_calls_of_its_parts() -> None:
    half = plan([[[signal(0), wait(8)]], [[signal(8), wait(0)]]], 2)
    run = simulate(CostModel.of(fabric(4, 2), 4), [VirtualCall(half, (0, 2)), VirtualCall(half, (3, 1))])
    assert [its.tolist() for its in run.end_ns] == [[WAY_NS + LOOK_NS] * 2] * 2
    with pytest.raises(ArgumentError, match="needs as many different members"):
        simulate(CostModel.of(fabric(4, 2), 4), [VirtualCall(half, (0, 0))])


def test_events_order_the_streams_of_a_rank() -> None:
    record, after = Instruction(Op.RECORD, arg=0), Instruction(Op.AWAIT, arg=0)
    run = simulated(fabric(1, 2, **ENGINES), [[[write(0, MB), record], [after, read(1, MB)]]], events=1)
    assert run.time_ns == 2 * ns(MB, 20) + LOAD_NS


def test_a_deadlock_is_told() -> None:
    with pytest.raises(
        DeadlineError, match=r"deadlock .* rank 0 waits for rank 1 to ring .*; rank 1 waits for rank 0 to ring"
    ):
        simulated(fabric(2, 1), [[[wait(8), signal(0)]], [[wait(0), signal(8)]]])


@pytest.mark.parametrize(
    "wrong",
    [
        write(7, 64),
        write(0, -1),
        write(0, 1 << 50),
        read(7, 64),
        Instruction(Op.READ, nbytes=64, a=Operand(Kind.REGION, 0, 0, -64)),
        signal(-1),
        signal(10**6),
        signal(0, 5),
        signal(0, -9),
        signal(0, 2**63 - 1),
        wait(-1),
        wait(10**6),
        wait(0, 2**63 - 1),
        wait(0, -(2**63)),
        Instruction(Op.WAIT_ALL, arg=1),
        Instruction(Op.WAIT_ALL, arg=0, value=10**9),
        Instruction(Op.WAIT_ALL, arg=0, value=2**63 - 1),
        Instruction(Op.RECORD, arg=1),
        Instruction(Op.AWAIT, arg=-1),
        Instruction(Op.COPY, nbytes=-1),
        Instruction(Op.COMPUTE, nbytes=1),
    ],
)
def test_records_that_name_what_is_not_there_are_refused(wrong: Instruction) -> None:
    with pytest.raises(PlanError, match="rank 0, stream 0, record 0 cannot be simulated"):
        simulated(fabric(1, 1), [[[wrong]]], groups=(DoorbellGroup(0, 1, 1),), events=1)


@with_rows(
    {"regions": (Region(0, 2, 64, 0, 0, 64),)},
    {"regions": (Region(-1, 1, 64, 0, 0, 64),)},
    {"regions": (Region(0, 1, 0, 0, 0, 64),)},
    {"groups": (DoorbellGroup(0, 100, 1),)},
    {"groups": (DoorbellGroup(0, 0, 1),)},
)
def test_tables_that_name_what_is_not_there_are_refused(tables: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="names what is not there"):
        simulated(fabric(1, 1), [[[write(0, 64)]]], **tables)


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 2**62), (4, 2**62), (3, 2**62 - 1), (1, 2**62)])
def test_more_rounds_than_there_is_memory_for_are_refused(ranks: int, rounds: int) -> None:
    """Each rank's doorbells of all rounds are one table, whose length must not overflow: 4 times 2^62 would be 0."""
    with pytest.raises(ArgumentError, match=f"not enough memory for the doorbells of {ranks} ranks"):
        simulated(fabric(ranks, 1), [[[FENCE]]] * ranks, rounds=rounds)


def test_a_time_too_long_is_told() -> None:
    with pytest.raises(ArgumentError, match="longer than 2\\^60 ns"):
        simulated(fabric(1, 1, to_pool_gbytes_per_s=1e-6), [[[write(0, 1 << 41)] * 3]])


def test_durations_are_whole_nanoseconds_rounded_up() -> None:
    assert bytes_per_ms(22.5) == 22_500_000
    assert [duration_ns(n, 22.5) for n in (0, 1, 22, 23, 45)] == [0, 1, 1, 2, 2]
    assert duration_ns(1 << 40, None) == 0


def test_first_come_first_served_is_close_to_fair_sharing_where_starts_are_staggered() -> None:
    """All-gather: at step k rank r reads what rank r + k published. Only six cards, so that ranks do meet."""
    ranks, cards = 12, 6
    order = [[(rank + step) % ranks % cards for step in range(1, ranks)] for rank in range(ranks)]
    run = simulated(fabric(ranks, cards, total=22.5, **ENGINES), [[[read(c, MB) for c in cards_]] for cards_ in order])
    fair = max_min_ends_ns(
        [[Flow(MB, {f"card{c}": 22.5, f"engine{r}": 20}) for c in its] for r, its in enumerate(order)]
    )
    assert max(fair) == pytest.approx(ranks * (ranks - 1) * MB / (cards * 22.5))  # every card is busy all the time
    assert 0.94 < run.time_ns / max(fair) < 1.06


def test_fair_sharing_locks_readers_of_one_stream_into_a_convoy() -> None:
    """Broadcast: all read chunk k from card k. Served in turn, they spread over the cards; sharing, they never do."""
    ranks, chunks = 6, 6
    order = [list(range(chunks))] * ranks
    run = simulated(fabric(ranks, chunks, total=22.5, **ENGINES), [[[read(c, MB) for c in cards]] for cards in order])
    fair = max_min_ends_ns(
        [[Flow(MB, {f"card{c}": 22.5, f"engine{r}": 20}) for c in its] for r, its in enumerate(order)]
    )
    assert max(fair) == pytest.approx(chunks * ranks * MB / 22.5)
    assert run.time_ns < max(fair) / 2
