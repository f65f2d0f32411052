"""``cxlemu exec --poison every`` and ``--lose-card every``: breaks each line, or each card, wherever somebody can tell.

Nobody can tell when a line was poisoned but by a fetch from the pool, or by an arrival there, which writes over it. So
a line is tried at the beginning, and behind each step in which it is fetched or arrives in a run where nothing breaks;
a card, behind each such step of any of its lines.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from cxlemu.memory.line import LINE_BYTES
from cxlemu.units import counted
from faults.programs.area import PoolUse
from faults.programs.crashes import CrashCoverage, FaultSearch
from faults.programs.result import ExecSetting, RunResult
from faults.programs.suppressions import Suppression
from faults.verdict import Verdict

WHATS = {"poison": "poisoned line", "lose": "lost card"}  # by the field of ExecSetting


@dataclass
class DamageCoverage(CrashCoverage):
    """What a search for damage has come to."""

    what: str = "poison"  # or "lose"
    tried: int = 0  # runs, each with something broken
    met: int = 0  # those in which an access met it
    COUNTS: ClassVar[tuple[str, ...]] = (*CrashCoverage.COUNTS, "tried", "met")

    @property
    def fault(self) -> str:
        """Name what breaks."""
        return self.what

    def sentence(self) -> str:
        """Say what was covered."""
        runs = f"{counted(self.tried, 'run')}, {self.met} with an access to it"
        rate = f"{counted(self.runs, 'run')} in {self.seconds:.1f} s"
        if self.verdict is Verdict.OK:
            return f"ok: every {WHATS[self.what]}, {runs}"
        if self.failed is None:
            return f"unknown: {WHATS[self.what]}, {runs}, {counted(self.left, 'place')} left, {rate}"
        return f"violation: {self._where()}, found in the last of {rate}"

    def _where(self) -> str:
        if not self.broken:
            return "without any damage"
        place = self.broken[self.what]
        return where_damaged(self.what, place[0], place[1] // LINE_BYTES, place[-1])


def where_damaged(what: str, pool: int, line: int, step: int) -> str:
    """Say what was damaged in a run, and when."""
    return f"{WHATS[what]} at step {step}: {f'line {line} of ' if what == 'poison' else ''}pool {pool}"


def damage_everywhere(
    setting: ExecSetting,
    what: str,
    budget_s: float,
    reasons: Sequence[Suppression] = (),
    resume: Path | None = None,
) -> Generator[tuple[RunResult, DamageCoverage], None, None]:
    """Make run after run, until one fails, all were made, or the budget is spent.

    Args:
        setting: What the runs have in common; nothing broken.
        what: What breaks, by its field in the setting: poison or lose.
        budget_s: After how many seconds the search is given up.
        reasons: Findings that do not make a run fail.
        resume: A journal with what earlier calls have covered, to which this one adds.

    Yields:
        Each run, and what was covered with it; the last one tells what the search has come to.
    """
    covered = DamageCoverage((), budget_s, what=what)
    with FaultSearch(replace(setting, show=False), covered, reasons, resume) as search:
        yield from _runs(search, setting.commands[-1].stage, covered)


def _runs(search: FaultSearch, last: int, covered: DamageCoverage) -> Iterator[tuple[RunResult, DamageCoverage]]:
    result = search.run(())
    covered.shown.append(result)
    yield result, covered
    if covered.failed or covered.undecided:
        return
    assert result.crashes is not None
    places = list(_places(result.crashes.uses, last, covered.what))
    for number, place in search.places(places):
        covered.left, covered.tried = len(places) - number, number + 1
        result = search.run((), **{covered.what: place})
        covered.met += {"poison": "--poison", "lose": "--lose-card"}[covered.what] not in result.unfired
        if covered.failed:
            covered.shown = [result]
        search.done(result)
        yield result, covered
        if covered.failed or search.spent():
            return
    covered.left = 0
    if not covered.met:
        covered.undecided[f"no access met a {WHATS[covered.what]}"] = None


def _places(uses: Sequence[PoolUse], last: int, what: str) -> Iterator[tuple[int, ...]]:
    """Yield where something breaks: a pool, the offset of a line, and the step before which it does.

    What the last stage alone uses breaks at the beginning.
    """
    known: set[tuple[int, ...]] = set()
    for use in uses:
        which = (use.pool, use.line * LINE_BYTES) if what == "poison" else (use.pool,)
        for place in ((*which, 1), (*which, use.step + 1)):
            if place not in known and (use.stage < last or place[-1] == 1):
                known.add(place)
                yield place
