"""Plans on disk: what was saved comes back, and nothing else ever gets in."""

import json
import os
import struct
import zlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from collectives.algorithms.catalog import build, load_plan, recipe
from collectives.layouts import layout_for
from cxlemu.errors import PlanError, PlanFileError
from cxlemu.plan import Call, Frame, Kernel, Op, Plan, RankPart, Stream, encode
from cxlemu.plan import file as plan_file
from cxlemu.plan.file import MAGIC, save
from cxlemu.plan.instructions import RECORD_DTYPE, Instruction, Kind, Operand
from cxlemu.plan.rules import check, findings
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples

few = examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
PREFIX_BYTES = 20


@cache
def plan(collective: str = "all_reduce", variant: str = "two_shot", ranks: int = 3, nbytes: int = 1000) -> Plan:
    redop = "avg" if "reduce" in collective else "none"
    call = Call(collective, variant, ranks, nbytes, "f32", redop)
    return build(recipe(collective, variant), layout_for(ranks, 2, 1 << 20, 4096), call)


@cache
def saved_content() -> bytes:
    """A file as `save` writes it, without a test's folder."""
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"cxlemu-test-{os.getpid()}.plan"
    try:
        save(plan(), path)
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


def parts_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    size = struct.unpack_from("<Q", content, 12)[0]
    return json.loads(content[PREFIX_BYTES : PREFIX_BYTES + size]), content[PREFIX_BYTES + size : -4]


