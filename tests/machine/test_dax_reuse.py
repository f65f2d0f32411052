"""One pool on devices, used by run after run: by launchers on several machines, and after a run that was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cxlemu.errors import MismatchError
from cxlemu.memory import MemorySpec
from cxlemu.memory.protocol import Bytes
from cxlemu.pool.dax import DaxPool
from cxlemu.pool.session import Session
from tests.collectives.test_kill import NOTICE_S, children, gone
from tests.helpers.card_files import blank_cards, cxlemu, device_flags, pool_of
from tests.helpers.tiers import PATIENT_S
from tests.machine.test_launchers import environment, start

RUN = [sys.executable, "-m", "cxlemu", "run", "--backend", "dax", "--iters", "2", "--deadline-s", str(PATIENT_S)]


@pytest.fixture
def cards(tmp_path: Path) -> list[str]:
    cards = blank_cards(tmp_path, 3)
    pool_of(cards)
    return cards


@pytest.mark.deep(rows=lambda engine: engine == "reference")
@pytest.mark.parametrize("engine", ["reference", "native"])
def test_ranks_of_several_machines_need_rank_size_and_devices_alone(cards: list[str], engine: str) -> None:
    """LOCAL_WORLD_SIZE says that they are not on one machine; each machine names its devices in an order of its own."""
    command = [*RUN, "--launch", "env", "--engine", engine, "-b", "1K", "-e", "32K", "-f", "32"]
    processes = [
        start([*command, *device_flags(order)], RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="1")
        for rank, order in enumerate((cards, cards[::-1]))
    ]
    (out, errors), (silent, others) = [process.communicate(timeout=PATIENT_S) for process in processes]
    assert ([process.returncode for process in processes], errors, silent, others) == ([0, 0], "", "", "")
    assert "# ranks    2 ranks, launch: the environment\n" in out
    assert "# 16 results, 0 wrong, " in out


def test_on_one_machine_emulated_pools_still_want_all_ranks() -> None:
    variables = environment(RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="1", MASTER_ADDR="here", MASTER_PORT="1")
    command = [sys.executable, "-m", "cxlemu", "run", "--launch", "env", "--backend", "shm"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENT_S, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "cxlemu: LOCAL_WORLD_SIZE is 1 with WORLD_SIZE 2, expected 2: the pool is in the shared memory of one machine, "
        "so all ranks must run there, unless with backend dax\n",
    )


@pytest.mark.deep
def test_a_barrier_is_not_judged_by_clocks_of_several_machines(cards: list[str]) -> None:
    command = [*RUN, "--launch", "env", "barrier", *device_flags(cards)]
    processes = [start(command, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    (out, _), _ = [process.communicate(timeout=PATIENT_S) for process in processes]
    assert [row.split()[8] for row in out.splitlines() if row.startswith(" ")] == ["N/A"]
    assert cxlemu("run", "--backend", "dax", *device_flags(cards), "barrier", "-n", "2").output.count(" N/A") == 0


WORLDS = """
import sys
from cxlemu.memory import MemorySpec
from cxlemu.world import from_environment

for world in range(4):
    with from_environment(memory=MemorySpec("dax", devices=tuple(sys.argv[1:])), deadline_s=3600.0) as context:
        context.session.barrier(3600.0)
    print(world, context.rank, context.session.id, flush=True)
"""


@pytest.mark.deep
def test_a_jobs_worlds_follow_each_other_in_one_pool(cards: list[str]) -> None:
    """Who leaves a world late must not take the next one's lines for it, nor wait for those who are there already."""
    command = [sys.executable, "-c", WORLDS, *cards]
    processes = [start(command, RANK=str(rank), WORLD_SIZE="3") for rank in range(3)]
    outputs = [process.communicate(timeout=PATIENT_S) for process in processes]  # less than one wait in vain
    assert [errors for _, errors in outputs] == [""] * 3
    sessions = [[line.split() for line in out.splitlines()] for out, _ in outputs]
    ids = [[session for _, _, session in lines] for lines in sessions]
    assert ids[0] == ids[1] == ids[2]
    assert len(set(ids[0])) == 4


@pytest.mark.deep
@pytest.mark.parametrize("victim", [0, 2])
def test_after_a_rank_was_killed_the_next_run_works(cards: list[str], victim: int) -> None:
    endless = [
        "all_reduce",
        "--variant",
        "every",
        "-o",
        "all",
        "-d",
        "all",
        "--iters",
        "9999",
        "--deadline-s",
        str(NOTICE_S),
    ]
    command = [*RUN, *device_flags(cards), "-n", "3", *endless]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert any(line.startswith("# ring") for line in process.stdout)
            ranks = children(process.pid)
            os.kill(ranks[victim], signal.SIGKILL)
            _, errors = process.communicate(timeout=PATIENT_S)
        finally:
            process.kill()
    assert process.returncode == 1
    assert f"cxlemu: rank {victim} was killed by SIGKILL\n" in errors
    assert gone(ranks)
    assert (
        "# 8 results, 0 wrong, "
        in cxlemu("run", "--backend", "dax", *device_flags(cards), "-e", "32", "--launch", "threads").output
    )


def test_after_all_ranks_were_killed_at_once_the_next_run_works(cards: list[str]) -> None:
    command = [*RUN, *device_flags(cards), "-n", "2", "broadcast", "--iters", "9999"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith("# ring") for line in process.stdout)
        process.kill()
    assert (
        "# 8 results, 0 wrong, "
        in cxlemu("run", "--backend", "dax", *device_flags(cards), "-e", "32", "--launch", "threads").output
    )


def enter(cards: list[Bytes], offset: int) -> Session:
    memory = MemorySpec("dax").open(cards, host_cache=None, host=0, rank=0)
    place = {"session_offset": offset, "max_ranks": 16}
    return Session.open(memory, rank=0, ranks=1, fingerprint=b"", deadline_s=1.0, **place)


def test_a_rank_that_was_thought_dead_notices_the_next_run_and_gives_up(cards: list[str]) -> None:
    with DaxPool.attach(cards) as pool:
        old = enter(pool.cards, pool.session_offset)
        old.beat()
        new = enter(pool.cards, pool.session_offset)
        with pytest.raises(MismatchError) as caught:
            old.beat()
        assert str(caught.value) == f"another run has begun in this pool: its rank 0 is process {os.getpid()}"
        new.beat()
