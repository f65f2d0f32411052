"""The machine's own cache-line instructions: what they store, what they refuse, and that the build contains them."""

import platform
import re
import shutil
import subprocess
from functools import cache

import numpy as np
import pytest

from cxlemu import _native
from cxlemu.memory.protocol import LINE_BYTES, Bytes

BYTES = 6 * LINE_BYTES
MACHINE = platform.machine()
X86 = MACHINE == "x86_64"


def card() -> Bytes:
    return np.full(BYTES + LINE_BYTES, 7, np.uint8)


def widths() -> list[int]:
    """Those of non-temporal stores that this machine has; 0 is what dispatch chose."""
    found = [0]
    for width in (8, 16, 32, 64):
        try:
            _native.copy_nt(card(), 0, np.zeros(0, np.uint8), width)
        except ValueError:
            continue
        found.append(width)
    return found


@pytest.mark.each_value_once
@pytest.mark.parametrize("width", widths())
@pytest.mark.parametrize("offset", [0, 1, 60, 64, 100])
@pytest.mark.parametrize("nbytes", [0, 1, 3, 4, 63, 64, 65, 128, 200, 257])
def test_a_non_temporal_copy_stores_its_bytes_and_no_others(width: int, offset: int, nbytes: int) -> None:
    into, data = card(), np.random.default_rng(nbytes).integers(0, 256, nbytes + 1, np.uint8)[1:]
    _native.copy_nt(into, offset, data, width)
    _native.fence()
    expected = card()
    expected[offset : offset + nbytes] = data
    assert into.tobytes() == expected.tobytes()


def test_flush_and_invalidate_leave_the_bytes_as_they_are() -> None:
    lines = card()
    for offset, nbytes in ((0, 0), (0, lines.nbytes), (63, 2), (lines.nbytes, 0), (lines.nbytes - 1, 1)):
        _native.flush(lines, offset, nbytes, False)
        _native.flush(lines, offset, nbytes, True)
        _native.invalidate(lines, offset, nbytes)
    assert lines.tobytes() == card().tobytes()


OUTSIDE = [(-1, 1), (0, BYTES + LINE_BYTES + 1), (BYTES + LINE_BYTES, 1), (0, -1), (64, 2**63 - 1), (2**63 - 1, 1)]


@pytest.mark.parametrize(("offset", "nbytes"), OUTSIDE)
def test_a_range_outside_its_card_is_refused(offset: int, nbytes: int) -> None:
    with pytest.raises(ValueError, match="outside a card"):
        _native.flush(card(), offset, nbytes, False)
    with pytest.raises(ValueError, match="outside a card"):
        _native.invalidate(card(), offset, nbytes)


@pytest.mark.parametrize("offset", [-1, BYTES + LINE_BYTES, 2**63 - 1])
def test_a_non_temporal_copy_outside_its_card_is_refused(offset: int) -> None:
    into = card()
    with pytest.raises(ValueError, match="outside a card"):
        _native.copy_nt(into, offset, np.zeros(1, np.uint8), 0)
    assert into.tobytes() == card().tobytes()


@pytest.mark.parametrize("width", [-8, 1, 7, 24, 128, 2**40])
def test_stores_of_other_widths_are_refused(width: int) -> None:
    with pytest.raises(ValueError, match="no non-temporal stores of"):
        _native.copy_nt(card(), 0, np.zeros(8, np.uint8), width)


def test_a_store_to_a_read_only_card_is_refused() -> None:
    lines = card()
    lines.flags.writeable = False
    _native.flush(lines, 0, 64, False)  # of what others store there
    _native.invalidate(lines, 0, 64)
    with pytest.raises(ValueError, match="read-only"):
        _native.copy_nt(lines, 0, np.zeros(64, np.uint8), 0)


def test_the_instructions_in_use_are_named() -> None:
    names = _native.lines_instructions()
    if X86:
        assert re.fullmatch(
            r"clflush(opt)?, (clwb|clflush(opt)?) to keep, sfence, lfence and mfence to invalidate, v?movntdq.*", names
        )
    elif MACHINE == "aarch64":
        assert names == "dc civac, dc cvac to keep, dsb sy, stnp"


# --- the build ------------------------------------------------------------------------------------------------------


