"""What executes plans. The reference engine says what an instruction means; every other is held to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cxlemu.choices import ENGINES
from cxlemu.engines.native import NativeEngine
from cxlemu.engines.pace import Pacer
from cxlemu.engines.reference import ReferenceEngine
from cxlemu.engines.streams import NO_BREAKPOINTS, Breakpoints, Running, Watch
from cxlemu.errors import ArgumentError
from cxlemu.memory.backend import Backend
from cxlemu.memory.protocol import Bytes, HostMemory


class Engine(Protocol):
    def run(
        self,
        running: Running,
        buffers: list[Bytes],
        *,
        deadline_s: float,
        watch: Watch | None = None,
        stops: Breakpoints = NO_BREAKPOINTS,
    ) -> None:
        """Run one rank's part to its end. Raises DeadlineError, MismatchError, what the watch and the stops raise, and
        the FaultError of hardware that fails.
        """


def engine_for(
    name: str, backend: Backend, memory: HostMemory, cards: Sequence[Bytes], pacer: Pacer | None = None
) -> Engine:
    """The engine ``name`` for one rank. Raises ArgumentError for a machine that it cannot run on, or a pace that it has
    not.
    """
    check_engine(name)
    if name == "reference":
        if pacer is not None:
            raise ArgumentError("the reference engine has no pace: take the native one")
        return ReferenceEngine(memory)
    return NativeEngine(cards, backend.elides, backend.native_memory(memory), pacer=pacer)


def check_engine(name: str) -> None:
    """Raises ArgumentError for an engine that does not exist."""
    if name not in ENGINES:
        raise ArgumentError(f"there is no engine {name!r}: it is one of {', '.join(ENGINES)}")
