"""The work of ``cxlemu faults sweep``: places faults, runs each, and adds up how the runs ended."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import click

from collectives.algorithms.catalog import on_levels_left_out
from collectives.cli.targets import check_applies, check_options, target
from collectives.contracts import COLLECTIVES
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.output import write_json
from cxlemu.cli.params import given_flags
from cxlemu.errors import ArgumentError, NothingJudgedError
from cxlemu.plan import Plan
from cxlemu.units import counted, format_bytes, typed_bytes
from faults.campaign.executors import Workers
from faults.choices import SWEPT_RANKS_MAX
from faults.cli.faults_sweep import SweepFlags
from faults.cli.faults_sweep_report import SweepReport
from faults.inject.judge import ScenarioVerdict
from faults.inject.scenario import NBYTES_MAX, Scenario
from faults.inject.script import Script
from faults.inject.sweep import FaultSweepRow, ScenarioResult, bases, everywhere, some, summed_up, sweep
from faults.left_out import left_out

PLAN_BYTES_MAX = 1 << 28  # of a saved plan: its ring and heap, and all blocks


def run(ctx: click.Context, asked: SweepFlags) -> None:
    jobs, launch, nbytes, ranks = asked.jobs, asked.launch, asked.nbytes, asked.ranks
    if launch == "turns" and asked.engine != "reference":
        raise ArgumentError("--launch turns is for --engine reference: give --launch threads or processes")
    launch = launch or ("turns" if asked.engine == "reference" else "threads")
    named = target(asked.collectives, asked.algorithm, variant=asked.variant != "every")
    check_applies(ctx, named.collectives if named.plan is None else ())
    if named.plan is not None:
        check_options(ctx, named, {"ranks": named.plan.ranks, "nbytes": named.plan.call.nbytes})
        ranks, nbytes = _bounded(named.plan, named.source)
    elif nbytes > NBYTES_MAX:
        raise ArgumentError(f"-b {typed_bytes(nbytes)} exceeds the limit of {format_bytes(NBYTES_MAX)} for a block")
    template = Scenario(
        collective=next(iter(COLLECTIVES)),
        algorithm=named.source,
        ranks=ranks,
        config=asked.config,
        cluster=asked.cluster,
        nbytes=nbytes,
        engine=asked.engine,
        launch=launch,
        deadline_s=asked.deadline_s,
        script=Script(seed=asked.seed),
    )
    if asked.config and asked.cluster > 1:
        raise ArgumentError(f"--cluster: {asked.config} already sets each host's number of ranks")
    if ranks % asked.cluster:
        raise ArgumentError(
            f"-n {ranks} is not a multiple of --cluster {asked.cluster}: "
            f"hosts have {counted(asked.cluster, 'rank')} each"
        )
    scenarios = [
        each
        for base in bases(named.collectives, template, variant=asked.variant)
        for each in everywhere(base, asked.kinds)
    ]
    named_kinds = "kinds" in given_flags(ctx)
    if not scenarios and named_kinds:
        raise NothingJudgedError(f"no call has a place for {' or '.join(asked.kinds)}: nothing was judged")
    if not scenarios:
        raise ArgumentError(f"-b {typed_bytes(nbytes)}: no call has an instruction, so no fault has a place")
    total = len(scenarios)
    chosen = scenarios if asked.sample is None else some(scenarios, asked.sample, asked.seed)
    jobs = jobs or (len(os.sched_getaffinity(0)) if launch == "turns" else 1)
    interruption, out = Interruption(), console()
    with SweepReport(chosen) as report, interruption, nullcontext() if jobs == 1 else Workers(jobs) as executor:
        sweep(chosen, executor=executor, tell=report.tell)
    results, seconds = report.results, report.seconds
    rows = summed_up(results)
    findings = [result for result in results if not result.verdict.ok]
    of = f" of {total}" if len(results) < total else ""
    done = f"{len(results)}{of} runs" if of else counted(len(results), "run")
    print_wrapped(
        out,
        f"{done} of {counted(ranks, 'rank')} on the {asked.engine} engine, launched as {launch}, in {seconds:.1f} s: "
        + ", ".join(f"{verdict.value} {sum(row.verdicts[verdict] for row in rows)}" for verdict in ScenarioVerdict),
    )
    kinds = asked.kinds if named_kinds and not interruption.happened else None
    whole = named.plan is None and not interruption.happened
    of_names = named.collectives if asked.collectives and whole else None
    happened = [its for its in results if its.verdict is not ScenarioVerdict.NEVER]
    came = [(its.scenario.collective, its.scenario.script.faults[0].kind) for its in happened]
    left = left_out((of_names or None, kinds), came, partial(_why, results))
    if asked.variant == "every" and named.source is None and template.ranks_per_cluster == 1:
        more = on_levels_left_out(named.collectives or COLLECTIVES, "no host has several ranks (--cluster)")
        left = left._replace(sentences=[*left.sentences, *more])
    document = _document(rows, findings, seconds, template) | left.data
    write_json(asked.json_file, document | {"interrupted": interruption.happened})
    for sentence in left.lines:
        print_wrapped(out, sentence, "yellow")
    interruption.exit(
        ctx,
        1 if findings else 3 if left.nowhere or not results else 0,
        f"{counted(len(chosen) - len(results), 'run')} did not end",
    )


def _why(results: Sequence[ScenarioResult], collective: str | None, kind: str) -> str:
    """Say why a kind of fault happened in no run, of one collective or of all."""
    for its in results:
        if its.scenario.script.faults[0].kind == kind and collective in (None, its.scenario.collective):
            return its.why
    return "no place was drawn, or no call has an instruction"


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
