"""Litmus tests as machine instructions: what they end with is what the abstract machine has, and what is not, is told.

Caches of this machine are coherent, so that a missing flush shows nowhere here: tests/machine/test_dax_image.py
runs the same where caches hide nothing.
"""

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.errors import ArgumentError, DeadlineError, InputError
from cxlemu.memory import MemorySpec
from cxlemu.world import launch
from faults.cli import litmus_hardware
from faults.explore.result import Budget
from faults.litmus._straight import Straight as NativeStraight
from faults.litmus.condition import Condition
from faults.litmus.hardware import HardwareSetting, placed, run
from faults.litmus.histogram import Histogram, LitmusTask
from faults.litmus.language import Litmus, parse, read
from faults.litmus.lowering import obstacle
from faults.litmus.run import run as search
from faults.litmus.variation import STRIDE_MAX, TrialBatch, batch_bytes
from faults.machine.program import MachineProgram, Straight
from faults.verdict import Verdict
from tests.faults.test_litmus_emulated import random_program
from tests.helpers.card_files import blank_cards, device_flags, pool_of
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S, examples
from tests.machine.test_launchers import environment

LITMUS = Path(__file__).parent / "litmus"
FILES = sorted(LITMUS.glob("*.yaml"))
HANDOVER = Path(__file__).parents[2] / "examples/handover.yaml"


def task(litmus: Litmus) -> LitmusTask:
    """With what the search says: its outcomes, and whether it can hang."""
    found = search(litmus, Budget(), "native")
    assert found.complete
    ends = frozenset(tuple(litmus.values(end).values()) for end in found.exploration.outcomes)
    return LitmusTask(replace(litmus, hangs=found.hangs), ends)


def counted(tasks: list[LitmusTask], ranks: int, rounds: int, budget_s: float = 60.0, seed: int = 0) -> list[Histogram]:
    seen: list[Any] = []
    main = partial(run, tasks=tasks, setting=HardwareSetting(rounds, seed, budget_s))
    launch(main, ranks=ranks, topology="laptop", memory=MemorySpec("shm"), deadline_s=PATIENT_S, on_message=seen.append)
    assert str(seen.pop(0)).startswith("all ranks on one machine: ")
    return seen


def told(histogram: Histogram) -> str:
    ends = [(histogram.named(values), count) for values, count in histogram.counts.items() if histogram.breaks(values)]
    return f"{histogram.task.litmus.name}: {ends}, {histogram.hangs} hung; {histogram.task.litmus.program}"


def one_thread(litmus: Litmus) -> Litmus:
    """All its steps, one after the other, by one rank, which ends otherwise than several do."""
    steps = [step for t in litmus.program.threads if isinstance(t, Straight) for step in t.steps]
    program = replace(litmus.program, threads=(Straight(0, 0, "all", tuple(steps)),))
    return replace(litmus, program=program, expectations=tuple(e for e in litmus.expectations if not e.allowed))


def test_every_step_does_what_the_abstract_machine_says() -> None:
    tasks = [task(one_thread(litmus)) for litmus in map(read, FILES) if not obstacle(litmus.program)]
    seen = counted(tasks, ranks=1, rounds=20, budget_s=0.01)
    assert len(seen) == len(tasks) > 80
    for histogram in seen:
        assert histogram.rounds and histogram.skipped == ""
        assert histogram.verdict == Verdict.OK or not histogram.counts, told(histogram)
        assert not any(histogram.foreign(values) for values in histogram.counts), told(histogram)
        assert histogram.counts or histogram.task.litmus.hangs, told(histogram)
        assert histogram.hangs == 0 or histogram.task.litmus.hangs, told(histogram)


@examples(60)
@given(
    st.lists(st.builds(random_program, st.randoms(use_true_random=False)), min_size=4, max_size=4), st.integers(0, 99)
)
def test_random_programs_end_as_the_search_says(programs: list[MachineProgram], seed: int) -> None:
    tasks = [task(Litmus("", str(number), "", each, (), hangs=True)) for number, each in enumerate(programs)]
    for histogram in counted(tasks, ranks=3, rounds=200, budget_s=0.05, seed=seed):
        assert histogram.rounds
        assert histogram.verdict == Verdict.OK, told(histogram)


@pytest.mark.deep
def test_every_litmus_test_ends_as_the_search_says() -> None:
    tasks = [task(read(file)) for file in FILES]
    for histogram in counted(tasks, ranks=4, rounds=2000, budget_s=2.0):
        assert histogram.verdict != Verdict.VIOLATION, told(histogram)
        assert bool(histogram.skipped) == bool(obstacle(histogram.task.litmus.program))


# --- verdicts --------------------------------------------------------------------------------------------------------


def handover(possible: frozenset[tuple[int, ...]] | None = None) -> Histogram:
    return Histogram(LitmusTask(read(HANDOVER), possible))  # B.r, x, f


