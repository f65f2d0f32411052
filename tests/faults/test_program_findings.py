"""What `cxlemu exec` finds in programs: the lines of writer and reader, and the missing instruction."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.helpers.commands import cxlemu
from tests.helpers.pool_programs import SOURCES, build


class Program:
    """A source that is compiled for a test, and the lines of its marks: ``/* MARK */``."""

    def __init__(self, source: str, folder: Path, *flags: str) -> None:
        self.file, self.binary, self.pool = SOURCES / source, build(source, *flags), folder / "pool"

    def run(self, *flags: str, commands: str = "P new :: P produce : P consume") -> Result:
        words: list[str] = []
        for word in commands.split():
            words += [str(self.binary), str(self.pool)] if word == "P" else [word]
        return cxlemu("exec", "--pool", self.pool, *flags, "--", *words)

    def found(self, *flags: str, commands: str = "P new :: P produce : P consume") -> list[dict[str, Any]]:
        """What is found in runs until one fails, as JSON has it."""
        file = self.pool.with_suffix(".json")
        result = self.run("--no-shrink", "--json", str(file), *flags, commands=commands)
        assert result.exit_code in (0, 1), result.output
        found: list[dict[str, Any]] = json.loads(file.read_text())["found"]["findings"]
        assert (result.exit_code == 1) == bool(found), result.output
        return found

    def line(self, text: str) -> int:
        """The only line with this text."""
        (number,) = (k for k, line in enumerate(self.file.read_text().splitlines(), 1) if text in line)
        return number


def step(finding: dict[str, Any], role: str) -> int:
    """The line of a step of the chain; 0: there is no such step."""
    return next((int(its["line"]) for its in finding["steps"] if its["role"] == role), 0)


ENTRY, PRODUCED, CONSUMED = "memcpy(e, &made", "q->produced = k + 1;", "q->consumed = k + 1;"
TAKEN, POLLED, ROOM = "memcpy(&got, e", "while (q->produced <= k)", "while (k - q->consumed >= SLOTS)"
OPENED = "if (q->magic != MAGIC"
# number of the mistake -> kind, the writer's and the reader's line, what is missing
QUEUE = {
    1: ("not-flushed", ENTRY, TAKEN, "flush the line after the store"),
    2: ("fence-too-late", ENTRY, TAKEN, "between the flush and the store that publishes it"),
    3: ("not-flushed", PRODUCED, POLLED, "flush the line after the store"),
    4: ("not-flushed", CONSUMED, ROOM, "flush the line after the store"),
    5: ("no-invalidate", PRODUCED, POLLED, "invalidate the line (cxl_invalidate) before the load"),
    6: ("no-invalidate", CONSUMED, ROOM, "invalidate the line (cxl_invalidate) before the load"),
    7: ("not-flushed", "q->slots = SLOTS", OPENED, "flush the line after the store"),
    8: ("not-flushed", "q->magic = MAGIC;", OPENED, "flush the line after the store"),
    9: ("invalidated-early", ENTRY, TAKEN, "after learning of the store, not before"),
    10: ("invalidate-unfenced", ENTRY, TAKEN, "mfence in place of sfence"),
}


@pytest.mark.parametrize(
    "mistake", [pytest.param(n, marks=[pytest.mark.deep] if n in (3, 6, 8) else []) for n in QUEUE]
)
def test_a_single_mistake_of_the_queue_is_named(mistake: int, tmp_path: Path) -> None:
    program = Program("queue.c", tmp_path, "-O2", f"-DMISTAKE={mistake}")
    kind, writes, reads, missing = QUEUE[mistake]
    (finding,) = program.found("--seeds", "10", "--steps", "8000")
    assert finding["kind"] == kind and missing in finding["missing"]
    assert (step(finding, "store"), step(finding, "access")) == (program.line(writes), program.line(reads))
    assert all(its["file"].endswith("queue.c") for its in finding["steps"])


@pytest.mark.deep
@pytest.mark.parametrize("mistake", QUEUE)
@pytest.mark.parametrize("seed", range(10))
def test_a_mistake_that_does_not_show_is_found_in_nearly_every_run(mistake: int, seed: int, tmp_path: Path) -> None:
    """All but the two polls without an invalidate, which an eviction hides."""
    program = Program("queue.c", tmp_path, "-O2", f"-DMISTAKE={mistake}")
    found = program.found("--seed", str(seed), "--steps", "8000")
    ended_first = {"not-fenced"} if QUEUE[mistake][0] == "fence-too-late" else set()  # before the fence came
    assert {its["kind"] for its in found} <= {QUEUE[mistake][0], "dirty-at-exit"} | ended_first
    assert bool(found) or mistake in (5, 6)


def test_a_right_queue_is_silent(tmp_path: Path) -> None:
    assert Program("queue.c", tmp_path, "-O2").found("--seeds", "8") == []


@pytest.mark.deep
@pytest.mark.parametrize("flags", [("-O0",), ("-O3", "-mavx2")], ids=" ".join)
def test_a_right_queue_is_silent_for_fifty_seeds(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert Program("queue.c", tmp_path, *flags).found("--seeds", "50") == []


def test_reports_of_all_forms_and_litmus_tests_that_confirm_them(tmp_path: Path) -> None:
    program = Program("queue.c", tmp_path, "-O2", "-DMISTAKE=9")
    folder, page, sarif = tmp_path / "litmus", tmp_path / "page.html", tmp_path / "found.sarif"
    result = program.run("--litmus", str(folder), "--html", str(page), "--sarif", str(sarif))
    assert result.exit_code == 1
    assert "1. invalidated-early: an invalidate before the wait" in result.output
    assert f"queue.c:{program.line(TAKEN)} in consume" in result.output and "missing: invalidate" in result.output
    again = next(line for line in result.output.splitlines() if "again: cxlemu exec" in line)
    assert cxlemu(*again.split()[2:]).exit_code == 1
    assert "2 tests: 2 as expected" in cxlemu("litmus", folder, code=0).output
    assert "<svg" in page.read_text() and f"queue.c:{program.line(ENTRY)}" in page.read_text()
    (found,) = json.loads(sarif.read_text())["runs"][0]["results"]
    assert found["locations"][0]["physicalLocation"]["region"]["startLine"] == program.line(TAKEN)


def test_what_is_suppressed_with_a_reason_is_no_failure(tmp_path: Path) -> None:
    program, reasons = Program("queue.c", tmp_path, "-O2", "-DMISTAKE=2"), tmp_path / "reasons"
    reasons.write_text("fence-too-late consume  # known\nmsync *  # none here\n")
    result = program.run("--seeds", "0", "--suppressions", str(reasons))  # with seeds, the program fails by itself
    assert result.exit_code == 0
    assert "suppressed: fence-too-late" in result.output and ":\n  known\n" in result.output
    assert result.stderr.endswith("note: 1 suppression matched nothing: line 2 (msync *)\n")
    reasons.write_text("fence-too-late consume\n")
    result = program.run("--suppressions", str(reasons))
    assert result.exit_code == 2 and "the reason is missing" in result.stderr
    assert program.run("--seeds", "0", "--error-exitcode", "7").exit_code == 7
    assert program.run("--no-check", "--seeds", "0", "--worst-case").exit_code == 0


# number of the mistake in mistakes.c -> what is found, the line of the store, and that of the access
SINGLE = {
    1: ("no-invalidate", "/* lap */", "/* read lap */"),
    2: ("not-flushed", "/* meant */", "/* read meant */"),
    3: ("msync", "/* header */", "msync("),
    4: ("dirty-at-exit", "/* left */", ""),
    5: ("locked-across-hosts", "/* increment */", "/* increment */"),
    6: ("two-writers", "/* A's word */", "/* B's word */"),
}


@pytest.mark.parametrize("mistake", SINGLE)
def test_other_mistakes_are_named(mistake: int, tmp_path: Path) -> None:
    program = Program("mistakes.c", tmp_path, "-O1", f"-DMISTAKE={mistake}")
    kind, writes, reads = SINGLE[mistake]
    found = {its["kind"]: its for its in program.found("--seeds", "4", commands="P a : P b")}
    assert kind in found
    lines = {program.line(text) for text in (writes, reads) if text}
    assert {step(found[kind], "store"), step(found[kind], "access")} - {0} == lines
    if mistake == 2:
        assert "flush-outside" in found


@pytest.mark.parametrize("mistake", SINGLE)
def test_their_repairs_are_silent(mistake: int, tmp_path: Path) -> None:
    program = Program("mistakes.c", tmp_path, "-O1", f"-DMISTAKE={mistake}", "-DREPAIRED")
    assert program.found("--seeds", "4", commands="P a : P b") == []
