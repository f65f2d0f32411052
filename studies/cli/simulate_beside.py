"""``cxlemu simulate ... --with FILE``: two jobs on one fabric, each alone and beside the other."""

from typing import Any

import click
from rich.table import Table

from cxlemu.cli.console import console, figure_table, print_wrapped
from cxlemu.cli.output import write_json
from cxlemu.cli.progress import spinning
from cxlemu.topology import Topology
from cxlemu.units import counted
from cxlemu.version import __version__
from studies.cli.job_files import check_flags, job_of, read_job
from studies.jobs.beside import JobsCompared, compare


def run_beside(ctx: click.Context, kind: str, asked: Any) -> None:
    """Run the job of the command's flags beside that of ``--with``; exit with 3 where they share nothing."""
    check_flags(ctx, kind)
    topology = Topology.load(asked.config)
    jobs = [job_of(kind, asked, topology), read_job(asked.beside, topology)]
    out = console()
    with spinning("simulating both jobs, alone and together", out):
        found = compare(topology, jobs)
    lines = [
        f"cxlemu   {__version__}: what a model says, the same on every machine",
        f"config   {topology.title}",
    ]
    lines += [f"job {n}    {its.job.name} on {_places(topology, its)}" for n, its in enumerate(found.jobs, 1)]
    for line in lines:
        print_wrapped(out, f"# {line}", indent="#          ")
    out.print(_table(found), soft_wrap=False)
    use = next(iter(found.shared), None)
    if use is not None:
        print_wrapped(
            out,
            f"Both use {counted(len(found.shared), 'link or card', 'links and cards')}; {use.resource.name} is the "
            f"busiest, for {use.busy_ns / found.span_ns:.0%} of the time. Both go on for {found.together:.0%} of it.",
        )
    write_json(asked.json_file, _document(found, topology))
    if use is None:
        print_wrapped(out, "The jobs share no link and no card: neither can slow down the other.", "yellow")
        ctx.exit(3)


def _places(topology: Topology, its: Any) -> str:
    hosts = topology.place(its.first_rank + its.job.ranks)[its.first_rank :]
    where = f"host {hosts[0]}" if hosts[0] == hosts[-1] else f"hosts {hosts[0]} to {hosts[-1]}"
    return f"{counted(its.job.ranks, 'rank')}, {where}"


def _table(found: JobsCompared) -> Table:
    table = figure_table("job", "figure", "alone", "together", "slowdown", words=("figure",))
    for number, its in enumerate(found.jobs, 1):
        for row in its.figures:
            slower = "" if row.slowdown is None else f"{row.slowdown:.2f}"
            named = f"{number} {its.job.name}" if row is its.figures[0] else ""
            table.add_row(named, row.name, f"{row.alone:,.3f}", f"{row.beside:,.3f}", slower)
    return table


def _document(found: JobsCompared, topology: Topology) -> dict[str, Any]:
    return {
        "version": __version__,
        "config": topology.document(),
        "jobs": [
            {
                "job": its.job.name,
                "ranks": its.job.ranks,
                "first_rank": its.first_rank,
                "alone_ns": its.alone_ns,
                "together_ns": its.beside_ns,
                "figures": [
                    {"name": row.name, "alone": row.alone, "together": row.beside, "slowdown": row.slowdown}
                    for row in its.figures
                ],
            }
            for its in found.jobs
        ],
        "together": found.together,
        "shared": [
            {"name": use.resource.name, "kind": use.resource.kind, "bytes": use.bytes, "busy_ns": use.busy_ns}
            for use in found.shared
        ],
    }
