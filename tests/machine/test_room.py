"""Memory that is short: a sentence before anything is taken, and a smaller topology where nobody asked for one."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cxlemu.errors import PoolError
from cxlemu.memory import MemorySpec
from cxlemu.pool import room, segments
from cxlemu.pool.room import MemoryLimit, shortage, tightest_limit
from cxlemu.pool.shm import ShmPool
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch
from cxlemu.world.processes import _death_notice
from cxlemu.world.topology_of import machine
from cxlemu.world.world import World
from tests.helpers.commands import cxlemu
from tests.helpers.pool_helpers import SMALL, files, own_name
from tests.helpers.tiers import PATIENT_S

MIB = 1 << 20
NO_LIMIT = str((1 << 63) - 4096)


def write(root: Path, name: str, text: object) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def group(root: Path, where: str, limit: object, used: int, cached: int = 0, *, version: int = 2) -> None:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    write(root, f"{where}/{names[0]}", limit)
    write(root, f"{where}/{names[1]}", used)
    write(root, f"{where}/memory.stat", f"anon 5\n{'total_' * (version == 1)}inactive_file {cached}")


def test_a_limit_of_version_2(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/a/b")
    group(tmp_path, "sys/fs/cgroup/a/b", "max", 100 * MIB)
    group(tmp_path, "sys/fs/cgroup/a", 300 * MIB, 100 * MIB, 50 * MIB)
    found = tightest_limit(tmp_path)
    assert found == MemoryLimit(tmp_path / "sys/fs/cgroup/a", 300 * MIB, 250 * MIB)
    said = shortage(0, 251 * MIB, tmp_path)
    assert said is not None and "may use 300 MiB of memory" in said and shortage(0, 250 * MIB, tmp_path) is None


def test_a_limit_of_version_1(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/docker/1\n0::/")
    group(tmp_path, "sys/fs/cgroup/memory", NO_LIMIT, 10 * MIB, version=1)
    group(tmp_path, "sys/fs/cgroup/memory/docker/1", 64 * MIB, 40 * MIB, 10 * MIB, version=1)
    assert tightest_limit(tmp_path) == MemoryLimit(tmp_path / "sys/fs/cgroup/memory/docker/1", 64 * MIB, 34 * MIB)


def test_a_container_sees_its_own_group_at_the_top(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "5:memory:/docker/1")
    group(tmp_path, "sys/fs/cgroup/memory", 64 * MIB, 40 * MIB, version=1)
    found = tightest_limit(tmp_path)
    assert found is not None and found.left_bytes == 24 * MIB


@pytest.mark.parametrize("text", ["", "garbage", "0::/../..", "x:y", "0::/a\n1:memory:/b"])
def test_no_limit_where_nothing_says_so(tmp_path: Path, text: str) -> None:
    write(tmp_path, "proc/self/cgroup", text)
    assert tightest_limit(tmp_path) is None and tightest_limit(tmp_path / "none") is None
    group(tmp_path, "sys/fs/cgroup", "nonsense", 1)
    assert tightest_limit(tmp_path) is None


def limited(monkeypatch: pytest.MonkeyPatch, left_bytes: int) -> None:
    limit = MemoryLimit(Path("/sys/fs/cgroup/here"), 512 * MIB, left_bytes)
    monkeypatch.setattr(room, "tightest_limit", lambda root=Path("/"): limit)


def test_a_pool_beyond_the_groups_limit_is_refused_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 1 * MIB)
    with own_name() as name:
        with pytest.raises(PoolError, match=r"may use 512 MiB of memory, of which 1 MiB are left .*here"):
            ShmPool.create(name, **SMALL)
        assert files(name) == []


def test_smaller_cards_are_advised_with_what_makes_them_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches of a launcher's ranks are in /dev/shm, where 64 MB suffice for smaller cards than those of laptop."""
    monkeypatch.setattr(segments, "free_bytes", lambda: 64 * MIB)
    laptop = Topology.load("laptop")
    assert (laptop.card_count, laptop.card_bytes) == (2, 8 * MIB)
    with own_name() as name:
        with pytest.raises(
            PoolError, match=r"smaller cards \(card_bytes; -c laptop has two of 8 MiB\), or more memory$"
        ):
            ShmPool.create(name, **(SMALL | {"cards": 2, "hosts": 2, "card_bytes": 8 * MIB}))
        ShmPool.create(name, **(SMALL | {"cards": 2, "hosts": 2, "card_bytes": 4 * MIB})).unlink()


def test_what_ranks_need_beside_the_pool_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 20 * MIB)
    with own_name() as name:
        ShmPool.create(name, **(SMALL | {"hosts": 0})).unlink()
        with pytest.raises(PoolError, match=r"needs .*; outside /dev/shm 20 MiB for its ranks"):
            ShmPool.create(name, **(SMALL | {"hosts": 0}), beside_bytes=20 * MIB)


def cached(context: RankContext) -> list[str]:
    context.session.barrier(context.deadline_s)
    return sorted(files(context.pool.name))