def sealed(
    header: dict[str, Any] | bytes, records: bytes, *, version: int = 2, header_bytes: int | None = None
) -> bytes:
    """A file whose CRC is right, so that what it says is all that can be wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if header_bytes is None else header_bytes
    content = MAGIC + struct.pack("<IQ", version, size) + text + records
    return content + struct.pack("<I", zlib.crc32(content))


def load_bytes(tmp_path: Path, content: bytes) -> Plan:
    path = tmp_path / "some.plan"
    path.write_bytes(content)
    return load_plan(path)


# --- what comes back -----------------------------------------------------------------------------------------


@with_rows(
    ("all_reduce", "two_shot", 3, 1000),
    ("all_gather", "line", 2, 100),
    ("broadcast", "all", 1, 64),
    ("all_to_all", "naive", 4, 300_000),
    ("barrier", "line", 5, 0),
)
def test_what_was_saved_comes_back(collective: str, variant: str, ranks: int, nbytes: int, tmp_path: Path) -> None:
    one = plan(collective, variant, ranks, nbytes)
    save(one, tmp_path / "a.plan")
    again = load_plan(tmp_path / "a.plan")
    assert again == one
    assert (again.digest, again.frame, again.parts) == (one.digest, one.frame, one.parts)
    assert again.part(0) is again.part(0)


def test_kernels_and_in_place_buffers_come_back(tmp_path: Path) -> None:
    gemm = Instruction(Op.COMPUTE, nbytes=16, dst=Operand(Kind.BUFFER, 1), a=Operand(Kind.BUFFER, 0))
    call = Call("all_gather", "all", 2, 100, in_place=True)
    made = build(recipe("all_gather", "all"), layout_for(2, 2, 1 << 20, 4096), call)
    frame = replace(made.frame, kernels=(Kernel("gemm_f32", (2, 2, 2)),))

    def built(rank: int) -> tuple[Frame, RankPart]:
        part = made.part(rank)
        return frame, replace(part, streams=(*part.streams, Stream("compute", encode([gemm]))))

    one = Plan(call, made.layout, built)
    save(one, tmp_path / "a.plan")
    assert load_plan(tmp_path / "a.plan") == one


def test_equal_plans_are_equal_files(tmp_path: Path) -> None:
    save(plan(), tmp_path / "a.plan")
    save(plan(), tmp_path / "b.plan")
    assert (tmp_path / "a.plan").read_bytes() == (tmp_path / "b.plan").read_bytes()


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    path.write_text("something older")
    save(plan(), path)
    assert load_plan(path) == plan()
    assert [found.name for found in tmp_path.iterdir()] == ["a.plan"]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.plan"
    path.write_text("something older")

    def full(_: int, __: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cxlemu.files.os.fchmod", full)
    with pytest.raises(PlanFileError, match=r"a\.plan cannot be written: No space left on device"):
        save(plan(), path)
    assert path.read_text() == "something older"
    assert [found.name for found in tmp_path.iterdir()] == ["a.plan"]


def test_saving_where_nothing_can_be(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="cannot be written: No such file or directory"):
        save(plan(), tmp_path / "no" / "a.plan")


def test_a_name_that_could_upset_a_terminal_is_not_saved(tmp_path: Path) -> None:
    named = Plan(replace(plan().call, algorithm="\x1b[2J"), plan().layout, plan().build)
    with pytest.raises(PlanFileError, match=r"cannot be saved: call\.algorithm"):
        save(named, tmp_path / "a.plan")


# --- what does not get in ------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "an empty file": (lambda good: b"", "not a plan file: it must begin with CXLEMUPL"),
    "a foreign file": (lambda good: b"\x7fELF" + good[4:], "not a plan file"),
    "only the magic": (lambda good: good[:8], "truncated: 8 bytes"),
    "a file cut short": (lambda good: good[:-10], "damaged or truncated"),
    "a flipped bit": (lambda good: good[:500] + bytes([good[500] ^ 1]) + good[501:], "damaged or truncated"),
    "another version": (lambda good: sealed(*parts_of(good), version=3), "of version 3: this cxlemu reads version 2"),
    "a header past the end": (lambda good: sealed(*parts_of(good), header_bytes=2**63), "does not fit in the file"),
    "a header that is not JSON": (lambda good: sealed(b"{'call'", b""), "its header is wrong: Invalid JSON"),
    "a header nested too deep": (lambda good: sealed(b"[" * 100_000, b""), "its header is wrong"),
    "records that are missing": (lambda good: sealed(parts_of(good)[0], b""), "the file has 0"),
    "records too many": (lambda good: sealed(parts_of(good)[0], parts_of(good)[1] + b"\0"), "its header promises"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tmp_path: Path, what: str) -> None:
    spoil, says = REFUSED[what]
    with pytest.raises(PlanFileError) as error:
        load_bytes(tmp_path, spoil(saved_content()))
    assert str(error.value).startswith(f"{tmp_path / 'some.plan'}: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


HEADERS: dict[str, tuple[tuple[str | int, ...], Any, str]] = {
    "a number as text": (("call", "nbytes"), "1000", "call.nbytes: Input should be a valid integer"),
    "a negative number": (("call", "nbytes"), -1, "call.nbytes: Input should be greater than or equal to 0"),
    "a huge number": (("layout", "slot_card_bytes"), 10**30, "layout.slot_card_bytes"),
    "a fraction": (("rounds",), 1.5, "rounds: Input should be a valid integer"),
    "a flag as a number": (("call", "in_place"), 1, "call.in_place: Input should be a valid boolean"),
    "an escape sequence": (("call", "algorithm"), "\x1b[31m", "call.algorithm"),
    "an unknown key": (("surprise",), 1, "surprise: Extra inputs are not permitted"),
    "no parts": (("parts",), [], "it has parts for 0 ranks, but its call has 3"),
    "other ranks": (("call", "ranks"), 4, "it has parts for 3 ranks, but its call has 4"),
    "no interleaving": (
        ("layout", "interleave_bytes"),
        0,
        "interleave by 0 bytes, no positive multiple of 64 (rule layout",
    ),
    "odd interleaving": (("layout", "interleave_bytes"), 100, "interleave by 100 bytes"),
    "another layout": (("layout", "ranks"), 4, "the layout is for 4 ranks, the call for 3 (rule layout"),
    "too many records": (("parts", 1, "streams", 0, "records"), 2**31 - 1, "its header promises"),
    "a region outside": (("regions", 0, "base"), 2**40, "(rule regions"),
    "a smaller buffer": (("parts", 2, "buffers", 0, "nbytes"), 4, "(rule buffer:"),
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_that_lies_is_refused(tmp_path: Path, what: str) -> None:
    keys, value, says = HEADERS[what]
    header, records = parts_of(saved_content())
    place: Any = header
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    with pytest.raises(PlanFileError) as error:
        load_bytes(tmp_path, sealed(header, records))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_record_that_breaks_a_rule_is_refused_by_name(tmp_path: Path) -> None:
    header, records = parts_of(saved_content())
    rows = np.frombuffer(records, RECORD_DTYPE).copy()
    rows["op"][3] = 200
    with pytest.raises(PlanFileError, match=r"rank 0, stream publish, instruction 3 .*\(rule opcode"):
        load_bytes(tmp_path, sealed(header, rows.tobytes()))


def test_what_is_no_regular_file_is_not_even_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(PlanFileError, match="not a regular file"):
            load_plan(path)
    with pytest.raises(PlanFileError, match="cannot be read: No such file"):
        load_plan(tmp_path / "absent")


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = saved_content()
    monkeypatch.setattr(plan_file, "MAX_FILE_BYTES", 1000)
    with pytest.raises(PlanFileError, match="cannot be read: larger than 1000 bytes; give a plan"):
        load_bytes(tmp_path, content)
    with pytest.raises(PlanFileError, match="a file holds at most 1000"):
        save(plan(), tmp_path / "a.plan")


# --- fuzzing -------------------------------------------------------------------------------------------------


def survives(tmp_path: Path, content: bytes) -> Plan | None:
    """Either a plan that obeys every rule, or one of our errors: anything else fails the test."""
    try:
        found = load_bytes(tmp_path, content)
    except (PlanFileError, PlanError) as error:
        assert "\n" not in str(error)
        return None
    check(found)
    return found


@given(st.data())
@few
def test_damaged_bytes_never_load(tmp_path: Path, data: st.DataObject) -> None:
    good = saved_content()
    at = data.draw(st.integers(0, len(good) - 1))
    junk = data.draw(st.binary(max_size=8))
    cut = data.draw(st.integers(0, 8))
    bad = good[:at] + junk + good[at + cut :]
    assert (survives(tmp_path, bad) is None) == (bad != good)


@given(st.binary(max_size=200))
@few
def test_junk_behind_a_right_magic_and_crc(tmp_path: Path, junk: bytes) -> None:
    content = MAGIC + junk
    assert survives(tmp_path, content + struct.pack("<I", zlib.crc32(content))) is None


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths to everything in a JSON document, lists and objects too."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, inner in items for found in leaves(inner, (*path, key)))]


VALUES = st.one_of(
    st.integers(-3, 70),
    st.sampled_from([2**31 - 1, 2**31, 2**53, 2**63, 10**40, -1, 63, 64, 4096, 65536]),
    st.sampled_from([None, True, "", "u8", "input", "output", "publish", "gemm_f32", [], {}, 1.5, [1, 2], "\0", "é"]),
)


@given(st.data())
@few
def test_headers_that_say_anything(tmp_path: Path, data: st.DataObject) -> None:
    header, records = parts_of(saved_content())
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(leaves(header)[1:]))
        place: Any = header
        for key in path[:-1]:
            place = place[key]
        if data.draw(st.integers(0, 4)):
            place[path[-1]] = deepcopy(data.draw(VALUES))
        else:
            del place[path[-1]]
    survives(tmp_path, sealed(header, records))


@given(st.data())
@few
def test_records_that_say_anything(tmp_path: Path, data: st.DataObject) -> None:
    """Single fields take any value that fits, so that the rules are all there is between a file and an engine."""
    header, records = parts_of(saved_content())
    rows = np.frombuffer(records, RECORD_DTYPE).copy()
    for _ in range(data.draw(st.integers(1, 4))):
        row = data.draw(st.integers(0, len(rows) - 1))
        field = data.draw(st.sampled_from(RECORD_DTYPE.names))
        target, name = rows[row : row + 1], field
        if field in ("dst", "dst2", "a", "b", "c"):
            target, name = target[field], data.draw(st.sampled_from(["kind", "id", "seq", "offset"]))
        limits = np.iinfo(target.dtype[name])
        least, most = int(limits.min), int(limits.max)
        target[name] = data.draw(st.one_of(st.integers(max(least, -2), 20), st.integers(least, most)))
    survives(tmp_path, sealed(header, rows.tobytes()))


@given(st.binary(min_size=RECORD_DTYPE.itemsize, max_size=RECORD_DTYPE.itemsize))
@few
def test_a_record_of_random_bytes_is_told_by_the_rules(record: bytes) -> None:
    rows = np.frombuffer(record, RECORD_DTYPE)
    one = plan()
    part = replace(one.part(0), streams=(Stream("publish", rows),))
    for finding in findings(one.with_part(part)):
        assert "\n" not in str(finding)
