"""Memories that hosts and ranks own: who reaches them over which links, and what that takes, to the nanosecond."""

from __future__ import annotations

import pytest

from cxlemu.engines.virtual import VirtualCall, VirtualRun, simulate
from cxlemu.errors import ArgumentError, ConfigError, PlanError
from cxlemu.plan import Instruction, Kind, Op, Operand
from cxlemu.timing import CostModel
from cxlemu.topology import Topology
from tests.fabric_helpers import FENCE, ends, ns, on_cards, plan, read, signal, used, wait, write

MB = 1_000_003
NIC, XLINK = 25, 400
NIC_WAY, XLINK_WAY = 2 * 200 + 300, 2 * 30 + 150
HBM_NS, DRAM_NS = 90, 110

TEXT = """
name: clusters
hosts: {count: 2, ranks_per_host: 2, memory: {latency_ns: 100, read_gbytes_per_s: 100, write_gbytes_per_s: 100}}
cards:
  - {capacity_bytes: 1GiB, latency_ns: 300, read_gbytes_per_s: 20, write_gbytes_per_s: 20, total_gbytes_per_s: 40}
  - {owner: hosts, capacity_bytes: 1GiB, latency_ns: 110, read_gbytes_per_s: 200, write_gbytes_per_s: 200,
     total_gbytes_per_s: 400}
  - {owner: ranks, capacity_bytes: 1GiB, latency_ns: 90, read_gbytes_per_s: 2000, write_gbytes_per_s: 2000,
     total_gbytes_per_s: 4000}
costs: {copy_ns: 1000, flush_line_ns: 5, invalidate_line_ns: 7, fence_ns: 11, doorbell_ring_ns: 13,
        doorbell_observe_ns: 17, to_pool_gbytes_per_s: 10, from_pool_gbytes_per_s: 10}
switches:
  - {name: cxl, port_latency_ns: 100}
  - {name: ib, port_latency_ns: 300}
  - {name: xs, port_latency_ns: 150, per_host: true}
links:
  - {name: port, ends: [hosts, cxl], gbytes_per_s: 63, latency_ns: 20}
  - {name: card, ends: [cards, cxl], gbytes_per_s: 31.5, latency_ns: 20}
  - {name: nic, ends: [hosts, ib], gbytes_per_s: 25, latency_ns: 200}
  - {name: xlink, ends: [ranks, xs], gbytes_per_s: 400, latency_ns: 30}
spaces:
  - {name: pool, kind: cxl_pool, coherent: false, interleave_bytes: 64KiB}
  - {name: dram, kind: peer_memory, coherent: true, cards: [1, 2], over: [ib], costs: {copy_ns: 50}}
  - {name: hbm, kind: xlink, coherent: true, cards: [3, 4, 5, 6], over: [xs, ib], coherence_ns: 40,
     costs: {copy_ns: 3, to_pool_gbytes_per_s: 350, doorbell_ring_ns: 2, doorbell_observe_ns: 6}}
emulation: {card_bytes: 32MiB}
"""
TOPOLOGY = Topology.parse(TEXT.encode(), "clusters.yaml")
POOL, DRAM, HBM = (0, (1, 2), (3, 4, 5, 6))  # the model's cards


def run(*ranks: list[list[Instruction]], topology: Topology = TOPOLOGY) -> VirtualRun:
    """Region k lies on card k; ranks that are not named do nothing."""
    streams = [*ranks, *([[]] * (4 - len(ranks)))]
    made = plan(streams, topology.card_count)
    return simulate(CostModel.of(topology, 4), [VirtualCall(made)])


def test_cards_are_numbered_group_by_group_and_know_their_owners() -> None:
    assert TOPOLOGY.card_count == 1 + 2 + 4
    assert [TOPOLOGY.cards_of(space) for space in TOPOLOGY.spaces] == [(0,), DRAM, HBM]
    assert [TOPOLOGY.owner_host(card) for card in range(7)] == [None, 0, 1, 0, 0, 1, 1]
    assert TOPOLOGY.card_name(2) == "host1 memory"
    assert TOPOLOGY.card_name(5) == "rank2 memory"


