"""The algorithms that there are, by name, and how a call becomes a plan."""

import re
from binascii import crc_hqx
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

from collectives.algorithms import PUSHING, SHIPPED
from collectives.algorithms.hierarchical import PAGES
from collectives.algorithms.hierarchical.levels import Levels
from collectives.algorithms.nccl import RECIPES as NCCL
from collectives.builder import ALL, Builder
from collectives.builder.recipes import Recipe, recipes_of
from collectives.choices import is_plan
from collectives.contracts import COLLECTIVES, buffers, check_buffers, check_counts, contract_of
from cxlemu import userfile
from cxlemu.choices import DTYPE_KINDS, OPS_OF_KIND
from cxlemu.errors import ArgumentError, BuilderError, DeclinedError, EndlessError, refusals
from cxlemu.plan import DTYPES, Call, Frame, Layout, Plan, RankPart, rules
from cxlemu.plan.reduction import why_not
from cxlemu.suggest import unknown, with_choices
from cxlemu.units import counted, format_bytes, typed_bytes

BLOCK_BYTES_MAX = 1 << 40
PLANS_KEPT = 256  # for the next call that is the same, whichever communicator makes it
BUILD_S = 30.0  # longest time in which an algorithm of a user's builds one rank's part

# Ours, and NCCL's, which no choice of ours takes.
_RECIPES = {
    (recipe.collective, recipe.name): recipe for function in (*SHIPPED, *PAGES) for recipe in recipes_of(function)
}
# Those that write to peers' results take few calls: they are found by name, and by `auto`.
_PUSHING = {(recipe.collective, recipe.name): recipe for function in PUSHING for recipe in recipes_of(function)}
_BY_NAME = {**_PUSHING, **NCCL}
# Users' algorithms that hung once, and where: they are not asked again.
_endless: WeakKeyDictionary[Callable[..., None], str] = WeakKeyDictionary()
SHIPPED_NAMES = frozenset(name for _, name in (*_RECIPES, *_BY_NAME)) | {"auto", "every"}


def add(function: Callable[..., None]) -> None:
    """Add an algorithm's variants, decorated with ``@algorithm``, to those that this process and ``--variant`` know."""
    recipes = recipes_of(function)
    if not recipes:
        raise ArgumentError(f"{function!r} is not an algorithm: decorate it with @algorithm")
    for added in recipes:
        if (added.collective, added.name) in _RECIPES or added.name in ("auto", "every"):
            raise ArgumentError(f"{added.collective} has a variant {added.name} already: choose another name")
    _RECIPES.update({(recipe.collective, recipe.name): recipe for recipe in recipes})


def variants(collective: str, *, clusters: bool = False, checksums: bool = False) -> list[str]:
    """List the variants of a collective that take all calls: without NCCL's and `pushing`. Shipped ones come first.

    With ``clusters``, also those that take ranks in clusters; with ``checksums``, only those that can carry them.
    """
    recipes = [recipe for (its_collective, _), recipe in _RECIPES.items() if its_collective == collective]
    return [
        recipe.name
        for recipe in recipes
        if (clusters or not recipe.builder.takes_clusters) and (not checksums or recipe.carries_checksums)
    ]


def on_levels_left_out(collectives: Iterable[str], why: str) -> list[str]:
    """Say how many variants of ranks in clusters are left out where all variants are asked for: a sentence, or none."""
    count = sum(len(variants(name, clusters=True)) - len(variants(name)) for name in collectives)
    return [f"left out: {counted(count, 'variant')} on two levels: {why}"] if count else []


def pushing(collective: str) -> list[str]:
    """List a collective's variants that write to peers' results, which lie in the heap."""
    return [name for verb, name in _PUSHING if verb == collective]


def recipe(collective: str, variant: str) -> Recipe:
    """Find a variant of a collective by name; ``NAME-K`` is one that is cut into chunks, in at most K of them."""
    contract_of(collective)
    known = _RECIPES.get((collective, variant)) or _BY_NAME.get((collective, variant))
    known = known or _in_chunks(collective, variant)
    if known is None:
        names = [*variants(collective, clusters=True), *(name for verb, name in _BY_NAME if verb == collective)]
        raise ArgumentError(with_choices(f"{collective} has no variant {variant!r}", variant, names, ": it has {}"))
    return known


