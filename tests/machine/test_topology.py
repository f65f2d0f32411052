"""Topologies: what the shipped ones say, where ranks go, what `cxlemu topology` prints."""

import json
import pickle
import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.errors import ArgumentError, ConfigError
from cxlemu.topology import Fabric, Topology, shipped_configs
from tests.helpers import commands
from tests.helpers.tables import with_rows

SHIPPED = {  # hosts, ranks per host, cards, bytes emulated per card
    "clusters-cxl": (64, 1, 64, 1 << 20),
    "clusters-rdma": (64, 1, 64, 1 << 20),
    "cxl-8xh100": (8, 1, 16, 32 << 20),
    "tiers-clusters": (72, 1, 126, 1 << 20),
    "tiers-rdma": (72, 1, 144, 1 << 20),
    "tiers-scalepool": (72, 1, 92, 1 << 20),
    "infiniband-3xh100": (3, 1, 3, 32 << 20),
    "infiniband-3xh100-cccl": (3, 1, 3, 32 << 20),
    "infiniband-3xh100-gpudirect": (3, 1, 3, 32 << 20),
    "infiniband-12xh100": (12, 1, 12, 32 << 20),
    "clusters-64x64": (64, 64, 4352, 1 << 20),
    "laptop": (2, 1, 2, 8 << 20),
    "mixed-2x4": (8, 1, 12, 8 << 20),
    "nvl72": (72, 1, 72, 1 << 20),
    "nvlink-8xa100": (1, 8, 8, 32 << 20),
    "nvlink-8xa800": (1, 8, 8, 32 << 20),
    "nvlink-8xh800": (1, 8, 8, 32 << 20),
    "nvlink-8xh100-nccl": (1, 8, 8, 32 << 20),
    "one-host-four-ranks": (1, 4, 2, 8 << 20),
    "pcie-8xa100": (1, 8, 8, 32 << 20),
    "pod-1024": (1024, 1, 1088, 1 << 20),
    "pod-1024-rdma": (1024, 1, 1024, 1 << 20),
    "racks-2x72": (144, 1, 160, 1 << 20),
    "racks-2x72-rdma": (144, 1, 144, 1 << 20),
    "serving-16xh100": (16, 1, 48, 1 << 20),
    "serving-2x8h800": (2, 8, 2, 1 << 20),
    "six-cards": (4, 1, 6, 32 << 20),
    "thousand-hosts": (1024, 1, 64, 32 << 20),
    "titan2-6xcz120": (3, 1, 6, 32 << 20),
    "twelve-hosts": (12, 1, 6, 32 << 20),
    "two-clusters": (2, 4, 14, 8 << 20),
}

TWO_LEVELS = """
name: two-levels
hosts: {count: 8, ranks_per_host: 2, memory: {latency_ns: 100, read_gbytes_per_s: 1, write_gbytes_per_s: 1}}
cards:
  - {count: 2, capacity_bytes: 1GiB, latency_ns: 300, read_gbytes_per_s: 2, write_gbytes_per_s: 1,
     total_gbytes_per_s: 2.5, numa_node: 3}
  - {capacity_bytes: 2GiB, latency_ns: 400, read_gbytes_per_s: 2, write_gbytes_per_s: 1,
     total_gbytes_per_s: 2}
switches:
  - {name: leaf, port_latency_ns: 10}
  - {name: spine, level: 2, port_latency_ns: 100}
links:
  - {name: host, ends: [hosts, leaf], gbytes_per_s: 1, latency_ns: 1}
  - {name: up, ends: [leaf, spine], gbytes_per_s: 1, latency_ns: 2}
  - {name: card, ends: [spine, cards], gbytes_per_s: 1, latency_ns: 4}
  - {name: short, ends: [host7, card2], gbytes_per_s: 1, latency_ns: 50}
spaces:
  - {name: pool, kind: cxl_pool, coherent: false, interleave_bytes: 256, cards: [0, 1]}
  - {name: far, kind: tier2, coherent: true, interleave_bytes: 16MiB, cards: [2], capacity_bytes: 1.5GiB}
  - {name: dram, kind: host_dram, coherent: true, capacity_bytes: 1TB}
emulation: {card_bytes: 1MiB, numa_node: 0}
"""


