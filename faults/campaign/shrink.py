"""Makes a failing case small: fewer faults, ranks, bytes and calls, a simpler machine, at last a simpler schedule.

A smaller case is one that a person would rather read. A candidate counts only if it fails with the same kind and in the
same place; a fault may turn out to have nothing to do with it, and then the rule is another one. The order of
things to try is fixed, so that the same case shrinks to the same case.
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cxlemu.errors import CxlemuError, InputError
from cxlemu.plan import DTYPES
from faults.campaign.case import CampaignCase
from faults.campaign.judge import Judgement, executed, judge
from faults.delta import fewer, smaller
from faults.inject.fault import FAULTS, Fault
from faults.lockstep.schedule import LockstepMove, to_json

BUDGET_S = 20.0
SCHEDULE_MOVES_MAX = 20_000  # longer schedules are left to their seed


class Shrunk(NamedTuple):
    case: CampaignCase
    judgement: Judgement
    tried: int  # how many cases were run
    done: bool  # whether nothing was left to try


def shrink(case: CampaignCase, judgement: Judgement, *, budget_s: float = BUDGET_S) -> Shrunk:
    """Make a failing case as small as it gets; smaller ones must fail with the same kind, in the same place."""
    search = _Shrinking(judgement, time.monotonic() + budget_s)
    case = search.smaller(case)
    if case.launch == "lockstep" and not search.over:
        case = search.with_a_short_schedule(case)
    return Shrunk(case, search.best or judgement, search.tried, not search.over)


class _Shrinking:
    def __init__(self, judgement: Judgement, end: float) -> None:
        self._found, self._end = judgement, end
        self.tried = 0
        self.best: Judgement | None = None

    @property
    def over(self) -> bool:
        return time.monotonic() > self._end

    def fails(self, case: CampaignCase) -> bool:
        if self.over:
            return False
        self.tried += 1
        try:
            judgement = judge(CampaignCase.parse(case.plain()).check())
        except InputError:
            return False
        if (judgement.kind, judgement.place) != (self._found.kind, self._found.place):
            return False
        self.best = judgement
        return True

    def smaller(self, case: CampaignCase) -> CampaignCase:
        """Make a case smaller. Faults come first: a case needs the ranks at which they happen."""
        faults = fewer(case.script.faults, lambda some: self.fails(with_faults(case, some)))
        return smaller(with_faults(case, faults), simpler, self.fails)

    def with_a_short_schedule(self, case: CampaignCase) -> CampaignCase:
        """Write out the seed's schedule as far as the failure needs it; the steps that are left are then made round
        robin."""
        try:
            moves = executed(case).moves
        except CxlemuError:
            return case
        if len(moves) > SCHEDULE_MOVES_MAX or not self.fails(with_moves(case, moves)):
            return case
        return with_moves(case, fewer(list(moves), lambda some: self.fails(with_moves(case, some))))


def with_moves(case: CampaignCase, moves: Sequence[LockstepMove]) -> CampaignCase:
    return case.model_copy(update={"moves": to_json(moves)})


def with_faults(case: CampaignCase, faults: Sequence[Fault]) -> CampaignCase:
    return case.model_copy(update={"script": case.script.model_copy(update={"faults": tuple(faults)})})


def simpler(case: CampaignCase) -> Iterator[CampaignCase]:
    """Yield simpler cases, the boldest of each kind first; each is nearer to the one case that has no simpler one."""
    if case.launch in ("threads", "processes"):
        yield case.model_copy(update={"launch": "turns", "engine": "reference"})
        if case.launch == "processes":
            yield case.model_copy(update={"launch": "threads"})
        if case.engine != "reference":
            yield case.model_copy(update={"engine": "reference"})
    for change in _changes(case):
        yield case.model_copy(update=change)
    yield from _simpler_scripts(case)


def _changes(case: CampaignCase) -> Iterator[dict[str, object]]:
    for calls in _below(case.calls, 1) if case.launch == "lockstep" else ():
        yield {"calls": calls}
    used = max([1, *(fault.rank for fault in case.script.faults)])
    for ranks in _below(case.ranks, max(2, used + 1)):
        yield {"ranks": ranks, "root": min(case.root, ranks - 1)}
    for cluster in _below(case.cluster, 1):
        yield {"cluster": cluster}
    if case.root:
        yield {"root": 0}
    item = DTYPES[case.dtype].itemsize
    for items in _below(case.nbytes // item, 1):
        yield {"nbytes": items * item}
    if case.op not in ("none", "sum"):
        yield {"op": "sum"}
    if case.dtype != "u8":
        yield {"dtype": "u8"}
    if case.integrity is not None:
        yield {"integrity": None}
    if case.config is not None:
        yield {"config": None, "cluster": case.ranks_per_cluster}


def _below(value: int, least: int) -> Iterator[int]:
    """Yield ``least``, and then numbers ever nearer to the value: 1, 51, 76, ... 99 for 100."""
    while least < value:
        yield least
        least += -(-(value - least) // 2)


def _simpler_scripts(case: CampaignCase) -> Iterator[CampaignCase]:
    script = case.script
    if script.adversary is not None:
        yield case.model_copy(update={"script": script.model_copy(update={"adversary": None})})
    if script.seed:
        for seed in (0, 1, 2):
            if seed < script.seed:
                yield case.model_copy(update={"script": script.model_copy(update={"seed": seed})})
    for number, fault in enumerate(script.faults):
        for simpler_fault in _simpler_faults(fault):
            faults = (*script.faults[:number], simpler_fault, *script.faults[number + 1 :])
            yield with_faults(case, faults)


def _simpler_faults(fault: Fault) -> Iterator[Fault]:
    yield from FAULTS[fault.kind].simpler(fault)
    when = fault.when
    for call in _below(when.call, 0):
        yield fault.model_copy(update={"when": when.model_copy(update={"call": call})})
    for instruction in _below(when.instruction, 0):
        yield fault.model_copy(update={"when": when.model_copy(update={"instruction": instruction})})
