"""A hang is a cycle of all threads: right programs are not called hung, hung ones are, and a limit leaves it open."""

import json
import os
import re
import shlex
import shutil
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cxlemu.cli import main
from cxlemu.errors import ArgumentError
from faults.programs.compile import compiler_arguments
from faults.programs.result import WORST_CASES
from tests.helpers.pool_programs import MODES, built

EXAMPLES = Path(__file__).parents[2] / "examples" / "programs"
A, B = "/dev/dax0.0", "/dev/dax1.0"


@pytest.fixture(params=MODES)
def waits(request: pytest.FixtureRequest) -> Path:
    """The program waits, in either mode."""
    return built(request.param, "waits.c", "-O1", "-DOFFSET=0")


def execute(*words: str | Path) -> Result:
    result = CliRunner().invoke(main, ["exec", *map(str, words)])
    if result.exit_code == 1:  # what fails says why, and how to see it again
        assert "again: cxlemu exec" in result.output
        assert re.search(r"^(\d+\. \w|the programs hang|\S.* (exited with|was killed by))", result.output, re.M)
    return result


@pytest.mark.deep(rows=lambda what: what != "zeros")
@pytest.mark.each_value_once
@pytest.mark.parametrize("what", ["zeros", "again", "range"])
def test_a_program_whose_steps_change_nothing_is_not_called_hung(waits: Path, what: str) -> None:
    for seed in (WORST_CASES[0], 3):
        flags = ("--worst-case",) if seed in WORST_CASES else ()
        result = execute(
            "--pool", f"{A}=2M", "--hosts", "1", "--seed", seed, *flags, "--steps", "500", "--", waits, A, what
        )
        assert result.exit_code == 0, result.output


@pytest.mark.deep(rows=lambda waits: waits == "preloaded")
def test_a_program_that_polls_while_another_one_reads_is_not_called_hung(waits: Path) -> None:
    flags = ("--pool", f"{A}=2M", "--seed", "0", "--worst-case", "--steps", "500")
    result = execute(*flags, "--", waits, A, "late", ":", waits, A, "await")
    assert result.exit_code == 0, result.output


@pytest.mark.deep(rows=lambda code: code == 0)
@pytest.mark.parametrize(("what", "code"), [("asks", 0), ("stops", 1)])
def test_threads_that_answer_each_other_are_called_hung_once_they_stop(what: str, code: int) -> None:
    """Each returns to its state while the other one goes on; one of them counts the questions in its stack."""
    waits = built("recompiled", "waits.c", "-O1", "-DOFFSET=0")
    for seed, *flags in ((WORST_CASES[0], "--worst-case"), (1,), (3,)):
        flags = ["--pool", f"{A}=2M", "--seed", seed, "--steps", "1000", "--no-shrink", *flags]
        result = execute(*flags, "--", waits, A, what, ":", waits, A, "await")
        assert result.exit_code == code and ("the programs hang" in result.output) == bool(code), result.output


@pytest.mark.deep(rows=lambda waits: waits == "recompiled")
def test_a_program_that_waits_for_input_from_outside_is_not_called_hung(waits: Path, tmp_path: Path) -> None:
    fifo, seen = tmp_path / "fifo", threading.Event()
    os.mkfifo(fifo)

    def give() -> None:
        seen.wait(60)
        with fifo.open("w") as file:
            file.write("x")

    # It is given when the reader has polled for longer than a hang takes to be found.
    giver = threading.Thread(target=lambda: (time.sleep(2), seen.set(), give()))
    giver.start()
    result = execute(
        "--pool", f"{A}=2M", "--seed", "1", "--steps", "500", "--", waits, A, fifo, "input", ":", waits, A, "await"
    )
    giver.join()
    assert result.exit_code == 0, result.output
    steps = re.search(r"([\d,]+) steps", result.output)
    assert steps and int(steps[1].replace(",", "")) > 1000