def test_own_memory_is_reached_without_links() -> None:
    seen = run([[write(3, MB), read(3, MB)]])
    assert seen.time_ns == 2 * 3 + ns(MB, 350) + ns(MB, 2000) + HBM_NS
    assert not any(use.resource.kind == "link" for use in seen.uses)
    assert run([[write(1, MB)]]).time_ns == 50 + ns(MB, 200)


def test_ranks_of_a_host_reach_each_other_over_its_own_switch() -> None:
    seen = run([[read(4, MB)]])
    assert seen.time_ns == 43 + ns(MB, XLINK) + 2 * XLINK_WAY + HBM_NS
    names = [use.resource.name for use in seen.uses if use.resource.kind == "link"]
    assert names == ["xlink rank0 from the pool", "xlink rank1 to the pool"]  # out of rank 1's, into rank 0's


def test_a_host_reaches_another_hosts_memory_over_both_nics() -> None:
    seen = run([[write(2, MB)]])
    assert seen.time_ns == 50 + ns(MB, NIC)
    names = [use.resource.name for use in seen.uses if use.resource.kind == "link"]
    assert names == ["nic host0 to the pool", "nic host1 from the pool"]
    assert run([[read(2, MB)]]).time_ns == 50 + ns(MB, NIC) + 2 * NIC_WAY + DRAM_NS


def test_ranks_of_other_hosts_are_reached_over_the_nic_not_the_switch_inside() -> None:
    names = [use.resource.name for use in run([[write(6, MB)]]).uses if use.resource.kind == "link"]
    assert names == ["nic host0 to the pool", "nic host1 from the pool"]


def test_a_nic_is_full_duplex_and_one_for_its_host() -> None:
    both_ways = run([[write(2, MB)]], [[]], [[write(1, MB)]])
    assert ends(both_ways)[0] == ends(both_ways)[2] == 50 + ns(MB, NIC)
    same_way = run([[write(2, MB)]], [[write(2, MB)]])  # ranks 0 and 1 share host 0's
    assert sorted(ends(same_way)[:2]) == [50 + ns(MB, NIC), 50 + 2 * ns(MB, NIC)]
    into_one = run([[write(2, MB)]], [[]], [[read(1, MB)]])  # both leave host 0
    assert used(into_one)["nic host0 to the pool"][:2] == (2 * MB, 2 * ns(MB, NIC))


def lines(op: Op, region: int) -> Instruction:
    return Instruction(op, nbytes=640, a=Operand(Kind.REGION, region))


def test_on_coherent_memory_the_chain_takes_no_time() -> None:
    chain = [write(3, 640), lines(Op.FLUSH, 3), FENCE, lines(Op.INVALIDATE, 3)]
    assert run([chain]).time_ns == 3 + ns(640, 350)
    pool = [write(0, 640), lines(Op.FLUSH, 0), FENCE, lines(Op.INVALIDATE, 0)]
    assert run([pool]).time_ns == 1000 + ns(640, 10) + 10 * 5 + (2 * 140 - 50) + 11 + 10 * 7


def test_a_fence_waits_for_what_was_written_to_the_pool_in_between() -> None:
    """Stores to the pool are fenced although the last store was to coherent memory."""
    mixed = run([[write(0, MB), write(3, 64), FENCE]]).time_ns
    assert mixed == 1000 + ns(MB, 10) + max(3 + ns(64, 350), 2 * 140) + 11


def test_a_doorbell_in_the_readers_memory_costs_him_no_way() -> None:
    """Doorbell d lies on card d % 7: rank 1's is in rank 0's memory, then in the pool."""
    mine, pooled = 8 + 2, 8 + 6  # of rank 1: on cards 3 and 0
    local = run([[wait(mine)]], [[signal(mine)]])
    assert ends(local)[0] == (2 + 40) + XLINK_WAY + 6 + HBM_NS
    far = run([[wait(pooled)]], [[signal(pooled)]])
    assert ends(far)[0] == 13 + 140 + 17 + 2 * 140 + 300


def test_a_doorbell_does_not_overtake_the_bytes_before_it() -> None:
    """The reader on the same way sees it after the last byte came: FENCE costs nothing, and nothing is lost by that."""
    mine = 8 + 2
    seen = run([[wait(mine)]], [[write(3, MB), FENCE, signal(mine)]])
    assert ends(seen)[0] == (43 + ns(MB, 350)) + 42 + XLINK_WAY + 6 + HBM_NS


