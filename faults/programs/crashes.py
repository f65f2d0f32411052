"""``cxlemu exec --crash every``: crashes each host wherever that may leave something else in the pool.

What a crash may leave only grows by a store: by what holds this store, or a part of it. A flush and a fence only take
away. So a point behind a store is tried with that store arrived, at least in part, if no other host has made a step
since the point before it; and one behind a fence then is not tried at all. Steps of other hosts come before a crash or
after it, which is the same but where they touch a line with stores that may not have arrived: there is a point behind
these as well.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from cxlemu.units import counted
from faults.programs.area import CrashArrival, CrashPoint
from faults.programs.findings import KINDS, OF_FAILURES
from faults.programs.judge import matches_more, suppress
from faults.programs.positions import located
from faults.programs.result import TOO_EARLY, ExecSetting, RunChoice, RunEnding, RunResult, untouched
from faults.programs.resuming import SAVED_EACH_S, journal_of
from faults.programs.run import run
from faults.programs.servers import ForkServers
from faults.programs.suppressions import Suppression
from faults.verdict import Verdict

Line = tuple[int, int]  # a pool and its line
MostLost = Mapping[Line, int]  # by line: how many of its last images may be lost; as many as there are where it is none
Losses = tuple[int, ...]  # as in RunChoice
Place = TypeVar("Place")  # at which something may break


_BY_HOST = ("points", "images")


@dataclass
class CrashCoverage:
    """What a search for crashes has come to."""

    hosts: Sequence[int]  # those that crash
    budget_s: float
    points: Counter[int] = field(default_factory=Counter)  # by host: those that were tried
    same: int = 0  # points that have the same future as another one
    left: int = 0  # points that were not tried
    images: Counter[int] = field(default_factory=Counter)  # by host: runs, each with another pool after the crash
    runs: int = 0
    steps: int = 0  # of all runs
    seconds: float = 0.0
    broken: dict[str, tuple[int, ...]] = field(default_factory=dict)  # what makes a run fail, as in ExecSetting
    failed: RunResult | None = None  # that run
    shown: list[RunResult] = field(default_factory=list)  # runs to report on
    undecided: dict[str, None] = field(default_factory=dict)  # why not all was covered, a sentence each
    anew: dict[str, None] = field(default_factory=dict)  # which programs have no fork server, and why, a sentence each
    COUNTS: ClassVar[tuple[str, ...]] = ("runs", "steps", "seconds")  # those that a journal keeps

    @property
    def fault(self) -> str:
        """Name what breaks."""
        return f"a crash of {' or '.join(map(str, self.hosts))}"

    def is_saved(self, record: Mapping[str, Any]) -> bool:
        """Say whether a record of a journal has all parts of such a search."""
        return record.keys() == {*self.COUNTS, *_BY_HOST, "undecided", "place", "losses"}

    @property
    def verdict(self) -> Verdict:
        if self.failed is not None:
            return Verdict.VIOLATION
        return Verdict.UNKNOWN if self.undecided else Verdict.OK

    def sentence(self) -> str:
        """Say what was covered."""
        each = "; ".join(
            f"{'every crash point ' if k == 0 else ''}of host {host}: "
            f"{counted(self.points[host], 'point')}, {counted(self.images[host], 'image')}"
            for k, host in enumerate(self.hosts)
        )
        rate = f"{counted(self.runs, 'run')} in {self.seconds:.1f} s"
        if self.verdict is Verdict.OK:
            return f"ok: {each}"
        if self.failed is None:
            return f"unknown: {each.removeprefix('every ')}, {counted(self.left, 'point')} left, {rate}"
        where = f"after a crash of host {self.broken['crash'][0]}" if self.broken else "without a crash"
        return f"violation: {where}, found in the last of {rate}"


def crash_everywhere(
    setting: ExecSetting,
    hosts: Sequence[int],
    budget_s: float,
    reasons: Sequence[Suppression] = (),
    resume: Path | None = None,
) -> Generator[tuple[RunResult, CrashCoverage], None, None]:
    """Make run after run, until one fails, all were made, or the budget is spent.

    Args:
        setting: What the runs have in common; no crash.
        hosts: Those that crash, one in each run, before the last stage.
        budget_s: After how many seconds the search is given up.
        reasons: Findings that do not make a run fail.
        resume: A journal with what earlier calls have covered, to which this one adds.

    Yields:
        Each run, and what was covered with it; the last one tells what the search has come to.
    """
    covered = CrashCoverage(hosts, budget_s)
    with FaultSearch(replace(setting, show=False), covered, reasons, resume) as search:
        yield from _runs(search, setting, covered)


def _runs(
    search: FaultSearch, setting: ExecSetting, covered: CrashCoverage
) -> Iterator[tuple[RunResult, CrashCoverage]]:
    hosts = covered.hosts
    result = search.run(())
    covered.shown.append(result)
    yield result, covered
    if (covered.failed and not only_dirty(result)) or covered.undecided:
        return
    covered.failed = None  # until the search is over: a crash tells what the missing flush does
    covered.undecided |= {TOO_EARLY: None} if result.early else {}
    assert result.crashes is not None
    last = setting.commands[-1].stage
    points = [point for point in result.crashes.points if point.host in hosts and point.stage < last]
    if not points:
        which = f"host {hosts[0]}" if len(hosts) == 1 else "no host"
        what = "nothing" if len(hosts) == 1 else "anything"
        covered.undecided[f"{which} stores {what} to a pool before the last stage, so no crash was tried"] = None
    tried = list(_different(points, covered))
    for result in _crashes(search, tried, covered):
        yield result, covered
    if covered.shown[0].failed and not covered.failed:
        search.save()
        covered.failed = covered.shown[0]
        yield covered.failed, covered


def _crashes(
    search: FaultSearch, tried: Sequence[tuple[CrashPoint, MostLost]], covered: CrashCoverage
) -> Iterator[RunResult]:
    """Crash at these points, until a run fails or the budget is spent."""
    for number, (point, most) in search.places(tried):
        covered.left = len(tried) - number
        for result in search.images(point, most):
            yield result
            if covered.failed or search.spent():
                return
    covered.left = 0


def only_dirty(result: RunResult) -> bool:
    """Say whether a run only leaves lines that were never flushed."""
    return result.ending is RunEnding.ENDED and all(KINDS[raw.kind].rule == "exit" for raw in result.findings)


def _different(points: Sequence[CrashPoint], covered: CrashCoverage) -> Iterator[tuple[CrashPoint, MostLost]]:
    """Yield the points that may leave something new, each with how much its new images lose of the last stored line."""
    known: set[int] = set()
    last: dict[int, CrashPoint] = {}
    for point in points:
        before = last.get(point.host)
        last[point.host] = point
        alone = before is not None and (before.others, before.stage) == (point.others, point.stage)
        if point.future in known or (alone and point.line == -1):
            covered.same += 1
            continue
        known.add(point.future)
        yield point, {(point.pool, point.line): point.images - 1} if alone and point.line >= 0 else {}


class FaultSearch:
    """Runs of a search, each with something broken."""

    def __init__(
        self, setting: ExecSetting, covered: CrashCoverage, reasons: Sequence[Suppression], resume: Path | None
    ) -> None:
        self._setting, self._covered, self._reasons, self._path = setting, covered, reasons, resume
        self._began, self._earlier_s = time.monotonic(), 0.0
        self._place, self._losses = 0, Losses()  # what comes next
        self._saved: dict[str, Any] = {}
        self._saved_at = self._began

    def __enter__(self) -> FaultSearch:
        with ExitStack() as stack:
            self._servers = stack.enter_context(ForkServers())
            journal = journal_of(self._path, self._setting, self._covered.fault, self._covered.is_saved)
            self._journal = stack.enter_context(journal)
            stack.callback(self.save)
            self._files = stack.pop_all()
        self._covered.anew = self._servers.anew
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def save(self) -> None:
        """Write to the journal what was covered, unless a run has failed."""
        if self._journal and self._saved and not self._covered.failed:
            self._journal.add(self._saved)
        self._saved_at = time.monotonic()

    def places(self, all_of_them: Sequence[Place]) -> Iterator[tuple[int, Place]]:
        """Yield the places at which something may break, behind those that earlier calls have covered."""
        if self._journal and self._journal.done:
            self._resume(self._journal.done[-1])
        self._note(self._place, self._losses)
        while self._place < len(all_of_them):
            yield self._place, all_of_them[self._place]
            self._place, self._losses = self._place + 1, ()

    def done(self, result: RunResult, losses: Losses | None = None) -> None:
        """Note that this run was made, and with which losses the next one breaks there; None: the place is covered."""
        if result.ending is not RunEnding.DEADLINE or not self.spent():  # else the next call makes it again
            self._note(self._place + (losses is None), losses or ())

    def _note(self, place: int, losses: Losses) -> None:
        """Note what comes next, and what was covered until then."""
        covered = self._covered
        self._saved = {name: getattr(covered, name) for name in covered.COUNTS}
        self._saved |= {name: sorted(getattr(covered, name).items()) for name in _BY_HOST}
        self._saved |= {"undecided": [why for why in covered.undecided if why != self._budget()]}
        self._saved |= {"place": place, "losses": losses}
        if time.monotonic() - self._saved_at > SAVED_EACH_S:
            self.save()

    def _resume(self, record: Mapping[str, Any]) -> None:
        covered = self._covered
        for name in covered.COUNTS:
            setattr(covered, name, record[name])
        for name in _BY_HOST:
            setattr(covered, name, Counter(dict(record[name])))
        covered.undecided |= dict.fromkeys(record["undecided"])
        self._place, self._losses = record["place"], tuple(record["losses"])
        self._earlier_s = covered.seconds

    def _budget(self) -> str:
        return f"the budget of {self._covered.budget_s:g} s is spent (--budget)"

    def spent(self) -> bool:
        """Say whether the budget is spent, and note it."""
        spent = time.monotonic() - self._began >= self._covered.budget_s
        if spent:
            self._covered.undecided[self._budget()] = None
        return spent

    def images(self, point: CrashPoint, most: MostLost) -> Iterator[RunResult]:
        """Crash at a point, once for each pool that it may leave, as far as somebody reads it."""
        losses: Losses | None = self._losses
        self._covered.points[point.host] += not self._losses
        crash = (point.host, point.step)
        again = partial(self.run, crash=crash)
        while losses is not None:
            result = again(losses)
            self._covered.images[point.host] += 1
            assert result.crashes is not None
            if result.crashes.trace != point.trace:
                self._covered.undecided["a program behaved differently in an earlier run: it depends on more"] = None
            if result.failed:
                result = fewer_losses(result, again)
                self._covered.broken, self._covered.failed = {"crash": crash}, result
                self._covered.shown = [result, *(its for its in self._covered.shown if its.matched and not its.failed)]
            elif matches_more(result, self._covered.shown):
                self._covered.shown.append(result)
            losses = other_losses(result.crashes.arrivals, most) if result.crashes else None
            self.done(result, losses)
            yield result

    def run(self, losses: Losses, **broken: tuple[int, ...]) -> RunResult:
        """Make one run in which this breaks, as in ExecSetting, and note what it does not decide."""
        covered, setting = self._covered, self._setting
        left = max(self._began + covered.budget_s - time.monotonic(), 0.1)
        setting = replace(setting, deadline_s=min(setting.deadline_s, left), **broken)  # type: ignore[arg-type]
        result = suppress(setting, run(setting, RunChoice(None, 0, losses=losses), self._servers), self._reasons)
        covered.runs, covered.steps = covered.runs + 1, covered.steps + result.steps
        covered.seconds = self._earlier_s + time.monotonic() - self._began
        if result.failed and "crash" not in broken:
            covered.broken, covered.failed = broken, result
        if not broken and untouched(self._setting, [result]):
            covered.undecided["no program touched a pool"] = None
        self._judge(result)
        return result

    def _judge(self, result: RunResult) -> None:
        covered = self._covered
        if result.ending is RunEnding.DEADLINE and not self.spent():
            covered.undecided[f"a run was ended after {self._setting.deadline_s:g} s (--deadline-s)"] = None
        if result.notes:
            covered.undecided["a run may not repeat: " + result.notes[0]] = None
        if result.unannounced:
            covered.undecided["when code that cxlemu cc did not build has stored is not known"] = None
        if result.crashes and not result.crashes.complete:
            covered.undecided["more stores were under way at once than can be followed"] = None
        why = [its for flag, its in result.unfired.items() if flag not in ("--poison", "--lose-card")]
        covered.undecided |= dict.fromkeys((*why, *result.undecided))


def crash_sentence(failed: RunResult, host: int, step: int) -> str:
    """Say where a host crashed: behind which of its stores."""
    sites = [point.site for point in failed.crashes.points if point.host == host] if failed.crashes else []
    where = located([failed.places[sites[-1]]])[0] if sites and 0 < sites[-1] < len(failed.places) else None
    return f"host {host} crashed at step {step}" + (f", behind its store at {where}" if where else "")


def fewer_losses(failed: RunResult, again: Callable[[Losses], RunResult]) -> RunResult:
    """Let each store arrive whose loss does not matter for how the run fails."""
    assert failed.crashes is not None
    for arrival in reversed([arrival for arrival in failed.crashes.arrivals if arrival.lost]):
        losses = list(failed.choice.losses or ())
        losses[arrival.number] = 0
        without = again(tuple(losses))
        if _how(without) == _how(failed):
            failed = without
    return failed


def _how(result: RunResult) -> tuple[object, ...]:
    """Tell how a run fails, but for what was lost."""
    ending, codes, kinds = result.signature()
    return result.failed, ending, codes, {finding for finding in kinds if finding[0] not in OF_FAILURES}


def other_losses(arrivals: Sequence[CrashArrival], most: MostLost) -> Losses | None:
    """Lose one more store of the last line of which more can be lost; None: all was tried."""
    for k in reversed(range(len(arrivals))):
        arrival = arrivals[k]
        if arrival.lost < min(arrival.stores, most.get((arrival.pool, arrival.line), arrival.stores)):
            lost = {one.number: one.lost for one in arrivals[:k]} | {arrival.number: arrival.lost + 1}
            return tuple(lost.get(number, 0) for number in range(max(lost) + 1))
    return None
