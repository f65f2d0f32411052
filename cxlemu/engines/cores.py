"""Whether ranks may spin while they wait: only where each of them has a core. Spinning beside a rank that waits for
this very core makes collectives several times slower, and so does yielding where no other rank wants the core.
"""

import os
from functools import reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MOST_CORES = 1024
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def cores_here() -> NDArray[np.uint8]:
    """Return this machine's boot id (16 bytes), then a bit per core that the rank may use, lowest first; 1-D uint8."""
    mask = sum(1 << core for core in os.sched_getaffinity(0) if core < MOST_CORES)
    machine = bytes.fromhex(_BOOT_ID.read_text().strip().replace("-", ""))
    return np.frombuffer(machine + mask.to_bytes(MOST_CORES // 8, "little"), np.uint8)


def have_a_core_each(rows: NDArray[np.uint8], rank: int) -> bool:
    """Return whether the ranks of one machine are no more than their cores; each row is the `cores_here` of a rank."""
    machines = [row[:16].tobytes() for row in rows]
    masks = [int.from_bytes(row[16:].tobytes(), "little") for row in rows]
    here = [mask for machine, mask in zip(machines, masks, strict=True) if machine == machines[rank]]
    return len(here) <= reduce(int.__or__, here).bit_count()