@with_rows(
    (None, {(1, 1, 1): 5}, Verdict.OK),
    (None, {(1, 1, 1): 5, (0, 1, 1): 1}, Verdict.VIOLATION),
    (frozenset({(1, 1, 1)}), {(1, 1, 1): 5}, Verdict.OK),
    (frozenset({(1, 1, 1)}), {(1, 1, 1): 5, (1, 0, 1): 1}, Verdict.VIOLATION),
    (frozenset({(1, 1, 1)}), {}, Verdict.UNKNOWN),
    (frozenset({(2, 1, 1)}), {(2, 1, 1): 5}, Verdict.VIOLATION),  # what the test allows, the model has not
)
def test_an_outcome_that_is_forbidden_or_foreign_is_a_violation(
    possible: Any, counts: dict[tuple[int, ...], int], verdict: Verdict
) -> None:
    histogram = handover(possible)
    for values, count in counts.items():
        histogram.add(values, count)
    assert histogram.verdict == verdict


def test_a_hang_is_a_violation_unless_the_test_allows_it() -> None:
    assert replace(handover(), hangs=1).verdict == Verdict.VIOLATION
    allows = replace(read(HANDOVER), hangs=True)
    assert Histogram(LitmusTask(allows), hangs=1).verdict == Verdict.OK


def test_observations_count_rounds() -> None:
    histogram = handover()
    histogram.add((1, 1, 1), 2)
    condition = Condition.parse("B.r == 1", histogram.task.litmus.names)
    assert (histogram.observation(condition), histogram.seen(condition)) == ("always", 2)
    histogram.add((0, 1, 1), 1)
    assert (histogram.observation(condition), histogram.rounds) == ("sometimes", 3)
    assert [e.condition.text for e in histogram.forbidden] == ["B.r == 0"]
    assert [e.condition.text for e in handover().unseen] == ["B.r == 1"]


# --- who runs what, where --------------------------------------------------------------------------------------------


@with_rows(
    ((0, 1), (7, 7), (0, 1)),
    ((0, 1), (7, 7, 9, 9), (0, 2)),
    ((0, 0, 1), (7, 9, 9), (1, 2, 0)),
    ((0, 1, 1), (7, 7, 9, 9), (2, 0, 1)),
    ((0, 0), (7, 9), None),
    ((0, 1, 2), (7, 7), None),
)
def test_threads_of_a_host_share_a_machine_and_hosts_do_not(
    hosts: tuple[int, ...], machines: tuple[int, ...], ranks: tuple[int, ...] | None
) -> None:
    assert placed(hosts, machines) == ranks


