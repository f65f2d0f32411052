"""What is mutated: every shipped plan, small, in the midst of calls in which each of its instructions matters.

The ring has few slots, and before the plan under test a broadcast has filled them whole: slots are reused and lines
are stale. The plan comes often enough for the ring to wrap, then a user rewrites what was lent, then broadcasts of
another root reuse the slots: a writer in a hurry has something to overwrite. The mistake is in every call of the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from collectives import fused
from collectives.algorithms import catalog
from collectives.algorithms.catalog import recipe
from collectives.algorithms.hierarchical.levels import HIERARCHICAL
from collectives.algorithms.hierarchical.needs import needs
from collectives.builder.recipes import CHECKED, with_checksums
from collectives.contracts import COLLECTIVES, NO_ZERO_COPY_IN_PLACE
from collectives.fused.plans import fused_call
from collectives.sweep.sweep import load_algorithm
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan import Call, InHeap, Layout, Plan
from cxlemu.topology.clusters import cluster_sizes
from faults.lockstep.zero_copy_calls import HEAP_INPUT, HEAP_OUTPUT, lent, lent_if_zero_copy, with_heap
from faults.mutate.own import smallest

LINES_MAX = 1024
WIDE = "wide tiles"  # compute tiles of two shards each
OPERATORS = (*COLLECTIVES, *fused.KINDS)


class MutationCase(NamedTuple):
    """A plan that is shipped, or a user's. ``rounds`` 2: in a ring of one slot, or later rounds would be ordered by
    earlier ones."""

    collective: str
    variant: str
    ranks: int
    rounds: int = 1
    in_place: bool = False
    output_in_heap: bool = False
    cluster: int = 1
    form: str = ""  # of a fused product: its other transport, or WIDE
    checked: bool = False  # doorbells carry checksums
    algorithm: str = ""  # FILE.py:function or FILE.plan: a user's, whose name the variant is

    def __str__(self) -> str:
        words = [self.collective, self.variant, f"{self.ranks} ranks"]
        words += [f"clusters of {self.cluster}"] if self.cluster > 1 else []
        words += [f"{self.rounds} rounds"] if self.rounds > 1 else []
        words += ["in place"] if self.in_place else []
        words += ["output in heap"] if self.output_in_heap else []
        words += [self.form] if self.form else []
        return " ".join(words + (["crc32c"] if self.checked else []))


def variants(collective: str) -> list[str]:
    """Of a collective, or the styles of a fused product."""
    return list(fused.STYLES) if collective in fused.KINDS else catalog.variants(collective, clusters=True)


def cases(collective: str, variant: str, ranks: int) -> Iterator[MutationCase]:
    """All forms in which a variant synchronizes: clusters, rounds, and arrays that are in place or in the heap."""
    if variant == HIERARCHICAL:
        for cluster in cluster_sizes(ranks):
            yield MutationCase(collective, variant, ranks, cluster=cluster)
            yield MutationCase(collective, variant, ranks, cluster=cluster, rounds=2)
            if collective in ("all_reduce", "all_to_all"):
                yield MutationCase(collective, variant, ranks, cluster=cluster, in_place=True)
        return
    yield MutationCase(collective, variant, ranks)
    if collective == "barrier":
        return
    if collective in fused.KINDS and variant == fused.STYLES[0]:
        yield from (
            MutationCase(collective, variant, ranks, form=form) for form in (*fused.TRANSPORTS[collective][1:], WIDE)
        )
    zero_copy = variant == "zero_copy"
    takes_rounds = not zero_copy or collective == "all_reduce"  # of zero copy only its results have slots
    if takes_rounds:
        yield MutationCase(collective, variant, ranks, rounds=2)
    overwriting = ("all", "doubling", "pairwise", "rabenseifner")
    may_overwrite = collective in ("all_reduce", "all_to_all") and variant in overwriting
    may_lend = zero_copy and collective not in NO_ZERO_COPY_IN_PLACE and collective in ("all_gather", "all_reduce")
    if may_overwrite or may_lend:
        yield MutationCase(collective, variant, ranks, in_place=True)
    if zero_copy and collective == "all_reduce":
        yield MutationCase(collective, variant, ranks, output_in_heap=True)


def own_cases(algorithm: str, ranks: Sequence[int]) -> Iterator[MutationCase]:
    """Those of a user's algorithm; a saved plan is one. Raises ArgumentError as `load_algorithm`."""
    own = load_algorithm(algorithm)
    if own.plan is not None:
        yield MutationCase(own.collective, own.name, own.plan.ranks, algorithm=algorithm)
        return
    for count in ranks:
        yield MutationCase(own.collective, own.name, count, algorithm=algorithm)
        if COLLECTIVES[own.collective].moves_data:
            yield MutationCase(own.collective, own.name, count, rounds=2, algorithm=algorithm)


