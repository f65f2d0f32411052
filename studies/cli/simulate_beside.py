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
        pair = compare(topology, jobs)
    lines = [
        f"cxlemu   {__version__}: modelled figures, the same on every machine",
        f"config   {topology.title}",
    ]
    lines += [f"job {n}    {job.job.name} on {_places(topology, job)}" for n, job in enumerate(pair.jobs, 1)]
    for line in lines:
        print_wrapped(out, f"# {line}", indent="#          ")
    out.print(_table(pair), soft_wrap=False)
    use = next(iter(pair.shared), None)
    if use is not None:
        print_wrapped(
            out,
            f"Both use {counted(len(pair.shared), 'link or card', 'links and cards')}; {use.resource.name} is the "
            f"busiest, for {use.busy_ns / pair.span_ns:.0%} of the time. Both run for {pair.together:.0%} of it.",
        )
    write_json(asked.json_file, _document(pair, topology))
    if use is None:
        print_wrapped(out, "The jobs share no link and no card: neither can slow down the other.", "yellow")
        ctx.exit(3)


def _places(topology: Topology, job: Any) -> str:
    hosts = topology.place(job.first_rank + job.job.ranks)[job.first_rank :]
    where = f"host {hosts[0]}" if hosts[0] == hosts[-1] else f"hosts {hosts[0]} to {hosts[-1]}"
    return f"{counted(job.job.ranks, 'rank')}, {where}"


def _table(compared: JobsCompared) -> Table:
    table = figure_table("job", "figure", "alone", "together", "slowdown", words=("figure",))
    for number, job in enumerate(compared.jobs, 1):
        for row in job.figures:
            slower = "" if row.slowdown is None else f"{row.slowdown:.2f}"
            named = f"{number} {job.job.name}" if row is job.figures[0] else ""
            table.add_row(named, row.name, f"{row.alone:,.3f}", f"{row.beside:,.3f}", slower)
    return table


def _document(compared: JobsCompared, topology: Topology) -> dict[str, Any]:
    return {
        "version": __version__,
        "config": topology.document(),
        "jobs": [
            {
                "job": job.job.name,
                "ranks": job.job.ranks,
                "first_rank": job.first_rank,
                "alone_ns": job.alone_ns,
                "together_ns": job.beside_ns,
                "figures": [
                    {"name": row.name, "alone": row.alone, "together": row.beside, "slowdown": row.slowdown}
                    for row in job.figures
                ],
            }
            for job in compared.jobs
        ],
        "together": compared.together,
        "shared": [
            {"name": use.resource.name, "kind": use.resource.kind, "bytes": use.bytes, "busy_ns": use.busy_ns}
            for use in compared.shared
        ],
    }