FLUSHES = {"x86_64": ("clwb", "clflushopt", "clflush"), "aarch64": ("dc_cvac", "dc_civac")}
STORES = (
    ("copy_movnti", r"movnti %r\w+,"),
    ("copy_sse2", r"movnt(?:dq|p[sd]) %xmm"),
    ("copy_avx2", r"vmovnt(?:dq|p[sd]) %ymm"),
    ("copy_avx512", r"vmovnt(?:dq|p[sd]) %zmm"),
)
FENCES = {
    "x86_64": {"lines_invalidate": ["lfence", "mfence"], "lines_fence": ["sfence"]},
    # with a way of its own for an empty range
    "aarch64": {"lines_invalidate": ["dmb sy", "dsb sy", "dsb sy"], "lines_fence": ["dsb sy"]},
}


@cache
def functions() -> dict[str, list[str]]:
    """Of each function of the extension, its instructions."""
    if MACHINE not in FLUSHES:
        pytest.skip(f"the instructions of {MACHINE} are not looked for")
    objdump = shutil.which(f"{MACHINE}-linux-gnu-objdump") or shutil.which("objdump")  # the former knows them anywhere
    if objdump is None:
        pytest.skip("objdump is not here")
    command = [objdump, "-d", "--no-show-raw-insn", _native.__file__]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if heading := re.fullmatch(r"[0-9a-f]+ <(.+)>:", line):
            body = found.setdefault(heading[1], [])
        elif instruction := re.match(r"\s+[0-9a-f]+:\s+(.+?)\s*$", line):
            body.append(" ".join(instruction[1].split()))
    if "__asan" in text:
        pytest.skip("a build for a sanitizer is not the build that is used")
    if "lines_flush" not in found:
        pytest.skip("the extension is stripped of its symbols")
    return found


@pytest.mark.parametrize("name", FLUSHES.get(MACHINE, ()))
def test_a_flush_has_its_instruction_and_goes_through_the_range(name: str) -> None:
    """A peer ships a clwb whose address register is never bound, and nothing noticed."""
    body = functions()[name]
    instruction = rf"{name} \(?(%\w+)\)?" if X86 else rf"{name.replace('_', ' ')}, (x\d+)"
    used = [match[1] for line in body if (match := re.fullmatch(instruction, line))]
    assert used, body
    for register in used:
        advances = rf"(add \$0x40|sub \$0xf+c0),{register}|lea 0x40\({register}\),{register}"
        bound, argument = rf".*%rdi.*,{register}", "%rdi"
        if not X86:
            advances, bound, argument = rf"add {register}, {register}, x\d+", rf"\w+ {register}, .*\bx0\b.*", "x0"
        assert any(re.fullmatch(advances, line) for line in body), f"{register} stays where it is: {body}"
        assert any(re.fullmatch(bound, line) for line in body) or register == argument, body


@pytest.mark.skipif(not X86, reason="of x86-64")
@pytest.mark.parametrize(("name", "store"), STORES)
def test_a_non_temporal_copy_has_its_stores_and_no_others(name: str, store: str) -> None:
    body = functions()[name]
    assert any(re.match(store, line) for line in body), body
    to_memory = [line for line in body if re.match(r"v?mov\S* %\w+,.*\(", line)]
    assert all(re.match(store, line) for line in to_memory), to_memory


@pytest.mark.skipif(MACHINE != "aarch64", reason="of arm64")
def test_a_non_temporal_copy_of_arm64_stores_what_it_loaded() -> None:
    body = functions().get("copy_stnp") or functions()["lines_copy_nt"]  # it is small enough to be a part of that
    [load] = [number for number, line in enumerate(body) if re.fullmatch(r"ldp q0, q1, \[x\d+\]", line)]
    assert re.fullmatch(r"stnp q0, q1, \[x\d+\]", body[load + 1])
    assert any(re.fullmatch(r"add (x\d+), \1, #0x20", line) for line in body), f"it stays where it is: {body}"


@pytest.mark.parametrize("name", ["lines_invalidate", "lines_fence"])
def test_fences_are_those_that_the_memory_model_names(name: str) -> None:
    body = functions()[name]
    found = [line for line in body if re.fullmatch(r"[lms]fence|d[ms]b \w+", line)]
    assert found == FENCES[MACHINE][name]
