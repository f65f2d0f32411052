"""Generated fabrics are what their kinds say, and routes through them are the shortest."""

import re
from collections import Counter, deque
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.cost import CostModel
from cxlemu.errors import ConfigError
from cxlemu.topology import Topology
from cxlemu.topology.endpoints import dealt, members
from tests.helpers.hierarchy_helpers import CLOS, DRAGONFLY, KINDS, LEAF_SPINE, TORUS, machine, machine_text
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples


def joined(topology: Topology) -> dict[str, set[str]]:
    """Every switch, host and card by name, and what a link joins it to: told without the code under test."""
    found: dict[str, set[str]] = {}
    counts = {"host": topology.host_count, "card": topology.card_count}
    for link in topology.expanded.links:
        sides = []
        for end in link.ends:
            some = re.fullmatch(r"(host|card)(\d+)(?:-(\d+))?", end)
            if end in ("hosts", "cards"):
                sides.append([f"{end[:-1]}{number}" for number in range(counts[end[:-1]])])
            elif some:
                last = int(some[3] or some[2])
                sides.append([f"{some[1]}{number}" for number in range(int(some[2]), last + 1)])
            else:
                sides.append([end])
        for one, other in product(*sides):
            found.setdefault(one, set()).add(other)
            found.setdefault(other, set()).add(one)
    return found


def links_apart(graph: dict[str, set[str]], start: str) -> dict[str, int]:
    """Breadth first over everything; hosts and cards pass nothing on."""
    found, waiting = {start: 0}, deque([start])
    while waiting:
        here = waiting.popleft()
        if here != start and re.fullmatch(r"(host|card)\d+", here):
            continue
        for there in graph[here]:
            if there not in found:
                found[there] = found[here] + 1
                waiting.append(there)
    return found


def switches_only(topology: Topology) -> dict[str, set[str]]:
    names = {switch.name for switch in topology.expanded.switches}
    return {name: others & names for name, others in joined(topology).items() if name in names}


def test_a_leaf_spine_joins_every_leaf_to_every_spine() -> None:
    graph = switches_only(machine(LEAF_SPINE))
    leaves, spines = {f"cxl-leaf{n}" for n in range(4)}, {f"cxl-spine{n}" for n in range(2)}
    assert graph == dict.fromkeys(leaves, spines) | dict.fromkeys(spines, leaves)


def test_hosts_and_cards_are_dealt_to_the_leaves_in_blocks() -> None:
    links = {link.name: link.ends for link in machine(LEAF_SPINE, hosts=10, cards=2).expanded.links}
    assert {name: ends[0] for name, ends in links.items() if "spine" not in name} == {
        "cxl-leaf0-hosts": "host0-1",
        "cxl-leaf1-hosts": "host2-4",
        "cxl-leaf2-hosts": "host5-6",
        "cxl-leaf3-hosts": "host7-9",
        "cxl-leaf1-cards": "card0",
        "cxl-leaf3-cards": "card1",
    }


def test_cards_may_be_at_the_top() -> None:
    links = machine(LEAF_SPINE + "cards_at: top", cards=6).expanded.links
    assert {link.ends for link in links if "cards" in link.name} == {
        ("card0-2", "cxl-spine0"),
        ("card3-5", "cxl-spine1"),
    }


@pytest.mark.parametrize(("ratio", "each"), [(1, 64), (2, 32), (4, 16), (0.5, 128)])
def test_oversubscription_divides_what_a_leaf_sends_up(ratio: float, each: float) -> None:
    """Two hosts of 64 GB/s a leaf, two trunks."""
    text = LEAF_SPINE.replace("gbytes_per_s: 128, ", "") + f"oversubscription: {ratio}"
    trunks = {link.gbytes_per_s for link in machine(text).expanded.links if "spine" in link.name}
    assert trunks == {each}


