"""Every line that should be flushed, dropped or stored past the cache is, in the right order: what is executed.

A coherent machine gives the right bytes without any of them, so they are looked at one by one.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cxlemu import _native
from cxlemu.memory.protocol import LINE_BYTES
from tests.helpers.stepped import Executed, executed

X86 = platform.machine() == "x86_64"
ROOT = Path(__file__).parents[2]
LINES_C, STEPS_C = ROOT / "cxlemu/native/lines.c", ROOT / "tests/helpers/native/lines_steps.c"
DROP, KEEP = _native.lines_instructions().split(" to keep")[0].split(", ") if X86 else ("", "")

pytestmark = pytest.mark.skipif(not X86 or shutil.which("gcc") is None, reason="steps through x86-64 that gcc compiles")


def compiled(where: Path, source: str) -> Path:
    (where / "lines.c").write_text(source)
    flags = ["-std=c11", "-O1", "-ffp-contract=off", f"-I{LINES_C.parent}"]
    subprocess.run(["gcc", *flags, where / "lines.c", STEPS_C, "-o", where / "steps"], check=True)
    return where / "steps"


def lines_of(at: int, nbytes: int) -> range:
    return range(at // LINE_BYTES * LINE_BYTES, at + nbytes if nbytes > 0 else 0, LINE_BYTES)


def each(name: str, at: int, nbytes: int) -> list[Executed]:
    return [Executed(name, line) for line in lines_of(at, nbytes)]


def stored(at: int, nbytes: int, width: int) -> list[Executed]:
    """Whole lines by non-temporal stores, and flushes of the lines that are stored to in part."""
    head = min(-at % LINE_BYTES, nbytes)
    whole = (nbytes - head) // LINE_BYTES * LINE_BYTES
    past = [Executed(f"nt{width}", at + head + k) for k in range(0, whole, width)]
    return [*each(DROP, at, head), *past, *each(DROP, at + head + whole, nbytes - head - whole)]


RANGES = [(0, 0), (63, 0), (0, 1), (0, 64), (0, 65), (63, 1), (63, 2), (64, 192), (100, 157), (1, 64)]


def cases() -> Iterator[tuple[tuple[object, ...], list[Executed]]]:
    """A call's arguments, and what it has to execute."""
    for at, nbytes in RANGES:
        yield ("f", at, nbytes, 0), each(DROP, at, nbytes)
        yield ("f", at, nbytes, 1), each(KEEP, at, nbytes)
        yield ("i", at, nbytes, 0), [Executed("lfence"), *each(DROP, at, nbytes), Executed("mfence")]
        for width in (8, 16):
            yield ("n", at, nbytes, width), stored(at, nbytes, width)
    yield ("|", 0, 0, 0), [Executed("sfence")]


CASES = list(cases())


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("lines"), LINES_C.read_text())


@pytest.mark.parametrize("some", [CASES[::4], pytest.param(CASES, marks=pytest.mark.deep)], ids=["some", "all"])
def test_what_is_executed_is_what_the_memory_model_asks_for(
    program: Path, some: list[tuple[tuple[object, ...], list[Executed]]]
) -> None:
    for arguments, expected in some:
        assert executed(program, *arguments) == expected, arguments


# What is written, and what stands there in its place.
MUTANTS = {
    "flush does nothing": ("(keep ? chosen.keep : chosen.drop)(at, nbytes);", "(void)at, (void)nbytes, (void)keep;"),
    "flush of nothing flushes": ("if (nbytes > 0) (keep ?", "(keep ?"),
    "flush keeps where it should drop": ("(keep ? chosen.keep : chosen.drop)", "(keep ? chosen.drop : chosen.keep)"),
    "flush always drops": ("(keep ? chosen.keep : chosen.drop)", "(chosen.drop)"),
    "a range begins at its first byte": ("p = LINE_OF(at, line), end", "p = (uintptr_t)(at), end"),
    "a range begins a line late": ("p = LINE_OF(at, line), end", "p = LINE_OF(at, line) + line, end"),
    "the last line is left out": ("p < end; p += (line))", "p + (line) < end; p += (line))"),
    "a line more": ("p < end; p += (line))", "p <= end; p += (line))"),
    "every second line": ("p < end; p += (line))", "p < end; p += 2 * (line))"),
    "lines of 128 bytes": ("enum { MACHINE_LINE = 64 };", "enum { MACHINE_LINE = 128 };"),
    "no sfence": ('"sfence"', '""'),
    "lfence for sfence": ('"sfence"', '"lfence"'),
    "invalidate without lfence": ('"lfence"', '""'),
    "invalidate without mfence": ('"mfence"', '""'),
    "invalidate ordered by sfence": ('"mfence"', '"sfence"'),
    "invalidate drops nothing": ("lines_flush(at, nbytes, 0);\n    __asm__", "(void)at, (void)nbytes;\n    __asm__"),
    "invalidate keeps the lines": (
        "lines_flush(at, nbytes, 0);\n    __asm__",
        "lines_flush(at, nbytes, 1);\n    __asm__",
    ),
    "invalidate drops before lfence": (
        '    __asm__ volatile("lfence" : : : "memory");\n    lines_flush(at, nbytes, 0);\n',
        '    lines_flush(at, nbytes, 0);\n    __asm__ volatile("lfence" : : : "memory");\n',
    ),
    "a part of a line is not flushed": ("    lines_flush(to, nbytes, 0);\n}", "}"),
    "no head is stored": ("if (head) store_and_flush", "if (0) store_and_flush"),
    "no tail is stored": ("if (tail) store_and_flush", "if (0) store_and_flush"),
    "one whole line less": ("(size_t)whole / STORE_LINE);", "(size_t)whole / STORE_LINE - 1);"),
    "whole lines are stored in the cache": (
        "if (whole) copy_lines(into + head, source + head, (size_t)whole / STORE_LINE);",
        "if (whole) memcpy(into + head, source + head, (size_t)whole);",
    ),
    "the width is ignored": ("width && k < sizeof COPIERS", "0 && k < sizeof COPIERS"),
    "a head of a whole line": ("(-(uintptr_t)into & (STORE_LINE - 1))", "(-(uintptr_t)into & (STORE_LINE / 2 - 1))"),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", MUTANTS)
def test_every_mistake_is_seen(tmp_path: Path, name: str) -> None:
    is_there, instead = MUTANTS[name]
    source = LINES_C.read_text()
    assert is_there in source
    broken = compiled(tmp_path, source.replace(is_there, instead, 1))
    assert any(executed(broken, *arguments) != expected for arguments, expected in CASES)
