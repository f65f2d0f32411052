"""One rank of one implementation: it obeys commands that come as JSON lines through a socket.

Between two commands a worker sleeps in a read, so that it takes no core from the one that is measured meanwhile.
Commands, and what is answered (to all: {"error": text} when something fails, and the worker ends):

    {"do": "prepare", "collective", "ranks", "root", "input_bytes", "output_bytes", "pieces", "in_place"}
        -> {"wrong": {path: elements}}   paths are ways to make the same call; or {"absent": reason}
    {"do": "time", "path", "iterations", "rewritten"}
        -> {"ns", "rewrite_ns"}          the calls; and, where the source was rewritten before each, that alone
    {"do": "pin", "core"} -> {}
    {"do": "close"}, or the end of the stream: the worker ends
"""

import ctypes
import itertools
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Call = Callable[[], object]

CHECKED_CALLS = 3  # so that what an earlier call left behind is seen
PERIOD = 251  # a prime: no block looks like another
_PR_SET_PDEATHSIG = 1


class Buffers(NamedTuple):
    """One rank's arrays; None where it has no such array. In place (broadcast) they are the same one."""

    x: Array | None
    out: Array | None


class Prepared(Protocol):
    """A call that is ready to be repeated, on these arrays."""

    buffers: Buffers

    def once(self) -> None:
        """Make the call once, from ``buffers`` to ``buffers``, for checks."""
        ...

    def repeat(self, iterations: int) -> None: ...

    def rewrite_and_repeat(self, iterations: int) -> None:
        """Rewrite the source and make the call, ``iterations`` times."""
        ...

    def rewrite(self, iterations: int) -> None:
        """Rewrite the source ``iterations`` times, without a call."""
        ...


class Implementation(Protocol):
    rank: int

    def prepare(self, command: dict[str, Any]) -> Mapping[str, Prepared]:
        """Allocate buffers for a "prepare" command above, and return each path by its name, a way to make the call.

        Raises NotImplementedError with the reason where the implementation has no such call.
        """
        ...

    def barrier(self) -> None: ...


class Repeated:
    """Any call, repeated by Python. One memory operation rewrites the source, whichever peer is measured."""

    def __init__(self, call: Call, buffers: Buffers) -> None:
        self.call = call
        self.buffers = buffers
        self._x = buffers.x

    def once(self) -> None:
        self.call()

    def repeat(self, iterations: int) -> None:
        call = self.call
        for _ in itertools.repeat(None, iterations):
            call()

    def rewrite_and_repeat(self, iterations: int) -> None:
        """Rewrite the source, if there is one, and make the call, ``iterations`` times."""
        if self._x is None:
            self.repeat(iterations)
            return
        call, fill = self.call, self._x.fill
        for _ in itertools.repeat(None, iterations):
            fill(1.0)
            call()

    def rewrite(self, iterations: int) -> None:
        """Rewrite the source, if there is one, ``iterations`` times, without a call."""
        if self._x is not None:
            fill = self._x.fill
            for _ in itertools.repeat(None, iterations):
                fill(1.0)


class OnADevice:
    """A call that a device does in its own time, repeated by Python. A time ends when the device has done it."""

    def __init__(self, call: Call, buffers: Buffers) -> None:
        self.buffers = buffers
        self._call = call

    def repeat(self, iterations: int) -> None:
        self._do(iterations, self._call)

    def rewrite_and_repeat(self, iterations: int) -> None:
        self._do(iterations, self._fill, self._call)

    def rewrite(self, iterations: int) -> None:
        self._do(iterations, self._fill)

    def _do(self, iterations: int, *steps: Call) -> None:
        for _ in itertools.repeat(None, iterations):
            for step in steps:
                step()
        self._wait()

    def _fill(self) -> None: ...

    def _wait(self) -> None: ...