def test_levels_above_carry_all_that_comes_from_below() -> None:
    text = re.sub(r"trunk: {gbytes_per_s: \d+, ", "trunk: {", CLOS) + "oversubscription: 2"
    links = machine(text, hosts=12).expanded.links  # two at each of six leaves
    assert {link.gbytes_per_s for link in links if "leaf" in link.name and "spine" in link.name} == {32}  # 128 / 2 / 2
    assert {link.gbytes_per_s for link in links if "core" in link.name} == {2 * 32 / 3}  # two leaves, three ways up


def test_a_clos_has_the_ups_and_downs_that_it_says() -> None:
    graph = switches_only(machine(CLOS))
    kinds = {name: re.sub(r"\d+$", "", name.removeprefix("cxl-")) for name in graph}
    assert Counter(kinds.values()) == {"leaf": 6, "spine": 6, "core": 6}
    for name, others in graph.items():
        neighbours = Counter(kinds[other] for other in others)
        assert neighbours == {"leaf": {"spine": 2}, "spine": {"leaf": 2, "core": 3}, "core": {"spine": 3}}[kinds[name]]


def test_a_torus_is_as_far_as_its_rings_say() -> None:
    topology, sizes = machine(TORUS, hosts=24, cards=24), (4, 3, 2)
    fabric = topology.fabric()
    places = [backwards[::-1] for backwards in product(*(range(size) for size in reversed(sizes)))]
    for (host, here), (card, there) in product(enumerate(places), enumerate(places)):
        around = sum(min((a - b) % size, (b - a) % size) for a, b, size in zip(here, there, sizes, strict=True))
        route = fabric.route(host, card)
        assert route is not None and len(route.links) == around + 2, (here, there)
    trunks = [link for link in topology.expanded.links if "-hosts" not in link.name and "-cards" not in link.name]
    assert len(trunks) == 24 + 24 + 12  # two are neighbours once


def test_a_torus_without_a_choice_goes_one_dimension_after_the_other() -> None:
    route = machine(TORUS, hosts=24, cards=24).fabric().route(0, 1 + 4 + 12)
    assert [switch.name for switch in route.switches] == ["cxl-0.0.0", "cxl-1.0.0", "cxl-1.1.0", "cxl-1.1.1"]


@pytest.mark.parametrize(("groups", "routers"), [(7, 3), (2, 1), (9, 4), (5, 4), (1, 4)])
def test_a_dragonfly_joins_every_two_groups_once(groups: int, routers: int) -> None:
    text = DRAGONFLY.replace("groups: 7", f"groups: {groups}").replace("routers: 3", f"routers: {routers}")
    graph = switches_only(machine(text))
    group = {name: int(re.findall(r"\d+", name)[0]) for name in graph}
    between = Counter(frozenset((group[a], group[b])) for a in graph for b in graph[a] if group[a] != group[b])
    assert between == {frozenset((a, b)): 2 for a in range(groups) for b in range(a)}  # seen from both sides
    for name, others in graph.items():
        same = {other for other in others if group[other] == group[name]}
        assert len(same) == routers - 1
        assert (groups - 1) // routers <= len(others - same) <= -(-(groups - 1) // routers)
    assert max(max(links_apart(graph, name).values()) for name in graph) <= 3


def test_an_xlink_domain_has_a_switch_and_all_ports_of_its_hosts() -> None:
    more = """
fabrics:
  - {name: nvlink, kind: xlink, hosts: host0-4, domain_hosts: 3, ports: 18, port_latency_ns: 100,
     host_link: {gbytes_per_s: 50, latency_ns: 10, flit_bytes: 272, flit_payload_bytes: 256}}
"""
    text = machine_text(LEAF_SPINE).replace("\nfabrics:\n", more)
    topology = Topology.parse(text.encode(), "x.yaml")
    links = [link for link in topology.expanded.links if link.name.startswith("nvlink")]
    assert [(link.name, link.ends, link.gbytes_per_s, link.flit_bytes) for link in links] == [
        ("nvlink-domain0-hosts", ("host0-2", "nvlink-domain0"), 900, 272),
        ("nvlink-domain1-hosts", ("host3-4", "nvlink-domain1"), 900, 272),
    ]


