"""``cxlemu exec --every``, and ``--crash``, ``--poison`` or ``--lose-card every``: what searches have come to."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from cxlemu.cli.progress import counting
from cxlemu.signals import stops_exit
from faults.cli.exec_report import ExecReport
from faults.programs.binary import preloaded
from faults.programs.crashes import CrashCoverage, crash_everywhere, crash_sentence, fewer_losses
from faults.programs.damage import DamageCoverage, damage_everywhere, where_damaged
from faults.programs.every.explore import EveryCoverage, EveryLimits, explore
from faults.programs.result import ExecSetting, RunChoice, RunResult
from faults.programs.run import run
from faults.programs.turns import crash_in, damage_in
from faults.programs.unjudged import not_judged

NAMES = {"--crash": "crash", "--poison": "poisoned line", "--lose-card": "lost card"}  # by the flag of what breaks

Coverage = TypeVar("Coverage", EveryCoverage, CrashCoverage)


def every(
    ctx: click.Context, report: ExecReport, setting: ExecSetting, limits: EveryLimits, resume: Path | None
) -> NoReturn:
    """Make a run for every interleaving, and end the verb with what was found."""
    runs = explore(setting, limits, report.reasons, resume)
    covered, failed, stop = _search(
        report, EveryCoverage(limits), runs, "executions", lambda failed, _: _repeatable(report, setting, failed)
    )
    search = {
        "preemptions": limits.preemptions,
        "evictions": limits.evictions,
        "crashes": {"hosts": list(limits.crashes), "executions": covered.faults} if limits.crashes else None,
        "damage": limits.damage and {"what": limits.damage, "executions": covered.faults, "met": covered.met},
        "executions": covered.executions,
    }
    sentences = []
    if failed and (crash := crash_in(failed.turns)):
        sentences.append(crash_sentence(failed, *crash))
    if failed and (damage := damage_in(failed.turns)):
        sentences.append(where_damaged(limits.damage or "", damage.pool, damage.line, damage.step))
    _end(ctx, report, setting, covered, failed, "the same interleaving", sentences, "every", search, stop)


def crashes(
    ctx: click.Context,
    report: ExecReport,
    setting: ExecSetting,
    breaks: str,
    hosts: Sequence[int],
    budget_s: float,
    resume: Path | None,
) -> NoReturn:
    """Make a run for each place where something can break, and end the verb with what was found.

    Args:
        breaks: The flag of what breaks.
        hosts: Those that crash, one in each run.
    """
    begun: CrashCoverage
    if breaks == "--crash":
        begun = CrashCoverage(hosts, budget_s)
        runs = crash_everywhere(setting, hosts, budget_s, report.reasons, resume)
    else:
        what = "poison" if breaks == "--poison" else "lose"
        begun = DamageCoverage(hosts, budget_s, what=what)
        runs = damage_everywhere(setting, what, budget_s, report.reasons, resume)
    covered, failed, stop = _search(
        report,
        begun,
        runs,
        "crashes" if breaks == "--crash" else "runs",
        lambda failed, covered: report.shorten(replace(setting, **covered.broken), failed),  # type: ignore[arg-type]
    )
    setting = replace(setting, **covered.broken)  # type: ignore[arg-type]
    crash = covered.broken.get("crash")
    sentences = [crash_sentence(failed, crash[0], crash[1])] if failed and crash else []
    key = "damage" if isinstance(covered, DamageCoverage) else "crashes"
    _end(ctx, report, setting, covered, failed, f"the same {NAMES[breaks]}", sentences, key, _document(covered), stop)


def _search(
    report: ExecReport,
    covered: Coverage,
    runs: Generator[tuple[RunResult, Coverage], None, None],
    what: str,
    smaller: Callable[[RunResult, Coverage], RunResult],
) -> tuple[Coverage, RunResult | None, BaseException | None]:
    """Make all runs; return what they came to, the smallest that fails, and what has interrupted them, if anything."""
    failed = None
    try:
        with stops_exit(), closing(runs):
            for _, so_far in counting(runs, what, out=report.out):
                covered = so_far
            if covered.failed:
                failed = smaller(covered.failed, covered)
    except (KeyboardInterrupt, SystemExit) as stop:
        covered.undecided["it was interrupted"] = None
        return covered, covered.failed, stop
    return covered, failed, None


def _end(
    ctx: click.Context,
    report: ExecReport,
    setting: ExecSetting,
    covered: EveryCoverage | CrashCoverage,
    failed: RunResult | None,
    which: str,
    sentences: Sequence[str],
    key: str,
    search: dict[str, Any],
    stop: BaseException | None,
) -> NoReturn:
    shown = [failed if result is covered.failed and failed else result for result in covered.shown]
    findings = report.show(setting, shown, failed, which)
    for sentence in sentences:
        report.say(sentence)
    _summary(report, covered)
    if stop is None:
        followed = preloaded(command.words[0] for command in setting.commands)
        report.say(not_judged(replace(setting, every=key == "every"), shown, findings, followed))
    search |= {"runs": covered.runs, "steps": covered.steps, "undecided": list(covered.undecided)}
    told = {key: search, "interrupted": stop is not None}
    report.end(ctx, covered.verdict, setting, shown, failed, findings, stop, **told)


def _repeatable(report: ExecReport, setting: ExecSetting, failed: RunResult) -> RunResult:
    """Make the failing run again as --replay makes it, with fewer turns where that fails as well."""
    quiet, turns = replace(setting, show=False), tuple(failed.turns)
    same = run(quiet, RunChoice(None, 0, turns, failed.choice.losses))
    ending, codes, kinds = failed.signature()
    if same.signature()[:2] != (ending, codes) or not kinds <= same.signature()[2]:  # of a hang, a long run tells more
        report.note("# the failing interleaving ends differently when it is repeated")
        return failed
    if same.crashes:
        same = fewer_losses(same, lambda losses: run(quiet, RunChoice(None, 0, turns, losses)))
    return report.shorten(setting, same)


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


def _summary(report: ExecReport, covered: EveryCoverage | CrashCoverage) -> None:
    report.say(covered.sentence())
    for reason in (*covered.undecided, *covered.anew):
        report.note(reason)
