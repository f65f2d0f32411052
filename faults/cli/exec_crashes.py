"""``cxlemu exec --crash every``: what a search over all crashes has come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from cxlemu.cli.console import print_wrapped
from cxlemu.cli.output import write_json
from cxlemu.cli.progress import counting
from cxlemu.signals import stops_exit
from faults.cli.exec_every import show
from faults.cli.exec_report import write_outputs
from faults.cli.exec_run import document, shorten
from faults.programs.crashes import CrashCoverage, crash_everywhere, crash_sentence
from faults.programs.reports import as_json
from faults.programs.result import ExecSetting, RunResult
from faults.programs.suppressions import Suppression
from faults.programs.unjudged import not_judged
from faults.programs.words import unused, wrapped


def crashes(
    ctx: click.Context,
    out: Console,
    setting: ExecSetting,
    hosts: Sequence[int],
    budget_s: float,
    words: Sequence[str],
    reasons: Sequence[Suppression],
    *,
    shrink_s: float,
    error_exitcode: int,
    json_file: Path | None,
    outputs: tuple[Path | None, Path | None, Path | None],
) -> None:
    """Search, print and write what was found, and exit with the code that the help of the command tells.

    Args:
        hosts: Those that crash, one in each run.
    """
    covered = CrashCoverage(hosts, budget_s)
    try:
        with stops_exit():
            for _, so_far in counting(crash_everywhere(setting, hosts, budget_s, reasons), "crashes", out=out):
                covered = so_far
            setting = replace(setting, crash=covered.crash)
            failed = covered.failed and shorten(out, setting, covered.failed, shrink_s)
    except (KeyboardInterrupt, SystemExit):
        covered.undecided["it was interrupted"] = None
        _summary(out, covered, None)
        raise
    shown = [failed if result is covered.failed and failed else result for result in covered.shown]
    told = show(out, setting, shown, failed, "the same crash", words, reasons)
    _summary(out, covered, failed)
    out.print(wrapped(not_judged(setting, shown, told, ()), more="  "), markup=False)
    search = {
        "hosts": [
            {"host": host, "points": covered.points[host], "images": covered.images[host]} for host in covered.hosts
        ],
        "points_with_the_same_future": covered.same,
        "points_left": covered.left,
        "crash": covered.crash and {"host": covered.crash[0], "step": covered.crash[1]},
        "runs": covered.runs,
        "steps": covered.steps,
        "undecided": list(covered.undecided),
    }
    found = document(covered.verdict, setting, shown, failed)
    write_json(json_file, found | {"crashes": search, "found": as_json(told)})
    write_outputs(told, " ".join(words), *outputs)
    click.echo(unused(told), err=True, nl=False)
    ctx.exit(error_exitcode if covered.failed else covered.verdict.exit_code)


def _summary(out: Console, covered: CrashCoverage, failed: RunResult | None) -> None:
    if failed and covered.crash:
        out.print(wrapped(crash_sentence(failed, *covered.crash), more="  "), markup=False)
    out.print(wrapped(covered.sentence(), more="  "), markup=False)
    for reason in (*covered.undecided, *covered.anew):
        print_wrapped(out, reason, "yellow")
