"""The memory of peers' processes on this machine, which the kernel copies from at once where it permits that.

A call whose arrays lie in the ranks' processes (`InHeap.in_process`) runs the plan of zero copy. WRITE finds the array
where it lies, and READ brings it from the owner's process, with no copy in the pool between. Only doorbells lie in the
pool: a SIGNAL carries the addresses of the rank's input and output, and whoever waits for it learns them. They hold for
the call, which returns when its readers are done, as all of zero copy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from errno import ESRCH

import numpy as np
from numpy.typing import NDArray

from cxlemu import _native
from cxlemu.errors import PeerLostError, RunError
from cxlemu.memory.protocol import Bytes
from cxlemu.plan.plan import Ints


@dataclass(frozen=True)
class PeerMemory:
    """The processes of a communicator's ranks, all on this machine."""

    own: int  # this rank
    pids: tuple[int, ...]  # each rank's process

    def read(self, rank: int, address: int, out: Bytes) -> None:
        try:
            _native.read_process(self.pids[rank], address, out)
        except OSError as error:
            raise unreadable(rank, error.errno or 0) from error

    def among(self, own: int, ranks: Sequence[int]) -> PeerMemory:
        """Return the processes of some ranks in their new order; ``own`` is this rank's number among them."""
        return PeerMemory(own, tuple(self.pids[rank] for rank in ranks))

    def bound(self, berths: Ints) -> tuple[int, NDArray[np.int32], Ints]:
        """Return what a `_native.Program` takes: this rank, the processes, and each region's berth."""
        return self.own, np.array(self.pids, np.int32), berths


def unreadable(rank: int, number: int) -> RunError:
    if number == ESRCH:
        return PeerLostError(f"the process of rank {rank} ended while this rank read from it", (rank,))
    return RunError(f"the memory of rank {rank} cannot be read: {os.strerror(number)}")
