"""The algorithms that there are, by name, and how a call becomes a plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from collectives.algorithms import PUSHING, SHIPPED
from collectives.algorithms.hierarchical import PAGES
from collectives.algorithms.hierarchical.levels import Levels
from collectives.algorithms.nccl import RECIPES as NCCL
from collectives.builder import ALL, Builder
from collectives.builder.recipes import Recipe, recipes_of
from collectives.choices import is_plan
from collectives.contracts import buffers, check_counts, contract_of
from cxlemu import userfile
from cxlemu.choices import DTYPE_KINDS, OPS_OF_KIND
from cxlemu.errors import ArgumentError, CxlemuError, PlanFileError
from cxlemu.plan import DTYPES, Buffer, Call, Frame, Layout, Plan, RankPart
from cxlemu.plan.reduction import why_not
from cxlemu.suggest import meant
from cxlemu.units import counted

BLOCK_BYTES_MAX = 1 << 40

# Ours, and NCCL's, which no choice of ours takes.
_RECIPES = {
    (recipe.collective, recipe.name): recipe for function in (*SHIPPED, *PAGES) for recipe in recipes_of(function)
}
# Those that write to peers' results take few calls: they are found by name, and by `auto`.
_PUSHING = {(recipe.collective, recipe.name): recipe for function in PUSHING for recipe in recipes_of(function)}
_BY_NAME = {**_PUSHING, **NCCL}
SHIPPED_NAMES = frozenset(name for _, name in (*_RECIPES, *_BY_NAME)) | {"auto", "every"}


def add(function: Callable[..., None]) -> None:
    """Add an algorithm's variants to those that ``--variant`` and every communicator of this process know.

    Args:
        function: An algorithm, decorated with ``@algorithm``.

    Raises:
        ArgumentError: The function is not decorated, or one of its variants' names is taken.
    """
    found = recipes_of(function)
    if not found:
        raise ArgumentError(f"{function!r} is no algorithm: decorate it with @algorithm")
    for its in found:
        if (its.collective, its.name) in _RECIPES or its.name in ("auto", "every"):
            raise ArgumentError(f"{its.collective} has a variant {its.name} already: choose another name")
    _RECIPES.update({(its.collective, its.name): its for its in found})


def variants(collective: str, *, clusters: bool = False, checksums: bool = False) -> list[str]:
    """List the variants that a collective can be run in.

    Args:
        collective: The collective's name.
        clusters: Whether ranks come in clusters; only then are variants listed that take clusters.
        checksums: Whether to list only those that can carry checksums, or need none.

    Returns:
        Names for ``--variant`` of those that take all calls: without NCCL's and `pushing`. Shipped ones come first.
    """
    found = [its for (its_collective, _), its in _RECIPES.items() if its_collective == collective]
    return [
        its.name
        for its in found
        if (clusters or not its.builder.takes_clusters) and (not checksums or its.carries_checksums)
    ]


def pushing(collective: str) -> list[str]:
    """List a collective's variants that write to peers' results, which lie in the heap."""
    return [name for its, name in _PUSHING if its == collective]


def recipe(collective: str, variant: str) -> Recipe:
    """Find a variant of a collective by name.

    Args:
        collective: The collective's name.
        variant: A variant's name or, for one that is cut into chunks, ``NAME-K``: the same in at most K of them.

    Raises:
        ArgumentError: There is no such variant; the message names those that there are.
    """
    contract_of(collective)
    found = _RECIPES.get((collective, variant)) or _BY_NAME.get((collective, variant))
    found = found or _in_chunks(collective, variant)
    if found is None:
        names = [*variants(collective, clusters=True), *(name for its, name in _BY_NAME if its == collective)]
        raise ArgumentError(
            f"{collective} has no variant {variant!r}: it has {', '.join(names)}{meant(variant, names)}"
        )
    return found


def _in_chunks(collective: str, variant: str) -> Recipe | None:
    name, _, count = variant.rpartition("-")
    found = _RECIPES.get((collective, name)) or _PUSHING.get((collective, name))
    if found is None or not re.fullmatch(r"[1-9]\d?", count) or not 1 <= int(count) < found.spec.chunks:
        return None
    return replace(found, name=variant, spec=replace(found.spec, name=variant, chunks=int(count)))


def load_plan(file: str) -> Plan:
    """Load a plan that ``cxlemu plan save`` wrote, and check that it obeys all rules and that its call means something.

    A plan file is data: nothing is executed.

    Raises:
        PlanFileError: The file cannot be read, or the plan is wrong.
    """
    from cxlemu.plan import file as plan_file  # which needs pydantic

    plan = plan_file.load(file)
    try:
        check(plan.call)
    except ArgumentError as error:
        raise PlanFileError(f"{file}: {error}") from error
    for part in plan.parts:
        found, right = part.buffers[:2], buffers(plan.call, part.rank)
        if found != right:
            raise PlanFileError(f"{file}: rank {part.rank} has {_named(found)}; its call takes {_named(right)}")
    return plan


def _named(found: Sequence[Buffer]) -> str:
    texts = (f"{b.name} of {b.nbytes} B" + (f" at {b.at} of {b.inside}" if b.inside else "") for b in found)
    return ", ".join(texts) or "no buffers"


def load_algorithm(spec: str) -> Recipe:
    """Load what a user brings.

    A Python file is executed; its function runs in its own name's style, or chunked and overlapped.

    Args:
        spec: ``FILE.py:function``, decorated with ``@algorithm``, or ``FILE.plan``, which was saved.

    Raises:
        ArgumentError: The file, the function or the decorator is missing, the file fails, or the name that
            ``@algorithm`` gives it is a shipped variant's.
        PlanFileError: The plan file cannot be read, or the plan is wrong.
    """
    if is_plan(spec):
        plan = load_plan(spec)
        call = plan.call
        heap = call.heap
        pushes = heap is not None and heap.is_written_by_peers
        variant = replace(ALL, name=call.algorithm, zero_copy=heap is not None and not pushes, pushes=pushes)
        kind = Levels if call.cluster > 1 else Builder
        order = call.fold_order
        return Recipe(
            call.collective, call.algorithm, _cannot_build, variant, order, source=spec, plan=plan, builder=kind
        )
    function, file, name = userfile.load(spec, "--algorithm")
    found = own_recipe(function, name, spec)
    if found is None:
        raise ArgumentError(f"--algorithm {spec}: {file} has no function {name!r} decorated with @algorithm")
    return found


def _cannot_build(builder: Builder) -> None:
    raise AssertionError("a saved plan is not built again")


def own_recipe(function: object, name: str, spec: str) -> Recipe | None:
    """Make the recipe of a user's own algorithm.

    Args:
        function: What the user's file has under the name.
        name: The function's name.
        spec: ``FILE.py:function``, from which it was loaded.

    Returns:
        The recipe, or None for a function that is not decorated with ``@algorithm``.

    Raises:
        ArgumentError: The name that ``@algorithm`` gives it is a shipped variant's.
    """
    found = recipes_of(function)
    if not found:
        return None
    variant = found[0].spec if len(found) == 1 else ALL
    name = _own_name(found[0], name, spec)
    return replace(found[0], name=name, spec=replace(variant, name=name), source=spec)


def _own_name(its: Recipe, function: str, spec: str) -> str:
    """The name of a user's algorithm in tables and plans: never that of a shipped one."""
    if its.named:
        if its.name in SHIPPED_NAMES:
            raise ArgumentError(f"{spec}: name={its.name!r} names a shipped variant: choose another name in @algorithm")
        return its.name
    file = re.sub(r"[^\w.-]", "_", Path(spec.rpartition(":")[0]).stem)[:50]
    return f"{file}.{function}" if function in SHIPPED_NAMES else function


