"""Protocols written as Python generators: where they stand, what is found in them, and how it is shown again."""

import json
import random
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import randint
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu import userfile
from cxlemu.cli import INTERRUPTED
from cxlemu.errors import ArgumentError
from faults.explore.check import follow, judge_ends, search
from faults.explore.exhaustive import ENGINES
from faults.explore.partial import bounded
from faults.explore.plans import compile_plans
from faults.explore.programs import (
    Crash,
    Fence,
    Flush,
    Invalidate,
    Load,
    ProtocolOperation,
    RankProtocol,
    Signal,
    Steps,
    Store,
    StoreNT,
    Wait,
    protocol,
)
from faults.explore.result import Budget, Exploration, FindingKind
from faults.explore.strategies import PCT, Delays, Exhaustive, Preemptions, RandomWalk, parse
from faults.machine.program import Do, Step, Straight
from faults.machine.schedule import Act, MachineMove, Schedule, from_json, from_token, to_json, to_token
from faults.machine.steps import Machine, replay
from faults.verdict import Verdict
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.tables import with_rows

EXAMPLES = Path(__file__).parents[2] / "examples" / "protocols"
BUDGET = Budget(states=1_000_000, seconds=60)


def check(tested: RankProtocol, machine: Machine, *how: Any, **options: Any) -> Exploration:
    return judge_ends(tested, machine, search(machine, *how, **options))


def rerun(tested: RankProtocol, machine: Machine, schedule: Schedule) -> Exploration:
    return judge_ends(tested, machine, follow(machine, schedule, BUDGET))


@protocol("data", "flag")
def handover(rank: int, ranks: int) -> Steps[int]:
    if rank == 0:
        yield Store("data", 42)
        yield Flush("data")
        yield Fence()
        yield Signal("flag", 1)
        return 0
    yield Wait("flag", 1)
    yield Invalidate("data")
    return (yield Load("data"))


@protocol("data", "flag")
def unfenced(rank: int, ranks: int) -> Steps[None]:
    if rank == 0:
        yield Store("data", 42)
        yield Flush("data")
        yield Signal("flag", 1)
        return
    while (yield Load("flag")) == 0:
        yield Invalidate("flag")
    yield Invalidate("data")
    value = yield Load("data")
    assert value == 42, f"got {value}"


def nodes(tested: RankProtocol, rank: int = 0, values: Sequence[int] = (0, 1)) -> set[int]:
    """All that the rank can come to when its loads see any of these."""
    thread = tested.program(rank + 1).threads[rank]
    found, waiting = {thread.first}, [thread.first]
    while waiting:
        node = waiting.pop()
        if thread.step(node) is not None and thread.step(node) != ProtocolOperation:
            step = thread.step(node)
            assert step is not None
            for value in values if step.do.name == "LOAD" else (0,):
                if step.do.name != "FAIL" and (after := thread.next(node, value)) not in found:
                    found.add(after)
                    waiting.append(after)
    return found


def test_a_loop_that_spins_is_as_many_nodes_as_places() -> None:
    @protocol("x")
    def spin(rank: int, ranks: int) -> Steps[None]:
        while True:
            if (yield Load("x")):
                return
            yield Invalidate("x")

    assert len(nodes(spin)) == 3  # at the load, at the invalidate, ended


def test_what_stands_on_the_stack_keeps_nodes_apart() -> None:
    @protocol("x", "y")
    def adds(rank: int, ranks: int) -> Steps[int]:
        return (yield Load("x")) + (yield Load("y"))

    assert len(nodes(adds)) == 1 + 2 + 3  # before; with 0 or 1 in hand; ended with 0, 1 or 2


@pytest.mark.parametrize("turns", [lambda: [5, 5, 5], lambda: range(3), lambda: enumerate([5, 5, 5])])
def test_each_turn_of_a_for_loop_is_another_place(turns: Any) -> None:
    @protocol("x")
    def three(rank: int, ranks: int) -> Steps[None]:
        for _ in turns():
            yield Fence()

    assert len(nodes(three)) == 4


def test_generators_that_are_yielded_from_count_too() -> None:
    def pair(word: str) -> Steps[int]:
        first = yield Load(word)
        yield Fence()
        return first

    @protocol("x", "y")
    def both(rank: int, ranks: int) -> Steps[int]:
        total = yield from pair("x")
        total += yield from pair("y")
        return total

    assert len(nodes(both)) == 1 + 2 + 2 + 4 + 3


