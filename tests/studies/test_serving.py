"""Serving: times worked out by hand, what holds in every run, and traces that are refused."""

import heapq
import json
from collections import OrderedDict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.cost import CostModel
from cxlemu.engines.shared import SharedFabric
from cxlemu.engines.transfers import Transfers
from cxlemu.errors import ArgumentError
from cxlemu.plan import Region
from cxlemu.topology import Accelerator, Topology
from cxlemu.topology.intervals import changed, uncertain
from studies.serving.blocks import BlockCache
from studies.serving.events import Incident
from studies.serving.instance import BOTH, Instance, Served
from studies.serving.iterations import Iterations
from studies.serving.movement import BlockMove, Movement
from studies.serving.outcome import ServingOutcome
from studies.serving.places import StoreHome
from studies.serving.requests import BLOCK_TOKENS, ServingRequest, dumped, generate, load, multiplied, reusable_tokens
from studies.serving.simulation import ServingSetup, Simulation, simulate
from studies.serving.varied import answer_intervals, figures_of
from studies.tiering.program import Program, timed
from studies.training.language_model import LanguageModel
from tests.helpers.serving import BLOCK_BYTES, TOKEN_NS, iterations, machine, request
from tests.helpers.tables import with_rows

PLACES = ("accelerator", "host", "pool", "rdma")


def served(
    requests: Sequence[ServingRequest], place: str = "pool", hosts: int = 1, rate: float = 1, **more: Any
) -> Simulation:
    blocks = more.pop("blocks", 100)
    incidents = tuple(Incident(kind, number, at_us * 1000) for kind, number, at_us in more.pop("incidents", ()))
    return simulate(
        ServingSetup(machine(hosts, rate), iterations(blocks), place, incidents=incidents, **more), requests
    )


def firsts_us(run: Simulation) -> list[float]:
    return [(its.first_ns or 0) / 1000 for its in run.served]


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_a_prompt_takes_its_tokens_and_an_answer_a_token_each_iteration() -> None:
    run = served([request(0, [1, 2], answer=4)], "accelerator")
    (its,) = run.served
    assert (its.first_ns, its.end_ns) == (1024 * TOKEN_NS, 1027 * TOKEN_NS)
    assert its.token_ns == TOKEN_NS


def test_a_chunk_of_a_prompt_and_the_tokens_of_answers_share_an_iteration() -> None:
    """The first prompt ends at 512 us. Then 256 - 1 tokens of the second go beside each token of the first's answer."""
    run = served([request(0, [1], answer=3), request(1, [2])], "accelerator", chunk=256)
    # two chunks of 256; then (1 + 255) and (1 + 255), with which the first answer ends; then the last 2 tokens
    assert firsts_us(run) == [512, 512 + 256 + 256 + 2]
    assert run.served[0].end_ns == 1024 * TOKEN_NS


def test_a_prefix_is_reused_from_the_memory_up_to_the_last_token() -> None:
    run = served([request(0, [1, 2]), request(2000, [1, 3]), request(4000, [1, 2])], "accelerator")
    assert [its.from_accelerator for its in run.served] == [0, 512, 1023]
    assert firsts_us(run) == [1024, 2512, 4001]


def test_a_prefix_that_the_memory_lost_is_read_from_the_store() -> None:
    """The memory holds four blocks with an answer's. Block 1 is at 1 GB/s in the pool 512 us after it was computed."""
    run = served([request(0, [1]), request(3000, [2, 3, 4]), request(9000, [1, 9])], blocks=4)
    # 9000 + 512 us of reading + 512 tokens
    assert firsts_us(run) == [512, 3000 + 3 * 512, 9000 + 512 + 512]
    assert [its.from_store for its in run.served] == [0, 0, 512]
    assert ServingOutcome.of(run).hit_rate == 512 / (6 * 512 + 512 - 512)


@with_rows(
    ("accelerator", 5512),  # the other host computes it
    ("host", 5512),
    ("pool", 5000 + 512 + 1),  # 1 GB/s
    ("rdma", 5000 + 1024 + 1),  # block 1 is on host 1: 0.5 GB/s for host 0 to write, none on the way for host 1
)
def test_what_one_host_computed_another_one_reuses_where_the_store_is_shared(place: str, second_us: int) -> None:
    """The first host is busy with a long answer, so that the second request goes to the other."""
    block = 0 if place == "rdma" else 1  # of two hosts, the first one's: the second reads it over the network
    run = served([request(0, [block], answer=20000), request(5000, [block])], place, hosts=2)
    assert firsts_us(run) == [512, second_us]


