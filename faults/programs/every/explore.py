"""``cxlemu exec --every``: runs a program in every order of its steps that matters, and says what was covered."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from cxlemu.units import counted
from faults.programs.every.events import Trace, holds_nt, read
from faults.programs.every.search import EverySearch, Turns
from faults.programs.judge import suppress
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult, untouched
from faults.programs.run import run
from faults.programs.servers import ForkServers
from faults.programs.suppressions import Suppression
from faults.verdict import Verdict

KEPT = 10  # runs with warnings, for the report


@dataclass(frozen=True)
class EveryLimits:
    """How far a search goes."""

    preemptions: int | None = None  # how often a turn may end before a step that its thread could make; None: no limit
    evictions: int = 0  # how many lines may leave a cache that no instruction drops, in one execution
    budget_s: float = 60.0  # after which the search is given up, in seconds
    reduced: bool = True  # whether executions that differ in the order of independent steps count as one

    def __str__(self) -> str:
        bound = "" if self.preemptions is None else f" of at most {counted(self.preemptions, 'preemption')}"
        return f"every interleaving{bound}"


@dataclass
class EveryCoverage:
    """What a search has come to."""

    limits: EveryLimits
    executions: int = 0  # that differ
    runs: int = 0
    steps: int = 0  # of all runs
    seconds: float = 0.0
    failed: RunResult | None = None  # the first run that shows a mistake
    shown: list[RunResult] = field(default_factory=list)  # runs to report on
    undecided: dict[str, None] = field(default_factory=dict)  # why not all was covered, a sentence each
    anew: dict[str, None] = field(default_factory=dict)  # which programs have no fork server, and why, a sentence each
    past_caches: bool = False  # whether a program stores past the cache

    @property
    def verdict(self) -> Verdict:
        if self.failed is not None:
            return Verdict.VIOLATION
        return Verdict.UNKNOWN if self.undecided else Verdict.OK

    def sentence(self) -> str:
        """Say what was covered."""
        each = counted(self.executions, "execution")
        caches = f"{'at most one eviction' if self.limits.evictions else 'no evictions'} by chance in each"
        how = f"{each}; lines may be fetched and may arrive at any time, {caches}"
        if self.verdict is Verdict.OK:
            return f"ok: {self.limits}, {how}"
        rate = f"{counted(self.runs, 'run')} in {self.seconds:.1f} s"
        if self.verdict is Verdict.VIOLATION:
            return f"violation: found in the last of {rate}"
        return f"unknown: {how}, {rate}"


def explore(
    setting: ExecSetting, limits: EveryLimits, reasons: Sequence[Suppression] = ()
) -> Iterator[tuple[RunResult, EveryCoverage]]:
    """Make run after run, until one fails, all were made, or the budget is spent.

    Args:
        setting: What the runs have in common.
        limits: How far to go.
        reasons: Findings that do not make a run fail.

    Yields:
        Each run, and what was covered with it; the last one tells what the search has come to.
    """
    covered = EveryCoverage(limits)
    with ForkServers() as servers:
        covered.anew = servers.anew
        yield from _runs(replace(setting, every=True, show=False), covered, reasons, servers)


def _runs(
    setting: ExecSetting, covered: EveryCoverage, reasons: Sequence[Suppression], servers: ForkServers
) -> Iterator[tuple[RunResult, EveryCoverage]]:
    began, limits = time.monotonic(), covered.limits

    def once(turns: Turns, sure: int) -> tuple[RunResult, Trace]:
        left = max(began + limits.budget_s - time.monotonic(), 0.1)
        result = run(replace(setting, deadline_s=min(setting.deadline_s, left)), RunChoice(None, 0, turns), servers)
        trace = read(result.record, result.turns, sure, setting.coherent, result.invariants)
        covered.past_caches |= holds_nt(result.record)
        result.record = (0, b"")
        return suppress(setting, result, reasons), trace

    search = EverySearch(once, preemptions=limits.preemptions, evictions=limits.evictions, reduced=limits.reduced)
    unfired: dict[str, str] | None = None
    for result in search.all():
        covered.runs, covered.executions = covered.runs + 1, search.executions
        covered.steps, covered.seconds = covered.steps + result.steps, time.monotonic() - began
        _judge(covered, setting, result, search)
        if not covered.shown or (result.warnings and len(covered.shown) < KEPT) or result.failed:
            covered.shown.append(result)
        spent = covered.seconds >= limits.budget_s
        unfired = result.unfired if unfired is None else {k: v for k, v in unfired.items() if k in result.unfired}
        if not search.open_places():
            covered.undecided |= dict.fromkeys(unfired.values())
        if spent and not result.failed and (search.open_places() or result.ending is RunEnding.DEADLINE):
            covered.undecided[f"the budget of {limits.budget_s:g} s is spent (--budget)"] = None
        if result.failed:
            covered.failed = result
        yield result, covered
        if result.failed or spent or untouched(setting, [result]):
            return


def _judge(covered: EveryCoverage, setting: ExecSetting, result: RunResult, search: EverySearch[RunResult]) -> None:
    """Note why a run does not count, or what the search cannot cover."""
    if result.ending is RunEnding.DEADLINE and covered.seconds < covered.limits.budget_s:
        covered.undecided[f"an execution was ended after {setting.deadline_s:g} s (--deadline-s)"] = None
    if result.notes:
        covered.undecided["an execution may not repeat: " + result.notes[0]] = None
    if result.unannounced:
        covered.undecided["stores by code that cxlemu cc did not build may come at other times"] = None
    if result.ending is RunEnding.DEADLINE:
        search.strayed = 0  # a run that was cut short went astray for that; what went astray before is noted
    if search.strayed:
        covered.undecided["a program depends on what the search does not see, such as the clock or a file"] = None
    covered.undecided |= dict.fromkeys(result.undecided)
    if search.incomplete:
        covered.undecided["an execution had more steps than can be recorded"] = None
    if untouched(setting, [result]):
        covered.undecided["no program touched a pool"] = None
