"""Whether ranks may spin while they wait: only where each of them has a core. Spinning beside a rank that waits for
this very core makes collectives several times slower, and so does yielding where nobody else wants the core.
"""

from __future__ import annotations

import os
from functools import reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MOST_CORES = 1024
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def cores_here() -> NDArray[np.uint8]:
    """This rank's machine, as 16 bytes, and the cores on which it may run, a bit each."""
    mask = sum(1 << core for core in os.sched_getaffinity(0) if core < MOST_CORES)
    machine = bytes.fromhex(_BOOT_ID.read_text().strip().replace("-", ""))
    return np.frombuffer(machine + mask.to_bytes(MOST_CORES // 8, "little"), np.uint8)


def have_a_core_each(rows: NDArray[np.uint8], rank: int) -> bool:
    """Whether the ranks of ``rank``'s machine are no more than their cores. ``rows[k]`` is cores_here of rank k."""
    machines = [row[:16].tobytes() for row in rows]
    masks = [int.from_bytes(row[16:].tobytes(), "little") for row in rows]
    here = [mask for machine, mask in zip(machines, masks, strict=True) if machine == machines[rank]]
    return len(here) <= reduce(int.__or__, here).bit_count()
