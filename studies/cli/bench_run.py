"""What ``cxlemu bench`` does: finds peers, and measures all in turns."""

import click

from collectives.contracts import COLLECTIVES
from cxlemu.accelerator.named import device_named, name_for_rank
from cxlemu.cli.first_time import measure_machine
from cxlemu.cli.params import given_flags
from cxlemu.errors import ArgumentError
from cxlemu.units import counted
from studies.choices import SOURCES
from studies.cli.bench import BenchFlags
from studies.cli.bench_plot import draw
from studies.cli.bench_report import BenchReport
from studies.cli.picture import check_picture, save
from studies.peers import callgrind as instructions
from studies.peers import compare, find


def run(ctx: click.Context, asked: BenchFlags) -> None:
    if asked.plot_file is not None:
        check_picture("--plot", asked.plot_file)
    chosen = asked.collectives or tuple(name for name, contract in COLLECTIVES.items() if contract.among_all)
    for name in chosen:
        if name not in COLLECTIVES or not COLLECTIVES[name].among_all:
            raise ArgumentError(f"{name!r} is not a collective that moves data")
    calls = compare.cells(chosen, compare.default_sizes(asked.minbytes, asked.maxbytes), asked.ranks)
    if not calls:
        raise ArgumentError(
            f"there is no size between {asked.minbytes} and {asked.maxbytes}: sizes are 8 and powers of four"
        )
    if asked.accelerator is not None:
        device_named(name_for_rank(asked.accelerator, 0))
    if asked.callgrind:
        instructions.check_available()
    peers, pythons = _peers(asked.peers), _pythons(asked.pythons)
    for name in pythons:
        if name not in (*peers, *[find.NCCL] * (asked.accelerator is not None)):
            raise ArgumentError(f"--peer-python does nothing here, because {name} is not among the peers: leave it out")
    if not asked.single_copy and not set(peers) & set(find.MPIS):
        raise ArgumentError("--no-single-copy does nothing here, because no MPI is among the peers: leave it out")
    measure_machine()
    modes = SOURCES[asked.source]
    report = BenchReport(
        asked.ranks,
        calls,
        asked.alternations,
        modes,
        single_copy=asked.single_copy,
        accelerator=asked.accelerator,
        transport=asked.transport,
        json_file=asked.json_file,
    )
    with report:
        present = [find.find(name, pythons) for name in peers]
        if asked.accelerator is not None:
            present.append(find.find_nccl(asked.accelerator, asked.ranks, pythons))
        with compare.started(
            asked.ranks,
            present,
            largest=calls,
            config=asked.config,
            single_copy=asked.single_copy,
            transport=asked.transport,
            deadline_s=asked.deadline_s,
            accelerator=asked.accelerator,
            on_start=report.starting,
        ) as comparison:
            report.opened(comparison)
            for call in calls:
                report.add(comparison.measure(call, alternations=asked.alternations, modes=modes))
        if asked.callgrind:
            report.counting()
            report.instructions = instructions.count(compare.cells(chosen, instructions.SIZES, instructions.RANKS))
    if asked.plot_file is not None:
        save(
            draw(report.rows, title=f"{counted(asked.ranks, 'rank')} on this machine, float32"),
            "--plot",
            asked.plot_file,
        )
    named = "peers" in given_flags(ctx)
    absent = [f"left out: {name}: {why}" for name, why in report.absent.items() if named and name in peers]
    for sentence in absent:
        click.echo(sentence, err=True)
    ctx.exit(1 if report.wrong else 3 if absent else 0)


def _peers(names: str) -> list[str]:
    chosen = [] if names == "none" else names.split(",")
    for name in chosen:
        if name not in find.NAMES:
            raise ArgumentError(f"--peers: {name!r} is not one of {', '.join(find.NAMES)}")
    return chosen


def _pythons(pairs: tuple[str, ...]) -> dict[str, str]:
    chosen = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if name not in (*find.NAMES, find.NCCL) or not equals or not path:
            names = ", ".join((*find.NAMES, find.NCCL))
            raise ArgumentError(f"--peer-python takes NAME=PATH with one of {names}, not {pair!r}")
        if name in chosen:
            raise ArgumentError(f"--peer-python: {name} is named twice")
        chosen[name] = path
    return chosen
