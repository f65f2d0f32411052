"""What `cxlemu topology show` says of generated fabrics, in numbers, in characters and as a picture."""

import json
import re
from collections import Counter
from functools import cache, partial
from itertools import combinations, product
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.cli.topology_svg import topology_svg
from cxlemu.topology import Topology, shipped_configs
from cxlemu.topology.metrics import FabricMetrics, fabric_metrics
from tests.helpers.commands import cxlemu
from tests.helpers.hierarchy_helpers import CLOS, DRAGONFLY, KINDS, LEAF_SPINE, TORUS, machine, machine_text
from tests.helpers.tiers import examples

XLINK = """
kind: xlink
domain_hosts: 3
ports: 4
port_latency_ns: 150
host_link: {gbytes_per_s: 50, latency_ns: 20}
card_link: {gbytes_per_s: 32, latency_ns: 20}
"""
RANGES = """
name: ranges
hosts:
  count: 3
  memory: {latency_ns: 100, read_gbytes_per_s: 200, write_gbytes_per_s: 200}
cards: {count: 3, capacity_bytes: 1GiB, latency_ns: 300, read_gbytes_per_s: 28, write_gbytes_per_s: 28,
        total_gbytes_per_s: 40}
switches: [{name: leaf, port_latency_ns: 100}]
spaces: [{name: pool, kind: cxl_pool, coherent: false, interleave_bytes: 4KiB}]
emulation: {card_bytes: 8MiB}
links:
"""
SVG = "{http://www.w3.org/2000/svg}"


def metrics_of(fabric: str, hosts: int, cards: int = 4) -> FabricMetrics:
    topology = machine(fabric, hosts, cards)
    return fabric_metrics(topology, topology.fabrics[0])


show = partial(cxlemu, "topology", "show", columns=80)


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_a_leaf_spine_in_numbers() -> None:
    """16 hosts of 64 GB/s, two trunks of 128 GB/s at each of four leaves: the hosts are what limits them."""
    its = metrics_of(LEAF_SPINE, 16)
    assert its.switches == {"leaf": 4, "spine": 2}
    assert its.links == {"host": 16, "card": 4, "trunk": 8}
    assert (its.hosts, its.cards) == (16, 4)
    assert (its.bisection_gbytes_per_s, its.oversubscription) == (8 * 64, 1)
    assert its.switches_between_hosts_mean == pytest.approx((3 * 1 + 12 * 3) / 15)
    assert (its.switches_between_hosts_min, its.switches_between_hosts_max) == (1, 3)


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_oversubscription_is_what_was_asked_for(ratio: int) -> None:
    text = LEAF_SPINE.replace("gbytes_per_s: 128, ", "") + f"oversubscription: {ratio}"
    its = metrics_of(text, 32)
    assert (its.bisection_gbytes_per_s, its.oversubscription) == (16 * 64 / ratio, ratio)
    deep = re.sub(r"trunk: {gbytes_per_s: \d+, ", "trunk: {", CLOS).replace("down: 3", "down: 4")
    assert metrics_of(f"{deep}oversubscription: {ratio}", 32).oversubscription == pytest.approx(ratio, rel=1e-3)


def test_a_torus_is_cut_across_its_last_dimension() -> None:
    its = metrics_of(TORUS.replace("[4, 3, 2]", "[4, 3, 4]"), 48 * 4)
    assert its.bisection_gbytes_per_s == 2 * 12 * 50  # all the way round
    assert its.switches_between_hosts_max == 1 + 2 + 1 + 2


def test_a_dragonfly_is_at_most_three_links_wide() -> None:
    its = metrics_of(DRAGONFLY, 42)
    assert (its.switches_between_hosts_max, its.links["trunk"]) == (4, 7 * 3 + 21)


def test_of_several_domains_one_is_told() -> None:
    more = LEAF_SPINE.replace("leaves: 4", "leaves: 1")
    text = machine_text(more, hosts=7).replace(
        "fabrics:", "fabrics:\n  - name: x\n    " + "\n    ".join(XLINK.split("\n"))
    )
    topology = Topology.parse(
        text.replace("    card_link: {gbytes_per_s: 32, latency_ns: 20}\n    \n", "").encode(), "x"
    )
    its = fabric_metrics(topology, topology.fabrics[0])
    assert (its.switches, its.hosts) == ({"domain": 3}, 7)
    assert (its.bisection_gbytes_per_s, its.oversubscription) == (200, 1)  # one of three hosts
    assert (its.switches_between_hosts_min, its.switches_between_hosts_max) == (1, 1)