def build(recipe: Recipe, layout: Layout, call: Call) -> Plan:
    """Build the plan of a call. The function is pure: equal arguments give equal plans.

    Args:
        recipe: The algorithm, or a saved plan.
        layout: The ring in which the plan runs.
        call: The call. Its fold order is set to the recipe's.

    Raises:
        ArgumentError: The call is not possible on this layout, a user's algorithm fails, or the saved plan is another
            call's.
    """
    check(call)
    if recipe.plan is not None:
        return _saved(recipe.source, recipe.plan, layout, call)
    call = replace(call, fold_order=recipe.fold_order)
    if layout.ranks != call.ranks:
        raise ArgumentError(f"a layout for {layout.ranks} ranks cannot carry a call of {call.ranks} ranks")
    if recipe.spec.zero_copy and (call.heap is None or call.heap.is_written_by_peers):
        raise ArgumentError(f"{call.collective} {recipe.name} publishes x where it lies: make x with comm.heap.empty")
    if recipe.spec.pushes and (call.heap is None or not call.heap.is_written_by_peers):
        raise ArgumentError(
            f"{call.collective} {recipe.name} writes to the results of peers: make out with comm.heap.empty"
        )
    if recipe.builder.takes_clusters and not 1 < call.cluster < call.ranks:
        raise ArgumentError(
            f"{call.collective} {recipe.name} takes clusters: equally many of its {call.ranks} ranks, two or more, on "
            f"each of two or more hosts"
        )

    def build_part(rank: int) -> tuple[Frame, RankPart]:
        builder = recipe.builder(call, layout, recipe.spec, rank, foreign=bool(recipe.source))
        if call.ranks == 1:  # every collective of one rank is a copy
            builder.copy(builder.output(), builder.input(), buffers(call, rank)[1].nbytes)
        elif recipe.source:
            _run_foreign(recipe, builder)
        else:
            recipe.algorithm(builder)
        return builder.finish()

    return Plan(call, layout, build_part)


