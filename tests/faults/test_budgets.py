"""Budgets of seconds hold within large steps, too: shown with clocks that the tests turn."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest

from collectives.algorithms.catalog import build, recipe
from cxlemu.budget import BudgetSpentError, within
from cxlemu.plan import Call
from faults.campaign import run as campaign
from faults.campaign.executors import Workers
from faults.campaign.judge import Judgement
from faults.campaign.run import CampaignRunner, TimedJudgement
from faults.campaign.spec import Spec
from faults.cli import explore_run, prove_run
from faults.cli.explore_target import searchable
from faults.cli.searchable import Searchable
from faults.explore import check, core, search
from faults.explore.operations import Steps, Store, Wait
from faults.explore.plans import tiny_layout
from faults.explore.programs import protocol
from faults.explore.result import Budget, Exploration, FindingKind, SearchFinding
from faults.lockstep import counterexample as witness
from faults.lockstep.schedule import StreamStep
from faults.machine.state import MachineState
from faults.machine.steps import Machine
from faults.verdict import Verdict
from tests.helpers.commands import cxlemu

OWN = f"{Path(__file__).parents[2] / 'examples' / 'my_all_reduce.py'}:my_all_reduce"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@protocol("a", "b")
def stores(rank: int, ranks: int) -> Steps[None]:
    yield Store("ab"[rank], 1)


@protocol("a", "b")
def waits(rank: int, ranks: int) -> Steps[None]:
    yield Wait("ab"[rank], 1)


# --- explore


def test_the_second_search_of_a_livelock_gets_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, given = Clock(), list[float]()
    loops = Exploration(Verdict.VIOLATION, 1, 1, 0.0, SearchFinding(FindingKind.LIVELOCK, 0, "round and round"))

    def explore(machine: Machine, budget: Budget, **flags: bool) -> Exploration:
        given.append(budget.seconds)
        clock.now_s += 50
        if flags.get("lazy", True):
            return loops
        return replace(
            loops, verdict=Verdict.UNKNOWN, finding=None, reason=f"the budget of {budget.seconds:g} s is spent"
        )

    monkeypatch.setattr(check.time, "monotonic", clock)
    monkeypatch.setattr(core, "explore", explore)
    found = check.exhaustive(Machine(stores.program(2)), Budget(seconds=75), "native")
    assert given == [75, 25]
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, "the budget of 75 s is spent")


def test_a_livelock_is_shown_as_it_was_found_when_the_budget_is_spent() -> None:
    machine = Machine(waits.program(2))
    _, schedule = search.shown_barest(machine, (), end=0.0)
    assert schedule == ()


def test_looking_for_states_without_an_end_is_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, endless = Clock(), search._Search.endless

    def later(its: search._Search) -> MachineState | None:
        clock.now_s = 76.0
        return endless(its)

    monkeypatch.setattr(search.time, "monotonic", clock)
    monkeypatch.setattr(search._Search, "endless", later)
    found = search.explore(Machine(stores.program(2)), Budget(seconds=75))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, "the budget of 75 s is spent")


def test_ends_are_judged_without_working_out_the_schedule_of_each() -> None:
    asked: list[object] = []

    class Outcomes(dict[Any, Any]):
        def __getitem__(self, outcome: object) -> Any:
            asked.append(outcome)
            return super().__getitem__(outcome)

    def accepts(memory: object, results: object) -> None:
        pass

    machine = Machine(stores.program(2))
    found = core.explore(machine)
    seen = replace(found, outcomes=Outcomes(found.outcomes))
    assert check.judge_ends(replace(stores, final=accepts), machine, seen).verdict == Verdict.OK
    assert asked == [] and len(seen.outcomes) > 0


# --- proofs


def test_a_row_that_no_worker_brings_is_waited_for_within_the_budget() -> None:
    never: Future[str] = Future()
    brought = prove_run._Budget(0.01).each(future.result(timeout=20) for future in [never])
    with pytest.raises(BudgetSpentError):
        next(brought)
    assert list(prove_run._Budget(None).each(iter("ab"))) == ["a", "b"]


# --- executions that show what a proof says


def test_a_witness_is_looked_for_no_longer_within_one_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = build(recipe("all_gather", "naive"), tiny_layout(2, lines=3), Call("all_gather", "naive", 2, 64, "u8"))
    clock, steps = Clock(), list[StreamStep]()

    def orders(plans: object, near: object) -> Iterator[Callable[[Sequence[StreamStep]], StreamStep]]:
        def choose(choices: Sequence[StreamStep]) -> StreamStep:
            clock.now_s += 1
            steps.append(choices[0])
            return choices[0]

        while True:
            yield choose

    monkeypatch.setattr(witness, "orders", orders)
    monkeypatch.setattr(witness, "thread_time", clock)
    assert witness.witness([plan] * 200, budget_s=10) is None
    assert len(steps) == witness.BETWEEN_LOOKS  # of some 3,700 of one execution


# --- campaigns


class Busy(Executor):
    """A worker that judges one case and is busy for ever after."""

    def __init__(self) -> None:
        self.begun = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.begun += 1
        if self.begun == 1:
            future.set_result(function(*args, **kwargs))
        return future


def test_a_campaign_drops_what_no_worker_has_begun_when_its_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(campaign.time, "monotonic", clock)
    sweep = Spec(collectives=("broadcast",), variants=("naive",), kinds=("nature",)).sweep(20)

    def judge(case: object) -> TimedJudgement:
        clock.now_s = 61.0
        return TimedJudgement(Judgement("wrong bytes", "r", "p"), 61.0)

    result = CampaignRunner(sweep, Busy, workers=1, budget_s=60, judge=judge).run()
    assert (len(result.judged), result.complete, result.exit_code) == (1, False, 1)
    assert [finding.shrunk for finding in result.findings] == [False]  # no time was left for that


class Stuck(Executor):
    """A worker that never ends what it has begun; a clock goes on while somebody waits for it."""

    def __init__(self) -> None:
        self.waited: list[bool] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.waited.append(wait)


def test_a_case_under_way_is_not_waited_for_beyond_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks, stuck = Clock(), list[float](), Stuck()

    def wait(futures: object, timeout_s: float, when: str) -> tuple[set[Future[Any]], set[Future[Any]]]:
        clock.now_s += 30.5
        looks.append(clock.now_s)
        return set(), set()

    monkeypatch.setattr(campaign.time, "monotonic", clock)
    monkeypatch.setattr(campaign, "wait", wait)
    sweep = Spec(collectives=("broadcast",), variants=("naive",), kinds=("nature",)).sweep(20)
    result = CampaignRunner(sweep, lambda: stuck, workers=1, budget_s=60).run()
    assert looks == [30.5, 61.0, 91.5]  # 61.0 is within the grace
    assert (len(result.judged), result.unfinished, result.exit_code) == (0, 1, 3)
    assert result.state == "the budget ended first, 1 not finished" and stuck.waited == [False]


def for_ever(case: object) -> TimedJudgement:
    while True:
        time.sleep(1)


def test_a_worker_that_does_not_end_its_case_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "GRACE_S", 0.2)
    sweep = Spec(collectives=("broadcast",), variants=("naive",), kinds=("nature",)).sweep(20)
    result = CampaignRunner(sweep, lambda: Workers(1), workers=1, budget_s=0.1, judge=for_ever).run()
    assert (len(result.judged), result.complete, result.exit_code) == (0, False, 3)


# --- code that never looks at a clock

FOR_EVER = """
import threading
from collectives.builder.recipes import algorithm

