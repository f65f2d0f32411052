"""Runs a rank's planned calls: in the order they were made, watched while they wait, and none after an error."""

from __future__ import annotations

import os
import threading
import time
import weakref
from binascii import crc_hqx
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np

from collectives.builder import SCRATCH
from collectives.builder.recipes import Recipe
from collectives.communicator.arrays import Array
from collectives.communicator.calls import revocation
from collectives.communicator.calls.agreed import AgreedCall, UnevenArguments
from collectives.communicator.calls.arguments import Staging
from collectives.communicator.calls.devices import DeviceCall, DeviceCalls
from collectives.communicator.calls.operations import InARow, Operation, Outcome, Planned, Staged, Stepped, Timed
from collectives.communicator.calls.packing import ManyArguments, packed
from collectives.communicator.calls.planner import CallArguments, CallPlanner
from collectives.communicator.calls.progress import CallQueue, Handle
from collectives.communicator.calls.watch import PeerMonitor
from collectives.contracts import COLLECTIVES
from cxlemu import _native
from cxlemu.dlpack import pin
from cxlemu.engines import Engine
from cxlemu.engines.call_hooks import CallHooks, Obstacles
from cxlemu.engines.deadlocks import deadlock_of
from cxlemu.engines.native import LOOK_NS, NativeEngine
from cxlemu.engines.streams import Binding, Running
from cxlemu.errors import DeadlineError, MismatchError, RevokedError, RunError
from cxlemu.numbers import seconds
from cxlemu.plan import Layout
from cxlemu.pool.board import Board
from cxlemu.pool.home import Home
from cxlemu.world import RankContext

EPOCHS_END = _native.CONSTANTS["EPOCHS_END"]  # no call begins at this epoch or later
COMM_NUMBERS = 1 << 32  # by which ranks tell in their status lines which communicator they call


class Poked(Protocol):
    """Work of a rank that goes on while its calls wait: its messages."""

    def poke(self) -> None:
        """Make what progress there is, without waiting."""

    def wake(self) -> None:
        """Look soon whether the communicator is given up, and carry nothing until then."""


ABORT_S = 0.5  # in which a call that waits looks at its peers several times