def allocate(command: dict[str, Any]) -> Buffers:
    """Allocate a call's arrays, float32, with every page touched."""
    x, out = (np.zeros(command[name] // 4, np.float32) for name in ("input_bytes", "output_bytes"))
    for array in (x, out):
        array.fill(0)  # zeros alone maps nothing
    if command["in_place"]:
        one = x if x.size else out
        return Buffers(one if x.size else None, one)
    return Buffers(x if x.size else None, out if out.size else None)


def contribution(rank: int, offset: int, elements: int, serial: int) -> Array:
    """Return what a rank has in its input: whole numbers so small that every sum is exact."""
    places = np.arange(offset + serial, offset + serial + elements, dtype=np.int64) % PERIOD
    return ((rank + 1) * (places + 1)).astype(np.float32)


def wrong_elements(call: Call, buffers: Buffers, rank: int, pieces: list[Any]) -> int:
    """Make the call a few times on known inputs, overwriting its buffers; return how many elements are wrong."""
    wrong = 0
    for serial in range(CHECKED_CALLS):
        if buffers.out is not None:
            buffers.out.fill(-1)
        if buffers.x is not None:
            buffers.x[:] = contribution(rank, 0, buffers.x.size, serial)
        call()
        for at, nbytes, sources in pieces:
            assert buffers.out is not None
            got = buffers.out[at // 4 : (at + nbytes) // 4]
            right = contribution(sources[0][0], sources[0][1] // 4, nbytes // 4, serial)
            for source, offset in sources[1:]:
                right += contribution(source, offset // 4, nbytes // 4, serial)
            wrong += int(np.count_nonzero(got != right))
    return wrong


def serve(implementation: Implementation, path: str, version: str) -> None:
    """Obey the coordinator until it closes or is gone."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with connection.makefile("rw", encoding="utf-8") as stream:

            def say(answer: dict[str, Any]) -> None:
                stream.write(json.dumps(answer) + "\n")
                stream.flush()

            say({"rank": implementation.rank, "version": version, "pid": os.getpid()})
            obey = _Obedience(implementation)
            for line in stream:
                command = json.loads(line)
                if command["do"] == "close":
                    return
                try:
                    say(obey(command))
                except Exception:
                    say({"error": traceback.format_exc()})
                    raise


class _Obedience:
    def __init__(self, implementation: Implementation) -> None:
        self._implementation = implementation
        self._prepared: Mapping[str, Prepared] = {}

    def __call__(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "prepare":
            return self._prepare(command)
        if command["do"] == "time":
            return self._time(self._prepared[command["path"]], command["iterations"], command["rewritten"])
        for task in Path("/proc/self/task").iterdir():  # also threads that an implementation has for itself
            os.sched_setaffinity(int(task.name), {command["core"]})
        return {}

    def _prepare(self, command: dict[str, Any]) -> dict[str, Any]:
        self._prepared = {}  # the last cell's arrays go before new ones come
        try:
            self._prepared = self._implementation.prepare(command)
        except NotImplementedError as error:
            return {"absent": str(error)}
        pieces = command["pieces"]
        rank = self._implementation.rank
        return {
            "wrong": {
                path: wrong_elements(prepared.once, prepared.buffers, rank, pieces)
                for path, prepared in self._prepared.items()
            }
        }

    def _time(self, prepared: Prepared, iterations: int, rewritten: bool) -> dict[str, Any]:
        run = prepared.rewrite_and_repeat if rewritten else prepared.repeat
        run(max(1, iterations // 10))  # caches hold what another implementation left there
        answer = {"ns": self._elapsed_ns(run, iterations), "rewrite_ns": 0}
        if rewritten:
            answer["rewrite_ns"] = self._elapsed_ns(prepared.rewrite, iterations)
        return answer

    def _elapsed_ns(self, run: Callable[[int], None], iterations: int) -> int:
        self._implementation.barrier()
        before = time.perf_counter_ns()
        run(iterations)
        return time.perf_counter_ns() - before


def die_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """End this process, on Linux, when its parent is killed, so that nothing is left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, how)
