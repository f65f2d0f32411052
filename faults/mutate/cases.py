"""The plans that are mutated: every shipped plan, small, amidst calls in which each of its instructions matters.

The ring has few slots, and before the plan under test a broadcast has filled them whole: slots are reused and lines
are stale. The plan comes often enough for the ring to wrap, then a user rewrites what was lent, then broadcasts of
another root reuse the slots: a writer in a hurry has something to overwrite. The mistake is in every call of the plan.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from collectives import fused
from collectives.algorithms import catalog
from collectives.algorithms.catalog import recipe
from collectives.algorithms.hierarchical.needs import SLICED, needs
from collectives.builder import ALL, LINE, NAIVE, ZERO_COPY, VariantSpec
from collectives.builder.recipes import CHECKED, Recipe, with_checksums
from collectives.builder.slots import Loop
from collectives.contracts import COLLECTIVES, NO_ZERO_COPY_IN_PLACE, Collective, buffers
from collectives.fused.plans import fused_call
from collectives.sweep.sweep import load_algorithm
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan import Call, InHeap, Layout, Plan
from cxlemu.topology.clusters import cluster_sizes
from faults.mutate.own import smallest
from faults.prove.rounds import ASKING, Asking
from faults.prove.sequences import filling
from faults.zero_copy_calls import HEAP_INPUT, HEAP_OUTPUT, lent, lent_if_zero_copy, with_heap

LINES_MAX = 1024
WIDE = "wide tiles"  # compute tiles of two shards each
OPERATORS = (*COLLECTIVES, *fused.KINDS)


class MutationCase(NamedTuple):
    """A plan to mutate: a shipped one, or a user's."""

    collective: str  # name of the collective or the fused product
    variant: str  # name of the variant, of the style of a fused product, or of a user's algorithm
    ranks: int
    # 1; or one more than there are loops of rounds, in a ring of one slot fewer, because otherwise earlier rounds would
    # order later ones
    rounds: int = 1
    in_place: bool = False  # whether the result replaces the input
    output_in_heap: bool = False  # whether the result lies in the heap
    cluster: int = 1  # ranks in each cluster; 1 without clusters
    form: str = ""  # for a fused product: its other transport, or WIDE
    checked: bool = False  # whether doorbells carry checksums
    algorithm: str = ""  # ``FILE.py:function`` or ``FILE.plan`` of a user; empty for a shipped plan

    def __str__(self) -> str:
        words = [self.collective, self.variant, f"{self.ranks} ranks"]
        words += [f"clusters of {self.cluster}"] if self.cluster > 1 else []
        words += [f"{self.rounds} rounds"] if self.rounds > 1 else []
        words += ["in place"] if self.in_place else []
        words += ["output in heap"] if self.output_in_heap else []
        words += [self.form] if self.form else []
        return " ".join(words + (["crc32c"] if self.checked else []))


def variants(collective: str) -> list[str]:
    """List the variants of a collective, or the styles of a fused product."""
    if collective in fused.KINDS:
        return list(fused.STYLES)
    return [*catalog.variants(collective, clusters=True), *catalog.pushing(collective)]


def cases(collective: str, variant: str, ranks: int) -> Iterator[MutationCase]:
    """Yield all forms in which a variant synchronizes: clusters, rounds, arrays in place or in the heap."""
    if collective in fused.KINDS:
        yield from _fused_cases(collective, variant, ranks)
        return
    source, contract = recipe(collective, variant), COLLECTIVES[collective]
    if source.builder.takes_clusters:
        for cluster in cluster_sizes(ranks):
            case = MutationCase(collective, variant, ranks, cluster=cluster)
            yield case
            yield case._replace(rounds=2)
            if _replaces_what_peers_read(contract):
                yield case._replace(in_place=True)
        return
    least = _least_rounds(source)
    case = MutationCase(collective, variant, ranks, rounds=least if least == 1 else least + 1)
    yield case
    if not contract.moves_data:
        return
    takes_slots = _takes_slots(source)
    if takes_slots and case.rounds == 1:
        yield case._replace(rounds=2)
    if _waits_in_place(source):
        yield case._replace(in_place=True)
    if source.spec.zero_copy and takes_slots:
        yield case._replace(output_in_heap=True)


def _fused_cases(collective: str, style: str, ranks: int) -> Iterator[MutationCase]:
    case = MutationCase(collective, style, ranks)
    yield case
    if style == fused.STYLES[0]:
        yield from (case._replace(form=form) for form in (*fused.TRANSPORTS[collective][1:], WIDE))
    yield case._replace(rounds=2)


def _replaces_what_peers_read(contract: Collective) -> bool:
    """Whether in place every rank's result takes the bytes that its peers get from it."""
    return contract.input_blocks == contract.output_blocks and not contract.rooted


def _takes_slots(its: Recipe) -> bool:
    """Whether blocks travel through slots. With zero copy only those blocks do that are not part of the input."""
    if its.spec.pushes:
        return False
    if not its.spec.zero_copy:
        return True
    call = _sample(its)
    return any(loop.blocks * loop.nbytes > buffers(call, call.root)[0].nbytes for loop in loops_of(its, call))


