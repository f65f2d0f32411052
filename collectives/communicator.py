"""What a user calls: collectives on NumPy arrays, over a ring of slots in the pool.

    with Communicator.world(context) as comm:
        comm.all_reduce(x)                          # in place
        y = comm.all_gather(x)                      # a new array of shape (ranks, *x.shape)
        handle = comm.all_reduce(x, async_op=True)
        handle.wait()
        half = comm.split(color=comm.rank % 2)
    z = comm.pool.empty(1 << 20)                # an array in the pool, which collectives need not copy to publish

Names and meanings are those of torch.distributed and mpi4py: arrays are C-contiguous, blocks are in rank order, every
rank calls the same collectives in the same order. Reductions fold in rank order, so results are the same bits on every
rank and in every run; ``avg`` is the sum divided by the number of ranks (integers truncate toward zero).
"""

from __future__ import annotations

import operator
from binascii import crc_hqx
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from collectives import revocation
from collectives.arrays import Array, Bound, as_bytes, bind, block_bytes, dtype_name
from collectives.builder import SCRATCH, ZERO_COPY
from collectives.catalog import build, check, recipe
from collectives.choose import Choice, choose
from collectives.contracts import NEVER_LENT_IN_PLACE
from collectives.fused.plans import build as build_product
from collectives.fused.words import Matrix, Products
from collectives.fused.words import bind as bind_product
from collectives.heap import SymmetricHeap, lines
from collectives.hierarchical.estimate import Ways
from collectives.layouts import REGION_BYTES, child_room, heirs_room, layout_in, world_share
from collectives.operations import Operation, Planned, Stepped
from collectives.progress import Handle, Lane
from collectives.recipes import Recipe, with_checksums
from collectives.shrink import Agreement, Roster
from collectives.verbs import Outcome, Verbs
from collectives.watch import Watcher
from cxlemu import _native
from cxlemu.checksums import check_integrity
from cxlemu.clusters import memories_behind_pool, ranks_per_cluster
from cxlemu.engines import Engine, engine_for
from cxlemu.engines.cores import cores_here, have_a_core_each
from cxlemu.engines.native import LOOK_NS, SPINS, NativeEngine, Obstacles
from cxlemu.engines.streams import Binding, Running
from cxlemu.errors import ArgumentError, PeerLostError, RevokedError, RunError
from cxlemu.memory.protocol import Bytes
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.plan import DTYPES, Call, Layout, Plan, RankPart, rules
from cxlemu.pool.arena import ARENA_ALIGN_BYTES, Arena
from cxlemu.pool.board import board_bytes
from cxlemu.world import RankContext

PLANS_KEPT = 256


