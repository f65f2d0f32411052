"""The machine itself as one more implementation: its ranks move the bytes that studies.peers.bounds says, and no more.

Sources and the lines of the ping-pong are in shared memory that no file names; outputs are each rank's own.
"""

from __future__ import annotations

import itertools
import mmap
import os
import time
from typing import Any

import numpy as np

from cxlemu import _measure
from studies.peers.worker import Buffers, Prepared, allocate, die_with_parent, serve

LINE_BYTES = 64
CONTROL_BYTES = 1 << 21  # lines of the ping-pong, then one line a rank for the barrier; sources begin on a huge page
PING_PONG_BYTES = 4 * LINE_BYTES


class Moves:
    """A rank's copies and sums, repeated in C."""

    def __init__(self, moves: tuple[_measure.Move, ...], buffers: Buffers) -> None:
        self.buffers = buffers
        self._moves = moves
        self._x = buffers.x

    def once(self) -> None:
        self.repeat(1)

    def repeat(self, iterations: int) -> None:
        _measure.move(self._moves, None, iterations)

    def rewrite_and_repeat(self, iterations: int) -> None:
        """Rewrite the source and move the bytes, ``iterations`` times."""
        _measure.move(self._moves, self._x, iterations)

    def rewrite(self, iterations: int) -> None:
        """Rewrite the source ``iterations`` times, and move nothing."""
        _measure.move((), self._x, iterations)


class RoundTrips:
    """A cache line between ranks 0 and 1, to and fro; other ranks do nothing."""

    def __init__(self, limit: Limit) -> None:
        self.buffers = Buffers(None, None)
        self._limit = limit

    def once(self) -> None:
        """Send the line there and back once."""
        self.repeat(1)

    def repeat(self, iterations: int) -> None:
        """Send the line there and back ``iterations`` times."""
        limit = self._limit
        if limit.rank < 2:
            _measure.ping_pong(limit.lines, limit.rank, limit.rounds + 1, iterations, limit.yields, limit.deadline_s)
        limit.rounds += iterations

    rewrite_and_repeat = repeat  # there is no source

    def rewrite(self, iterations: int) -> None:
        pass


class Limit:
    def __init__(self, fd: int, rank: int, ranks: int, stride: int, deadline_s: float) -> None:
        self.rank = rank
        self.deadline_s = deadline_s
        self.yields = len(os.sched_getaffinity(0)) < 2  # else ranks 0 and 1 have a core each
        self.rounds = 0
        memory = mmap.mmap(fd, CONTROL_BYTES + ranks * stride)
        memory.madvise(mmap.MADV_HUGEPAGE)  # as NumPy asks for its arrays
        shared = np.frombuffer(memory, np.uint8)
        self.lines = shared[:PING_PONG_BYTES]
        self._arrived = shared[PING_PONG_BYTES:][: ranks * LINE_BYTES].view(np.int64)[:: LINE_BYTES // 8]
        self._sources = [shared[CONTROL_BYTES + r * stride :][:stride].view(np.float32) for r in range(ranks)]

    def prepare(self, command: dict[str, Any]) -> dict[str, Prepared]:
        """Prepare the paths "moves", the command's copies and sums, and "line", the ping-pong."""
        own = allocate(command | {"input_bytes": 0, "in_place": False})
        x = self._sources[self.rank][: command["input_bytes"] // 4] if command["input_bytes"] else None
        moves: list[_measure.Move] = []
        for at, nbytes, sources in command["moves"]:
            assert own.out is not None
            begin, count = at // 4, nbytes // 4
            inputs = tuple(self._sources[rank][offset // 4 :][:count] for rank, offset in sources)
            moves.append((own.out[begin : begin + count], inputs))
        return {"moves": Moves(tuple(moves), Buffers(x, own.out)), "line": RoundTrips(self)}

    def barrier(self) -> None:
        """Wait for all ranks; every rank counts how often it arrived, in a line of its own."""
        self._arrived[self.rank] += 1
        wanted = self._arrived[self.rank]
        ends = time.monotonic() + self.deadline_s
        for looks in itertools.count(1):
            if (self._arrived >= wanted).all():
                return
            if looks % 1000 == 0 and time.monotonic() > ends:
                raise TimeoutError(f"a rank did not reach the barrier within {self.deadline_s:g} s")
            time.sleep(0)


def main(socket_path: str, fd: str, rank: str, ranks: str, stride: str, deadline_s: str) -> None:
    """Run one rank until the coordinator ends it; all arguments are words of a command line, as those of `Limit`."""
    die_with_parent()
    serve(Limit(int(fd), int(rank), int(ranks), int(stride), float(deadline_s)), socket_path, "this machine")
