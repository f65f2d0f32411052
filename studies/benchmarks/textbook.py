"""The textbook algorithms of examples/algorithms beside what `auto` takes: time / time of auto, below 1 they win.

They run on modelled fabrics in virtual time, as ``cxlemu simulate`` does, and natively: two and four ranks on shared
memory repeat each call in turn by persistent handles, so that only ratios of one run are compared. Each page runs cut
into four chunks, in one chunk and, where it is small, in doorbells' lines; its fastest form counts.
"""

import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import truediv
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.progress import track

from collectives import Communicator, sizes
from collectives.algorithms.catalog import load_algorithm
from collectives.builder import ALL, LINE, VariantSpec
from collectives.builder.recipes import Recipe
from collectives.contracts import COLLECTIVES, buffers
from collectives.defaults import AUTO
from collectives.sweep.sweep import Case, size_steps
from collectives.sweep.virtual.plans import model_of, plan_of, planned
from collectives.sweep.virtual.simulated import check_memory
from cxlemu.cli.output import write_json
from cxlemu.cli.vocabulary import RanksParam, option
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError, CxlemuError
from cxlemu.memory import MemorySpec
from cxlemu.plan import DTYPES, Call, Plan
from cxlemu.topology import Topology
from cxlemu.units import format_bytes
from cxlemu.world import RankContext, launch

FOLDER = Path("examples/algorithms")
TOPOLOGIES = "laptop,six-cards,titan2-6xcz120,thousand-hosts"
FORMS: dict[str, VariantSpec] = {"4 chunks": ALL, "1 chunk": replace(ALL, chunks=1), "lines": LINE}
LINES_MAX_BYTES = 4 << 10
NATIVE = "native"
NATIVE_CARD_BYTES, NATIVE_REGION_BYTES, NATIVE_RANKS = 128 << 20, 64 << 20, (2, 4)
ALTERNATIONS, BUDGET_BYTES, CALLS = 9, 8 << 20, range(3, 400)


@dataclass(frozen=True, slots=True)
class TextbookRow:
    page: str
    form: str  # the page's fastest form
    fabric: str
    ranks: int
    size_bytes: int
    ratio: float  # its time divided by that of what `auto` takes
    variant: str  # what `auto` takes


def pages(folder: Path) -> list[Recipe]:
    """Load every algorithm of a folder."""
    recipes = [load_algorithm(f"{file}:{file.stem}") for file in sorted(folder.glob("*.py"))]
    if not recipes:
        raise ArgumentError(f"{folder} has no algorithms: run this where examples/algorithms lies")
    return recipes


def calls(recipe: Recipe, ranks: int, wanted: Iterable[int], dtype: str) -> Iterator[Call]:
    """Yield calls of a page's collective, one for each size that makes a block."""
    contract = COLLECTIVES[recipe.collective]
    op = "sum" if contract.reduces else "none"
    for size in wanted if contract.moves_data else (0,):
        nbytes = sizes.block_bytes(recipe.collective, size, ranks, DTYPES[dtype].itemsize)
        if nbytes or not contract.moves_data:
            yield Call(recipe.collective, AUTO, ranks, nbytes, dtype, op)


def forms(recipe: Recipe, nbytes: int) -> Iterator[tuple[str, Recipe]]:
    """Yield the forms that a page runs in, by name; "lines" only up to LINES_MAX_BYTES."""
    for form, spec in FORMS.items():
        if form != "lines" or nbytes <= LINES_MAX_BYTES:
            name = f"{recipe.name}.{form.replace(' ', '-')}"
            yield form, replace(recipe, name=name, spec=replace(spec, name=name))


def on_fabric(topology: Topology, recipe: Recipe, call: Call) -> TextbookRow:
    """Compare a page's forms with `auto` on a modelled fabric."""

    def ns(plan: Plan) -> int:
        program = [VirtualCall(plan)]
        check_memory(program)
        return simulate(model_of(topology, call.ranks), program).time_ns

    plan, choice = planned(topology, Case(call, in_place=False))
    auto_ns, times = ns(plan), {}
    for form, recipe_of in forms(recipe, call.nbytes):
        with suppress(CxlemuError):  # a form that takes more doorbells than there are
            times[form] = ns(plan_of(topology, recipe_of, call, topology.pool_space))
    form = min(times, key=times.__getitem__)
    return _row(recipe, form, topology.name, call, times[form] / auto_ns, choice.variant)


def _row(recipe: Recipe, form: str, fabric: str, call: Call, ratio: float, variant: str) -> TextbookRow:
    size = sizes.size_bytes(call.collective, call.nbytes, call.ranks)
    return TextbookRow(recipe.name, form, fabric, call.ranks, size, round(ratio, 3), variant)


def natively(context: RankContext, folder: Path, wanted: list[int], dtype: str) -> list[TextbookRow]:
    """Measure all pages on one rank; rank 0's times count."""
    rows = []
    with Communicator.world(context, engine=NATIVE, region_bytes=NATIVE_REGION_BYTES) as comm:
        for recipe in pages(folder):
            for call in calls(recipe, comm.size, wanted, dtype) if recipe.collective != "barrier" else ():
                rows.append(_timed(comm, recipe, call))
    return rows


