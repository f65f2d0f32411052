"""``cxlemu bench``: our collectives beside those of MPI and Gloo and the machine's own limits, in one run."""

from __future__ import annotations

from pathlib import Path

import click

from collectives.contracts import COLLECTIVES
from cxlemu.cli.output import check_output, writing
from cxlemu.errors import ArgumentError
from cxlemu.units import BytesParam
from studies.cli import bench_plot
from studies.cli.bench_report import BenchReport
from studies.peers import callgrind as instructions
from studies.peers import compare, find

SOURCES = {"same": (False,), "rewritten": (True,), "both": (False, True)}


@click.command()
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...")
@click.option("-n", "--ranks", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("-b", "--minbytes", type=BytesParam(), default="8", show_default=True, help="Smallest size.")
@click.option("-e", "--maxbytes", type=BytesParam(), default="64M", show_default=True, help="Largest size.")
@click.option(
    "--alternations", type=click.IntRange(1), default=5, show_default=True, help="Times that all are timed in turn."
)
@click.option(
    "--source",
    type=click.Choice(list(SOURCES)),
    default="both",
    show_default=True,
    help="Rewritten before each call, as applications do, or the same as in the call before.",
)
@click.option(
    "--peers",
    "names",
    default=",".join(find.NAMES),
    show_default=True,
    help="Whom to compare with; a comma list, or none.",
)
@click.option(
    "--peer-python",
    "pythons",
    multiple=True,
    metavar="NAME=PATH",
    help="The Python that has mpi4py or torch for a peer.  [default: this one]",
)
@click.option(
    "--single-copy/--no-single-copy",
    default=True,
    show_default=True,
    help="Whether MPI may copy straight from one process's memory into another's, as no pool can.",
)
@click.option("-c", "--config", default="six-cards", show_default=True, help="Our pool's topology: a file or a name.")
@click.option("--deadline-s", type=click.FloatRange(0, min_open=True), default=120.0, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Draw it there; needs matplotlib.")
@click.option(
    "--callgrind", is_flag=True, help="Count the instructions of small calls, too: free of noise; needs valgrind."
)
@click.pass_context
def command(
    ctx: click.Context,
    collectives: tuple[str, ...],
    ranks: int,
    minbytes: int,
    maxbytes: int,
    alternations: int,
    source: str,
    names: str,
    pythons: tuple[str, ...],
    single_copy: bool,
    config: str,
    deadline_s: float,
    json_file: Path | None,
    plot_file: Path | None,
    callgrind: bool,
) -> None:
    """Compare our collectives with Open MPI, MPICH and Gloo, and with what this machine can do at best.

    Everybody is measured alternately in one run: the same sizes, ranks, cores and buffers (float32), every result
    checked. Peers are optional: which were found, and which not and why, is printed. Sizes are those of `cxlemu run`:
    8 bytes and all powers of four.

    \b
    Examples:
      cxlemu bench
      cxlemu bench all_reduce broadcast -e 1M --json bench.json --plot bench.png
      cxlemu bench -n 4 --source rewritten --peers openmpi
      cxlemu bench -b 1M --no-single-copy
      cxlemu bench --peer-python mpich=peers/mpich/bin/python --peer-python gloo=peers/torch/bin/python
    """
    for flag, path in (("--json", json_file), ("--plot", plot_file)):
        check_output(flag, path)  # not only when everything has been measured
    if plot_file is not None:
        bench_plot.pyplot()
    chosen = collectives or tuple(name for name, contract in COLLECTIVES.items() if contract.moves_data)
    for name in chosen:
        if name not in COLLECTIVES or not COLLECTIVES[name].moves_data:
            raise ArgumentError(f"{name!r} is no collective that moves data")
    calls = compare.cells(chosen, compare.default_sizes(minbytes, maxbytes), ranks)
    if not calls:
        raise ArgumentError(f"there is no size between {minbytes} and {maxbytes}: sizes are 8 and powers of four")
    if callgrind:
        instructions.check_available()
    modes = SOURCES[source]
    report = BenchReport(ranks, calls, alternations, modes, single_copy=single_copy, json_file=json_file)
    with report:
        found = [find.find(name, _pythons(pythons)) for name in _peers(names)]
        with compare.started(
            ranks,
            found,
            largest=calls,
            config=config,
            single_copy=single_copy,
            deadline_s=deadline_s,
            on_start=report.starting,
        ) as comparison:
            report.opened(comparison)
            for call in calls:
                report.add(comparison.measure(call, alternations=alternations, modes=modes))
        if callgrind:
            report.counting()
            report.instructions = instructions.count(compare.cells(chosen, instructions.SIZES, instructions.RANKS))
    if plot_file is not None:
        with writing("--plot", plot_file):
            bench_plot.draw(report.rows, plot_file, title=f"{ranks} ranks on this machine, float32")
    ctx.exit(1 if report.wrong else 0)


def _peers(names: str) -> list[str]:
    chosen = [] if names in ("", "none") else names.split(",")
    for name in chosen:
        if name not in find.NAMES:
            raise ArgumentError(f"--peers: {name!r} is not one of {', '.join(find.NAMES)}")
    return chosen


def _pythons(pairs: tuple[str, ...]) -> dict[str, str]:
    chosen = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if name not in find.NAMES or not equals or not path:
            raise ArgumentError(f"--peer-python takes NAME=PATH with one of {', '.join(find.NAMES)}, not {pair!r}")
        chosen[name] = path
    return chosen