def can_check(case: MutationCase) -> bool:
    """Whether its plan can carry checksums, and is another one then."""
    try:
        plain = recipe(case.collective, case.variant)
        return with_checksums(plain) is not plain
    except ArgumentError:
        return False


def shipped(ranks: int) -> Iterator[MutationCase]:
    """Every case of every variant of every collective and every fused product."""
    for collective in OPERATORS:
        for variant in variants(collective):
            yield from cases(collective, variant, ranks)


def plan_of(case: MutationCase) -> Plan:
    """Two lines a block: in one round, of two chunks where a style has chunks, or a round for each."""
    if case.algorithm:
        return smallest(load_algorithm(case.algorithm), case.ranks, case.rounds)
    if case.collective in fused.KINDS:
        return _smallest(case, _fused_call(case), 0)
    contract = COLLECTIVES[case.collective]
    line_bytes = PAYLOAD_BYTES if case.variant == "line" else LINE_BYTES
    nbytes = 2 * line_bytes if contract.moves_data else 0
    if case.collective == "all_reduce" and case.variant in ("two_shot", "zero_copy", HIERARCHICAL):
        nbytes *= case.ranks  # a slice has two lines, on clusters those of each
    elif case.collective in ("broadcast", "reduce"):
        nbytes *= case.cluster
    name = case.variant + CHECKED * case.checked
    dtype, op = ("f32", "sum") if contract.reduces else ("u8", "none")  # sums of floats show their order
    call = Call(case.collective, name, case.ranks, nbytes, dtype, op)
    call = replace(call, in_place=case.in_place, cluster=case.cluster)
    if case.variant == "zero_copy":
        call = lent(call, output=case.output_in_heap)
    return _smallest(case, call, line_bytes)


def _fused_call(case: MutationCase) -> Call:
    """Shards of two rows, each a line of what moves: a communication tile, and two compute tiles or part of one."""
    ranks = case.ranks
    m, n, k = (2 * ranks, 2 * ranks, 16) if case.collective == "all_gather_gemm" else (2 * ranks, 16, 2 * ranks)
    columns = 1 if case.collective == "all_gather_gemm" else 8
    if case.variant != "fused":
        return fused_call(case.collective, case.variant, ranks, m, n, k)
    rows, transport = (4, None) if case.form == WIDE else (1, case.form or None)
    its: dict[str, Any] = {"comm_tile_rows": 1, "compute_tile": (rows, columns), "transport": transport}
    return fused_call(case.collective, "fused", ranks, m, n, k, **its)


