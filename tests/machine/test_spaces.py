"""Memories that hosts and ranks own: who reaches them over which links, and what that takes, to the nanosecond."""

import json
import re
from pathlib import Path

import pytest

from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.simulated import simulate_case
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, VirtualRun, simulate
from cxlemu.errors import ArgumentError, ConfigError, PlanError
from cxlemu.plan import Instruction, Kind, Op, Operand, RedOp
from cxlemu.topology import Costs, Protocol, Topology
from cxlemu.topology.differences import spread
from cxlemu.topology.shipped import shipped_configs
from tests.helpers.by_hand import FENCE, signal, wait
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.fabric_helpers import ends, ns, on_cards, plan, read, used, write
from tests.helpers.tables import with_rows

ROOT = Path(__file__).parents[2]

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


@with_rows(
    ("owner: hosts", "owner: hosts, count: 2", "cards[1].count is 2 but hosts own one each"),
    ("cards: [1, 2]", "cards: [0, 1]", "name card 0, which a space of kind peer_memory cannot lie on"),
    ("kind: cxl_pool", "kind: cxl_pool, cards: [1]", "name card 1, which a space of kind cxl_pool cannot lie on"),
    ("coherent: false", "coherent: false, coherence_ns: 4", "does not apply to a space that is not coherent"),
    ("ends: [ranks, xs]", "ends: [rank0, xs]", "is not a host, card or switch"),
    ("[cards, cxl]", "[card1, cxl]", "is not a host, card or switch"),
    ("over: [ib]", "over: [ibm]", "spaces[1].over[0] 'ibm' is not a switch; did you mean ib?"),
    ("coherent: false", "coherent: false, over: [cxl]", "spaces[0].over does not apply"),
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


def test_another_fabric_stands_beside_each_row(tmp_path: Path) -> None:
    """The same calls there, as `simulate` says of it alone; what it takes by what ours takes."""
    arguments = ["simulate", "all_gather", "gather", "-b", "1M"]
    done, document = with_json(*arguments, "-c", "titan2-6xcz120", "--against", "infiniband-3xh100", "-v", code=0)
    alone = tmp_path / "alone.json"
    assert cxlemu(*arguments, "-c", "infiniband-3xh100", "--json", alone).exit_code == 0
    assert document["against"][0]["rows"] == json.loads(alone.read_text())["rows"]
    for row, other in zip(document["rows"], document["against"][0]["rows"], strict=True):
        ratio = other["time_us"] / row["time_us"]
        assert (
            f"infiniband-3xh100: {other['time_us']:.1f} us, {ratio:.2f} times as long, {other['variant']} ("
            in done.output
        )


def test_several_baselines_give_a_range_and_what_they_differ_in(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    names = ["infiniband-3xh100", "infiniband-3xh100-gpudirect", "infiniband-3xh100-cccl"]
    against = [word for name in names for word in ("--against", name)]
    calls = ["all_gather", "broadcast"]
    arguments = ["simulate", *calls, "-b", "64M", "-c", "titan2-6xcz120", *against, "--json", str(file)]
    done = cxlemu(*arguments, code=0)
    document = json.loads(file.read_text())
    assert [its["config"]["name"] for its in document["against"]] == names
    low, high = (its["rows"][0]["time_us"] / document["rows"][0]["time_us"] for its in document["against"][1:])
    said = " ".join(done.output.replace("#", "").split())
    assert low < 0.75 < 1.25 < high
    assert f"{low:.2f} ({names[1]}) to {high:.2f} ({names[2]}) times as long: the answer depends on which" in said
    observed = "spaces.inboxes.protocols.simple.costs.doorbell_observe_ns: 0 (assumed) in infiniband-3xh100, "
    assert f"{observed}infiniband-3xh100-gpudirect; 26438 (fitted) in infiniband-3xh100-cccl" in said
    readme, page = (" ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/modelled.md"))
    assert f"all_gather takes {low:.2f} to {high:.2f} times the pool's time" in readme
    for its in document["against"]:
        ratios = " | ".join(
            f"{theirs['time_us'] / ours['time_us']:.2f}"
            for theirs, ours in zip(its["rows"], document["rows"], strict=True)
        )
        assert re.search(rf"\| `{its['config']['name']}` \|[^|]*\| {ratios} \|", page)


@pytest.mark.deep
def test_the_page_has_these_intervals() -> None:
    arguments = ["simulate", "all_gather", "-c", "titan2-6xcz120", "-b", "64M", "--intervals"]
    done = cxlemu(*arguments, "--against", "infiniband-3xh100")
    said = " ".join(done.output.replace("#", "").split())
    time = re.search(r"within ranges: ([\d.]+) to ([\d.]+) us", said)
    ratio = re.search(r"infiniband-3xh100 within ranges: ([\d.]+) to ([\d.]+) times", said)
    assert time and ratio
    (low, high), (least, most) = time.groups(), ratio.groups()
    page = " ".join((ROOT / "docs" / "modelled.md").read_text().split())
    assert f"the time is {float(low):,.0f} to {float(high):,.0f} us" in page
    assert f"takes {float(least):.2f} to {float(most):.2f} times as long" in page


def test_an_answer_turns_only_where_it_crosses_1() -> None:
    turns = "0.50 (b) to 1.20 (c) times as long: the answer depends on which of them is right"
    assert spread(["a", "b", "c"], [0.9, 0.5, 1.2]) == turns
    assert spread(["a", "b"], [0.9, 0.5]) == "0.50 (b) to 0.90 (a) times as long"
    assert spread(["a", "b"], [1.5, 1.1]) == "1.10 (b) to 1.50 (a) times as long"


def test_what_is_fitted_is_used_in_the_system_that_it_was_fitted_to() -> None:
    fitted = {
        name: len(found)
        for name in shipped_configs()
        if (found := [its for its in Topology.load(name).provenance.values() if its.kind == "fitted"])
    }
    assert fitted == {"infiniband-3xh100-cccl": 3, "infiniband-12xh100": 3}  # the same system, grown
    for name in fitted:
        its = [its for its in Topology.load(name).provenance.values() if its.kind == "fitted"]
        assert all(one.systems is not None and set(one.systems) == set(fitted) for one in its)


@pytest.mark.parametrize("name", ["infiniband-3xh100", "mine"])
def test_a_fitted_figure_is_refused_outside_its_system(name: str) -> None:
    text = shipped_configs()["infiniband-3xh100-cccl"].read_text()
    raw = text.replace("name: infiniband-3xh100-cccl", f"name: {name}").encode()
    with pytest.raises(ConfigError) as raised:
        Topology.parse(raw, "other.yaml")
    assert re.search(
        rf"infiniband-hdr.yaml:\d+: .*doorbell_observe_ns was fitted to infiniband-3xh100-cccl or infiniband-12xh100 "
        rf"and says nothing of {name}: assume a value, or cite one",
        str(raised.value),
    )


@pytest.mark.parametrize("systems", ["[]", "here", "[1]"])
def test_systems_are_names_of_topologies(systems: str) -> None:
    text = shipped_configs()["infiniband-3xh100-cccl"].read_text()
    fitted = f'gbytes_per_s: {{value: 20, fitted: "to nothing", systems: {systems}}}'
    with pytest.raises(ConfigError, match=r"systems is .* but should be a list of names"):
        Topology.parse(text.replace("like: hdr-nic", fitted).encode(), "other.yaml")


def test_only_fitted_figures_belong_to_systems() -> None:
    text = shipped_configs()["infiniband-3xh100-cccl"].read_text()
    with pytest.raises(ConfigError, match="systems is for fitted figures; leave it out"):
        Topology.parse(
            text.replace('value: 3, source: "CCCL, three nodes"', 'value: 3, source: "a", systems: [b]').encode(),
            "o.yaml",
        )


def test_plans_that_do_not_send_take_the_first_protocol() -> None:
    topology = Topology.load("infiniband-3xh100")
    protocols = topology.pool_space.protocols
    assert protocols is not None
    (case,) = Sweep(("all_gather",), [1 << 20], variant="aggregate", check=False).cases(3)
    row, run = simulate_case(topology, case)
    assert row.reason == "with simple"
    assert run.model.topology.costs.call_ns == protocols[0].costs.call_ns
    with pytest.raises(ArgumentError, match="--split is for a pool"):
        simulate_case(topology, Sweep(("all_reduce",), [1 << 20], check=False).cases(4)[0], split=2)


def test_a_kernel_that_folds_may_read_by_itself() -> None:
    """Then the copy engine is not used, and the two do not wait for each other."""
    fold = Instruction(
        Op.REDUCE, nbytes=MB, redop=RedOp.SUM, dtype=6, dst=Operand(Kind.BUFFER), a=Operand(Kind.REGION, 0),
        b=Operand(Kind.BUFFER),
    )  # fmt: skip
    by_itself = TEXT.replace("costs: {copy_ns: 1000,", "costs: {copy_ns: 1000, fold_from_pool_gbytes_per_s: 15,")
    for text, rate, together in ((TEXT, 10, 2 * ns(MB, 10)), (by_itself, 15, ns(MB, 10) + ns(MB, 20))):
        topology = Topology.parse(text.encode(), "clusters.yaml")
        load_ns = 2 * 140 + 300
        assert run([[fold]], topology=topology).time_ns == 1000 + ns(MB, rate) + load_ns
        both = run([[fold], [read(0, MB)]], topology=topology)
        assert both.time_ns == 1000 + together + load_ns  # one engine, or one card that both queue for


def test_a_space_is_chosen_by_name(tmp_path: Path) -> None:
    file = tmp_path / "clusters.yaml"
    file.write_text(TEXT)
    for space in ("pool", "dram", "hbm"):
        done = cxlemu("simulate", "-c", file, "--space", space, "-b", "8K", "--check", code=0)
        assert "8 results, 0 wrong" in done.output
    refused = cxlemu("simulate", "-c", file, "--space", "nvlink", code=2)
    assert "has no space 'nvlink' on cards: it has pool, dram, hbm" in refused.output


@pytest.mark.parametrize("count", ["", "count: {value: 1, assumed: one each}, "])
def test_what_is_said_of_owned_memory_is_printed_again(count: str) -> None:
    """One group without a list around it, with and without a standing for how many."""
    first, rest = TEXT.split("cards:\n", 1)
    _, end = rest.split("costs:", 1)
    group = f"{{owner: hosts, {count}capacity_bytes: 1GiB, latency_ns: 110, read_gbytes_per_s: 200,"
    lone = f"{first}cards: {group} write_gbytes_per_s: 200, total_gbytes_per_s: 400}}\ncosts:{end}"
    lone = re.sub(r"  - {name: (card|pool|hbm),.*\n(     costs.*\n)?", "", lone).replace("cards: [1, 2], ", "")
    topology = Topology.parse(lone.encode(), "lone.yaml")
    shown = json.dumps(topology.document())
    assert Topology.parse(shown.encode(), "shown.json") == topology


def test_the_space_that_calls_lie_on_changes_what_they_take() -> None:
    """Over XLink faster than over NICs, and on hosts of their own ranks use no link between hosts."""
    (case,) = Sweep(("all_gather",), [1 << 20], check=False).cases(2)
    on = {space: simulate_case(TOPOLOGY, case, space=space) for space in ("dram", "hbm")}
    assert on["hbm"][0].time_us < on["dram"][0].time_us
    assert on["hbm"][0].busiest_link.startswith("xlink rank")
    assert on["dram"][0].busiest_link == ""  # both ranks are on one host


@pytest.mark.parametrize("name", ["infiniband-3xh100", "racks-2x72-rdma"])
def test_a_protocol_takes_its_share_of_the_links_that_lead_to_its_space(name: str) -> None:
    """Of written links and of those of a fabric; all others, and the ways, stay."""
    topology = Topology.load(name)
    space = topology.space("inboxes" if name.startswith("inf") else "remote")
    half = Protocol(name="half", costs=Costs(call_ns=7), share_of_rate=0.5)
    spoken = topology.speaking(space, half)
    ranks = topology.place_count
    usual, slow = (CostModel.of(machine, ranks) for machine in (topology, spoken))
    assert [its.name for its in usual.resources if its.kind == "link"] == [
        its.name for its in slow.resources if its.kind == "link"
    ]
    rates = {its.name: its.gbytes_per_s for its in usual.resources if its.kind == "link"}
    halved = {its.name for its in slow.resources if its.kind == "link" and its.gbytes_per_s == rates[its.name] / 2}
    same = {its.name for its in slow.resources if its.kind == "link" and its.gbytes_per_s == rates[its.name]}
    assert halved | same == set(rates)
    assert halved
    assert bool(same) == (name == "racks-2x72-rdma")  # NVLink, inside
    for host in (0, topology.host_count - 1):
        far = topology.cards_of(space)[0]
        routes = [machine.fabric().route(host, far) for machine in (topology, spoken)]
        assert [len(route.links) for route in routes if route is not None] == [
            len(routes[0].links)  # type: ignore[union-attr]
        ] * 2
