"""Ranks and parents that are killed in the middle of `cxlemu run`: who notices, what is said, what is left."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cxlemu.pool import segments
from cxlemu.world.environment import find_place
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S

RUN = [sys.executable, "-m", "cxlemu", "run", "-c", "laptop", "all_reduce", "-b", "4K", "-e", "4K"]
FOR_EVER = ["-o", "all", "-d", "all", "--variant", "every", "--iters", "2000"]
NOTICE_S = 15.0  # within which ranks meet, and after which they give up one that was killed


def children(pid: int) -> list[int]:
    """The ranks among them, in the order of their births: all but multiprocessing's resource tracker."""
    task = Path(f"/proc/{pid}/task/{pid}/children")
    pids = [int(word) for word in task.read_text().split()]
    return [child for child in pids if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def pools_of(pid: int) -> list[str]:
    return [name for name in segments.pool_names() if name.startswith(f"{pid}-")]


def eventually(holds: object, what: str) -> None:
    assert callable(holds)
    end = time.monotonic() + PATIENT_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@contextmanager
def in_the_middle(*arguments: str, ranks: int, deadline_s: float = PATIENT_S) -> Iterator[subprocess.Popen[str]]:
    """A run whose ranks have met and work; nothing of it is left at the end of the block."""
    command = [*RUN, *FOR_EVER, "-n", str(ranks), "--deadline-s", str(deadline_s), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("# ring"):
                    break
            yield process
        finally:
            process.kill()
            for name in pools_of(process.pid):
                for segment in segments.find(name):
                    segments.remove(segment)


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.deep
def test_a_killed_rank_is_named_and_the_next_run_works(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    with in_the_middle("--json", str(file), ranks=4, deadline_s=NOTICE_S) as process:
        ranks = children(process.pid)
        assert len(ranks) == 4
        os.kill(ranks[2], signal.SIGKILL)
        out, errors = process.communicate(timeout=PATIENT_S)
        assert process.returncode == 1
        assert errors.startswith("cxlemu: rank 2 was killed by SIGKILL\n")
        for survivor in (0, 1, 3):  # each noticed by itself, within its deadline
            assert re.search(rf"^rank {survivor} failed: .*\brank 2\b", errors, re.MULTILINE), errors
        assert "not finished" in out
        assert json.loads(file.read_text())["error"] == errors.removeprefix("cxlemu: ").rstrip("\n")
        assert pools_of(process.pid) == []
        assert gone(ranks)
    again = subprocess.run(
        [*RUN, "-n", "4", "--iters", "1"], capture_output=True, text=True, timeout=PATIENT_S, check=False
    )
    assert (again.returncode, again.stderr) == (0, "")


def test_ranks_go_with_their_killed_parent_and_nothing_is_left() -> None:
    with in_the_middle(ranks=2) as process:
        ranks = children(process.pid)
        process.kill()
        process.wait(PATIENT_S)
        eventually(lambda: gone(ranks), "ranks outlive their parent")
        assert pools_of(process.pid) == []  # nor were there any names once all ranks had come


@pytest.mark.deep(rows=lambda how, number: (how, number) != ("processes", signal.SIGINT))
@pytest.mark.parametrize("how", ["processes", "threads"])
@with_rows(
    (signal.SIGINT, 130, "interrupted"),
    (signal.SIGTERM, 143, "terminated"),
    (signal.SIGHUP, 129, "terminated"),
    (signal.SIGQUIT, 131, "terminated"),
    ids=["Ctrl-C", "SIGTERM", "SIGHUP", "SIGQUIT"],
)
def test_a_stopped_run_leaves_nothing_but_its_json(
    number: signal.Signals, code: int, told: str, how: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    with in_the_middle("--launch", how, "--json", str(file), ranks=2) as process:
        ranks = children(process.pid)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENT_S)
        assert process.returncode == code
        assert "Traceback" not in errors
        assert json.loads(file.read_text())["error"] == told
        assert pools_of(process.pid) == []
        assert gone(ranks)


def segments_of(job: str | None) -> list[segments.Segment]:
    return [segment for segment in segments.find() if segment.pool.startswith(f"{job}-")]


@pytest.mark.deep
def test_survivors_of_a_launcher_notice_a_killed_rank_0() -> None:
    job = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": secrets.token_hex(8)}
    name = find_place(job | {"RANK": "0"}).pool_name
    command = [*RUN, *FOR_EVER, "--launch", "env", "--deadline-s", str(NOTICE_S)]
    ranks = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | job | {"RANK": str(rank)},
        )
        for rank in range(3)
    ]
    try:
        assert ranks[0].stdout is not None
        assert any(line.startswith("# ring") for line in ranks[0].stdout)
        assert not segments_of(name)  # all ranks have come
        ranks[0].kill()
        for survivor in ranks[1:]:
            _, errors = survivor.communicate(timeout=PATIENT_S)
            assert survivor.returncode == 1
            assert "rank 0" in errors
            assert "Traceback" not in errors
        assert not segments_of(name)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
        for segment in segments_of(name):
            segments.remove(segment)
