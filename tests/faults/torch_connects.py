"""A rank whose store answers late while Gloo connects: when does its peer think that both are connected?"""

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from faults.torch.compare import GlooShadow

LATE_S = 0.3


class LateStore(dist.Store):  # type: ignore[misc]
    """A store that answers late, and takes note of what it answered."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> Any:
        time.sleep(LATE_S)
        self._store.set(f"answered {key}", "")
        return self._store.get(key)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self._store.wait(keys, timeout)


def connects(rank: int, ranks: int, store: Any, late: str) -> list[bool]:
    """Connect; return whether the late rank had by then what it needs of the store to connect to each rank."""
    GlooShadow(LateStore(store) if rank == int(late) else store, rank, ranks, barrier=lambda: None)
    return [store.check([f"answered shadow//0/{peer}"]) for peer in range(ranks)]