@given(st.integers(0, 2**40), st.integers(1, 70), st.integers(1, 9), st.integers(1, 5))
def test_lines_of_a_batch_are_apart_and_in_their_room(seed: int, trials: int, lines: int, cards: int) -> None:
    at, room = 4096, batch_bytes(trials, lines, cards)
    batch = TrialBatch.draw((seed, 0, 0), trials, lines, cards, 1 << 24, at)
    addresses, turns = batch.addresses[: trials * lines], batch.addresses[trials * lines :]
    assert len(set(addresses.tolist())) == trials * lines
    assert turns.size == batch.meets.size == trials and batch.meets[0]
    assert (addresses % 64 == 0).all() and (addresses // (1 << 24) < cards).all()
    offsets = addresses % (1 << 24)
    assert (offsets >= at).all() and (offsets + 64 <= at + room).all()
    assert STRIDE_MAX * 64 * trials * lines // cards <= room
    assert batch.pauses_of((seed, 0, 0, 1), 3).shape == (trials, 3)


def test_ranks_without_a_part_keep_nobody_waiting_and_too_few_are_told() -> None:
    tasks = [LitmusTask(read(LITMUS / f"{name}.yaml")) for name in ("MP", "IRIW", "CRASH-torn", "ONEHOST-shared")]
    seen = counted(tasks, ranks=3, rounds=30)
    assert [h.rounds for h in seen] == [30, 0, 0, 30]
    assert [h.skipped for h in seen] == [
        "",
        "it takes 4 ranks, and there are 3",
        "no instruction makes a host lose its cache",
        "",
    ]


def test_rounds_that_hang_are_told_and_end() -> None:
    never = parse(b"name: N\nhosts: {A: [store x 1], B: [wait f 1]}\nhangs: allowed\n", "N")
    each = parse(b"name: E\nhosts: {A: [wait f 1, signal g 1], B: [wait g 1, signal f 1]}\nhangs: allowed\n", "E")
    for histogram in counted([LitmusTask(never), LitmusTask(each)], ranks=2, rounds=50, budget_s=0.01):
        assert histogram.rounds == histogram.hangs > 0
        assert histogram.verdict == Verdict.OK


# --- the C ----------------------------------------------------------------------------------------------------------


def native(look: Any = lambda: None, ranks: int = 1) -> NativeStraight:
    card = np.zeros(1 << 16, np.uint8)
    start = -card.ctypes.data % 64
    return NativeStraight([card[start : start + (1 << 15)]], 0, 0, ranks, look, 10)


ONE = {
    "steps": np.array([[7, 0, 0, 0]], np.int64),
    "addresses": np.array([4096, 0], np.int64),
    "slots": np.array([[0, 0]], np.int64),
    "pauses": np.zeros((1, 1), np.uint16),
    "meets": np.ones(1, np.uint8),
    "seen": np.zeros((1, 1), np.int64),
    "hung": np.zeros(1, np.uint8),
    "lines": 1,
    "registers": 1,
    "drain": False,
    "initial": np.array([5], np.int64),
}


def test_a_load_sees_what_is_there_first() -> None:
    seen = np.zeros((1, 1), np.int64)
    assert native().run(*(ONE | {"seen": seen}).values()) == 1
    assert seen.tolist() == [[5]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": np.array([[7, 1, 0, 0]], np.int64)},
        {"steps": np.array([[7, 0, 0, 1]], np.int64)},
        {"steps": np.array([[7, 0, 0, -1]], np.int64)},
        {"steps": np.array([[3, 1, 0, 0]], np.int64)},
        {"steps": np.array([[3, -1, 0, 0]], np.int64)},
        {"steps": np.array([[12, 0, 0, 0]], np.int64)},
        {"steps": np.array([[0, 0, 0, 0]], np.int64)},
        {"steps": np.array([7, 0, 0], np.int64)},
        {"addresses": np.array([1 << 15, 0], np.int64)},
        {"addresses": np.array([-64, 0], np.int64)},
        {"addresses": np.array([4097, 0], np.int64)},
        {"addresses": np.array([4096, 8], np.int64)},
        {"addresses": np.array([4096], np.int64)},
        {"slots": np.array([[1, 0]], np.int64)},
        {"slots": np.array([[0, 8]], np.int64)},
        {"pauses": np.zeros((1, 2), np.uint16)},
        {"seen": np.zeros((1, 2), np.int64)},
        {"hung": np.zeros(2, np.uint8)},
        {"lines": -1},
        {"lines": 1 << 40},
        {"registers": -1},
        {"initial": np.zeros(2, np.int64)},
    ],
    ids=repr,
)
def test_what_leaves_the_cards_or_the_buffers_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"fit|initial"):
        native().run(*(ONE | wrong).values())


@pytest.mark.parametrize("arguments", [(64, 0, 600), (1, 0, 1), (0, 1, 1), (0, -1, 1), (1 << 15, 0, 1), (0, 0, 65)])
def test_ranks_whose_lines_are_not_there_are_refused(arguments: tuple[int, int, int]) -> None:
    control, rank, ranks = arguments
    card = np.zeros((1 << 15) + 64, np.uint8)
    start = -card.ctypes.data % 64
    with pytest.raises(ValueError, match="cards of one size"):
        NativeStraight([card[start : start + (1 << 15)]], control, rank, ranks, lambda: None, 0)


def test_a_wait_ends_where_the_look_raises() -> None:
    def look() -> None:
        raise DeadlineError("enough")

    alone = native(look, ranks=2)
    with pytest.raises(DeadlineError, match="enough"):
        alone.meet()
    with pytest.raises(DeadlineError, match="enough"):  # and it can be asked again
        alone.run(*ONE.values())


# --- the command ----------------------------------------------------------------------------------------------------


litmus = partial(cxlemu, "litmus")


def test_the_command_counts_in_shared_memory(tmp_path: Path) -> None:
    # one was skipped
    done = litmus(HANDOVER, LITMUS / "SB.yaml", LITMUS / "CRASH-torn.yaml", "--backend", "shm", "--rounds", 300, code=3)
    lines = done.output.splitlines()
    assert lines[0].startswith("# coherent shared memory, 2 ranks, ")
    assert re.search(r"(mfence to invalidate, movnti|dsb sy, stnp); seed", " ".join(lines[:2]))
    assert lines[1].startswith("# all ranks on one machine: its caches are coherent")
    assert "300 rounds: always B.r == 1; never B.r == 0 (forbidden)" in lines[2]
    assert lines[-1].startswith("3 tests: 2 ran, 0 with forbidden outcomes, 1 skipped; ")
    assert not list(Path("/dev/shm").glob(f"cxlemu-{os.getpid()}-*"))


