"""``cxlemu prove``: plans are right in every interleaving and under all that caches may do, or why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from collectives import catalog, fused
from collectives.bench import EVERY, STEP_FACTOR, Case, Sweep, size_steps
from collectives.builder import HIERARCHICAL
from collectives.contracts import COLLECTIVES
from collectives.layouts import world_layout
from collectives.recipes import Recipe, with_checksums
from cxlemu.checksums import INTEGRITIES, check_integrity
from cxlemu.cli.output import check_json_file
from cxlemu.cli.prove_report import ProveReport
from cxlemu.cli.ranks import RanksParam
from cxlemu.clusters import cluster_sizes
from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology
from cxlemu.units import BytesParam
from cxlemu.world.machine import DEFAULT_TOPOLOGY
from faults.prove.cases import prove_case
from faults.prove.products import ProductCase, product_case

RANKS_MAX = 1024


@click.command()
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...")
@click.option("-n", "--ranks", type=RanksParam(1, RANKS_MAX), default="2-4", show_default=True, metavar="N[-N]")
@click.option("-b", "--minbytes", type=BytesParam(), default="4K", show_default=True, help="Smallest size.")
@click.option("-e", "--maxbytes", type=BytesParam(), help="Largest size.  [default: -b]")
@click.option(
    "-f",
    "--stepfactor",
    type=click.IntRange(2),
    metavar="N",
    help=f"From size to size, times.  [default: {STEP_FACTOR}]",
)
@click.option("--variant", default=EVERY, show_default=True, help="every; or naive, aggregate, all, line, ...")
@click.option("--algorithm", metavar="FILE.py:FUNCTION", help="Prove an algorithm of your own; executes the file.")
@click.option("--in-place", is_flag=True, help="The smaller buffer is part of the larger one, as NCCL has it.")
@click.option("--integrity", type=click.Choice(INTEGRITIES), help="Plans whose doorbells carry checksums.")
@click.option("-c", "--config", default=DEFAULT_TOPOLOGY, show_default=True, help="A topology: a file or a name.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
@click.pass_context
def command(
    ctx: click.Context,
    collectives: tuple[str, ...],
    ranks: range,
    minbytes: int,
    maxbytes: int | None,
    stepfactor: int | None,
    variant: str,
    algorithm: str | None,
    in_place: bool,
    integrity: str | None,
    config: str,
    json_file: Path | None,
) -> None:
    """Prove plans: right in every interleaving, whatever caches evict, prefetch and hold back, or why not.

    Each plan is proved as a call among any others, of every root, on a ring that wraps. A violation names the rank,
    the instruction and the link of the chain that is missing, with a schedule that shows it where one was found.
    Without arguments: all collectives and barrier, in every variant, on two levels with clusters of every size that
    the ranks can come in, and all matrix products that are fused with one, on small matrices that stand for all.

    \b
    Examples:
      cxlemu prove
      cxlemu prove all_gather broadcast -n 2-16 -b 8 -e 1M --variant all,line
      cxlemu prove --variant hierarchical -n 4-8
      cxlemu prove -n 64 --json proofs.json
      cxlemu prove all_gather_gemm gemm_reduce_scatter gemm_all_reduce -n 2-16
      cxlemu prove all_reduce --integrity crc32c
      cxlemu prove --algorithm examples/my_all_reduce.py:my_all_reduce -n 3

    \b
    Exit codes: 0 all is right, 1 something is not, 2 bad input, 3 the prover cannot tell.
    """
    check_json_file(json_file)
    check_integrity(integrity)
    if algorithm is not None and variant != EVERY:
        raise ArgumentError("--variant does not go with --algorithm: your own algorithm has none")
    own = catalog.load_algorithm(algorithm) if algorithm is not None else None
    named = collectives or ((own.collective,) if own else tuple(COLLECTIVES))
    plain = own is None and not in_place and integrity is None
    products = _products(named if collectives else fused.KINDS * plain, ranks, variant)
    named = tuple(name for name in named if name not in fused.KINDS)
    if collectives and len(named) < len(collectives) and not plain:
        raise ArgumentError(
            "matrix products are proved without --algorithm, --in-place and --integrity: leave them out"
        )
    sizes = size_steps(minbytes, minbytes if maxbytes is None else maxbytes, stepfactor, None)
    topology = Topology.load(config)
    asked = [
        (world_layout(topology, count), case, own or catalog.recipe(case.call.collective, case.call.algorithm))
        for count in ranks
        for name in (variant.split(",") if named else ())
        for case in _cases(_sweep(named, sizes, name, algorithm, in_place), count)
    ]
    if named and not asked:
        raise ArgumentError(
            f"-n: no number of ranks from {ranks[0]} to {ranks[-1]} is that of two clusters of two or more"
        )
    if integrity is not None:
        asked = [(layout, case, with_checksums(recipe)) for layout, case, recipe in asked if _carries(recipe, variant)]
        if not asked:
            raise ArgumentError(f"--integrity: {' '.join(named)} has no variant that carries checksums")
    with ProveReport(len(asked) + len(products), json_file, algorithm, integrity) as report:
        for layout, case, recipe in asked:
            call = replace(case.call, algorithm=recipe.name, in_place=case.in_place)
            report.begin(case)
            report.add(case, prove_case(recipe, layout, call, progress=report.progress))
        for product in products:
            report.begin(product)
            report.add(product, product.prove(progress=report.progress))
    ctx.exit(report.verdict.exit_code)


def _cases(sweep: Sweep, ranks: int) -> Iterator[Case]:
    """All that are asked for; those on two levels with clusters of every size."""
    sizes = cluster_sizes(ranks)
    if sweep.variant == HIERARCHICAL.name and not sizes:
        return
    for case in replace(sweep, cluster=max(sizes, default=1)).cases(ranks):
        for cluster in sizes if case.call.cluster > 1 else (1,):
            yield replace(case, call=replace(case.call, cluster=cluster))


def _products(named: tuple[str, ...], ranks: range, variant: str) -> list[ProductCase]:
    """Of the products among these names. Raises ArgumentError for a style that a product, named alone, has not."""
    kinds = [name for name in named if name in fused.KINDS]
    styles = fused.STYLES if variant == EVERY else tuple(variant.split(","))
    if len(kinds) < len(named) or named == fused.KINDS:
        styles = tuple(style for style in styles if style in fused.STYLES)  # others may be a collective's
    return [product_case(kind, style, count) for count in ranks for style in styles for kind in kinds]


def _carries(recipe: Recipe, variant: str) -> bool:
    """Whether its doorbells have room for checksums. Raises ArgumentError where one that has not is asked for."""
    if recipe.style.line and variant != EVERY:
        raise ArgumentError(
            "--integrity: the line variant carries its payload where a checksum would be, and needs none"
        )
    return not recipe.style.line and (variant != EVERY or not recipe.style.levels)


def _sweep(named: tuple[str, ...], sizes: list[int], variant: str, algorithm: str | None, in_place: bool) -> Sweep:
    """Every collective that has the variant. Raises ArgumentError when none has it."""
    having = tuple(c for c in named if c not in COLLECTIVES or variant in (EVERY, *catalog.variants(c, clusters=True)))
    return Sweep(
        collectives=having or named, sizes=sizes, variant=variant, algorithm=algorithm, in_place=in_place, check=False
    )
