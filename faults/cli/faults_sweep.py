"""``cxlemu faults sweep``: a fault before every instruction of every rank, and a table of how each run ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from collectives.cli.run import Names
from collectives.cli.targets import check_options, target
from collectives.cli.texts import ALGORITHM_HELP
from collectives.contracts import COLLECTIVES
from cxlemu.choices import ENGINES
from cxlemu.cli.output import check_json_file
from cxlemu.errors import ArgumentError
from cxlemu.files import write_atomically
from cxlemu.plan import Plan
from cxlemu.units import BytesParam, format_bytes
from faults.inject.fault import FAULTS
from faults.inject.judge import ScenarioVerdict
from faults.inject.scenario import Scenario
from faults.inject.script import Script
from faults.inject.sweep import KINDS, ScenarioResult, SweepRow, bases, everywhere, some, sweep

FINDINGS_SHOWN = 20
RANKS_MAX = 16
PLAN_BYTES_MAX = 1 << 28  # of a saved plan: its ring and heap, and all blocks


@click.command("sweep")
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...|FILE.plan")
@click.option("-n", "--ranks", type=click.IntRange(2, RANKS_MAX), default=3, show_default=True)
@click.option("-c", "--config", default="", help="A topology, a file or a name.  [default: hosts around two cards]")
@click.option("--cluster", type=click.IntRange(1, 16), default=1, show_default=True, help="Ranks a host, without one.")
@click.option("-b", "--bytes", "nbytes", type=BytesParam(), default="96", show_default=True, help="Of a block.")
@click.option("--variant", default="every", show_default=True, help="every, or one of the collective's.")
@click.option("--algorithm", metavar="FILE.py:FUNCTION", help=ALGORITHM_HELP)
@click.option(
    "--fault",
    "kinds",
    type=Names(tuple(FAULTS)),
    default=",".join(KINDS),
    show_default=True,
    help="Kinds of faults; a comma list or all.",
)
@click.option("--engine", type=click.Choice(ENGINES), default="reference", show_default=True)
@click.option(
    "--launch",
    type=click.Choice(["turns", "threads", "processes"]),
    help="turns: one rank at a time, in virtual time.  [default: turns, or threads on the native engine]",
)
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Only so many, chosen by --seed.")
@click.option("--seed", type=click.IntRange(0, 10**18 - 1), default=0, show_default=True, help="Of data and sample.")
@click.option("--deadline-s", type=click.FloatRange(0.05, 60), default=0.5, show_default=True, help="For any one wait.")
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Processes.  [default: a core each for turns, else 1]",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
@click.pass_context
def sweep_command(
    ctx: click.Context,
    collectives: tuple[str, ...],
    ranks: int,
    config: str,
    cluster: int,
    nbytes: int,
    variant: str,
    algorithm: str | None,
    kinds: tuple[str, ...],
    engine: str,
    launch: Literal["turns", "threads", "processes"] | None,
    sample: int | None,
    seed: int,
    deadline_s: float,
    jobs: int | None,
    json_file: Path | None,
) -> None:
    """Put a fault before every instruction of every rank, one a run, and judge how every rank ends.

    Calls go on until the ring has come round. Without arguments: all collectives in all variants, and the faults that
    hardware and hosts have. Exit code 1 when a rank hangs, returns wrong bytes or raises a wrong error.

    \b
    Examples:
      cxlemu faults sweep all_gather
      cxlemu faults sweep all_reduce broadcast -n 4 --fault kill,skip_doorbell --variant all
      cxlemu faults sweep all_gather -n 4 --cluster 2 --variant hierarchical
      cxlemu faults sweep --algorithm examples/my_all_reduce.py:my_all_reduce
      cxlemu faults sweep all_reduce.plan
      cxlemu faults sweep --engine native --launch processes --sample 20 --json sweep.json
    """
    if json_file is not None:
        check_json_file(json_file)
    if launch == "turns" and engine != "reference":
        raise ArgumentError("--launch turns is for --engine reference: give --launch threads or processes")
    launch = launch or ("turns" if engine == "reference" else "threads")
    asked = target(collectives, algorithm, variant=variant != "every")
    if asked.plan is not None:
        check_options(ctx, asked, {"ranks": asked.plan.ranks, "nbytes": asked.plan.call.nbytes})
        ranks, nbytes = _bounded(asked.plan, asked.source)
    template = Scenario(
        collective=next(iter(COLLECTIVES)),
        algorithm=asked.source,
        ranks=ranks,
        config=config,
        cluster=cluster,
        nbytes=nbytes,
        engine=engine,
        launch=launch,
        deadline_s=deadline_s,
        script=Script(seed=seed),
    )
    if config and cluster > 1:
        raise ArgumentError(f"--cluster: {config} says how many ranks each host has")
    if ranks % cluster:
        raise ArgumentError(f"-n {ranks}: hosts of {cluster} ranks each have not so many")
    scenarios = [
        each for base in bases(asked.collectives, template, variant=variant) for each in everywhere(base, kinds)
    ]
    total = len(scenarios)
    chosen = scenarios if sample is None else some(scenarios, sample, seed)
    jobs = jobs or (len(os.sched_getaffinity(0)) if launch == "turns" else 1)
    findings: list[ScenarioResult] = []
    began = time.monotonic()
    with _progress() as progress:
        bar = progress.add_task("faults", total=len(chosen))

        def tell(result: ScenarioResult) -> None:
            progress.advance(bar)
            if not result.verdict.ok:
                findings.append(result)

        rows = sweep(chosen, jobs=jobs, tell=tell)
    seconds = time.monotonic() - began
    console = Console()
    console.print(_table(rows))
    for result in findings[:FINDINGS_SHOWN]:
        scenario = result.scenario
        what = f"{scenario.collective} {scenario.variant}: {scenario.script.faults[0]}"
        console.print(f"{result.verdict.value}: {what}: {result.why}", style="red", markup=False, highlight=False)
    of = f" of {total}" if len(chosen) < total else ""
    console.print(
        f"{len(chosen)}{of} runs of {ranks} ranks on the {engine} engine, launched as {launch}, in {seconds:.1f} s: "
        + ", ".join(f"{verdict.value} {sum(row.verdicts[verdict] for row in rows)}" for verdict in ScenarioVerdict),
        highlight=False,
    )
    if json_file is not None:
        write_atomically(json_file, json.dumps(_document(rows, findings, seconds, template), indent=1).encode())
    ctx.exit(1 if findings else 0)


def _bounded(plan: Plan, source: str | None) -> tuple[int, int]:
    """Ranks and bytes of a block of a saved plan. Raises ArgumentError for one that is too large to run so often."""
    if not 2 <= plan.ranks <= RANKS_MAX:
        raise ArgumentError(f"{source} is of {plan.ranks} ranks: faults are swept over 2 to {RANKS_MAX}")
    nbytes = plan.layout.extent_bytes * plan.layout.cards + plan.call.nbytes * plan.ranks
    if nbytes > PLAN_BYTES_MAX:
        most = format_bytes(PLAN_BYTES_MAX)
        raise ArgumentError(
            f"{source} takes {format_bytes(nbytes)} of memory, too much for so many runs: {most} at most"
        )
    return plan.ranks, plan.call.nbytes


def _progress() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _table(rows: list[SweepRow]) -> Table:
    """A column for each verdict; those that nobody expects only where there is something in them."""
    counts: dict[str, Callable[[SweepRow], int]] = {"runs": lambda row: row.verdicts.total()}
    if any(row.unreached for row in rows):
        counts["not\nreached"] = lambda row: row.unreached
    for verdict in ScenarioVerdict:
        if verdict is not ScenarioVerdict.UNPROTECTED or any(row.verdicts[verdict] for row in rows):
            counts[verdict.value.replace(" ", "\n")] = partial(_count, verdict)
    table = Table(box=None, header_style="bold")
    for name in ("collective", "variant", "fault"):
        table.add_column(name, no_wrap=True)
    for name in counts:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row.collective, row.variant, row.fault, *(str(count(row)) for count in counts.values()))
    return table


def _count(verdict: ScenarioVerdict, row: SweepRow) -> int:
    return row.verdicts[verdict]


def _document(
    rows: list[SweepRow], findings: list[ScenarioResult], seconds: float, template: Scenario
) -> dict[str, Any]:
    return {
        "ranks": template.ranks,
        "bytes": template.nbytes,
        "engine": template.engine,
        "launch": template.launch,
        "deadline_s": template.deadline_s,
        "seconds": seconds,
        "rows": [row.plain() for row in rows],
        "findings": [
            {
                "verdict": each.verdict.value,
                "why": each.why,
                "scenario": each.scenario.model_dump(mode="json", exclude_none=True),
            }
            for each in findings
        ],
    }