SMALL = st.integers(1, 5)
TRUNK = "{gbytes_per_s: 50, latency_ns: 30}"
ANY_FABRIC = st.one_of(
    st.builds("kind: leaf_spine\nleaves: {}\nspines: {}\ntrunk: {}".format, SMALL, SMALL, st.just(TRUNK)),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3).map(
        lambda rows: "kind: clos\nlevels:" + "".join(f"\n  - {{down: {d}, up: {u}, trunk: {TRUNK}}}" for d, u in rows)
    ),
    st.lists(SMALL, min_size=1, max_size=3).map(lambda sizes: f"kind: torus\ndimensions: {sizes}\ntrunk: {TRUNK}"),
    st.builds(
        "kind: dragonfly\ngroups: {}\nrouters: {}\nlocal_link: {}\nglobal_link: {}".format,
        *(SMALL, SMALL, st.just(TRUNK), st.just(TRUNK)),
    ),
)


@examples(80)
@given(ANY_FABRIC, st.integers(1, 12), st.integers(1, 6), st.sampled_from(["first", "spread"]), st.data())
def test_routes_are_ways_of_the_fewest_links(
    fabric: str, hosts: int, cards: int, routing: str, data: st.DataObject
) -> None:
    """On what is left of any fabric, after some of it failed."""
    figures = "\nport_latency_ns: 100\nhost_link: {gbytes_per_s: 64, latency_ns: 20}"
    text = fabric + figures + "\ncard_link: {gbytes_per_s: 32, latency_ns: 20}"
    topology = machine(text, hosts, cards, more=f"routing: {routing}")
    switches, links = topology.expanded
    names = [switch.name for switch in switches] + [link.name for link in links]
    lost = set(data.draw(st.lists(st.sampled_from(names), max_size=3)))
    graph = joined(topology)
    for name in lost & set(graph):
        for other in graph.pop(name):
            graph[other].discard(name)
    for link in topology.expanded.links:
        if link.name in lost:
            sides = [{name for name in graph if _is_at(name, end)} for end in link.ends]
            for one, other in product(*sides):
                graph[one].discard(other)
                graph[other].discard(one)
    found, taken = topology.fabric(lost).table(range(hosts), range(cards))
    for card in range(cards):
        apart = links_apart(graph, f"card{card}") if f"card{card}" in graph else {}
        for host in range(hosts):
            route = topology.fabric(lost).route(host, card)
            if f"host{host}" not in apart:
                assert route is None and taken[host, card] == -1
                continue
            assert route is not None and route == found[taken[host, card]]
            assert len(route.links) == apart[f"host{host}"]
            stops = [f"host{host}", *(switch.name for switch in route.switches), f"card{card}"]
            assert len(stops) == len(route.links) + 1
            for one, link, other in zip(stops, route.links, stops[1:], strict=False):
                assert link.name not in lost and other in graph[one]
                assert {_is_at(one, link.ends[0]), _is_at(other, link.ends[1])} == {True} or (
                    _is_at(one, link.ends[1]) and _is_at(other, link.ends[0])
                )
    apart_pairs = {(host, card) for host, card in product(range(hosts), range(cards)) if taken[host, card] < 0}
    assert set(topology.fabric(lost).cut_off(range(hosts), range(cards))) == apart_pairs


def _is_at(name: str, end: str) -> bool:
    some, number = members(end), re.sub(r"\D+", "", name)
    if some is None:
        return name == end
    return re.fullmatch(rf"{some.kind}\d+", name) is not None and int(number) in some.numbers


def test_spread_routes_use_equal_ways_equally() -> None:
    """16 hosts and 4 cards on four leaves, two spines: host + card decides."""
    topology = machine(LEAF_SPINE, hosts=16, cards=4, more="routing: spread")
    fabric = topology.fabric()
    for host, card in product(range(16), range(4)):
        route = fabric.route(host, card)
        assert route is not None
        if host // 4 != card:
            assert route.switches[1].name == f"cxl-spine{(host + card) % 2}"
    first = machine(LEAF_SPINE, hosts=16, cards=4).fabric()
    routes = [first.route(host, card) for host, card in product(range(16), range(4))]
    assert not any("spine1" in switch.name for route in routes if route for switch in route.switches)