def _in_chunks(collective: str, variant: str) -> Recipe | None:
    name, _, count = variant.rpartition("-")
    base = _RECIPES.get((collective, name)) or _PUSHING.get((collective, name))
    if base is None or not re.fullmatch(r"[1-9]\d?", count) or not 1 <= int(count) < base.spec.chunks:
        return None
    return replace(base, name=variant, spec=replace(base.spec, name=variant, chunks=int(count)))


def load_plan(file: str | Path) -> Plan:
    """Load a plan that ``cxlemu plan save`` wrote, and check that it obeys all rules and that its call means something.

    A plan file is data: nothing is executed.
    """
    from cxlemu.plan import file as plan_file  # which needs pydantic

    return plan_file.load(file, _check_plan)


def _check_plan(plan: Plan) -> None:
    """Check a plan's call and its memory; scratch may be as large as a block."""
    check(plan.call)
    check_buffers(plan)
    for part in plan.each_part():
        for buffer in part.buffers[2:]:
            if buffer.nbytes > BLOCK_BYTES_MAX:
                what = f"{buffer.name} of {buffer.nbytes} B"
                raise ArgumentError(f"rank {part.rank} has {what}: the limit is {BLOCK_BYTES_MAX}")


def load_algorithm(spec: str) -> Recipe:
    """Load what a user brings: ``FILE.py:function``, decorated with ``@algorithm``, or ``FILE.plan``, which was saved.

    A Python file is executed; its function runs in its own name's style, or chunked and overlapped.
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
    function, file, name = userfile.load(spec, "--algorithm", recipes_of)
    own = own_recipe(function, name, spec)
    if own is None:
        raise ArgumentError(f"--algorithm {spec}: {file} has no function {name!r} decorated with @algorithm")
    return own


def _cannot_build(builder: Builder) -> None:
    raise AssertionError("a saved plan is not built again")


def own_recipe(function: object, name: str, spec: str) -> Recipe | None:
    """Make the recipe of a user's own algorithm; None for a function that is not decorated with ``@algorithm``."""
    recipes = recipes_of(function)
    if not recipes:
        return None
    variant = recipes[0].spec if len(recipes) == 1 else ALL
    name = _own_name(recipes[0], name, spec)
    return replace(recipes[0], name=name, spec=replace(variant, name=name), source=spec)


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

    Raises:
        ArgumentError: The call is not possible on this layout, or the saved plan is another call's.
        DeclinedError: The algorithm does not take the call.
        BuilderError: A user's algorithm misuses the builder, or fails.
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
            f"{call.collective} {recipe.name} needs clusters: equally many of its {call.ranks} ranks, two or more, on "
            f"each of two or more hosts"
        )

    def build_part(rank: int) -> tuple[Frame, RankPart]:
        builder = recipe.builder(call, layout, recipe.spec, rank, foreign=bool(recipe.source))
        if call.ranks == 1:  # every collective of one rank is a copy
            builder.copy(builder.output(), builder.input(), buffers(call, rank)[1].nbytes)
            return builder.finish()
        return _run_foreign(recipe, builder) if recipe.source else _run(recipe, builder)

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


def _run(recipe: Recipe, builder: Builder) -> tuple[Frame, RankPart]:
    recipe.algorithm(builder)
    return builder.finish()


def _run_foreign(recipe: Recipe, builder: Builder) -> tuple[Frame, RankPart]:
    """Run a user's algorithm. Its mistakes name its file and line; only what it declines is no mistake.

    What the builder refused stands, also where the algorithm catches it and goes on. One that goes on for ever is
    stopped after BUILD_S, and not asked again.
    """
    if said := endless(recipe):
        raise EndlessError(said)
    with refusals() as refused:
        try:
            with userfile.limited(BUILD_S):
                _call(recipe, builder)
                part = builder.finish()
            if not refused:
                return part
            error: Exception = refused[0]
        except Exception as its:
            error = next(iter(refused), its)
    if isinstance(error, DeclinedError):
        raise error
    if isinstance(error, BuilderError):
        what = str(error)
    else:
        hint = "; b.decline(reason) declines a call" if isinstance(error, ArgumentError) else ""
        what = f"fails for rank {builder.rank} of {builder.call} with {userfile.told(error)}{hint}"
    said = f"{_line_of(recipe, error)}: {what}"
    if isinstance(error, userfile.OverdueError):
        _endless[recipe.algorithm] = said
        raise EndlessError(said) from error
    raise BuilderError(said) from error