@pytest.mark.deep
def test_a_program_that_computes_for_long_is_not_called_hung(waits: Path) -> None:
    result = execute(
        "--pool", f"{A}=2M", "--seed", "1", "--steps", "500", "--", waits, A, "compute", ":", waits, A, "await"
    )
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_loop_that_awaits_a_signals_handler_passes_the_turn_on(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXLEMU_CC", compiler)
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    waits = built("recompiled", "waits.c", "-O1", "-DOFFSET=0")
    result = execute("--pool", f"{A}=2M", "--hosts", "1", "--seed", "1", "--", waits, A, "told")
    assert result.exit_code == 0 and "computes" not in result.output, result.output


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("mode", ["recompiled", "preloaded"])
def test_a_hang_across_two_pools_is_found(mode: str, offset: int) -> None:
    waits = built(mode, "waits.c", "-O1", f"-DOFFSET={offset}")
    pools = ("--pool", f"{A}=2M", "--pool", f"{B}=2M")
    result = execute(*pools, "--steps", "2000", "--", waits, A, B, "keep", ":", waits, A, B, "compare")
    assert result.exit_code == 1
    assert "not-flushed" in result.output and "waits for ever" in result.output
    assert f"byte 0x{8 * offset:x} of {B}" in result.output.replace("\n   ", " ")
    command = re.search(r"^again: (.*)", result.output, re.M)
    assert command
    again = execute(*shlex.split(command[1])[2:])
    assert again.exit_code == 1 and "another trace" not in again.output


@pytest.mark.deep(rows=lambda waits: waits == "preloaded")
def test_a_store_of_the_same_bytes_to_a_dirty_line_keeps_no_hang_from_being_found(waits: Path) -> None:
    """As of a queue that keeps the other one's index beside its own."""
    flags = ("--pool", f"{A}=2M", "--steps", "500", "--deadline-s", "10")
    result = execute(*flags, "--", waits, A, A, "keep", ":", waits, A, "note")
    assert result.exit_code == 1, result.output
    assert "1. not-flushed" in result.output and "host 1 waits for ever: it reads byte 0x0" in result.output


_HANGS = ("cnd_wait", "futex", "thrd_join", "wait", "waitpid")


@pytest.mark.deep(rows=lambda call: call in _HANGS)
@pytest.mark.parametrize("call", [*_HANGS, "cnd_timedwait", "mtx_timedlock", "poll", "read"])
def test_a_thread_that_waits_in_a_call_is_shown_with_its_line(call: str) -> None:
    waits = built("recompiled", "waits.c", "-O1", "-DOFFSET=0")
    flags = ("--pool", f"{A}=2M", "--seed", "1", "--steps", "500", "--deadline-s", "2", "--no-shrink")
    result = execute(*flags, "--", waits, A, "end", ":", waits, A, "calls", call)
    assert result.exit_code == (1 if call in _HANGS else 3), result.output
    told = " ".join(result.output.split())
    assert re.search(r"\(host 1, thread 1\) its last step: gives its turn away at .*?waits.c:\d+ in calls", told)


@pytest.mark.parametrize("mistake", [3, pytest.param(6, marks=pytest.mark.deep)])
def test_a_hang_under_address_sanitizer_is_found(mistake: int) -> None:
    """Its shadow is terabytes of private memory, and its stack for signals never the same: our handlers run there."""
    flags = ("-fsanitize=address", f"-DMISTAKE={mistake}")
    command = f"{built('preloaded', 'queue.c', '-O1', *flags)} /dev/shm/queue"
    words = f"{command} new :: {command} produce : {command} consume".split()
    limits = ("--steps", "500", "--deadline-s", "120")
    result = execute("--pool", "/dev/shm/queue", "--seed", "0", "--worst-case", *limits, "--", *words)
    assert result.exit_code == 1 and "waits for ever" in result.output


def test_a_sanitizer_that_takes_no_other_one_beside_it_is_refused_by_name() -> None:
    for flag in ("-fsanitize=address", "-fsanitize=undefined,leak"):
        with pytest.raises(ArgumentError, match=f"takes no {flag} beside"):
            compiler_arguments("c", [flag, "queue.c"], clang=False)
    assert "-fsanitize=undefined" in compiler_arguments("c", ["-fsanitize=undefined", "queue.c"], clang=False)


def test_a_hang_without_a_finding_says_where_each_thread_goes_round(waits: Path) -> None:
    flags = ("--pool", f"{A}=2M", "--steps", "500", "--crash", "0@1")
    result = execute(*flags, "--", waits, A, "late", ":", waits, A, "await")
    assert result.exit_code == 1, result.output
    told = " ".join(result.output.split())
    assert re.search(r"the programs hang: .* waits \(host 1, thread 1\) its last step: .*waits.c:\d+ in ", told)
    assert "(host 0" not in told
    assert "host 0 had died at step 1 (--crash): only its stores could have ended these waits" in told


@pytest.mark.deep(rows=lambda waits, what: (waits, what) not in (("recompiled", "spin"), ("preloaded", "beat")))
@pytest.mark.parametrize("what", ["count", "beat", "spin"])
def test_a_limit_before_a_cycle_leaves_it_undecided(waits: Path, what: str) -> None:
    flags = ("--pool", f"{A}=2M", "--seed", "1", "--steps", "500", "--deadline-s", "2")
    result = execute(*flags, "--", waits, A, "end", ":", waits, A, what)
    assert result.exit_code == 3, result.output
    told = " ".join(result.output.split())
    assert "undecided: seed 1 was ended at the deadline of 2 s" in told
    where = r"(sleeps in a system call, |computes, )?its last step: .* at .*waits.c:\d+ in (main|refresh)"
    assert re.search(rf"\(host 1, thread 1\) {where}", told)
    assert re.search(r"^  waits \(host 1, thread 1\)", result.output, re.M)
    assert "again:" not in told


@pytest.mark.deep(rows=lambda waits: waits == "recompiled")
def test_a_limit_warns_of_a_store_that_another_host_awaits(waits: Path, tmp_path: Path) -> None:
    flags = ("--pool", f"{A}=2M", "--worst-case", "--seed", "0", "--deadline-s", "1", "--json", tmp_path / "found.json")
    result = execute(*flags, "--", waits, A, A, "keep", ":", waits, A, "count")
    assert result.exit_code == 3, result.output
    found = json.loads((tmp_path / "found.json").read_text())["found"]
    assert found["findings"] == [] and "1 past the deadline, 1 warning;" in result.output
    assert [(its["kind"], its["hangs"]) for its in found["warnings"]] == [("not-flushed", False)]
    assert "host 1 may wait for ever: it reads byte 0x0" in result.output
    its = {step["role"]: step["function"] for step in found["warnings"][0]["steps"]}
    assert its["store"] == its["access"] == "main"


def test_shrinking_is_bounded_in_time(waits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from faults.programs import replays

    limits: list[float] = []
    real = replays.run

    def slow(setting: replays.ExecSetting, choice: replays.RunChoice) -> replays.RunResult:
        limits.append(setting.deadline_s)
        result = real(setting, choice)
        now = time.monotonic()
        monkeypatch.setattr(replays.time, "monotonic", lambda: now + 1000)  # the next look at the clock comes too late
        return result

    monkeypatch.setattr(replays, "run", slow)
    flags = (
        "--pool",
        f"{A}=2M",
        "--pool",
        f"{B}=2M",
        "--shrink",
        "5s",
        "--seed",
        "0",
        "--steps",
        "500",
        "--worst-case",
    )
    execute(*flags, "--", waits, A, B, "keep", ":", waits, A, B, "compare")
    assert len(limits) == 1 and limits[0] <= 5


OBJECTS = "P fill {0} :: P 0 {0} : P 1 {0}"
RIGHT = {  # name of a source and, where it has several commands, of what they do -> commands, the pool and flags
    "queue": ("P send : P receive", "/dev/shm/queue"),
    "hash_table": ("P 0 : P 1", "/dev/shm/table"),
    "kv_index": ("P publish : P read", "/dev/shm/kv"),
    "mirror": ("P write : P read :: P read", "/dev/shm/mirror"),
    "handover": ("P first : P second :: @0 P recover", "/dev/shm/handover"),
    "locks peterson": ("P peterson 0 2 : P peterson 1 2", "/dev/shm/locks"),
    "locks bakery": ("P bakery 0 2 : P bakery 1 2", "/dev/shm/locks"),
    "two_lock_queue": ("P 0 2 ed : P 1 2 ed", "/dev/shm/two_lock"),
    "undo_log": ("P transfer :: @1 P recover", "/dev/shm/bank"),
    "coherent_lock": (f"P {A} : P {A}", f"{A}=2M", "--coherent", "0+4K"),
    "device_copy": ("P send : P receive", "/dev/shm/message"),
    "two_copies": ("P put :: P repair", "/dev/shm/first=2M", "--pool", "/dev/shm/second=2M"),
    "row": (f"P {A} write : P {A} read", f"{A}=2M", "--coherent", "0+4K"),
    **{
        f"histories {what}": (OBJECTS.format(what), "/dev/shm/objects")
        for what in ("counter", "queue", "map", "register")
    },
}


def test_every_example_is_among_the_right_ones() -> None:
    others = {"stream_copy"}  # which is linked with what stands in for CUDA: test_exec_streams
    assert {name.split()[0] for name in RIGHT} | others == {file.stem for file in EXAMPLES.glob("*.c")}


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["recompiled", "preloaded"])
@pytest.mark.parametrize("name", RIGHT)
def test_fifty_seeds_of_every_right_example_are_quiet(name: str, mode: str) -> None:
    commands, pool, *flags = RIGHT[name]
    example = built(mode, EXAMPLES / f"{name.split()[0]}.c", "-O1")
    words = [str(example) if word == "P" else word for word in commands.split()]
    result = execute("--pool", pool, *flags, "--seeds", "50", "--", *words)
    assert result.exit_code == 0, result.output
    assert "53 runs: 0 failed, 0 past the deadline;" in result.output and "warning" not in result.output