@algorithm("broadcast")
def waits(b):
    try:
        threading.Event().wait()
    except Exception:
        pass

@algorithm("broadcast")
def spins(b):
    while True:
        try:
            b.input()
        except Exception:
            pass
"""


@pytest.mark.parametrize("function", ["waits", "spins"])
def test_an_algorithm_that_builds_for_ever_spends_the_budget_of_explore(function: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FOR_EVER)
    spec, out = f"{tmp_path / 'mine.py'}:{function}", tmp_path / "found.json"
    done = cxlemu("explore", spec, "--budget", "0.2", "--json", out, code=3)
    assert "unknown: the budget of 0.2 s was spent before the program was built" in done.output
    assert json.loads(out.read_text())["verdict"] == "unknown"


def test_a_plan_that_is_not_built_in_time_has_the_ranks_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spent(*_: object) -> NoReturn:
        raise BudgetSpentError("spent")

    cxlemu("plan", "save", "all_reduce", "-n", 3, "-b", 256, "-O", tmp_path / "three.plan", code=0)
    monkeypatch.setattr(explore_run, "searchable", spent)
    assert "three.plan, 3 ranks: unknown" in cxlemu("explore", tmp_path / "three.plan", code=3).output


@pytest.mark.parametrize(
    "asked", [["broadcast", "-n", "2", "-j", "1"], ["--algorithm", OWN, "-n", "2"]], ids=["ours", "own"]
)
def test_proofs_that_a_budget_stops_are_unknown(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is told, the second one never ends."""
    proved = list[int]()

    def first(its: Callable[..., Any]) -> Callable[..., Any]:
        def proof(*args: Any, **kwargs: Any) -> Any:
            if proved:
                threading.Event().wait()
            proved.append(1)
            clock.now_s = 59.9
            return its(*args, **kwargs)

        return proof

    clock, out = Clock(), tmp_path / "proofs.json"
    monkeypatch.setattr(prove_run, "time", Mock(monotonic=clock))
    monkeypatch.setattr(prove_run, "prove_case", first(prove_run.prove_case))
    monkeypatch.setattr(prove_run, "judge", first(prove_run.judge))
    assert "; the budget of 60 s is spent" in cxlemu("prove", *asked, "--budget", "60", "--json", out, code=3).output
    document = json.loads(out.read_text())
    assert (document["verdict"], document["complete"], len(document["rows"])) == ("unknown", False, 1)


def test_a_search_gets_what_building_has_left_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, given = Clock(), list[float]()

    def built(*asked: Any) -> Searchable:
        clock.now_s += 3
        return searchable(*asked)

    def searched(machine: Machine, strategy: object, budget: Budget, **flags: object) -> Exploration:
        given.append(budget.seconds)
        return Exploration(Verdict.UNKNOWN, 0, 0, 0.0, reason=f"the budget of {budget.seconds:g} s is spent")

    monkeypatch.setattr(explore_run, "time", Mock(monotonic=clock))
    monkeypatch.setattr(explore_run, "searchable", built)
    monkeypatch.setattr(explore_run, "search", searched)
    done = cxlemu("explore", "broadcast", "-n", "2", "--budget", "5")
    assert (given, done.exit_code) == ([2], 3)
    assert "the budget of 5 s is spent" in done.output


def test_somebody_elses_alarm_goes_on_after_a_budget() -> None:
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        with pytest.raises(BudgetSpentError), within(1e-6):
            threading.Event().wait()
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s)
        signal.signal(signal.SIGALRM, before)
