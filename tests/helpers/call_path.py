"""`python -m tests.helpers.call_path` prints the Python files that a first call enters, and those of a repeated one.

A file stands where the call first enters it. What comes after C has begun to run the plan is left out: how long a wait
takes decides whether Python looks after the peers meanwhile.
"""

import json
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from collectives import Communicator
from collectives.algorithms import catalog
from cxlemu import RankContext, launch
from cxlemu.engines.native import NativeEngine

ROOT = Path(__file__).parents[2]
PLANNED = NativeEngine.program.__code__  # the last thing that a first call does in Python
RESUMED = "resume"
PATIENCE_S = 60


def traced(call: Callable[[], Any], planned: threading.Event | None = None) -> list[str]:
    """The files that a call enters, in order; ``planned`` is set when Python is done with it."""
    found: list[str] = []
    ended = False

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal ended
        file = Path(frame.f_code.co_filename)
        if event == "return" and frame.f_code is PLANNED and planned is not None:
            planned.set()
        ended = ended or (event == "call" and frame.f_code.co_name == RESUMED)
        if event != "call" or ended or not file.is_relative_to(ROOT):
            return
        name = file.relative_to(ROOT).as_posix()
        if not name.startswith(("tests/", ".venv/")) and name not in found:
            found.append(name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def path(context: RankContext, planned: threading.Event) -> tuple[list[str], list[str]] | None:
    with Communicator.world(context) as comm:
        x = np.ones(4096, np.float32)
        comm.barrier()
        if comm.rank:
            planned.wait(PATIENCE_S)  # else it may have filled caches that both ranks share
            comm.all_reduce(x)
            comm.all_reduce(x)
            return None
        catalog.plan_of.cache_clear()
        first = traced(lambda: comm.all_reduce(x), planned)
        return first, traced(lambda: comm.all_reduce(np.full_like(x, 2)))


def paths() -> dict[str, list[str]]:
    """The Python files of a first call and of one like it."""
    found = launch(partial(path, planned=threading.Event()), ranks=2, topology="six-cards", how="threads")[0]
    assert found is not None
    return dict(zip(("first", "repeated"), found, strict=True))


if __name__ == "__main__":
    print(json.dumps(paths(), indent=1))
