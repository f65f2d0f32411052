"""The decoder of x86-64 and the search for flushes in programs: against objdump, and against made-up tables."""

import platform
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu import _native
from tests.helpers.tables import with_rows
from tests.helpers.x86 import KINDS, Line, Probe, disassembly, kind_of, loaded_files, operand_bytes

pytestmark = [
    pytest.mark.skipif(
        platform.machine() != "x86_64", reason="decodes x86-64, in which this machine's programs are not"
    ),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles the decoder with gcc, which is not here"),
]
needs_objdump = pytest.mark.skipif(shutil.which("objdump") is None, reason="compares with objdump, which is not here")


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return Probe(tmp_path_factory.mktemp("x86"))


INSTRUCTIONS = {
    # flushes and fences, and what looks like them
    "0f ae 38": "clflush",
    "3e 0f ae 3d 10 00 00 00": "clflush",
    "66 0f ae 3f": "clflushopt",
    "66 41 0f ae bc 24 00 01 00 00": "clflushopt",
    "66 0f ae 30": "clwb",  # also as .byte 0x66; xsaveopt
    "0f ae 30": "other",  # xsaveopt
    "f3 0f ae 30": "other",  # clrssbsy
    "66 0f ae f0": "other",  # tpause
    "0f ae f8": "sfence",
    "0f ae f0": "mfence",
    "0f ae e8": "lfence",
    "f3 0f ae e8": "other",  # incsspd
    "0f 18 08": "other",  # prefetch
    # locked
    "f0 83 00 01": "locked 4",
    "f0 66 ff 00": "locked 2",
    "f0 48 0f b1 17": "locked 8",
    "f0 0f b0 17": "locked 1",
    "f0 48 0f c7 0f": "locked 16",
    "f0 0f c7 0f": "locked 8",
    "f0 0f c0 07": "locked 1",
    "f0 80 0f 01": "locked 1",
    "87 07": "locked 4",
    "48 87 05 00 00 00 00": "locked 8",
    "86 07": "locked 1",
    "87 c8": "other",  # xchg of registers
    "90": "other",
    # non-temporal stores
    "0f c3 07": "nt store 4",
    "48 0f c3 47 08": "nt store 8",
    "0f e7 07": "nt store 8",
    "66 0f e7 07": "nt store 16",
    "0f 2b 07": "nt store 16",
    "f3 0f 2b 07": "nt store 4",
    "f2 0f 2b 07": "nt store 8",
    "c5 f9 e7 07": "nt store 16",
    "c5 fd e7 07": "nt store 32",
    "c4 41 7d e7 3c 24": "nt store 32",
    "c5 fc 2b 07": "nt store 32",
    "62 f1 7d 48 e7 47 01": "nt store 64",
    "62 f1 7d 28 e7 47 01": "nt store 32",
    "62 e1 7c 48 2b 07": "nt store 64",
    "66 0f f7 c1": "nt store 16",
    "0f f7 c1": "nt store 8",
    "c5 f9 f7 c1": "nt store 16",
    "0f 38 f9 07": "nt store 4",
    "48 0f 38 f9 07": "nt store 8",
    "66 0f 38 f8 07": "nt store 64",
    "66 0f 38 2a 07": "other",  # movntdqa, a load
    # lengths
    "48 b8 88 77 66 55 44 33 22 11": "other",
    "66 b8 34 12": "other",
    "48 a1 88 77 66 55 44 33 22 11": "other",
    "67 a1 44 33 22 11": "other",
    "c8 10 00 00": "other",
    "f6 05 00 00 00 00 01": "other",
    "f6 15 00 00 00 00": "other",
    "66 f7 c0 34 12": "other",
    "66 66 2e 0f 1f 84 00 00 00 00 00": "other",
    "8f 00": "other",  # pop
    "8f e8 78 85 04 25 00 00 00 00 10": "other",  # vpmacssww, of XOP
    "66 0f 78 c1 02 03": "other",  # extrq
    "0f 0f c1 9e": "other",  # pfadd, of 3DNow!
    "c4 e3 79 14 07 01": "other",  # vpextrb
    "0f 20 00": "other",  # mov %cr0, whatever its ModRM byte says of memory
}