def test_each_level_of_a_clos_chooses_anew() -> None:
    """A switch that chose by the same number as the one below it would always choose the same."""
    topology = machine(CLOS.replace("up: 3", "up: 2"), hosts=24, cards=6, more="routing: spread")
    routes = [topology.fabric().route(host, 5) for host in range(4)]
    cores = {route.switches[2].name for route in routes if route}
    assert len(cores) == 4  # 2 * 2 ways, one for each of four hosts in a row


@pytest.mark.parametrize("kind", KINDS)
def test_only_one_end_of_a_link_can_fail(kind: str) -> None:
    topology = machine(KINDS[kind])
    (route,) = [topology.fabric().route(3, 0)]
    lost = topology.fabric({f"{route.links[0].name}/host3"})
    assert [lost.route(host, 0) is None for host in range(8)] == [host == 3 for host in range(8)]
    lost = topology.fabric({f"{route.links[-1].name}/card0"})
    assert [lost.route(3, card) is None for card in range(4)] == [True, False, False, False]


@pytest.mark.parametrize("kind", KINDS)
def test_each_direction_of_each_link_is_one_resource(kind: str) -> None:
    """Whoever sends bytes over a link from one end to the other shares it, be it to write or to read."""
    topology = machine(KINDS[kind], hosts=30, cards=5, more="routing: spread")
    model, fabric = CostModel.of(topology, 30), topology.fabric()
    used: dict[tuple[str, str, str], set[str]] = {}
    for host, card in product(range(30), range(5)):
        route = fabric.route(host, card)
        stops = [f"host{host}", *(switch.name for switch in route.switches), f"card{card}"]
        row = model.routes[model.route_of[0, host, card]]
        assert row["hops"] == len(route.links) and row["latency_ns"] == route.latency_ns
        hops = list(zip(route.links, stops, stops[1:], strict=False))
        for way, its in (("to_pool", hops), ("from_pool", [(link, b, a) for link, a, b in reversed(hops)])):
            for (link, start, end), hop in zip(its, row[way][: row["hops"]].tolist(), strict=True):
                first, by_host, by_rank, by_card, by_owner = hop
                assert by_rank == by_owner == 0
                resource = model.resources[first + by_host * host + by_card * card]
                assert resource.name.startswith(link.name + " ") and resource.gbytes_per_s == link.gbytes_per_s
                used.setdefault((link.name, start, end), set()).add(resource.name)
    assert all(len(names) == 1 for names in used.values())
    for (link_name, start, end), names in used.items():
        assert names.isdisjoint(used[link_name, end, start])
    names = [name for its in used.values() for name in its]
    assert len(set(names)) == len(names) > 60


def test_a_thousand_hosts_are_a_few_searches() -> None:
    topology = machine(LEAF_SPINE.replace("leaves: 4", "leaves: 64"), hosts=1024, cards=256, more="routing: spread")
    routes, taken = topology.fabric().table(range(1024), range(256))
    assert (taken >= 0).all() and len(np.unique(taken)) == len(routes) == 64 + 64 * 63 * 2


