"""The work of ``cxlemu prove``: plans from files, users' algorithms, and the plans that cxlemu ships."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, ParamSpec, TypeVar

import click

from collectives import fused
from collectives.algorithms import catalog
from collectives.builder.recipes import IN_LINES, Recipe, with_checksums
from collectives.choices import PLAN_SUFFIX, is_plan
from collectives.cli.targets import check_applies
from collectives.contracts import COLLECTIVES
from collectives.defaults import EVERY
from collectives.layouts import world_layout
from collectives.sweep.sweep import Case, Sweep, last_size, size_steps
from cxlemu.budget import BudgetSpentError, within
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.params import given_flags
from cxlemu.errors import ArgumentError, DeclinedError
from cxlemu.plan import Call, Layout, Plan
from cxlemu.plan.checksums import check_integrity
from cxlemu.plan.reduction import not_folded
from cxlemu.rounding import round_up
from cxlemu.topology import Topology
from cxlemu.topology.clusters import cluster_sizes, hosts_of
from cxlemu.topology.fields import PAGE_BYTES
from cxlemu.units import counted, format_numbers, typed_bytes
from faults.choices import MATRIX_HOSTS, MATRIX_RANKS, PROVED_RANKS, PROVED_RANKS_MAX, PROVED_SLOTS_MAX
from faults.cli.prove import ProveFlags
from faults.cli.prove_matrix_report import MatrixReport
from faults.cli.prove_report import ProveReport
from faults.cli.prove_rows import ToProve, answers_of, rows_of
from faults.left_out import NotDone, left_out, of_plans, without_clusters
from faults.prove import prove
from faults.prove.cases import prove_case
from faults.prove.matrix import Matrix, Question, judge
from faults.prove.products import ProductCase, product_case
from faults.prove.proof import Proof
from faults.prove.rounds import ASKING, loops_of
from faults.prove.sequences import on_some_hosts

BYTES = 4096
IDLE_FOR_PRODUCTS = ("minbytes", "maxbytes", "stepfactor", "config")

P = ParamSpec("P")
T = TypeVar("T")


def run(ctx: click.Context, asked: ProveFlags) -> None:
    """Prove plans, and print and write the result, as the command's flags say.

    The command exits with the code that its help states.
    """
    budget = _Budget(asked.budget_s)
    check_integrity(asked.integrity)
    check_applies(ctx, asked.collectives)
    if any(map(is_plan, asked.collectives)):
        _prove_saved(ctx, asked, budget)
    if asked.algorithm is not None:
        _prove_own(ctx, asked, asked.algorithm, budget)
    if asked.cluster is not None:
        raise ArgumentError(
            "--cluster goes with --algorithm or a plan file: shipped variants take clusters of every size by themselves"
        )
    _prove_shipped(ctx, asked, budget)


def _sizes(asked: ProveFlags) -> list[int]:
    first = BYTES if asked.minbytes is None else asked.minbytes
    return size_steps(first, first if asked.maxbytes is None else asked.maxbytes, asked.stepfactor, None)


def _prove_own(ctx: click.Context, asked: ProveFlags, algorithm: str, budget: _Budget) -> NoReturn:
    """Prove a matrix of calls of a user's algorithm, and exit."""
    if asked.variant != EVERY:
        raise ArgumentError("--variant does not go with --algorithm: your own algorithm has none")
    sizes = None if (asked.minbytes, asked.maxbytes, asked.stepfactor) == (None,) * 3 else _sizes(asked)
    roots, topology = _roots(asked.root), Topology.load(asked.config)
    own = _own(algorithm, asked.collectives, asked.op, roots)
    check_applies(ctx, (own.collective,))
    ranks = MATRIX_RANKS if asked.cluster is None else [asked.cluster * hosts for hosts in MATRIX_HOSTS]
    matrix = Matrix(
        recipe=own if asked.integrity is None else with_checksums(own),
        topology=topology,
        ranks=asked.ranks or ranks,
        sizes=sizes,
        redops=asked.op,
        dtypes=asked.datatype,
        roots=roots,
        in_place=asked.in_place,
        region_bytes=asked.region_bytes,
        cluster=asked.cluster,
    )
    named = {"ranks": asked.ranks, "size": sizes, "dtype": asked.datatype, "op": asked.op}
    report = MatrixReport(
        matrix,
        algorithm,
        asked.config,
        asked.integrity,
        asked.json_file,
        named=[name for name, its in named.items() if its],
        left_out=last_size(sizes or (), asked.maxbytes)
        + (not_folded(asked.datatype, asked.op) if COLLECTIVES[own.collective].reduces else []),
    )
    questions: list[Question] = []
    with budget.told_by(report):
        questions = budget.on(matrix.questions)()
    with answers_of(questions, budget.on(judge), asked.jobs) as answers, report, budget.told_by(report):
        report.prove(questions, budget.each(answers))
    budget.interruption.exit(ctx, report.exit_code, report.left)


