"""What is counted under callgrind: each row by itself, after a warm-up, in one process of one rank."""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collectives import Communicator
from cxlemu import RankContext, _measure, launch
from cxlemu.memory import MemorySpec

WARMUP, CALLS = 8, 20
NOTHING = "nothing"
TESTS = Path(__file__).parents[1]
EXAMPLES = TESTS.parent / "examples"


def count(name: str, function: Callable[[], Any], calls: int = CALLS, warmup: int = WARMUP) -> None:
    for _ in range(warmup):
        function()
    _measure.toggle_collect()
    for _ in range(calls):
        function()
    _measure.toggle_collect()
    _measure.dump(f"{name}:{calls}")


def calls(context: RankContext) -> None:
    with Communicator.world(context, heap_bytes=1 << 20) as comm:
        x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
        pooled = comm.heap.empty(64, np.float32)
        pooled[:] = 1
        again = comm.persistent.all_reduce(x)
        count(NOTHING, int)
        count("all_reduce", lambda: comm.all_reduce(x))
        count("all_reduce of an array in the pool", lambda: comm.all_reduce(pooled))
        count("all_gather with out", lambda: comm.all_gather(x, y))
        count("persistent all_reduce", again)
        count("all_reduce and its handle", lambda: comm.all_reduce(x, async_op=True).wait())
        count("send and receive", lambda: (comm.isend(x, 0), comm.recv(y, 0)))


def judged() -> None:
    """Count a proof, a search and a litmus test, as the commands make them."""
    from click.testing import CliRunner

    from cxlemu.cli import main as cli

    for arguments in (
        ["prove", "all_reduce", "-n", "4", "-b", "4K", "--variant", "two_shot"],
        ["explore", str(EXAMPLES / "protocols" / "spsc_ring.py")],
        ["litmus", str(TESTS / "faults" / "litmus" / "2+2W.yaml")],
    ):
        name = " ".join([arguments[0], Path(arguments[1]).name, *arguments[2:]])
        count(name, partial(CliRunner().invoke, cli, arguments, catch_exceptions=False), calls=1, warmup=1)


if __name__ == "__main__":
    gc.disable()
    launch(calls, ranks=1, topology="laptop", memory=MemorySpec("shm"), how="threads", deadline_s=600.0)
    judged()
