"""`cxlemu run` as its user sees it: exit codes, the table, JSON, and algorithms of one's own."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from collectives.cli.cells import RowsByCollective
from collectives.cli.run_report import RunReport
from collectives.contracts import COLLECTIVES
from collectives.sweep import sweep as bench
from collectives.sweep.measure import Finished, run_sweep
from collectives.sweep.sweep import Case, MeasuredRank, Sweep, WrongElement, last_size
from cxlemu.choices import DTYPE_KINDS, OPS_OF_KIND
from cxlemu.errors import DeadlineError
from cxlemu.memory import MemorySpec
from cxlemu.plan import Call
from cxlemu.pool import numa, segments
from cxlemu.topology import Topology, shipped_configs
from cxlemu.world import launch
from tests.helpers.commands import cxlemu
from tests.helpers.tiers import PATIENT_S

QUICK = ["--launch", "threads", "--config", "laptop", "--iters", "2", "--deadline-s", str(PATIENT_S)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "my_all_reduce.py"

IMPORTS = "from collectives.builder import Builder\nfrom collectives.builder.recipes import algorithm\n"
# The result is published by the other stream, which does not wait until it was folded.
PUBLISHES_TOO_EARLY = (
    IMPORTS
    + """
@algorithm("all_reduce")
def too_early(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, blocks=2, spread="cards"):
        for chunk in chunks:
            if b.rank == 0:
                b.fold(b.output(chunk.offset), chunk, b.input(chunk.offset), block=0)
                b.publish(chunk, b.output(chunk.offset), block=1)
            else:
                b.publish(chunk, b.input(chunk.offset), block=0)
                b.retrieve(b.output(chunk.offset), chunk, 0, block=1)
"""
)
# The doorbells are waited for with instructions of the function's own; nothing invalidates the lines.
NEVER_INVALIDATES = (
    IMPORTS
    + """
from cxlemu.plan import Op

@algorithm("broadcast")
def stale(b: Builder) -> None:
    emit = b._emit
    def without_invalidate(stream, op, **fields):
        if op != Op.INVALIDATE:
            emit(stream, op, **fields)
    b._emit = without_invalidate
    for chunks in b.rounds(b.nbytes, writers=[b.root], spread="cards"):
        for chunk in chunks:
            if b.is_root:
                b.publish(chunk, b.input(chunk.offset))
            else:
                b.retrieve(b.output(chunk.offset), chunk, b.root)
"""
)
NEVER_PUBLISHES = (
    IMPORTS
    + """
@algorithm("broadcast")
def silent(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, writers=[b.root], spread="cards"):
        for chunk in chunks:
            if not b.is_root:
                b.retrieve(b.output(chunk.offset), chunk, b.root)
