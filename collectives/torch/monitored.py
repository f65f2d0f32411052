"""monitored_barrier: a barrier through torch's store, in which rank 0 says who is missing."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import DistBackendError

if TYPE_CHECKING:
    from torch.distributed import Store


def monitored_barrier(store: Store, rank: int, size: int, number: int, timeout: timedelta, *, every: bool) -> None:
    """Wait for all ranks of a group. ``every``: rank 0 names all that are missing, not only the first."""
    key = f"monitored/{number}"
    ms = int(timeout.total_seconds() * 1000)
    if rank:
        store.set(f"{key}/{rank}", "")
        if not _came(store, f"{key}/done", timeout):
            raise DistBackendError(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank 0: Timed out after {ms} ms. Please check rank 0 logs for faulty rank."
            )
        store.set(f"{key}/{rank}/left", "")
        return
    if not timeout:
        raise DistBackendError(f"Rank 0 timed out in monitoredBarrier after {ms} ms: give a timeout above 0")
    end = time.monotonic() + timeout.total_seconds()
    for said in ("", "/left"):  # no peer asks the store any more when rank 0, whose process may have it, goes on
        missing = []
        for peer in range(1, size):
            if not _came(store, f"{key}/{peer}{said}", timedelta(seconds=max(end - time.monotonic(), 0.0))):
                missing.append(peer)
                if not every:
                    break
        if missing:
            # One by one, as Gloo has it and programs match it.
            named = ("Rank " if len(missing) == 1 else "Ranks ") + ", ".join(map(str, missing))
            raise DistBackendError(f"{named} failed to pass monitoredBarrier in {ms} ms: Timed out waiting")
        store.set(f"{key}/done", "")


def _came(store: Store, key: str, within: timedelta) -> bool:
    if store.check([key]):
        return True
    if not within:
        return False
    try:
        store.wait([key], within)
    except RuntimeError as error:  # which class depends on the store
        if "timeout" in str(error).lower():
            return False
        raise
    return True
