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

import warnings
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from collectives.algorithms.choose import Choice
from collectives.algorithms.hierarchical.estimate import TwoLevelEstimate
from collectives.builder.recipes import Recipe
from collectives.communicator import groups, revocation
from collectives.communicator.agreed import UnevenArguments
from collectives.communicator.arrays import Array
from collectives.communicator.clearing import clear_doorbells
from collectives.communicator.coalesced import CoalescedVerbs, ManyArguments
from collectives.communicator.heap import SymmetricHeap
from collectives.communicator.heap_blocks import lines
from collectives.communicator.lane import CallLane
from collectives.communicator.messages.messenger import MailRoom, Messenger
from collectives.communicator.messages.transfers import lane_for
from collectives.communicator.messages.verbs import PointToPoint
from collectives.communicator.objects import ObjectVerbs
from collectives.communicator.opening import Stay, await_ready, find_room
from collectives.communicator.operations import Operation, Outcome
from collectives.communicator.persistent import Persistent
from collectives.communicator.planner import CallArguments, CallPlanner
from collectives.communicator.products import Matrix, Products
from collectives.communicator.progress import Handle
from collectives.communicator.runner import CallRunner
from collectives.communicator.shrink import Agreement, Roster, roster_bytes
from collectives.communicator.sizing import Furnished, GroupSizing, Sizing, WorldSizing
from collectives.communicator.watch import PeerMonitor
from collectives.sweep.defaults import REGION_BYTES
from cxlemu.engines import Engine
from cxlemu.engines.cores import cores_here, have_a_core_each
from cxlemu.engines.native import SPINS
from cxlemu.errors import MismatchError, PeerLostError, RevokedError
from cxlemu.memory.backend import CoherenceStep
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import Layout, Plan
from cxlemu.plan.checksums import check_integrity
from cxlemu.pool.arena import ARENA_ALIGN_BYTES, Arena
from cxlemu.pool.board import board_bytes
from cxlemu.pool.ledger import Hold
from cxlemu.rounding import round_up
from cxlemu.topology.clusters import ranks_per_cluster
from cxlemu.world import RankContext


