"""Proofs on several cores: the rows are those of one process, and what goes wrong in a worker is told."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from collectives.algorithms.catalog import build, recipe
from collectives.sweep.sweep import Case
from cxlemu.plan import Call, Layout, Op, Plan, RankPart, Stream
from cxlemu.plan.file import save
from faults.cli.prove_rows import ToProve, rows_of
from faults.prove.proof import Proof
from faults.verdict import Verdict
from tests.helpers.commands import python
from tests.helpers.tiers import PATIENT_S

LAYOUT = Layout(2, 2, 2, 4096, 4, 64)
CASE = Case(Call("all_gather", "naive", 2, 64), False)
RIGHT = Proof(Verdict.OK, None, "", 1, 0.0)


class Deaf:
    def begin(self, case: object) -> None:
        pass

    def progress(self, done: int, of: int) -> None:
        pass


def prove(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """In a process without threads, as users do."""
    command = [sys.executable, "-m", "cxlemu", "prove", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENT_S)


def timeless(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: timeless(value) for key, value in document.items() if key != "seconds"}
    return [timeless(value) for value in document] if isinstance(document, list) else document


def alike(tmp_path: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Prove in one process and by two workers, see that they tell the same, and return the latter."""
    told = []
    for jobs in (1, 2):
        done = prove(*arguments, "-j", str(jobs), "--json", tmp_path / "proofs.json")
        words = re.sub(r" *\d+\.\d+( s)?", "", done.stdout)
        told.append((done.returncode, words, done.stderr, timeless(json.loads((tmp_path / "proofs.json").read_text()))))
    assert told[0] == told[1]
    return done


def test_workers_prove_what_one_process_proves(tmp_path: Path) -> None:
    done = alike(tmp_path, "all_gather", "reduce", "all_gather_gemm", "-n", "2-3")
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr


def without_flush(plan: Plan) -> Plan:
    def part(its: RankPart) -> RankPart:
        streams = tuple(Stream(s.name, s.records[s.records["op"] != Op.FLUSH]) for s in its.streams)
        return RankPart(its.rank, its.buffers, streams, its.events)

    return Plan(plan.call, plan.layout, lambda rank: (plan.frame, part(plan.part(rank))))


@pytest.mark.deep
def test_workers_show_what_is_wrong_as_one_process_does(tmp_path: Path) -> None:
    right = build(recipe("all_gather", "naive"), LAYOUT, Call("all_gather", "naive", 2, 64))
    for name, plan in (("wrong", without_flush(right)), ("right", right)):
        save(plan, tmp_path / f"{name}.plan")
    done = alike(tmp_path, tmp_path / "wrong.plan", tmp_path / "right.plan")
    assert done.returncode == 1 and "executed: " in done.stdout, done.stdout + done.stderr
    assert "2 of 2 proofs: 1 ok, 1 violation" in done.stdout


def test_a_budget_holds_in_workers() -> None:
    done = prove("-n", "16-32", "-j", "2", "--budget", "0.3")
    assert done.returncode == 3 and "; the budget of 0.3 s is spent" in done.stdout, done.stdout + done.stderr
    assert not done.stderr


DIES = """
import os, signal
from cxlemu.errors import RunError
from faults.cli.prove_rows import ToProve, rows_of
from tests.faults.test_prove_rows import CASE, Deaf
try:
    with rows_of([ToProve(CASE, lambda **told: os.kill(os.getpid(), signal.SIGKILL))] * 2, 2) as rows:
        print(list(rows(Deaf())))
except RunError as error:
    print(error)
"""


def test_a_worker_that_is_killed_is_told() -> None:
    done = python("-c", DIES)
    assert done.stdout.startswith("a worker was killed"), done.stderr


LEAVES = """
import threading
from faults.cli.prove_rows import ToProve, rows_of
from tests.faults.test_prove_rows import CASE, RIGHT, Deaf
for_ever = threading.Event().wait
with rows_of([ToProve(CASE, lambda **told: RIGHT), ToProve(CASE, lambda **told: for_ever())], 2) as rows:
    print(next(rows(Deaf())).proof.verdict.value)
"""


@pytest.mark.deep
def test_what_nobody_waits_for_any_more_is_left_undone() -> None:
    done = python("-c", LEAVES)
    assert (done.stdout, done.stderr) == ("ok\n", "")


ENDS_AT_ONCE = """
import os, signal
from faults.campaign import executors
starts = executors._live_with
def ends(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    starts(*given)
executors._live_with = ends
"""


@pytest.mark.deep
def test_a_worker_that_ends_while_it_starts_says_nothing() -> None:
    """It does not run the handler that it has from its parent."""
    done = python("-c", ENDS_AT_ONCE + DIES)
    assert done.stdout.startswith("a worker was killed") and not done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("jobs", [None, 1])
def test_a_process_with_threads_is_not_copied(jobs: int | None) -> None:
    proved_in, over = list[int](), threading.Event()

    def here(**told: object) -> Proof:
        proved_in.append(os.getpid())
        return RIGHT

    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with rows_of([ToProve(CASE, here)] * 3, jobs) as rows:
            assert [row.proof for row in rows(Deaf())] == [RIGHT] * 3
    finally:
        over.set()
        thread.join()
    assert proved_in == [os.getpid()] * 3