def test_one_list_under_two_names_is_not_two_equal_lists() -> None:
    @protocol("x")
    def shares(rank: int, ranks: int) -> Steps[int]:
        first: list[int] = []
        second = first if (yield Load("x")) else []
        yield Fence()
        first.append(1)
        return len(second)

    ends = [node for node in nodes(shares) if shares.program(1).threads[0].step(shares.program(1).threads[0].first)]
    assert len(ends) == 1 + 2 + 2


class Counter:
    def __init__(self) -> None:
        self.n = 0


def test_plain_objects_are_compared_by_what_they_hold() -> None:
    @protocol("x")
    def counts(rank: int, ranks: int) -> Steps[None]:
        counter = Counter()
        while counter.n < 2:
            counter.n += yield Load("x")

    assert len(nodes(counts)) == 3


def test_every_execution_of_a_right_protocol_is_searched() -> None:
    machine = Machine(handover.program(2))
    found = check(handover, machine, Exhaustive(), BUDGET, engine="reference")
    assert found.verdict == Verdict.OK
    assert [outcome.memory for outcome in found.outcomes] == [(42, 1)]


def final_sees(memory: Mapping[str, int], results: Sequence[Any]) -> None:
    assert memory == {"data": 42, "flag": 1}
    assert results == [0, 41]


@with_rows(
    (unfenced, FindingKind.ASSERTION, "rank 1: got 0"),
    (
        RankProtocol(handover.function, handover.lines, {}, final_sees),
        FindingKind.FINAL,
        "in the end: assert [0, 42] == [0, 41]",
    ),
)
def test_a_finding_says_what_the_assertion_says(tested: RankProtocol, kind: FindingKind, says: str) -> None:
    machine = Machine(tested.program(2))
    found = check(tested, machine, Exhaustive(), BUDGET, engine="reference")
    assert (found.verdict, found.finding.kind) == (Verdict.VIOLATION, kind)
    assert found.finding.text.startswith(says)
    again = rerun(tested, machine, found.schedule)
    assert (again.finding, again.schedule) == (found.finding, found.schedule)


def one(*operations: ProtocolOperation) -> RankProtocol:
    @protocol("x y", "f")
    def straight(rank: int, ranks: int) -> Iterator[ProtocolOperation]:
        if rank == 0:
            yield from operations

    return straight


def explored(tested: RankProtocol, ranks: int = 2) -> Exploration:
    """By the search in C, which has to say what the definition says."""
    machine = Machine(tested.program(ranks))
    native, reference = (check(tested, machine, Exhaustive(), BUDGET, engine=engine) for engine in ENGINES)
    assert (native.verdict, native.finding) == (reference.verdict, reference.finding)
    for found in (native, reference) if native.finding else ():
        assert rerun(tested, machine, found.schedule).finding == found.finding
    if native.finding is None:  # a search stops where it finds something
        assert native.outcomes.keys() == reference.outcomes.keys()
    return native


def kind_of(found: Exploration) -> FindingKind | None:
    return found.finding and found.finding.kind


def test_a_wait_that_nobody_answers_is_a_deadlock() -> None:
    found = explored(one(Wait("f", 1)))
    assert kind_of(found) == FindingKind.DEADLOCK
    assert found.finding.text == "rank 0 cannot go on, and nothing is under way"


