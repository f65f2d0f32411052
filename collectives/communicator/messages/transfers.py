"""Calls on mailboxes that are under way: begun one by one, advanced together, on whichever engine the rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from collectives.communicator.messages.requests import ANY, Status
from cxlemu import _native
from cxlemu.clock import Clock
from cxlemu.engines import Engine
from cxlemu.engines.native import DONE, LOOK_NS, NativeEngine
from cxlemu.engines.reference import ReferenceEngine, Runner
from cxlemu.engines.streams import Running
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.plan import Op
from cxlemu.world import RankContext

WAKE, CLOSED, ADVANCING, AT_WORK, GATE_BYTES = range(5)  # as in native/courier.c
_WAITS = frozenset({Op.WAIT, Op.WAIT_ALL, Op.WAIT_DATA})


@dataclass(slots=True, eq=False)
class Transfer:
    """One rank's part of calls of one size on one mailbox; begun again and again."""

    template: Running  # the call, the part, and where it runs; its epoch is not that of a call under way
    rounds: int  # how many epochs a call takes
    epoch: int = 0  # the first epoch of the call under way
    buffers: tuple[Any, ...] = ()  # the memory of the call under way: input, output and scratch
    program: Any = None  # what steps the part: a program in C, or a Runner
    _seen: int = 0

    def has_moved(self) -> bool:
        """Whether the call under way came further since this was asked last."""
        before, self._seen = self._seen, self.program.executed if self.program is not None else 0
        return self._seen != before

    @property
    def has_begun(self) -> bool:
        """Whether the call under way has done more than wait."""
        return self.program is not None and self.program.executed > 0

    def go_on_with(self, buffers: tuple[Any, ...]) -> None:
        """Let the call under way continue on copies of its memory."""
        self.buffers = buffers
        if isinstance(self.program, Runner):
            self.program.buffers[:] = self.arrays
        elif self.program is not None:
            self.program.go_on_with(*buffers)

    @property
    def running(self) -> Running:
        """The call under way."""
        return replace(self.template, binding=replace(self.template.binding, epoch=self.epoch))

    @property
    def arrays(self) -> list[Bytes]:
        return [each if isinstance(each, np.ndarray) else np.frombuffer(each, np.uint8) for each in self.buffers]

    def runner(self, memory: HostMemory) -> Runner:
        """Return what steps the call under way in Python, over this memory."""
        r = self.running
        return Runner(r.call, r.frame, r.part, r.binding, memory=memory, buffers=[*self.arrays])


class TransferLane(Protocol):
    """Runs calls on mailboxes, many at once, in one thread at a time."""

    gate: bytearray  # WAKE not 0: `advance` comes back soon; the rest is the messenger's, for couriers
    handed: list[list[Any]]  # what a courier handed over, until the messenger has taken it up
    whole: bool  # a call that has begun goes on to its end, while no other does

    def begin(self, transfer: Transfer) -> None:
        """Begin a call: nothing is done yet."""

    def advance(self, transfers: Sequence[Transfer], idle_s: float) -> Transfer | None:
        """Go on with all of them, until one ends, which is returned, or nothing progresses for ``idle_s``."""

    def courier(self, transfer: Transfer, epoch: int, peer: int, *, receives: bool) -> _native.Courier | None:
        """Make what carries a line's small messages without Python, from ``epoch`` on, if engine and memory can."""

    def settle(self) -> None:
        """Fence what was written: nothing of it arrives later."""


@dataclass
class NativeLane:
    """Runs calls in C: all of them in turn, without the GIL."""

    engine: NativeEngine  # the rank's native engine for messages
    collectives: NativeEngine  # the engine of the communicator, which knows whether every rank has a core
    gate: bytearray = field(default_factory=lambda: bytearray(GATE_BYTES))
    handed: list[list[Any]] = field(default_factory=list)
    whole: bool = False

    def begin(self, transfer: Transfer) -> None:
        """Begin a call, as `TransferLane.begin`. The program that was made for the transfer is used again."""
        if transfer.program is None:
            transfer.program = self.engine.program(transfer.template)
        transfer.program.start(transfer.epoch, transfer.template.binding.tag, *transfer.buffers)

    def advance(self, transfers: Sequence[Transfer], idle_s: float) -> Transfer | None:
        """Go on, as `TransferLane.advance`. A kernel runs in between, and counts as progress."""
        programs = [transfer.program for transfer in transfers]
        idle_ns, spins = int(idle_s * 1e9), self.collectives.spins if idle_s else 0  # who does not wait looks once
        while True:
            which, status, obstacles = _native.advance_any(programs, idle_ns, spins, self.gate)
            if which < 0:
                return None
            ended = transfers[which]
            if status == DONE:
                return ended
            self.engine.settle(ended.running, ended.program, status, obstacles, ended.arrays)

    def courier(self, transfer: Transfer, epoch: int, peer: int, *, receives: bool) -> _native.Courier | None:
        """Make a courier, as `TransferLane.courier`: on mapped cards, at this machine's own pace."""
        if self.engine.through is not None or self.engine.pacer is not None or transfer.program is None:
            return None
        tag, rounds = transfer.template.binding.tag, transfer.rounds
        spins, status = self.collectives.spins, Status if receives else None
        program = transfer.program
        return _native.Courier(program, epoch, tag, rounds, peer, self.gate, self.handed, LOOK_NS, spins, status, ANY)

    def settle(self) -> None:
        """Fence what was written, as `TransferLane.settle`."""
        if self.engine.through is None:
            _native.fence()
        else:
            self.engine.through.fence()


