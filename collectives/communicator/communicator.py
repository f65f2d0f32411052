"""What a user calls: collectives on NumPy arrays, over a ring of slots in the pool.

    with Communicator.world(context) as comm:
        comm.all_reduce(x)                          # in place
        y = comm.all_gather(x)                      # a new array of shape (ranks, *x.shape)
        handle = comm.all_reduce(x, async_op=True)
        handle.wait()
        half = comm.split(color=comm.rank % 2)      # collective; comm.group([0, 2]) is for these ranks alone
        op = comm.persistent.all_reduce(x)          # planned once; op() runs it
        z = comm.heap.empty(1 << 20)                # an array in the pool, which collectives need not copy to publish

Names and meanings are those of torch.distributed and mpi4py: arrays are C-contiguous, blocks are in rank order, every
rank calls the same collectives in the same order. Reductions fold in rank order, so results are the same bits on every
rank and in every run; ``avg`` is the sum divided by the number of ranks (integers truncate toward zero).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from collectives.communicator.calls.lane import CallLane
from collectives.communicator.calls.operations import Operation, Outcome
from collectives.communicator.calls.progress import Handle
from collectives.communicator.calls.transport import PROCESS, check_transport, reach
from collectives.communicator.member import Member
from collectives.communicator.membership import groups
from collectives.communicator.membership.opening import Look, agree, await_ready, in_peace
from collectives.communicator.membership.sizing import GroupSizing, Sizing, WorldSizing
from collectives.communicator.messages.requests import UNDEFINED, Special
from collectives.defaults import REGION_BYTES
from cxlemu.engines import Engine
from cxlemu.engines.cores import cores_here, have_a_core_each
from cxlemu.engines.native import SPINS, NativeEngine
from cxlemu.engines.peer_memory import PeerMemory
from cxlemu.engines.reference import ReferenceEngine
from cxlemu.errors import ArgumentError, MismatchError, RunError
from cxlemu.numbers import seconds, whole
from cxlemu.plan import Layout
from cxlemu.plan.checksums import check_integrity
from cxlemu.pool.ledger import HoldState
from cxlemu.signals import interrupts
from cxlemu.world import RankContext


class Communicator(Member):
    """A group of ranks with a ring of slots of their own in the pool. Make one with `world`, `of`, `group` or `split`.

    Every collective takes ``variant``: "auto" (see `choice`), one of `collectives.algorithms.catalog.variants`, or a
    Recipe of a user's algorithm. ``async_op=True`` returns a Handle at once; a rank's calls run in the order they were
    made. All raise ArgumentError for arrays that do not fit (nothing is sent); MismatchError
    when ranks call different things, at the latest in the next call in which one waits for the other; PeerLostError or
    DeadlineError when a peer does not arrive; a FaultError when the pool's hardware fails.

    After any of these but the first the communicator is revoked: every later call raises RevokedError at once. The
    other ranks are notified, and raise the same error as soon as they wait in a call, even a later one: its
    ``reported_by`` is the rank that found the error, and its ``ranks``, ``card`` and so on hold what that rank saw.
    `shrink` then makes a communicator of the survivors.

    Attributes:
        rank: This rank's number in the communicator, from 0.
        size: The number of ranks.
        members: The world ranks of all ranks, in this communicator's order.
        layout: Where the communicator's ring of slots and its heap lie in the pool.
        heap: The `SymmetricHeap`, which makes arrays in the pool.
        persistent: The same verbs, each of which returns an `Operation` to run many times.
    """

    @classmethod
    def world(
        cls,
        context: RankContext,
        *,
        region_bytes: int = REGION_BYTES,
        heap_bytes: int | None = None,
        deadline_s: float | None = None,
        engine: str | Engine = "native",
        integrity: str | None = None,
        paced: bool = True,
        layout: Layout | None = None,
        transport: str = "pool",
    ) -> Self:
        """Make a communicator of all ranks. Collective: every rank makes the same communicators in the same order.

        Its ring and heap take at most three eighths of the pool; the rest is for other communicators.

        Args:
            context: This rank's context, from `cxlemu.launch`.
            region_bytes: The size of the ring in bytes; larger messages take several rounds.
            heap_bytes: Each rank's part of `heap` in bytes (default: what the world was launched with, or less where
                other communicators have taken that room).
            deadline_s: How long a rank waits for its peers, in seconds (default: the context's).
            engine: One of `cxlemu.engines.ENGINES`, of which "native" runs in C, or a custom engine.
            integrity: "crc32c" detects writes that links drop silently: a checksum travels with every doorbell, and a
                reader whose bytes do not fit it raises IntegrityError. A write that is lost together with its doorbell
                shows as a deadline. None: no checksums.
            paced: False for calls that take no modelled time in a world that has a pace.
            layout: The ring and heap to use, such as a saved plan's; ``region_bytes`` and ``heap_bytes`` are then
                ignored.
            transport: "process": peers read large arrays in this rank's process, with one copy; all ranks are then on
                one host, in coherent shared memory. "pool": ranks exchange as hosts must.

        Returns:
            The communicator, whose doorbells all ranks have cleared.

        Raises:
            ArgumentError: The engine, integrity or transport is unknown, the pool has no room, or ``layout`` does not
                fit.
            AccessError: The communicator's room lies outside this tenant's grant.
            PeerLostError: A rank left, failed or did not arrive.
            MismatchError: Two processes run as one rank.
        """
        check_integrity(integrity)
        sizing = WorldSizing(context, *_sizes(context, region_bytes, heap_bytes), layout)
        lane, members = CallLane.of(context, engine, paced=paced), tuple(range(context.ranks))
        _check_transport(transport, context, members, lane.engine, integrity)
        comm = cls._opened(context, members, "world", sizing, lane, deadline_s, integrity)
        return comm._reach_peers(transport)._poll_often()

    @classmethod
    def of(
        cls,
        context: RankContext,
        members: Sequence[int],
        *,
        key: str = "",
        region_bytes: int = REGION_BYTES,
        heap_bytes: int | None = None,
        deadline_s: float | None = None,
        engine: str | Engine = "native",
        integrity: str | None = None,
        paced: bool = True,
        transport: str = "pool",
    ) -> Self:
        """Make a communicator of some ranks. Collective over these ranks alone: no other rank calls it.

        Ranks make communicators of the same members and key in the same order; all others in any order, and from
        several threads. A communicator gets no more than an eighth of the room that is free, unless that is too little
        for the smallest.

        Args:
            context: This rank's context, from `cxlemu.launch`.
            members: The world ranks of the members, in the order of the new communicator; this rank is one of them.
            key: Tells communicators of the same members apart, where they are made in no agreed order.
            region_bytes: The size of the ring in bytes; larger messages take several rounds.
            heap_bytes: Each rank's part of `heap` in bytes (default: a third of the ring).
            deadline_s: As for `world`.
            engine: As for `world`.
            integrity: As for `world`.
            paced: As for `world`.
            transport: As for `world`.

        Returns:
            The communicator, whose doorbells all members have cleared.

        Raises:
            ArgumentError: Invalid members, engine, integrity or transport, or no room.
            AccessError: The room lies outside this tenant's grant.
            PeerLostError: A member left, died or did not arrive.
            MismatchError: Members asked for rings of other sizes, or list the members in different orders.
        """
        check_integrity(integrity)
        sizes = _sizes(context, region_bytes, heap_bytes)
        ranks = groups.members_of(members, context.ranks, context.rank)
        cards, interleave = context.outline.pool_card_count, context.pool.interleave_bytes
        sizing = GroupSizing(len(ranks), cards, interleave, *sizes)
        lane = CallLane.of(context, engine, paced=paced)
        _check_transport(transport, context, ranks, lane.engine, integrity)
        comm = cls._opened(context, ranks, f"group {key}", sizing, lane, deadline_s, integrity)
        return comm._reach_peers(transport)._poll_often()

    def group(self, ranks: Sequence[int], *, key: str = "") -> Self:
        """Make a communicator of some ranks of this one. Collective over these ranks alone: see `of`.

        Args:
            ranks: The ranks of this communicator that become members, in the order of the new one.
            key: Tells communicators of the same members apart, where they are made in no agreed order.

        Returns:
            The communicator. Its ring is as large as this one's where there is room, and its calls wait for none of
            this one's.

        Raises:
            ArgumentError: The ranks are not in this communicator, or the pool has no room.
            PeerLostError: A member left, died or did not arrive.
            MismatchError: Members list the ranks in different orders; this communicator goes on.
        """
        self._runner.check_usable()
        members = groups.members_of(ranks, self.size, self.rank)
        return self._group(tuple(self.members[rank] for rank in members), f"group {key}")

    def _group(self, members: tuple[int, ...], key: str) -> Self:
        sizing, lane, deadline_s = self._sizing(len(members)), self._lane.beside(), self._runner.deadline_s
        peers = self._peers_among([self.members.index(member) for member in members])
        integrity, look = self._planner.integrity, self._look_for_notices
        try:
            return self._opened(self._context, members, key, sizing, lane, deadline_s, integrity, peers, look)
        except BaseException as error:
            if isinstance(error, RunError) and error.reported_by is not None:
                self._runner.give_up(error)
            elif interrupts(error):  # the other members wait for this rank
                self._runner.give_up(RunError(f"{type(error).__name__} while it made a communicator"))
            raise

    def split(self, color: int | Special | None, key: int | None = None) -> Self | None:
        """Make a communicator for the ranks of each color, as MPI_Comm_split does. Collective over this communicator.

        Args:
            color: Which of the new communicators this rank joins, a 64-bit integer; None or UNDEFINED: none of them.
            key: The ranks of a color are ordered by key, a 64-bit integer (default: this rank's number).

        Returns:
            The communicator of this rank's color, or None without a color.

        Raises:
            ArgumentError: The pool has no room left, or color or key are not 64-bit integers.
            RunError: As for collectives, see `Communicator`.
        """
        color = None if color is UNDEFINED else color
        mine = groups.word(color, self.rank if key is None else key)
        sets = groups.groups_of(self._gathered("split", mine).tolist())
        if color is None:
            return None
        return self._group(tuple(self.members[rank] for rank in sets[int(mine[1])]), f"split {self._stay.room.name}")

    def dup(self) -> Self:
        """Make a communicator of the same ranks, as MPI_Comm_dup does, with room of its own. Collective.

        Raises:
            ArgumentError: The pool has no room left.
            RunError: As for collectives, see `Communicator`.
        """
        twin = self.split(0)
        assert twin is not None
        return twin

    # --- opening ----------------------------------------------------------------------------------------------

    def _reach_peers(self, transport: str) -> Self:
        """With the transport "process", find the peers' processes. Collective."""
        if transport == PROCESS:
            try:
                self._planner.peers = reach(self.rank, self.all_gather)
            except BaseException:
                self._leave()
                raise
        return self

    def _poll_often(self) -> Self:
        """Poll without giving the core away, where all ranks on this machine have a core each. Collective."""
        if have_a_core_each(self.all_gather(cores_here()), self.rank):
            self._lane.poll_often(SPINS)
            self._runner.poll_often(SPINS)
        self._runner.count_from_here()
        return self

    @classmethod
    def _opened(
        cls,
        context: RankContext,
        members: tuple[int, ...],
        key: str,
        sizing: Sizing,
        lane: CallLane,
        deadline_s: float | None,
        integrity: str | None,
        peers: PeerMemory | None = None,
        look: Look = in_peace,
    ) -> Self:
        """Make a communicator with the other members, in room that their first one claims.

        ``look`` raises while this rank waits for them, where one of them has given up.
        """
        deadline_s = context.deadline_s if deadline_s is None else seconds(deadline_s, "deadline_s", above_0=True)
        name = context.rooms.name(members, key)
        try:
            terms = agree(
                context, members, name, sizing, lane, deadline_s=deadline_s, integrity=integrity, peers=peers, look=look
            )
            comm = cls(terms)
            try:
                # None rings before all doorbells are cleared.
                await_ready(context, comm._board, members, deadline_s, look)
            except BaseException as error:  # the others may have begun, with a rank that does not take part
                comm._runner.give_up(error if isinstance(error, RunError) else RunError("it was not opened"))
                comm._leave()
                raise
        except BaseException as error:
            if isinstance(error, MismatchError) and error.reported_by is None:
                context.rooms.refuse(name, HoldState.MISMATCHED)
            elif look is in_peace and interrupts(error):  # else the others learn of it from the communicator before
                context.rooms.refuse(name, HoldState.ABANDONED)
            raise
        return comm


def _sizes(context: RankContext, region_bytes: int, heap_bytes: int | None) -> tuple[int, int | None]:
    if not isinstance(context, RankContext):
        raise ArgumentError(f"context is a RankContext, as `cxlemu.launch` passes it, not {context!r}")
    its = None if heap_bytes is None else whole(heap_bytes, "heap_bytes")
    return whole(region_bytes, "region_bytes"), its


def _check_transport(
    transport: str, context: RankContext, members: Sequence[int], engine: Engine, integrity: str | None
) -> None:
    check_transport(
        transport,
        context.backend,
        [context.hosts[member] for member in members],
        integrity=integrity,
        tenant=context.tenancy is not None,
        paced=isinstance(engine, NativeEngine) and engine.pacer is not None,
    )
    if transport == PROCESS and not isinstance(engine, NativeEngine | ReferenceEngine):
        raise ArgumentError(f"the custom engine {type(engine).__name__} has no transport {transport!r}")


__all__ = ["Communicator", "Handle", "Operation", "Outcome"]
