"""Figures that topology files share: what `like` takes from a hardware file, where errors point, what is refused."""

from pathlib import Path

import pytest

from cxlemu.errors import ConfigError
from cxlemu.topology import Topology, hardware
from cxlemu.topology.document import Document
from cxlemu.topology.hardware import COPIED_MAX
from cxlemu.topology.provenance import Provenance
from cxlemu.topology.shipped import shipped_hardware
from tests.helpers.tables import with_rows

SCALEPOOL = ("nvl72", "clusters-cxl", "clusters-rdma", "tiers-clusters", "tiers-rdma", "tiers-scalepool")

PARTS = """\
dram: {latency_ns: {value: 100, source: "a sheet"}, read_gbytes_per_s: 10, write_gbytes_per_s: 10}
card:
  like: dram
  capacity_bytes: 1GiB
  total_gbytes_per_s: 20
port: {gbytes_per_s: 32, latency_ns: 20}
"""
TOPOLOGY = """\
name: shared
hardware: parts.yaml
hosts: {count: 2, memory: {like: dram}}
cards: {like: card, count: 2, latency_ns: 300}
switches: [{name: leaf, port_latency_ns: 1}]
links:
  - {name: host, ends: [hosts, leaf], like: port}
  - {name: card, ends: [cards, leaf], like: port, gbytes_per_s: 16}
spaces: [{name: pool, kind: cxl_pool, coherent: false, interleave_bytes: 64KiB}]
emulation: {card_bytes: 1MiB}
"""


def load(folder: Path, topology: str = TOPOLOGY, parts: str = PARTS) -> Topology:
    (folder / "parts.yaml").write_text(parts)
    (folder / "shared.yaml").write_text(topology)
    return Topology.load(folder / "shared.yaml")


def test_an_entrys_keys_count_and_the_mappings_own_go_before_them(tmp_path: Path) -> None:
    topology = load(tmp_path)
    assert topology.hosts.memory.latency_ns == 100
    assert (topology.cards[0].latency_ns, topology.cards[0].read_gbytes_per_s) == (300, 10)
    assert [(link.gbytes_per_s, link.latency_ns) for link in topology.links] == [(32, 20), (16, 20)]
    assert topology.provenance == {("hosts", "memory", "latency_ns"): Provenance("source", "a sheet")}


def test_files_are_parsed_again_only_once_one_has_changed(tmp_path: Path) -> None:
    first = load(tmp_path)
    assert load(tmp_path) is first
    assert load(tmp_path, parts=PARTS.replace("value: 100", "value: 101")).hosts.memory.latency_ns == 101
    assert load(tmp_path, TOPOLOGY.replace("count: 2, lat", "count: 3, lat")).card_count == 3
    (tmp_path / "parts.yaml").unlink()
    with pytest.raises(ConfigError, match="which is neither shipped"):
        Topology.load(tmp_path / "shared.yaml")


def test_topologies_that_share_a_file_parse_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(hardware, "Document", lambda raw, file, noun: parsed.append(file) or Document(raw, file, noun))
    found = [load(tmp_path, TOPOLOGY.replace("count: 2, lat", f"count: {cards}, lat")) for cards in (2, 3)]
    assert found[0].hosts == found[1].hosts and found[0].provenance == found[1].provenance
    assert parsed == [str(tmp_path / "parts.yaml")]


def test_what_is_printed_needs_no_hardware(tmp_path: Path) -> None:
    document = load(tmp_path).document()
    assert "hardware" not in document
    assert document["hosts"]["memory"]["latency_ns"] == {"value": 100, "source": "a sheet"}


@with_rows(
    ("hardware: parts.yaml", "hardware: part.yaml", "shared.yaml:2: hardware is 'part.yaml', which is neither"),
    ("hardware: parts.yaml", "hardware: [a]", "shared.yaml:2: hardware is ['a'] but should be the name"),
    ("like: port}", "like: ports}", "shared.yaml:7: links[0].like is 'ports', no entry of"),
    ("like: port}", "like: [port]}", "shared.yaml:7: links[0].like is ['port'], no entry of"),
    ("hardware: parts.yaml\n", "", "shared.yaml:2: hosts.memory.like is not a known key"),
)
def test_what_does_not_exist_is_named_with_its_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, TOPOLOGY.replace(old, new, 1))
    assert message in str(refused.value)


@with_rows(
    ("latency_ns: 20", "latency_ns: -20", "parts.yaml:6: links[0].latency_ns is -20"),
    ("latency_ns: 20", "latency_us: 20", "parts.yaml:6: links[0].latency_us is not a known key"),
    ("source: ", "sauce: ", "parts.yaml:1: hosts.memory.latency_ns should be {value: ..."),
    ("like: dram", "like: card", "parts.yaml:3: card.like goes in a circle: card, card"),
    ("dram: {", "dram: {like: card, ", "parts.yaml:3: card.like goes in a circle: dram, card, dram"),
    ("port: {gbytes_per_s: 32, latency_ns: 20}", "port: 32", "parts.yaml:6: port is 32 but should be an entry"),
    ("port: {", "port: {x: {like: port}, ", "parts.yaml:6: port.x.like goes in a circle: port, port"),
    ("port: {", "port: {hardware: parts.yaml, ", "parts.yaml:6: links[0].hardware is not a known key"),
)
def test_a_shared_defect_is_named_where_it_stands(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, parts=PARTS.replace(old, new, 1))
    assert message in str(refused.value)


def test_nothing_grows_without_end(tmp_path: Path) -> None:
    wide = "a0: {x: 1}\n" + "".join(
        f"a{n}: {{{', '.join(f'k{k}: {{like: a{n - 1}}}' for k in range(9))}}}\n" for n in range(1, 12)
    )
    with pytest.raises(ConfigError, match=f"takes more than {COPIED_MAX} keys"):
        load(tmp_path, TOPOLOGY.replace("like: dram", "like: a11"), PARTS + wide)
    deep = "b0: {x: 1}\n" + "".join(f"b{n}: {{like: b{n - 1}}}\n" for n in range(1, 5000))
    with pytest.raises(ConfigError, match="one after another"):
        load(tmp_path, TOPOLOGY.replace("like: dram", "like: b4999"), PARTS + deep)


def test_scalepools_figures_stand_in_one_file() -> None:
    """None of its topologies says for itself how fast a link is, or how far; memory of many shares says how much."""
    assert list(shipped_hardware()) == ["cxl-pool", "infiniband-hdr", "nvlink-server", "racks", "scalepool"]
    configs = Path(__file__).parents[2] / "configs"
    for name in SCALEPOOL:
        text = (configs / f"{name}.yaml").read_text()
        assert "latency_ns" not in text
        assert text.count("gbytes_per_s") <= 4, name
    port = [Topology.load(name).expanded.links for name in ("clusters-cxl", "tiers-scalepool")]
    (training,) = {(link.gbytes_per_s, link.latency_ns) for link in port[0] if "host" in link.name}
    (node,) = ((link.gbytes_per_s, link.latency_ns) for link in port[1] if link.name == "node")
    assert training == node