def test_hosts_that_read_at_once_share_what_they_have_in_common() -> None:
    """Two hosts with links of 300 GB/s read from cards that carry 200 GB/s together."""
    run = served([request(0, [1, 2]), request(0, [1, 3])], hosts=2, rate=300, blocks=3, warm=True)
    each_ns = BLOCK_BYTES // 200
    assert (run.movement.carried[0].end_ns, run.movement.carried[1].end_ns) == (each_ns, 2 * each_ns)
    assert run.movement.queued_ns == each_ns  # beside that, both write without meeting
    assert [its.from_store for its in run.served] == [512, 512]


def test_prefill_and_decoding_apart_hand_over_through_the_store() -> None:
    """512 us of prefill, a block written for 512 us (to the store, then for the hand-over), read for 512 us."""
    run = served([request(0, [1], answer=3)], hosts=2, prefill=1)
    (its,) = run.served
    assert its.first_ns == 512_000
    assert its.end_ns == (512 + 2 * 512 + 512 + 2) * 1000


def test_a_crash_lets_requests_begin_again_elsewhere_and_keeps_the_first_token() -> None:
    run = served([request(0, [1], answer=101)], "pool", hosts=2, incidents=[("crash", 0, 600)])
    (its,) = run.served
    assert [str(one) for one in run.happened] == ["--crash 0@0.0006"]
    # 88 tokens of the answer came; the write to the store was cut off, so host 1 computes the prompt again
    assert (its.first_ns, its.end_ns, its.restarts, its.again) == (512_000, (600 + 512 + 100) * 1000, 1, 512)


def test_a_pool_outlives_a_host() -> None:
    for place, first_us in (("pool", 9000 + 512 + 1), ("rdma", 9512)):
        run = served([request(0, [0]), request(9000, [0])], place, hosts=2, incidents=[("crash", 0, 5000)])
        assert firsts_us(run) == [512, first_us], place


def test_a_read_from_a_host_that_crashes_ends_and_the_prompt_is_computed() -> None:
    """Host 1 reads block 0 from host 0 for 1024 us; host 0 crashes meanwhile, and its answer begins again on host 1."""
    requests = [request(0, [0], answer=20000), request(5000, [0])]
    run = served(requests, "rdma", hosts=2, incidents=[("crash", 0, 5500)])
    assert firsts_us(run) == [512, 5500 + 512]
    assert run.served[0].end_ns is not None


def test_a_lost_card_takes_all_blocks_with_it() -> None:
    """The memory of an instance has no room to keep what it computed; at 5.6 ms the read is under way."""
    requests = [request(0, [1]), request(3000, [2, 3]), request(5500, [1])]
    assert firsts_us(served(requests, blocks=3))[2] == 5500 + 512 + 1
    run = served(requests, blocks=3, incidents=[("lose-card", 1, 5600)])
    assert firsts_us(run)[2] == 5600 + 512
    assert run.happened


def test_a_host_that_starts_cold_reads_its_weights_first() -> None:
    run = served([request(0, [1])], incidents=[("cold-start", 0, 100)])
    assert firsts_us(run) == [100 + 64 * 0 + 3 * 512 + 512]  # three blocks' worth of weights at 1 GB/s


def test_a_host_comes_back_after_its_crash() -> None:
    run = served([request(0, [1], answer=2000)], incidents=[("crash", 0, 600), ("cold-start", 0, 700)])
    (its,) = run.served
    assert its.end_ns == (700 + 3 * 512 + 512 + 1999) * 1000
    assert len(run.happened) == 2


def test_nobody_is_left_to_serve() -> None:
    run = served([request(0, [1], answer=200)], incidents=[("crash", 0, 600)])
    assert run.served[0].end_ns is None


def test_nobody_is_left_to_answer() -> None:
    """Prompts are computed, but the host that answers is gone; once it is back, all begins again."""
    gone = served([request(0, [1], answer=9)], hosts=2, prefill=1, incidents=[("crash", 1, 100)])
    assert (gone.served[0].end_ns, firsts_us(gone)) == (None, [512])
    back = [("crash", 1, 100), ("cold-start", 1, 5000)]
    its = served([request(0, [1], answer=9)], hosts=2, prefill=1, incidents=back).served[0]
    # weights of three blocks; the prompt is there but for its last token, is handed over and read; eight tokens
    assert its.end_ns == (5000 + 3 * 512 + 1 + 512 + 512 + 8) * 1000
    cards = [("lose-card", 0, 600), ("lose-card", 1, 700)]
    assert served([request(800, [1], answer=9)], hosts=2, prefill=1, incidents=cards).served[0].end_ns is None


