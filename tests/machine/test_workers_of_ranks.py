"""Ranks that are processes start workers, and a rank that is killed is missed though its workers live on."""

import multiprocessing
import os
import signal
import time
from functools import partial
from multiprocessing import util
from pathlib import Path

import numpy as np
import pytest

from collectives import Communicator
from cxlemu import RankContext, launch
from cxlemu.errors import RankFailures
from cxlemu.memory import MemorySpec
from tests.helpers.tiers import PATIENT_S

LAPTOP = "laptop"


def with_pool(context: RankContext, how: str) -> float:
    with Communicator.world(context) as comm:
        with multiprocessing.get_context(how).Pool(2) as pool:
            total = sum(pool.map(abs, range(-4, 0)))
        return float(comm.all_reduce(np.array([float(total)]))[0])


@pytest.mark.parametrize(
    "how", ["fork", pytest.param("spawn", marks=pytest.mark.deep), pytest.param("forkserver", marks=pytest.mark.deep)]
)
def test_a_rank_has_a_pool_of_workers(how: str) -> None:
    main = partial(with_pool, how=how)
    found = launch(main, ranks=2, topology=LAPTOP, memory=MemorySpec("shm"), how="processes", deadline_s=PATIENT_S)
    assert found == [20, 20]


def with_loader(context: RankContext, how: str) -> float:
    from torch.utils.data import DataLoader

    with Communicator.world(context) as comm:
        batches = DataLoader(range(1, 5), batch_size=2, num_workers=2, multiprocessing_context=how)  # type: ignore[arg-type, var-annotated]
        total = sum(int(batch.sum()) for batch in batches)
        return float(comm.all_reduce(np.array([float(total)]))[0])


@pytest.mark.deep
@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_a_rank_loads_data_with_workers(how: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install cxlemu[torch]")
    main = partial(with_loader, how=how)
    found = launch(main, ranks=2, topology=LAPTOP, memory=MemorySpec("shm"), how="processes", deadline_s=PATIENT_S)
    assert found == [20, 20]


def killed_beside_its_worker(context: RankContext) -> None:
    worker = os.fork() if context.rank == 1 else 1
    if worker == 0:  # it holds the rank's pipe, and ends when its parent did
        while os.getppid() == parent_of_worker[0]:
            signal.sigtimedwait([], 0.05)
        signal.sigtimedwait([], 3)
        os._exit(0)
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    context.session.barrier(PATIENT_S)


parent_of_worker = [os.getpid()]


def test_a_rank_that_is_killed_is_missed_while_its_worker_lives() -> None:
    with pytest.raises(RankFailures, match="rank 1 was killed by SIGKILL"):
        launch(
            killed_beside_its_worker,
            ranks=2,
            topology=LAPTOP,
            memory=MemorySpec("shm"),
            how="processes",
            deadline_s=PATIENT_S,
        )


class EnoughError(Exception):
    """Ends a world."""


def with_manager(context: RankContext) -> None:
    util.get_temp_dir()  # the rank's, whoever ends first
    manager = multiprocessing.Manager()
    context.emit(manager._process.pid)  # type: ignore[attr-defined]
    signal.pause()


def test_a_terminated_rank_takes_its_manager_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("cxlemu.world.processes.GRACE_S", PATIENT_S)
    servers: list[int] = []

    def enough(pid: object) -> None:
        assert isinstance(pid, int) and any(tmp_path.iterdir())
        servers.append(pid)
        raise EnoughError

    with pytest.raises(EnoughError):
        launch(with_manager, ranks=1, topology=LAPTOP, memory=MemorySpec("shm"), how="processes", on_message=enough)
    assert list(tmp_path.iterdir()) == []
    ends = time.monotonic() + PATIENT_S
    while is_running(servers[0]) and time.monotonic() < ends:
        time.sleep(0.01)
    assert not is_running(servers[0])


def killed_beside_its_manager(context: RankContext, how: str) -> None:
    if how == "own":
        util.get_temp_dir()
    manager = multiprocessing.Manager()
    context.emit(manager._process.pid)  # type: ignore[attr-defined]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        context.emit(pool.apply(os.getpid))
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.deep(rows=lambda how: how == "own")
@pytest.mark.parametrize("how", ["own", "manager's"])
def test_workers_of_a_rank_that_was_killed_go_with_it(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("cxlemu.world.processes.GRACE_S", PATIENT_S)
    workers: list[int] = []

    def note(pid: object) -> None:
        assert isinstance(pid, int)  # it may have ended with its rank before its number is read
        workers.append(pid)

    main = partial(killed_beside_its_manager, how=how)
    with pytest.raises(RankFailures, match="rank 0 was killed by SIGKILL"):
        launch(main, ranks=1, topology=LAPTOP, memory=MemorySpec("shm"), how="processes", on_message=note)
    assert len(workers) == 2 and not any(map(is_running, workers)) and list(tmp_path.iterdir()) == []


def is_running(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # that of a zombie is empty
    except FileNotFoundError:
        return False