@pytest.mark.deep(rows=lambda how: how == "processes")
@pytest.mark.parametrize("how", ["threads", "processes"])
def test_caches_of_emulated_hosts_take_nothing_of_dev_shm(how: str) -> None:
    laptop = Topology.load("laptop")
    (names, *_) = launch(cached, ranks=2, topology=laptop, how=how, deadline_s=PATIENT_S)  # type: ignore[arg-type]
    assert not set(names) - {"card0", "card1"}  # which go as well, once all ranks are there
    assert laptop.pool_card_count * laptop.card_bytes < 64 * MIB  # Docker's default


def test_a_launchers_world_has_its_caches_where_all_ranks_find_them() -> None:
    world = World(2, Topology.load("laptop"), MemorySpec(), 1.0, "torchrun")
    with own_name() as name, world.create_pool(name):
        assert files(name) == ["card0", "card1", "host0", "host1"]


def test_a_smaller_topology_stands_in_for_the_default_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "free_bytes", lambda: 64 * MIB)
    with pytest.warns(UserWarning, match=r"has 64 MiB free.*: laptop instead of six-cards, the default"):
        assert machine(None, MemorySpec(), may_be_smaller=True).name == "laptop"
    assert machine("six-cards", MemorySpec(), may_be_smaller=True).name == "six-cards"  # who asks gets it, or an error
    assert machine(None, MemorySpec()).name == "six-cards"  # ranks of a launcher agree


class Dead:
    """A child that SIGBUS ended."""

    exitcode = -signal.SIGBUS

    def join(self, timeout: float) -> None:
        pass


@pytest.mark.parametrize(("free", "words"), [(0, "/dev/shm is full"), (1 << 40, "/dev/shm was full, or")])
def test_sigbus_is_a_sentence(monkeypatch: pytest.MonkeyPatch, free: int, words: str) -> None:
    monkeypatch.setattr(segments, "free_bytes", lambda: free)
    said = str(_death_notice(1, Dead()))  # type: ignore[arg-type]
    assert "was killed by SIGBUS: a page of shared memory could not be allocated" in said and words in said
    assert "-c laptop" in said and "--shm-size" in said


# --- a /dev/shm of a test's own --------------------------------------------------------------------------------------