def _smallest(case: MutationCase, call: Call, line_bytes: int) -> Plan:
    """In the smallest slots that will do; a block gets more lines where those take less than the case's rounds."""
    slots, doorbells = (2, 2 * _blocks(case)) if case.rounds == 1 else (1, _blocks(case))
    for lines in range(1, LINES_MAX):
        layout = with_heap(Layout(case.ranks, 2, slots, lines * LINE_BYTES, doorbells, interleave_bytes=LINE_BYTES))
        try:
            plan = _build(layout, call)
            rounds = plan.rounds
        except ArgumentError:  # a slot has no line for every block
            continue
        while line_bytes and rounds < case.rounds:  # the smallest slot takes more
            call = replace(call, nbytes=call.nbytes + line_bytes)
            plan = _build(layout, call)
            rounds = plan.rounds
        if rounds == case.rounds:
            return plan
    raise AssertionError(f"{case}: no slot of less than {LINES_MAX} lines takes it")


def _blocks(case: MutationCase) -> int:
    """How many blocks a rank publishes, at most."""
    if case.cluster > 1:
        inside, across, _ = needs(Call(case.collective, case.variant, case.ranks, 0, cluster=case.cluster))
        return inside + across
    if case.form == "push":
        return case.ranks
    if case.collective in ("all_to_all", "reduce_scatter", "scatter", "gemm_reduce_scatter"):
        return case.ranks
    publishes = None if case.collective in fused.KINDS else recipe(case.collective, case.variant).publishes
    if publishes is not None:
        return publishes(case.ranks).doorbells
    results = case.variant in ("two_shot", "zero_copy") or case.collective == "gemm_all_reduce"
    return case.ranks + 1 if results else 1


def _build(layout: Layout, call: Call) -> Plan:
    if call.gemm is not None:
        return fused.build(layout, call)
    name, plus, _ = call.algorithm.partition(CHECKED)
    plain = recipe(call.collective, name)
    return catalog.build(with_checksums(plain) if plus else plain, layout, call)


def sequence(case: MutationCase, plan: Plan, rank: int) -> list[Plan]:
    """The calls in which a mistake of ``rank`` is looked for, the plan among them."""
    slots = plan.layout.slots
    before = [_filling(case, plan.layout, rank)] * slots
    after = [_filling(case, plan.layout, (rank + 1) % case.ranks)] * slots
    return before + [plan] * (slots + 1) + _rewriting(case, plan.layout) + after


def mixtures(case: MutationCase, plan: Plan) -> Iterator[list[Plan]]:
    """The plan between calls of every other shipped plan that fits the same slots, of each root that it has."""
    layout, slots = plan.layout, plan.layout.slots
    for collective, contract in COLLECTIVES.items():
        for variant in variants(collective):
            for root in range(case.ranks if contract.rooted_input or contract.rooted_output else 1):
                op = "sum" if contract.reduces else "none"
                call = Call(collective, variant, case.ranks, LINE_BYTES * contract.moves_data, "u8", op, root)
                try:
                    other = _build(layout, lent_if_zero_copy(call))
                    calls = [other] * slots + [plan] * (slots + 1) + [other] * slots
                    assert all(p.parts for p in calls)
                except ArgumentError:  # it needs larger slots, or more doorbells
                    continue
                yield calls


def _filling(case: MutationCase, layout: Layout, root: int) -> Plan:
    """A broadcast that writes all of a slot: its data or, for the line style, its doorbells."""
    variant, nbytes = "naive", layout.slot_bytes
    if case.variant == "line":
        variant, nbytes = "line", layout.doorbells_per_rank * PAYLOAD_BYTES
    return _build(layout, Call("broadcast", variant, case.ranks, nbytes, root=root))


def _rewriting(case: MutationCase, layout: Layout) -> list[Plan]:
    """A user who fills a result in the heap anew as soon as the call returns, and publishes that.

    All other calls rewrite their inputs themselves, when they come again.
    """
    if not case.output_in_heap and (case.collective, case.variant, case.in_place) != ("all_reduce", "zero_copy", True):
        return []
    place = HEAP_OUTPUT if case.output_in_heap else HEAP_INPUT
    call = Call("all_gather", "zero_copy", case.ranks, 1024, heap=InHeap(place))
    return [_build(layout, call)]
