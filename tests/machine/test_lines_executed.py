"""Every line that should be flushed, dropped or stored past the cache is, in the right order: what is executed.

A coherent machine gives the right bytes without any of them, so they are looked at one by one. tests/mutants.yaml has
mistakes that these tests have to see.
"""

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
    steps = tmp_path_factory.mktemp("lines") / "steps"
    flags = ["-std=c11", "-O1", "-ffp-contract=off", f"-I{LINES_C.parent}"]
    subprocess.run(["gcc", *flags, LINES_C, STEPS_C, "-o", steps], check=True)
    return steps


@pytest.mark.parametrize("some", [CASES[::4], pytest.param(CASES, marks=pytest.mark.deep)], ids=["some", "all"])
def test_what_is_executed_is_what_the_memory_model_asks_for(
    program: Path, some: list[tuple[tuple[object, ...], list[Executed]]]
) -> None:
    for arguments, expected in some:
        assert executed(program, *arguments) == expected, arguments
