"""``cxlemu exec --every``: what a search over all interleavings has come to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from cxlemu.cli.console import print_wrapped
from cxlemu.cli.output import write_json
from cxlemu.cli.progress import counting
from cxlemu.signals import stops_exit
from faults.cli.exec_report import write_outputs
from faults.cli.exec_run import document, shorten, tell
from faults.programs.crashes import crash_sentence, fewer_losses
from faults.programs.damage import where_damaged
from faults.programs.every.explore import EveryCoverage, EveryLimits, explore
from faults.programs.judge import again, report_of
from faults.programs.reports import ProgramReport, as_json
from faults.programs.result import ExecSetting, RunChoice, RunResult
from faults.programs.run import run
from faults.programs.suppressions import Suppression
from faults.programs.turns import crash_in, damage_in
from faults.programs.unjudged import not_judged
from faults.programs.words import repeats, text, unused, wrapped


def every(
    ctx: click.Context,
    out: Console,
    setting: ExecSetting,
    limits: EveryLimits,
    words: Sequence[str],
    reasons: Sequence[Suppression],
    *,
    shrink_s: float,
    error_exitcode: int,
    json_file: Path | None,
    outputs: tuple[Path | None, Path | None, Path | None],
    resume: Path | None,
) -> None:
    """EverySearch, print and write what was found, and exit with the code that the help of the command tells."""
    covered = EveryCoverage(limits)
    try:
        with stops_exit(), closing(explore(setting, limits, reasons, resume)) as runs:
            for _, so_far in counting(runs, "executions", out=out):
                covered = so_far
            failed = covered.failed and _repeatable(out, setting, covered.failed, shrink_s)
    except (KeyboardInterrupt, SystemExit):
        covered.undecided["it was interrupted"] = None
        _summary(out, covered)
        raise
    search = {
        "preemptions": limits.preemptions,
        "evictions": limits.evictions,
        "crashes": {"hosts": list(limits.crashes), "executions": covered.faults} if limits.crashes else None,
        "damage": limits.damage and {"what": limits.damage, "executions": covered.faults, "met": covered.met},
        "executions": covered.executions,
        "runs": covered.runs,
        "steps": covered.steps,
        "undecided": list(covered.undecided),
    }
    shown = [failed if result is covered.failed and failed else result for result in covered.shown]
    report = show(out, setting, shown, failed, "the same interleaving", words, reasons)
    if failed and (crash := crash_in(failed.turns)):
        out.print(wrapped(crash_sentence(failed, *crash), more="  "), markup=False)
    if failed and (damage := damage_in(failed.turns)):
        where = where_damaged(limits.damage or "", damage.pool, damage.line, damage.step)
        out.print(wrapped(where, more="  "), markup=False)
    _summary(out, covered)
    out.print(wrapped(not_judged(replace(setting, every=True), shown, report, ()), more="  "), markup=False)
    fields = document(covered.verdict, setting, shown, failed)
    write_json(json_file, fields | {"every": search, "found": as_json(report)})
    write_outputs(report, " ".join(words), *outputs)
    click.echo(unused(report), err=True, nl=False)
    ctx.exit(error_exitcode if covered.failed else covered.verdict.exit_code)


def show(
    out: Console,
    setting: ExecSetting,
    shown: Sequence[RunResult],
    failed: RunResult | None,
    which: str,
    words: Sequence[str],
    reasons: Sequence[Suppression],
) -> ProgramReport:
    """Print what was found in runs, and how the one that failed, which ``which`` names, is made again."""
    report = report_of(setting, shown, words, reasons)
    out.print(text(report), end="", markup=False, highlight=False, soft_wrap=True)
    if failed:
        tell(out, setting, failed)
        also = {again(setting, failed, words): which} if not failed.findings else {}
        out.print(repeats(report, also), end="", markup=False, soft_wrap=True)
    return report


def _repeatable(out: Console, setting: ExecSetting, failed: RunResult, shrink_s: float) -> RunResult:
    """Make the failing run again as --replay makes it, with fewer turns where that fails as well."""
    quiet, turns = replace(setting, show=False), tuple(failed.turns)
    same = run(quiet, RunChoice(None, 0, turns, failed.choice.losses))
    if same.signature() != failed.signature():
        print_wrapped(out, "# the failing interleaving ends differently when it is repeated", "yellow")
        return failed
    if same.crashes:
        same = fewer_losses(same, lambda losses: run(quiet, RunChoice(None, 0, turns, losses)))
    return shorten(out, setting, same, shrink_s)


def _summary(out: Console, covered: EveryCoverage) -> None:
    out.print(wrapped(covered.sentence(), more="  "), markup=False)
    for reason in (*covered.undecided, *covered.anew):
        print_wrapped(out, reason, "yellow")
    if covered.past_caches:
        print_wrapped(
            out, "non-temporal stores arrive at their fence, or before their thread's next access to the line"
        )