def ring_of(plan: Plan) -> Layout:
    """The ring that a saved plan needs: its communicator's, with a heap only where the plan uses one."""
    return plan.layout if plan.call.heap is not None else replace(plan.layout, heap_card_bytes=0)


def _saved(source: str, plan: Plan, layout: Layout, call: Call) -> Plan:
    """Return the saved plan if it is this call's, on this ring.

    A call is in place on those ranks only that have both arrays, and one that moves nothing has any dtype: neither is
    compared.
    """
    dtype = call.dtype if contract_of(call.collective).moves_data else plan.call.dtype
    asked = replace(call, in_place=plan.call.in_place, dtype=dtype, fold_order=plan.call.fold_order)
    if asked != plan.call:
        raise ArgumentError(f"{source} is the plan of [{plan.call}] with {plan.ranks} ranks, not of [{call}]")
    if replace(layout, heap_card_bytes=ring_of(plan).heap_card_bytes) != ring_of(plan):
        raise ArgumentError(
            f"{source} is for a ring of {_ring(plan.layout)}, here it is one of {_ring(layout)}: save the plan for "
            f"this topology"
        )
    return plan


def _ring(layout: Layout) -> str:
    slots = f"{counted(layout.slots, 'slot')} of {layout.slot_card_bytes} bytes on each of {layout.cards_text}"
    doorbells = counted(layout.doorbells_per_rank, "doorbell")
    return f"{slots}, {doorbells} a rank, interleaved by {layout.interleave_bytes} bytes"


def _run_foreign(recipe: Recipe, builder: Builder) -> None:
    """Run a user's algorithm; its mistakes are bad input, not a traceback of ours."""
    try:
        recipe.algorithm(builder)
    except CxlemuError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"--algorithm {recipe.source} fails for rank {builder.rank} with {what}") from error


def check(call: Call) -> None:
    """Check that a call means something.

    Raises:
        ArgumentError: The collective, dtype or op does not exist, the root or the clusters do not fit the ranks, or a
            block is too large or no whole number of elements.
    """
    contract = contract_of(call.collective)
    if call.ranks < 1:
        raise ArgumentError(f"a communicator has at least one rank, not {call.ranks}")
    if not 0 <= call.root < call.ranks:
        raise ArgumentError(f"root {call.root} is not one of the ranks 0..{call.ranks - 1}")
    if call.cluster < 1 or call.ranks % call.cluster:
        raise ArgumentError(f"{call.ranks} ranks do not come in clusters of {call.cluster}")
    if call.dtype not in DTYPES:
        raise ArgumentError(f"there is no dtype {call.dtype!r}: it is one of {', '.join(DTYPES)}")
    if call.redop not in contract.ops:
        raise ArgumentError(f"{call.collective} takes op {', '.join(contract.ops)}, not {call.redop!r}")
    if contract.reduces and call.redop not in OPS_OF_KIND[DTYPE_KINDS[call.dtype]]:
        raise ArgumentError(f"{call.collective}: {why_not(call.dtype, call.redop)}")
    if call.nbytes > BLOCK_BYTES_MAX:
        raise ArgumentError(f"a block of {call.nbytes} bytes is too large: {BLOCK_BYTES_MAX} are the most")
    if call.nbytes < 0 or call.nbytes % DTYPES[call.dtype].itemsize:
        raise ArgumentError(f"{call.nbytes} bytes are no whole number of {call.dtype} elements")
    check_counts(call)