def test_a_request_that_fits_no_memory_is_refused() -> None:
    run = served([request(0, [1, 2, 3]), request(1, [1])], blocks=2)
    assert [its.refused for its in run.served] == [True, False]
    assert run.served[1].end_ns is not None


def test_routing_by_prefix_goes_where_the_blocks_are() -> None:
    """Host 0 has a little more to do, and the prompt's blocks."""
    requests = [request(0, [1, 2, 3]), request(3000, [9], answer=400), request(3100, [8]), request(3200, [1, 2, 3])]
    balanced, kept = (served(requests, "accelerator", hosts=2, route=route) for route in ("balance", "prefix"))
    assert [run.served[3].from_accelerator for run in (balanced, kept)] == [0, 1535]


# --- the same costs as plans ------------------------------------------------------------------------------------------


def test_transfers_take_what_reads_of_a_plan_take() -> None:
    """Three ranks that read block after block, as a plan in the virtual engine and one by one, to the nanosecond."""
    topology = Topology.load("titan2-6xcz120")
    model, granule = CostModel.of(topology, 3), topology.pool_space.granule_bytes
    regions = [[Region(0, 6, granule, 0, 0, 1 << 40)] * 3]
    sizes = [[1 << 20, 777, 3 << 20], [5 << 20, 1 << 16], [64, 2 << 20, 1 << 20, 99]]
    programs = [
        Program(np.zeros(len(its), int), np.zeros(len(its), int), np.array(its), 1 << 30)  # each from the beginning
        for its in sizes
    ]
    run, _ = timed(model, regions, programs)
    transfers = Transfers(model)
    ends: list[list[int]] = [[], [], []]
    heap = [(int(run.begin_ns[0][rank]) + topology.costs.call_ns, rank) for rank in range(3)]  # type: ignore[operator]
    while heap:
        now_ns, rank = heapq.heappop(heap)
        nbytes = sizes[rank][len(ends[rank])]
        moved = transfers.move(rank, range(6), nbytes, to_pool=False, now_ns=now_ns, granule_bytes=granule)
        ends[rank].append(moved.end_ns)
        if len(ends[rank]) < len(sizes[rank]):
            heapq.heappush(heap, (moved.end_ns, rank))
    for rank in range(3):
        mine = run.executed[run.executed["rank"] == rank]
        assert ends[rank] == [int(ns) for ns in mine["end_ns"]][: len(ends[rank])]
    assert [use.bytes for use in transfers.uses] == [use.bytes for use in run.uses]


def test_transfers_refuse_what_is_not_there() -> None:
    transfers = Transfers(CostModel.of(machine(), 1))
    for rank, cards, nbytes in ((1, (0,), 1), (0, (9,), 1), (0, (0,), -1), (-1, (0,), 1)):
        with pytest.raises(ValueError, match="names what is not there"):
            transfers.move(rank, cards, nbytes, to_pool=False, now_ns=0)


def test_an_iteration_reads_the_weights_and_grows_with_what_it_looks_back_at() -> None:
    model, computer = LanguageModel.load("llama3-8b"), Accelerator.load("h100-sxm")
    its = Iterations(model, computer)
    floor_ns = its.weight_bytes / computer.memory_bytes_per_s * 1e9
    alone = its.ns(1, 0, 1, 1)
    assert 0.8 * floor_ns < alone < 2 * floor_ns  # the embedding is not read, tiles are not free
    context = 100_000
    more = round(context * model.kv_bytes / computer.memory_bytes_per_s * 1e9)
    assert its.ns(1, 0, 1 + context, 1) - alone == pytest.approx(more, abs=2)
    assert model.kv_bytes == 131072  # 2 x 32 blocks x 8 heads x 128 x 2 bytes
    with pytest.raises(ArgumentError, match="give --tp"):
        _ = Iterations(LanguageModel.load("llama3-405b"), computer).blocks
    with pytest.raises(ArgumentError, match="needs --inside"):
        Iterations(model, computer, 2)