class CallRunner(CallHooks):
    """Runs the calls of one rank of a communicator: its engine, the order of its calls and the watch over its peers.

    C runs what it can by itself. What it cannot it asks of this object, which is its `CallHooks`.
    """

    def __init__(
        self,
        context: RankContext,
        *,
        members: tuple[int, ...],
        layout: Layout,
        base: int,
        name: int,
        board: Board,
        engine: Engine,
        queue: CallQueue,
        planner: CallPlanner,
        devices: DeviceCalls,
        deadline_s: float,
        gave_up: Callable[[], None],
    ) -> None:
        self.engine, self.queue, self.deadline_s = engine, queue, deadline_s
        self.revoked: RunError | None = None
        self.home = Home()
        _ALL.add(self)
        self._other: Poked | None = None
        self._context, self._layout, self._base, self._board = context, layout, base, board
        self._rank, self._planner, self._devices = members.index(context.rank), planner, devices
        self._gave_up, self._closed = gave_up, False
        self._told, self._telling = False, threading.Lock()
        self.sequencer = _native.Sequencer(
            ranks=len(members),
            epoch=1,  # doorbells start at 0: nothing is published yet
            tag=crc_hqx(repr(layout).encode(), 0),  # so that ranks with other layouts notice
            idle_ns=LOOK_NS,
            spins=engine.spins if isinstance(engine, NativeEngine) else 0,
            pending=queue.pending,
            hooks=self,
        )
        self.cache = _native.DispatchCache(self.sequencer, planner.heap.memory, planner.heap.changes)
        self._watch = PeerMonitor(context, board, name % COMM_NUMBERS, members, deadline_s)

    def prepare(self, asked: CallArguments) -> Operation:
        """Check and plan a collective. Raises as `check_usable`, `Staging.arrays` and `CallPlanner.collective` do."""
        self.check_usable()
        given = (asked.x, asked.out)
        if all(each is None or (type(each) is np.ndarray and each.flags.c_contiguous) for each in given):
            return self.operation(self._planner.collective(asked), asked.out)
        if (call := self._devices.prepare(asked)) is not None:
            return Stepped(call.planned, asked.out, self.run_in_turn, partial(self._step_on_device, call))
        staging = Staging()
        only_read = COLLECTIVES[asked.collective].one_buffer and asked.root == self._rank
        x, out = staging.arrays(*given, only_read=only_read)
        operation = self.operation(self._planner.collective(asked._replace(x=x, out=out)), asked.out)
        return Staged(operation, staging, asked.out, self.run_in_turn) if staging else operation

    def product(self, kind: str, a: Any, b: Any, out: Any, style: str, **cut: Any) -> Operation:
        """Check and plan a fused product. Raises as `check_usable` and `CallPlanner.product` do."""
        self.check_usable()
        if (running := self._devices.prepare_product(kind, a, b, out, style, **cut)) is not None:
            call, result = running
            return Stepped(call.planned, result, self.run_in_turn, partial(self._step_on_device, call))
        planned, result = self._planner.product(kind, a, b, out, style, **cut)
        return self.operation(planned, result)

    def operation(self, planned: Planned, result: Array | None) -> Operation:
        """Make an operation that returns ``result``: in C where the engine is, unless the call is a fused product."""
        if isinstance(self.engine, NativeEngine) and planned.call.gemm is None:
            program = self.engine.program(self._running(planned, self.sequencer.epoch, self.sequencer.tag))
            return _native.Operation(
                self.sequencer, program, planned.rounds, planned.digest, planned, result, *planned.buffers
            )
        return Stepped(planned, result, self.run_in_turn, self._step)

    def timed(self, operation: Operation, timeout_s: float | None) -> Operation:
        """Give an operation its own time to wait for peers. Raises ArgumentError where that is no time above 0."""
        if timeout_s is None:
            return operation
        return Timed(operation, seconds(timeout_s, "timeout_s", above_0=True), self)

    @contextmanager
    def within(self, timeout_s: float) -> Iterator[None]:
        """Let calls in a ``with`` block wait ``timeout_s`` seconds for peers. A rank's calls run one after another."""
        before = self.deadline_s
        self.wait_for(timeout_s)
        try:
            yield
        finally:
            self.wait_for(before)

    def wait_for(self, deadline_s: float) -> None:
        """Wait ``deadline_s`` for peers from now on. Raises ArgumentError where that is not above 0."""
        self.deadline_s = self._watch.deadline_s = seconds(deadline_s, "a deadline", above_0=True)

    def many(self, asked: ManyArguments) -> Operation:
        """Make an operation of a coalesced verb: a call for the arrays of each dtype. Raises as `prepare` does."""
        self.check_usable()
        operations: list[Operation] = []
        verb, (blocks, list_of) = f"{asked.collective}_many", packed(asked, self._rank, self._layout.ranks)
        for x, out, staging in blocks:
            inner = self.prepare(
                CallArguments(asked.collective, x, out, asked.op, asked.root, asked.variant, verb=verb, list_of=list_of)
            )
            operations.append(Staged(inner, staging, out, self.run_in_turn))
        result = asked.arrays if asked.outs is None else asked.outs
        return self.timed(InARow(tuple(operations), result, self.run_in_turn), asked.timeout_s)

    def abort(self, error: RunError) -> None:
        """Revoke the communicator, from any thread: a call that waits in another one raises ``error``, there and then.

        A call that only computes ends first; peers hear of it within `ABORT_S` all the same.
        """
        self.home.check()
        self._watch.aborted = error
        self.close()
        until = time.monotonic() + ABORT_S
        while self.revoked is None and time.monotonic() < until:
            time.sleep(ABORT_S / 50)
        if self.revoked is None:
            self.give_up(error)

    def uneven(self, asked: UnevenArguments) -> Operation:
        """Make an operation of an uneven verb, whose ranks agree on its blocks when it runs."""
        return self.timed(self.agreed(asked), asked.timeout_s)

    def agreed(self, asked: UnevenArguments) -> AgreedCall:
        """Make an operation of an uneven verb, whose ranks agree on its blocks when it runs or is prepared."""
        size = self._layout.ranks
        return AgreedCall(asked, self._rank, size, self.prepare, self.run_in_turn)

    def start(self, operation: Operation, *arrays: Any) -> Handle[Any]:
        """Run an operation on arrays when its turn comes, in the queue's thread. The Handle is of its result or
        error."""
        pin(*arrays)
        return self.queue.start(partial(self._run, operation))

    def check_usable(self) -> None:
        """Check that calls are still possible."""
        self.check_open()
        if self._context.tenancy is not None:
            self._context.tenancy.look()
        if self.revoked is not None:
            raise RevokedError(f"this communicator was revoked: {self.revoked}") from self.revoked
        if self.sequencer.epoch >= EPOCHS_END:
            raise RunError(
                f"this communicator has used up its {EPOCHS_END} rounds: shrink() makes another one of the same ranks"
            )

    def check_open(self) -> None:
        """Check that this rank has not closed the communicator. Raises RevokedError, and ForkedError in a child."""
        self.home.check()
        if self._closed:
            raise RevokedError("this communicator is closed")

    def count_from_here(self) -> None:
        """Take the next call for the program's first one, where errors number calls."""
        self._watch.internal_calls = self.sequencer.calls

    def poll_often(self, spins: int) -> None:
        """Poll a doorbell ``spins`` times before the core is given away, where the engine is in C."""
        if isinstance(self.engine, NativeEngine):
            self.sequencer.spins = spins

    def give_up(self, error: RunError) -> None:
        """Revoke the communicator for ``error``, and tell the peers, once. On this rank an earlier reason stands."""
        self.home.check()
        self.revoked = self.revoked or error
        self._gave_up()
        self.close()
        if self._other is not None:
            self._other.wake()
        with self._telling:  # a second notice could tear the first; behind `end` the board is another room's
            if not self._told:
                revocation.publish(self._board, self._context.session, self._rank, error)
                self._told = True

    def go_on_with(self, poked: Poked) -> None:
        """Let other work of this rank go on while a call waits, and tell it when the communicator is given up."""
        self._watch.meanwhile, self._other = poked.poke, poked

    def close(self) -> None:
        """Make every later call ask Python first, which refuses it; one under way finds out when it waits."""
        self.sequencer.revoked = 1

    def forked(self) -> None:
        """Make calls and messages ask Python first in a forked child, which refuses them."""
        self.close()
        if self._other is not None:
            self._other.wake()

    def end(self) -> None:
        """Allow no call any more, and let the queue's thread end: this rank leaves the communicator's room."""
        with self._telling:
            self._closed = self._told = True
        self.close()
        self.queue.close()
        self._devices.end()

    # --- hooks of C: CallHooks has their contracts ------------------------------------------------------------

    def slow_path(
        self,
        collective: str,
        x: Array | None,
        out: Array | None,
        op: str,
        root: int,
        variant: str | Recipe,
        async_op: bool,
    ) -> Outcome:
        """Plan a collective, remember it for calls like it, and run it."""
        if async_op and (known := self.cache.find(collective, x, out, op, root, variant)) is not None:
            self.check_usable()
            return self.start(known)
        operation = self.prepare(CallArguments(collective, x, out, op, root, variant))
        # A COMPUTE finds its arrays in what was planned, so it cannot run on others.
        if isinstance(operation, _native.Operation) and not operation.cookie.frame.kernels:
            self.cache.remember(self._without_arrays(operation), collective, x, out, op, root, variant)
        return self.start(operation, x, out) if async_op else operation()

    def _without_arrays(self, operation: _native.Operation) -> _native.Operation:
        """Make an operation for calls that bring the arrays: it holds none, so users get theirs back."""
        planned = operation.cookie._replace(buffers=())
        scratch = operation.cookie.buffers[SCRATCH]
        program = operation.program
        return _native.Operation(
            self.sequencer, program, planned.rounds, planned.digest, planned, None, None, None, scratch
        )

    def run_in_turn(self, operation: Operation) -> Array | None:
        """Run an operation after this rank's calls that are under way, and return its result. Raises what it raises."""
        self.check_usable()
        return self.queue.call(partial(self._run, operation))

    def resume(
        self, planned: Planned, epoch: int, tag: int, program: _native.Program, status: int, obstacles: Obstacles
    ) -> None:
        """Finish a call that C began and that did not end at once."""
        assert isinstance(self.engine, NativeEngine)
        with self._revoking(planned, epoch, tag) as running:
            self.engine.finish(
                running,
                program,
                status,
                obstacles,
                buffers=planned.buffers,
                deadline_s=self.deadline_s,
                watch=self._watch,
            )

    # --- running ----------------------------------------------------------------------------------------------

    def _run(self, operation: Operation) -> Array | None:
        self.check_usable()  # once more for an asynchronous call, when its turn has come
        return operation.run()

    def _step(self, planned: Planned) -> None:
        """Run a whole call on an engine that offers no more than `Engine`."""
        epoch, tag = self.sequencer.begin(planned.rounds, planned.digest)
        with self._revoking(planned, epoch, tag) as running:
            buffers = list(planned.buffers)
            self.engine.run(running, buffers, deadline_s=self.deadline_s, watch=self._watch)

    def _step_on_device(self, call: DeviceCall, planned: Planned) -> None:
        """Run a whole call whose arrays live on a device."""
        epoch, tag = self.sequencer.begin(planned.rounds, planned.digest)
        with self._revoking(planned, epoch, tag) as running:
            call.run(running, self.deadline_s, self._watch)

    @contextmanager
    def _revoking(self, planned: Planned, epoch: int, tag: int) -> Iterator[Running]:
        """Revoke the communicator after any error in the block: what was sent cannot be called back."""
        running = self._running(planned, epoch, tag)
        self._watch.begin(self.sequencer.calls, planned.plan)
        try:
            yield running
        except BaseException as error:  # also Ctrl-C
            if isinstance(error, MismatchError) and error.reported_by is None:
                failure = error
                try:
                    failure = self._watch.with_both_calls(running, error)
                finally:
                    self.give_up(failure)
                raise failure from None
            name = f"{type(error).__name__} in [{running.name}]"
            self.give_up(error if isinstance(error, RunError) else RunError(name))
            if isinstance(error, DeadlineError) and (certain := deadlock_of(planned.plan)) is not None:
                certain.reported_by = error.reported_by
                raise certain from error
            raise

    def _running(self, planned: Planned, epoch: int, tag: int) -> Running:
        # The plan's layout is the communicator's, but for the heap where arrays lie in the ranks' processes.
        binding = Binding(planned.plan.layout, self._base, epoch, tag, self._planner.peers, planned.places)
        return Running(planned.call, planned.frame, planned.part, binding, planned.verb)


_ALL: weakref.WeakSet[CallRunner] = weakref.WeakSet()


def _forked() -> None:
    for runner in list(_ALL):
        runner.forked()


os.register_at_fork(after_in_child=_forked)