def endless(recipe: Recipe) -> str:
    """Where a user's algorithm had no end, so that it is not asked again; empty: nowhere."""
    return _endless.get(recipe.algorithm, "")


def _call(recipe: Recipe, builder: Builder) -> None:
    left: object = recipe.algorithm(builder)  # type: ignore[func-returns-value]
    if userfile.is_unrun(left):
        raise BuilderError(
            f"{builder.call}: {recipe.name} is a generator or async, so nothing of it ran: leave out yield"
        )


def _line_of(recipe: Recipe, error: Exception) -> str:
    """``FILE.py:LINE`` of the user's line that an error comes from; a loop that is left has none."""
    file = recipe.source.rpartition(":")[0]
    line = userfile.line_of(error, file)
    return recipe.source if line is None else f"{file}:{line}"


@lru_cache(maxsize=PLANS_KEPT)
def plan_of(chosen: Recipe, layout: Layout, call: Call, rank: int) -> tuple[Plan, int]:
    """Build a plan and check it; plans are kept for the next equal call. Also returns 16 bits that ranks must agree on.

    For an algorithm that is not ours, all ranks' parts are checked: its ranks may step on each other.
    """
    plan = build(chosen, layout, call)
    if chosen.plan is not None:
        _check_arrays(chosen, call, rank)
    else:
        rules.check(plan, None if chosen.source else [rank])
    return plan, crc_hqx(repr(plan.frame).encode(), call.tag())


def _check_arrays(saved: Recipe, call: Call, rank: int) -> None:
    """A saved plan says whether arrays lie in each other. Where there is one array by contract, it stands for both."""
    assert saved.plan is not None
    if not COLLECTIVES[call.collective].one_buffer and buffers(call, rank) != saved.plan.part(rank).buffers[:2]:
        how = "in place" if saved.plan.call.in_place else "not in place"
        raise ArgumentError(f"{saved.source} is the plan of a call that is {how}: pass x and out accordingly")


def check(call: Call) -> None:
    """Check that a call means something: its names, its root and clusters, the size of a block."""
    contract = contract_of(call.collective)
    if call.ranks < 1:
        raise ArgumentError(f"a communicator has at least one rank, not {call.ranks}")
    if not 0 <= call.root < call.ranks:
        raise ArgumentError(f"root {call.root} is not one of the ranks 0..{call.ranks - 1}")
    if call.cluster < 1 or call.ranks % call.cluster:
        raise ArgumentError(f"{call.ranks} ranks do not divide into clusters of {call.cluster}")
    if call.dtype not in DTYPES:
        raise ArgumentError(unknown("dtype", call.dtype, DTYPES))
    if call.redop not in contract.ops:
        raise ArgumentError(f"{call.collective} takes op {', '.join(contract.ops)}, not {call.redop!r}")
    if contract.reduces and call.redop not in OPS_OF_KIND[DTYPE_KINDS[call.dtype]]:
        raise ArgumentError(f"{call.collective}: {why_not(call.dtype, call.redop)}")
    if call.nbytes > BLOCK_BYTES_MAX:
        block, most = typed_bytes(call.nbytes), format_bytes(BLOCK_BYTES_MAX)
        raise ArgumentError(f"a block of {block} exceeds the limit of {most}")
    size = DTYPES[call.dtype].itemsize
    if call.nbytes < 0 or call.nbytes % size:
        what = f"{call.nbytes} bytes are not a whole number of {call.dtype} elements"
        raise ArgumentError(f"{what}: give a multiple of {size}")
    check_counts(call)
