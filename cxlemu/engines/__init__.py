"""The engines, which execute plans. The reference engine says what an instruction means; every other is held to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from cxlemu import _native
from cxlemu.choices import ENGINES
from cxlemu.engines.native import NativeEngine
from cxlemu.engines.reference import ReferenceEngine
from cxlemu.engines.streams import NO_BREAKPOINTS, Breakpoints, Running, Watch
from cxlemu.errors import ArgumentError
from cxlemu.machine import thresholds
from cxlemu.memory.backend import Backend
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.suggest import unknown

if TYPE_CHECKING:
    from cxlemu.engines.pace import Pacer

__all__ = ["Engine", "check_engine", "engine_for"]


class Engine(Protocol):
    """Executes the plans of one rank, in real time."""

    def run(
        self,
        running: Running,
        buffers: list[Bytes],
        *,
        deadline_s: float,
        watch: Watch | None = None,
        stops: Breakpoints = NO_BREAKPOINTS,
    ) -> None:
        """Run one rank's part of a call to its end.

        Args:
            running: The call, the rank's part in it, and where its communicator lies.
            buffers: The rank's buffers in the part's order, each a 1-D uint8 array of at least the part's bytes.
            deadline_s: How long no stream may progress, in seconds.
            watch: Called now and then while the rank waits.
            stops: Called when a stream comes to these records.

        Raises:
            DeadlineError: No stream progressed for ``deadline_s``.
            MismatchError: A peer called something else.
            FaultError: The pool's hardware fails.
            Exception: Whatever ``watch`` and ``stops`` raise.
        """


def engine_for(
    name: str, backend: Backend, memory: HostMemory, cards: Sequence[Bytes], pacer: Pacer | None = None
) -> Engine:
    check_engine(name)
    if name == "reference":
        if pacer is not None:
            raise ArgumentError("the reference engine has no pace: take the native one")
        return ReferenceEngine(memory)
    _native.past_caches_from(thresholds().past_caches_bytes)
    return NativeEngine(cards, backend.elides, backend.native_memory(memory), pacer=pacer)


def check_engine(name: str) -> None:
    if name not in ENGINES:
        raise ArgumentError(unknown("engine", name, ENGINES))
