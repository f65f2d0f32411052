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
        """Run one rank's part of a call to its end.

        Args:
            running: the call, the rank's part in it, and where its communicator lies.
            buffers: the rank's buffers in the part's order, each a 1-D uint8 array of at least the part's bytes.
            deadline_s: how long no stream may progress, in seconds.
            watch: called now and then while the rank waits.
            stops: called when a stream comes to these records.

        Raises:
            DeadlineError: no stream progressed for ``deadline_s``.
            MismatchError: a peer called something else.
            FaultError: the pool's hardware fails.
            Whatever ``watch`` and ``stops`` raise.
        """


def engine_for(
    name: str, backend: Backend, memory: HostMemory, cards: Sequence[Bytes], pacer: Pacer | None = None
) -> Engine:
    """The engine of one rank.

    Args:
        name: one of `ENGINES`.
        backend: what the cards are made of.
        memory: this rank's view of them, through its host's cache where that is emulated.
        cards: each card's bytes, 1-D uint8.
        pacer: what makes instructions take their modelled time, or None for this machine's.

    Raises:
        ArgumentError: there is no such engine, or it does not run on this machine or with a pace.
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