@dataclass
class SteppedLane:
    """Runs calls instruction by instruction, as the reference engine does."""

    memory: HostMemory  # the rank's memory for messages
    clock: Clock  # spends the time of waits
    gate: bytearray = field(default_factory=lambda: bytearray(GATE_BYTES))
    handed: list[list[Any]] = field(default_factory=list)
    whole: bool = False

    def begin(self, transfer: Transfer) -> None:
        transfer.program = transfer.runner(self.memory)

    def advance(self, transfers: Sequence[Transfer], idle_s: float) -> Transfer | None:
        since, looks = self.clock.now(), 0
        while True:
            moved = False
            for transfer in transfers:
                blocked, stepped = transfer.program.advance()
                if not blocked:
                    transfer.program = None  # which holds the call's memory
                    return transfer
                moved |= stepped
            since, looks = (self.clock.now(), 0) if moved else (since, looks + 1)
            if not _goes_on(self, since, looks, idle_s):
                return None

    def courier(self, transfer: Transfer, epoch: int, peer: int, *, receives: bool) -> None:
        """Return None: every instruction is stepped."""

    def settle(self) -> None:
        """Fence what was written, as `TransferLane.settle`."""
        self.memory.fence()


@dataclass
class WholeLane:
    """Runs each call as a whole, on an engine that offers no more: as soon as its first wait would end at once."""

    engine: Engine
    memory: HostMemory  # the memory that the engine works on
    clock: Clock  # spends the time of waits
    deadline_s: float  # how long a call may wait within, in seconds
    gate: bytearray = field(default_factory=lambda: bytearray(GATE_BYTES))
    handed: list[list[Any]] = field(default_factory=list)
    whole: bool = True

    def begin(self, transfer: Transfer) -> None:
        """Begin a call, as `TransferLane.begin`."""

    def advance(self, transfers: Sequence[Transfer], idle_s: float) -> Transfer | None:
        """Go on, as `TransferLane.advance`, with one whole call."""
        since, looks = self.clock.now(), 0
        while True:
            for transfer in transfers:
                if self._may_begin(transfer):
                    self.engine.run(transfer.running, transfer.arrays, deadline_s=self.deadline_s)
                    return transfer
            looks += 1
            if not _goes_on(self, since, looks, idle_s):
                return None

    def courier(self, transfer: Transfer, epoch: int, peer: int, *, receives: bool) -> None:
        """Return None: every call is the engine's."""

    def settle(self) -> None:
        """Fence what was written, as `TransferLane.settle`."""
        self.memory.fence()

    def _may_begin(self, transfer: Transfer) -> bool:
        """Whether no stream's first instruction, if it is a wait, would have to wait."""
        looking = transfer.runner(self.memory)
        firsts = (stream.instructions[0] for stream in transfer.template.part.streams if len(stream.records))
        return all(looking.execute(first) is None for first in firsts if first.op in _WAITS)


def _goes_on(lane: SteppedLane | WholeLane, since: float, looks: int, idle_s: float) -> bool:
    """Wait for a moment after nothing progressed since then; False when that has gone on for ``idle_s``."""
    if lane.gate[WAKE] or lane.clock.now() - since >= idle_s:
        return False
    lane.clock.sleep(0 if looks < 20 else min(1e-3, 2e-5 * (looks - 19)))
    return True


def lane_for(context: RankContext, engine: Engine, deadline_s: float) -> TransferLane:
    """Make what runs the messages of a communicator, with a memory of its own where the engine is one of ours."""
    clock = context.session.clock
    if isinstance(engine, NativeEngine):
        memory = context.backend.native_memory(context.open_memory())
        return NativeLane(engine.on(memory), engine)
    if isinstance(engine, ReferenceEngine):
        return SteppedLane(context.open_memory(), clock)
    return WholeLane(engine, context.memory, clock, deadline_s)
