"""Turns the arguments of a call into a planned one: checked, an algorithm chosen, permitted, bound. Nothing runs."""

from __future__ import annotations

from binascii import crc_hqx
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from collectives.algorithms.catalog import PLANS_KEPT, check, plan_of, recipe
from collectives.algorithms.choose import Choice, choose
from collectives.algorithms.hierarchical.estimate import TwoLevelEstimate
from collectives.builder import PUSH, SCRATCH
from collectives.builder.carriers import refusal
from collectives.builder.recipes import Recipe, with_checksums
from collectives.communicator.arrays import Array, Bound, as_bytes, bind, block_bytes, dtype_name
from collectives.communicator.calls import transport
from collectives.communicator.calls.operations import Planned
from collectives.communicator.calls.products import Matrix
from collectives.communicator.calls.products import bind as bind_product
from collectives.communicator.heap.heap import SymmetricHeap
from collectives.contracts import COLLECTIVES
from collectives.fused.plans import build as build_product
from collectives.in_heap import gives_up, lends, results_in_heap, told_in_heap
from cxlemu.capacity.tenancy import Tenancy
from cxlemu.engines.peer_memory import PeerMemory
from cxlemu.engines.streams import NO_PLACE
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes
from cxlemu.numbers import op_of, root_of
from cxlemu.plan import DTYPES, Call, InHeap, Layout, Plan, RankPart, rules


class CallArguments(NamedTuple):
    """What a verb asks for, its defaults filled in."""

    collective: str
    x: Array | None  # the array that was given as input, or None
    out: Array | None  # the array for the result, or None where this rank gets none
    op: str  # the reduction, such as "sum"; "none" where the collective does not reduce
    root: int  # the root's rank, 0 where there is none
    variant: str | Recipe  # "auto", a variant's name, or a Recipe
    counts: tuple[int, ...] = ()  # the bytes of each block of an uneven collective, as in `Call`
    verb: str = ""  # what the user called, where that is not the collective
    list_of: tuple[tuple[str, int], ...] = ()  # of which arrays ``x`` is packed: the dtype and the bytes of each


