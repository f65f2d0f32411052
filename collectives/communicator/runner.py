"""How planned calls of a rank run: in the order they were made, watched while they wait, and none after an error."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from collectives.communicator import revocation
from collectives.communicator.arrays import Array
from collectives.communicator.operations import Operation, Planned, Stepped
from collectives.communicator.progress import CallQueue, Handle
from collectives.communicator.watch import PeerMonitor
from cxlemu import _native
from cxlemu.engines import Engine
from cxlemu.engines.deadlocks import deadlock_of
from cxlemu.engines.native import LOOK_NS, NativeEngine, Obstacles
from cxlemu.engines.streams import Binding, Running
from cxlemu.errors import DeadlineError, RevokedError, RunError
from cxlemu.plan import Layout
from cxlemu.pool.arena import ARENA_ALIGN_BYTES
from cxlemu.pool.board import Board
from cxlemu.world import RankContext


class CallRunner:
    """Runs the calls of one rank of a communicator.

    Engine, ring of slots, order of calls and the watch over peers are its parts. C runs what it can by itself and asks
    three things of Python: ``turn``, an operation whose turn has not come or that may not run; ``resume``, a call that
    did not end at once; and, before every call, the queue's flag ``pending``, whether asynchronous calls may be ahead.
    """

    def __init__(
        self,
        context: RankContext,
        *,
        members: tuple[int, ...],
        layout: Layout,
        base: int,
        board: Board,
        engine: Engine,
        queue: CallQueue,
        deadline_s: float,
    ) -> None:
        self.engine, self.queue, self.deadline_s = engine, queue, deadline_s
        self.revoked: RunError | None = None
        self._context, self._layout, self._base, self._board = context, layout, base, board
        self._rank = members.index(context.rank)
        self.ring = _native.Sequencer(
            ranks=len(members),
            epoch=1,  # doorbells start at 0: nothing is published yet
            tag=crc_hqx(repr(layout).encode(), 0),  # so that ranks with other rings notice, too
            idle_ns=LOOK_NS,
            spins=engine.spins if isinstance(engine, NativeEngine) else 0,
            pending=queue.pending,
            resume=self._resume,
            turn=self._turn,
        )
        # Rings never overlap, so where one begins is a name that all members agree on.
        self._watch = PeerMonitor(context, board, base // ARENA_ALIGN_BYTES, members, deadline_s)

    def operation(self, planned: Planned, result: Array | None) -> Operation:
        """The planned call as an operation: in C where the engine is, and where there are no kernels of Python's."""
        if isinstance(self.engine, NativeEngine) and planned.call.gemm is None:
            program = self.engine.program(self._running(planned, self.ring.epoch, self.ring.tag))
            return _native.Operation(
                self.ring, program, planned.rounds, planned.digest, planned, result, *planned.buffers
            )
        return Stepped(planned, result, self._turn, self._step)

    def start(self, operation: Operation) -> Handle[Array | None]:
        """Run an operation when its turn comes, in a thread of its own."""
        return self.queue.start(partial(self._run, operation))

    def check_usable(self) -> None:
        """Raises RevokedError when nothing can be called any more, AccessError when the tenant's grant is gone."""
        if self._context.tenancy is not None:
            self._context.tenancy.look()
        if self.revoked is not None:
            raise RevokedError(f"this communicator is revoked since: {self.revoked}") from self.revoked

    def give_up(self, error: RunError) -> None:
        """Revoke the communicator, and tell the peers why."""
        self.revoked = self.revoked or error
        self.close_ring()
        revocation.publish(self._board, self._context.session, self._rank, error)

    def close_ring(self) -> None:
        """From now on every call asks Python first, which refuses it; one under way finds out when it waits."""
        self.ring.revoked = 1

    # --- what C asks ------------------------------------------------------------------------------------------

    def _turn(self, operation: Operation) -> Array | None:
        """Run an operation after this rank's calls that are under way."""
        self.check_usable()
        return self.queue.call(partial(self._run, operation))

    def _resume(
        self, planned: Planned, epoch: int, tag: int, program: _native.Program, status: int, found: Obstacles
    ) -> None:
        """The rest of a call that C began, and that did not end at once."""
        assert isinstance(self.engine, NativeEngine)
        with self._revoking(planned, epoch, tag) as running:
            self.engine.finish(
                running,
                program,
                status,
                found,
                buffers=planned.buffers,
                deadline_s=self.deadline_s,
                watch=self._watch,
            )

    # --- running ----------------------------------------------------------------------------------------------

    def _run(self, operation: Operation) -> Array | None:
        self.check_usable()  # once more for an asynchronous call, when its turn has come
        return operation.run()

    def _step(self, planned: Planned) -> None:
        """A whole call by an engine that is no more than `Engine`."""
        epoch, tag = self.ring.begin(planned.rounds, planned.digest)
        with self._revoking(planned, epoch, tag) as running:
            buffers = list(planned.buffers)
            self.engine.run(running, buffers, deadline_s=self.deadline_s, watch=self._watch)

    @contextmanager
    def _revoking(self, planned: Planned, epoch: int, tag: int) -> Iterator[Running]:
        """After an error nothing more can be called: what was sent cannot be called back."""
        running = self._running(planned, epoch, tag)
        self._watch.begin(self.ring.calls)
        try:
            yield running
        except BaseException as error:  # also Ctrl-C
            name = f"{type(error).__name__} in [{planned.call}]"
            self.give_up(error if isinstance(error, RunError) else RunError(name))
            if isinstance(error, DeadlineError) and (certain := deadlock_of(planned.plan)) is not None:
                certain.reported_by = error.reported_by
                raise certain from error
            raise

    def _running(self, planned: Planned, epoch: int, tag: int) -> Running:
        return Running(planned.call, planned.frame, planned.part, Binding(self._layout, self._base, epoch, tag))