def _least_rounds(its: Recipe) -> int:
    """Count the rounds of a call that is as small as can be: one in each loop."""
    contract = COLLECTIVES[its.collective]
    return len(loops_of(its, _sample(its))) if contract.moves_data else 1


def _waits_in_place(its: Recipe) -> bool:
    """Whether streams wait for each other in place, lest a result replace what is still to be read."""
    contract, zero_copy = COLLECTIVES[its.collective], its.spec.zero_copy
    if its.spec.pushes:
        return False
    if zero_copy:
        may = not contract.rooted and its.collective not in NO_ZERO_COPY_IN_PLACE
    else:
        may = _replaces_what_peers_read(contract)
    if not may or not its.spec.overlap:
        return False
    call = _sample(its)
    layout = with_heap(Layout(call.ranks, 2, 2, call.nbytes * call.ranks, 16 * call.ranks, LINE_BYTES))
    plain, in_place = (
        catalog.build(its, layout, lent(one) if zero_copy else one) for one in (call, replace(call, in_place=True))
    )
    return any(part.streams != other.streams for part, other in zip(plain.parts, in_place.parts, strict=True))


def _sample(its: Recipe) -> Call:
    """Make a call of three ranks: an algorithm has all of its steps only if their number is no power of two."""
    return Call(its.collective, its.name, 3, 3 * 4 * LINE_BYTES, *_folds(COLLECTIVES[its.collective]))


def _folds(contract: Collective) -> tuple[str, str]:
    """Choose a dtype and an operation: sums of floats show their order."""
    return ("f32", "sum") if contract.reduces else ("u8", "none")


def own_cases(algorithm: str, ranks: Sequence[int]) -> Iterator[MutationCase]:
    """List the cases of a user's algorithm or saved plan."""
    own = load_algorithm(algorithm)
    if own.plan is not None:
        yield MutationCase(own.collective, own.name, own.plan.ranks, algorithm=algorithm)
        return
    for count in ranks:
        yield MutationCase(own.collective, own.name, count, algorithm=algorithm)
        if COLLECTIVES[own.collective].moves_data:
            yield MutationCase(own.collective, own.name, count, rounds=2, algorithm=algorithm)


def can_check(case: MutationCase) -> bool:
    """Say whether the case's plan can carry checksums, and would differ with them."""
    try:
        plain = recipe(case.collective, case.variant)
        return with_checksums(plain) is not plain
    except ArgumentError:
        return False


def shipped(ranks: int) -> Iterator[MutationCase]:
    """Yield every case of every variant of every collective and every fused product on ``ranks`` ranks."""
    for collective in OPERATORS:
        for variant in variants(collective):
            yield from cases(collective, variant, ranks)


def shipped_and_checked(ranks: int) -> Iterator[MutationCase]:
    """Yield every shipped case, and then the same with checksums if its plan can carry them."""
    for case in shipped(ranks):
        yield case
        if can_check(case):
            yield case._replace(checked=True)


def plan_of(case: MutationCase) -> Plan:
    """Build the plan of a case.

    A block has two lines: in one round, of two chunks if the variant has chunks, or one line in each of two rounds. A
    user's plan is as `faults.mutate.own.smallest` makes it.
    """
    if case.algorithm:
        return smallest(load_algorithm(case.algorithm), case.ranks, case.rounds)
    if case.collective in fused.KINDS:
        return _smallest(case, _fused_call(case), 0)
    source, contract = recipe(case.collective, case.variant), COLLECTIVES[case.collective]
    line_bytes = PAYLOAD_BYTES if source.spec.in_lines else LINE_BYTES
    nbytes = 2 * line_bytes * _slices(case) if contract.moves_data else 0
    name = case.variant + CHECKED * case.checked
    call = Call(case.collective, name, case.ranks, nbytes, *_folds(contract))
    call = replace(call, in_place=case.in_place, cluster=case.cluster)
    call = lent(call, output=True) if case.output_in_heap else lent_if_zero_copy(call, source)
    return _smallest(case, call, line_bytes)