@dataclass
class CallPlanner:
    rank: int  # this rank's number in the communicator
    size: int
    cluster: int  # how many consecutive ranks share a host; 1: there are no clusters
    layout: Layout  # the communicator's ring and heap
    base: int  # where the communicator's extent begins on every card, in bytes
    heap: SymmetricHeap  # the communicator's heap, which knows which arrays lie in the pool
    ways: TwoLevelEstimate | None  # the costs of two levels where those may pay, else None
    integrity: str | None  # the checksum that travels with doorbells, or None
    tenancy: Tenancy | None  # the grant that plans must stay in, or None where the whole pool is this world's
    # the ranks' processes, from which peers read arrays where they lie; None: they travel through the pool
    peers: PeerMemory | None = None
    _permitted: dict[int, Plan] = field(default_factory=dict)
    _scratch: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))

    def choice(
        self, collective: str, nbytes: int, *, in_pool: bool = False, out_in_pool: bool = False, dtype: str = ""
    ) -> Choice:
        """Return the variant that "auto" takes for a block of ``nbytes``, and why, in a sentence."""
        in_process = self.peers is not None and not in_pool
        return choose(
            collective,
            nbytes,
            self.size,
            in_pool=in_pool,
            in_process=in_process,
            out_in_pool=out_in_pool and self.integrity is None,
            ways=self.ways,
            dtype=dtype,
        )

    def collective(self, asked: CallArguments, *, on_host: bool = True) -> Planned:
        """Plan a collective, so that it is ready to run."""
        chosen, bound = self._chosen(asked, self.peers is not None and on_host)
        heap, layout = bound.call.heap, self.layout
        if heap is not None and heap.in_process:
            layout = transport.layout_in_processes(bound.call, layout)
        plan, digest = plan_of(chosen, layout, bound.call, self.rank)
        self._permit(plan)
        part = plan.part(self.rank)
        buffers = (bound.input, bound.output, self._scratch_for(part))
        if asked.verb:
            digest = crc_hqx(repr((asked.verb, asked.list_of)).encode(), digest)
        places = self._places(bound)
        return Planned(bound.call, plan.frame, part, plan.rounds, digest, buffers, plan, places, asked.verb)

    def _places(self, bound: Bound) -> tuple[int, int]:
        """Return where this rank's arrays lie in its strip, for a call whose doorbells tell that."""
        heap = bound.call.heap
        if heap is None or not heap.told:
            return NO_PLACE, NO_PLACE
        output = NO_PLACE if heap.output is None else self.heap.place_of(bound.output)
        return self.heap.place_of(bound.input), output

    def product(
        self, kind: str, a: Matrix, b: Matrix, out: Matrix | None, style: str, **cut: Any
    ) -> tuple[Planned, Matrix]:
        """Plan a fused product, so that it is ready to run; return it, and the matrix that it fills (None: a new
        one)."""
        bound = bind_product(kind, self.size, a, b, out, style, **cut)
        plan, digest = product_plan_of(self.layout, bound.call, self.rank)
        return self.product_of(plan, digest, (bound.a, bound.c, bound.b)), bound.out

    def product_of(self, plan: Plan, digest: int, matrices: tuple[Bytes, Bytes, Bytes]) -> Planned:
        """Bind a plan of a fused product to the bytes of A, the result and B; ranks agree on the 16 bits of
        ``digest``."""
        if self.integrity is not None:
            raise ArgumentError(
                f"{plan.call.collective}: doorbells of products carry no checksums: leave out integrity"
            )
        self._permit(plan)
        part, (a, c, b) = plan.part(self.rank), matrices
        buffers = (a, c, self._scratch_for(part), b)
        return Planned(plan.call, plan.frame, part, plan.rounds, digest, buffers, plan)

    # --- choosing ---------------------------------------------------------------------------------------------

    def _chosen(self, asked: CallArguments, reachable: bool) -> tuple[Recipe, Bound]:
        collective, x, out, op, root, variant, counts = asked[:7]
        given, contract = x, COLLECTIVES[collective]
        root, op = root_of(collective, root, self.size), op_of(collective, op)
        if contract.rooted_input and not contract.one_buffer and self.rank != root:
            x = None
        sized = given if contract.to_next else x
        array = sized if sized is not None else out
        if contract.uneven:
            nbytes = max(counts)
        else:
            nbytes = 0 if not contract.moves_data else block_bytes(collective, self.size, sized, out)
        dtype = "u8" if array is None else dtype_name(array, reduces=contract.reduces)
        auto = variant == "auto"
        if auto:
            variant = choose(collective, nbytes, self.size, ways=self.ways, dtype=dtype).variant
        chosen = self._checked(variant if isinstance(variant, Recipe) else recipe(collective, str(variant)))
        if chosen.collective != collective:
            raise ArgumentError(f"{chosen.name} is an algorithm for {chosen.collective}, not for {collective}")
        cluster = self.cluster if chosen.builder.takes_clusters else 1
        call = Call(collective, chosen.name, self.size, nbytes, dtype, op, root, cluster=cluster, counts=counts)
        check(call)
        bound = bind(call, self.rank, x, out)
        if chosen.spec.pushes or (auto and self.heap.in_use):
            pushed = self._pushed(chosen, bound, auto)
            if pushed is not None:
                return pushed
        if chosen.spec.zero_copy or (auto and (self.heap.in_use or reachable)):
            return self._with_zero_copy(chosen, bound, given, auto, reachable)
        return chosen, bound

    def _with_zero_copy(
        self, chosen: Recipe, bound: Bound, x: Array | None, auto: bool, reachable: bool
    ) -> tuple[Recipe, Bound]:
        """The call with zero copy: as it is asked for or, with ``auto``, where it pays."""
        call = bound.call
        refusal = transport.refusal(call.collective, in_place=call.in_place)
        source = None if x is None or refusal is not None else as_bytes(x, "x")
        lies = source is not None and self.heap.holds(call, self.rank, source, bound.output, any_part=not auto)
        in_process = not lies and reachable and refusal is None
        if auto:
            variant = choose(
                call.collective,
                call.nbytes,
                self.size,
                in_pool=lies,
                in_process=in_process,
                ways=self.ways,
                dtype=call.dtype,
            ).variant
            better = self._recipe(call.collective, variant)
            if not better.spec.zero_copy:
                return chosen, bound
            chosen = better
        elif not in_process and (why := refusal or self._unlent(call, bound, source, foreign=bool(chosen.source))):
            raise ArgumentError(f"{call.collective} {chosen.name} publishes x where it lies in the pool: {why}")
        heap = transport.in_processes(call) if in_process else self._in_heap(chosen, bound, source)
        return chosen, bound._replace(call=replace(call, algorithm=chosen.name, heap=heap))

    def _pushed(self, chosen: Recipe, bound: Bound, auto: bool) -> tuple[Recipe, Bound] | None:
        """The call whose result peers write in the heap: as it is asked for or, with ``auto``, where it pays."""
        call = bound.call
        if auto:
            pick = choose(call.collective, call.nbytes, self.size, out_in_pool=True, dtype=call.dtype)
            if self.integrity is not None or pick.variant != PUSH.name:
                return None
            chosen = self._recipe(call.collective, pick.variant)
        offset = self.heap.placed(bound.output, any_part=not auto) if gives_up(call, self.rank) else 0
        why = refusal(call, offset or 0)
        if auto and (offset is None or why is not None or self.heap.place_of(bound.input) != NO_PLACE):
            return None
        if why is None and offset is None and call.nbytes:
            why = (
                "has peers write out where it lies in the pool: out must be an array that comm.heap made, or part of "
                "one"
            )
        if why is not None:
            raise ArgumentError(f"{call.collective} {chosen.name} {why}")
        saved = None if chosen.plan is None else chosen.plan.call.heap
        heap = results_in_heap() if saved is None or saved.told else InHeap(None, output=offset or 0)
        return chosen, bound._replace(call=replace(call, algorithm=chosen.name, heap=heap))

    def _unlent(self, call: Call, bound: Bound, source: Bytes | None, *, foreign: bool) -> str | None:
        """Say why peers could not read this rank's input where it lies, if they do."""
        if not call.nbytes or not (lends(call, self.rank) or (foreign and bound.input.nbytes)):
            return None
        place = self.heap.place_of(bound.input) if bound.input.nbytes else NO_PLACE
        whole = place != NO_PLACE and place % DTYPES[call.dtype].itemsize == 0
        return None if whole else "x must be an array that comm.heap made, or whole elements of one"

    def _in_heap(self, chosen: Recipe, bound: Bound, source: Bytes | None) -> InHeap:
        """Place the arrays in the heap: as ranks will tell, or for a saved plan of other arrays as that says."""
        call, saved = bound.call, None if chosen.plan is None else chosen.plan.call.heap
        if saved is not None and not saved.told:
            offset = None if source is None else self.heap.placed_in_heap(call, self.rank, source, bound.output)
            if offset is None:
                raise ArgumentError(f"{chosen.source} is the plan of arrays in the heap: x must be one on every rank")
            return offset
        shared = COLLECTIVES[call.collective].shared_result
        output = shared and (call.in_place or self.heap.place_of(bound.output) != NO_PLACE)
        return told_in_heap(call, self.layout, output=output)

    def _recipe(self, collective: str, variant: str) -> Recipe:
        return self._checked(recipe(collective, variant))

    def _checked(self, chosen: Recipe) -> Recipe:
        return chosen if self.integrity is None else with_checksums(chosen)

    # --- room and rights --------------------------------------------------------------------------------------

    def _scratch_for(self, part: RankPart) -> Bytes:
        if self._scratch.nbytes < (need := part.buffers[SCRATCH].nbytes):
            self._scratch = np.empty(need, np.uint8)  # operations made before keep the one they have
        return self._scratch

    def _permit(self, plan: Plan) -> None:
        """Raises AccessError for a plan that could touch what this tenant was not lent; once for each plan."""
        if self.tenancy is not None and self._permitted.get(id(plan)) is not plan:
            self.tenancy.require(plan.call, self.layout, plan.frame, self.base)
            self._permitted[id(plan)] = plan  # which keeps its id its own
            if len(self._permitted) > PLANS_KEPT:
                del self._permitted[next(iter(self._permitted))]


@lru_cache(maxsize=PLANS_KEPT)
def product_plan_of(layout: Layout, call: Call, rank: int) -> tuple[Plan, int]:
    """Build, check and keep the plan of a fused product; return it with 16 bits of what its ranks must agree on."""
    plan = build_product(layout, call)
    rules.check(plan, [rank])
    return plan, crc_hqx(repr(plan.frame).encode(), call.tag())