def test_one_host_has_no_middle() -> None:
    its = metrics_of(LEAF_SPINE, 1)
    assert its.bisection_gbytes_per_s is its.oversubscription is its.switches_between_hosts_mean is None


@examples(40)
@given(
    st.sampled_from([LEAF_SPINE, CLOS, TORUS.replace("[4, 3, 2]", "[3, 3]"), DRAGONFLY.replace("7", "3")]), st.data()
)
def test_bisection_is_the_least_cut(text: str, data: st.DataObject) -> None:
    """Maximum flow is minimum cut: here every cut is tried."""
    hosts = data.draw(st.integers(2, 9))
    speeds = st.sampled_from(["1", "3", "10", "40", "64"])
    text = re.sub(r"gbytes_per_s: \d+", lambda _: f"gbytes_per_s: {data.draw(speeds)}", text)
    topology = machine(text.replace("down: 3, up: 3", "down: 2, up: 1"), hosts)
    names = [switch.name for switch in topology.expanded.switches]
    edges: list[tuple[str, str, float]] = []
    for link in topology.expanded.links:
        found = re.fullmatch(r"host(\d+)(?:-(\d+))?", link.ends[0])
        if found:
            for host in range(int(found[1]), int(found[2] or found[1]) + 1):
                edges.append(("lower" if host < hosts // 2 else "upper", link.ends[1], link.gbytes_per_s))
        elif "card" not in link.ends[0]:
            edges.append((link.ends[0], link.ends[1], link.gbytes_per_s))
    cuts = []
    for size in range(len(names) + 1):
        for side in combinations(names, size):
            lower = {"lower", *side}
            cuts.append(sum(speed for one, other, speed in edges if (one in lower) != (other in lower)))
    assert fabric_metrics(topology, topology.fabrics[0]).bisection_gbytes_per_s == pytest.approx(min(cuts))


# --- drawing ---------------------------------------------------------------------------------------------------------


def test_groups_stand_below_what_joins_them(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(machine_text(CLOS, hosts=24, cards=6))
    lines = show(str(tmp_path / "t.yaml")).output.splitlines()
    rows = [next(at for at, line in enumerate(lines) if word in line) for word in ("core0", "spine0-1", "leaf0-1")]
    assert rows[0] + 4 < rows[1] and rows[2] == rows[1] + 1
    assert "│ host0-7  │ │ host8-15 │ │ host16-23 │" in lines[rows[2] + 1]
    assert "│ card0-1  │ │ card2-3  │ │  card4-5  │" in lines[rows[2] + 2]
    assert "  12 x leaf - spine: 64 GB/s each way, 50 ns" in lines
    assert "  18 x spine - core: 32 GB/s each way, 70 ns" in lines
    assert "  6 leaves, 6 spines, 6 cores" in lines
    assert any(re.fullmatch(r"  bisection \d+ GB/s, oversubscribed [\d.]+ : 1", line) for line in lines)


@pytest.mark.parametrize("kind", [*KINDS, "xlink"])
def test_every_kind_is_drawn_within_80_columns(kind: str, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(
        machine_text({**KINDS, "xlink": XLINK.replace("3", "30")}[kind], hosts=30, cards=9)
    )
    result = show(str(tmp_path / "t.yaml"), code=0)
    lines = result.output.splitlines()
    assert f"cxl: {kind.replace('_', '/')}" in lines
    assert max(map(len, lines)) <= 80
    assert any("30 x host - " in line for line in lines)


def test_links_of_a_dragonfly_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(machine_text(DRAGONFLY, hosts=42, cards=7))
    lines = show(str(tmp_path / "t.yaml")).output.splitlines()
    assert "  21 x routers of a group: 50 GB/s each way, 30 ns" in lines
    assert "  21 x two groups: 25 GB/s each way, 200 ns" in lines


def test_facts_are_json() -> None:
    shown = json.loads(show("racks-2x72", "--facts", "--json", "-").output)
    assert [its["name"] for its in shown] == ["nvlink", "cxl"]
    assert shown[1]["switches"] == {"leaf": 8, "spine": 4}
    assert (shown[1]["bisection_gbytes_per_s"], shown[1]["oversubscription"]) == (72 * 128 / 2, 2)


# --- the picture -----------------------------------------------------------------------------------------------------


@cache
def drawn(name: str) -> tuple[Topology, ElementTree.Element]:
    topology = machine(KINDS[name], hosts=30) if name in KINDS else Topology.load(name)
    return topology, ElementTree.fromstring(topology_svg(topology))


@pytest.mark.parametrize("name", [*KINDS, "mixed-2x4", "racks-2x72", "titan2-6xcz120", "thousand-hosts"])
def test_every_switch_and_every_trunk_is_in_the_picture_once(name: str) -> None:
    topology, root = drawn(name)
    boxes = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "switch"]
    titles = [(rect.findtext(f"{SVG}title") or "").split()[0] for rect in boxes]
    counts = Counter(switch.name.partition("-")[2] or switch.name for switch in topology.expanded.switches)
    shorts = [(its.partition("-")[2] or its, its) for its in (switch.name for switch in topology.expanded.switches)]
    assert sorted(titles) == sorted(
        full if counts[short] > 1 and "domain" in short else short for short, full in shorts
    )
    names = {switch.name for switch in topology.expanded.switches}
    trunks = [link for link in topology.expanded.links if names.issuperset(link.ends)]
    assert sum(path.get("class") == "trunk" for path in root.iter(f"{SVG}path")) == len(trunks)


@pytest.mark.deep(rows=lambda name: [*shipped_configs()].index(name) % 3 > 0)
@pytest.mark.parametrize("name", shipped_configs())
def test_every_host_and_every_card_is_in_the_picture(name: str) -> None:
    topology, root = drawn(name)
    words = " ".join("".join(its.itertext()) for kind in ("title", "text") for its in root.iter(f"{SVG}{kind}"))
    found: dict[str, set[int]] = {"host": set(), "rank": set(), "card": set()}
    for kind, first, last in re.findall(r"\b(host|rank|card)(\d+)(?:-(\d+))?", words):
        found[kind].update(range(int(first), int(last or first) + 1))
    of_ranks = any("ranks" in link.ends for link in topology.links)
    linked = of_ranks or any(end.startswith("host") for link in topology.expanded.links for end in link.ends)
    assert linked and found["rank" if of_ranks else "host"] >= {
        *range(topology.place_count if of_ranks else topology.host_count)
    }
    cards = {card for numbers, its in topology.card_groups() if its.owner is None for card in numbers}
    assert found["card"] >= cards


@pytest.mark.parametrize("name", [*KINDS, *shipped_configs()])
def test_no_box_of_the_picture_lies_on_another_and_no_word_is_wider_than_its_box(name: str) -> None:
    _, root = drawn(name)
    for part in root.iter(f"{SVG}g"):
        boxes = [
            tuple(float(rect.get(key, "nan")) for key in ("x", "y", "width", "height"))
            for rect in part.findall(f"{SVG}rect")
        ]
        for (x, y, width, height), (x2, y2, width2, height2) in combinations(boxes, 2):
            assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y
        assert all(x >= 0 and x + width <= 1200 for x, _, width, _ in boxes)
        for text in part.findall(f"{SVG}text"):
            if text.get("class") in ("name", "small"):
                at = float(text.get("x", "nan")), float(text.get("y", "nan")) - 4
                (width,) = [w for x, y, w, h in boxes if x <= at[0] <= x + w and y <= at[1] <= y + h]
                assert len(text.text or "") * (6.8 if text.get("class") == "name" else 5.5) <= width + 8


def test_links_of_some_hosts_and_cards_are_labelled_where_they_join(tmp_path: Path) -> None:
    """A range, a single one and all of them, beside each other: each link's figures stand between its two rows."""
    fast, slow = "{name: fast, ends: [host0-1, leaf], ", "{name: slow, ends: [host2, leaf], "
    cards = "{name: far, ends: [card1-2, leaf], ", "{name: near, ends: [card0, leaf], "
    text = "\n".join(f"  - {link}gbytes_per_s: 10, latency_ns: 20}}" for link in (fast, slow, *cards))
    (tmp_path / "t.yaml").write_text(RANGES + text + "\n")
    above, _, below = show(str(tmp_path / "t.yaml")).output.partition("leaf")
    assert re.findall(r"(fast|slow|near|far): ", above) == ["fast", "slow"]
    assert re.findall(r"(fast|slow|near|far): ", below)[:2] == ["far", "near"]


TWO_LEVELS = """
  - {name: fast, ends: [host0-1, leaf], gbytes_per_s: 64, latency_ns: 20}
  - {name: slow, ends: [host2, top], gbytes_per_s: 1, latency_ns: 20}
  - {name: trunk, ends: [leaf, top], gbytes_per_s: 5, latency_ns: 50}
  - {name: long, ends: [leaf, roof], gbytes_per_s: 5, latency_ns: 50}
  - {name: near, ends: [card0-1, leaf], gbytes_per_s: 32, latency_ns: 20}
  - {name: far, ends: [card2, top], gbytes_per_s: 16, latency_ns: 20}
"""


def test_no_link_of_hosts_and_cards_at_both_levels_runs_over_a_switch(tmp_path: Path) -> None:
    """Drawn below each other, one switch lay on the links of another; the text hung all hosts on the first."""
    above = "".join(
        f", {{name: {name}, level: {level}, port_latency_ns: 300}}" for name, level in (("top", 2), ("roof", 3))
    )
    (tmp_path / "t.yaml").write_text(
        RANGES.replace("port_latency_ns: 100}", "port_latency_ns: 100}" + above) + TWO_LEVELS
    )
    picture = ElementTree.fromstring(topology_svg(Topology.load(str(tmp_path / "t.yaml"))))
    middles = {
        box[0].text: (float(box.get("x", "nan")) + float(box.get("width", "nan")) / 2, float(box.get("y", "nan")) + 17)
        for box in picture.iter(f"{SVG}rect")
        if len(box)
    }
    links = [[float(n) for n in re.findall(r"[\d.]+", path.get("d", ""))] for path in picture.iter(f"{SVG}path")]
    ends = {tuple(sorted((middles[one], middles[other]))) for one, other in (("card1", "leaf"), ("host2", "top"))}
    assert ends <= {tuple(sorted(((x, y), (x2, y2)))) for x, y, _, _, x2, y2 in links}
    for x, y, bend_x, bend_y, x2, y2 in links:
        at = (0.25 * x + 0.5 * bend_x + 0.25 * x2, 0.25 * y + 0.5 * bend_y + 0.25 * y2)
        assert all(abs(at[0] - place[0]) > 46 or abs(at[1] - place[1]) > 17 for place in middles.values())
    assert "│ leaf │ │ top │ │ roof │" in (said := show(str(tmp_path / "t.yaml")).output)
    assert re.findall(r"(?:slow|near): .*", said) == ["slow: host2 - top", "near: card0-1 - leaf"]  # all that has room


def test_the_picture_goes_to_a_file_and_text_is_escaped(tmp_path: Path) -> None:
    text = machine_text(LEAF_SPINE).replace("name: hierarchy", 'name: hierarchy\ndescription: "a <b> & c"')
    (tmp_path / "t.yaml").write_text(text)
    show(str(tmp_path / "t.yaml"), "--svg", str(tmp_path / "t.svg"), code=0)
    root = ElementTree.fromstring((tmp_path / "t.svg").read_text())
    assert next(root.iter(f"{SVG}text")).text == "hierarchy: a <b> & c"


def test_a_picture_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    result = show("laptop", "--svg", str(tmp_path / "no" / "t.svg"), code=2)
    assert result.stderr.startswith("cxlemu: --svg ") and result.stderr.count("\n") == 1


def test_shipped_fabrics_have_the_figures_that_they_say() -> None:
    for name, ratio in product(["racks-2x72", "pod-1024", "mixed-2x4"], [2]):
        topology = Topology.load(name)
        assert fabric_metrics(topology, topology.fabrics[-1]).oversubscription == ratio
    assert {"racks-2x72-rdma", "pod-1024-rdma"} <= set(shipped_configs())
