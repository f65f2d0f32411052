"""``cxlemu exec --every``: runs a program in every order of its steps that matters, and says what was covered."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cxlemu.signals import StopsWait
from cxlemu.units import counted
from faults.journal import JournalFile
from faults.programs.crashes import Losses, only_dirty
from faults.programs.damage import WHATS
from faults.programs.every.ahead import RunsAhead
from faults.programs.every.crashes import CrashSearch
from faults.programs.every.damage import DamageSearch
from faults.programs.every.events import Trace
from faults.programs.every.record import RecordReader
from faults.programs.every.saved import COUNTS, is_saved, restored, saved
from faults.programs.every.search import EverySearch, Turns
from faults.programs.judge import matches_more, suppress
from faults.programs.result import TOO_EARLY, ExecSetting, RunChoice, RunEnding, RunResult, untouched
from faults.programs.resuming import SAVED_EACH_S, journal_of
from faults.programs.run import BegunRun, run, stages
from faults.programs.servers import ForkServers
from faults.programs.suppressions import Suppression
from faults.programs.turns import crash_in, damage_in
from faults.verdict import Verdict

KEPT = 10  # runs with warnings, for the report
LATE_S = 1.0  # how long the last run may be examined behind the end of the budget
# Why runs go astray though their programs depend on nothing else.
_ENDED, _NOT_REPEATED = "an execution was ended after ", "an execution may not repeat: "


@dataclass(frozen=True)
class EveryLimits:
    """How far a search goes."""

    preemptions: int | None = None  # how often a turn may end before a step that its thread could make; None: no limit
    evictions: int = 0  # how many lines may leave a cache that no instruction drops, in one execution
    budget_s: float = 60.0  # after which the search is given up, in seconds
    crashes: tuple[int, ...] = ()  # hosts that crash, one in an execution, before the last stage
    damage: str | None = None  # what breaks, once in an execution, before the last stage, by its field in ExecSetting
    reduced: bool = True  # whether executions that differ in the order of independent steps count as one

    def __str__(self) -> str:
        bound = "" if self.preemptions is None else f" of at most {counted(self.preemptions, 'preemption')}"
        crash = f"every crash of {' or '.join(f'host {host}' for host in self.crashes)} in " if self.crashes else ""
        damage = f"every {WHATS[self.damage]} in " if self.damage else ""
        return f"{crash}{damage}every interleaving{bound}"


@dataclass
class EveryCoverage:
    """What a search has come to."""

    limits: EveryLimits
    executions: int = 0  # that differ
    faults: int = 0  # those in which something breaks
    met: int = 0  # those in which an access met what is damaged
    runs: int = 0
    steps: int = 0  # of all runs
    seconds: float = 0.0
    resumed: int = 0  # executions of earlier calls among them
    failed: RunResult | None = None  # the first run that shows a mistake
    dirty: RunResult | None = None  # of a search with crashes: a run that only leaves lines that were never flushed
    shown: list[RunResult] = field(default_factory=list)  # runs to report on
    undecided: dict[str, None] = field(default_factory=dict)  # why not all was covered, a sentence each
    anew: dict[str, None] = field(default_factory=dict)  # which programs have no fork server, and why, a sentence each

    @property
    def verdict(self) -> Verdict:
        if self.failed is not None:
            return Verdict.VIOLATION
        return Verdict.UNKNOWN if self.undecided else Verdict.OK

    def sentence(self) -> str:
        """Say what was covered."""
        each = counted(self.executions, "execution")
        if self.limits.crashes:
            each += f", {counted(self.faults, 'crash', 'crashes')}"
        if self.limits.damage:
            each += f", {self.faults} with a {WHATS[self.limits.damage]}, which an access met in {self.met}"
        caches = f"{'at most one eviction' if self.limits.evictions else 'no evictions'} by chance in each"
        each += f" ({self.resumed:,} of them in earlier calls)" if self.resumed else ""
        how = f"{each}; lines may be fetched and may arrive at any time, {caches}"
        if self.verdict is Verdict.OK:
            return f"ok: {self.limits}, {how}"
        rate = f"{counted(self.runs, 'run')} in {self.seconds:.1f} s"
        if self.verdict is Verdict.VIOLATION:
            return f"violation: found in the last of {rate}"
        return f"unknown: {how}, {rate}"


class _CutShort(Exception):  # no error
    """The budget ended before this run did, or before it was examined, so the search has not taken it up."""

    def __init__(self, result: RunResult) -> None:
        super().__init__()
        self.result = result


def explore(
    setting: ExecSetting, limits: EveryLimits, reasons: Sequence[Suppression] = (), resume: Path | None = None
) -> Generator[tuple[RunResult, EveryCoverage], None, None]:
    """Make run after run, until one fails, all were made, or the budget is spent.

    Args:
        setting: What the runs have in common.
        limits: How far to go.
        reasons: Findings that do not make a run fail.
        resume: A journal with what earlier calls have covered, to which this one adds.

    Yields:
        Each run, and what was covered with it; the last one tells what the search has come to.
    """
    covered = EveryCoverage(limits)
    journal_file = journal_of(resume, setting, replace(limits, budget_s=0.0), is_saved)
    with StopsWait() as stops, ForkServers() as servers, journal_file as journal:
        covered.anew = servers.anew
        yield from _runs(replace(setting, every=True, show=False), covered, reasons, servers, stops, journal)


def _runs(
    setting: ExecSetting,
    covered: EveryCoverage,
    reasons: Sequence[Suppression],
    servers: ForkServers,
    stops: StopsWait,
    journal: JournalFile | None,
) -> Iterator[tuple[RunResult, EveryCoverage]]:
    began, limits, latest = time.monotonic(), covered.limits, list[RunResult]()

    def in_time() -> None:
        if time.monotonic() > began + limits.budget_s + LATE_S and not latest[0].failed:
            raise _CutShort(latest[0])

    reader = RecordReader(setting.coherent, in_time)

    def hurried() -> ExecSetting:
        left = max(began + limits.budget_s - time.monotonic(), 0.1)
        return replace(setting, deadline_s=min(setting.deadline_s, left))

    def begun(turns: Turns) -> BegunRun:
        return stages(hurried(), RunChoice(None, 0, turns, () if limits.damage else None), servers)

    def once(turns: Turns, sure: int, losses: Losses | None = None) -> tuple[RunResult, Trace]:
        with stops.come():
            result = ahead.run(turns) if losses is None else run(hurried(), RunChoice(None, 0, turns, losses), servers)
        record, result.record = result.record, (0, b"")
        latest[:] = [suppress(setting, result, reasons)]
        spent = time.monotonic() > began + limits.budget_s
        if result.ending is RunEnding.DEADLINE and spent and not result.failed:
            raise _CutShort(latest[0])
        covered.undecided |= {TOO_EARLY: None} if result.early else {}
        return latest[0], reader.read(record, result.turns, sure, result.invariants)

    how: dict[str, Any] = {name: getattr(limits, name) for name in ("preemptions", "evictions", "reduced")}
    how["in_time"] = in_time
    last = setting.commands[-1].stage
    crashing = [CrashSearch(once, host, last, **how) for host in limits.crashes]
    plain = [DamageSearch(once, limits.damage, last, **how) if limits.damage else EverySearch(once, **how)]
    searches: Sequence[EverySearch[RunResult]] = crashing or plain
    with closing(RunsAhead(begun, plain[0].following)) as ahead:
        for number in range(journal.done[-1]["search"] if journal and journal.done else 0, len(searches)):
            if not (yield from _searched(searches, number, setting, covered, began, stops, journal)):
                break
        else:
            if limits.damage and not covered.met:
                covered.undecided[f"no access met a {WHATS[limits.damage]}"] = None
            if crashing and not any(search.leaves for search in crashing):
                covered.undecided["no host stores anything to a pool before the last stage, so no crash was tried"] = (
                    None
                )
    if covered.dirty and not covered.failed:
        covered.failed, covered.shown = covered.dirty, [covered.dirty]
        yield covered.dirty, covered


def _searched(
    searches: Sequence[EverySearch[RunResult]],
    number: int,
    setting: ExecSetting,
    covered: EveryCoverage,
    began: float,
    stops: StopsWait,
    journal: JournalFile | None,
) -> Generator[tuple[RunResult, EveryCoverage], None, bool]:
    """Make the runs of one search; returns whether to go on with the next one."""
    search, limits, executions, faults = searches[number], covered.limits, covered.executions, covered.faults
    unfired: dict[str, str] | None = None
    earlier_s, saved_at = 0.0, began
    record = journal.done[-1] if journal and journal.done and journal.done[-1]["search"] == number else None
    if record:
        unfired = _resume(search, covered, record)
        earlier_s = covered.seconds

    def save() -> None:
        if journal:
            plain = {name: getattr(covered, name) for name in COUNTS}
            plain |= {"undecided": [why for why in covered.undecided if why != _spent(limits)], "unfired": unfired}
            plain |= {"search": number, "state": search.state(), "dirty": covered.dirty and covered.dirty.choice.script}
            journal.add(plain | saved(search.places))

    try:
        if record and record["dirty"] is not None:
            covered.dirty = search.once(tuple(map(tuple, record["dirty"])))
        for result in search.all() if search.places or not search.executions else _shown_again(search):
            covered.met += result.met and executions + search.executions > covered.executions
            covered.runs, covered.executions = covered.runs + 1, executions + search.executions
            covered.steps, covered.seconds = covered.steps + result.steps, earlier_s + time.monotonic() - began
            covered.faults = faults + search.faults
            broken = crash_in(result.choice.script) or damage_in(result.choice.script)
            if isinstance(search, CrashSearch) and result.failed and not broken and only_dirty(result):
                covered.dirty = covered.dirty or result  # a crash tells what the missing flush does
                result = replace(result, findings=[])
            _judge(covered, setting, result, search)
            warns = result.warnings and len(covered.shown) < KEPT
            if not covered.shown or warns or result.failed or matches_more(result, covered.shown):
                covered.shown.append(result)
            spent, left = time.monotonic() - began >= limits.budget_s, search.open_places()
            if not broken:  # else it may have been before what is asked for
                unfired = (
                    result.unfired if unfired is None else {k: v for k, v in unfired.items() if k in result.unfired}
                )
            if not left:
                covered.undecided |= dict.fromkeys((unfired or {}).values())
            if spent and not result.failed and (left or search is not searches[-1]):
                covered.undecided[_spent(limits)] = None
            if result.failed:
                covered.failed = result
            elif time.monotonic() - saved_at > SAVED_EACH_S:
                save()
                saved_at = time.monotonic()
            with stops.come():
                yield result, covered
            if result.failed or spent or untouched(setting, [result]):
                return False
        return True
    except _CutShort as cut:
        covered.undecided[_spent(limits)] = None
        covered.runs, covered.seconds = covered.runs + 1, earlier_s + time.monotonic() - began
        covered.shown = covered.shown or [cut.result]
        yield cut.result, covered
        return False
    finally:
        if covered.failed is None:
            save()


def _spent(limits: EveryLimits) -> str:
    return f"the budget of {limits.budget_s:g} s is spent (--budget)"


def _resume(search: EverySearch[RunResult], covered: EveryCoverage, record: Mapping[str, Any]) -> dict[str, str] | None:
    """Go on where an earlier call has stopped; returns what had no effect in any of its runs."""
    for name in COUNTS:
        setattr(covered, name, record[name])
    covered.undecided |= dict.fromkeys(record["undecided"])
    covered.resumed = search.executions = covered.executions
    search.faults, search.places = covered.faults, restored(record)
    search.resume(record["state"])
    unfired: dict[str, str] | None = record["unfired"]
    return unfired


def _shown_again(search: EverySearch[RunResult]) -> Iterator[RunResult]:
    """Make the first run of a search that is over, for the report."""
    yield search.once(())


def _judge(covered: EveryCoverage, setting: ExecSetting, result: RunResult, search: EverySearch[RunResult]) -> None:
    """Note why a run does not count, or what the search cannot cover."""
    if result.ending is RunEnding.DEADLINE and not result.failed:
        covered.undecided[f"{_ENDED}{setting.deadline_s:g} s (--deadline-s)"] = None
    if result.notes:
        covered.undecided[_NOT_REPEATED + result.notes[0]] = None
    if result.unannounced:
        covered.undecided["stores by code that cxlemu cc did not build may come at other times"] = None
    known = any(why.startswith((_ENDED, _NOT_REPEATED)) for why in covered.undecided)
    if search.strayed and not known and result.ending is not RunEnding.DEADLINE:
        covered.undecided["a program depends on what the search does not see, such as the clock or a file"] = None
    if isinstance(search, CrashSearch) and result.crashes and not result.crashes.complete:
        covered.undecided["more stores were under way at once than can be followed"] = None
    covered.undecided |= dict.fromkeys(result.undecided)
    if search.incomplete:
        covered.undecided["an execution had more steps than can be recorded"] = None
    if untouched(setting, [result]):
        covered.undecided["no program touched a pool"] = None