def _slices(case: MutationCase) -> int:
    """Count the parts of two lines each into which the algorithm cuts a block; on clusters, the parts of each
    cluster."""
    if case.cluster > 1:
        shared = COLLECTIVES[case.collective].shared_result
        return case.ranks if shared else case.cluster if case.collective in SLICED else 1
    nbytes = case.ranks * LINE_BYTES
    loops = _loops(case, nbytes)
    declared = recipe(case.collective, case.variant).publishes
    of_each_chunk = declared(case.ranks).slices if declared is not None else 1
    return of_each_chunk * (nbytes // loops[0].nbytes if loops else 1)


def _loops(case: MutationCase, nbytes: int) -> list[Loop]:
    source = recipe(case.collective, case.variant)
    call = Call(case.collective, case.variant, case.ranks, nbytes, *_folds(COLLECTIVES[case.collective]))
    return loops_of(source, call)


def _fused_call(case: MutationCase) -> Call:
    """Make a call with shards of two rows, each a line that moves: a communication tile, and two compute tiles or part
    of one."""
    ranks = case.ranks
    m, n, k = (2 * ranks, 2 * ranks, 16) if case.collective == "all_gather_gemm" else (2 * ranks, 16, 2 * ranks)
    columns = 1 if case.collective == "all_gather_gemm" else 8
    if case.variant != "fused":
        return fused_call(case.collective, case.variant, ranks, m, n, k)
    rows, transport = (4, None) if case.form == WIDE else (1, case.form or None)
    cut: dict[str, Any] = {"comm_tile_rows": 1, "compute_tile": (rows, columns), "transport": transport}
    return fused_call(case.collective, "fused", ranks, m, n, k, **cut)


def _smallest(case: MutationCase, call: Call, line_bytes: int) -> Plan:
    """Build the plan in the smallest slots that hold it; a block gets more lines if those take fewer rounds than the
    case has."""
    slots = case.rounds - 1 or 2
    doorbells = _blocks(case) * (2 if case.rounds == 1 else 1)
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
    """Count the doorbells that a rank needs for each chunk."""
    if case.cluster > 1:
        inside, across, _ = needs(Call(case.collective, case.variant, case.ranks, 0, cluster=case.cluster))
        return inside + across
    if case.collective in fused.KINDS:
        if case.form == "push" or case.collective == "gemm_reduce_scatter":
            return case.ranks
        return case.ranks + 1 if case.collective == "gemm_all_reduce" else 1
    return max((loop.bells or loop.blocks for loop in _loops(case, case.ranks * LINE_BYTES)), default=1)


def _build(layout: Layout, call: Call) -> Plan:
    if call.gemm is not None:
        return fused.build(layout, call)
    name, plus, _ = call.algorithm.partition(CHECKED)
    plain = recipe(call.collective, name)
    return catalog.build(with_checksums(plain) if plus else plain, layout, call)


def sequence(case: MutationCase, plan: Plan, rank: int) -> list[Plan]:
    """List the calls in which a mistake of a rank is looked for."""
    slots = plan.layout.slots
    before = [_filling(case, plan.layout, rank)] * slots
    after = [_filling(case, plan.layout, (rank + 1) % case.ranks)] * slots
    return before + [plan] * (slots + 1) + _rewriting(case, plan.layout) + after


def mixtures(case: MutationCase, plan: Plan) -> Iterator[list[Plan]]:
    """Place a plan between calls of every other shipped plan that fits the same slots, for each root that it has."""
    layout, slots = plan.layout, plan.layout.slots
    for collective, contract in COLLECTIVES.items():
        for variant in variants(collective):
            for root in range(case.ranks if contract.rooted_input or contract.rooted_output else 1):
                op = "sum" if contract.reduces else "none"
                call = Call(collective, variant, case.ranks, LINE_BYTES * contract.moves_data, "u8", op, root)
                try:
                    other = _build(layout, lent_if_zero_copy(call))
                    calls = [other] * slots + [plan] * (slots + 1) + [other] * slots
                    for each in (other, plan):
                        _ = each.parts
                except ArgumentError:  # it needs larger slots, or more doorbells
                    continue
                yield calls


def _filling(case: MutationCase, layout: Layout, root: int) -> Plan:
    """Build a broadcast that writes all of a slot: its data or, if all of the case's payloads travel in doorbells'
    lines, as the places of arrays do, its doorbells."""
    spec = _spec(case)
    lent = spec.takes_heap and not case.algorithm and not _takes_slots(recipe(case.collective, case.variant))
    return filling(layout, LINE if spec.in_lines or lent else NAIVE, root)


def _rewriting(case: MutationCase, layout: Layout) -> list[Plan]:
    """Make the call of a user who fills a result in the heap anew as soon as the call returns, and publishes that.

    All other calls rewrite their inputs themselves, when they come again.
    """
    lies_there = case.in_place and _spec(case).zero_copy and COLLECTIVES[case.collective].shared_result
    if not case.output_in_heap and not lies_there:
        return []
    place = HEAP_OUTPUT if case.output_in_heap else HEAP_INPUT
    call = Call("all_gather", ZERO_COPY.name, case.ranks, 1024, heap=InHeap(place, told=True))
    return [_build(layout, call)]


def _spec(case: MutationCase) -> VariantSpec:
    """Look up what the case's variant declares; transports of a fused product are no variants."""
    if case.algorithm:
        return load_algorithm(case.algorithm).spec
    return ALL if case.collective in fused.KINDS else recipe(case.collective, case.variant).spec


def loops_of(recipe: Recipe, call: Call) -> list[Loop]:
    """The loops over rounds in which a one-level algorithm of ours moves a call's blocks, as the root asks for them."""
    layout = Layout(call.ranks, 1, 1, LINE_BYTES, 1, LINE_BYTES)
    asking = ASKING.get(recipe.builder, Asking)(call, layout, recipe.spec, call.root)
    recipe.algorithm(asking)
    return asking.loops