def _prove_shipped(ctx: click.Context, asked: ProveFlags, budget: _Budget) -> NoReturn:
    """Prove plans of collectives and matrix products that cxlemu ships, and exit."""
    ranks = PROVED_RANKS if asked.ranks is None else asked.ranks
    sizes, roots, topology = _sizes(asked), _roots(asked.root), Topology.load(asked.config)
    plain = not asked.in_place and (asked.integrity, asked.datatype, asked.op, roots, asked.region_bytes) == (None,) * 5
    products = _products(asked.collectives or fused.KINDS * plain, ranks, asked.variant)
    named = tuple(name for name in asked.collectives or tuple(COLLECTIVES) if name not in fused.KINDS)
    given = given_flags(ctx)
    if products and not named and (idle := [given[name] for name in IDLE_FOR_PRODUCTS if name in given]):
        raise ArgumentError(
            f"{idle[0]} does nothing here: products are proved on small matrices and rings of their own"
        )
    if asked.collectives and len(named) < len(asked.collectives) and not plain:
        raise ArgumentError(
            "matrix products are proved without -d, -o, -r, --in-place, --integrity and --region-bytes: leave them out"
        )
    plans = _plans(asked, named, ranks, sizes)
    if roots is not None and max(roots) >= min(ranks):
        raise ArgumentError(
            f"root {max(roots)} is not one of {counted(min(ranks), 'rank')}: leave out that number with -n"
        )
    cases = []
    for case, recipe in plans:
        layout = _ring(topology, case.call.ranks, asked.region_bytes)
        call = replace(case.call, algorithm=recipe.name, in_place=case.in_place, root=(roots or (0,))[0])
        cases.append(ToProve(case, budget.on(partial(_proved, topology, recipe, layout, call, roots=roots))))
    cases += [ToProve(product, budget.on(product.prove)) for product in products]
    machine = " and ".join([asked.config] * bool(plans) + ["their own"] * bool(products))  # rings of small matrices
    left = _left_out(asked, named, ranks, [one.case.call for one in cases])
    left = left._replace(sentences=[*left.sentences, *last_size(sizes, asked.maxbytes)])
    report = ProveReport(len(cases), asked.json_file, asked.integrity, machine=machine, roots=roots, left_out=left)
    _prove(ctx, cases, asked.jobs, report, budget)


def _plans(
    asked: ProveFlags, named: tuple[str, ...], ranks: Sequence[int], sizes: Sequence[int]
) -> list[tuple[Case, Recipe]]:
    """List the cases that are asked for, each with the recipe of its plan. Raises ArgumentError where there is none."""
    dtypes, redops = asked.datatype or ("f32",), asked.op or ("sum",)
    sweep = Sweep((), sizes, dtypes, redops, in_place=bool(asked.in_place), check=False)
    cases = [case for count in ranks for case in _each(sweep, named, asked.variant, count)]
    if named and not cases:
        raise ArgumentError(f"-n {format_numbers(ranks)} cannot make two clusters of two or more ranks")
    if asked.in_place is not None:
        cases = [replace(case, in_place=asked.in_place) for case in cases]
    plans = [(case, catalog.recipe(case.call.collective, case.call.algorithm)) for case in cases]
    if asked.integrity is None:
        return plans
    checked = [(case, with_checksums(recipe)) for case, recipe in plans if _carries(recipe, asked.variant)]
    if not checked:
        raise ArgumentError(f"--integrity: {' '.join(named)} has no variant that carries checksums")
    return checked