@pytest.fixture
def two_levels() -> Topology:
    return Topology.parse(TWO_LEVELS.encode(), "two-levels.yaml")


cxlemu = partial(commands.cxlemu, columns=80)


def test_every_shipped_topology_is_known_here() -> None:
    assert list(shipped_configs()) == sorted(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_topologies_say_what_they_are_for(name: str) -> None:
    topology = Topology.load(name)
    sizes = topology.host_count, topology.hosts.ranks_per_host, topology.card_count, topology.card_bytes
    assert (topology.name, *sizes) == (name, *SHIPPED[name])
    assert topology == Topology.load(f"{name}.yaml") == Topology.load(shipped_configs()[name])


@pytest.mark.parametrize("name", SHIPPED)
def test_every_figure_of_a_shipped_topology_has_a_provenance(name: str) -> None:
    """A number without source or assumption would be a number out of nowhere."""
    topology = Topology.load(name)
    assert topology.bare_figures() == []
    assert len(topology.provenance) >= 15
    assert ("hosts", "memory", "latency_ns") in topology.provenance


def test_the_old_name_of_provenance_still_works_and_says_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"topology\.provenance"):
        topology = Topology.load("laptop")
        assert topology.standings is topology.provenance


def test_a_figure_without_provenance_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    shipped = shipped_configs()["laptop"].read_text()
    file.write_text(shipped.replace('{value: 214, source: "CCCL, local DRAM load"}', "214"))
    spare = "  - {name: spare, level: 1, port_latency_ns: {value: 1, assumed: any}}"
    file.write_text(file.read_text().replace("switches:\n", f"switches:\n{spare}\n"))
    result = cxlemu("topology", "check", str(file), code=0)
    assert result.output.endswith("  note: no link joins the switch spare\n")
    assert "without source, fitted or assumed: hosts.memory.latency_ns\n" in result.output
    assert Topology.load(file).hosts == Topology.load("laptop").hosts


@with_rows(
    ("{value: 214}", ":12: hosts.memory.latency_ns should be {value: ..."),
    ("{value: 214, source: a, assumed: b}", ":12: hosts.memory.latency_ns should be {value: ..."),
    ("{value: 214, guessed: a}", ":12: hosts.memory.latency_ns should be {value: ..."),
    ('{value: 214, source: ""}', ":12: hosts.memory.latency_ns.source is '' but should be one line of text"),
    ("{value: 214, source: 7}", ":12: hosts.memory.latency_ns.source is 7 but should be one line of text"),
    ("{value: x, source: a}", ":12: hosts.memory.latency_ns is 'x' but should be a valid integer"),
    ("{source: a}", ":12: hosts.memory.latency_ns is {'source': 'a'} but should be a valid integer"),
)
def test_a_standing_that_says_nothing_is_refused(standing: str, message: str) -> None:
    shipped = shipped_configs()["laptop"].read_text()
    raw = shipped.replace('{value: 214, source: "CCCL, local DRAM load"}', standing).encode()
    with pytest.raises(ConfigError, match=re.escape(message)):
        Topology.parse(raw, "mine.yaml")


def test_titan2_loads_in_the_published_time() -> None:
    """CCCL (arXiv 2602.22457): 658 ns from the pool, 214 ns from local DRAM."""
    titan2 = Topology.load("titan2-6xcz120")
    assert {titan2.load_latency_ns(host, card) for host in range(3) for card in range(6)} == {658}
    assert titan2.hosts.memory.latency_ns == 214


def test_cards_are_numbered_through_their_groups(two_levels: Topology) -> None:
    assert [two_levels.card(card).capacity_bytes >> 30 for card in range(two_levels.card_count)] == [1, 1, 2]
    for absent in (-1, 3):
        with pytest.raises(ArgumentError, match=f"no card {absent}"):
            two_levels.card(absent)


def test_spaces_lie_on_cards(two_levels: Topology) -> None:
    assert [two_levels.cards_of(space) for space in two_levels.spaces] == [(0, 1), (2,), ()]
    assert two_levels.interleave_bytes == 256
    assert two_levels.pool_numa_node == 0