def _timed(comm: Communicator, recipe: Recipe, call: Call) -> TextbookRow:
    x, out = (
        np.ones(buffer.nbytes // DTYPES[call.dtype].itemsize, DTYPES[call.dtype]) if buffer.nbytes else None
        for buffer in buffers(call, comm.rank)
    )
    contract, init = COLLECTIVES[call.collective], getattr(comm.persistent, call.collective)
    arrays = (out if out is not None else x,) if contract.one_buffer else (x,)
    options = {} if contract.one_buffer else {"out": out}
    variants: dict[str, str | Recipe] = {AUTO: AUTO, **dict(forms(recipe, call.nbytes))}
    made = {form: init(*arrays, variant=variant, **options) for form, variant in variants.items()}
    count = max(CALLS.start, min(CALLS.stop, BUDGET_BYTES // max(1, call.nbytes * call.ranks)))
    times: dict[str, list[int]] = {form: [] for form in made}
    for _ in range(ALTERNATIONS):
        for form, operation in made.items():
            operation()
            comm.barrier()
            began = time.monotonic_ns()
            for _ in range(count):
                operation()
            comm.barrier()
            times[form].append(time.monotonic_ns() - began)
    ratios = {form: statistics.median(map(truediv, times[form], times[AUTO])) for form in made if form != AUTO}
    form = min(ratios, key=ratios.__getitem__)
    variant = comm.choice(call.collective, call.nbytes, dtype=call.dtype).variant
    return _row(recipe, form, NATIVE, call, ratios[form], variant)


def _native_rows(folder: Path, ranks: int, wanted: list[int], dtype: str) -> list[TextbookRow]:
    topology = Topology.load("six-cards")
    emulation = topology.emulation.model_copy(update={"card_bytes": NATIVE_CARD_BYTES})
    topology = topology.model_copy(update={"emulation": emulation})
    main = partial(natively, folder=folder, wanted=wanted, dtype=dtype)
    rows = launch(main, ranks=ranks, topology=topology, memory=MemorySpec("shm"), how="processes", deadline_s=300.0)
    return list(rows[0])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@option(
    "config", dest="configs", default=TOPOLOGIES, show_default=True, help="Modelled fabrics; a comma list, or none."
)
@option("ranks", type=RanksParam(2, 1024), default="2,4,8,16,64", show_default=True, help="On each fabric.")
@option("minbytes", default="1K", show_default=True, help="Smallest size.")
@option("maxbytes", default="64M", show_default=True, help="Largest size.")
@click.option("-f", "--stepfactor", type=click.IntRange(2), default=4, show_default=True, help="Size times.")
@option("datatype", type=click.Choice(list(DTYPES)), default="i32", show_default=True)
@click.option("--native/--no-native", default=False, show_default=True, help="Measure 2 and 4 ranks here as well.")
@click.option("--page", "names", multiple=True, metavar="NAME", help="Only this page; may be given more than once.")
@click.option("--rows", type=click.IntRange(0), default=40, show_default=True, help="How many to print; 0: all.")
@option("json")
def main(
    configs: str,
    ranks: tuple[int, ...],
    minbytes: int,
    maxbytes: int,
    stepfactor: int,
    datatype: str,
    native: bool,
    names: tuple[str, ...],
    rows: int,
    json_file: Path | None,
) -> None:
    """Compare the textbook algorithms of examples/algorithms with what `auto` takes.

    \b
    Examples:
      python -m studies.benchmarks.textbook -c six-cards -n 2,4
      python -m studies.benchmarks.textbook --page bruck_all_gather -b 64K --rows 0
      python -m studies.benchmarks.textbook -c none --native --json textbook.json
    """
    wanted = size_steps(minbytes, maxbytes, stepfactor if minbytes < maxbytes else None, None)
    chosen = [recipe for recipe in pages(FOLDER) if not names or recipe.name in names]
    if unknown := set(names) - {recipe.name for recipe in chosen}:
        raise click.UsageError(f"--page: there is no {', '.join(sorted(unknown))} in {FOLDER}")
    fabrics = [Topology.load(name) for name in configs.split(",")] if configs != "none" else []
    cells = [
        (topology, recipe, call)
        for topology in fabrics
        for count in ranks
        for recipe in chosen
        for call in calls(recipe, count, wanted, datatype)
    ]
    err, on_fabrics = Console(stderr=True), []
    for cell in track(cells, "modelled", console=err, disable=not err.is_terminal):
        with suppress(ArgumentError):  # no room, or too many instructions
            on_fabrics.append(on_fabric(*cell))
    for count in track(NATIVE_RANKS if native else (), "native", console=err, disable=not err.is_terminal):
        on_fabrics += [row for row in _native_rows(FOLDER, count, wanted, datatype) if not names or row.page in names]
    on_fabrics.sort(key=lambda row: row.ratio)
    if write_json(json_file, [asdict(row) for row in on_fabrics]):
        return
    print(f"{'ratio':>6} {'page':<30} {'form':<9} {'fabric':<16} {'ranks':>5} {'size':>8}  auto")
    for row in on_fabrics[: rows or None]:
        size = format_bytes(row.size_bytes)
        print(
            f"{row.ratio:>6.2f} {row.page:<30} {row.form:<9} {row.fabric:<16} {row.ranks:>5} {size:>8}  {row.variant}"
        )


if __name__ == "__main__":
    try:
        main()
    except CxlemuError as error:
        raise SystemExit(f"textbook: {error}") from None