class Communicator(ObjectVerbs, CoalescedVerbs, Products, PointToPoint):
    """A group of ranks with a ring of slots of their own in the pool. Make one with `world`, `of`, `group` or `split`.

    Every collective takes ``variant``: "auto" (see `choice`), one of `collectives.algorithms.catalog.variants`, or a
    Recipe, which stands for an algorithm of one's own. ``async_op=True`` returns a Handle at once; a rank's calls run
    in the order they were made. All raise ArgumentError for arrays that do not fit (nothing is sent); MismatchError
    when ranks call different things, at the latest in the next call in which one waits for the other; PeerLostError or
    DeadlineError when a peer does not come; a FaultError when the pool's hardware fails.

    After any of these but the first the communicator is revoked: every later call raises RevokedError at once. The
    other ranks are told, and raise the same error as soon as they wait in a call of it, even a later one: its
    ``reported_by`` is the rank that found the error, and its ``ranks``, ``card`` and so on say what that rank saw. Then
    `shrink` makes a communicator of the survivors.

    Attributes:
        rank: This rank's number in the communicator, from 0.
        size: The number of ranks.
        members: The world ranks of all ranks, in this communicator's order.
        layout: Where the communicator's ring of slots and its heap lie in the pool.
        heap: The `SymmetricHeap`, which makes arrays in the pool.
        persistent: The same verbs, each of which returns an `Operation` to run many times.
    """

    def __init__(
        self,
        context: RankContext,
        *,
        members: tuple[int, ...],
        furnished: Furnished,
        room: Hold,
        head_bytes: int = 0,
        lane: CallLane,
        deadline_s: float,
        integrity: str | None,
    ) -> None:
        """Use `world`, `of`, `group` or `split`; the room is given back if this raises.

        Args:
            context: This rank's context.
            members: The world ranks of all ranks, in this communicator's order.
            furnished: Its ring, heap and mailboxes.
            room: What this rank holds of the pool, for the board and these.
            head_bytes: How many bytes of the room, at its beginning, are not the communicator's.
            lane: What its calls run on.
            deadline_s: How long a call waits for its peers, in seconds.
            integrity: The checksum that travels with doorbells, or None.
        """
        self.members = members  # world ranks, in this communicator's order
        self.rank = members.index(context.rank)
        self.size = len(members)
        self.layout = layout = furnished.layout
        self._context, self._lane = context, lane
        self._stay = stay = Stay(context, room, lane)
        try:
            arena = Arena(room.at, room.end)
            arena.take(head_bytes)
            board_room = arena.take(board_bytes(self.size))
            ring = arena.take(self.layout.extent_bytes)
            boxes = furnished.mailboxes
            mail = None if boxes is None else MailRoom(boxes, arena.take(boxes.nbytes).at)
            if context.tenancy is not None:
                context.tenancy.require_room(self.layout.cards, board_room.at, arena.at)
            self._base = ring.at
            self._board = context.session.board(board_room.at, self.size, room.name)
            self._clear_doorbells(mail)
        except BaseException:
            stay.give_back()
            raise
        # Whoever drops a communicator gives its room back, later and in order: a finalizer runs at any moment.
        self._dropped = weakref.finalize(self, context.rooms.later, stay.drop)
        self._dropped.atexit = False
        self.heap = SymmetricHeap(*self._heap_memory(), self.rank, self.size, self.all_gather)
        self._lend_heap(stay)
        two_levels = layout.owned and integrity is None  # else never faster, or not possible
        self._planner = CallPlanner(
            rank=self.rank,
            size=self.size,
            cluster=ranks_per_cluster(context.topology, context.ranks, members),
            layout=layout,
            base=ring.at,
            heap=self.heap,
            ways=TwoLevelEstimate.of(context.topology, self.size) if two_levels else None,
            integrity=integrity,
            tenancy=context.tenancy,
        )
        self._runner = CallRunner(
            context,
            members=members,
            layout=layout,
            base=ring.at,
            name=room.name,
            board=self._board,
            engine=lane.engine,
            queue=lane.queue,
            planner=self._planner,
            deadline_s=deadline_s,
            gave_up=stay.fail,
        )
        self._agreement = Agreement(
            context.session,
            self._board,
            self.rank,
            members,
            context.rooms,
            context.arena,
            room_bytes=self._successor_room,
            deadline_s=deadline_s,
        )
        transfers = lane_for(context, lane.engine, deadline_s)
        stay.settle_too = transfers.settle
        self._messenger = Messenger(
            self.rank,
            self.size,
            mail,
            transfers,
            self._runner,
            PeerMonitor(context, self._board, 0, members, deadline_s),
            checked=integrity is not None,
        )
        self._runner.go_on_with(self._messenger)
        self.persistent = Persistent(
            self.rank,
            self.size,
            self._runner.prepare,
            self._prepare_uneven,
            self._prepare_product,
            self._runner.timed,
        )
        self._calls = self._runner.cache
        self._install_fast_path(self._runner.cache)
        if context.tenancy is not None:
            context.tenancy.on_loss(self._runner.close)

    @property
    def deadline_s(self) -> float:
        """How long a call waits for its peers without progress, in seconds; set it between calls."""
        return self._runner.deadline_s

    @deadline_s.setter
    def deadline_s(self, seconds: float) -> None:
        self._runner.wait_for(seconds)

    def within(self, timeout_s: float) -> AbstractContextManager[None]:
        """Let calls of a block wait so long for peers, as ``timeout_s`` of each call does.

        Args:
            timeout_s: How long without progress, in seconds.

        Raises:
            ArgumentError: That is no time above 0.
        """
        return self._runner.within(timeout_s)

    # --- calls ------------------------------------------------------------------------------------------------

    def choice(self, collective: str, nbytes: int, *, in_pool: bool = False, dtype: str = "") -> Choice:
        """Say which variant "auto" takes, and why.

        Args:
            collective: The collective's name, such as "all_reduce".
            nbytes: The size of one block in bytes.
            in_pool: The block is a whole array that `heap` made.
            dtype: The elements' type, such as "i32": integers may be folded in any order.

        Returns:
            The variant's name and the reason, in a sentence.
        """
        return self._planner.choice(collective, nbytes, in_pool=in_pool, dtype=dtype)

    def product_of(self, plan: Plan, digest: int, matrices: tuple[Bytes, Bytes, Bytes], result: Matrix) -> Operation:
        """Make an operation from a plan of a fused product, or from what is left of one.

        Args:
            plan: The plan, for this communicator's layout.
            digest: What all ranks must agree on, 16 bits.
            matrices: The bytes of A, of the result and of B, each 1-D uint8.
            result: The matrix that a run returns.

        Returns:
            The operation, which runs when it is called.

        Raises:
            RevokedError: The communicator is revoked.
            AccessError: This tenant may not run the plan, or its grant is gone.
            ArgumentError: The communicator has ``integrity``: products carry no checksums.
        """
        self._runner.check_usable()
        return self._runner.operation(self._planner.product_of(plan, digest, matrices), result)

    def _timed_call(
        self,
        timeout_s: float,
        collective: str,
        x: Array | None,
        out: Array | None,
        op: str,
        root: int,
        variant: str | Recipe,
        async_op: bool,
    ) -> Outcome:
        operation = self._runner.prepare(CallArguments(collective, x, out, op, root, variant))
        operation = self._runner.timed(operation, timeout_s)
        return self._runner.start(operation) if async_op else operation()

    def _many(self, asked: ManyArguments, async_op: bool) -> Outcome:
        operation = self._runner.many(asked)
        return self._runner.start(operation) if async_op else operation()

    def _prepare_uneven(self, asked: UnevenArguments) -> Operation:
        operation = self._runner.agreed(asked).prepared(lambda operation: operation())
        return self._runner.timed(operation, asked.timeout_s)

    def _uneven(self, asked: UnevenArguments, async_op: bool) -> Outcome:
        operation = self._runner.uneven(asked)
        return self._runner.start(operation) if async_op else operation()

    def _product(self, kind: str, a: Matrix, b: Matrix, out: Matrix | None, style: str, **cut: Any) -> Outcome:
        return self._prepare_product(kind, a, b, out, style, **cut)()

    def _prepare_product(
        self, kind: str, a: Matrix, b: Matrix, out: Matrix | None, style: str, **cut: Any
    ) -> Operation:
        self._runner.check_usable()
        planned, result = self._planner.product(kind, a, b, out, style, **cut)
        return self._runner.operation(planned, result)

    @property
    def cluster(self) -> int:
        """How many consecutive ranks share a host; 1 where there are no clusters."""
        return self._planner.cluster

    @property
    def pool(self) -> SymmetricHeap:
        """The old name of `heap`."""
        warnings.warn("comm.pool is called comm.heap now", DeprecationWarning, stacklevel=2)
        return self.heap

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The old names of persistent operations, such as ``all_reduce_init``."""
            verb = name.removesuffix("_init")
            if verb != name and hasattr(Persistent, verb):
                warnings.warn(f"comm.{name} is called comm.persistent.{verb} now", DeprecationWarning, stacklevel=2)
                return getattr(self.persistent, verb)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    # --- making and ending ------------------------------------------------------------------------------------

    def _lend_heap(self, stay: Stay) -> None:
        """Tell the stay which arrays keep the room, and which stores NumPy left in this host's cache."""
        backend, strip = self._context.backend, self.layout.heap_strip(self.rank)
        if backend.maps_cards:
            stay.arrays = self.heap.arrays
            if CoherenceStep.FLUSH not in backend.elides:
                stay.stored = strip.card, self._base + self.layout.heap_offset + strip.offset, self.heap.used

    def _heap_memory(self) -> tuple[Bytes, bool]:
        """This rank's strip of the heap, and whether it is a part of a card.

        NumPy cannot store through an emulated cache; everywhere else its stores are this host's.
        """
        if not self._context.backend.maps_cards:
            return lines(self.layout.heap_strip(self.rank).nbytes), False
        strip, offset = self.layout.heap_strip(self.rank), self._base + self.layout.heap_offset
        return self._context.pool.cards[strip.card][offset + strip.offset :][: strip.nbytes], True

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
    ) -> Self:
        """Make a communicator of all ranks. Collective: every rank makes the same communicators in the same order.

        Its ring and heap take at most three eighths of the pool; the rest is for other communicators.

        Args:
            context: What `cxlemu.launch` gives each rank.
            region_bytes: The size of the ring in bytes; larger messages take several rounds.
            heap_bytes: Each rank's part of `heap` in bytes (default: as much as leaves room for others).
            deadline_s: How long a rank waits for its peers, in seconds (default: the context's).
            engine: One of `cxlemu.engines.ENGINES`, of which "native" runs in C, or an engine of your own.
            integrity: "crc32c" detects writes that links drop silently: a checksum travels with every doorbell, and a
                reader whose bytes do not fit it raises IntegrityError. A write that is lost together with its doorbell
                shows as a deadline. None: no checksums.
            paced: False for calls that take no modelled time in a world that has a pace.
            layout: The ring and heap to use, such as a saved plan's; ``region_bytes`` and ``heap_bytes`` are then
                ignored.

        Returns:
            The communicator, whose doorbells all ranks have cleared.

        Raises:
            ArgumentError: There is no such engine or integrity, the pool has no room, or ``layout`` does not fit.
            AccessError: The communicator's room lies outside this tenant's grant.
            PeerLostError: A rank left, failed or did not come.
            MismatchError: Two processes run as one rank.
        """
        check_integrity(integrity)
        sizing = WorldSizing(context, region_bytes, heap_bytes, layout)
        lane, members = CallLane.of(context, engine, paced=paced), tuple(range(context.ranks))
        return cls._opened(context, members, "world", sizing, lane, deadline_s, integrity)._poll_often()

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
    ) -> Self:
        """Make a communicator of some ranks. Collective over these ranks alone: no other rank calls it.

        Ranks make communicators of the same members and key in the same order; all others in any order, and from
        several threads. A communicator gets no more than an eighth of the room that is free, unless that is too little
        for the smallest.

        Args:
            context: What `cxlemu.launch` gives each rank.
            members: The world ranks of the members, in the order of the new communicator; this rank is one of them.
            key: Tells communicators of the same members apart, where they are made in no agreed order.
            region_bytes: The size of the ring in bytes; larger messages take several rounds.
            heap_bytes: Each rank's part of `heap` in bytes (default: a third of the ring).
            deadline_s: As for `world`.
            engine: As for `world`.
            integrity: As for `world`.
            paced: As for `world`.

        Returns:
            The communicator, whose doorbells all members have cleared.

        Raises:
            ArgumentError: The members are no such ranks, there is no such engine or integrity, or no room.
            AccessError: The room lies outside this tenant's grant.
            PeerLostError: A member left, died or did not come.
            MismatchError: Members asked for rings of other sizes.
        """
        check_integrity(integrity)
        its = groups.members_of(members, context.ranks, context.rank)
        cards, interleave = context.topology.pool_card_count, context.pool.interleave_bytes
        sizing = GroupSizing(len(its), cards, interleave, region_bytes, heap_bytes)
        lane = CallLane.of(context, engine, paced=paced)
        return cls._opened(context, its, f"group {key}", sizing, lane, deadline_s, integrity)._poll_often()

    def _poll_often(self) -> Self:
        """Poll without giving the core away, where all ranks on this machine have a core each. Collective."""
        if have_a_core_each(self.all_gather(cores_here()), self.rank):
            self._lane.poll_often(SPINS)
            self._runner.poll_often(SPINS)
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
    ) -> Self:
        """Make a communicator with the other members, in room that their first one claims."""
        deadline_s = context.deadline_s if deadline_s is None else deadline_s
        room = find_room(context, members, context.rooms.name(members, key), sizing.wanted, deadline_s)
        try:
            furnished = sizing.furnish(room.end - room.at)
            if furnished.nbytes > room.end - room.at:
                raise MismatchError(
                    f"rank 0 took {room.end - room.at} bytes of every card, this rank needs {furnished.nbytes}: all "
                    f"ranks ask for the same sizes"
                )
        except BaseException:
            context.rooms.release(room.name)
            raise
        comm = cls(
            context,
            members=members,
            furnished=furnished,
            room=room,
            lane=lane,
            deadline_s=deadline_s,
            integrity=integrity,
        )
        try:
            await_ready(context, comm._board, members, room, deadline_s)  # none rings before all doorbells are cleared
        except BaseException:
            comm._leave()
            raise
        return comm

    def group(self, ranks: Sequence[int], *, key: str = "") -> Communicator:
        """Make a communicator of some ranks of this one. Collective over these ranks alone: see `of`.

        Args:
            ranks: The ranks of this communicator that become members, in the order of the new one.
            key: Tells communicators of the same members apart, where they are made in no agreed order.

        Returns:
            The communicator. Its ring is as large as this one's where there is room, and its calls wait for none of
            this one's.

        Raises:
            ArgumentError: The ranks are none of this communicator, or the pool has no room.
            PeerLostError: A member left, died or did not come.
        """
        self._runner.check_usable()
        its = groups.members_of(ranks, self.size, self.rank)
        return self._group(tuple(self.members[rank] for rank in its), f"group {key}")

    def _group(self, members: tuple[int, ...], key: str) -> Communicator:
        sizing, lane, deadline_s = self._sizing(len(members)), self._lane.beside(), self._runner.deadline_s
        return Communicator._opened(self._context, members, key, sizing, lane, deadline_s, self._planner.integrity)

    def _sizing(self, ranks: int, head_bytes: int = 0) -> GroupSizing:
        """How large a communicator of some ranks of this one is: as this one, where there is room."""
        region_bytes = self.layout.slots * self.layout.slot_bytes
        cards, interleave_bytes = self.layout.pool_cards, self.layout.interleave_bytes
        return GroupSizing(ranks, cards, interleave_bytes, region_bytes, head_bytes=head_bytes)

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        """Make a communicator for the ranks of each color, as MPI_Comm_split does. Collective over this communicator.

        Args:
            color: Which of the new communicators this rank joins, a 64-bit integer; None: none of them.
            key: The ranks of a color are ordered by key, a 64-bit integer (default: this rank's number).

        Returns:
            The communicator of this rank's color, or None without a color.

        Raises:
            ArgumentError: The pool has no room left, or color or key are no 64-bit integers.
            RunError: As for collectives, see `Communicator`.
        """
        mine = groups.word(color, self.rank if key is None else key)
        its = groups.groups_of(self.all_gather(mine).tolist())
        if color is None:
            return None
        return self._group(tuple(self.members[rank] for rank in its[color]), f"split {self._stay.room.name}")

    def revoke(self) -> None:
        """Give this communicator up, as MPIX_Comm_revoke does: no rank can call anything of it from then on.

        Ranks that wait in a call of it raise RevokedError soon, others in their next call. Not collective. Does nothing
        where this rank already knows that the communicator is revoked.
        """
        if self._runner.revoked is None and not self.closed:
            self._runner.give_up(RevokedError(f"rank {self.rank} revoked it"))

    def abort(self, reason: str = "") -> None:
        """Give this communicator up from any thread, also while a call of it waits in another.

        That call, and all that wait in a call of this communicator on other ranks, raise RevokedError. Not collective.

        Args:
            reason: Why, for this rank's message.
        """
        if self._runner.revoked is None:
            self._runner.abort(RevokedError(f"rank {self.rank} aborted it" + f": {reason}" * bool(reason)))

    def dup(self) -> Communicator:
        """Make a communicator of the same ranks, as MPI_Comm_dup does, with room of its own. Collective.

        Raises:
            ArgumentError: The pool has no room left.
            RunError: As for collectives, see `Communicator`.
        """
        twin = self.split(0)
        assert twin is not None
        return twin

    def shrink(self) -> Communicator:
        """Make a communicator of the ranks that are alive, in the same order, as MPIX_Comm_shrink does.

        Collective over the survivors: a rank that does not come within a deadline is taken for dead. This communicator
        is revoked. The new one has room of its own, where no late write of a dead rank lands. Calls under way are
        waited for, and their errors dropped.

        Returns:
            The survivors' communicator.

        Raises:
            ExcludedError: The other ranks took this one for dead.
            DeadlineError: The other ranks do not answer.
            ArgumentError: The pool has no room left.
            RevokedError: This rank closed the communicator.
        """
        self._runner.check_open()
        self.revoke()
        self._runner.queue.abandon()
        revoked = self._runner.revoked
        lost = revoked.ranks if isinstance(revoked, PeerLostError) else ()
        return self._agreement.reach(frozenset(lost) | revocation.lost(self._board), self._renewed)

    def _successor_room(self, ranks: int, largest_bytes: int) -> int:
        """Return the room for the survivors' communicator, behind the roster."""
        return self._sizing(ranks, self._roster_room).wanted(largest_bytes)

    @property
    def _roster_room(self) -> int:
        return round_up(roster_bytes(self.size), ARENA_ALIGN_BYTES)

    def _renewed(self, roster: Roster) -> Communicator:
        ranks, room, head = roster.ranks, roster.room, self._roster_room
        return Communicator(
            self._context,
            members=tuple(self.members[rank] for rank in ranks),
            furnished=self._sizing(len(ranks), head).furnish(room.end - room.at),
            room=room,
            head_bytes=head,
            lane=self._lane.beside(),
            deadline_s=self._runner.deadline_s,
            integrity=self._planner.integrity,
        )

    def _clear_doorbells(self, mail: MailRoom | None) -> None:
        places = [(self._base, self.layout.doorbells_of(self.rank))]
        if mail is not None:
            places.append((mail.at, mail.mailboxes.doorbells_of(self.rank)))
        clear_doorbells(self._lane.quick, self._context.session, places)

    @property
    def closed(self) -> bool:
        """Whether `close` was called: nothing can be called any more."""
        return not self._dropped.alive

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.size}, world ranks {self.members}>"

    def close(self) -> None:
        """Wait for this rank's calls that are under way and for what it sends, and give its room back.

        Not collective; twice is fine. Other communicators can have the room when all ranks have closed this one, or
        dropped it. Where arrays of `heap` are still held, that is when they are dropped.

        Raises:
            RunError: The error of a call whose Handle was not waited for, or of a message that did not leave.
        """
        if self.closed:
            return
        try:
            self._runner.queue.drain()
            self._messenger.close()
        finally:
            self.heap.close()
            self._leave()

    def _leave(self) -> None:
        if self._dropped.detach() is not None:
            self._runner.end()
            self._stay.give_back()
            self._context.rooms.collect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()


__all__ = ["Communicator", "Handle", "Operation", "Outcome"]