def test_a_rank_that_catches_everything_is_judged_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python ends a generator that stands midway by an exception at its yield, and prints that one catches it."""

    @protocol("f")
    def swallows(rank: int, ranks: int) -> Steps[None]:
        while True:
            try:  # noqa: SIM105
                yield Wait("f", 1)
            except BaseException:
                pass

    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    assert kind_of(explored(swallows)) == FindingKind.DEADLOCK
    assert not said


def test_a_loop_that_only_an_eviction_ends_is_a_livelock() -> None:
    @protocol("f")
    def spins(rank: int, ranks: int) -> Steps[None]:
        if rank == 0:
            yield Store("f", 1)
        else:
            while (yield Load("f")) == 0:
                yield Invalidate("f")

    found = explored(spins)
    assert kind_of(found) == FindingKind.LIVELOCK
    assert found.finding.text == "rank 1 can go on for ever and reach no end"
    assert rerun(spins, Machine(spins.program(2)), found.schedule).finding == found.finding


def test_a_loop_that_reads_its_own_cache_is_a_livelock() -> None:
    @protocol("f")
    def spins(rank: int, ranks: int) -> Steps[None]:
        if rank == 0:
            yield Signal("f", 1)
        else:
            while (yield Load("f")) == 0:
                pass

    assert kind_of(explored(spins)) == FindingKind.LIVELOCK


def test_any_exception_of_a_program_is_a_finding() -> None:
    @protocol("x")
    def divides(rank: int, ranks: int) -> Steps[None]:
        1 // (yield Load("x"))

    finding = explored(divides).finding
    assert finding.text == "rank 0: ZeroDivisionError: integer division or modulo by zero"


def test_all_operations_do_what_they_say() -> None:
    stores = (StoreNT("x", 1), Store("y", 2), Flush("y", keep=True), Fence(), Invalidate("x"), Signal("f", 3))
    assert {outcome.memory for outcome in explored(one(*stores)).outcomes} == {(1, 2, 3)}
    assert {outcome.memory for outcome in explored(one(Store("x", 1), Flush("x"), Crash())).outcomes} == {
        (0, 0, 0),
        (1, 0, 0),
    }


def test_final_gets_none_for_a_rank_that_crashed() -> None:
    seen = []
    crashes = RankProtocol(
        one(Crash()).function, ("x y", "f"), {"x": 7}, lambda memory, results: seen.append((memory, results))
    )
    assert explored(crashes).verdict == Verdict.OK
    assert seen[0] == ({"x": 7, "y": 0, "f": 0}, [None, None])


# -- ranks that share a host


def published(*, flush: bool, invalidate: bool, ranks_per_host: int) -> RankProtocol:
    """Rank 0 publishes ``data`` to all others; each of them has looked at it before."""

    @protocol("data", "flag", ranks_per_host=ranks_per_host)
    def publishes(rank: int, ranks: int) -> Steps[int]:
        if rank == 0:
            yield Store("data", 42)
            if flush:
                yield Flush("data")
                yield Fence()
            yield Signal("flag", 1)
            return 42
        yield Load("data")
        yield Wait("flag", 1)
        if invalidate:
            yield Invalidate("data")
        value = yield Load("data")
        assert value == 42, f"got {value}"
        return value

    return publishes


@pytest.mark.each_value_once
@pytest.mark.parametrize(("flush", "invalidate"), [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize(("ranks", "ranks_per_host"), [(2, 1), (2, 2), (3, 1), (3, 2), (3, 3), (4, 2), (4, 4)])
def test_between_ranks_of_one_host_nothing_need_be_flushed_or_invalidated(
    flush: bool, invalidate: bool, ranks: int, ranks_per_host: int
) -> None:
    tested = published(flush=flush, invalidate=invalidate, ranks_per_host=ranks_per_host)
    found = (
        explored(tested, ranks) if ranks == 2 else check(tested, Machine(tested.program(ranks)), Exhaustive(), BUDGET)
    )
    right = (flush and invalidate) or ranks_per_host >= ranks
    assert found.verdict == (Verdict.OK if right else Verdict.VIOLATION)
    if found.finding is not None:
        assert found.finding.text.endswith(": got 0")
        assert found.finding.thread >= ranks_per_host, "a rank of another host sees the old value"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_only_a_rank_of_the_same_host_reads_what_was_stored_and_never_flushed(engine: str, ranks_per_host: int) -> None:
    @protocol("x", ranks_per_host=ranks_per_host)
    def leaves_it_dirty(rank: int, ranks: int) -> Steps[int]:
        if rank == 0:
            yield Store("x", 1)
            return 0
        while (value := (yield Load("x"))) == 0:
            yield Invalidate("x")
        return value

    found = check(leaves_it_dirty, Machine(leaves_it_dirty.program(2)), Exhaustive(), BUDGET, engine=engine)
    assert kind_of(found) == (FindingKind.LIVELOCK if ranks_per_host == 1 else None)


def test_a_fence_is_its_ranks_and_not_its_hosts() -> None:
    """FENCESCOPE: rank 0 flushes, rank 1 of the same host fences and signals, and rank 2 sees the old value."""

    @protocol("x", "flushed", "f", ranks_per_host=2)
    def scope(rank: int, ranks: int) -> Steps[None]:
        if rank == 0:
            yield Store("x", 1)
            yield Flush("x")
            yield Signal("flushed", 1)
        elif rank == 1:
            yield Wait("flushed", 1)
            yield Fence()
            yield Signal("f", 1)
        else:
            yield Wait("f", 1)
            yield Invalidate("x")
            value = yield Load("x")
            assert value == 1, f"got {value}"

    found = check(scope, Machine(scope.program(3)), Exhaustive(), BUDGET)
    assert found.finding.text == "rank 2: got 0"


def test_a_crash_ends_all_ranks_of_its_host() -> None:
    @protocol("x", "y", ranks_per_host=2)
    def crashes(rank: int, ranks: int) -> Steps[int]:
        if rank == 0:
            yield Crash()
        yield Fence()
        return rank + 1

    found = explored(crashes, 3)
    ends = {tuple(end < 0 for end in outcome.ends) for outcome in found.outcomes}
    assert ends == {(True, True, False)}


def test_words_of_one_line_get_lost_between_hosts_only() -> None:
    def both(memory: Mapping[str, int], results: Sequence[None]) -> None:
        assert memory["here0"] == memory["here1"] == 1, "lost"

    def announces(rank: int, ranks: int) -> Steps[None]:
        yield Store(f"here{rank}", 1)
        yield Flush(f"here{rank}")
        yield Fence()

    for ranks_per_host, kind in ((1, FindingKind.FINAL), (2, None)):
        tested = protocol("here0 here1", final=both, ranks_per_host=ranks_per_host)(announces)
        assert kind_of(explored(tested)) == kind


@pytest.mark.parametrize("ranks_per_host", [0, -1, True, "2"])
def test_a_host_has_a_rank_or_more(ranks_per_host: Any) -> None:
    shared = protocol("x", ranks_per_host=ranks_per_host)(handover.function)
    with pytest.raises(ArgumentError, match="handover: ranks_per_host is 1 or more, not"):
        shared.program(2)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("which", ["broken", "fixed"])
def test_who_reads_what_a_neighbour_fetched_has_to_wait_for_it(which: str, ranks: int) -> None:
    done = cxlemu(
        "explore",
        f"{EXAMPLES.parent / 'per_host.py'}:{which}",
        "-n",
        ranks,
        code=1 if (which, ranks) == ("broken", 4) else 0,
    )
    assert "note: ranks of one host see each other's stores at once" in done.output


def test_nature_moves_a_host_that_several_ranks_share(tmp_path: Path) -> None:
    file = tmp_path / "shared.py"
    file.write_text(SHARED_INDEX)
    assert "host 0: index is evicted" in cxlemu("explore", f"{file}:queue", "-n", 3, code=1).output


SHARED_INDEX = """
from faults.explore.programs import Flush, Invalidate, Load, Store, Signal, Wait, protocol