@pytest.mark.parametrize(("code", "said"), INSTRUCTIONS.items())
def test_an_instruction_has_its_length_its_kind_and_what_it_stores(probe: Probe, code: str, said: str) -> None:
    nbytes = len(bytes.fromhex(code))
    decoded = probe.decode(bytes.fromhex(code) + bytes(15))
    assert decoded.length == nbytes
    assert f"{decoded.kind} {decoded.stored or ''}".strip() == said
    for room in range(nbytes):  # cut off
        assert probe.decode(bytes.fromhex(code)[:room]).length == 0


@with_rows("06", "60", "d6", "0f 04", "c4 e0 78 10", "66 c5 f9 e7 07", "f0 62 f1 7d 48 e7 07", "2e " * 15)
def test_what_is_no_instruction_has_no_length(code: str, probe: Probe) -> None:
    assert probe.decode(bytes.fromhex(code) + bytes(15 * (not code.startswith("2e")))).length == 0


# --- whole files ------------------------------------------------------------------------------------------------------


def compare(probe: Probe, lines: list[Line]) -> list[tuple[Line, int, str]]:
    """Where objdump and the decoder differ, beginning wherever objdump begins."""
    code = np.frombuffer(b"".join(line.code for line in lines) + bytes(16), np.uint8)
    lengths = np.array([len(line.code) for line in lines], np.int64)
    ours, kinds, _ = probe.decode_all(code, np.concatenate([[0], np.cumsum(lengths)[:-1]]))
    theirs = np.array([KINDS.index(kind_of(line.text)) for line in lines], np.uint8)
    differ = np.nonzero((ours != lengths) | (kinds != theirs))[0]
    return [(lines[k], int(ours[k]), KINDS[kinds[k]]) for k in differ]


@needs_objdump
def test_the_machines_extension_is_decoded_and_searched_as_objdump_does(probe: Probe) -> None:
    assert _native.__file__
    lines = list(disassembly(Path(_native.__file__)))
    assert len(lines) > 10_000
    assert compare(probe, lines) == []
    found, count = probe.scan(Path(_native.__file__))
    assert found == {line.address: kind for line in lines if (kind := kind_of(line.text)) != "other"}
    assert {"clwb", "clflushopt", "clflush", "sfence", "mfence", "lfence", "locked", "nt store"} == {*found.values()}
    assert count.table.has_table and not count.undecoded and not count.table.unknown
    unlocked, _ = probe.scan(Path(_native.__file__), locked=False)
    assert unlocked == {address: kind for address, kind in found.items() if kind != "locked"}


# Of no interest: what accesses nothing, or the run follows in other ways; objdump shows prefixes as words of their own.
NO_ACCESS = ("lea", "nop", "prefetch", "clflush", "clwb", "bnd", "data16", "cs", "ud", "repz", "repnz")


def compare_operands(probe: Probe, file: Path) -> tuple[int, list[tuple[Line, int]]]:
    """How many memory operands a file names, and those whose size the decoder takes for another one."""
    lines = list(disassembly(file, "-M", "intel"))
    code = np.frombuffer(b"".join(line.code for line in lines) + bytes(16), np.uint8)
    ends = np.cumsum([len(line.code) for line in lines])
    ours = probe.operands(code, np.concatenate([[0], ends[:-1]]).astype(np.int64))
    named = [(line, int(its)) for line, its in zip(lines, ours, strict=True) if operand_bytes(line.text)]
    named = [(line, its) for line, its in named if not line.text.startswith(NO_ACCESS)]
    return len(named), [(line, its) for line, its in named if its != operand_bytes(line.text)]


@needs_objdump
def test_operands_of_the_machines_extension_have_the_sizes_that_objdump_names(probe: Probe) -> None:
    assert _native.__file__
    named, differ = compare_operands(probe, Path(_native.__file__))
    assert named > 10_000 and differ == []


WHOLE_VECTORS = (
    *("cvttps2dq", "cvtps2dq", "cvtdq2ps", "cvtpd2dq", "cvttpd2dq", "movshdup", "movsldup"),
    *("addsubps", "addsubpd", "haddps", "haddpd", "hsubps", "hsubpd"),
)


