"""Runs a sweep on any `concurrent.futures.Executor`: judges every case, and shrinks each kind of finding once.

A few cases per worker are under way at a time, so that a budget, Ctrl-C or a finding is noticed at once. A case that
runs when the budget ends has GRACE_S more: then its worker is ended, and nothing is known of that case. Cases that were
judged are in the journal. A worker that dies takes others' cases with it: each of them is tried again, alone, and of
the one with which a worker dies again nothing is known.
"""

import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from cxlemu.errors import CxlemuError
from faults.campaign.case import CampaignCase
from faults.campaign.executors import end
from faults.campaign.journal import Journal
from faults.campaign.judge import NEVER, Judgement, judge
from faults.campaign.shrink import BUDGET_S as SHRINK_BUDGET_S
from faults.campaign.shrink import Shrunk, shrink
from faults.campaign.spec import CaseSweep, Spec
from faults.left_out import NOTHING, NotDone, left_out
from faults.token import Token

FIRST_SHRINK_BUDGET_S = 10.0  # in a test, which a person waits for
CASES_A_WORKER = 4
TICK_S = 0.2
GRACE_S = 2.0  # after the budget, for cases that are running
SCENARIO = "case"  # the kind of a campaign's tokens

Key = tuple[str, str, str]


@dataclass
class CampaignFinding:
    judgement: Judgement  # how the smallest case fails
    first: CampaignCase  # the case in which it was found first
    smallest: CampaignCase
    count: int = 1  # in how many cases it was found
    tried: int = 0  # how many smaller cases were run
    shrunk: bool = False  # whether nothing smaller was left to try

    @property
    def command(self) -> str:
        """The command that reproduces it here; on another machine a user's algorithm may lie elsewhere."""
        return self.token.command(self.smallest.algorithm)

    @property
    def token(self) -> Token:
        return Token(SCENARIO, {"case": self.smallest.plain(), "found": self.judgement.plain()})


@dataclass
class CampaignResult:
    total: int  # how many cases the campaign has
    declined: list[str] = field(default_factory=list)  # calls that have no case, since an algorithm declines them
    counts: Counter[str] = field(default_factory=Counter)  # how often each kind of judgement was given
    # for each judged case its id, its words, the judgement, and the seconds that it took
    judged: list[tuple[str, str, Judgement, float]] = field(default_factory=list)
    found: dict[Key, CampaignFinding] = field(default_factory=dict)  # the findings, by how each failed at first
    seconds: float = 0.0  # how long the campaign took
    interrupted: bool = False  # whether Ctrl-C ended it
    unfinished: int = 0  # cases that were under way when it was stopped: nothing is known of them
    resumed: int = 0  # how many of the judged cases were found in the journal
    lost: list[str] = field(default_factory=list)  # cases whose worker was killed, or had no memory, in words
    with_faults: int = 0  # how many of the judged cases have faults
    left_out: NotDone = NOTHING  # what was named and has no case
    named_kinds: tuple[str, ...] = ()  # kinds of faults that were named

    @property
    def untried(self) -> bool:
        """Whether there were faults, of which none happened in any case; without any, whether nature moved nothing."""
        never = [each.rule for _, _, each, _ in self.judged if each.kind == NEVER]
        tried = self.with_faults or len(self.judged)
        return 0 < tried == sum(rule != "nature" or not self.with_faults for rule in never)

    @property
    def kinds_left_out(self) -> NotDone:
        """The kinds of faults that were named and happened in no case, once every case was judged."""
        of = [judgement for _, _, judgement, _ in self.judged if judgement.kind == NEVER]
        why = {judgement.rule: judgement.detail for judgement in of}
        came = [(judgement.rule or "nature",) for _, _, judgement, _ in self.judged if judgement.kind != NEVER]
        named = [kind for kind in self.named_kinds if kind in why]
        return left_out((named,), came, why.__getitem__) if self.complete else NOTHING

    @property
    def complete(self) -> bool:
        return len(self.judged) == self.total

    @property
    def state(self) -> str:
        if self.complete:
            return "complete"
        if len(self.judged) + len(self.lost) == self.total:
            return f"{len(self.lost)} lost with a worker"
        stopped = f", {self.unfinished} not finished" if self.unfinished else ""
        return ("interrupted" if self.interrupted else "the budget ended first") + stopped

    @property
    def findings(self) -> list[CampaignFinding]:
        """Each finding once, though several first failures may have shrunk to the same one."""
        return list({id(finding): finding for finding in self.found.values()}.values())

    @property
    def exit_code(self) -> int:
        """1 if anything failed, else 0 if every case was judged and a fault happened if there was any, else 3."""
        if self.found:
            return 1
        return 0 if self.complete and not (self.untried or self.left_out.nowhere or self.kinds_left_out.nowhere) else 3