"""
)


def run(*arguments: str, code: int = 0) -> Result:
    mine = f"{os.getpid()}-"
    result = cxlemu("run", *QUICK, *arguments, code=code)
    assert not [name for name in segments.pool_names() if name.startswith(mine)]
    return result


def run_json(file: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    run("--json", str(file), *arguments, code=code)
    document: dict[str, Any] = json.loads(file.read_text())
    assert list(file.parent.glob(".*")) == []  # written whole, under its own name
    return document


def rows(result: Result) -> list[list[str]]:
    return [line.split() for line in result.output.splitlines() if line.startswith(" ")]


def test_without_names_all_eight_collectives_run_and_nothing_is_wrong() -> None:
    result = run("-b", "1K", "-e", "1K")
    sections = [line[2:] for line in result.output.splitlines() if line[2:] in COLLECTIVES]
    assert sections == [name for name, its in COLLECTIVES.items() if its.among_all]
    assert "# 8 results, 0 wrong, " in result.output


def test_the_table_has_the_columns_of_nccl_tests() -> None:
    result = run("all_gather", "all_reduce", "broadcast", "-b", "4K", "-e", "4K", "-d", "i64", "-o", "max", "-r", "1")
    names = "# size count type redop root time algbw busbw #wrong variant"
    assert [line.split() for line in result.output.splitlines()].count(names.split()) == 3
    gathered, reduced, sent = rows(result)
    assert gathered[:5] + gathered[8:] == ["4096", "128", "i64", "none", "-1", "0", "aggregate"]
    assert reduced[:5] + reduced[8:] == ["4096", "512", "i64", "max", "-1", "0", "aggregate"]
    assert sent[:5] + sent[8:] == ["4096", "512", "i64", "none", "1", "0", "aggregate"]
    algbw, busbw = float(gathered[6]), float(gathered[7])
    assert busbw == pytest.approx(algbw * 3 / 4, abs=2e-5)


def test_the_header_says_what_was_chosen() -> None:
    output = run("barrier", "-n", "3", "--adversary", "7").output
    for text in (
        "laptop: two hosts, two small cards",
        "3 ranks on 2 hosts (2+1)",
        "launch: threads",
        "engine native",
        "adversary seed 7",
        "16 slots of",
        "2 timed after 1 warm-up, every result checked bit by bit, seed 7",
    ):
        assert text in output
    assert "worst case" in run("barrier", "--adversary", "off").output
    assert "coherent shared memory" in run("barrier", "--backend", "shm").output


def test_a_pool_is_bound_to_the_numa_node_that_its_topology_names(tmp_path: Path) -> None:
    """So CXL memory is reached that the kernel shows as a node of its own."""
    if 0 not in numa.nodes_with_memory():
        pytest.skip("this kernel has no NUMA")
    text = shipped_configs()["laptop"].read_text().replace("card_bytes: 8MiB", "card_bytes: 8MiB\n  numa_node: NODE")
    for node, code in ((0, 0), (77, 2)):
        file = tmp_path / f"node{node}.yaml"
        file.write_text(text.replace("NODE", str(node)))
        result = run("barrier", "-n", "2", "-c", str(file), "--backend", "shm", code=code)
        assert (f"coherent shared memory, on NUMA node {node}\n" in result.output) or code
    assert "NUMA node 77 has no memory here; nodes with memory: 0" in result.stderr


def test_verbose_gives_reasons_and_placement() -> None:
    output = run("broadcast", "-b", "32", "-e", "32K", "-v").output
    assert "#   line: 32 B fit in 1 doorbell line:" in output
    assert "#   all: 32 KiB are worth chunks" in output
    assert "# host 1   rank 2, 3" in output


PAIRS = sum(len(OPS_OF_KIND[kind]) for kind in DTYPE_KINDS.values())  # of a dtype and an operation that it has


@pytest.mark.deep
def test_all_variants_dtypes_ops_and_roots_in_one_sweep(tmp_path: Path) -> None:
    arguments = ["-n", "2", "-b", "240", "-e", "240", "--variant", "every", "-d", "all", "-r", "all"]
    document = run_json(tmp_path / "all.json", "reduce", *arguments, "-o", "all", "--iters", "1")
    combinations = {(r["variant"], r["dtype"], r["redop"], r["root"]) for r in document["rows"]}
    assert len(combinations) == len(document["rows"]) == 2 * 10 * PAIRS
    assert document["wrong"] == 0


@pytest.mark.parametrize("in_place", [False, True])
def test_json_says_everything_the_table_says(tmp_path: Path, in_place: bool) -> None:
    flags = ["--in-place"] if in_place else []
    document = run_json(tmp_path / "run.json", "all_reduce", "scatter", "-n", "3", "-b", "30K", "-e", "30K", *flags)
    rows = document.pop("rows")
    assert document.pop("seconds") > 0
    assert document.pop("version")
    assert document == {
        "config": "laptop",
        "ranks": 3,
        "hosts": [0, 0, 1],
        "backend": "emulated",
        "memory": "non-coherent, adversary seed 1 (evict 0.05, prefetch 0.1, land 0.05)",
        "seed": 1,
        "integrity": None,
        "transport": "pool",
        "faults": None,
        "time_scale": None,
        "launch": "threads",
        "engine": "native",
        "wrong": 0,
    }
    reduced, scattered = rows
    assert reduced["busbw_gbytes_per_s"] == pytest.approx(reduced["algbw_gbytes_per_s"] * 4 / 3)
    assert reduced["algbw_gbytes_per_s"] == pytest.approx(30720 / reduced["time_us"] / 1e3)
    for speed in ("time_us", "algbw_gbytes_per_s", "busbw_gbytes_per_s"):
        assert scattered.pop(speed) > 0
    assert scattered == {
        "collective": "scatter",
        "size_bytes": 30720,
        "count": 2560,
        "dtype": "f32",
        "redop": "none",
        "root": 0,
        "wrong": 0,
        "first_wrong": None,
        "model_us": None,
        "variant": "aggregate",
        "chosen_by": "auto",
        "reason": "10 KiB are too small for chunks",
        "in_place": in_place,
        "iterations": 2,
    }


def test_sizes_step_as_in_nccl_tests() -> None:
    assert [row[0] for row in rows(run("broadcast", "-b", "8", "-e", "40", "-f", "2"))] == ["8", "16", "32"]
    assert [row[0] for row in rows(run("broadcast", "-b", "8", "-e", "40", "-i", "16"))] == ["8", "24", "40"]
    assert [row[0] for row in rows(run("all_gather", "-b", "30", "-e", "30"))] == ["16"]  # whole elements
    assert [row[0] for row in rows(run("gather", "-b", "0", "-e", "0", code=3))] == ["0"]
    assert bench.size_steps(None, None, None, None) == [32, 1024, 32768, 1048576]


def test_steps_that_end_below_the_largest_size_are_said() -> None:
    assert last_size([32, 1024, 32768], None) == last_size([32, 1024, 32768], 32768) == []
    (sentence,) = last_size([32, 1024, 32768], 1 << 16)
    assert sentence == "the last size is 32 KiB: the next step would exceed --maxbytes 64 KiB"


def test_unchecked_results_are_not_called_right(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(PUBLISHES_TOO_EARLY)
    document = run_json(tmp_path / "run.json", "--algorithm", f"{file}:too_early", "-e", "32", "-C", "0")
    assert document["wrong"] is None
    assert document["rows"][0]["wrong"] is None
    result = run("barrier", "-C", "0")  # the user asked for no check: exit code 0, as docs/running.md says
    assert ("# 1 result, not checked" in result.output, result.exit_code) == (True, 0)


# --- algorithms of one's own


def test_the_example_algorithm_runs_wherever_ours_run(tmp_path: Path) -> None:
    arguments = ["--algorithm", f"{EXAMPLE}:my_all_reduce", "-b", "12", "-e", "300K", "-f", "150", "--iters", "1"]
    for count, more in ((5 * 3, "-o all -d bf16"), (3, "-d f32 --in-place")):
        document = run_json(tmp_path / "run.json", *arguments, *more.split(), "-n", "3")
        assert len(document["rows"]) == count
        assert {(r["variant"], r["chosen_by"], r["collective"]) for r in document["rows"]} == {
            ("my_all_reduce", "user", "all_reduce")
        }


@pytest.mark.parametrize(
    ("source", "name"), [(PUBLISHES_TOO_EARLY, "too_early"), (NEVER_INVALIDATES, "stale")], ids=["race", "stale"]
)
def test_a_broken_algorithm_has_wrong_elements_and_exit_code_1(tmp_path: Path, source: str, name: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    arguments = ["--algorithm", f"{tmp_path / 'broken.py'}:{name}", "-b", "64K", "-e", "64K", "--iters", "40"]
    (tmp_path / "out").mkdir()
    document = run_json(tmp_path / "out" / "run.json", *arguments, "--adversary", "off", code=1)
    row = document["rows"][0]
    assert document["wrong"] == row["wrong"] > 0
    assert re.fullmatch(r"rank [1-3], call \d+, element \d+: \S+ instead of \S+", row["first_wrong"])
    assert "error" not in document


def test_an_algorithm_that_waits_for_ever_ends_at_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(NEVER_PUBLISHES)
    (tmp_path / "out").mkdir()
    arguments = ["--algorithm", f"{tmp_path / 'broken.py'}:silent", "-n", "2", "-b", "4K", "--deadline-s", "1"]
    document = run_json(tmp_path / "out" / "run.json", *arguments, code=1)
    assert document["rows"] == []
    assert "for rank 0 to ring published[0][0]" in document["error"]


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mine.py"], "'mine.py' is not the name of a collective: write --algorithm mine.py:FUNCTION"),
        (["all_rdeuce"], "unknown collective 'all_rdeuce'; did you mean all_reduce or reduce? Choose from "),
        (["--variant", "two_shot"], "all_gather has no variant 'two_shot': it has naive, aggregate, all, line"),
        (["broadcast", "-r", "4"], "root 4 is not one of the ranks 0..3"),
        (["-r", "first"], "--root takes a number that is not negative, or 'all', not 'first'"),
        (
            ["-d", "f8"],
            "choose from u8, i8, i32, i64, f16, bf16, f32, f64, i16, u16, u32, u64, bool, c64, c128 or all.",
        ),
        (["-o", "sum,mul"], "unknown value 'mul': choose from sum, prod, min, max, avg, band, bor, bxor or all."),
        (["all_reduce", "-d", "c64", "-o", "max"], "there is no max of c64: complex numbers have no order"),
        (["-b", "8", "-e", "4"], "--minbytes 8 is more than --maxbytes 4"),
        (["-b", "4x"], "'4x' is not a size in bytes"),
        (["-b", "0"], "sizes do not grow"),
        (["-i", "0"], "sizes do not grow"),
        (["-i", "8", "-f", "2"], "--stepfactor and --stepbytes exclude each other"),
        (["-b", "1", "-i", "1"], "--stepbytes 1 gives more than 10000 sizes"),
        (["-r", "all", "-n", "999", "-b", "1", "-i", "999"], "this sweep has more than 10000 rows"),
        (["-n", "0"], "invalid rank count '0': must be 1 to 4096"),
        (["-n", "5000000000"], "invalid rank count '5000000000': must be 1 to 4096"),
        (["-b", "1E"], "size 1E exceeds the limit of 1 TiB"),
        (["-b", "8", "-e", "1025G"], "size 1025G exceeds the limit of 1 TiB"),
        (["-n", "300", "-d", "bf16", "reduce"], "take at most 255 ranks or a wider dtype"),
        (["-c", "desktop"], "'desktop' is neither a file nor a shipped topology"),
        (["--adversary", "-1"], "--adversary takes a number that is not negative, or 'off', not '-1'"),
        (["--backend", "shm", "--adversary", "3"], "the backend 'shm' does not have"),
        (["--region-bytes", "100"], "has no line for each of 4 ranks"),
        (["--json", "/nowhere/at/all.json"], "--json /nowhere/at/all.json cannot be written"),
        (["--json", "/proc/all.json"], "--json /proc/all.json cannot be written"),
        (["--json", "/"], "--json / cannot be written: Is a directory"),
        (["--json", "x" * 300], "cannot be written: File name too long"),
        (["--algorithm", "nothing.py:f"], "there is no file nothing.py"),
        (["--algorithm", "x" * 300 + ":f"], "the file cannot be read: File name too long"),
        (["--algorithm", f"{EXAMPLE}:my_all_reduce", "--variant", "line"], "--variant does not go with --algorithm"),
        (["reduce", "--algorithm", f"{EXAMPLE}:my_all_reduce"], "is an algorithm for all_reduce, not reduce"),
        (["--launch", "env"], "no launcher started this process"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_a_bad_value_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cxlemu.pool.shm.ShmPool.create", None)  # nothing may be made
    result = run(*arguments, code=2)
    assert sentence in result.stderr
    assert result.stdout == ""


def test_json_that_cannot_be_written_is_found_before_an_algorithm_is_executed(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("open(__file__ + '.ran', 'w')")
    run("--json", str(tmp_path / "no" / "run.json"), "--algorithm", f"{file}:f", code=2)
    assert list(tmp_path.iterdir()) == [file]


def test_json_into_a_pipe(tmp_path: Path) -> None:
    """Nothing takes the pipe's place, and nothing is opened before there is something to write."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        run("barrier", "--json", str(tmp_path / "pipe"))
        assert json.loads(os.read(reader, 1 << 16))["wrong"] == 0
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    full = run("barrier", "--json", "/dev/full", code=2)  # which is noticed after the last row
    assert (full.stdout.count("1 result"), full.stderr.count("No space left")) == (1, 1)
    assert "cannot be written: No such device" in run("barrier", "--json", str(tmp_path / "pipe"), code=2).stderr