def test_a_route_names_links_and_switches_from_host_to_card(two_levels: Topology) -> None:
    route = two_levels.fabric().route(0, 1)
    assert [link.name for link in route.links] == ["host", "up", "card"]
    assert [switch.name for switch in route.switches] == ["leaf", "spine"]
    assert two_levels.load_latency_ns(0, 1) == 2 * (1 + 10 + 2 + 100 + 4) + 300


def test_the_shortest_route_wins(two_levels: Topology) -> None:
    assert two_levels.load_latency_ns(7, 2) == 2 * 50 + 400
    assert two_levels.load_latency_ns(6, 2) == 2 * (1 + 10 + 2 + 100 + 4) + 400


def test_hosts_and_cards_pass_nothing_on() -> None:
    text = TWO_LEVELS.replace("[spine, cards]", "[spine, card2]").replace("[host7, card2]", "[card2, cards]")
    with pytest.raises(ConfigError, match="host0 does not reach card0"):
        Topology.parse(text.encode(), "x.yaml")


def test_there_is_no_latency_to_a_host_that_is_not_there(two_levels: Topology) -> None:
    with pytest.raises(ArgumentError, match="host8 does not reach card0"):
        two_levels.load_latency_ns(8, 0)


@with_rows(
    ("titan2-6xcz120", 1, (0,), "1 rank on 1 host"),
    ("titan2-6xcz120", 3, (0, 1, 2), "3 ranks on 3 hosts (1+1+1)"),
    ("titan2-6xcz120", 4, (0, 0, 1, 2), "4 ranks on 3 hosts (2+1+1)"),
    ("titan2-6xcz120", 8, (0, 0, 0, 1, 1, 1, 2, 2), "8 ranks on 3 hosts (3+3+2)"),
    ("one-host-four-ranks", 6, (0,) * 6, "6 ranks on 1 host"),
    ("twelve-hosts", 12, tuple(range(12)), "12 ranks on 12 hosts (1 each)"),
    ("twelve-hosts", 13, (0, *range(12)), "13 ranks on 12 hosts (1 to 2 each)"),
)
def test_ranks_are_placed_in_blocks(name: str, ranks: int, hosts: tuple[int, ...], text: str) -> None:
    topology = Topology.load(name)
    assert topology.place(ranks) == hosts
    assert topology.describe_placement(ranks) == text


def test_a_host_is_filled_before_the_next(two_levels: Topology) -> None:
    assert two_levels.place(5) == (0, 0, 1, 1, 2)


