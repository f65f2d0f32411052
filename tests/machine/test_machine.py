"""What is measured once for a machine, and kept: from which size on arrays are stored past the caches."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from collectives import Communicator
from cxlemu import RankContext, _native, launch, machine
from cxlemu.calibrate.past_caches import SIZES, Fill, past_caches_bytes, undisturbed_s
from cxlemu.errors import ArgumentError
from cxlemu.machine import (
    LEAST_BYTES,
    NEVER_BYTES,
    VARIABLE,
    VERSION,
    CpuCache,
    caches,
    default_bytes,
    identity,
    keep,
    kept_file,
    thresholds,
)
from cxlemu.memory import MemorySpec
from tests.helpers.commands import cxlemu
from tests.helpers.tables import with_rows


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = _native.past_caches_from(0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    thresholds.cache_clear()
    yield
    thresholds.cache_clear()
    _native.past_caches_from(before)


@pytest.fixture(autouse=True)
def default(monkeypatch: pytest.MonkeyPatch) -> int:
    """What is taken where nothing was measured: the machine of the tests has a last-level cache of 64 MiB."""
    monkeypatch.setattr(machine, "caches", lambda: [CpuCache(2, 1 << 20, "0"), CpuCache(3, 64 << 20, "0-7")])
    return 16 << 20


def test_without_a_file_it_is_a_quarter_of_the_largest_cache(default: int) -> None:
    its = thresholds()
    assert its.past_caches_bytes == default and not its.measured
    assert str(its) == (
        "arrays are stored past the caches from 16 MiB on "
        "(a quarter of the largest cache: cxlemu doctor --calibrate measures it)"
    )


@pytest.mark.parametrize("sizes", [[], [32 << 10, 1 << 20], [16 << 20]])
def test_small_caches_do_not_make_the_default_smaller(sizes: list[int]) -> None:
    assert default_bytes([CpuCache(1, nbytes, "0") for nbytes in sizes]) == LEAST_BYTES == 4 << 20


def test_what_is_kept_is_found_again(default: int) -> None:
    assert thresholds().past_caches_bytes == default
    file = keep(32 << 20)
    assert file == kept_file() and [its.name for its in file.parent.iterdir()] == ["machine.json"]
    assert str(thresholds()) == f"arrays are stored past the caches from 32 MiB on (measured, {file})"


def test_the_environment_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(32 << 20)
    monkeypatch.setenv(VARIABLE, "4096")
    assert (thresholds().past_caches_bytes, thresholds().source) == (4096, VARIABLE)


@pytest.mark.parametrize("given", ["", "0", "-1", "4M", "\u0663", "9" * 30])
def test_an_environment_that_is_no_number_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, given)
    with pytest.raises(ArgumentError, match=rf"^{VARIABLE} is .*, expected a whole number from 1 to {NEVER_BYTES}$"):
        thresholds()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"\xff", b"[" * 60_000, b'{"machine": {}}',
        json.dumps({"machine": {}, "past_caches_bytes": 8}).encode(),
        *(json.dumps({"version": VERSION, "machine": {}, "past_caches_bytes": its}).encode()
          for its in ["8", 0, -1, True, 1.5, 1 << 61]),
    ],
)  # fmt: skip
def test_a_file_that_nobody_wrote_is_left_alone(content: bytes, default: int) -> None:
    kept_file().parent.mkdir()
    kept_file().write_bytes(content)
    its = thresholds()
    assert its.past_caches_bytes == default
    assert (
        its.source
        == f"a quarter of the largest cache: {kept_file()} is not what this version's cxlemu doctor --calibrate writes"
    )


def test_another_machines_file_is_void(default: int) -> None:
    file = keep(32 << 20)
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"machine": document["machine"] | {"cores": 999}}))
    assert thresholds().past_caches_bytes == default
    assert thresholds().source == f"a quarter of the largest cache: {file} was measured on another machine"


def test_the_caches_are_those_that_linux_describes(tmp_path: Path) -> None:
    folder = tmp_path / f"cpu{min(os.sched_getaffinity(0))}" / "cache"
    for index, its in enumerate(
        [("Data", 1, "48K"), ("Instruction", 1, "64K"), ("Unified", 2, "2048K"), ("", "x", "")]
    ):
        (folder / f"index{index}").mkdir(parents=True)
        for name, value in zip(("type", "level", "size"), its, strict=True):
            (folder / f"index{index}" / name).write_text(f"{value}\n")
        (folder / f"index{index}" / "shared_cpu_list").write_text("0-1\n")
    assert [(its.level, its.nbytes, its.shared_with) for its in caches(tmp_path)] == [
        (1, 48 << 10, "0-1"),
        (2, 2 << 20, "0-1"),
    ]
    assert identity()["cores"] >= 1


@pytest.mark.parametrize("faster_from", [*SIZES, NEVER_BYTES])
def test_the_threshold_is_where_stores_past_the_caches_begin_to_pay(faster_from: int) -> None:
    assert past_caches_bytes(lambda nbytes: 0.5 if nbytes >= faster_from else 1.4) == faster_from


def test_one_fast_size_among_slow_ones_is_no_threshold() -> None:
    assert past_caches_bytes(lambda nbytes: 0.5 if nbytes in (SIZES[1], SIZES[-1]) else 1.4) == SIZES[-1]


def test_a_size_that_other_work_slowed_down_is_outvoted() -> None:
    ratios = dict(zip(SIZES, [1.4, 1.4, 1.4, 1.2, 0.85, 0.9, 1.05], strict=True))
    assert past_caches_bytes(ratios.__getitem__) == 16 << 20


def test_it_is_measured_here_unless_other_work_disturbs_it() -> None:
    assert past_caches_bytes() in (*SIZES, NEVER_BYTES, None)


def test_no_figure_is_made_of_sizes_of_which_one_could_not_be_measured() -> None:
    ratios = dict.fromkeys(SIZES, 0.5) | {SIZES[2]: None}
    assert past_caches_bytes(ratios.__getitem__) is None


@with_rows(
    ([Fill(1.0, 2.0, 0), Fill(1.0, 1.9, 0)], [1.0]),
    ([Fill(1.0, 2.0, 1), Fill(1.0, 2.0, 0)], []),
    ([Fill(1.0, 2.0, 0), Fill(1.5, 2.5, 0)], []),  # it got its core late
)
def test_a_round_counts_in_which_no_thread_waited_for_its_core(fills: list[Fill], took_s: list[float]) -> None:
    assert undisturbed_s(fills) == took_s


def gathered(context: RankContext) -> list[bool]:
    found = []
    with Communicator.world(context) as comm:
        for dtype, count in [("u1", 1), ("u1", 1001), ("f4", 16_000), ("f8", 70_001)]:
            x = (np.arange(count) % 251).astype(dtype) + comm.rank
            every = comm.all_gather(x)
            found.append(all((every[rank] == x - comm.rank + rank).all() for rank in range(comm.size)))
            found.append(bool((comm.all_reduce(x.copy()) == (x - comm.rank) * 2 + 1).all()))
    return found


@pytest.mark.parametrize("nbytes", [1, NEVER_BYTES])
def test_results_are_the_same_past_the_caches_and_through_them(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(nbytes))
    found = launch(gathered, ranks=2, topology="laptop", memory=MemorySpec("shm"))
    assert _native.past_caches_from(0) == nbytes
    assert all(map(all, found))


def test_run_says_what_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "8388608")
    done = cxlemu("run", "broadcast", "-b", "8", "-e", "8", "-n", "2", "-c", "laptop", "-v", "--backend", "shm")
    assert f"# stores   arrays are stored past the caches from 8 MiB on ({VARIABLE})" in done.output
    assert machine.thresholds().past_caches_bytes == 8 << 20


SMALLEST = ["run", "broadcast", "-b", "8", "-e", "8", "-n", "2", "-c", "laptop", "--launch", "threads", "-v"]


def test_the_first_run_measures_the_machine_and_later_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter([32 << 20])
    monkeypatch.setattr("cxlemu.calibrate.past_caches.past_caches_bytes", lambda: next(measured))
    taken = f"arrays are stored past the caches from 32 MiB on (measured, {kept_file()})"
    assert cxlemu(*SMALLEST, "--backend", "shm", code=0).stderr == f"# the first run on this machine: {taken}\n"
    assert _native.past_caches_from(0) == 32 << 20
    second = cxlemu(*SMALLEST, "--backend", "shm", code=0)
    assert second.stderr == "" and taken in second.stdout


@pytest.mark.parametrize("where", [[], ["--backend", "shm", "--engine", "reference"]])
def test_what_no_run_takes_is_not_measured(where: list[str]) -> None:
    done = cxlemu(*SMALLEST, *where)
    assert (done.exit_code, done.stderr, kept_file().exists()) == (0, "", False)


def test_a_machine_that_is_short_of_memory_is_not_measured(monkeypatch: pytest.MonkeyPatch, default: int) -> None:
    monkeypatch.setattr("cxlemu.cli.first_time.memory_left_bytes", lambda: 100 << 20)
    done = cxlemu(*SMALLEST, "--backend", "shm")
    assert (done.exit_code, kept_file().exists()) == (0, False)
    assert done.stderr.startswith("# arrays are stored past the caches from 16 MiB on (a quarter of")
    assert done.stderr.endswith("MiB of memory, but 100 MiB are left\n")
    assert thresholds().past_caches_bytes == default


def test_a_busy_machine_keeps_no_figure(monkeypatch: pytest.MonkeyPatch, default: int) -> None:
    monkeypatch.setattr("cxlemu.calibrate.past_caches.past_caches_bytes", lambda: None)
    done = cxlemu(*SMALLEST, "--backend", "shm")
    assert (done.exit_code, kept_file().exists()) == (0, False)
    assert done.stderr == (
        "# arrays are stored past the caches from 16 MiB on (a quarter of the largest cache: cxlemu doctor --calibrate"
        " measures it); other work on this machine prevented a measurement\n"
    )
    assert thresholds().past_caches_bytes == default


def test_a_figure_that_cannot_be_kept_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("cxlemu.calibrate.past_caches.past_caches_bytes", lambda: 32 << 20)
    (tmp_path / "file").write_text("")
    done = cxlemu(*SMALLEST, "--backend", "shm", code=0)
    assert done.stderr == (
        "# arrays are stored past the caches from 16 MiB on (a quarter of the largest cache: cxlemu doctor --calibrate"
        f" measures it); a measured threshold cannot be kept: {kept_file()}: Not a directory\n"
    )
    assert thresholds().past_caches_bytes == default
