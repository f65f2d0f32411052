"""The work of ``cxlemu faults sweep``: places faults, runs each, and adds up how the runs ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
from rich.table import Table

from collectives.cli.targets import check_options, target
from collectives.contracts import COLLECTIVES
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.output import write_json
from cxlemu.cli.progress import bar
from cxlemu.errors import ArgumentError
from cxlemu.plan import Plan
from cxlemu.units import counted, format_bytes
from faults.campaign.executors import Workers
from faults.choices import SWEPT_RANKS_MAX
from faults.inject.judge import ScenarioVerdict
from faults.inject.scenario import Scenario
from faults.inject.script import Script
from faults.inject.sweep import FaultSweepRow, ScenarioResult, bases, everywhere, some, summed_up, sweep

FINDINGS_SHOWN = 20
PLAN_BYTES_MAX = 1 << 28  # of a saved plan: its ring and heap, and all blocks


def run(
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
    """Run the faults of a sweep, and print and write the result, as the command's flags say.

    With Ctrl-C it does so for the runs that ended. The command exits with 1 if a run ended wrong, else with 130 after
    Ctrl-C, else with 0.

    Args:
        ctx: The command's context. Every other argument is the command's parameter of the same name.

    Raises:
        ArgumentError: The flags do not fit each other, or a call cannot run.
    """
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
        raise ArgumentError(
            f"-n {ranks} is not a multiple of --cluster {cluster}: hosts have {counted(cluster, 'rank')} each"
        )
    scenarios = [
        each for base in bases(asked.collectives, template, variant=variant) for each in everywhere(base, kinds)
    ]
    total = len(scenarios)
    chosen = scenarios if sample is None else some(scenarios, sample, seed)
    jobs = jobs or (len(os.sched_getaffinity(0)) if launch == "turns" else 1)
    results: list[ScenarioResult] = []
    interruption = Interruption()
    began = time.monotonic()
    with bar() as progress:
        task = progress.add_task("faults", total=len(chosen))

        def tell(result: ScenarioResult) -> None:
            results.append(result)
            progress.advance(task)

        with interruption, nullcontext() if jobs == 1 else Workers(jobs) as executor:
            sweep(chosen, executor=executor, tell=tell)
    seconds = time.monotonic() - began
    rows = summed_up(results)
    findings = [result for result in results if not result.verdict.ok]
    out = console()
    out.print(_table(rows), soft_wrap=False)
    for result in findings[:FINDINGS_SHOWN]:
        scenario = result.scenario
        what = f"{scenario.collective} {scenario.variant}: {scenario.script.faults[0]}"
        print_wrapped(out, f"{result.verdict.value}: {what}: {result.why}", "red")
    of = f" of {total}" if len(results) < total else ""
    done = f"{len(results)}{of} runs" if of else counted(len(results), "run")
    print_wrapped(
        out,
        f"{done} of {counted(ranks, 'rank')} on the {engine} engine, launched as {launch}, in {seconds:.1f} s: "
        + ", ".join(f"{verdict.value} {sum(row.verdicts[verdict] for row in rows)}" for verdict in ScenarioVerdict),
    )
    write_json(json_file, _document(rows, findings, seconds, template) | {"interrupted": interruption.happened})
    interruption.exit(ctx, 1 if findings else 0, f"{counted(len(chosen) - len(results), 'run')} did not end")


def _bounded(plan: Plan, source: str | None) -> tuple[int, int]:
    """Return ranks and bytes of a block of a saved plan. Raises ArgumentError for a plan that is too large to run this
    often."""
    if not 2 <= plan.ranks <= SWEPT_RANKS_MAX:
        raise ArgumentError(
            f"{source} is of {counted(plan.ranks, 'rank')}: faults are swept over 2 to {SWEPT_RANKS_MAX}"
        )
    nbytes = plan.layout.extent_bytes * plan.layout.cards + plan.call.nbytes * plan.ranks
    if nbytes > PLAN_BYTES_MAX:
        most = format_bytes(PLAN_BYTES_MAX)
        raise ArgumentError(f"{source} takes {format_bytes(nbytes)} of memory, too much for this sweep: {most} at most")
    return plan.ranks, plan.call.nbytes


def _table(rows: list[FaultSweepRow]) -> Table:
    """A column for each verdict; an unexpected verdict has one only if it occurred."""
    counts: dict[str, Callable[[FaultSweepRow], int]] = {"runs": lambda row: row.verdicts.total()}
    if any(row.unreached for row in rows):
        counts["not\nreached"] = lambda row: row.unreached
    for verdict in ScenarioVerdict:
        if verdict is not ScenarioVerdict.UNPROTECTED or any(row.verdicts[verdict] for row in rows):
            counts[verdict.value.replace(" ", "\n")] = partial(_count, verdict)
    table = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    for name in ("collective", "variant", "fault"):
        table.add_column(name, no_wrap=True)
    for name in counts:
        table.add_column(name, justify="right", min_width=max(map(len, name.split("\n"))))
    for row in rows:
        table.add_row(row.collective, row.variant, row.fault, *(str(count(row)) for count in counts.values()))
    return table


def _count(verdict: ScenarioVerdict, row: FaultSweepRow) -> int:
    return row.verdicts[verdict]


def _document(
    rows: list[FaultSweepRow], findings: list[ScenarioResult], seconds: float, template: Scenario
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
