"""How much slower programs run under `cxlemu exec`, beside themselves on a plain mapping; also on a busy machine.

python -m studies.benchmarks.programs
python -m studies.benchmarks.programs --work copies "queue 64" --alternations 1 --no-busy

Queues of messages of 64 B, 1 KiB and 4 KiB between two hosts, a hash table of two hosts, copies of 4 KiB and a private
computation of one. The ways alternate in one run, and each way's best time counts: the clock's, and that of all its
processes on processors. The busy machine has two more processes for each processor: a way's best time there is
divided by its best time before, and by the three that share its processor. 1.0 is a fair share.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cxlemu import program
from cxlemu.errors import ArgumentError
from faults.programs.area import SHARED, library_path
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.compile import compiler_arguments
from faults.programs.result import ExecSetting, RunChoice, RunEnding
from faults.programs.run import run

QUEUE = Path(__file__).parents[2] / "tests/faults/programs/queue.c"
OTHER = Path(__file__).with_name("programs.c")
HEAD_BYTES = 16  # of a queue's message
PLAIN = "plain mapping"
BUSY_OF_EACH = 2  # processes that compute, for each processor
POOL = "/dev/shm/benchmark"


class Exercise(NamedTuple):
    source: Path
    flags: tuple[str, ...]
    stages: tuple[tuple[str, ...], ...]  # the arguments of each command that runs beside the others, stage by stage


class Best(NamedTuple):
    clock_s: float  # wall-clock time, in seconds
    processor_s: float  # CPU time of all processes, in seconds


def works(scale: float) -> dict[str, Exercise]:
    """List what is measured; ``scale`` makes all of it longer or shorter."""
    queues = {
        f"queue {nbytes}": Exercise(
            QUEUE,
            (f"-DBODY={nbytes - HEAD_BYTES}", f"-DMESSAGES={round(scale * messages)}"),
            (("new",), ("produce", "consume")),
        )
        for nbytes, messages in ((64, 20_000), (1024, 5_000), (4096, 2_000))
    }
    others = {
        "hash table": ((f"table {round(scale * 5000)} 0", f"table {round(scale * 5000)} 1"),),
        "copies": ((f"copies {round(scale * 5000)}",),),
        "private": ((f"private {round(scale * 20000)}",),),
    }
    return queues | {name: Exercise(OTHER, (), stages) for name, stages in others.items()}


def ways(folder: Path, work: Exercise) -> dict[str, Callable[[], None]]:
    if not work.source.exists():
        raise ArgumentError(f"{work.source} is not here: run this in a checkout")
    words = ["-O2", *work.flags, f"-I{program.include_dir()}", str(work.source), "-o"]
    plain, macros, recompiled = (str(folder / name) for name in ("plain", "macros", "recompiled"))
    for command in (
        [*words, plain],
        ["-DCXLEMU_PROGRAM", *words, macros, str(library_path())],
        compiler_arguments("c", [*words, recompiled], clang=False),
    ):
        subprocess.run(["gcc", *command], check=True)
    return {
        PLAIN: lambda: _alone(plain, work, folder / "pool"),
        "checker, bursts of 64": lambda: _emulated(recompiled, work, RunChoice(None, 6)),
        "checker, step by step": lambda: _emulated(recompiled, work, RunChoice(None, 0)),
        "checker, seed 1": lambda: _emulated(recompiled, work, RunChoice(1, 1)),
        "checker, --free": lambda: _emulated(recompiled, work, RunChoice(None, 6), free=True),
        "preloaded, cxl.h's calls": lambda: _emulated(macros, work, RunChoice(None, 6), check=False),
    }


def _alone(binary: str, work: Exercise, pool: Path) -> None:
    pool.unlink(missing_ok=True)
    for stage in work.stages:
        all_of_it = [subprocess.Popen([binary, str(pool), *words.split()]) for words in stage]
        if sum(one.wait() != 0 for one in all_of_it):
            raise RuntimeError(f"{stage} failed on a plain mapping")


def _emulated(binary: str, work: Exercise, choice: RunChoice, *, check: bool = True, free: bool = False) -> None:
    command = " :: ".join(" : ".join(f"{binary} {POOL} {words}" for words in stage) for stage in work.stages)
    setting = ExecSetting(
        parse_commands(command.split(), 2), parse_pools([POOL]), check=check, free=free, deadline_s=300
    )
    result = run(setting, choice)
    if result.ending is not RunEnding.ENDED or result.failed:
        raise RuntimeError(f"{command} failed under exec: {result.ending.value}, {result.exits}")


@contextmanager
def busy(others: int) -> Iterator[None]:
    """Let other processes compute meanwhile."""
    computing = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
    try:
        yield
    finally:
        for one in computing:
            one.kill()
            one.wait()


def _timed(go: Callable[[], None]) -> Best:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    go()
    clock_s, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Best(clock_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(built: dict[str, Callable[[], None]], alternations: int) -> dict[str, Best]:
    best: dict[str, Best] = {}
    for _ in range(alternations):
        for way, go in built.items():
            took = _timed(go)
            best[way] = Best(*map(min, took, best.get(way, took)))
    return best


def main(arguments: Sequence[str] | None = None) -> None:
    """Print each way's time beside the plain mapping's."""
    parser = argparse.ArgumentParser(description="Print how much slower programs run under cxlemu exec.")
    parser.add_argument("--work", nargs="+", choices=list(works(1)), default=list(works(1)), help="what is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="how much of it, 1.0 being 5,000 messages of 1 KiB")
    parser.add_argument("--alternations", type=int, default=3, help="how often each way runs")
    parser.add_argument("--no-busy", action="store_true", help="measure the machine as it is only")
    asked = parser.parse_args(arguments)
    processors = len(os.sched_getaffinity(0))
    print(f"{'work':<12} {'way':<26} {'clock':>9} {'times':>6} {'processor':>10} {'times':>6} {'busy/share':>10}")
    for name in asked.work:
        with tempfile.TemporaryDirectory(dir=SHARED) as folder:
            built = ways(Path(folder), works(asked.scale)[name])
            best, loaded = measure(built, asked.alternations), dict[str, Best]()
            if not asked.no_busy:
                with busy(BUSY_OF_EACH * processors):
                    loaded = measure(built, asked.alternations)
        plain = best[PLAIN]
        for way, took in best.items():
            of_share = f"{loaded[way].clock_s / took.clock_s / (BUSY_OF_EACH + 1):>10.1f}" if loaded else ""
            print(
                f"{name:<12} {way:<26} {took.clock_s:>7.3f} s {took.clock_s / plain.clock_s:>6.1f} "
                f"{took.processor_s:>8.3f} s {took.processor_s / max(plain.processor_s, 1e-3):>6.1f} {of_share}",
                flush=True,
            )


if __name__ == "__main__":
    main()