@protocol("index", "item", ranks_per_host=2)
def queue(rank, ranks):
    if rank == 0:
        yield Store("item", 42)
        yield Store("index", 1)
        yield Flush("index")
        return
    while (yield Load("index")) == 0:
        yield Invalidate("index")
    yield Invalidate("item")
    item = yield Load("item")
    assert item == 42, item
"""


# -- strategies


@pytest.mark.parametrize("strategy", ["preemption:0", "delay:3", "pct:3", "random"])
def test_each_strategy_finds_what_is_wrong_and_its_schedule_replays(strategy: str) -> None:
    machine = Machine(unfenced.program(2))
    found = check(unfenced, machine, parse(strategy), BUDGET, seed=1)
    assert found.finding.text == "rank 1: got 0"
    assert rerun(unfenced, machine, found.schedule).finding == found.finding


@pytest.mark.parametrize("strategy", ["preemption:2", "delay:2", "pct:3", "random"])
def test_no_strategy_but_the_exhaustive_one_calls_anything_right(strategy: str) -> None:
    found = check(handover, Machine(handover.program(2)), parse(strategy), BUDGET, runs=20)
    assert (found.verdict, found.finding) == (Verdict.UNKNOWN, None)
    assert found.reason


@pytest.mark.parametrize("bound", [Preemptions, Delays])
def test_bounds_only_ever_add_executions_and_end_with_all_of_them(bound: type[Preemptions] | type[Delays]) -> None:
    """Unbounded, every state is met with every thread that may have gone last."""
    machine = Machine(unfenced.program(2))
    flawless = Machine(handover.program(2))
    sizes = [bounded(flawless, bound(limit), BUDGET).states for limit in (0, 1, 2, 50)]
    assert sizes == sorted(set(sizes))
    everything = check(handover, flawless, Exhaustive(), BUDGET, engine="reference")
    assert sizes[-1] >= everything.states
    assert bounded(machine, bound(50), BUDGET).finding is not None


@pytest.mark.parametrize("walk", [RandomWalk, lambda: PCT(3)])
def test_the_same_seed_gives_the_same_executions(walk: Any) -> None:
    machine = Machine(handover.program(2))
    runs = [check(handover, machine, walk(), BUDGET, runs=10, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].transitions == runs[1].transitions != runs[2].transitions


def test_a_spent_budget_is_unknown() -> None:
    machine = Machine(handover.program(2))
    for strategy in ("exhaustive", "preemption:9", "random"):
        found = check(handover, machine, parse(strategy), Budget(states=30), engine="reference")
        assert (found.verdict, found.finding) == (Verdict.UNKNOWN, None)
        assert "budget" in found.reason


# -- schedules


def test_a_replay_judges_its_execution_alone() -> None:
    """Half of an execution is neither right nor wrong."""
    machine = Machine(unfenced.program(2))
    found = check(unfenced, machine, Exhaustive(), BUDGET)
    assert rerun(unfenced, machine, found.schedule).finding == found.finding is not None
    half = rerun(unfenced, machine, found.schedule[: len(found.schedule) // 2])
    assert (half.verdict, half.finding) == (Verdict.UNKNOWN, None)
    assert half.reason == "nothing is wrong so far, but the schedule stops before the end of rank 1"
    ended = next(iter(check(handover, machine := Machine(handover.program(2)), Exhaustive(), BUDGET).outcomes.items()))
    whole = rerun(handover, machine, ended[1])
    assert (whole.verdict, whole.states) == (Verdict.OK, len(ended[1]) + 1)


def test_no_move_of_a_counterexample_can_be_left_out() -> None:
    machine = Machine(unfenced.program(2))
    sampled = check(unfenced, machine, RandomWalk(), BUDGET, runs=1000, seed=0)
    least = check(unfenced, machine, Exhaustive(), BUDGET, engine="reference")
    assert sampled.finding is not None and len(sampled.schedule) >= len(least.schedule)
    for at in range(len(sampled.schedule)):
        try:
            again = rerun(unfenced, machine, sampled.schedule[:at] + sampled.schedule[at + 1 :])
        except ArgumentError:
            continue
        assert again.finding != sampled.finding


OF_THREADS = (Act.STEP, Act.AGAIN)
small = st.integers(0, 99)
moves = st.one_of(
    st.builds(MachineMove, st.sampled_from(OF_THREADS), small, st.just(-1)),
    st.builds(MachineMove, st.sampled_from([act for act in Act if act not in OF_THREADS]), small, small),
)


@given(st.lists(moves).map(tuple))
def test_a_schedule_is_the_same_after_json_and_as_a_token(schedule: tuple[MachineMove, ...]) -> None:
    assert from_json(json.loads(json.dumps(to_json(schedule)))) == schedule
    assert from_token(to_token(schedule)) == schedule


@pytest.mark.parametrize(
    "data",
    [None, {}, [1], [["step"]], [["step", -1]], [["step", True]], [["step", 0, 1]], [["land", 0]], [["fly", 0, 1]]],
)
def test_what_is_no_schedule_is_refused(data: Any) -> None:
    with pytest.raises(ArgumentError, match="schedule"):
        from_json(data)


@pytest.mark.parametrize("token", ["s", "s0l0", "z0", "s0 s1", "s0.1", "l0.", "s" + "9" * 40])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(ArgumentError, match="token"):
        from_token(token)


def test_a_move_that_is_not_possible_there_is_refused() -> None:
    with pytest.raises(ArgumentError, match="move 1 of the schedule, step 7, is not possible there"):
        replay(Machine(handover.program(2)), from_token("s0s7"))


# -- what cannot be searched


@with_rows(
    (("x", "x y"), {}, Fence(), "takes 1 to 64 words, each in one line only"),
    ((), {}, Fence(), "takes 1 to 64 words"),
    (("x",), {"z": 1}, Fence(), "initial 'z': 1 is not a word and a number from 0 on"),
    (("x",), {"x": -1}, Fence(), "initial 'x': -1 is not"),
    (("x",), {}, Load("z"), "there is no word 'z', only x"),
    (("x",), {}, Store("x", -1), "x can hold 0 to 2147483647, not -1"),
    (("x",), {}, Store("x", 1 << 31), "x can hold 0 to 2147483647"),
    (("x",), {}, Store("x", True), "x can hold 0 to 2147483647, not True"),
    (("x",), {}, 7, "yields 7: yield operations such as Load('x')"),
)
def test_a_protocol_that_cannot_be_is_refused(lines: Any, initial: Any, operation: Any, says: str) -> None:
    @protocol(*lines, initial=initial)
    def wrong(rank: int, ranks: int) -> Steps[None]:
        yield operation

    with pytest.raises(ArgumentError, match="wrong") as raised:
        wrong.program(1)
    assert says in str(raised.value)


def test_variables_that_cannot_be_compared_are_refused() -> None:
    @protocol("x")
    def holds(rank: int, ranks: int) -> Steps[None]:
        lock = open("/dev/null")  # noqa: SIM115, PTH123
        yield Fence()
        lock.close()

    with pytest.raises(ArgumentError, match="holds, rank 0 holds a TextIOWrapper, and two of these cannot be compared"):
        holds.program(1)


def test_a_program_that_does_something_else_each_time_is_refused() -> None:
    @protocol("x")
    def changes(rank: int, ranks: int) -> Steps[None]:
        yield Store("x", time.monotonic_ns() % 2**31)
        yield Fence()

    with pytest.raises(ArgumentError, match="takes different steps for the same values"):
        explored(changes)


SIDE: dict[str, int] = {}
TURNS = 0


class Shared:
    there = 0


def note(value: int, into: list[int] = []) -> list[int]:  # noqa: B006
    into.append(value)
    return into


def in_a_dict() -> None:
    SIDE["x"] = 1


def in_a_global() -> None:
    global TURNS
    TURNS += 1


def in_a_class() -> None:
    Shared.there += 1


def in_a_default() -> None:
    note(1)


def in_an_attribute() -> None:
    note.turns = 1  # type: ignore[attr-defined]


@with_rows(
    (in_a_dict, "SIDE"),
    (in_a_global, "TURNS"),
    (in_a_class, "Shared.there"),
    (in_a_default, "a default of note"),
    (in_an_attribute, "note.turns"),
)
def test_a_variable_outside_the_generators_carries_nothing_between_ranks(
    change: Callable[[], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a flush, rank 1 may see 0: no real rank sees a variable of rank 0 that says otherwise."""
    monkeypatch.setattr(sys.modules[__name__], "TURNS", 0)
    monkeypatch.setattr(Shared, "there", 0)
    monkeypatch.setattr(note, "turns", 0, raising=False)

    @protocol("x", "f")
    def cheats(rank: int, ranks: int) -> Steps[None]:
        if rank == 0:
            yield Store("x", 1)
            change()
            yield Signal("f", 1)
        else:
            yield Wait("f", 1)
            seen = yield Load("x")
            assert seen == 1 or SIDE

    try:
        with pytest.raises(ArgumentError, match=f"cheats, rank 0 changes {name}, which lies outside its generator"):
            explored(cheats)
    finally:
        SIDE.clear()