class Bytes:
    """A fabric on which a collective takes a nanosecond for each byte."""

    name = "bytes"
    chosen: ClassVar[dict[str, str]] = {}

    def line(self, ranks: int) -> str:
        return ""

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        assert size_bytes % (2 * ranks) == 0
        return size_bytes


class Nothing(Bytes):
    """A fabric on which a collective takes no time."""

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        return 0


def test_expert_ranks_share_requests_and_experts_and_send_each_other_tokens() -> None:
    model, computer = LanguageModel.load("llama4-maverick"), Accelerator.load("b200")
    four, one = Iterations(model, computer, 1, Bytes(), 4), Iterations(model, computer)
    experts = 24 * 128 * 3 * 5120 * 8192  # in half of the blocks
    assert one.weight_bytes == 2 * model.parameters
    assert four.weight_bytes == 2 * experts + 4 * 2 * (model.parameters - experts)
    # a quarter of the tokens on each rank; in 24 blocks they go to one expert each and back, as 5,120 x 2 bytes
    for tokens in (64, 65, 8192, 10_000):
        mine = -(-tokens // 4)
        silent = Iterations(model, computer, 1, Nothing(), 4)
        assert four.ns(tokens, 0, 0, 0) - silent.ns(tokens, 0, 0, 0) == 2 * 24 * mine * 5120 * 2
        assert silent.ns(tokens, 0, 0, 0) < one.ns(tokens, 0, 0, 0)
    read_ns = 1_000_000 * model.kv_bytes / computer.memory_bytes_per_s * 1e9 / 4
    assert four.ns(4, 0, 1_000_000, 4) - four.ns(4, 0, 0, 4) == pytest.approx(read_ns, abs=2)
    both = Iterations(model, computer, 2, Bytes(), 4)
    reduced_ns = 2 * 48 * 16 * 5120 * 2  # beside experts', twice in each of 48 blocks
    silent = Iterations(model, computer, 2, Nothing(), 4)
    assert both.ns(64, 0, 0, 0) - silent.ns(64, 0, 0, 0) == reduced_ns + 2 * 24 * 16 * 5120 * 2
    holders = Instance(0, 0, range(8, 16), BOTH, both, 1, 1)
    assert [list(holders.ranks_of(Served(n, request(0, [1])))) for n in (0, 3, 4)] == [[8, 9], [14, 15], [8, 9]]


def test_moves_of_an_instance_are_those_of_all_its_groups() -> None:
    fabric = SharedFabric(CostModel.of(Topology.load("serving-2x8h800"), 16))
    movement, home = Movement(fabric.transfers, fabric.schedule), StoreHome(BlockCache(1), (0,), 0)
    ends: list[int] = []
    moves = [
        BlockMove(ranks, deque([(home, 1 << 20)]), False, ends.append, ends.clear) for ranks in ((0, 1), (2, 3), (8, 9))
    ]
    for move in moves:
        movement.add(move, 0)
    assert movement.of(range(8)) == moves[:2]
    fabric.run(lambda: len(ends) < 3)
    assert ends[1] < 2 * ends[0]  # side by side: they share only the memory


@with_rows(
    ("llama3-8b", 1, Bytes(), 2, "ep=2 does nothing: llama3-8b has no experts"),
    ("llama4-maverick", 1, Bytes(), 3, "ep=3 does not divide the 128 experts of llama4-maverick"),
    ("llama4-maverick", 1, None, 2, "ep=2 needs --inside"),
    ("llama4-maverick", 2, None, 1, "tp=2 needs --inside"),
)
def test_expert_ranks_that_cannot_be_are_refused(
    model: str, tensor: int, inside: Bytes | None, expert: int, said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        Iterations(LanguageModel.load(model), Accelerator.load("b200"), tensor, inside, expert)


def test_answers_are_intervals_within_the_ranges_of_figures() -> None:
    """Requests one at a time, all figures as they stand, each at both ends, and twenty times at once."""
    topology, computer = Topology.load("serving-16xh100"), Accelerator.load("h100-sxm")
    its = Iterations(LanguageModel.load("llama3-8b"), computer)
    requests = [ServingRequest(at * 10**9, 1024, 8, (at % 2, 2 + at % 2)) for at in range(4)]
    setup, seen = ServingSetup(topology, its, "accelerator"), []
    found = answer_intervals(setup, requests, lambda number, of: seen.append((number, of)))
    ours = ServingOutcome.of(simulate(setup, requests)).first_token
    assert ours is not None
    first = found["time to first token, p50, ms"]
    assert first.middle == ours.percentiles[0] / 1e6
    assert first.low <= first.alone_low <= first.middle <= first.alone_high <= first.high
    assert first.alone == "h100-sxm: gemm_efficiency"
    (share,) = [figure for figure in uncertain(computer) if figure.name == "gemm_efficiency"]
    ends = []
    for value in (share.high, share.low):
        there = ServingSetup(topology, its.on(changed(computer, {share.key: value})), "accelerator")
        spread = ServingOutcome.of(simulate(there, requests)).first_token
        ends.append(spread.percentiles[0] / 1e6)
    assert [first.alone_low, first.alone_high] == ends
    assert found["input reused, %"][:3] == (found["input reused, %"].middle,) * 3
    figures = [figure for figure in uncertain((topology, computer)) if figure.key[0] == 1]
    assert seen == [(number, 1 + 2 * len(figures) + 20) for number in range(1, 2 + 2 * len(figures) + 20)]
    pool = figures_of(ServingSetup(topology, its, "pool"))
    assert {figure.name for figure in pool} >= {"serving-16xh100: costs.copy_ns", "h100-sxm: gemm_efficiency"}
    assert not any("hosts.memory" in figure.name for figure in pool)


# --- what holds in every run ------------------------------------------------------------------------------------------

LISTS = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(0, 3), st.integers(1, 4), st.integers(1, 600), st.integers(1, 40)),
    min_size=1,
    max_size=12,
)


