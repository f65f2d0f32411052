"""Names that others took before: a run passes them over, or says whose they are."""

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cxlemu.errors import PoolError
from cxlemu.pool import segments
from cxlemu.pool.jobs import living_pools, pool_of_job, refuse_second_run
from cxlemu.pool.segments import Segment
from cxlemu.pool.shm import ShmPool
from cxlemu.world.environment import find_place
from tests.helpers.pool_helpers import SMALL, files, leave_dead_pool, own_name, small_pool
from tests.machine.test_world import start_ranks

NOBODY_UID = 65534
root = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user take root")


@contextmanager
def squatted(segment: Segment, mode: int = 0o644) -> Iterator[Path]:
    """A file of another user under a segment's name."""
    segment.path.touch(mode)
    try:
        os.chown(segment.path, NOBODY_UID, NOBODY_UID)
        yield segment.path
    finally:
        segment.path.unlink()


@pytest.fixture
def name() -> Iterator[str]:
    with own_name() as its:
        yield its


def test_names_have_the_user_and_what_nobody_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    with ShmPool.create(None, **SMALL) as one, ShmPool.create(None, **SMALL) as other:
        for pool in (one, other):
            pid, uid, nonce = pool.name.split("-")
            assert (int(pid), int(uid), len(nonce)) == (os.getpid(), os.geteuid(), 8)
        assert one.name != other.name
    environment = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x"}
    mine = find_place(environment).pool_name
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    theirs = find_place(environment).pool_name
    assert mine != theirs and theirs is not None and theirs.startswith("job-4711-")


@root
def test_files_of_others_matter_only_where_a_pool_has_its_own(name: str) -> None:
    with squatted(Segment(name, "card", 7)), small_pool(name), ShmPool.attach(name):
        pass
    with (
        squatted(Segment(name, "card", 1)),
        pytest.raises(PoolError, match=f"card1 belongs to another user: choose another name than {name}"),
    ):
        small_pool(name)
    assert files(name) == []


@root
def test_a_job_whose_name_was_taken_runs_all_the_same() -> None:
    """Another user, who knows what the job is called, has made files of every name that can be known before."""
    namespace = secrets.token_hex(8)
    job = find_place({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3", "PMIX_NAMESPACE": namespace}).pool_name
    assert job is not None
    with ExitStack() as stack:
        for pool in (job, f"{job}-0", f"{job}-{secrets.token_hex(4)}"):
            for card in range(3):
                stack.enter_context(squatted(Segment(pool, "card", card), 0o666))
        started = start_ranks(stack, "1", namespace=namespace)
        outputs = [process.communicate(timeout=120) for process in started]
        assert [process.returncode for process in started] == [0, 0, 0], outputs
        left = [segment for segment in segments.find() if segment.pool.startswith(job) and segments.is_ours(segment)]
        assert left == []


def test_a_job_takes_the_pool_that_lives(name: str) -> None:
    leave_dead_pool(f"{name}-dead")
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(pool_of_job(name, 60.0)))
    waiting.start()
    try:
        with ShmPool.create(f"{name}-live", **SMALL) as pool:
            waiting.join(60)
            assert found == [pool.name] and [entry.name for entry in living_pools(name)] == [pool.name]
            with pytest.raises(PoolError, match=f"another run of this job .* process {os.getpid()}, .*-live"):
                refuse_second_run(name)
        refuse_second_run(name)
        with pytest.raises(PoolError, match=r"rank 0 has made no pool .* of this user \(waited 0 s\)"):
            pool_of_job(name, 0.0)
    finally:
        waiting.join(60)
        for segment in segments.find(f"{name}-dead"):
            segments.remove(segment)
