"""What executes plans. The reference engine says what an instruction means; every other is held to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cxlemu.backends import Backend
from cxlemu.engines.native import NativeEngine
from cxlemu.engines.reference import ReferenceEngine
from cxlemu.engines.streams import Running, Watch
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes, HostMemory

ENGINES = ("reference", "native")


class Engine(Protocol):
    def run(self, running: Running, buffers: list[Bytes], *, deadline_s: float, watch: Watch | None = None) -> None:
        """Run one rank's part to its end. Raises DeadlineError, MismatchError, and what the watch raises."""


def engine_for(name: str, backend: Backend, memory: HostMemory, cards: Sequence[Bytes], ranks: int) -> Engine:
    """The engine ``name`` for one of ``ranks`` ranks. Raises ArgumentError for a backend that it cannot run on."""
    check_engine(name, backend)
    return ReferenceEngine(memory) if name == "reference" else NativeEngine(cards, ranks, backend.elides)


def check_engine(name: str, backend: Backend) -> None:
    """Raises ArgumentError for an engine that does not exist, or that cannot run on such a backend."""
    if name not in ENGINES:
        raise ArgumentError(f"there is no engine {name!r}: it is one of {', '.join(ENGINES)}")
    if name == "native" and backend.name == "emulated":
        raise ArgumentError("the native engine runs on the backends shm and dax so far, not on emulated")