@dataclass(frozen=True)
class TimedJudgement:
    judgement: Judgement
    seconds: float


def judged(case: CampaignCase) -> TimedJudgement:
    """Judge a case, in a worker.

    An exception that is not a `CxlemuError` is a finding: bugs assert, here or in the algorithm.
    """
    begun = time.monotonic()
    try:
        judgement = judge(case)
    except (CxlemuError, MemoryError):
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.name}"
        judgement = Judgement("exception", type(error).__name__, place, f"{error!r} in line {where.lineno}")
    return TimedJudgement(judgement, time.monotonic() - begun)


@dataclass
class CampaignRunner:
    sweep: CaseSweep
    executor: Callable[[], Executor]  # makes an executor, also in place of one whose worker died
    workers: int  # how many cases the executor runs at a time
    budget_s: float  # after this many seconds no case begins any more, and after GRACE_S more none goes on
    journal: Journal | None = None  # where to note the cases that are judged; it also has those that were judged before
    # called with the result so far whenever it has changed
    tell: Callable[[CampaignResult], None] = lambda result: None
    shrink_budget_s: float = SHRINK_BUDGET_S  # how long each finding is made smaller, in seconds
    judge: Callable[[CampaignCase], TimedJudgement] = judged  # runs one case, in a worker

    def run(self) -> CampaignResult:
        """Judge the cases until all are judged, the budget is spent or Ctrl-C comes; return the result."""
        its = self.sweep
        self._result = CampaignResult(len(its), its.declined, left_out=its.left_out, named_kinds=its.named_kinds)
        self._begun = time.monotonic()
        self._under_way: dict[Future[Any], CampaignCase] = {}
        self._again: deque[CampaignCase] = deque()  # cases that were under way when a worker died
        self._shrinking: dict[Future[Any], Key] = {}
        self._pool = self.executor()
        try:
            self._go()
        except KeyboardInterrupt:
            self._result.interrupted = True
        finally:
            self._drop_waiting()
            if self._overdue or self._result.interrupted:
                self._result.unfinished = min(len(self._under_way), self.workers)
                end(self._pool)
            else:
                self._pool.shutdown(wait=True)
            self._merge()
            self._result.seconds = time.monotonic() - self._begun
        return self._result

    def _go(self) -> None:
        cases = self._left()
        ended = False
        while True:
            while not ended and len(self._under_way) < self._room and not self._over:
                case = next(cases, None)
                ended = case is None
                if case is not None:
                    self._submit(case)
            if self._again and not self._under_way and not self._over:
                self._submit(self._again.popleft())
            if self._over:
                self._drop_waiting()
            if self._overdue or not (self._under_way or self._shrinking):
                return
            self._collect()

    def _drop_waiting(self) -> None:
        """Cancel what no worker has begun, both cases and findings to be made small: the budget is spent."""
        for under_way in (self._under_way, self._shrinking):
            for future in [future for future in under_way if future.cancel()]:
                del under_way[future]

    @property
    def _room(self) -> int:
        """How many cases may be under way: none while those that a dead worker left behind are tried, each alone."""
        return 0 if self._again else self.workers * CASES_A_WORKER

    @property
    def _over(self) -> bool:
        return time.monotonic() - self._begun > self.budget_s

    @property
    def _overdue(self) -> bool:
        return time.monotonic() - self._begun > self.budget_s + GRACE_S

    def _left(self) -> Iterator[CampaignCase]:
        """Yield the cases that the journal does not know; those that it knows are noted first, whatever the budget."""
        known = {record["case"]: record for record in self.journal.done} if self.journal else {}
        cases, unknown = iter(self.sweep), []
        while len(self._result.judged) < len(known) and (case := next(cases, None)) is not None:
            record = known.get(case.id)
            if record is None:
                unknown.append(case)
                continue
            self._result.resumed += 1
            self._note(case, TimedJudgement(Judgement.of(record["judgement"]), float(record["seconds"])))
        return chain(unknown, cases)

    def _submit(self, case: CampaignCase) -> None:
        self._under_way[self._pool.submit(self.judge, case)] = case

    def _collect(self) -> None:
        done, _ = wait([*self._under_way, *self._shrinking], TICK_S, FIRST_COMPLETED)
        for future in done:
            if future in self._shrinking:
                self._take_shrunk(future)
            elif future in self._under_way:  # not, after a worker died
                self._take_judged(future)

    def _take_judged(self, future: Future[TimedJudgement]) -> None:
        alone = len(self._under_way) == 1
        try:
            judgement = future.result()
        except BrokenExecutor:
            lost = [*self._under_way.values()]
            self._renew()
            if alone:
                self._result.lost.append(str(lost[0]))
            else:
                self._again.extend(lost)
            return
        except MemoryError:
            self._result.lost.append(str(self._under_way.pop(future)))
            return
        self._record(self._under_way.pop(future), judgement)

    def _renew(self) -> None:
        self._pool.shutdown(wait=False)
        self._under_way.clear()
        self._shrinking.clear()  # their findings stay, unshrunk
        self._pool = self.executor()

    def _record(self, case: CampaignCase, found: TimedJudgement) -> None:
        if self.journal is not None:
            plain = found.judgement.plain()
            self.journal.add({"case": case.id, "judgement": plain, "seconds": round(found.seconds, 6)})
        self._note(case, found)

    def _note(self, case: CampaignCase, found: TimedJudgement) -> None:
        result, judgement = self._result, found.judgement
        result.judged.append((case.id, str(case), judgement, found.seconds))
        result.counts[judgement.kind] += 1
        result.with_faults += bool(case.script.faults)
        if judgement.fails:
            if judgement.key in result.found:
                result.found[judgement.key].count += 1
            else:
                result.found[judgement.key] = CampaignFinding(judgement, case, case)
                left_s = self.budget_s - (time.monotonic() - self._begun)
                if judgement.kind != "exception" and left_s > 0:
                    budget_s = min(self.shrink_budget_s, left_s)
                    self._shrinking[self._pool.submit(shrink, case, judgement, budget_s=budget_s)] = judgement.key
        self.tell(result)

    def _take_shrunk(self, future: Future[Shrunk]) -> None:
        finding = self._result.found[self._shrinking.pop(future)]
        try:
            shrunk = future.result()
        except BrokenExecutor:
            self._again.extend(self._under_way.values())
            self._renew()
            return
        finding.smallest, finding.judgement = shrunk.case, shrunk.judgement
        finding.tried, finding.shrunk = shrunk.tried, shrunk.done
        self.tell(self._result)

    def _merge(self) -> None:
        """Let findings that have shrunk to the same thing be one: the first of them stands for all."""
        firsts: dict[Key, CampaignFinding] = {}
        for key, finding in self._result.found.items():
            first = firsts.setdefault(finding.judgement.key, finding)
            if first is not finding:
                first.count += finding.count
                self._result.found[key] = first


class CheckFailed(AssertionError):
    def __init__(self, finding: CampaignFinding) -> None:
        super().__init__(f"{finding.judgement.detail}\nsmallest: {finding.smallest}\nagain: {finding.command}")
        self.finding = finding


def check(spec: Spec, *, seeds: int, seed: int) -> None:
    """Run a small campaign inside a test, in this process; the first failure ends it."""
    for case in spec.sweep(seeds):
        script = case.script.model_copy(update={"seed": seed + case.script.seed})
        case = case.model_copy(update={"script": script})
        judgement = judge(case)
        if judgement.fails:
            shrunk = shrink(case, judgement, budget_s=FIRST_SHRINK_BUDGET_S)
            raise CheckFailed(CampaignFinding(shrunk.judgement, case, shrunk.case, 1, shrunk.tried, shrunk.done))
