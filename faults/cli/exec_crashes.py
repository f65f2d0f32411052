"""``cxlemu exec`` with ``--crash``, ``--poison`` or ``--lose-card every``: what a search over faults has come to."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from faults.programs.damage import DamageCoverage, damage_everywhere
from faults.programs.reports import as_json
from faults.programs.result import ExecSetting, RunResult
from faults.programs.suppressions import Suppression
from faults.programs.unjudged import not_judged
from faults.programs.words import unused, wrapped

NAMES = {"--crash": "crash", "--poison": "poisoned line", "--lose-card": "lost card"}  # by the flag of what breaks


def crashes(
    ctx: click.Context,
    out: Console,
    setting: ExecSetting,
    breaks: str,
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
        breaks: The flag of what breaks.
        hosts: Those that crash, one in each run.
    """
    covered, runs = _search(setting, breaks, hosts, budget_s, reasons)
    try:
        with stops_exit(), closing(runs):
            for _, so_far in counting(runs, "crashes" if breaks == "--crash" else "runs", out=out):
                covered = so_far
            setting = replace(setting, **covered.broken)  # type: ignore[arg-type]
            failed = covered.failed and shorten(out, setting, covered.failed, shrink_s)
    except (KeyboardInterrupt, SystemExit):
        covered.undecided["it was interrupted"] = None
        _summary(out, covered, None)
        raise
    shown = [failed if result is covered.failed and failed else result for result in covered.shown]
    report = show(out, setting, shown, failed, f"the same {NAMES[breaks]}", words, reasons)
    _summary(out, covered, failed)
    out.print(wrapped(not_judged(setting, shown, report, ()), more="  "), markup=False)
    search = _document(covered) | {
        "runs": covered.runs,
        "steps": covered.steps,
        "undecided": list(covered.undecided),
    }
    key = "damage" if isinstance(covered, DamageCoverage) else "crashes"
    fields = document(covered.verdict, setting, shown, failed)
    write_json(json_file, fields | {key: search, "found": as_json(report)})
    write_outputs(report, " ".join(words), *outputs)
    click.echo(unused(report), err=True, nl=False)
    ctx.exit(error_exitcode if covered.failed else covered.verdict.exit_code)


def _search(
    setting: ExecSetting, breaks: str, hosts: Sequence[int], budget_s: float, reasons: Sequence[Suppression]
) -> tuple[CrashCoverage, Generator[tuple[RunResult, CrashCoverage], None, None]]:
    if breaks == "--crash":
        return CrashCoverage(hosts, budget_s), crash_everywhere(setting, hosts, budget_s, reasons)
    what = "poison" if breaks == "--poison" else "lose"
    return DamageCoverage(hosts, budget_s, what=what), damage_everywhere(setting, what, budget_s, reasons)


def _document(covered: CrashCoverage) -> dict[str, Any]:
    if isinstance(covered, DamageCoverage):
        pool, *line, step = covered.broken.get(covered.what) or (None, None)
        place = {"pool": pool, **({"offset": line[0]} if line else {}), "step": step} if covered.broken else None
        return {"what": covered.what, "tried": covered.tried, "met": covered.met, "left": covered.left, "place": place}
    crash = covered.broken.get("crash")
    return {
        "hosts": [
            {"host": host, "points": covered.points[host], "images": covered.images[host]} for host in covered.hosts
        ],
        "points_with_the_same_future": covered.same,
        "points_left": covered.left,
        "crash": crash and {"host": crash[0], "step": crash[1]},
    }


def _summary(out: Console, covered: CrashCoverage, failed: RunResult | None) -> None:
    if failed and (crash := covered.broken.get("crash")):
        out.print(wrapped(crash_sentence(failed, crash[0], crash[1]), more="  "), markup=False)
    out.print(wrapped(covered.sentence(), more="  "), markup=False)
    for reason in (*covered.undecided, *covered.anew):
        print_wrapped(out, reason, "yellow")
