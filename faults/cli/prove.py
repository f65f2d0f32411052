"""``cxlemu prove``: plans are right in every interleaving and under all that caches may do, or why not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from collectives import fused
from collectives.algorithms import catalog
from collectives.builder.recipes import Recipe, with_checksums
from collectives.cli.run import OPS, Names
from collectives.contracts import COLLECTIVES
from collectives.layouts import world_layout
from collectives.sweep.defaults import EVERY, REGION_BYTES, STEP_FACTOR
from collectives.sweep.sweep import Case, Sweep, size_steps
from cxlemu.choices import DEFAULT_TOPOLOGY
from cxlemu.cli.output import check_json_file
from cxlemu.errors import ArgumentError
from cxlemu.plan import DTYPES
from cxlemu.plan.checksums import INTEGRITIES, check_integrity
from cxlemu.topology import Topology
from cxlemu.topology.clusters import cluster_sizes
from cxlemu.units import BytesParam, format_bytes
from faults.cli.prove_matrix_report import MatrixReport
from faults.cli.prove_report import ProveReport
from faults.cli.ranks import RanksParam
from faults.prove import matrix, prove
from faults.prove.cases import prove_case
from faults.prove.coverage import numbers
from faults.prove.matrix import Matrix, judge
from faults.prove.products import ProductCase, product_case

BYTES = 4096
RANKS_MAX, SLOTS_MAX = 1024, 4096
RANKS, OWN_RANKS = range(2, 5), matrix.RANKS


@click.command()
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE|FILE.plan]...")
@click.option(
    "-n",
    "--ranks",
    type=RanksParam(1, RANKS_MAX),
    metavar="N|N-N|N,N",
    help=f"[default: {numbers(RANKS)}; with --algorithm {numbers(OWN_RANKS)}]",
)
@click.option("-b", "--minbytes", type=BytesParam(), help="Smallest size.  [default: 4K; with --algorithm many]")
@click.option("-e", "--maxbytes", type=BytesParam(), help="Largest size.  [default: -b]")
@click.option(
    "-f",
    "--stepfactor",
    type=click.IntRange(2),
    metavar="N",
    help=f"From size to size, times.  [default: {STEP_FACTOR}]",
)
@click.option(
    "-d",
    "--datatype",
    type=Names(tuple(DTYPES)),
    help=f"{', '.join(DTYPES)}; a comma list or all.  [default: f32; with --algorithm {','.join(matrix.DATATYPES)}]",
)
@click.option(
    "-o",
    "--op",
    type=Names(OPS),
    help=f"{', '.join(OPS)}; a comma list or all.  [default: sum; with --algorithm {','.join(matrix.REDOPS)}]",
)
@click.option("-r", "--root", default="all", metavar="RANK|all", show_default=True, help="For those that have one.")
@click.option("--variant", default=EVERY, show_default=True, help="every; or naive, aggregate, all, line, ...")
@click.option("--algorithm", metavar="FILE.py:FUNCTION", help="Prove an algorithm of your own; executes the file.")
@click.option(
    "--in-place/--out-of-place",
    default=None,
    help="Whether the smaller buffer is part of the larger one, as NCCL has it.  [default: not; with --algorithm both]",
)
@click.option("--integrity", type=click.Choice(INTEGRITIES), help="Plans whose doorbells carry checksums.")
@click.option("-c", "--config", default=DEFAULT_TOPOLOGY, show_default=True, help="A topology: a file or a name.")
@click.option(
    "--region-bytes",
    type=BytesParam(),
    help=f"The communicator's ring.  [default: {format_bytes(REGION_BYTES)}; a small one with --algorithm without -b]",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), metavar="FILE|-", help="Write everything there as well."
)
@click.pass_context
def command(
    ctx: click.Context,
    collectives: tuple[str, ...],
    ranks: Sequence[int] | None,
    minbytes: int | None,
    maxbytes: int | None,
    stepfactor: int | None,
    datatype: tuple[str, ...] | None,
    op: tuple[str, ...] | None,
    root: str,
    variant: str,
    algorithm: str | None,
    in_place: bool | None,
    integrity: str | None,
    config: str,
    region_bytes: int | None,
    json_file: Path | None,
) -> None:
    """Prove plans: right in every interleaving, whatever caches evict, prefetch and hold back, or why not.

    Each plan is proved as a call among any others, of every root, on a ring that wraps. A violation names the rank,
    the instruction and the link of the chain that is missing, with a schedule that shows it where one was found. The
    last line says what was covered, and what not.

    Without arguments: all collectives and barrier, in every variant, on two levels with clusters of every size that
    the ranks can come in, and all matrix products that are fused with one, on small matrices that stand for all.

    An algorithm of your own is asked for a matrix of calls: no bytes, one element, odd sizes, one round and many; in
    place and not; sum, avg and max; f16 and f64; every root; 2-5, 7 and 8 ranks. Flags narrow it, or widen it. What it
    refuses with an ArgumentError is no mistake, and no proof.

    \b
    Examples:
      cxlemu prove
      cxlemu prove all_gather broadcast -n 2-16 -b 8 -e 1M --variant all,line
      cxlemu prove --variant hierarchical -n 4-8
      cxlemu prove -n 64 --json proofs.json
      cxlemu prove all_gather_gemm gemm_reduce_scatter gemm_all_reduce -n 2-16
      cxlemu prove all_reduce --integrity crc32c
      cxlemu prove --algorithm examples/my_all_reduce.py:my_all_reduce
      cxlemu prove --algorithm examples/my_all_reduce.py:my_all_reduce -n 2,16 -o all -d bf16 -b 1K
      cxlemu prove all_reduce.plan

    \b
    Exit codes: 0 all is right, 1 something is not, 2 bad input, 3 the prover cannot tell.
    """
    check_json_file(json_file)
    check_integrity(integrity)
    if any(map(catalog.is_plan, collectives)):
        ctx.exit(_prove_saved(ctx, collectives, json_file))
    if algorithm is not None and variant != EVERY:
        raise ArgumentError("--variant does not go with --algorithm: your own algorithm has none")
    sizes = None
    if algorithm is None or (minbytes, maxbytes, stepfactor) != (None, None, None):
        first = BYTES if minbytes is None else minbytes
        sizes = size_steps(first, first if maxbytes is None else maxbytes, stepfactor, None)
    roots, topology = _roots(root), Topology.load(config)
    if algorithm is not None:
        own = _own(algorithm, collectives, op, roots)
        chosen = Matrix(
            recipe=own if integrity is None else with_checksums(own),
            topology=topology,
            ranks=OWN_RANKS if ranks is None else ranks,
            sizes=sizes,
            redops=op,
            dtypes=datatype,
            roots=roots,
            in_place=in_place,
            region_bytes=region_bytes,
        )
        questions = chosen.questions()
        with MatrixReport(chosen, algorithm, config, integrity, json_file) as own_report:
            own_report.prove(questions, judge)
        ctx.exit(own_report.exit_code)
    ranks = RANKS if ranks is None else ranks
    sweep = Sweep((), sizes or (), datatype or ("f32",), op or ("sum",), in_place=bool(in_place), check=False)
    plain = not in_place and (integrity, datatype, op, roots, region_bytes) == (None,) * 5
    named = collectives or tuple(COLLECTIVES)
    products = _products(collectives or fused.KINDS * plain, ranks, variant)
    named = tuple(name for name in named if name not in fused.KINDS)
    if collectives and len(named) < len(collectives) and not plain:
        raise ArgumentError(
            "matrix products are proved without -d, -o, -r, --in-place, --integrity and --region-bytes: leave them out"
        )
    asked = [
        (world_layout(topology, count, region_bytes=region_bytes or REGION_BYTES), case, recipe)
        for count in ranks
        for name in (variant.split(",") if named else ())
        for case in _cases(_having(replace(sweep, variant=name), named), count)
        for recipe in [catalog.recipe(case.call.collective, case.call.algorithm)]
    ]
    if named and not asked:
        raise ArgumentError(f"-n: no number of ranks among {numbers(ranks)} is that of two clusters of two or more")
    if integrity is not None:
        asked = [(layout, case, with_checksums(recipe)) for layout, case, recipe in asked if _carries(recipe, variant)]
        if not asked:
            raise ArgumentError(f"--integrity: {' '.join(named)} has no variant that carries checksums")
    if roots is not None and max(roots) >= min(ranks):
        raise ArgumentError(f"root {max(roots)} is not one of {min(ranks)} ranks: leave out that number with -n")
    machine = " and ".join([config] * bool(asked) + ["their own"] * bool(products))  # rings that suit small matrices
    with ProveReport(len(asked) + len(products), json_file, integrity, machine=machine, roots=roots) as report:
        for layout, case, recipe in asked:
            call = replace(case.call, algorithm=recipe.name, in_place=case.in_place, root=(roots or (0,))[0])
            report.begin(case)
            report.add(case, prove_case(recipe, layout, call, roots=roots, progress=report.progress))
        for product in products:
            report.begin(product)
            report.add(product, product.prove(progress=report.progress))
    ctx.exit(report.verdict.exit_code)


# --- plans from files, algorithms of somebody's own -----------------------------------------------------------------


def _prove_saved(ctx: click.Context, files: Sequence[str], json_file: Path | None) -> int:
    """The exit code. Raises PlanFileError for a file that holds no plan."""
    for parameter in ctx.command.params:
        name = str(parameter.name)
        if name not in ("collectives", "json_file") and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise ArgumentError(f"{parameter.opts[-1]} does not go with a plan file, which says it all: leave it out")
    plans = []
    for file in files:
        if not catalog.is_plan(file):
            raise ArgumentError(f"plan files are proved by themselves: {file!r} does not end in {catalog.PLAN_SUFFIX}")
        plan = catalog.load_plan(file)
        if plan.ranks > RANKS_MAX or plan.layout.slots > SLOTS_MAX:
            raise ArgumentError(
                f"{file}: {plan.ranks} ranks and {plan.layout.slots} slots; {RANKS_MAX} and {SLOTS_MAX} are the most"
            )
        plans.append(plan)
    with ProveReport(len(plans), json_file, machine="the file") as report:
        for file, plan in zip(files, plans, strict=True):
            case = Case(plan.call, plan.call.in_place)
            report.begin(case)
            report.add(case, prove(plan, progress=report.progress), file=file)
    return report.verdict.exit_code


def _own(
    algorithm: str, collectives: Sequence[str], redops: Sequence[str] | None, roots: Sequence[int] | None
) -> Recipe:
    """Raises ArgumentError where there is none, or not such an algorithm as the flags are for."""
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
    """None: all."""
    if text == "all":
        return None
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII):
        raise ArgumentError(f"-r takes a rank, or all, not {text!r}")
    return (int(text),)


# --- what we ship ---------------------------------------------------------------------------------------------------


def _cases(sweep: Sweep, ranks: int) -> Iterator[Case]:
    """All that are asked for; those on two levels with clusters of every size."""
    sizes = cluster_sizes(ranks)
    if not sizes and sweep.variant != EVERY and catalog.recipe(sweep.collectives[0], sweep.variant).takes_clusters:
        return
    for case in replace(sweep, cluster=max(sizes, default=1)).cases(ranks):
        for cluster in sizes if case.call.cluster > 1 else (1,):
            yield replace(case, call=replace(case.call, cluster=cluster))


def _products(named: tuple[str, ...], ranks: Sequence[int], variant: str) -> list[ProductCase]:
    """Of the products among these names. Raises ArgumentError for a style that a product, named alone, has not."""
    kinds = [name for name in named if name in fused.KINDS]
    styles = fused.STYLES if variant == EVERY else tuple(variant.split(","))
    if len(kinds) < len(named) or named == fused.KINDS:
        styles = tuple(style for style in styles if style in fused.STYLES)  # others may be a collective's
    return [product_case(kind, style, count) for count in ranks for style in styles for kind in kinds]


def _carries(recipe: Recipe, variant: str) -> bool:
    """Whether its doorbells have room for checksums. Raises ArgumentError where one that has not is asked for."""
    if recipe.spec.in_lines and variant != EVERY:
        raise ArgumentError(
            "--integrity: the line variant carries its payload where a checksum would be, and needs none"
        )
    return not recipe.spec.in_lines and (variant != EVERY or recipe.carries_checksums)


def _having(sweep: Sweep, named: tuple[str, ...]) -> Sweep:
    """Of every collective that has the variant; of all, which says what they have, when none has it."""
    having = tuple(
        c for c in named if c not in COLLECTIVES or sweep.variant in (EVERY, *catalog.variants(c, clusters=True))
    )
    return replace(sweep, collectives=having or named)