def test_a_forbidden_outcome_is_exit_1_and_json_has_it_all(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(HANDOVER.read_text().replace("forbidden: [B.r == 0]", "forbidden: [B.r == 1]"))
    done, document = with_json("litmus", file, "--backend", "shm", "--launch", "threads", "--rounds", 100, code=1)
    assert "always B.r == 1 (forbidden)" in done.output
    assert "100 ! B.r=1  x=1  f=1" in done.output
    assert (document["verdict"], document["ranks"], document["backend"]) == ("violation", 2, "shm")
    assert (document["machines"], document["cards"]) == (1, "")
    (row,) = document["rows"]
    assert row["outcomes"] == [{"values": {"B.r": 1, "x": 1, "f": 1}, "count": 100, "forbidden": True}]
    assert [e["observation"] for e in row["expectations"]] == ["always", "always"]
    assert (row["rounds"], row["hangs"], row["possible"]) == (100, 0, 1)


def test_what_the_model_does_not_have_is_exit_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litmus_hardware, "_possible", lambda test: frozenset({(0, 0, 0)}))
    done = litmus(HANDOVER, "--backend", "shm", "--launch", "threads", "--rounds", 50, code=1)
    assert "50 ended in outcomes that the memory model does not reach" in done.output


@with_rows(
    (["--rounds", "5"], "--rounds goes with --backend"),
    (["--device", "x"], "--device goes with --backend"),
    (["--backend", "shm", "--witness", "x == 1"], "--witness is for the search, not for --backend"),
    (["--backend", "shm", "--engine", "reference"], "--engine is for the search, not for --backend"),
    (["--backend", "shm", "--device", "x"], "devices and their pool are for the backend"),
    (["--backend", "emulated"], "--backend emulated is software: leave it out"),
    (["--backend", "dax"], "give --device once for every card"),
    (["--backend", "dax", "--device", "/nowhere/x"], "/nowhere/x"),
    (["--backend", "shm", "-n", "1"], "1 rank takes part, and the smallest of these tests takes 2"),
    (["--backend", "shm", "--rounds", "0"], "0 is not in the range"),
    (["--backend", "shm", "--json", "/nowhere/x"], "--json /nowhere/x cannot be written"),
    (["--backend", "nothing"], "'nothing' is not one of"),
)
def test_bad_input_gets_one_sentence(arguments: list[str], says: str) -> None:
    done = litmus(HANDOVER, *arguments, code=2)
    assert says in done.output
    assert "Traceback" not in done.output


def test_tests_that_no_hardware_runs_are_bad_input() -> None:
    done = litmus(LITMUS / "CRASH-torn.yaml", "--backend", "shm")
    assert (done.exit_code, "no instruction makes a host lose its cache" in done.output) == (2, True)


def test_a_machine_without_instructions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.litmus.hardware.lines_instructions", lambda: "")
    with pytest.raises((ArgumentError, InputError), match="not known"):
        counted([LitmusTask(read(HANDOVER))], ranks=1, rounds=1)


def start(cards: list[str], rank: int, *arguments: str, tests: Path = HANDOVER) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cxlemu", "litmus", str(tests), "--backend", "dax", "--launch", "env"]
    command += [*device_flags(cards), "--deadline-s", str(PATIENT_S), *arguments]
    place = environment(RANK=str(rank), WORLD_SIZE="2")
    return subprocess.Popen(command, env=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def cards_in(folder: Path) -> list[str]:
    cards = blank_cards(folder, 2, nbytes=4 << 20)
    pool_of(cards)
    return cards


def test_two_processes_of_a_launcher_on_cards(tmp_path: Path) -> None:
    cards = cards_in(tmp_path)
    ranks = [start(cards, rank, "--rounds", "600") for rank in (0, 1)]
    said = [rank.communicate(timeout=PATIENT_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert "600 rounds: always B.r == 1" in said[0][0]
    assert said[1] == ("", "")


@pytest.mark.deep
def test_processes_that_were_started_differently_say_so(tmp_path: Path) -> None:
    cards = cards_in(tmp_path)
    ranks = [start(cards, rank, "--rounds", str(100 + rank)) for rank in (0, 1)]
    said = [rank.communicate(timeout=PATIENT_S) for rank in ranks]
    assert 1 in [rank.returncode for rank in ranks]
    assert "was started with other tests, rounds or seed than this rank" in said[0][1] + said[1][1]


def test_a_process_that_is_killed_is_named(tmp_path: Path) -> None:
    cards = cards_in(tmp_path)
    often = ("--rounds", "1000000000", "--budget", "0.2")
    first, second = (start(cards, rank, *often, tests=LITMUS) for rank in (0, 1))
    assert first.stdout is not None
    assert any(line.startswith("ok") for line in first.stdout)  # they are in the middle of it
    second.send_signal(signal.SIGKILL)
    _, errors = first.communicate(timeout=PATIENT_S)
    second.communicate(timeout=PATIENT_S)
    assert first.returncode == 1
    assert "rank 1" in errors and "Traceback" not in errors
