"""One rank of a communicator, put together: what it has in the pool, what plans and runs its calls, how it ends.

The verbs are inherited (verbs.py, coalesced.py, products.py, messages/verbs.py). A communicator is composed of a
planner, which says what a call is; a runner, which brings it to an end; and a messenger, for messages of two ranks.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from collectives.algorithms.choose import Choice
from collectives.algorithms.hierarchical.estimate import TwoLevelEstimate
from collectives.builder.recipes import Recipe
from collectives.communicator.arrays import Array
from collectives.communicator.calls import revocation
from collectives.communicator.calls.agreed import UnevenArguments
from collectives.communicator.calls.devices import DeviceCalls
from collectives.communicator.calls.operations import Operation, Outcome
from collectives.communicator.calls.packing import ManyArguments
from collectives.communicator.calls.planner import CallArguments, CallPlanner
from collectives.communicator.calls.products import Matrix
from collectives.communicator.calls.runner import CallRunner
from collectives.communicator.calls.watch import PeerMonitor
from collectives.communicator.heap.heap import SymmetricHeap
from collectives.communicator.membership.opening import await_ready
from collectives.communicator.membership.premises import Premises, Terms
from collectives.communicator.membership.shrink import Agreement, head_bytes
from collectives.communicator.membership.sizing import GroupSizing
from collectives.communicator.messages.messenger import Messenger
from collectives.communicator.messages.transfers import lane_for
from collectives.communicator.messages.verbs import PointToPoint
from collectives.communicator.verbs.coalesced import CoalescedVerbs
from collectives.communicator.verbs.objects import ObjectVerbs
from collectives.communicator.verbs.persistent import Persistent
from collectives.communicator.verbs.products import Products
from collectives.contracts import contract_of
from cxlemu.dlpack import pin
from cxlemu.engines.peer_memory import PeerMemory
from cxlemu.errors import PeerLostError, RevokedError
from cxlemu.memory.protocol import Bytes
from cxlemu.numbers import whole
from cxlemu.plan import Plan
from cxlemu.suggest import meant
from cxlemu.unshared import Unshared

_FIXED = frozenset({"rank", "size", "members", "layout", "heap", "persistent"})


class Member(ObjectVerbs, CoalescedVerbs, Products, PointToPoint, Unshared):
    """One rank's side of a communicator, from moving in to giving its room back.

    Its attributes are those of `Communicator`.
    """

    def __init__(self, terms: Terms) -> None:
        """Move into the room that the members share, and agreed on; it is given back if this raises."""
        context, lane, integrity = terms.context, terms.lane, terms.integrity
        self._terms, self._context, self._lane = terms, context, lane
        self.rank, self.size, self.members = terms.rank, len(terms.members), terms.members
        self.layout = layout = terms.furnished.layout
        premises = Premises.move_in(terms)
        self._base, self._board = premises.base, premises.board
        self._stay = stay = premises.stay
        # The room of a dropped communicator is given back later and in order, because a finalizer runs at any moment.
        self._dropped = weakref.finalize(self, context.rooms.later, stay.drop)
        self._dropped.atexit = False
        self.heap = premises.heap(partial(self._gathered, "heap.empty"))
        # Without memories of their own, or with checksums, two levels are never faster, or not possible.
        two_levels = context.outline.shares_memories and layout.owned and integrity is None
        self._planner = CallPlanner(
            rank=self.rank,
            size=self.size,
            cluster=context.outline.ranks_per_cluster(self.members),
            layout=layout,
            base=self._base,
            heap=self.heap,
            ways=TwoLevelEstimate.of(context.topology, self.size) if two_levels else None,
            integrity=integrity,
            tenancy=context.tenancy,
            peers=terms.peers,
        )
        self._runner = CallRunner(
            context,
            members=self.members,
            layout=layout,
            base=self._base,
            name=terms.room.name,
            board=self._board,
            engine=lane.engine,
            queue=lane.queue,
            planner=self._planner,
            devices=DeviceCalls(
                lane.memory,
                [card[self._base : self._base + layout.heap_offset] for card in context.pool.cards],
                self._planner,
                lane.engine,
            ),
            deadline_s=terms.deadline_s,
            gave_up=stay.fail,
        )
        transfers = lane_for(context, lane.engine, terms.deadline_s)
        stay.settle_too = transfers.settle
        self._messenger = Messenger(
            self.rank,
            self.size,
            premises.mail,
            transfers,
            self._runner,
            PeerMonitor(context, self._board, 0, self.members, terms.deadline_s),
            checked=integrity is not None,
        )
        self._runner.go_on_with(self._messenger)
        self.persistent = Persistent(
            self.rank, self.size, self._runner.prepare, self._prepare_uneven, self._runner.product, self._runner.timed
        )
        self._calls = self._runner.cache
        self._install_fast_path(self._runner.cache)
        self._agreement = Agreement(
            context.session,
            self._board,
            self.rank,
            self.members,
            context.rooms,
            context.arena,
            room_bytes=self._successor_room,
            deadline_s=terms.deadline_s,
        )
        self._successor: Self | None = None  # what this communicator shrank to
        if context.tenancy is not None:
            context.tenancy.on_loss(self._runner.close)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and name in self.__dict__:
            raise AttributeError(f"{name} of a {type(self).__name__} is read-only")
        super().__setattr__(name, value)

    @property
    def deadline_s(self) -> float:
        """How long a call waits for its peers without progress, in seconds; set it between calls."""
        return self._runner.deadline_s

    @deadline_s.setter
    def deadline_s(self, seconds: float) -> None:
        self._runner.wait_for(seconds)

    def within(self, timeout_s: float) -> AbstractContextManager[None]:
        """Give all calls in a ``with`` block the same ``timeout_s``: how long each waits for peers without progress."""
        return self._runner.within(timeout_s)

    # --- calls ------------------------------------------------------------------------------------------------

    def choice(
        self, collective: str, nbytes: int, *, in_pool: bool = False, out_in_pool: bool = False, dtype: str = ""
    ) -> Choice:
        """Return the variant that "auto" takes, and why.

        Args:
            collective: The collective's name, such as "all_reduce".
            nbytes: The size of one block in bytes.
            in_pool: The block is a whole array that `heap` made.
            out_in_pool: The result is one, and x is not.
            dtype: The elements' type, such as "i32": integers may be folded in any order.

        Returns:
            The variant's name and the reason, in a sentence.
        """
        contract_of(collective)
        nbytes = whole(nbytes, "nbytes")
        return self._planner.choice(collective, nbytes, in_pool=in_pool, out_in_pool=out_in_pool, dtype=dtype)

    def product_of(self, plan: Plan, digest: int, matrices: tuple[Bytes, Bytes, Bytes], result: Matrix) -> Operation:
        """Make an operation from a plan of a fused product, or from what is left of one.

        All ranks must agree on ``digest``, 16 bits; ``matrices`` are the bytes of A, of the result and of B. Products
        carry no checksums.
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
        return self._runner.start(operation, x, out) if async_op else operation()

    def _in_verb(
        self, verb: str, collective: str, x: Array, out: Array, root: int = 0, timeout_s: float | None = None
    ) -> Any:
        asked = CallArguments(collective, x, out, "none", root, "auto", verb=verb)
        return self._runner.timed(self._runner.prepare(asked), timeout_s)()

    def _gathered(self, verb: str, x: Array) -> Array:
        """Gather an array of every rank, as a part of a verb."""
        gathered: Array = self._in_verb(verb, "all_gather", x, np.empty((self.size, *x.shape), x.dtype))
        return gathered

    def _many(self, asked: ManyArguments, async_op: bool) -> Outcome:
        operation = self._runner.many(asked)
        return self._runner.start(operation, asked.arrays, asked.outs) if async_op else operation()

    def _prepare_uneven(self, asked: UnevenArguments) -> Operation:
        staged = self._runner.agreed(asked).prepared(lambda operation: operation())
        pin(asked.send.given, staged.result)
        return self._runner.timed(staged, asked.timeout_s)

    def _uneven(self, asked: UnevenArguments, async_op: bool) -> Outcome:
        operation = self._runner.uneven(asked)
        return self._runner.start(operation, asked.send.given, asked.receive.given) if async_op else operation()

    def _product(self, kind: str, a: Matrix, b: Matrix, out: Matrix | None, style: str, **cut: Any) -> Outcome:
        return self._runner.product(kind, a, b, out, style, **cut)()

    @property
    def cluster(self) -> int:
        """How many consecutive ranks share a host; 1 where there are no clusters."""
        return self._planner.cluster

    @property
    def pool(self) -> SymmetricHeap:
        """The old name of `heap`."""
        warnings.warn("comm.pool is comm.heap now: 0.3.0 removes it", DeprecationWarning, stacklevel=2)
        return self.heap

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The old names of persistent operations, such as ``all_reduce_init``."""
            verb = name.removesuffix("_init")
            if verb != name and hasattr(Persistent, verb):
                said = f"comm.{name} is comm.persistent.{verb} now: 0.3.0 removes it"
                warnings.warn(said, DeprecationWarning, stacklevel=2)
                return getattr(self.persistent, verb)
            names = [each for each in dir(self) if not each.startswith("_")]
            near = "" if name.startswith("_") else meant(name, names)  # code asks for what begins so
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{near}")

    def _peers_among(self, ranks: Sequence[int]) -> PeerMemory | None:
        """The processes of some ranks of this communicator; None where arrays travel through the pool."""
        peers = self._planner.peers
        return None if peers is None else peers.among(list(ranks).index(self.rank), ranks)

    def _sizing(self, ranks: int, head_bytes: int = 0) -> GroupSizing:
        """How large a communicator of some ranks of this one is: as this one, where there is room."""
        region_bytes = self.layout.slots * self.layout.slot_bytes
        cards, interleave_bytes = self.layout.pool_cards, self.layout.interleave_bytes
        return GroupSizing(ranks, cards, interleave_bytes, region_bytes, head_bytes=head_bytes)

    # --- giving up and going on: names and meanings of MPI's ULFM ---------------------------------------------------

    def revoke(self) -> None:
        """Revoke this communicator, as MPIX_Comm_revoke does: from then on no rank can call it.

        Ranks that wait in a call of it raise RevokedError soon, others in their next call. Not collective. Does nothing
        where this rank already knows that the communicator is revoked.
        """
        if self._runner.revoked is None and not self.closed:
            self._runner.give_up(RevokedError(f"rank {self.rank} revoked it"))

    def abort(self, reason: str = "") -> None:
        """Revoke this communicator from any thread, even while a call waits in another.

        That call, and all that wait in a call of this communicator on other ranks, raise RevokedError. Not collective.
        ``reason`` is for this rank's message.
        """
        if self._runner.revoked is None and not self.closed:
            self._runner.abort(RevokedError(f"rank {self.rank} aborted it" + f": {reason}" * bool(reason)))

    def shrink(self) -> Self:
        """Make a communicator of the ranks that are alive, in the same order, as MPIX_Comm_shrink does.

        Collective over the survivors: a rank that does not call it within a deadline counts as dead. This communicator
        is revoked. The new one has room of its own, where no late write of a dead rank lands. Calls under way are
        waited for, and their errors dropped. A communicator that shrank before shrinks its successor.

        Returns:
            The survivors' communicator, the same on all of them.

        Raises:
            ExcludedError: The other ranks took this one for dead.
            DeadlineError: The other ranks do not answer.
            PeerLostError: Ranks kept dying meanwhile.
            ArgumentError: The pool has no room left.
            RevokedError: This rank closed the communicator.
        """
        newest = self._successor or self
        for _ in self.members:
            newest = self._successor = newest._decided()
            try:
                newest._await_members()
                return newest
            except (PeerLostError, RevokedError) as error:
                newest._runner.give_up(error)
                lost = error
        raise lost

    def _decided(self) -> Self:
        """Make the communicator on which the survivors decide, once for all."""
        self._runner.check_open()
        self.revoke()
        self._runner.queue.abandon()
        revoked = self._runner.revoked
        lost = revoked.ranks if isinstance(revoked, PeerLostError) else ()
        ranks, room = self._agreement.reach(frozenset(lost) | revocation.lost(self._board))
        head = head_bytes(self.size)
        return type(self)(
            Terms(
                self._context,
                tuple(self.members[rank] for rank in ranks),
                self._sizing(len(ranks), head).furnish(room.end - room.at),
                room,
                self._lane.beside(),
                self._runner.deadline_s,
                self._planner.integrity,
                head,
                self._peers_among(ranks),
            )
        )

    def _await_members(self) -> None:
        """Wait until all members are ready. Raises PeerLostError where one is lost, or what another member found."""
        await_ready(self._context, self._board, self.members, self._runner.deadline_s, self._look_for_notices)

    def _look_for_notices(self) -> None:
        if (notice := revocation.poll(self._board)) is not None:
            raise revocation.as_error(*notice, f"rank {self.rank} makes a communicator", me=self.rank)

    def _successor_room(self, ranks: int, largest_bytes: int) -> int:
        """Return the room for the survivors' communicator, behind the roster."""
        return self._sizing(ranks, head_bytes(self.size)).wanted(largest_bytes)

    # --- ending -----------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` was called: nothing can be called any more."""
        return not self._dropped.alive

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ", revoked" if self._runner.revoked is not None else ""
        return f"<{type(self).__name__} rank {self.rank} of {self.size}, world ranks {self.members}{state}>"

    def close(self) -> None:
        """Wait for this rank's calls that are under way and for what it sends, and give its room back.

        Not collective; twice is fine, and nothing happens in a forked child. Other communicators can have the room when
        all ranks have closed this one, or dropped it. Where arrays of `heap` are still held, that is when they are
        dropped.

        Raises:
            RunError: The error of a call whose Handle was not waited for, or of a message that did not leave.
        """
        if self.closed or self._runner.home.left:
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
        self._runner.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