def requests_of(rows: list[tuple[int, int, int, int, int]]) -> list[ServingRequest]:
    """Requests whose ids are those of their prefixes: families of blocks that share beginnings."""
    found = []
    for at_us, family, count, last, answer in sorted(rows):
        tokens = (count - 1) * BLOCK_TOKENS + min(last, BLOCK_TOKENS)
        found.append(request(at_us, [10 * family + at for at in range(count)], tokens, answer))
    return found


@given(
    rows=LISTS,
    place=st.sampled_from(PLACES),
    hosts=st.integers(1, 3),
    blocks=st.integers(3, 12),
    stored=st.integers(3, 9),
    crash=st.booleans(),
)
def test_tokens_are_conserved_and_no_memory_is_overfull(
    rows: list[tuple[int, int, int, int, int]], place: str, hosts: int, blocks: int, stored: int, crash: bool
) -> None:
    """Whatever happens: each input token was reused or computed once, each instance ends empty, all links carried what
    the moves say, and no cache ever holds more than it has room for."""
    requests = requests_of(rows)
    incidents = [("crash", 0, 900), ("cold-start", 0, 1500)] if crash else []
    capacity = None if place == "accelerator" else stored * hosts * BLOCK_BYTES
    with pytest.MonkeyPatch.context() as patch:
        watched(patch)
        run = served(requests, place, hosts, blocks=blocks, capacity_bytes=capacity, incidents=incidents)
    for its in run.served:
        if its.refused:
            assert its.request.block_count > blocks
            continue
        assert its.end_ns is not None
        assert its.first_ns is not None
        assert its.request.arrival_ns < its.first_ns <= its.end_ns
        assert its.from_accelerator + its.from_store + its.computed == its.request.input_tokens
    for one in run.instances:
        assert (one.here, one.admitted, one.answering, one.context, one.load) == ({}, 0, 0, 0, 0)
        assert one.memory.used == 0
    if place == "accelerator":
        assert not any(its.from_store for its in run.served)
    again = served(requests, place, hosts, blocks=blocks, capacity_bytes=capacity, incidents=incidents)
    assert ServingOutcome.of(again).document() == ServingOutcome.of(run).document()


def watched(patch: pytest.MonkeyPatch) -> None:
    for name in ("reserve", "share", "leave", "release"):
        whole = getattr(BlockCache, name)

        def checked(self: BlockCache, *args: Any, whole: Any = whole) -> Any:
            found = whole(self, *args)
            assert 0 <= self.private <= self.used <= self.held <= self.capacity
            return found

        patch.setattr(BlockCache, name, checked)


