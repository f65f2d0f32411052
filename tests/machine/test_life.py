"""Who lives is what a lock says: not a pid, which is another one in a container, nor a time, which can be shifted."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

import cxlemu.pool.owner as owners
from cxlemu.capacity import PoolManager
from cxlemu.capacity.lease import lease_for
from cxlemu.capacity.tenancy import Tenancy
from cxlemu.capacity.tenant_pool import TenantPool
from cxlemu.errors import CapacityError
from cxlemu.memory import MemorySpec
from cxlemu.memory.direct import DirectMemory
from cxlemu.pool import catalog, segments
from cxlemu.pool.life import LifeLock, is_held, is_held_at
from cxlemu.pool.owner import Owner
from cxlemu.pool.segments import Segment
from cxlemu.pool.shm import ShmPool
from tests.helpers.pool_helpers import ATTACH, CREATE, MIB, files, leave_dead_pool, own_name, run_script, running
from tests.helpers.pool_helpers import small_pool as made

SHM = MemorySpec("shm")


@pytest.fixture
def name() -> Iterator[str]:
    with own_name() as its:
        yield its


def test_a_pid_of_another_boot_is_of_nobody_here() -> None:
    mine = Owner.current()
    assert mine.state() == "alive" and replace(mine, boot_id=UUID(int=1)).state() == "dead"


def test_a_zombie_is_dead_and_a_name_with_brackets_is_a_name() -> None:
    renames = "from pathlib import Path; Path('/proc/self/comm').write_text('a) Z (b'); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", renames], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        before = owners._start_ticks(child.pid)
        assert child.stdin is not None and child.stdout is not None and child.stdout.readline() == b"1\n"
        assert before is not None and owners._start_ticks(child.pid) == before
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has reaped it
        assert owners._start_ticks(child.pid) is None


def shift(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every start time reads as another one, as from another time namespace."""
    truly = owners._start_ticks
    monkeypatch.setattr(owners, "_start_ticks", lambda pid: ticks + 12345 if (ticks := truly(pid)) else None)


def test_a_lock_is_there_until_it_is_released(tmp_path: Path) -> None:
    file = tmp_path / "card"
    file.write_bytes(b"x")
    lock, other = LifeLock(file, 7), LifeLock(file, 9)
    with file.open("rb") as fd:
        assert [is_held(fd.fileno(), at) for at in (6, 7, 8, 9)] == [False, True, False, True]
        file.open("rb").close()  # which would end a lock of the older kind
        another = LifeLock(file, 7)
        lock.release()
        lock.release()
        assert is_held(fd.fileno(), 7)
        another.release()
        assert not is_held(fd.fileno(), 7)
    other.release()
    assert not is_held_at(file, 9) and not is_held_at(tmp_path / "none", 0)


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    file = tmp_path / "card"
    file.touch()
    lock = LifeLock(file, 0)
    told, tell = os.pipe()
    over, end = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        os.close(end)
        os.write(tell, b"x")
        os.read(over, 1)
        os._exit(0)
    try:
        os.read(told, 1)
        assert is_held_at(file, 0)
        lock.release()
        assert not is_held_at(file, 0)
    finally:
        for fd in (end, over, told, tell):
            os.close(fd)
        os.waitpid(pid, 0)


def test_a_pool_whose_owner_looks_dead_and_lives_is_never_cleaned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(name):
        shift(monkeypatch)
        (entry,) = catalog.entries(name)
        assert entry.state == "alive" and entry.superblocks[0].owner.state() == "dead"
        (verdict,) = catalog.clean(name)
        assert not verdict.removed and "is alive" in verdict.reason and files(name)
        with ShmPool.attach(name) as attached:
            attached.remove_if_owner_died()
            assert files(name)


def test_the_lock_ends_with_its_owner(name: str) -> None:
    with running(CREATE, name):
        assert catalog.entries(name)[0].held
    (entry,) = catalog.entries(name)
    assert not entry.held and entry.state == "dead"
    (verdict,) = catalog.clean(name)
    assert verdict.removed and not files(name)


def test_a_pool_in_the_making_is_held_before_it_says_whose_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []
    write = os.pwrite

    def watched(fd: int, data: bytes, at: int) -> int:
        held.append(is_held_at(Segment(name, "card", 0).path, 0))
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", watched)
    with made(name):
        assert held and all(held)


def test_what_is_unlinked_is_let_go(name: str) -> None:
    pool = made(name)
    pool.unlink()
    assert pool._life is not None and pool._life._fd is None


def test_a_rank_that_looks_dead_and_lives_keeps_its_grant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ShmPool.create(name, cards=2, card_bytes=16 * MIB, interleave_bytes=4096, hosts=0, max_ranks=1) as pool:
        manager = PoolManager.begin(pool, 64 << 10, ranks=8)
        red = manager.add("red", MIB)
        with TenantPool.attach(lease_for("red", SHM, pool.name, wait_s=0), SHM, 1.0) as mine:
            here = Tenancy(mine, 3)
            here.enter()
            shift(monkeypatch)
            owners_there = manager.users_of(red)
            with pytest.raises(CapacityError, match="1 rank is in it"):
                manager.release(red)
            here.leave(DirectMemory(mine.cards))
        assert len(owners_there) == 1 and manager.users_of(red) == []
        manager.release(red)


def _new_time() -> bool:
    unshare = shutil.which("unshare")
    command = [unshare or "", "-T", "--boottime", "1000", "true"]
    return unshare is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _new_time(), reason="unshare -T needs util-linux, root and a kernel with time namespaces")
def test_another_time_namespace_removes_no_living_pool(name: str) -> None:
    clean = ["unshare", "-T", "--boottime", "100000", sys.executable, "-m", "cxlemu", "pool", "clean", name]
    with running(CREATE, name):
        ours = owners.Owner.current().start_ticks
        script = "from cxlemu.pool.owner import Owner; import os; print(Owner.current().start_ticks)"
        theirs = subprocess.run([*clean[:4], sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert int(theirs.stdout) - ours > 90_000 * os.sysconf("SC_CLK_TCK")  # so that times alone say: dead
        said = subprocess.run(clean, capture_output=True, text=True, check=False)
        assert "is alive" in said.stdout and files(name)
        attach = [*clean[:4], sys.executable, "-c", ATTACH, name]
        assert subprocess.run(attach, capture_output=True, check=False).returncode == 0
    assert run_script(ATTACH, name).returncode != 0
    said = subprocess.run(clean, capture_output=True, text=True, check=False)
    assert "removed" in said.stdout and not files(name)


def test_a_dead_pool_is_dead(name: str) -> None:
    leave_dead_pool(name)
    assert not is_held_at(segments.find(name)[0].path, 0)


def test_a_lock_whose_release_is_interrupted_closes_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    lock, closed = LifeLock(tmp_path / "file", 0), []

    def interrupted(fd: int) -> None:
        closed.append(fd)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("cxlemu.pool.life.os.close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.release()
        lock.release()
    os.close(*closed)  # once