@with_rows(
    ("kind: leaf_spine", "kind: leafspine", ":11: fabrics[0].kind is 'leafspine' but should be one of 'leaf_spine'"),
    ("    kind: leaf_spine\n", "", ":10: fabrics[0].kind is missing: leaf_spine, clos, torus, dragonfly or xlink"),
    ("leaves: 4", "leaves: 0", ":12: fabrics[0].leaves is 0 but should be greater than or equal to 1"),
    ("leaves: 4", "leafs: 4", ":12: fabrics[0].leafs is not a known key; did you mean leaves?"),
    ("spines: 2", "spines: 1024\n    cards_at: side", "fabrics[0].cards_at is 'side' but should be 'leaf' or 'top'"),
    ("leaves: 4", "leaves: 1000", "fabrics[0] means"),
    ("gbytes_per_s: 128, latency_ns: 50", "latency_ns: 50", ":17: fabrics[0].trunk.gbytes_per_s is missing"),
    ("spines: 2", "spines: 2\n    oversubscription: 2", ":18: fabrics[0].trunk.gbytes_per_s follows from"),
    ("leaves: 4", "leaves: 4\n    hosts: host0-8", ":13: fabrics[0].hosts is host0-8, but hosts are host0 to host7"),
    ("leaves: 4", "leaves: 4\n    hosts: host3-2", ":13: fabrics[0].hosts is host3-2, but hosts are host0 to host7"),
    ("leaves: 4", "leaves: 4\n    hosts: some", ":13: fabrics[0].hosts is 'some' but should match pattern"),
    ("leaves: 4", "leaves: 4\n    hosts: host0-3", "fabrics should join every host to the pool's cards, but host4"),
    ("{gbytes_per_s: 64, latency_ns: 20}", "{gbytes_per_s: 64}", ":15: fabrics[0].host_link.latency_ns is missing"),
    ("- name: cxl", "- name: a-b", ":10: fabrics[0].name is 'a-b' but should match pattern"),
)
def test_a_wrong_fabric_is_named_with_its_line(old: str, new: str, message: str) -> None:
    text = machine_text(LEAF_SPINE)
    assert old in text
    wide = text.replace(old, new).replace("spines: 2", "spines: 1000" if new == "leaves: 1000" else "spines: 2")
    with pytest.raises(ConfigError) as caught:
        Topology.parse(wide.encode(), "x.yaml")
    assert message in str(caught.value)


@with_rows(
    "kind: clos\nlevels: [" + ", ".join(["{down: 1024, up: 1024, trunk: {gbytes_per_s: 1, latency_ns: 1}}"] * 7) + "]",
    "kind: torus\ndimensions: [1024, 1024, 1024]\ntrunk: {gbytes_per_s: 1, latency_ns: 1}",
    "kind: dragonfly\ngroups: 64\nrouters: 64\nlocal_link: {gbytes_per_s: 1, latency_ns: 1}\n"
    "global_link: {gbytes_per_s: 1, latency_ns: 1}",
)
def test_what_is_too_large_is_refused_before_it_is_made(fabric: str) -> None:
    text = machine_text(fabric + "\nport_latency_ns: 1\nhost_link: {gbytes_per_s: 1, latency_ns: 1}")
    with pytest.raises(ConfigError, match=r"fabrics\[0\] means more than \d+ (switches|links), the limit"):
        Topology.parse(text.encode(), "x.yaml")


def test_names_of_a_fabric_are_its_own() -> None:
    text = machine_text(LEAF_SPINE, more="switches: [{name: cxl-leaf9, port_latency_ns: 1}]")
    with pytest.raises(ConfigError, match=r":8: switches\[0\].name cxl-leaf9 begins as names in the fabric cxl do"):
        Topology.parse(text.encode(), "x.yaml")


def test_a_files_own_links_may_end_at_generated_switches() -> None:
    more = "links: [{name: short, ends: [host0-1, cxl-leaf3], gbytes_per_s: 1, latency_ns: 1}]"
    route = machine(LEAF_SPINE, more=more).fabric().route(1, 3)
    assert route is not None and [link.name for link in route.links] == ["short", "cxl-leaf3-cards"]


@given(st.integers(0, 200), st.integers(1, 50))
def test_blocks_are_even(count: int, places: int) -> None:
    blocks = list(dealt(range(7, 7 + count), places))
    assert [number for _, block in blocks for number in block] == list(range(7, 7 + count))
    sizes = Counter(len(block) for _, block in blocks)
    assert len(sizes) <= 2 and max(sizes, default=0) - min(sizes, default=0) <= 1