@pytest.mark.deep(rows=lambda arguments: arguments[0] == "run")
@pytest.mark.each_value_once
@pytest.mark.parametrize("arguments", [["run", "barrier", "-n", "2"], ["topology", "show", "laptop"], ["--help"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_stdout_is_one_sentence(arguments: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cxlemu", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENT_S,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, done.stderr) == (1, "cxlemu: the output cannot be written: No space left on device\n")


@pytest.mark.deep(rows=lambda verb: not verb.startswith("plan"))
@pytest.mark.parametrize(
    "verb", ["plan show all_gather -n 12 --limit 9999", "topology show laptop", "run --help"], ids=lambda verb: verb[:8]
)
def test_a_closed_pipe_is_quiet(verb: str) -> None:
    command = [sys.executable, "-m", "cxlemu", *verb.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141  # as shells report SIGPIPE: neither right nor wrong


def test_a_failure_is_told_in_json_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: object, **__: object) -> None:
        raise DeadlineError("rank 1 waited 30 s for nothing")

    monkeypatch.setattr("collectives.cli.run_work.launch", launch)
    document = run_json(tmp_path / "run.json", "barrier", code=1)
    assert document["error"] == "rank 1 waited 30 s for nothing"
    assert document["rows"] == []


def test_json_is_written_even_where_stdout_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, *_: object) -> None:
        if getattr(self, "_rows", True):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunReport, "_print", full)
    monkeypatch.setattr(RowsByCollective, "add", full)
    document = run_json(tmp_path / "run.json", "broadcast", code=2)
    assert document["error"] == "[Errno 28] No space left on device"
    assert [row["size_bytes"] for row in document["rows"]] == [32]


def test_the_time_is_the_slowest_ranks_and_the_median_call() -> None:
    case = Case(Call("all_reduce", "naive", 2, 4000, "f32", "sum"), in_place=False)
    seen = {
        0: MeasuredRank(0, (0, 100_000, 200_000), (2_000, 109_000, 203_000), 0, None),
        1: MeasuredRank(1, (0, 100_000, 200_000), (4_000, 105_000, 201_000), 2, WrongElement(1, 7, 0, 0x3F800000)),
    }
    row = bench.row(case, seen, checked=True)
    assert (row.time_us, row.algbw_gbytes_per_s, row.busbw_gbytes_per_s) == (4.0, 1.0, 1.0)
    assert (row.wrong, row.first_wrong) == (2, "rank 1, call 1, element 7: 0.0 instead of 1.0")
    assert (row.variant, row.chosen_by, row.iterations) == ("naive", "user", 3)


def test_nobody_enters_a_timed_call_before_all_left_the_last_one() -> None:
    sweep = Sweep(("broadcast",), [64 << 10], iterations=4)
    seen: dict[int, MeasuredRank] = {}

    def on_message(message: object) -> None:
        if isinstance(message, Finished):
            seen[message.measured.rank] = message.measured

    topology, memory = Topology.load("laptop"), MemorySpec()
    launch(partial(run_sweep, sweep=sweep), ranks=3, topology=topology, memory=memory, on_message=on_message)
    assert set(seen) == {0, 1, 2}
    for call in range(1, 4):
        assert max(m.left_ns[call - 1] for m in seen.values()) <= min(m.entered_ns[call] for m in seen.values())


def test_a_barrier_is_wrong_where_a_rank_left_before_the_last_one_came() -> None:
    case = Case(Call("barrier", "line", 2, 0), in_place=False)
    seen = {0: MeasuredRank(0, (0, 50), (10, 70), 0, None), 1: MeasuredRank(1, (5, 60), (12, 59), 0, None)}
    assert bench.row(case, seen, checked=True).wrong == 1
