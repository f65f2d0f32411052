"""A plan's traffic as Chakra traces: what crosses the fabric, what it waits for, and files that others can read."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms.catalog import build, recipe, variants
from collectives.contracts import COLLECTIVES
from cxlemu.chakra import files
from cxlemu.chakra.export import REQUEST_BYTES, traffic
from cxlemu.chakra.files import Node, decode, encode, read, write
from cxlemu.chakra.schema import NodeType
from cxlemu.errors import PlanFileError
from cxlemu.plan import Call, Layout, Plan
from cxlemu.topology import Topology
from tests.helpers.commands import cxlemu
from tests.helpers.tables import with_rows

RANKS = 3
LAYOUT = Layout(RANKS, cards=2, slots=2, slot_card_bytes=4096, doorbells_per_rank=8, interleave_bytes=256)
SEND, RECV = NodeType.COMM_SEND, NodeType.COMM_RECV
EVERY = [(c, v) for c in COLLECTIVES for v in variants(c) if v != "zero_copy"]


def plan_of(collective: str, variant: str, nbytes: int = 1024) -> Plan:
    op = "sum" if COLLECTIVES[collective].reduces else "none"
    nbytes = nbytes if COLLECTIVES[collective].moves_data else 0
    return build(recipe(collective, variant), LAYOUT, Call(collective, variant, RANKS, nbytes, "f32", op))


def messages(nodes: list[Node], kind: NodeType) -> Counter[tuple[int | str | bool, ...]]:
    names = ("comm_src", "comm_dst", "comm_tag", "comm_size")
    return Counter(tuple(node.attributes[name] for name in names) for node in nodes if node.type == kind)


@pytest.mark.parametrize(("collective", "variant"), EVERY)
def test_every_message_has_two_ends_and_every_dependency_a_node_before(collective: str, variant: str) -> None:
    endpoints = traffic(plan_of(collective, variant))
    assert len(endpoints) == RANKS + LAYOUT.cards
    sent = sum((messages(nodes, SEND) for nodes in endpoints), Counter())
    received = sum((messages(nodes, RECV) for nodes in endpoints), Counter())
    assert sent == received
    assert max(sent.values()) == 1  # no two alike: a simulator matches them by their tag
    for number, nodes in enumerate(endpoints):
        for node in nodes:
            assert all(dep < node.id for dep in node.deps)
            if node.type in (SEND, RECV):
                mine = "comm_src" if node.type == SEND else "comm_dst"
                assert node.attributes[mine] == number


def bytes_of(endpoints: list[list[Node]], *names: str) -> int:
    """Sent under these names."""
    return sum(
        int(node.attributes["comm_size"])
        for nodes in endpoints
        for node in nodes
        if node.type == SEND and node.name.split()[0] in names
    )


@with_rows(  # in blocks, of all ranks together
    ("broadcast", 1, RANKS - 1),
    ("all_gather", RANKS, RANKS * (RANKS - 1)),
    ("gather", RANKS - 1, RANKS - 1),
    ("scatter", RANKS - 1, RANKS - 1),
    ("all_reduce", RANKS, RANKS * (RANKS - 1)),
    ("all_to_all", RANKS * (RANKS - 1), RANKS * (RANKS - 1)),
    ("reduce_scatter", RANKS * (RANKS - 1), RANKS * (RANKS - 1)),
)
def test_payload_bytes_are_those_that_the_algorithm_moves(collective: str, written: int, read: int) -> None:
    endpoints = traffic(plan_of(collective, "all"))
    assert bytes_of(endpoints, "FLUSH", "WRITE_NT") == written * 1024
    assert bytes_of(endpoints, "READ", "REDUCE") == read * 1024
    requests = [n for nodes in endpoints for n in nodes if n.type == SEND and n.name.startswith("REQUEST")]
    assert all(node.attributes["comm_size"] == REQUEST_BYTES for node in requests)


def test_nothing_is_read_before_what_rang_for_it_has_landed() -> None:
    """From every card's answer backwards: the whole chain from the writer's flush is among what it waits for."""
    endpoints = traffic(plan_of("broadcast", "naive"))
    peer = {  # a RECV to its SEND
        (e, n.id): (s, m.id)
        for e, nodes in enumerate(endpoints)
        for n in nodes
        if n.type == RECV
        for s in [int(n.attributes["comm_src"])]
        for m in endpoints[s]
        if m.type == SEND and all(m.attributes[k] == n.attributes[k] for k in ("comm_src", "comm_dst", "comm_tag"))
    }
    for at in range(RANKS, RANKS + LAYOUT.cards):
        for node in endpoints[at]:
            if node.type == SEND and node.name.startswith("READ"):
                seen, waiting = set(), [(at, node.id)]
                while waiting:
                    here = waiting.pop()
                    if here not in seen:
                        seen.add(here)
                        waiting += [(here[0], dep) for dep in endpoints[here[0]][here[1]].deps]
                        waiting += [peer[here]] if here in peer else []
                names = {endpoints[e][n].name.split()[0] for e, n in seen if e == 0}
                assert {"FLUSH", "COMPLETION", "SIGNAL"} <= names


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    endpoints = traffic(plan_of("all_reduce", "two_shot"))
    paths = write(tmp_path / "trace", endpoints)
    assert [path.name for path in paths] == [f"trace.{number}.et" for number in range(len(endpoints))]
    assert [read(path) for path in paths] == endpoints
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write(tmp_path / "trace", endpoints)] == before


def test_the_bytes_of_a_file_are_those_of_the_published_schema() -> None:
    """Written by hand from et_def.proto: field numbers and wire types."""
    node = Node(1, "n", NodeType.COMM_SEND, (0,), attributes={"comm_size": 5})
    attribute = b"\x0a\x09comm_size" + b"\x48\x05"  # 1: name; 9: int64_val
    body = b"\x08\x01" + b"\x12\x01n" + b"\x18\x05" + b"\x2a\x01\x00" + b"\x52" + bytes([len(attribute)]) + attribute
    metadata = b"\x0a\x050.0.4"
    assert encode([node]) == bytes([len(metadata)]) + metadata + bytes([len(body)]) + body


@given(st.binary(max_size=200))
def test_any_bytes_are_a_trace_or_refused_in_a_sentence(raw: bytes) -> None:
    try:
        decode(raw, "x.et")
    except PlanFileError as error:
        assert str(error).startswith("x.et")


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_damage_never_makes_more_than_an_error(at: int, value: int) -> None:
    raw = bytearray(encode(traffic(plan_of("broadcast", "naive", 64))[0]))
    raw[at % len(raw)] = value
    try:
        decode(bytes(raw), "x.et")
    except PlanFileError as error:
        assert str(error).startswith("x.et")


def test_a_file_cut_short_is_refused() -> None:
    raw = encode(traffic(plan_of("broadcast", "naive", 64))[0])
    with pytest.raises(PlanFileError, match="are left"):
        decode(raw[:-1], "x.et")


def test_the_command_writes_a_file_for_every_rank_and_card(tmp_path: Path) -> None:
    prefix = tmp_path / "gather"
    done = cxlemu("plan", "traffic", "gather", "-n", "2", "-b", "64K", "-c", "laptop", "-O", prefix, code=0)
    names = sorted(path.name for path in tmp_path.iterdir())
    cards = Topology.load("laptop").card_count
    assert names == sorted(f"gather.{number}.et" for number in range(2 + cards))
    assert f"of 2 ranks and, from endpoint 2 on, {cards} cards" in done.output


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = cxlemu("plan", "traffic", "gather", "-O", tmp_path / "none" / "x", code=2)
    assert "No such file or directory" in done.output


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_BYTES_MAX", 64)
    path = tmp_path / "t.0.et"
    path.write_bytes(bytes(65))
    with pytest.raises(PlanFileError, match=r"t\.0\.et cannot be read: larger than 64 bytes"):
        read(path)