def test_members_of_a_call_have_their_own_memories() -> None:
    """A layout on the members' memories: its card k is member k's."""
    model = CostModel.of(TOPOLOGY, 4)
    hbm = TOPOLOGY.space("hbm")
    assert model.cards_of(hbm) == HBM
    assert model.cards_of(hbm, (2, 3)) == (5, 6)
    assert model.cards_of(TOPOLOGY.space("dram"), (0, 1, 3)) == (1, 1, 2)
    made = plan([[[write(1, MB)]], [[]]], 2, regions=on_cards(2))
    seen = simulate(model, [VirtualCall(made, members=(2, 3), cards=model.cards_of(hbm, (2, 3)))])
    names = [use.resource.name for use in seen.uses if use.resource.kind == "link"]
    assert names == ["xlink rank2 to the pool", "xlink rank3 from the pool"]


def test_no_way_is_an_error_not_a_free_ride() -> None:
    lonely = TEXT.replace("  - {name: nic, ends: [hosts, ib], gbytes_per_s: 25, latency_ns: 200}\n", "")
    topology = Topology.parse(lonely.encode(), "lonely.yaml")
    with pytest.raises(PlanError, match=r"no link leads from host0 to rank\d memory"):
        run([[write(6, MB)]], topology=topology)
    with pytest.raises(PlanError, match=r"no link leads from host0 to rank\d memory"):
        run([[signal(5)]], topology=topology)  # card 5: of rank 2, on another host
    assert run([[write(4, MB)]], topology=topology).time_ns == 43 + ns(MB, 350)


def test_more_ranks_than_places_own_no_memory() -> None:
    model = CostModel.of(TOPOLOGY, 6)
    with pytest.raises(ArgumentError, match="rank 0 has no memory in space hbm"):
        model.cards_of(TOPOLOGY.space("hbm"))
    assert len(model.cards) == 1 + 2
    with pytest.raises(ArgumentError, match="has no space 'nvlink'"):
        TOPOLOGY.space("nvlink")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("owner: hosts", "owner: hosts, count: 2", "cards[1].count is 2 but hosts own one each"),
        ("cards: [1, 2]", "cards: [0, 1]", "name card 0, which a space of kind peer_memory cannot lie on"),
        ("kind: cxl_pool", "kind: cxl_pool, cards: [1]", "name card 1, which a space of kind cxl_pool cannot lie on"),
        ("coherent: false", "coherent: false, coherence_ns: 4", "does not apply to a space that is not coherent"),
        ("ends: [ranks, xs]", "ends: [rank0, xs]", "is not a host, card or switch"),
        ("[cards, cxl]", "[card1, cxl]", "is not a host, card or switch"),
        ("over: [ib]", "over: [ibm]", "spaces[1].over[0] 'ibm' is not a switch; did you mean ib?"),
        ("coherent: false", "coherent: false, over: [cxl]", "spaces[0].over does not apply"),
    ],
)
def test_what_cannot_be_is_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        Topology.parse(TEXT.replace(old, new, 1).encode(), "wrong.yaml")
    assert says in str(error.value)


def test_pooled_cards_come_before_owned_memory() -> None:
    first, rest = TEXT.split("cards:\n", 1)
    pooled, others = rest.split("\n", 1)
    owned, end = others.split("costs:", 1)
    with pytest.raises(ConfigError, match="should come before those that hosts or ranks own"):
        Topology.parse(f"{first}cards:\n{owned}{pooled}\ncosts:{end}".encode(), "wrong.yaml")


def test_thousands_of_memories_make_a_model_quickly_enough_to_test() -> None:
    text = TEXT.replace("count: 2, ranks_per_host: 2", "count: 64, ranks_per_host: 64").replace(", cards: [1, 2]", "")
    text = text.replace("cards: [3, 4, 5, 6], ", "")
    text = text.replace("  - {name: dram, kind: peer_memory, coherent: true, over: [ib], costs: {copy_ns: 50}}\n", "")
    topology = Topology.parse(text.encode(), "large.yaml")
    model = CostModel.of(topology, 4096)
    assert (len(model.cards), len(model.routes)) == (1 + 64 + 4096, 5)