def test_a_variable_that_a_function_closes_over_carries_nothing_between_executions() -> None:
    numbers, restored = count(), [0]

    @protocol("x")
    def counts(rank: int, ranks: int) -> Steps[None]:
        yield Store("x", next(numbers))

    @protocol("x")
    def restores(rank: int, ranks: int) -> Steps[None]:
        restored[0] = 1
        yield Fence()
        restored[0] = 0

    for program, name in ((counts, "numbers"), (restores, "restored")):
        with pytest.raises(ArgumentError, match=f"{program.name}, rank 0 changes {name}, which lies outside"):
            explored(program)


def test_numbers_that_random_draws_differ_between_executions() -> None:
    """With other numbers the search would have seen other steps: what it says would be chance."""

    @protocol("x")
    def draws(rank: int, ranks: int) -> Steps[None]:
        yield Store("x", 1 if random.random() < 2 else 2)
        assert True

    @protocol("x")
    def draws_by_name(rank: int, ranks: int) -> Steps[None]:
        yield Store("x", 1 if randint(0, 1) < 2 else 2)
        assert True

    @protocol("x")
    def own(rank: int, ranks: int) -> Steps[None]:
        yield Store("x", random.Random(rank).randint(1, 5))
        assert True

    for program in (draws, draws_by_name):
        with pytest.raises(ArgumentError, match=f"{program.name}, rank 0 changes the state of random, which lies"):
            explored(program)
    assert explored(own).verdict == Verdict.OK