@given(st.integers(1, 100))
def test_placement_is_in_order_and_even(ranks: int) -> None:
    topology = Topology.parse(TWO_LEVELS.encode(), "two-levels.yaml")
    hosts = topology.place(ranks)
    assert len(hosts) == ranks
    assert list(hosts) == sorted(hosts)
    if ranks > 16:
        each = Counter(hosts).values()
        assert len(each) == 8
        assert max(each) - min(each) <= 1
    else:
        assert hosts == tuple(rank // 2 for rank in range(ranks))


def test_a_world_without_ranks_is_refused(two_levels: Topology) -> None:
    with pytest.raises(ArgumentError, match="at least one rank"):
        two_levels.place(0)


def test_a_topology_travels_to_other_processes(two_levels: Topology) -> None:
    assert pickle.loads(pickle.dumps(two_levels)) == two_levels


def test_a_topology_keeps_its_fabric_and_the_last_routes_to_itself(two_levels: Topology) -> None:
    hosts = range(two_levels.host_count)
    _, taken = routes = two_levels.fabric().table(hosts, [0])
    assert two_levels.fabric().table(hosts, [0]) is routes and two_levels.fabric().table(hosts, [1]) is not routes
    with pytest.raises(ValueError, match="read-only"):
        taken[0, 0] = 0
    assert "_fabric" in vars(two_levels) and "_fabric" not in vars(pickle.loads(pickle.dumps(two_levels)))


def test_show_draws_hosts_above_switches_above_cards() -> None:
    result = cxlemu("topology", "show", "titan2-6xcz120", code=0)
    lines = result.output.splitlines()
    words = ("│ host2 │", "host-x16: 63 GB/s each way, 20 ns", "│ titan2 │", "card-x8: 31.5 GB/s", "card5")
    order = [next(n for n, line in enumerate(lines) if word in line) for word in words]
    assert order == sorted(set(order))
    assert "idle 64 B load, host0 from card0: 658 ns" in lines
    assert max(map(len, lines)) <= 80


@pytest.mark.deep(rows=lambda name: [*SHIPPED].index(name) % 3 > 0)
@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_is_cut_off_at_80_columns(name: str) -> None:
    output = cxlemu("topology", "show", name).output
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= 80


def test_a_row_too_long_leaves_out_its_middle() -> None:
    output = cxlemu("topology", "show", "twelve-hosts").output
    assert "│ host0 │ │ host1 │ │ host2 │ │ host3 │ │ host4 │ │ host5 │ │ ... │ │ host11 │\n" in output


def test_bars_join_the_boxes_they_end_at(tmp_path: Path) -> None:
    """Every joint of the drawing that points up or down has something there to point at."""
    (tmp_path / "two-levels.yaml").write_text(TWO_LEVELS)
    drawn = cxlemu("topology", "show", str(tmp_path / "two-levels.yaml")).output.split("part ")[0]
    lines = [line.ljust(80) for line in drawn.splitlines()[3:]]
    assert any("┴" in line for line in lines)
    for above, line, below in zip(lines, lines[1:], lines[2:], strict=False):
        for column, character in enumerate(line):
            if character in "┴┼":
                assert above[column] in "│─", (above, line)
            if character in "┬┼":
                assert below[column] in "│─", (line, below)


def test_show_as_json_loads_again() -> None:
    shown = json.loads(cxlemu("topology", "show", "laptop", "--json", "-").output)
    assert shown["hosts"]["count"] == {"value": 2, "assumed": "the fewest that share a pool"}
    assert Topology.parse(json.dumps(shown).encode(), "shown.json") == Topology.load("laptop")


def test_list_names_every_shipped_topology() -> None:
    lines = cxlemu("topology", "list").output.splitlines()
    assert [line.split()[0] for line in lines[2:] if not line.startswith(" ")] == sorted(SHIPPED)


def test_check_tells_right_files_from_wrong_ones(tmp_path: Path) -> None:
    good, bad, worse = tmp_path / "good.yaml", tmp_path / "bad.yaml", tmp_path / "worse.yaml"
    good.write_text(TWO_LEVELS)
    bad.write_text(TWO_LEVELS.replace("count: 8", "count: 0"))
    worse.write_text("")
    assert cxlemu("topology", "check", str(good)).exit_code == 0
    result = cxlemu("topology", "check", str(bad), str(good), str(worse), code=2)
    assert result.stdout == f"{good}: ok, 8 hosts, 3 cards, 4 GiB\n"
    assert result.stderr.splitlines() == [
        f"cxlemu: {bad}:3: hosts.count is 0 but should be greater than or equal to 1",
        f"cxlemu: {worse}:1: a topology is a mapping, lines of `key: value`",
    ]


@pytest.mark.parametrize("command", [[], ["show"], ["check"], ["list"]])
def test_help_shows_examples(command: list[str]) -> None:
    assert "Examples:\n    cxlemu topology " in cxlemu("topology", *command, "--help").output


def test_a_fabric_over_which_all_is_reached_is_read_without_looking_for_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shipped_configs()["two-clusters"].read_bytes()
    monkeypatch.setattr(Fabric, "_walk", lambda *_: pytest.fail("looks for a route"))
    assert Topology.parse(text, "fabric.yaml").host_count > 1


def test_a_copy_with_other_parts_has_other_ways() -> None:
    """Nothing of what follows from the parts is kept from the one that was copied."""
    topology = Topology.load("titan2-6xcz120")
    before_ns = topology.load_latency_ns(0, 0)
    (switch,) = topology.switches
    slower = topology.model_copy(update={"switches": (switch.model_copy(update={"port_latency_ns": 1100}),)})
    assert slower.load_latency_ns(0, 0) == before_ns + 2 * 1000
    cards = topology.cards[0].model_copy(update={"count": 9})
    assert topology.model_copy(update={"cards": (cards,)}).load_latency_ns(2, 8) == before_ns
    assert topology.load_latency_ns(0, 0) == before_ns
