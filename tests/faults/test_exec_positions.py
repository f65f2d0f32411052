"""Places that a maintainer can use: lines of the program, not of its language's library."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cxlemu import program
from faults.programs.area import CodePlace
from faults.programs.findings import ROLES, ProgramFinding
from faults.programs.positions import located
from faults.programs.result import RunChoice, RunResult
from tests.helpers.compilers import use_compiler
from tests.helpers.pool_programs import CHOICES, SOURCES, build, is_quiet, kinds, on_x86, ran

pytestmark = on_x86


FIRST = RunChoice(None, 0)


def lines_of(source: Path, result: RunResult, kind: str = "not-flushed") -> Iterator[tuple[str, str]]:
    """Each place of a finding, all of which are in the program's source: the function, and the line's text."""
    assert kind in kinds(result)
    lines = source.read_text().splitlines()
    for raw in result.findings:
        finding = ProgramFinding.one(bytes(raw))
        sites = [finding.site(role) for role in ROLES if finding.site(role)]
        for place in located([result.places[site] for site in sites]):
            assert place is not None and place.at.file.endswith(source.name), place
            assert all(caller.file.endswith(source.name) for caller in place.callers), place
            yield place.at.function, lines[place.at.line - 1].strip()


@pytest.mark.deep
@pytest.mark.parametrize(("flag", "kind"), [("NOT_FLUSHED", "not-flushed"), ("NO_INVALIDATE", "no-invalidate")])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_what_cpps_library_accesses_in_its_threads_is_at_the_programs_line(
    monkeypatch: pytest.MonkeyPatch, compiler: str, flag: str, kind: str
) -> None:
    use_compiler(monkeypatch, compiler)
    right, wrong = (build("modern.cc", "-std=c++20", f"-D{what}", language="c++") for what in ("RIGHT", flag))
    for choice in CHOICES:
        assert is_quiet(ran(f"{right} /dev/dax0.0 w : {right} /dev/dax0.0 r", choice)), choice
    told = lines_of(SOURCES / "modern.cc", ran(f"{wrong} /dev/dax0.0 w : {wrong} /dev/dax0.0 r", FIRST), kind)
    assert "std::iota(mine.begin(), mine.end(), r * 100 + k);" in {line for _, line in told}


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_functions_of_cpps_library_that_call_one_another_are_at_the_programs_line(
    monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    """Without optimization, nothing of them is in line."""
    use_compiler(monkeypatch, compiler)
    its = build("unoptimized.cc", "-O0", language="c++")
    told = lines_of(SOURCES / "unoptimized.cc", ran(f"{its} /dev/dax0.0 w : {its} /dev/dax0.0 r", FIRST))
    assert {
        "std::fill(its->data.begin(), its->data.end(), 7);",
        "return *std::max_element(its->data.begin(), its->data.end()) > 7;",
    } <= {line for _, line in told}


@pytest.mark.skipif(
    not all(map(shutil.which, ("clang++", "llvm-addr2line"))), reason="there is no clang of LLVM's tools"
)
def test_functions_that_clang_inlined_in_a_binary_have_the_programs_line(tmp_path: Path) -> None:
    source, its = SOURCES / "modern.cc", tmp_path / "modern"
    include = f"-I{program.include_dir()}"
    flags = ["-std=c++20", "-O2", "-g", "-pthread", "-w", "-DNOT_FLUSHED", include]
    subprocess.run(["clang++", *flags, str(source), "-o", str(its)], check=True, timeout=240)
    told = {line for _, line in lines_of(source, ran(f"{its} /dev/dax0.0 w : {its} /dev/dax0.0 r", FIRST))}
    assert "std::iota(mine.begin(), mine.end(), r * 100 + k);" in told


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_function_of_a_header_stands_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    use_compiler(monkeypatch, compiler)
    header, source = tmp_path / "put.h", tmp_path / "put.c"
    header.write_text("static __attribute__((noinline)) void put(volatile int *at) { *at = 1; }\n")
    source.write_text('#include "put.h"\nint main(void) {\n    int x;\n    put(&x);\n    return x;\n}\n')
    its = build(source)
    listed = subprocess.run(["nm", str(its)], capture_output=True, text=True, check=True).stdout
    (first,) = [int(line.split()[0], 16) for line in listed.splitlines() if line.endswith(" put")]
    (place,) = located([CodePlace(str(its), first, "", 0)])
    assert place is not None and (Path(place.at.file).name, place.at.line) == ("put.h", 1)


@pytest.mark.skipif(shutil.which("rustc") is None, reason="there is no rustc")
def test_what_rusts_library_accesses_is_at_the_line_that_calls_it(tmp_path: Path) -> None:
    source, its = SOURCES / "positions.rs", tmp_path / "positions"
    subprocess.run(["rustc", "-O", "-g", str(source), "-o", str(its)], check=True, timeout=240, capture_output=True)
    told = {
        line.split("(")[0] for _, line in lines_of(source, ran(f"{its} /dev/dax0.0 w : {its} /dev/dax0.0 r", FIRST))
    }
    assert {"text.copy_from_slice", "flag.store", "while flag.load"} <= told


def test_what_python_and_its_libraries_access_is_at_the_line_of_the_script() -> None:
    source = SOURCES / "positions.py"
    its = f"{sys.executable} {source}"
    assert set(lines_of(source, ran(f"{its} /dev/dax0.0 w : {its} /dev/dax0.0 r", FIRST))) == {
        ("send", "data[:] = 7  # so many bytes that NumPy gives the interpreter's lock back meanwhile"),
        ("send", 'mapped[128:132] = b"text"'),
        ("send", "view[256] = 3"),
        ("send", "flag[0] = 1"),
        ("receive", "while flag[0] != 1:"),
        ("receive", "got = data.copy(), mapped[128:132]"),
        ("receive", "print(got, view[256])"),
    }