def test_a_loop_that_counts_its_turns_for_ever_is_refused() -> None:
    @protocol("x")
    def endless(rank: int, ranks: int) -> Steps[None]:
        for _ in count():
            yield Fence()

    with pytest.raises(ArgumentError, match="never returns to an earlier state"):
        explored(endless, ranks=1)


@pytest.mark.skipif(sys.gettrace() is not None, reason="whoever traces the tests has taken the leash's place")
def test_a_loop_without_a_yield_is_stopped() -> None:
    @protocol("x")
    def runs(rank: int, ranks: int) -> Steps[None]:
        while (yield Load("x")) == 0:
            pass
        while True:
            try:
                pass
            except Exception:  # the leash is stronger
                continue

    thread = runs.program(1).threads[0]
    with pytest.raises(ArgumentError, match="runs, rank 0 runs too long without a yield"):
        thread.next(thread.first, 1)
    assert sys.gettrace() is None


@pytest.mark.skipif(sys.gettrace() is not None, reason="whoever traces the tests has taken the leash's place")
def test_variables_that_take_too_long_to_compare_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.explore.leash.LINES_MAX", 1000)

    @protocol("x")
    def holds(rank: int, ranks: int) -> Steps[None]:
        much = [0] * 1000
        yield Store("x", len(much))

    with pytest.raises(ArgumentError, match="holds, rank 0 runs too long without a yield"):
        holds.program(1)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_of_the_program_comes_through_either_search(engine: str) -> None:
    @protocol("x")
    def names(rank: int, ranks: int) -> Steps[None]:
        yield Fence()
        yield Load("z")

    with pytest.raises(ArgumentError, match="names, rank 0: there is no word 'z', only x"):
        check(names, Machine(names.program(1)), Exhaustive(), BUDGET, engine=engine)


