"""Malformed topology files: one sentence that names file, line and key, exit code 2, never a traceback."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cxlemu.errors import ConfigError
from cxlemu.topology import Topology, shipped_configs
from tests.helpers.commands import cxlemu
from tests.helpers.tiers import examples

GOOD = """\
name: good
hosts:
  count: 3
  memory:
    latency_ns: 214
    read_gbytes_per_s: 200
    write_gbytes_per_s: 150
cards:
  count: 6
  capacity_bytes: 128GiB
  latency_ns: 378
  read_gbytes_per_s: 22.5
  write_gbytes_per_s: 22.5
  total_gbytes_per_s: 22.5
switches:
  - name: titan2
    port_latency_ns: 100
links:
  - name: host-x16
    ends: [hosts, titan2]
    gbytes_per_s: 63
    latency_ns: 20
  - name: card-x8
    ends: [cards, titan2]
    gbytes_per_s: 31.5
    latency_ns: 20
spaces:
  - name: pool
    kind: cxl_pool
    coherent: false
    interleave_bytes: 64KiB
emulation:
  card_bytes: 32MiB
"""

# what is wrong; what replaces what in GOOD; line and key that are named; words that say what would be right
MALFORMED: list[tuple[str, str, str, int, str, str]] = [
    ("no hosts", "count: 3", "count: 0", 3, "hosts.count", "greater than or equal to 1"),
    ("hosts below zero", "count: 3", "count: -3", 3, "hosts.count", "greater than or equal to 1"),
    ("too many hosts", "count: 3", "count: 5000", 3, "hosts.count", "less than or equal to 1024"),
    ("no cards", "count: 6", "count: 0", 9, "cards.count", "greater than or equal to 1"),
    ("a word for a number", "count: 3", "count: three", 3, "hosts.count", "valid integer"),
    ("half a host", "count: 3", "count: 1.5", 3, "hosts.count", "valid integer"),
    ("a truth for a number", "count: 3", "count: yes", 3, "hosts.count", "valid integer"),
    ("a quoted number", "count: 3", "count: '3'", 3, "hosts.count", "valid integer"),
    ("nothing for a number", "count: 3", "count:", 3, "hosts.count", "valid integer"),
    ("an octal number", "count: 3", "count: 010", 3, "hosts.count", "plain number"),
    ("a sexagesimal number", "count: 3", "count: 1:30", 3, "hosts.count", "plain number"),
    ("a huge number", "count: 3", f"count: {'9' * 5000}", 3, "hosts.count", "plain number"),
    ("a list for a number", "count: 3", "count: [3]", 3, "hosts.count", "valid integer"),
    ("a date for a number", "count: 3", "count: 2026-02-30", 3, "hosts.count", "quote it"),
    ("negative latency", "latency_ns: 214", "latency_ns: -1", 5, "hosts.memory.latency_ns", "or equal to 0"),
    ("half a nanosecond", "latency_ns: 214", "latency_ns: 0.5", 5, "hosts.memory.latency_ns", "integer"),
    ("misspelt key", "latency_ns: 214", "latncy_ns: 214", 5, "hosts.memory.latncy_ns", "mean latency_ns?"),
    ("missing key", "    latency_ns: 214\n", "", 4, "hosts.memory.latency_ns", "idle load latency, in ns"),
    ("missing section", "emulation:\n  card_bytes: 32MiB\n", "", 1, "emulation", "card_bytes, the memory"),
    ("unknown section", "switches:", "switch:", 15, "switch", "did you mean switches?"),
    ("a key twice", "count: 3", "count: 3\n  count: 4", 4, "hosts.count", "first in line 3"),
    ("a section twice", "switches:", "hosts:", 15, "hosts", "first in line 2"),
    ("not a number", "s: 200", "s: .nan", 6, "hosts.memory.read_gbytes_per_s", "plain number"),
    ("infinite", "s: 200", "s: .inf", 6, "hosts.memory.read_gbytes_per_s", "plain number"),
    ("infinite by overflow", "s: 200", "s: 1.0e+999", 6, "hosts.memory.read_gbytes_per_s", "plain number"),
    ("without a point", "s: 200", "s: 1e300", 6, "hosts.memory.read_gbytes_per_s", "valid number; write 10 or 0.5"),
    ("no bandwidth", "s: 200", "s: 0", 6, "hosts.memory.read_gbytes_per_s", "greater than 0"),
    ("impossible total", "total_gbytes_per_s: 22.5", "total_gbytes_per_s: 60", 14, "cards.total_gbytes_per_s",
     "between the larger of read and write, 22.5, and their sum, 45"),
    ("unknown unit", "128GiB", "128XB", 10, "cards.capacity_bytes", "128GiB"),
    ("negative size", "128GiB", "-1", 10, "cards.capacity_bytes", "write 4096"),
    ("no size", "128GiB", "0", 10, "cards.capacity_bytes", "greater than 0"),
    ("broken bytes", "128GiB", "0.3", 10, "cards.capacity_bytes", "size in bytes"),
    ("a section that is a word", "emulation:\n  card_bytes: 32MiB", "emulation: 32MiB", 32, "emulation",
     "should hold the keys card_bytes, numa_node"),
    ("a section that is empty", "emulation:\n  card_bytes: 32MiB", "emulation:", 32, "emulation",
     "should hold the keys card_bytes, numa_node"),
    ("a list that is a mapping", "  - name: titan2\n   ", "  name: titan2\n ", 15, "switches", "valid list"),
    ("an item that is no mapping", "  - name: titan2\n    port_latency_ns: 100", "  - titan2", 16,
     "switches[0]", "should hold the keys name, level, port_latency_ns"),
    ("a name with a space", "name: host-x16", "name: host x16", 19, "links[0].name", "should match pattern"),
    ("a name that is a number", "name: titan2", "name: 2", 16, "switches[0].name", "valid string"),
    ("dangling link", "[hosts, titan2]", "[hosts, titan]", 20, "links[0].ends[1]", "did you mean titan2?"),
    ("dangling card", "[cards, titan2]", "[card6, titan2]", 24, "links[1].ends[0]", "did you mean card"),
    ("a loose end", "[hosts, titan2]", "[hosts]", 20, "links[0].ends", "at least 2 items"),
    ("three ends", "[hosts, titan2]", "[hosts, titan2, cards]", 20, "links[0].ends", "at most 2 items"),
    ("a loop", "[hosts, titan2]", "[titan2, titan2]", 20, "links[0].ends", "two things"),
    ("ends that are numbers", "[hosts, titan2]", "[1, 2]", 20, "links[0].ends[0]", "valid string"),
    ("a host left out", "[hosts, titan2]", "[host0, titan2]", 18, "links", "host1 does not reach card0"),
    ("a name taken twice", "name: card-x8", "name: host-x16", 23, "links[1].name", "already links[0]"),
    ("a switch called as a host", "name: titan2", "name: host1", 16, "switches[0].name", "choose another"),
    ("unknown kind", "cxl_pool", "pool", 29, "spaces[0].kind", "'cxl_pool', 'host_dram'"),
    ("no pool", "kind: cxl_pool", "kind: tier2", 27, "spaces", "exactly one space of kind cxl_pool, not 0"),
    ("two pools", "64KiB", "64KiB\n  - {name: p, kind: cxl_pool, coherent: true, interleave_bytes: 256}", 27,
     "spaces", "exactly one space of kind cxl_pool, not 2"),
    ("coherent is a number", "coherent: false", "coherent: 0", 30, "spaces[0].coherent", "valid boolean"),
    ("granule of no power of two", "64KiB", "65000", 31, "spaces[0].interleave_bytes", "power of two"),
    ("granule too small", "64KiB", "128", 31, "spaces[0].interleave_bytes", "from 256 to 16MiB"),
    ("granule too large", "64KiB", "32MiB", 31, "spaces[0].interleave_bytes", "from 256 to 16MiB"),
    ("no granule", "    interleave_bytes: 64KiB\n", "", 28, "spaces[0].interleave_bytes", "power of two"),
    ("a card that is not there", "64KiB", "64KiB\n    cards: [5, 6]", 32, "spaces[0].cards", "are 0 to 5"),
    ("cards out of order", "64KiB", "64KiB\n    cards: [1, 0]", 32, "spaces[0].cards", "consecutive"),
    ("a card twice", "64KiB", "64KiB\n    cards: [1, 1]", 32, "spaces[0].cards", "consecutive"),
    ("a space without cards", "64KiB", "64KiB\n    cards: []", 32, "spaces[0].cards", "at least 1 item"),
    ("a space larger than its cards", "64KiB", "64KiB\n    capacity_bytes: 1TiB", 32,
     "spaces[0].capacity_bytes", "its cards hold 768 GiB"),
    ("host memory of no size", "64KiB", "64KiB\n  - {name: d, kind: host_dram, coherent: true}", 32,
     "spaces[1].capacity_bytes", "size of a host_dram space"),
    ("host memory on cards", "64KiB", "64KiB\n  - {name: d, kind: host_dram, coherent: true, cards: [0]}", 32,
     "spaces[1].cards", "leave it out"),
    ("emulation larger than a card", "32MiB", "1TiB", 33, "emulation.card_bytes", "smallest card, 128 GiB"),
    ("emulation of broken pages", "32MiB", "1000000", 33, "emulation.card_bytes", "multiple of 4096"),
    ("emulation below two granules", "32MiB", "64KiB", 33, "emulation.card_bytes", "at least two granules"),
    ("control characters", "name: good", 'name: good\ndescription: "\\e[31m"', 2, "description", "printable"),
    ("a key of control characters", "count: 3", '"\\e[31m": 3', 3, r"hosts.'\x1b[31m'", "write one"),
    ("a key that is a number", "count: 3", "7: 3", 3, "hosts", "is not a word"),
    ("a key that is a list", "count: 3", "? [a]\n  : 3", 3, "hosts", "is not a word"),
    ("a merge key", "count: 3", "<<: {count: 3}", 3, "hosts", "is not a word"),
]  # fmt: skip

# not YAML, or not plain enough: no key to name
UNREADABLE: list[tuple[str, bytes, int, str]] = [
    ("empty", b"", 1, "a topology is a mapping"),
    ("only a comment", b"# nothing\n", 1, "a topology is a mapping"),
    ("a list", b"- a\n- b\n", 1, "a topology is a mapping"),
    ("a word", b"hello\n", 1, "a topology is a mapping"),
    ("two documents", b"name: a\n---\nname: b\n", 2, "expected a single document"),
    ("an open bracket", b"name: a\nhosts: [1\n", 3, "expected ',' or ']'"),
    ("a tab for indentation", b"hosts:\n\tcount: 3\n", 2, "cannot start any token"),
    ("bad indentation", b"hosts:\n  count: 3\n count: 4\n", 3, "expected <block end>"),
    ("an alias", b"name: &a x\ndescription: *a\n", 2, "aliases are not allowed"),
    ("a bomb", b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", 2, "aliases are not allowed"),
    ("a tag", b"name: a\nhosts: !!python/object:os.system {}\n", 2, "tags are not allowed"),
    ("a harmless tag", b"name: !!str a\n", 1, "tags are not allowed"),
    ("deep nesting", b"name: a\nhosts: " + b"[" * 20_000, 2, "nested deeper than 16"),
    ("deep mappings", b"name: a\nhosts: " + b"{a: " * 20_000, 2, "nested deeper than 16"),
    ("not UTF-8", b"name: a\ndescription: \xff\xfe\n", 2, "not UTF-8"),
    ("UTF-16", "name: a\n".encode("utf-16"), 1, "not UTF-8"),
    ("a NUL", b"name: a\ndescription: \0\n", 2, "special characters are not allowed"),
    ("too large", b"#" * (1 << 20), 0, "larger than"),
]


def check(path: str) -> str:
    """What `cxlemu topology check` says of a file it must refuse, without the leading ``cxlemu: ``."""
    result = cxlemu("topology", "check", path, code=2)
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stderr[:-1].isprintable()
    assert len(result.stderr) < 450
    return result.stderr.removeprefix("cxlemu: ").removesuffix("\n")


def test_the_file_that_all_these_vary_is_right() -> None:
    assert Topology.parse(GOOD.encode(), "good.yaml").card_count == 6


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "right"), [case[1:] for case in MALFORMED], ids=[case[0] for case in MALFORMED]
)
def test_a_wrong_value_is_named_by_file_line_and_key(
    tmp_path: Path, old: str, new: str, line: int, key: str, right: str
) -> None:
    assert GOOD.count(old) >= 1
    path = tmp_path / "wrong.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    sentence = check(str(path))
    assert sentence.startswith(f"{path}:{line}: ")
    assert re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.\[])", sentence.removeprefix(f"{path}:{line}: "))
    assert right in sentence
    with pytest.raises(ConfigError) as caught:
        Topology.load(path)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("raw", "line", "problem"), [case[1:] for case in UNREADABLE], ids=[case[0] for case in UNREADABLE]
)
def test_what_cannot_be_read_is_named_by_file_and_line(tmp_path: Path, raw: bytes, line: int, problem: str) -> None:
    path = tmp_path / "unreadable.yaml"
    path.write_bytes(raw)
    sentence = check(str(path))
    assert sentence.startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert problem in sentence


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, kind in ((tmp_path, "directory"), (tmp_path / "fifo", "FIFO"), (Path("/dev/zero"), "device")):
        assert check(str(path)) == f"{path}: a {kind}, not a regular file; give a topology file"


@pytest.mark.parametrize("name", ["six-card", "no/such/file.yaml", "x" * 5000, "a\0b", "\x1b[31m"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    sentence = check(name)
    choose = "; did you mean six-cards? Choose from " if name == "six-card" else " ("
    assert f"is neither a file nor a shipped topology{choose}{next(iter(shipped_configs()))}, " in sentence


def test_the_first_wrong_line_is_named() -> None:
    text = GOOD.replace("count: 3", "count: 0").replace("latency_ns: 378", "latency_ns: -1")
    with pytest.raises(ConfigError, match=r"x\.yaml:3: hosts\.count is 0"):
        Topology.parse(text.encode(), "x.yaml")


SHIPPED = shipped_configs()["titan2-6xcz120"].read_bytes()
WORDS = [
    b"", b":", b"- ", b"\n", b"  ", b"[", b"]", b"{", b"}", b"? ", b"|", b">", b"'", b'"', b"#", b"\\",
    b"&a ", b"*a", b"!!int ", b"<<: ", b"---", b"...", b"%YAML 9.9", b"\xff", b"\0", b'"\\ud800"',
    b"-1", b"1e400", b".nan", b"0", b"99999999999999999999", b"true", b"null", b"~", b"2020-99-99",
    b"hosts", b"cards", b"count: 2",
]  # fmt: skip

words = st.one_of(st.sampled_from(WORDS), st.binary(max_size=4))
edits = st.lists(st.tuples(st.integers(0, len(SHIPPED)), st.integers(0, 30), words), min_size=1, max_size=4)


@examples(150)
@given(edits)
@example([(0, 0, b"\xef\xbb\xbf")])  # a byte-order mark
def test_a_mutated_file_loads_or_is_refused_in_one_sentence(changes: list[tuple[int, int, bytes]]) -> None:
    raw = SHIPPED
    for start, length, word in changes:
        raw = raw[:start] + word + raw[start + length :]
    try:
        topology = Topology.parse(raw, "mutated.yaml")
    except ConfigError as error:
        assert re.match(r"mutated\.yaml(:\d+)?: .", str(error))
        assert str(error).isprintable()
    else:
        assert topology.place(topology.host_count)
