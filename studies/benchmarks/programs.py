"""How much slower a program runs under `cxlemu exec`: a queue between two hosts, beside itself on a plain mapping.

python -m studies.benchmarks.programs
python -m studies.benchmarks.programs --messages 2000 --alternations 3

A producer and a consumer pass messages of 4 KiB with a sequence number and a checksum. The ways alternate in one run,
and each way's best time counts: that of all its processes on processors (the plain program uses two at once, the others
one at a time), and the clock's.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from cxlemu import program
from cxlemu.errors import ArgumentError
from faults.programs.area import SHARED, library_path
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.compile import compiler_arguments
from faults.programs.result import ExecSetting, RunChoice, RunEnding
from faults.programs.run import run

SOURCE = Path(__file__).parents[2] / "tests/faults/programs/queue.c"
BODY_BYTES = 4072
SCHEDULE = 9  # bursts of 512 steps
PLAIN = "plain mapping"


class Best(NamedTuple):
    """The best of a way's runs.

    Attributes:
        processor_s: CPU time of all processes, in seconds.
        clock_s: Wall-clock time, in seconds.
    """

    processor_s: float
    clock_s: float


def ways(folder: Path, messages: int) -> dict[str, Callable[[], None]]:
    """Compile the queue, and tell how to run it in each way.

    Args:
        folder: Where programs and pools lie.
        messages: How many messages pass through the queue.

    Returns:
        For each way, by its name, a function that runs the queue in it.

    Raises:
        ArgumentError: The queue's source is not here.
    """
    if not SOURCE.exists():
        raise ArgumentError(f"{SOURCE} is not here: run this in a checkout")
    words = ["-O2", f"-DBODY={BODY_BYTES}", f"-DMESSAGES={messages}", f"-I{program.include_dir()}", str(SOURCE), "-o"]
    plain, macros, recompiled = (str(folder / name) for name in ("plain", "macros", "recompiled"))
    for command in (
        [*words, plain],
        ["-DCXLEMU_PROGRAM", *words, macros, str(library_path())],
        compiler_arguments("c", [*words, recompiled], clang=False),
    ):
        subprocess.run(["gcc", *command], check=True)
    return {
        PLAIN: lambda: _alone(plain, str(folder / "pool")),
        "recompiled, with the checker": lambda: _emulated(recompiled, check=True),
        "recompiled": lambda: _emulated(recompiled, check=False),
        "preloaded, with cxl.h's calls": lambda: _emulated(macros, check=False),
        "preloaded, by traps": lambda: _emulated(plain, check=False),
        "preloaded, each access, with the checker": lambda: _emulated(plain, check=True),
    }


def _alone(binary: str, pool: str) -> None:
    Path(pool).unlink(missing_ok=True)
    subprocess.run([binary, pool, "new"], check=True)
    both = [subprocess.Popen([binary, pool, side]) for side in ("produce", "consume")]
    if sum(one.wait() != 0 for one in both):
        raise RuntimeError("the queue failed on a plain mapping")


def _emulated(binary: str, *, check: bool) -> None:
    pool = "/dev/shm/queue"
    told = f"{binary} {pool} new :: {binary} {pool} produce : {binary} {pool} consume".split()
    setting = ExecSetting(parse_commands(told, 2), parse_pools([pool]), check=check, deadline_s=300)
    result = run(setting, RunChoice(None, SCHEDULE))
    if result.ending is not RunEnding.ENDED or result.failed:
        raise RuntimeError(f"the queue failed under exec: {result.ending.value}, {result.exits}")


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(messages: int, alternations: int) -> dict[str, Best]:
    """Run all ways in turn.

    Args:
        messages: How many messages pass through the queue in a run.
        alternations: How often each way runs.

    Returns:
        Each way's best.
    """
    best: dict[str, Best] = {}
    with tempfile.TemporaryDirectory(dir=SHARED) as name:
        built = ways(Path(name), messages)
        for _ in range(alternations):
            for way, go in built.items():
                before, began = _processor_s(), time.monotonic()
                go()
                took = Best(_processor_s() - before, time.monotonic() - began)
                best[way] = Best(*map(min, took, best.get(way, took)))
    return best


def main(arguments: Sequence[str] | None = None) -> None:
    """Print each way's time beside the plain mapping's."""
    parser = argparse.ArgumentParser(description="Print how much slower a queue runs under cxlemu exec.")
    parser.add_argument("--messages", type=int, default=5000, help="of 4 KiB, in a run")
    parser.add_argument("--alternations", type=int, default=5, help="how often each way runs")
    asked = parser.parse_args(arguments)
    best = measure(asked.messages, asked.alternations)
    plain = best[PLAIN]
    print(f"{'way':<42} {'processor':>10} {'times':>6} {'clock':>9} {'times':>6}")
    for way, its in best.items():
        print(
            f"{way:<42} {its.processor_s:>8.3f} s {its.processor_s / plain.processor_s:>6.1f} {its.clock_s:>7.3f} s "
            f"{its.clock_s / plain.clock_s:>6.1f}"
        )


if __name__ == "__main__":
    main()