def test_a_function_that_yields_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match="is not a generator: it has no yield"):
        protocol("x")(lambda rank, ranks: None).program(1)  # type: ignore[arg-type, return-value]


# -- the command line


def test_ctrl_c_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*told: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("faults.cli.explore_run.search", interrupted)
    done, document = with_json("explore", "broadcast", code=INTERRUPTED)
    assert done.stderr.endswith("cxlemu: interrupted\n")
    assert done.stdout.strip().endswith("unknown: Ctrl-C ended the search")  # no count of states
    assert document["interrupted"] and document["verdict"] == "unknown"


@pytest.mark.deep(rows=lambda which: which == "fixed")
@pytest.mark.parametrize("name", ["shared_line", "unflushed_index", "early_ready"])
@pytest.mark.parametrize("which", ["broken", "fixed"])
def test_the_search_in_c_agrees_with_the_definition(name: str, which: str) -> None:
    tested = userfile.load(f"{EXAMPLES / name}.py:{which}", "")[0]
    machine = Machine(tested.program(2))
    native, reference = (check(tested, machine, Exhaustive(), BUDGET, engine=engine) for engine in ENGINES)
    assert native.verdict == reference.verdict
    if reference.finding is None:
        assert native.outcomes.keys() == reference.outcomes.keys()
    else:
        assert (native.finding.kind, native.finding.thread) == (reference.finding.kind, reference.finding.thread)


LONG = """
from faults import Store, protocol
@protocol("x")
def long(rank: int, ranks: int):
    for _ in range(70):
        yield Store("x", rank)
    assert rank
"""