@needs_objdump
def test_prefixes_that_choose_what_is_done_leave_the_whole_vector(probe: Probe, tmp_path: Path) -> None:
    halves = ("cvtdq2pd", "cvtps2pd", "movddup")
    source = tmp_path / "vectors.s"
    source.write_text("".join(f"f_{name}:\n {name} 32(%rsp), %xmm1\n" for name in WHOLE_VECTORS + halves))
    subprocess.run(["cc", "-shared", "-nostdlib", str(source), "-o", str(tmp_path / "vectors.so")], check=True)
    named, differ = compare_operands(probe, tmp_path / "vectors.so")
    assert named == len(WHOLE_VECTORS) + len(halves) and differ == []
    lddqu = np.frombuffer(bytes.fromhex("f2 0f f0 4c 24 20") + bytes(16), np.uint8)  # objdump names no size
    assert probe.operands(lddqu, np.zeros(1, np.int64)).tolist() == [16]


def libraries() -> list[Path]:
    """Of this process: the interpreter, the C library, NumPy's extensions; not what other tests happened to load.

    Some libraries have functions without unwind information, which docs/preload.md excludes.
    """
    import ssl  # noqa: F401, libcrypto has tables of constants among its code

    ours = (Path(sys.base_prefix), Path(np.__file__).parent, Path("/usr/lib"), Path("/lib"))
    files = [file for file in loaded_files() if any(folder in file.parents for folder in ours)]
    return [file for file in files if file.stat().st_size < 16 << 20]


@pytest.mark.deep
@needs_objdump
def test_whole_libraries_are_decoded_and_searched_as_objdump_does(probe: Probe) -> None:
    instructions = 0
    for file in libraries():
        lines = list(disassembly(file))
        instructions += len(lines)
        found, count = probe.scan(file)
        theirs = {line.address: kind for line in lines if (kind := kind_of(line.text)) != "other"}
        assert count.table.has_table and not count.undecoded and not count.table.unknown, file
        assert found.items() <= theirs.items(), file
        if not file.name.startswith("libcrypto"):  # whose tables of constants objdump takes for code
            assert found == theirs, file
            assert compare(probe, lines) == [], file
    assert instructions > 1_000_000


@pytest.mark.deep
@needs_objdump
def test_operands_of_whole_libraries_have_the_sizes_that_objdump_names(probe: Probe) -> None:
    operands = 0
    for file in libraries():
        if file.name.startswith("libcrypto"):  # whose tables of constants objdump takes for code
            continue
        named, differ = compare_operands(probe, file)
        operands += named
        halves = [line for line, _ in differ if line.code[0] == 0x62 and line.code[1] & 7 > 3]  # arithmetic of 16 bits
        assert len(differ) == len(halves), (file, differ[:20])
    assert operands > 100_000  # some libraries are nearly empty


BEGINNINGS = ("", "66", "f2", "f3", "48", "66 48", "67", "f0", "0f", "66 0f", "f3 0f", "f2 0f", "0f 38", "66 0f 38")
BEGINNINGS += ("0f 3a", "66 0f 3a", "c5", "c4", "62", "8f", "0f ae", "66 0f ae", "f0 48 0f", "41", "4c 0f")
VECTOR = {0xC4, 0xC5, 0x62, 0x8F}  # VEX, EVEX, XOP
ALONE = {"rep", "repz", "repnz", "lock", "data16", "addr32", "cs", "ds", "es", "ss", "fs", "gs", "fwait"}


def is_explained(line: Line) -> bool:
    """Differences that are objdump's way of showing what no processor executes so, or not as one instruction."""
    words = line.text.split()
    return (
        "(bad)" in line.text
        or words[-1] in ALONE  # a prefix that it shows on a line of its own
        or words[-1].startswith("rex")
        or words == ["data16", "sfence"]  # pcommit, which no processor has
        or (line.code[0] not in VECTOR and any(byte in VECTOR for byte in line.code[1:4]))  # after what excludes them
        or ("lock" in words and ("(" not in line.text or kind_of(line.text) == "locked"))  # of what cannot be locked
    )