def in_own_shm(size: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a mount namespace in which /dev/shm is so large."""
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", *command],
        capture_output=True,
        text=True,
        timeout=PATIENT_S * 4,
        check=False,
    )


OWN_SHM = shutil.which("unshare") is not None and os.geteuid() == 0 and in_own_shm("1m", "true").returncode == 0
own_shm = pytest.mark.skipif(not OWN_SHM, reason="a /dev/shm of its own takes root, unshare and mount")
CXLEMU = (sys.executable, "-m", "cxlemu")


@pytest.mark.deep
@own_shm
def test_dockers_64_megabytes_are_enough_for_laptop_and_for_the_default() -> None:
    run = (*CXLEMU, "run", "all_reduce", "-e", "4K", "-n", "2")
    done = in_own_shm("64m", *run, "-c", "laptop")
    assert done.returncode == 0 and "0 wrong" in done.stdout, done.stderr
    default = in_own_shm("64m", *run)
    assert default.returncode == 0 and "0 wrong" in default.stdout, default.stderr
    note, _ = default.stderr.strip().splitlines()  # the other one is of the largest size
    assert note.startswith("note: /dev/shm has ") and note.endswith("laptop instead of six-cards, the default")


KILLED = """
import os, signal
from tests.helpers.pool_helpers import small_pool
pool = small_pool("t-killed")
os.kill(os.getpid(), signal.SIGKILL)
"""
TINY = f"{sys.executable} -m cxlemu run broadcast -b 8 -e 8 -n 2 -c laptop --launch threads"
LIVING = """
import sys
from tests.helpers.pool_helpers import small_pool
with small_pool("t-living"):
    print("made", flush=True)
    sys.stdin.read()
"""


@own_shm
def test_a_run_removes_what_killed_runs_left_and_says_so() -> None:
    script = (
        f"{sys.executable} -c '{KILLED}'; {TINY} >/dev/null; ls /dev/shm; echo --; "
        f"unset CXLEMU_KEEP_DEAD_POOLS; printed=$({TINY}); ls /dev/shm; echo --; echo $printed"
    )
    done = in_own_shm("256m", "bash", "-c", script)
    kept, removed, printed = done.stdout.split("--\n")
    assert "t-killed" in kept and removed == "" and "0 wrong" in printed
    (note,) = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert note.startswith("note: removed 1 dead pool of killed runs, ") and note.endswith("iB of /dev/shm")


TWICE = """
import warnings
from cxlemu.world import launch
for _ in range(2):
    with warnings.catch_warnings(record=True) as told:
        launch(lambda context: None, ranks=1, topology="laptop")
    print(*(str(one.message) for one in told), sep="; ")
"""


@pytest.mark.deep
@own_shm
def test_the_first_launch_of_a_process_warns_of_what_killed_runs_left() -> None:
    script = f"{sys.executable} -c '{KILLED}'; unset CXLEMU_KEEP_DEAD_POOLS; {sys.executable} -c '{TWICE}'; ls /dev/shm"
    first, second, *left = in_own_shm("256m", "bash", "-c", script).stdout.splitlines()
    assert first.startswith("1 dead pool of killed runs, ") and first.endswith("`cxlemu pool clean` removes them")
    assert second == "" and left and all("t-killed" in name for name in left)


@pytest.mark.deep
@own_shm
def test_a_run_leaves_living_pools_alone() -> None:
    script = (
        f"unset CXLEMU_KEEP_DEAD_POOLS; coproc {{ {sys.executable} -c '{LIVING}'; }}; read -u ${{COPROC[0]}} made; "
        f'{TINY} >/dev/null; found=$(ls /dev/shm); echo "$found"'  # the last command replaces bash, and ends the other
    )
    done = in_own_shm("256m", "bash", "-c", script)
    assert "t-living" in done.stdout and "note: removed" not in done.stderr


@pytest.mark.deep
@own_shm
def test_who_asks_for_more_than_there_is_gets_a_sentence() -> None:
    done = in_own_shm("64m", *CXLEMU, "run", "all_reduce", "-e", "4K", "-n", "2", "-c", "six-cards")
    assert done.returncode == 2 and "/dev/shm has " in done.stderr and "-c laptop" in done.stderr, done.stderr


SIGBUS = """
import os, sys
from cxlemu.topology import Topology
from cxlemu.world import launch
from tests.helpers.rank_programs import full_page
launch(full_page, ranks=2, topology=Topology.load("laptop"), how="processes", deadline_s=5.0)
"""


@own_shm
def test_a_rank_that_finds_dev_shm_full_says_so() -> None:
    done = in_own_shm("64m", sys.executable, "-c", SIGBUS)
    assert (
        "rank 1 was killed by SIGBUS: a page of shared memory could not be allocated: /dev/shm is full" in done.stderr
    )
    assert segments.SHM_DIR.exists()


UNDER_A_LAUNCHER = """
from cxlemu.memory import MemorySpec
from cxlemu.world import from_environment
from tests.helpers.rank_programs import full_page
with from_environment(topology="laptop", memory=MemorySpec("shm"), deadline_s=5.0) as context:
    full_page(context)
"""


@pytest.mark.deep
@own_shm
def test_a_rank_of_another_launcher_says_so_itself() -> None:
    ranks = " ".join(f"RANK={rank} {sys.executable} -c '{UNDER_A_LAUNCHER}' & pid{rank}=$!;" for rank in range(2))
    both = f"export WORLD_SIZE=2 MASTER_ADDR=here MASTER_PORT=1; {ranks} wait $pid0; wait $pid1"
    done = in_own_shm("96m", "sh", "-c", both)
    assert done.returncode == 128 + signal.SIGBUS
    assert (
        "cxlemu: rank 1 is killed by SIGBUS: a page of shared memory could not be allocated: /dev/shm was"
        in done.stderr
    )


# --- a real control group ---------------------------------------------------------------------------------------------


@pytest.fixture
def own_group() -> Iterator[Path]:
    """A control group of this test's own that may use 300 MiB, where the kernel lets us make one."""
    found = re.search(r"(?m)^\d+:memory:(.*)$|^0::(.*)$", Path("/proc/self/cgroup").read_text())
    first = found is not None and found[1] is not None
    root = Path("/sys/fs/cgroup/memory" if first else "/sys/fs/cgroup")
    parent = root / ((found[1] or found[2]).lstrip("/") if found else "")
    if not parent.is_dir():
        parent = root
    where = parent / f"cxlemu-test-{os.getpid()}"
    try:
        where.mkdir()
        (where / ("memory.limit_in_bytes" if first else "memory.max")).write_text("300M")
    except OSError as error:
        with suppress(OSError):
            where.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield where
    until = time.monotonic() + PATIENT_S
    while where.is_dir():  # until the last of its processes is gone for good
        with suppress(OSError):
            where.rmdir()
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.deep
def test_a_run_under_a_real_limit_is_refused_or_smaller(own_group: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        inside = f'echo $$ > {own_group}/cgroup.procs && exec "$@"'
        command = ["sh", "-c", inside, "sh", *CXLEMU, "run", "all_reduce", "-n", "2", "-e", "4K", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENT_S)

    refused = run("-c", "six-cards")
    assert refused.returncode == 2 and "may use 300 MiB of memory, of which" in refused.stderr, refused.stderr
    assert str(own_group) in refused.stderr and "-c laptop" in refused.stderr
    smaller = run()
    assert smaller.returncode == 0 and "laptop instead of six-cards, the default" in smaller.stderr, smaller.stderr


def test_where_dev_shm_is_missing_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> int:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/dev/shm")

    monkeypatch.setattr(segments, "free_bytes", gone)
    monkeypatch.setattr(os, "access", lambda *_: False)
    result = cxlemu("run", "barrier", "-n", "2", "-c", "laptop", "--launch", "threads", code=2)
    assert "/dev/shm: No such file or directory: pools need /dev/shm; mount a tmpfs there" in result.stderr
