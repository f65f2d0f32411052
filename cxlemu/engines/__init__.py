"""What executes plans. The reference engine says what an instruction means; every other is held to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cxlemu.engines.native import NativeEngine
from cxlemu.engines.reference import ReferenceEngine
from cxlemu.engines.streams import Running, Watch
from cxlemu.errors import ArgumentError
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import Bytes, HostMemory

ENGINES = ("reference", "native")


class Engine(Protocol):
    def run(self, running: Running, buffers: list[Bytes], *, deadline_s: float, watch: Watch | None = None) -> None:
        """Run one rank's part to its end. Raises DeadlineError, MismatchError, and what the watch raises."""


def engine_for(name: str, memory: HostMemory, cards: Sequence[Bytes], ranks: int) -> Engine:
    """The engine ``name`` for one of ``ranks`` ranks. Raises ArgumentError for a memory that it cannot run on."""
    if name == "reference":
        return ReferenceEngine(memory)
    check_engine(name, coherent=type(memory) is DirectMemory)
    return NativeEngine(cards, ranks)


def check_engine(name: str, *, coherent: bool) -> None:
    """Raises ArgumentError for an engine that does not exist, or that cannot run on such a memory."""
    if name not in ENGINES:
        raise ArgumentError(f"there is no engine {name!r}: it is one of {', '.join(ENGINES)}")
    if name == "native" and not coherent:
        raise ArgumentError("the native engine runs on the coherent backend shm so far, not on emulated or dax")
