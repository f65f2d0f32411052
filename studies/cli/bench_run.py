"""What ``cxlemu bench`` does: finds peers, and measures all in turns."""

from __future__ import annotations

from pathlib import Path

import click

from collectives.contracts import COLLECTIVES
from cxlemu.accelerator.named import device_named, name_for_rank
from cxlemu.cli.first_time import measure_machine
from cxlemu.errors import ArgumentError
from cxlemu.units import counted
from studies.choices import SOURCES
from studies.cli.bench_plot import draw
from studies.cli.bench_report import BenchReport
from studies.cli.picture import check_picture, save
from studies.peers import callgrind as instructions
from studies.peers import compare, find


def run(
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
    accelerator: str | None,
    transport: str,
    config: str,
    deadline_s: float,
    json_file: Path | None,
    plot_file: Path | None,
    callgrind: bool,
) -> None:
    """Run ``cxlemu bench``; the arguments are the command's flags.

    Exits with 1 where a result was wrong.

    Raises:
        ArgumentError: A flag does not fit, or a file cannot be written.
        ConfigError: The topology is wrong.
    """
    if plot_file is not None:
        check_picture("--plot", plot_file)
    chosen = collectives or tuple(name for name, contract in COLLECTIVES.items() if contract.among_all)
    for name in chosen:
        if name not in COLLECTIVES or not COLLECTIVES[name].among_all:
            raise ArgumentError(f"{name!r} is no collective that moves data")
    calls = compare.cells(chosen, compare.default_sizes(minbytes, maxbytes), ranks)
    if not calls:
        raise ArgumentError(f"there is no size between {minbytes} and {maxbytes}: sizes are 8 and powers of four")
    if accelerator is not None:
        device_named(name_for_rank(accelerator, 0))
    if callgrind:
        instructions.check_available()
    measure_machine()
    modes = SOURCES[source]
    report = BenchReport(
        ranks,
        calls,
        alternations,
        modes,
        single_copy=single_copy,
        accelerator=accelerator,
        transport=transport,
        json_file=json_file,
    )
    with report:
        found = [find.find(name, _pythons(pythons)) for name in _peers(names)]
        if accelerator is not None:
            found.append(find.find_nccl(accelerator, ranks, _pythons(pythons)))
        with compare.started(
            ranks,
            found,
            largest=calls,
            config=config,
            single_copy=single_copy,
            transport=transport,
            deadline_s=deadline_s,
            accelerator=accelerator,
            on_start=report.starting,
        ) as comparison:
            report.opened(comparison)
            for call in calls:
                report.add(comparison.measure(call, alternations=alternations, modes=modes))
        if callgrind:
            report.counting()
            report.instructions = instructions.count(compare.cells(chosen, instructions.SIZES, instructions.RANKS))
    if plot_file is not None:
        save(draw(report.rows, title=f"{counted(ranks, 'rank')} on this machine, float32"), "--plot", plot_file)
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
        if name not in (*find.NAMES, find.NCCL) or not equals or not path:
            names = ", ".join((*find.NAMES, find.NCCL))
            raise ArgumentError(f"--peer-python takes NAME=PATH with one of {names}, not {pair!r}")
        chosen[name] = path
    return chosen
