"""How many instructions one rank executes for a small call: a second figure, free of the noise of times.

Two ranks run as threads under valgrind's callgrind. Rank 1 calls first; rank 0 sleeps long enough for it to have come,
then calls, and so finds all that it needs and does not wait. Only what its thread executes within its calls is
counted, in Python and in C, and what the counting itself adds is subtracted. Numbers differ by less than 1 % from run
to run, because Python's dictionaries do; those of handles do not.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from collectives import sizes
from collectives.communicator.communicator import Communicator
from collectives.contracts import COLLECTIVES, buffers
from cxlemu import _measure
from cxlemu.errors import ArgumentError, RunError
from cxlemu.memory import MemorySpec
from cxlemu.plan import Call
from cxlemu.world import RankContext, launch
from studies.peers.group import ROOT
from studies.peers.ours import OurPeer
from studies.peers.worker import Repeated

RANKS, SIZES = 2, (8, 1024)
CALLS, WARMUP = 20, 5
HEAD_START_S = 0.005  # for rank 1, which valgrind slows down some 50 times
DEADLINE_S = 600.0
NOTHING = "nothing"


class Counted(NamedTuple):
    collective: str
    bytes: int
    path: str  # "call" or "handle"
    instructions: float  # per call; only rank 0's


def check_available() -> str:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise ArgumentError("--callgrind needs valgrind, which is not on PATH: apt-get install valgrind")
    if not _measure.HAS_CALLGRIND:
        raise ArgumentError("--callgrind needs valgrind's headers when cxlemu is built: install cxlemu once more")
    return valgrind


def count(calls: Sequence[Call]) -> list[Counted]:
    """Count the instructions of calls of 2 ranks, on each path ("call", "handle")."""
    valgrind = check_available()
    named = [f"{call.collective}:{call.nbytes}" for call in calls]
    with tempfile.TemporaryDirectory(prefix="cxlemu-callgrind-") as folder:
        path = f"import sys; sys.path.append({str(ROOT)!r})"
        code = f"{path}; from studies.peers import callgrind; callgrind.main(sys.argv[1:])"
        done = subprocess.run(
            [
                *(valgrind, "--tool=callgrind", "--collect-atstart=no", "--fair-sched=try"),
                *(f"--callgrind-out-file={folder}/counts", sys.executable, "-P", "-c", code, *named),
            ],
            env=os.environ | {"PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEADLINE_S,
        )
        if done.returncode:
            raise RunError(f"callgrind failed: {done.stderr.strip()[-1000:]}")
        totals = dict(_total(file) for file in sorted(Path(folder).glob("counts.*")))
    return [
        Counted(
            call.collective,
            sizes.size_bytes(call.collective, call.nbytes, RANKS),
            path,
            (totals[key] - totals[NOTHING]) / CALLS,
        )
        for call, name in zip(calls, named, strict=True)
        for path in ("call", "handle")
        if (key := f"{name}:{path}") in totals
    ]


def _total(file: Path) -> tuple[str, int]:
    text = file.read_text()
    name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
    total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
    return (name[1] if name else ""), int(total[1]) if total else 0


# -- under valgrind


def main(named: list[str]) -> None:
    """Make the calls named ``COLLECTIVE:NBYTES``, under valgrind."""
    launch(
        partial(_rank_main, named=named),
        ranks=RANKS,
        topology="laptop",
        memory=MemorySpec("shm"),
        how="threads",
        deadline_s=DEADLINE_S,
        heap_bytes="cards",
    )


def _rank_main(context: RankContext, named: list[str]) -> None:
    with Communicator.world(context, engine="native") as comm:
        ours = OurPeer(comm)
        for name in named:
            collective, _, nbytes = name.partition(":")
            prepared = ours.prepare(_command(collective, int(nbytes), comm.rank))
            for path, each in prepared.items():
                assert isinstance(each, Repeated)
                _count(comm.rank, each.call, f"{name}:{path}")
        if comm.rank == 0:
            _count(0, int, NOTHING)


def _command(collective: str, nbytes: int, rank: int) -> dict[str, Any]:
    in_place = COLLECTIVES[collective].one_buffer
    source, target = buffers(Call(collective, "auto", RANKS, nbytes, "f32", in_place=in_place), rank)
    return {
        "collective": collective,
        "ranks": RANKS,
        "root": 0,
        "input_bytes": source.nbytes,
        "output_bytes": target.nbytes,
        "in_place": in_place,
    }


def _count(rank: int, call: Any, name: str) -> None:
    for _ in itertools.repeat(None, WARMUP):
        call()
    for _ in itertools.repeat(None, CALLS):
        if rank == 0:
            time.sleep(HEAD_START_S)
            _measure.toggle_collect()
            call()
            _measure.toggle_collect()
        else:
            call()
    if rank == 0:
        _measure.dump(name)