class Communicator(Verbs, Products):
    """A group of ranks with a ring of slots of their own in the pool. Make one with `world` or `split`.

    Every collective takes ``variant``: "auto" (see `choice`), one of `collectives.catalog.variants`, or a Recipe,
    which stands for an algorithm of one's own. ``async_op=True`` returns a Handle at once; a rank's calls run in the
    order they were made. All raise ArgumentError for arrays that do not fit (nothing is sent); MismatchError when
    ranks call different things, at the latest in the next call in which one waits for the other; PeerLostError or
    DeadlineError when a peer does not come; a FaultError when the pool's hardware fails.

    After any of these but the first the communicator is revoked: every later call raises RevokedError at once. The
    other ranks are told, and raise the same error as soon as they wait in a call of it, be it a later one: its
    ``reported_by`` is the rank that found out, and its ``ranks``, ``card`` and so on say what that one saw. Then
    `shrink` makes a communicator of the survivors.
    """

    def __init__(
        self,
        context: RankContext,
        *,
        members: tuple[int, ...],
        layout: Layout,
        arena: Arena,
        engine: Engine,
        lane: Lane,
        deadline_s: float,
        integrity: str | None,
    ) -> None:
        self.members = members  # world ranks, in this communicator's order
        self.rank = members.index(context.rank)
        self.size = len(members)
        self.cluster = ranks_per_cluster(context.topology, context.ranks, members)  # ranks in one; 1: there are none
        self.layout = layout
        self._board = context.session.board(arena.take(board_bytes(self.size)).at, self.size)
        ring = arena.take(self.layout.extent_bytes)
        self._base = ring.at
        self._arena = arena
        self._context = context
        self._engine = engine
        self._lane = lane
        self._deadline_s = deadline_s
        self._integrity = integrity
        two_levels = layout.owned and integrity is None  # else never faster, or not possible
        self._ways = Ways.of(context.topology, self.size) if two_levels else None
        self._revoked: RunError | None = None
        self._scratch: Bytes = np.empty(0, np.uint8)
        self._ring = _native.Ring(
            ranks=self.size,
            epoch=1,  # doorbells start at 0: nothing is published yet
            tag=crc_hqx(repr(layout).encode(), 0),  # so that ranks with other rings notice, too
            idle_ns=LOOK_NS,
            spins=engine.spins if isinstance(engine, NativeEngine) else 0,
            gate=lane.busy,
            resume=self._resume,
            turn=self._turn,
        )
        # Rings never overlap, so where one begins is a name that all members agree on.
        self._watch = Watcher(context, self._board, ring.at // ARENA_ALIGN_BYTES, members, deadline_s)
        self._agreement = Agreement(
            context.session,
            self._board,
            self.rank,
            members,
            arena,
            room_bytes=heirs_room,
            deadline_s=deadline_s,
        )
        self._clear_doorbells()
        self.pool = SymmetricHeap(*self._heap_memory(), self.rank, self.size, self.all_gather)
        self._remembered = self._calls = _native.Calls(self._call, self.pool.memory)
        self._hasten(self._remembered)

    def _heap_memory(self) -> tuple[Bytes, bool]:
        """This rank's strip of the heap, and whether it is a part of a card.

        NumPy cannot store through an emulated cache; everywhere else its stores are this host's.
        """
        if isinstance(self._context.memory, ShadowMemory):
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
    ) -> Self:
        """A communicator of all ranks. ``region_bytes`` is its ring's size: larger messages take several rounds.
        ``heap_bytes`` is each rank's part of `pool` (default: as much as leaves room for children).

        ``engine`` is one of `cxlemu.engines.ENGINES`, of which "native" runs in C, or one of yours.
        ``integrity="crc32c"`` is for links that may lose what is written without a word: a checksum travels with every
        doorbell, and where what is read does not fit it an IntegrityError is raised. What is lost together with its
        doorbell is a deadline.

        ``paced=False`` is for calls that take no modelled time in a world that has a pace.

        A communicator gets half of the room that the pool has left, for its ring, its heap and its children.
        Collective: every rank makes the same communicators in the same order.
        """
        check_integrity(integrity)
        deadline_s = context.deadline_s if deadline_s is None else deadline_s
        pool, arena = context.pool, world_share(context.arena)
        cards, interleave = context.topology.pool_card_count, pool.interleave_bytes
        memories = memories_behind_pool(context.topology, context.ranks)
        layout = layout_in(
            arena.nbytes,
            context.ranks,
            cards,
            interleave,
            region_bytes=region_bytes,
            heap_bytes=heap_bytes,
            owned=0 < memories == len(pool.cards) - cards,
        )
        if isinstance(engine, str):
            pacer = context.pacer if paced else None
            engine = engine_for(engine, context.backend, context.memory, pool.cards, pacer)
        comm = cls(
            context,
            members=tuple(range(context.ranks)),
            layout=layout,
            arena=arena,
            engine=engine,
            lane=Lane(),
            deadline_s=deadline_s,
            integrity=integrity,
        )
        context.session.barrier(deadline_s)  # nobody rings before all doorbells are cleared
        if have_a_core_each(comm.all_gather(cores_here()), comm.rank) and isinstance(comm._engine, NativeEngine):
            comm._ring.spins = comm._engine.spins = SPINS
        return comm

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        """Communicators of the ranks with equal ``color``, ordered by ``key`` (default: rank), as MPI_Comm_split.

        ``color=None`` takes no part and gets None. Collective over this communicator. Raises ArgumentError when the
        pool has no room left.
        """
        mine = np.array([color is not None, *map(_as_i64, (color or 0, self.rank if key is None else key))], np.int64)
        everyone = self.all_gather(mine).tolist()
        groups: dict[int, list[tuple[int, int]]] = {}
        for rank, (takes_part, its_color, its_key) in enumerate(everyone):
            if takes_part:
                groups.setdefault(its_color, []).append((its_key, rank))
        # Every rank takes every group's room, and finds that it is too small where it is, so that all agree.
        room = child_room(self._arena.nbytes, len(groups), self.layout)
        cards, interleave_bytes = self.layout.pool_cards, self.layout.interleave_bytes
        region_bytes = self.layout.slots * self.layout.slot_bytes
        layouts = {
            its_color: layout_in(room, len(group), cards, interleave_bytes, region_bytes=region_bytes)
            for its_color, group in groups.items()
        }
        child = None
        for its_color in sorted(groups):
            arena = self._arena.take(room)
            if color == its_color:
                child = self._child([rank for _, rank in sorted(groups[its_color])], layouts[its_color], arena)
        self.barrier()  # nobody rings before all doorbells are cleared
        return child

    def revoke(self) -> None:
        """Give this communicator up: no rank can call anything of it any more, as MPIX_Comm_revoke.

        Ranks that wait in a call of it raise RevokedError soon, others in their next call. Not collective.
        """
        if self._revoked is None:
            self._give_up(RevokedError(f"rank {self.rank} revoked it"))

    def shrink(self) -> Communicator:
        """A communicator of the ranks that are alive, in the same order, as MPIX_Comm_shrink; this one is revoked.

        Collective over the survivors: whoever does not come within a deadline is taken for dead. It has room of its
        own, where no late write of a dead rank lands. Calls under way are waited for, and their errors dropped. Raises
        ExcludedError when the others took this rank for dead, DeadlineError when they are not to be had, and
        ArgumentError when the pool has no room left.
        """
        self.revoke()
        self._lane.abandon()
        lost = self._revoked.ranks if isinstance(self._revoked, PeerLostError) else ()
        return self._agreement.reach(frozenset(lost) | revocation.lost(self._board), self._renewed)

    def _renewed(self, roster: Roster) -> Communicator:
        cards, interleave_bytes = self.layout.pool_cards, self.layout.interleave_bytes
        region_bytes = self.layout.slots * self.layout.slot_bytes
        ranks, room = roster.ranks, roster.room
        layout = layout_in(room.nbytes // 2, len(ranks), cards, interleave_bytes, region_bytes=region_bytes)
        return self._child(ranks, layout, room)

    def _child(self, ranks: Sequence[int], layout: Layout, arena: Arena) -> Communicator:
        """Of these ranks of this one."""
        return Communicator(
            self._context,
            members=tuple(self.members[rank] for rank in ranks),
            layout=layout,
            arena=arena,
            engine=self._engine,
            lane=self._lane,
            deadline_s=self._deadline_s,
            integrity=self._integrity,
        )

    def choice(self, collective: str, nbytes: int, *, in_pool: bool = False) -> Choice:
        """What "auto" takes for blocks of ``nbytes``, and why. ``in_pool``: of a whole array that `pool` made."""
        return choose(collective, nbytes, self.size, in_pool=in_pool, ways=self._ways)

    # --- how a call runs --------------------------------------------------------------------------------------

    def _call(
        self,
        collective: str,
        x: Array | None,
        out: Array | None,
        op: str,
        root: int,
        variant: str | Recipe,
        async_op: bool,
    ) -> Outcome:
        """An ordinary call that is not remembered."""
        operation = self._prepare(collective, x, out, op, root, variant)
        # A COMPUTE finds its arrays in what was planned, so it cannot run on others.
        if isinstance(operation, _native.Operation) and not operation.cookie.frame.kernels:
            self._remembered.remember(operation, collective, x, out, op, root, variant)
        if async_op:
            return self._lane.start(partial(self._run, operation))
        return operation()

    def _prepare(
        self, collective: str, x: Array | None, out: Array | None, op: str, root: int, variant: str | Recipe
    ) -> Operation:
        self._check_usable()
        lent = x
        if collective == "scatter" and self.rank != root:
            x = None
        if not 0 <= root < self.size:
            raise ArgumentError(f"{collective}: root {root} is not one of the ranks 0..{self.size - 1}")
        nbytes = 0 if collective == "barrier" else block_bytes(collective, self.size, x, out)
        array = x if x is not None else out
        dtype = dtype_name(array) if array is not None else "u8"
        auto = variant == "auto"
        if auto:
            variant = self.choice(collective, nbytes).variant
        chosen = self._recipe(collective, variant) if isinstance(variant, str) else self._checked(variant)
        if chosen.collective != collective:
            raise ArgumentError(f"{chosen.name} is an algorithm for {chosen.collective}, not for {collective}")
        cluster = self.cluster if chosen.style.levels else 1
        call = Call(collective, chosen.name, self.size, nbytes, dtype, op, root, cluster=cluster)
        check(call)
        bound = bind(call, self.rank, x, out)
        if chosen.style.heap or (auto and self.pool.in_use):
            chosen, bound = self._lending(chosen, bound, lent, auto)
        plan, digest = self._plan(chosen, bound.call)
        part = plan.part(self.rank)
        buffers = (bound.input, bound.output, self._scratch_for(part))
        planned = Planned(bound.call, plan.frame, part, plan.rounds, digest, buffers)
        if isinstance(self._engine, NativeEngine):
            program = self._engine.program(self._running(planned, self._ring.epoch, self._ring.tag))
            return _native.Operation(self._ring, program, plan.rounds, digest, planned, out, *buffers)
        return Stepped(planned, out, self._turn, self._step)

    def _scratch_for(self, part: RankPart) -> Bytes:
        if self._scratch.nbytes < (need := part.buffers[SCRATCH].nbytes):
            self._scratch = np.empty(need, np.uint8)  # operations made before keep the one they have
        return self._scratch

    def _product(self, kind: str, a: Matrix, b: Matrix, out: Matrix | None, style: str, **cut: Any) -> Operation:
        bound = bind_product(kind, self.size, a, b, out, style, **cut)
        plan, digest = _product_plan_of(self.layout, bound.call, self.rank)
        return self.product_of(plan, digest, (bound.a, bound.c, bound.b), bound.out)

    def product_of(self, plan: Plan, digest: int, matrices: tuple[Bytes, Bytes, Bytes], result: Matrix) -> Operation:
        """A plan of a fused product, or what is left of one, on A, the result and B, as an operation."""
        self._check_usable()
        if self._integrity is not None:
            raise ArgumentError(
                f"{plan.call.collective}: doorbells of products carry no checksums: leave out integrity"
            )
        part, (a, c, b) = plan.part(self.rank), matrices
        buffers = (a, c, self._scratch_for(part), b)
        planned = Planned(plan.call, plan.frame, part, plan.rounds, digest, buffers)
        return Stepped(planned, result, self._turn, self._step)

    def _turn(self, operation: Operation) -> Array | None:
        """Run an operation after this rank's calls that are under way."""
        self._check_usable()
        return self._lane.call(partial(self._run, operation))

    def _run(self, operation: Operation) -> Array | None:
        self._check_usable()  # once more for an asynchronous call, when its turn has come
        return operation.run()

    def _recipe(self, collective: str, variant: str) -> Recipe:
        return self._checked(recipe(collective, variant))

    def _checked(self, chosen: Recipe) -> Recipe:
        return chosen if self._integrity is None else with_checksums(chosen)

    def _lending(self, chosen: Recipe, bound: Bound, x: Array | None, auto: bool) -> tuple[Recipe, Bound]:
        """The call with zero copy: as it is asked for or, with ``auto``, where it pays."""
        call, heap = bound.call, None
        refusal = NEVER_LENT_IN_PLACE.get(call.collective) if call.in_place else None
        if x is not None and refusal is None:
            heap = self.pool.lend(call, self.rank, as_bytes(x, "x"), bound.output, any_part=not auto)
        if auto:
            variant = self.choice(call.collective, call.nbytes, in_pool=heap is not None).variant
            if variant != ZERO_COPY.name:
                return chosen, bound
            chosen = self._recipe(call.collective, variant)
        elif heap is None or heap.input % DTYPES[call.dtype].itemsize:
            why = refusal or "x must be an array that comm.pool made, or whole elements of one"
            raise ArgumentError(f"{call.collective} {chosen.name} publishes x where it lies in the pool: {why}")
        return chosen, bound._replace(call=replace(call, algorithm=chosen.name, heap=heap))

    def _check_usable(self) -> None:
        if self._revoked is not None:
            raise RevokedError(f"this communicator is revoked since: {self._revoked}") from self._revoked

    def _step(self, planned: Planned) -> None:
        """A whole call by an engine that is no more than `Engine`."""
        epoch, tag = self._ring.begin(planned.rounds, planned.digest)
        with self._revoking(planned, epoch, tag) as running:
            buffers = list(planned.buffers)
            self._engine.run(running, buffers, deadline_s=self._deadline_s, watch=self._watch)

    def _resume(
        self, planned: Planned, epoch: int, tag: int, program: _native.Program, status: int, found: Obstacles
    ) -> None:
        """The rest of a call that C began, and that did not end at once."""
        assert isinstance(self._engine, NativeEngine)
        with self._revoking(planned, epoch, tag) as running:
            self._engine.finish(
                running,
                program,
                status,
                found,
                buffers=planned.buffers,
                deadline_s=self._deadline_s,
                watch=self._watch,
            )

    @contextmanager
    def _revoking(self, planned: Planned, epoch: int, tag: int) -> Iterator[Running]:
        """After an error nothing more can be called: what was sent cannot be called back."""
        running = self._running(planned, epoch, tag)
        self._watch.begin(self._ring.calls)
        try:
            yield running
        except BaseException as error:  # also Ctrl-C
            name = f"{type(error).__name__} in [{planned.call}]"
            self._give_up(error if isinstance(error, RunError) else RunError(name))
            raise

    def _give_up(self, error: RunError) -> None:
        self._revoked = self._revoked or error
        self._ring.revoked = 1
        revocation.tell(self._board, self._context.session, self.rank, error)

    def _running(self, planned: Planned, epoch: int, tag: int) -> Running:
        binding = Binding(self.layout, self._base, epoch, tag)
        return Running(planned.call, planned.frame, planned.part, binding)

    def _plan(self, chosen: Recipe, call: Call) -> tuple[Plan, int]:
        return _plan_of(chosen, self.layout, call, self.rank)

    def _clear_doorbells(self) -> None:
        """Write zeros to this rank's doorbell lines: the pool may hold those of a run that crashed."""
        memory = self._context.memory
        for card, offset, nbytes in self.layout.doorbells_of(self.rank):
            memory.write(card, self._base + offset, np.zeros(nbytes, np.uint8))
            memory.flush(card, self._base + offset, nbytes)
            self._context.session.beat()  # peers may be waiting for this rank to be done
        memory.fence()

    def close(self) -> None:
        """Wait for this rank's calls that are under way. Raises the error of one that nobody waited for."""
        self._lane.drain()
        self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()


@lru_cache(maxsize=PLANS_KEPT)
def _plan_of(chosen: Recipe, layout: Layout, call: Call, rank: int) -> tuple[Plan, int]:
    """A plan that breaks no rule, and 16 bits of what its ranks must agree on. Raises PlanError.

    Of an algorithm that is not ours all ranks' parts are checked: its ranks may step on each other.
    """
    plan = build(chosen, layout, call)
    rules.check(plan, None if chosen.source else [rank])
    return plan, crc_hqx(repr(plan.frame).encode(), call.tag())


@lru_cache(maxsize=PLANS_KEPT)
def _product_plan_of(layout: Layout, call: Call, rank: int) -> tuple[Plan, int]:
    """As _plan_of."""
    plan = build_product(layout, call)
    rules.check(plan, [rank])
    return plan, crc_hqx(repr(plan.frame).encode(), call.tag())


def _as_i64(number: int) -> int:
    """A color or a key. Raises ArgumentError for what is no 64-bit integer."""
    try:
        value = operator.index(number)
    except TypeError:
        raise ArgumentError(f"split takes whole numbers as color and key, not {number!r}") from None
    if not -(2**63) <= value < 2**63:
        raise ArgumentError(f"split takes 64-bit numbers as color and key, not {number}")
    return value


__all__ = ["Communicator", "Handle", "Operation", "Outcome"]