def test_of_a_long_execution_the_end_is_shown_and_all_by_replay(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    found = cxlemu("explore", tmp_path / "long.py:long", code=1).output
    assert "steps 1 to 10 are left out; the command below shows them" in found
    assert "\n  11   store" in found and "\n  10 " not in found
    again = shlex.split(found.partition("again: ")[2])
    whole = cxlemu(*again[1:], code=1).output
    assert "\n  1    store" in whole and "\n  70   store" in whole and "left out" not in whole


@pytest.mark.deep(rows=lambda file: file.stem == "shrink")
@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_the_known_bugs_are_found_and_their_repairs_exhausted(file: Path) -> None:
    ranks = re.search(rf"{file.stem}.py:broken (-n \d)", file.read_text())  # as its file says
    words = ranks[1].split() if ranks else []
    broken = cxlemu("explore", f"{file}:broken", *words, code=1)
    again = broken.output.splitlines()[-1].split()
    assert again[:2] == ["again:", "cxlemu"]
    assert cxlemu(*again[2:]).output.splitlines()[0] == broken.output.splitlines()[0]
    cxlemu("explore", f"{file}:fixed", *words, code=0)


def test_json_holds_the_schedule_that_replays(tmp_path: Path) -> None:
    said = tmp_path / "said.json"
    target = f"{EXAMPLES / 'shared_line.py'}:broken"
    assert cxlemu("explore", target, "--json", said).exit_code == 1
    document = json.loads(said.read_text())
    assert document["finding"]["text"] == "in the end: an announcement is lost"
    assert document["schedule"]
    assert document["finding"]["text"] in cxlemu("explore", target, "--replay", said, code=1).output


def test_a_collective_is_searched_whole() -> None:
    done, document = with_json("explore", "all_reduce", "-n", 3, "--variant", "two_shot", "--calls", 2, code=0)
    assert done.output.startswith("all_reduce two_shot of 192 B, 2 calls, 3 ranks: ok, in every execution\n")
    assert document["states"] > 100


def test_an_algorithm_of_ones_own_is_searched_too() -> None:
    own = f"{EXAMPLES.parent / 'my_all_reduce.py'}:my_all_reduce"
    done = cxlemu("explore", own, "-n", 3, code=0)
    assert done.output.startswith("all_reduce my_all_reduce of 192 B, 3 ranks: ok, in every execution\n")
    assert "has none" in cxlemu("explore", own, "--variant", "all").output


def test_a_collective_without_its_fences_is_found_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the machine's fence waited for nothing."""

    def weak(plans: Any, hosts: Any) -> Any:
        compiled = compile_plans(plans, hosts)
        threads = [
            replace(thread, steps=tuple(Step(Do.RECORD, 63) if s.do == Do.FENCE else s for s in thread.steps))
            for thread in compiled.program.threads
            if isinstance(thread, Straight)
        ]
        return replace(compiled, program=replace(compiled.program, threads=tuple(threads)))

    monkeypatch.setattr("faults.cli.explore_calls.compile_plans", weak)
    command = ["explore", "all_gather", "-b", "64", "--variant", "naive"]
    broken = cxlemu(*command, code=1)
    first, *_, last = broken.output.splitlines()
    assert first.startswith("all_gather naive of 32 B, 2 ranks: unexpected: ")
    assert "stream" in first
    again = last.split()
    assert again[2:7] == ["explore", "all_gather", "--ranks", "2", "--minbytes=64"]
    assert cxlemu(*again[2:]).output.splitlines()[0] == first


def test_exit_codes() -> None:
    target = f"{EXAMPLES / 'shared_line.py'}:fixed"
    assert cxlemu("explore", target).exit_code == 0
    assert cxlemu("explore", target, "--budget-states", 2).exit_code == 3
    assert cxlemu("explore", target, "--strategy", "random", "--runs", 3).exit_code == 3


@with_rows(
    (["nowhere.py:f"], "explore nowhere.py:f: there is no file nowhere.py"),
    (["nowhere"], "explore takes FILE.py:function, not 'nowhere'"),
    (["FILE:nothing"], "shared_line.py has no 'nothing': it has broken, fixed"),
    (["FILE:fixd"], "shared_line.py has no 'fixd'; did you mean fixed?"),
    (["FILE:fixed", "-r", "1", "--in-place"], "cxlemu: --root, --in-place: only for a collective"),
    (["FILE:fixed", "--strategy", "luck"], "--strategy 'luck' is not one of exhaustive, preemption:K"),
    (["FILE:fixed", "--replay", "zzz"], "a schedule's token is a word such as s0s0l0.1s1"),
    (["FILE:fixed", "--replay", "FILE"], "not JSON"),
    (["FILE:fixed", "--replay", "s0s0s0s0s0s0s0"], "move 2 of the schedule, step 0, is not possible there"),
    (["FILE:fixed", "--calls", "2"], "--calls: only for a collective, not for a protocol of your own"),
    (
        ["all_gather", "-b", "1G"],
        "1 call with blocks of 512M on 2 ranks are too large to search: 64 KiB in all at most",
    ),
    (["all_gather", "--variant", "best"], "all_gather has no variant 'best': it has naive, "),
    (["FILE:fixed", "-n", "9"], "invalid rank count '9': must be 1 to 8"),
    (["FILE:fixed", "--json", "/nowhere/x"], "--json /nowhere/x cannot be written"),
)
def test_bad_input_gets_one_sentence(arguments: list[str], says: str) -> None:
    file = str(EXAMPLES / "shared_line.py")
    assert says in cxlemu("explore", *(argument.replace("FILE", file) for argument in arguments), code=2).output
