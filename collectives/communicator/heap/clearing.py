"""A new communicator's doorbell lines, which the pool may still hold of a run that crashed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import HostMemory
from cxlemu.plan.address import Extent
from cxlemu.pool.session import Session
from cxlemu.pool.session_area import HEARTBEAT_S


def clear_doorbells(memory: HostMemory, session: Session, places: Sequence[tuple[int, tuple[Extent, ...]]]) -> None:
    """Write zeros to a rank's doorbell lines; each place is a ring's offset on every card and its extents from
    there."""
    beat_at = session.clock.now()
    for base, extents in places:
        if isinstance(memory, DirectMemory):  # in C, all at once
            memory.clear(base, _as_table(extents))
            continue
        for card, offset, nbytes in extents:
            memory.write(card, base + offset, np.zeros(nbytes, np.uint8))
            memory.flush(card, base + offset, nbytes)
            if (now := session.clock.now()) - beat_at > HEARTBEAT_S:
                session.beat()
                beat_at = now
    memory.fence()


@lru_cache(maxsize=64)  # groups of equal sizes are laid out alike
def _as_table(extents: tuple[Extent, ...]) -> NDArray[np.int64]:
    return np.array(extents, np.int64).reshape(-1, 3)
