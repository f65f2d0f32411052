"""How a communicator's call becomes an operation, and how that runs: checked, planned, permitted, bound, executed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from collectives import revocation
from collectives.arrays import Array, Bound, as_bytes, bind, block_bytes, dtype_name
from collectives.builder import SCRATCH
from collectives.catalog import check, recipe
from collectives.choose import Choice, choose
from collectives.contracts import COLLECTIVES, NEVER_LENT_IN_PLACE
from collectives.fused.words import Matrix, Products
from collectives.fused.words import bind as bind_product
from collectives.heap import SymmetricHeap
from collectives.hierarchical.estimate import Ways
from collectives.operations import Operation, Planned, Stepped
from collectives.plans import PLANS_KEPT, plan_of, product_plan_of
from collectives.progress import Lane
from collectives.recipes import Recipe, with_checksums
from collectives.verbs import Outcome, Verbs
from collectives.watch import Watcher
from cxlemu import _native
from cxlemu.capacity.tenancy import Tenancy
from cxlemu.engines import Engine
from cxlemu.engines.native import NativeEngine, Obstacles
from cxlemu.engines.streams import Binding, Running
from cxlemu.errors import ArgumentError, RevokedError, RunError
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPES, Call, Layout, Plan, RankPart
from cxlemu.pool.board import Board
from cxlemu.world import RankContext


class Calling(Verbs, Products):
    """What a communicator's calls need of it; it is made in `Communicator`."""

    cluster: int  # ranks in one; 1: there are none
    layout: Layout
    pool: SymmetricHeap
    _base: int  # where its extent begins on every card
    _board: Board
    _context: RankContext
    _tenancy: Tenancy | None
    _permitted: dict[int, Plan]
    _engine: Engine
    _lane: Lane
    _deadline_s: float
    _integrity: str | None
    _ways: Ways | None
    _revoked: RunError | None
    _scratch: Bytes
    _ring: _native.Ring
    _watch: Watcher
    _remembered: _native.Calls

    def choice(self, collective: str, nbytes: int, *, in_pool: bool = False) -> Choice:
        """What "auto" takes for blocks of ``nbytes``, and why. ``in_pool``: of a whole array that `pool` made."""
        return choose(collective, nbytes, self.size, in_pool=in_pool, ways=self._ways)

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
        lent, its = x, COLLECTIVES[collective]
        if its.rooted_input and not its.one_buffer and self.rank != root:
            x = None
        if not 0 <= root < self.size:
            raise ArgumentError(f"{collective}: root {root} is not one of the ranks 0..{self.size - 1}")
        nbytes = 0 if not its.moves_data else block_bytes(collective, self.size, x, out)
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
        self._permit(plan)
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
        plan, digest = product_plan_of(self.layout, bound.call, self.rank)
        return self.product_of(plan, digest, (bound.a, bound.c, bound.b), bound.out)

    def product_of(self, plan: Plan, digest: int, matrices: tuple[Bytes, Bytes, Bytes], result: Matrix) -> Operation:
        """A plan of a fused product, or what is left of one, on A, the result and B, as an operation."""
        self._check_usable()
        if self._integrity is not None:
            raise ArgumentError(
                f"{plan.call.collective}: doorbells of products carry no checksums: leave out integrity"
            )
        self._permit(plan)
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
            better = self._recipe(call.collective, variant)
            if not better.style.heap:
                return chosen, bound
            chosen = better
        elif heap is None or heap.input % DTYPES[call.dtype].itemsize:
            why = refusal or "x must be an array that comm.pool made, or whole elements of one"
            raise ArgumentError(f"{call.collective} {chosen.name} publishes x where it lies in the pool: {why}")
        return chosen, bound._replace(call=replace(call, algorithm=chosen.name, heap=heap))

    def _check_usable(self) -> None:
        if self._tenancy is not None:
            self._tenancy.look()
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
        return plan_of(chosen, self.layout, call, self.rank)

    def _permit(self, plan: Plan) -> None:
        """Raises AccessError for a plan that could touch what this tenant was not lent; once for each plan."""
        if self._tenancy is not None and self._permitted.get(id(plan)) is not plan:
            self._tenancy.require(plan.call, self.layout, plan.frame, self._base)
            self._permitted[id(plan)] = plan  # which keeps its id its own
            if len(self._permitted) > PLANS_KEPT:
                del self._permitted[next(iter(self._permitted))]