@given(rows=LISTS, blocks=st.integers(4, 12))
def test_more_bandwidth_makes_no_request_slower_where_one_is_served_at_a_time(
    rows: list[tuple[int, int, int, int, int]], blocks: int
) -> None:
    """To read a block takes half as long as to compute it, so that a hit more makes nothing slower either, although the
    last token is computed in any case."""
    requests = requests_of(rows)
    slow, fast, fastest = (served(requests, rate=rate, blocks=blocks, most=1) for rate in (2, 4, 50))
    for at in range(len(requests)):
        ends = [run.served[at].end_ns or 0 for run in (slow, fast, fastest)]  # 0: too long for the memory
        assert ends == sorted(ends, reverse=True)
        assert (0 in ends) == (requests[at].block_count > blocks)


def test_no_more_room_is_reserved_than_there_is() -> None:
    cache = BlockCache(2)
    assert cache.reserve(2) and not cache.reserve(1) and cache.used == 2


@given(ops=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=40), capacity=st.integers(1, 6))
def test_a_cache_gives_up_what_was_used_longest_ago(ops: list[tuple[int, int]], capacity: int) -> None:
    """Against an ordered dictionary, blocks used one at a time."""
    cache, model = BlockCache(capacity), OrderedDict[int, None]()
    for block, _ in ops:
        if block in cache:
            cache.use([block])
        else:
            assert cache.reserve(1)
            cache.share([block])
        cache.leave([block])
        model.pop(block, None)
        model[block] = None
        while len(model) > capacity:
            model.popitem(last=False)
        assert {its for its in range(6) if its in cache} == set(model)


# --- traces -----------------------------------------------------------------------------------------------------------

GOOD = {"timestamp": 27, "input_length": 600, "output_length": 5, "hash_ids": [46, 47]}


def test_a_trace_that_is_written_is_read_again(tmp_path: Path) -> None:
    for workload in ("chat", "documents"):
        made = generate(200, 3.0, 7, workload)
        path = tmp_path / "requests.jsonl"
        path.write_bytes(dumped(made))
        assert load(path) == made
        assert load(path, 3) == made[:3]
        assert generate(200, 3.0, 7, workload) == made != generate(200, 3.0, 8, workload)
        assert reusable_tokens(made) > 0.5 * sum(its.input_tokens for its in made)


def test_several_times_as_many_users_have_blocks_of_their_own() -> None:
    made = generate(100, 3.0, 7)
    three = multiplied(made, 3)
    assert reusable_tokens(three) == 3 * reusable_tokens(made)
    assert len(three) == 300
    assert three == sorted(three, key=lambda its: its.arrival_ns)


@with_rows(
    ({"timestamp": None}, "timestamp is missing"),
    ({"timestamp": -1}, "timestamp is -1"),
    ({"timestamp": True}, "timestamp is True"),
    ({"timestamp": 1e300}, "timestamp is 1e\\+300"),
    ({"timestamp": float("nan")}, "timestamp is nan"),
    ({"input_length": 0}, "input_length is 0"),
    ({"input_length": 1 << 40}, "input_length is 1099511627776"),
    ({"output_length": "5"}, "output_length is '5'"),
    ({"hash_ids": [46]}, None),
    ({"hash_ids": []}, None),
    ({"hash_ids": [46, 47, 48]}, "hash_ids should list 2"),
    ({"hash_ids": 7}, "hash_ids should list 2"),
    ({"hash_ids": [46, -1]}, "hash_ids have -1"),
    ({"hash_ids": [46, 1 << 70]}, "hash_ids have"),
    ({"hash_ids": [46, 46]}, "hash_ids name a block twice"),
)
def test_a_trace_is_refused_by_its_line(changed: dict[str, Any], said: str | None, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{json.dumps(GOOD | changed)}\n")
    if said is None:
        assert len(load(path)) == 2
        return
    with pytest.raises(ArgumentError, match=rf"requests.jsonl:3: {said}"):
        load(path)


@with_rows(
    (b"[1]", ":1: not a JSON object"),
    (b"{", ":1: not a JSON object"),
    (b'{"timestamp": ' + b"9" * 5000 + b"}", ":1: "),
    (b"[" * 100_000, ":1: not a JSON object"),
    (b"\xff\xfe", "text in UTF-8"),
    (b'{"timestamp": 0, "timestamp": 1}', ":1: timestamp is given twice"),
)
def test_what_is_no_trace_is_refused(text: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(text)
    with pytest.raises(ArgumentError, match=said):
        load(path)
    with pytest.raises(ArgumentError, match=r"cannot be read: a .*, not a regular file"):
        load(tmp_path)
