"""A backend is one file: what the shipped ones say, and one that a package of somebody else's brings."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cxlemu.errors import ArgumentError
from cxlemu.memory import BACKENDS, MemorySpec
from cxlemu.memory.backend import EVERYTHING, NOTHING, CoherenceStep

ROOT = Path(__file__).parents[2]

# Everything that a backend needs, in one file: where its bytes are, how ranks get there, and what they see of them.
TOY = """
from mmap import mmap

import numpy as np

from cxlemu.errors import PoolError
from cxlemu.memory.backend import EVERYTHING, Backend
from cxlemu.memory.direct import DirectMemory
from cxlemu.pool.owner import Owner
from cxlemu.pool.pool import Pool
from cxlemu.pool.superblock import Geometry, Superblock

POOLS = {}


class ToyPool(Pool):
    def unlink(self):
        POOLS.pop(self.name, None)

    def __exit__(self, *why):
        self.close()
        self.unlink()


class CountingMemory(DirectMemory):
    written = 0

    def write(self, card, offset, data):
        super().write(card, offset, data)
        type(self).written += data.size


class Toy(Backend):
    summary = "the memory of one process, for threads"
    where = "NumPy arrays"
    guarantees = "coherence, as all ranks are threads"
    elides = EVERYTHING
    instead = "the release of SIGNAL and the acquire of WAIT"

    def describe(self, spec):
        return "a toy of one process"

    def open(self, spec, cards, *, host_cache, host, rank):
        return CountingMemory(cards)

    def create_pool(self, spec, new):
        geometry = Geometry(new.cards, 0, new.max_ranks, new.card_bytes, new.interleave_bytes)
        cards = [np.frombuffer(mmap(-1, new.card_bytes), np.uint8) for _ in range(new.cards)]
        pool = ToyPool(new.name or "toy", Superblock.new(geometry, Owner.current()), cards)
        POOLS[pool.name] = pool
        return pool

    def attach_pool(self, spec, name, *, deadline_s):
        if name not in POOLS:
            raise PoolError(f"no thread of this process made a pool {name}")
        return POOLS[name]


BACKEND = Toy()
"""


def installed(directory: Path, source: str, *, name: str = "toy") -> dict[str, str]:
    """The environment of a Python where a package with this backend is installed."""
    (directory / "toy_backend.py").write_text(source)
    metadata = directory / "toy_backend-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[cxlemu.backends]\n{name} = toy_backend:BACKEND\n")
    return {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}


def cxlemu(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cxlemu", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    yield installed(tmp_path_factory.mktemp("site"), TOY)


def test_a_run_on_a_backend_that_another_package_brings_is_right(toy: dict[str, str]) -> None:
    words = ("run", "all_reduce", "-n", "2", "-b", "1K", "-e", "1K", "--iters", "1", "--launch", "threads", "-v")
    for engine in ("reference", "native"):
        done = cxlemu(toy, *words, "--backend", "toy", "--engine", engine)
        assert done.returncode == 0, done.stderr
        assert "1 results, 0 wrong" in done.stdout or "1 result, 0 wrong" in done.stdout
        assert "a toy of one process" in done.stdout and "toy: coherence, as all ranks are threads" in done.stdout


def test_help_and_errors_list_what_is_installed(toy: dict[str, str]) -> None:
    told = " ".join(cxlemu(toy, "run", "--help").stdout.split())
    assert "[dax|emulated|shm|toy]" in told and "the memory of one process, for threads" in told
    wrong = cxlemu(toy, "run", "--backend", "tape")
    assert wrong.returncode == 2 and "'toy'" in wrong.stderr
    seeded = cxlemu(toy, "run", "--backend", "toy", "--adversary", "3")
    assert seeded.returncode == 2 and "the backend 'toy' does not have" in seeded.stderr


def test_the_toy_keeps_the_contract_of_all_memories(toy: dict[str, str]) -> None:
    """The conformance test of memories takes it up by its name, as every backend."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "toy"]
    path = f"{toy['PYTHONPATH']}{os.pathsep}{os.pathsep.join(filter(None, sys.path))}"
    done = subprocess.run(
        [*command, "tests/machine/test_memory_conformance.py"],
        cwd=ROOT,
        env={**toy, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert " passed" in done.stdout


def test_a_backend_that_cannot_be_loaded_takes_nothing_else_with_it(tmp_path: Path) -> None:
    broken = installed(tmp_path, "raise OSError('no such device')")
    told = cxlemu(broken, "run", "--help")
    assert told.returncode == 0 and "not usable" in told.stdout
    wrong = cxlemu(broken, "run", "--backend", "toy", "-n", "2")
    assert wrong.returncode == 2 and "no such device" in wrong.stderr and "Traceback" not in wrong.stderr


def test_two_backends_of_one_name_are_refused(tmp_path: Path) -> None:
    done = cxlemu(installed(tmp_path, TOY, name="shm"), "run", "-n", "2")
    assert done.returncode == 2 and "both provide a backend 'shm': uninstall one" in done.stderr


def test_what_the_shipped_backends_elide() -> None:
    assert {name: BACKENDS[name].elides for name in BACKENDS if name != "toy"} == {
        "dax": NOTHING,
        "emulated": NOTHING,
        "shm": EVERYTHING,
    }
    assert BACKENDS["shm"].elisions().startswith("coherence: a store is in the pool at once")
    assert all(str(step.name) in BACKENDS["shm"].elisions() for step in CoherenceStep)
    assert BACKENDS["dax"].elisions() == "coherence within a host only; nothing is elided"


def test_a_specification_says_at_once_what_does_not_fit() -> None:
    with pytest.raises(ArgumentError, match=r"a backend is one of dax, emulated, shm.*, not 'tape'"):
        MemorySpec("tape")
    with pytest.raises(ArgumentError, match="the backend 'shm' does not have"):
        MemorySpec("shm", seed=3)
    with pytest.raises(ArgumentError, match="not for 'shm'"):
        MemorySpec("shm", devices=("/dev/dax0.0",))
    spec = MemorySpec("emulated", seed=3)
    assert pickle.loads(pickle.dumps(spec)) == spec