@pytest.mark.deep
@needs_objdump
def test_random_instructions_are_decoded_as_objdump_does(probe: Probe, tmp_path: Path) -> None:
    draw, room = random.Random(1), 32
    codes = [(bytes.fromhex(draw.choice(BEGINNINGS)) + draw.randbytes(15))[:15] for _ in range(40_000)]
    file = tmp_path / "random"
    file.write_bytes(b"".join(code + b"\x90" * (room - len(code)) for code in codes))
    lines = disassembly(file, "-b", "binary", "-m", "i386:x86-64", "-M", "intel64", "-D")
    first = [line for line in lines if line.address % room == 0]
    assert len(first) > 30_000
    code = np.frombuffer(file.read_bytes() + bytes(16), np.uint8)
    lengths, kinds, _ = probe.decode_all(code, np.array([line.address for line in first], np.int64))
    same, differ = 0, []
    for line, length, kind in zip(first, lengths, kinds, strict=True):
        if length == len(line.code) and KINDS[kind] == kind_of(line.text):
            same += 1
        elif not is_explained(line):
            differ.append((line.text, line.code.hex(" "), int(length), KINDS[kind]))
    assert differ == []
    assert same > 20_000


# --- tables that lie --------------------------------------------------------------------------------------------------

CODE_AT, ENTRY_AT, TABLE_AT = 0, 64, 128


def module(functions: int = 1) -> bytearray:
    """A function of 8 bytes, its entry, and a table that names it so many times."""
    image = bytearray(TABLE_AT + 12 + 8 * functions)
    image[CODE_AT : CODE_AT + 8] = bytes.fromhex("66 0f ae 30 c3 90 90 90")
    struct.pack_into("<IIiI", image, ENTRY_AT, 20, 4, CODE_AT - (ENTRY_AT + 8), 8)
    struct.pack_into("<4BiI", image, TABLE_AT, 1, 0x1B, 3, 0x3B, 0, functions)
    for k in range(functions):
        struct.pack_into("<ii", image, TABLE_AT + 12 + 8 * k, CODE_AT - TABLE_AT, ENTRY_AT - TABLE_AT)
    return image


def test_a_table_names_its_functions(probe: Probe) -> None:
    count = probe.functions(module(3), TABLE_AT, 12 + 24)
    assert (count.functions, count.bytes, count.unknown, count.has_table) == (1, 8, 0, True)  # the visitor had enough


LIES = {
    "a count beyond the table": (TABLE_AT + 8, "<I", 2**32 - 1, (0, 0, False)),
    "an encoding of its own": (TABLE_AT + 3, "<B", 0x3C, (0, 0, False)),
    "an entry outside": (TABLE_AT + 16, "<i", 2**31 - 1, (0, 1, True)),
    "an entry before": (TABLE_AT + 16, "<i", -(2**31), (0, 1, True)),
    "a function outside": (TABLE_AT + 12, "<i", 2**31 - 1, (0, 1, True)),
    "an entry of another function": (ENTRY_AT + 8, "<i", 0, (0, 1, True)),
    "a function longer than the code": (ENTRY_AT + 12, "<I", 2**32 - 1, (0, 1, True)),
    "an empty function": (ENTRY_AT + 12, "<I", 0, (0, 1, True)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_table_that_lies_is_not_believed(probe: Probe, lie: str) -> None:
    at, form, value, expected = LIES[lie]
    image = module()
    struct.pack_into(form, image, at, value)
    count = probe.functions(image, TABLE_AT, 20)
    assert (count.functions, count.unknown, count.has_table) == expected


def test_a_table_that_is_said_to_be_larger_than_what_was_loaded_is_not_believed(probe: Probe) -> None:
    for nbytes in (0, 11, 21, 2**40, 2**63 - 1):
        assert not probe.functions(module(), TABLE_AT, nbytes).has_table


@given(changes=st.lists(st.tuples(st.integers(ENTRY_AT, TABLE_AT + 19), st.integers(0, 255)), max_size=6))
def test_no_table_leads_to_more_than_its_module_holds(probe: Probe, changes: list[tuple[int, int]]) -> None:
    image = module()
    for at, value in changes:
        image[at] = value
    count = probe.functions(image, TABLE_AT, 20)
    assert count.functions in (0, 1) and 0 <= count.bytes <= len(image)