def _ring(topology: Topology, ranks: int, region_bytes: int | None) -> Layout:
    """Lay out a world's ring; one that is asked for has room whatever memory the emulation has: a proof takes none."""
    if region_bytes is None:
        return world_layout(topology, ranks)
    room = round_up(max(topology.card_bytes, 16 * region_bytes // topology.pool_card_count), PAGE_BYTES)
    emulation = topology.emulation.model_copy(update={"card_bytes": room})
    return world_layout(topology.model_copy(update={"emulation": emulation}), ranks, region_bytes=region_bytes)


def _proved(topology: Topology, recipe: Recipe, layout: Layout, call: Call, **options: Any) -> Proof:
    """Prove a case. Raises ArgumentError for a ring that is too small, and names one that is large enough."""
    try:
        return prove_case(recipe, layout, call, **options)
    except DeclinedError as error:
        sizes = (layout.slots * layout.slot_bytes * times for times in (2, 4, 8, 16, 32, 64))
        enough = (
            f"; --region-bytes={typed_bytes(size)} is enough" for size in sizes if _fits(topology, recipe, call, size)
        )
        raise ArgumentError(f"{error}{next(enough, '')}") from error


def _fits(topology: Topology, recipe: Recipe, call: Call, region_bytes: int) -> bool:
    try:
        return recipe.builder in ASKING and bool(loops_of(recipe, _ring(topology, call.ranks, region_bytes), call))
    except DeclinedError:
        return False


def _left_out(asked: ProveFlags, named: Sequence[str], ranks: Sequence[int], calls: Sequence[Call]) -> NotDone:
    """Say which plans were named and are not proved."""
    variants = [name for name in asked.variant.split(",") if name != EVERY]
    done = [(call.collective, call.algorithm, call.ranks) for call in calls]
    why = partial(of_plans, checked=asked.integrity is not None)
    left = left_out((asked.collectives or None, variants or None, asked.ranks), done, why)
    every = EVERY in asked.variant.split(",") and asked.integrity is None
    more = without_clusters(named, ranks) if every else []
    if any(COLLECTIVES[name].reduces for name in named):
        more += not_folded(asked.datatype, asked.op)
    return left._replace(sentences=[*left.sentences, *more])


def _prove(
    ctx: click.Context, cases: Sequence[ToProve], jobs: int | None, report: ProveReport, budget: _Budget
) -> NoReturn:
    """Prove cases, and exit. Raises WorkerLostError if a worker was killed."""
    with rows_of(cases, jobs) as rows, report, budget.told_by(report):
        for row in budget.each(rows(report)):
            report.add(row)
    budget.interruption.exit(ctx, report.verdict.exit_code, report.left)


class _Budget:
    """Seconds from now on for all proofs; None: without limit."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds, self._began = seconds, time.monotonic()
        self.interruption = Interruption()

    def on(self, function: Callable[P, T]) -> Callable[P, T]:
        """Wrap a function so that it raises BudgetSpentError when the seconds have passed; work after it returns is not
        stopped."""

        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            if self._seconds is None:
                return function(*args, **kwargs)
            with within(self._seconds - (time.monotonic() - self._began)):
                return function(*args, **kwargs)

        return called

    def each(self, rows: Iterator[T]) -> Iterator[T]:
        """Yield rows; raise BudgetSpentError where one is waited for when the seconds have passed: a worker looks at
        its clock only now and then."""
        bring = self.on(next)
        while (row := bring(rows, None)) is not None:
            yield row

    @contextmanager
    def told_by(self, report: ProveReport | MatrixReport) -> Iterator[None]:
        """End the code inside when the seconds have passed or Ctrl-C comes, and let the report say so."""
        try:
            with self.interruption:
                yield
        except BudgetSpentError:
            report.spent = f"the budget of {self._seconds:g} s is spent"
        if self.interruption.happened:
            report.interrupted, report.spent = True, "interrupted"


def _prove_saved(ctx: click.Context, asked: ProveFlags, budget: _Budget) -> NoReturn:
    """Prove plan files, and exit. Raises PlanFileError for a file that holds no plan."""
    for name, flag in given_flags(ctx).items():
        if name not in ("collectives", "cluster", "budget_s", "jobs", "json_file"):
            raise ArgumentError(f"{flag} does not go with a plan file, which defines the call: leave it out")
    cases = []
    for file in asked.collectives:
        if not is_plan(file):
            raise ArgumentError(f"plan files are proved by themselves: {file!r} does not end in {PLAN_SUFFIX}")
        plan = catalog.load_plan(file)
        if plan.ranks > PROVED_RANKS_MAX or plan.layout.slots > PROVED_SLOTS_MAX:
            raise ArgumentError(
                f"{file}: {counted(plan.ranks, 'rank')} and {counted(plan.layout.slots, 'slot')}; "
                f"the limits are {PROVED_RANKS_MAX} and {PROVED_SLOTS_MAX}"
            )
        hosts = None if asked.cluster is None else hosts_of(plan.ranks, asked.cluster)
        proved = budget.on(partial(_saved_proof, plan, hosts))
        cases.append(ToProve(Case(plan.call, plan.call.in_place), proved, file, hosts))
    report = ProveReport(len(cases), asked.json_file, machine="the file", ranks_per_host=asked.cluster or 1)
    _prove(ctx, cases, asked.jobs, report, budget)


def _saved_proof(plan: Plan, hosts: Sequence[int] | None, **options: Any) -> Proof:
    if hosts is not None:
        return prove(plan, hosts=hosts, **options)
    return on_some_hosts(plan.call, lambda hosts: prove(plan, hosts=hosts, **options))


def _own(
    algorithm: str, collectives: Sequence[str], redops: Sequence[str] | None, roots: Sequence[int] | None
) -> Recipe:
    """Raises ArgumentError if there is no algorithm, or not one that the flags are for."""
    own = catalog.load_algorithm(algorithm)
    contract = COLLECTIVES[own.collective]
    if any(name != own.collective for name in collectives):
        raise ArgumentError(f"{algorithm} is an algorithm for {own.collective}: leave out {' '.join(collectives)}")
    if redops and not contract.reduces:
        raise ArgumentError(f"{own.collective} reduces nothing: leave out -o")
    if roots and not contract.rooted:
        raise ArgumentError(f"{own.collective} has no root: leave out -r")
    return own


def _roots(text: str) -> tuple[int, ...] | None:
    """Read the roots; None: all."""
    if text == "all":
        return None
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII):
        raise ArgumentError(f"-r takes a rank, or all, not {text!r}")
    return (int(text),)


def _cases(sweep: Sweep, ranks: int) -> Iterator[Case]:
    """Yield all cases that are asked for; those on two levels with clusters of every size."""
    sizes = cluster_sizes(ranks)
    if (
        not sizes
        and sweep.variant != EVERY
        and catalog.recipe(sweep.collectives[0], sweep.variant).builder.takes_clusters
    ):
        return
    for case in replace(sweep, cluster=max(sizes, default=1)).cases(ranks):
        for cluster in sizes if case.call.cluster > 1 else (1,):
            yield replace(case, call=replace(case.call, cluster=cluster))


def _each(sweep: Sweep, named: tuple[str, ...], variants: str, ranks: int) -> Iterable[Case]:
    """Return the cases of all variants, each once: those that are named are among every one."""
    having = [_having(replace(sweep, variant=variant), named) for variant in variants.split(",") if named]
    return dict.fromkeys(case for each in having for case in _cases(each, ranks))


def _products(named: tuple[str, ...], ranks: Sequence[int], variant: str) -> list[ProductCase]:
    """Make the cases of the products among these names. Raises ArgumentError for a style that a product named alone
    does not have."""
    kinds = [name for name in named if name in fused.KINDS]
    choices = [fused.STYLES if each == EVERY else (each,) for each in variant.split(",")]
    styles = tuple(dict.fromkeys(style for each in choices for style in each))
    if len(kinds) < len(named) or named == fused.KINDS:
        styles = tuple(style for style in styles if style in fused.STYLES)  # others may be a collective's
    return [product_case(kind, style, count) for count in ranks for style in styles for kind in kinds]


def _carries(recipe: Recipe, variant: str) -> bool:
    """Whether an algorithm's doorbells have room for checksums. Raises ArgumentError if one that has none is asked
    for."""
    if recipe.spec.in_lines and variant != EVERY:
        raise ArgumentError(IN_LINES)
    return not recipe.spec.in_lines and (variant != EVERY or recipe.carries_checksums)


def _having(sweep: Sweep, named: tuple[str, ...]) -> Sweep:
    """Keep the collectives that have the variant; if none has it, keep all, so that the error names theirs."""
    having = tuple(
        c for c in named if c not in COLLECTIVES or sweep.variant in (EVERY, *catalog.variants(c, clusters=True))
    )
    return replace(sweep, collectives=having or named)
