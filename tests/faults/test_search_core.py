"""The search in C against the definition: the same states, and no reduction loses or makes up an outcome or a finding.

Unreduced, both count the same states and transitions; so where the definition would take too long, unreduced C stands
for it. Every schedule that a search returns is possible step by step, and leads where it says.
"""

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.errors import ArgumentError
from faults.explore import core, search
from faults.explore.result import Budget, Exploration, FindingKind
from faults.litmus.language import read
from faults.machine.program import Do, MachineProgram, Step, Straight, Word
from faults.machine.steps import Machine, replay
from faults.verdict import Verdict
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples

LITMUS = sorted((Path(__file__).parent / "litmus").glob("*.yaml"))
OFF = {"lazy": False, "checked_reads": False, "ample": False}
REDUCTIONS = [
    dict(zip(OFF, switches, strict=True)) for switches in product((False, True), repeat=len(OFF)) if any(switches)
]
BY_DEFINITION = Budget(states=500, seconds=60)
BY_UNREDUCED_C = Budget(states=50_000, seconds=60)


def said(found: Exploration) -> object:
    """What all searches must agree on. A wrong load ends a search before it has seen all outcomes."""
    if found.finding and found.finding.kind == FindingKind.UNEXPECTED:
        return FindingKind.UNEXPECTED
    return found.verdict, found.finding is None, set(found.outcomes)


def assert_replays(machine: Machine, found: Exploration) -> None:
    if found.finding:
        end = replay(machine, found.schedule)[-1]
        moves = machine.enabled(end)
        assert search.complaint(machine, end) or (search.is_stuck(moves) and not machine.ended(end)) or endless(machine)
    for outcome, schedule in list(found.outcomes.items())[:8]:
        end = replay(machine, schedule)[-1]
        assert machine.ended(end) and search.outcome(end) == outcome


def endless(machine: Machine) -> bool:
    """Unreduced, too, an execution goes on for ever, or cannot go on."""
    found = core.explore(machine, BY_UNREDUCED_C, past_hangs=True, **OFF)
    return found.finding is not None and found.finding.kind in (FindingKind.LIVELOCK, FindingKind.DEADLOCK)


def compare(program: MachineProgram) -> None:
    machine = Machine(program)
    literal = core.explore(machine, BY_UNREDUCED_C, past_hangs=True, **OFF)
    is_large = literal.verdict == Verdict.UNKNOWN
    if is_large:
        literal = core.explore(machine, past_hangs=True, checked_reads=False, ample=False)
    elif literal.states <= BY_DEFINITION.states:
        definition = search.explore(machine, past_hangs=True)
        assert said(literal) == said(definition)
        if said(definition) != FindingKind.UNEXPECTED:
            assert (literal.states, literal.transitions) == (definition.states, definition.transitions)
    for reductions in REDUCTIONS:
        if is_large and not reductions["lazy"]:
            continue
        reduced = core.explore(machine, past_hangs=True, **reductions)
        assert said(reduced) == said(literal), reductions
        assert_replays(machine, reduced)


@pytest.mark.deep(rows=lambda path: LITMUS.index(path) % 3)
@pytest.mark.parametrize("path", LITMUS, ids=lambda path: path.stem)
def test_every_litmus_test_has_the_same_outcomes_however_it_is_searched(path: Path) -> None:
    compare(read(path).program)


# -- random programs: several streams a rank, several ranks a host, every step there is

LINES = 2
WORDS = (Word("w0", 0), Word("w1", 0), Word("w2", 1))

VALUES = st.integers(1, 3)
PLACES = st.integers(0, len(WORDS) - 1)
STEPS = st.one_of(
    st.builds(lambda w, v: Step(Do.STORE, w, v), PLACES, VALUES),
    st.builds(lambda w, v: Step(Do.SIGNAL, w, v), PLACES, VALUES),
    st.builds(lambda do, line: Step(do, line), st.sampled_from([Do.FLUSH, Do.INVALIDATE]), st.integers(0, LINES - 1)),
    st.builds(lambda w, v: Step(Do.WAIT, w, v), PLACES, st.integers(1, 2)),
    st.builds(lambda w: Step(Do.LOAD, w, register=0), PLACES),
    st.builds(lambda w, v: Step(Do.LOAD, w, expect=v), PLACES, st.integers(0, 1)),
    st.just(Step(Do.FENCE)),
    st.builds(lambda w, v: Step(Do.STORE_NT, w, v), PLACES, VALUES),
    st.builds(lambda do, event: Step(do, event), st.sampled_from([Do.RECORD, Do.AWAIT]), st.integers(0, 1)),
    st.builds(lambda line: Step(Do.FLUSH_KEEP, line), st.integers(0, LINES - 1)),
)
WHERE = st.lists(st.sampled_from([(0, 0), (0, 1), (1, 2)]), min_size=2, max_size=3)  # (host, rank)


@st.composite
def programs(draw: st.DrawFn) -> MachineProgram:
    threads = [
        Straight(host, rank, f"thread {t}", tuple(_own(step, t) for step in draw(st.lists(STEPS, max_size=4))))
        for t, (host, rank) in enumerate(sorted(draw(WHERE)))
    ]
    return MachineProgram(tuple(threads), WORDS, tuple(f"line {k}" for k in range(LINES)), ("r0", "r1", "r2"))


def _own(step: Step, thread: int) -> Step:
    """A register of the thread's own."""
    return step._replace(register=thread) if step.register >= 0 else step


@examples(60)
@given(programs())
def test_random_programs_have_the_same_outcomes_however_they_are_searched(program: MachineProgram) -> None:
    compare(program)


# -- ranks of one host that ring and hear each other's doorbells, with a payload or without

BELLS = (Word("p", 0), Word("f", 0), Word("q", 1), Word("g", 1))
NEIGHBOURS = st.sampled_from(
    [((0, 0), (0, 1)), ((0, 0), (0, 1), (1, 2)), ((0, 0), (0, 1), (0, 2)), ((0, 0), (0, 0), (1, 1))]
)


@st.composite
def neighbours(draw: st.DrawFn) -> MachineProgram:
    """Messages under rising flags, each line's from one thread or from several; at times with a step put in."""
    places = draw(NEIGHBOURS)
    threads: list[list[Step]] = [[] for _ in places]
    some = st.integers(0, len(places) - 1)
    writers = [draw(st.one_of(st.just(some), st.builds(st.just, some))) for _ in range(LINES)]
    for value in range(1, draw(st.integers(2, 4))):
        line, hears = draw(st.integers(0, 1)), draw(some)
        flag, payload = 2 * line + 1, 2 * line
        threads[draw(writers[line])] += [Step(Do.STORE, payload, value)] * draw(st.booleans()) + [
            Step(Do.SIGNAL, flag, value)
        ]
        threads[hears].append(Step(Do.WAIT, flag, value))
        looks = draw(st.sampled_from([(), (payload, value), (0, -1)]))  # (0, -1): at what perhaps another rank heard of
        if looks:
            threads[hears] += [Step(Do.INVALIDATE, 0)] * (looks[1] < 0) + [Step(Do.LOAD, looks[0], 0, hears, looks[1])]
    if draw(st.booleans()):
        thread = draw(some)
        threads[thread].insert(draw(st.integers(0, len(threads[thread]))), _own(draw(STEPS), thread))
    straight = (Straight(host, rank, f"{t}", tuple(threads[t])) for t, (host, rank) in enumerate(places))
    return MachineProgram(tuple(straight), BELLS, ("line 0", "line 1"), ("r0", "r1", "r2"))


@examples(60)
@given(neighbours())
def test_doorbells_among_ranks_of_a_host_are_judged_however_they_are_searched(program: MachineProgram) -> None:
    compare(program)


@with_rows(((), ()), ((Step(Do.WAIT, 4, 1),), (Step(Do.SIGNAL, 4, 1),)))  # the wait comes behind one that has begun
def test_a_wait_on_the_writers_host_proves_nothing_to_other_hosts(
    first: tuple[Step, ...], lets: tuple[Step, ...]
) -> None:
    """Unless it begins before the payload is stored, it is over only once the line has arrived."""
    tells = (Step(Do.STORE, 0, 1), Step(Do.SIGNAL, 1, 1))
    passes_on = (*first, Step(Do.WAIT, 1, 1), Step(Do.SIGNAL, 3, 1))
    looks = (*lets, Step(Do.WAIT, 3, 1), Step(Do.INVALIDATE, 0), Step(Do.LOAD, 0, expect=1))
    threads = tuple(Straight(t // 2, t, f"{t}", steps) for t, steps in enumerate((tells, passes_on, looks)))
    program = MachineProgram(threads, (*BELLS, Word("h", 2)), ("line 0", "line 1", "line 2"))
    compare(program)
    assert core.explore(Machine(program)).verdict == Verdict.VIOLATION


RUNG_TWICE = (Step(Do.STORE, 0, 1), Step(Do.SIGNAL, 1, 1), Step(Do.STORE, 0, 2), Step(Do.SIGNAL, 1, 2))


@with_rows(
    (RUNG_TWICE, Step(Do.INVALIDATE, 0)),
    (RUNG_TWICE, Step(Do.WAIT, 1, 1)),  # which the older version passes, too
    ((Step(Do.SIGNAL, 2, 2), *RUNG_TWICE), Step(Do.WAIT, 2, 2)),  # for another flag of that line
    ((*RUNG_TWICE[:2], Step(Do.LOAD, 5, register=0), Step(Do.STORE, 0, source=0), RUNG_TWICE[3]), Step(Do.WAIT, 1, 1)),
)
def test_who_loads_what_another_rank_has_waited_for_has_to_wait_as_well(tells: tuple[Step, ...], looks: Step) -> None:
    passes_on = (Step(Do.WAIT, 1, 2), Step(Do.SIGNAL, 4, 2))
    words = (Word("p", 0), Word("f", 0), Word("h", 0), Word("q", 1), Word("g", 1), Word("two", 2, 2))
    for loads in (Step(Do.LOAD, 0, register=1), Step(Do.LOAD, 0, expect=2)):
        relies = (Step(Do.WAIT, 4, 2), looks, loads)
        threads = tuple(Straight(t // 2, t, f"{t}", steps) for t, steps in enumerate((tells, passes_on, relies)))
        program = MachineProgram(threads, words, ("line 0", "line 1", "line 2"), ("r0", "r1"))
        compare(program)
    assert core.explore(Machine(program)).verdict == Verdict.VIOLATION


SEES_BOTH = (Step(Do.LOAD, 0, register=0), Step(Do.LOAD, 1, register=1))


@with_rows(
    (((0, 0, (Step(Do.STORE, 0, 1), Step(Do.SIGNAL, 1, 1))), (1, 1, SEES_BOTH)),),  # the line may leave before
    (((0, 1, (Step(Do.STORE_NT, 0, 1),)), (0, 0, (Step(Do.SIGNAL, 1, 1),)), (1, 2, SEES_BOTH)),),
    (((0, 0, (Step(Do.SIGNAL, 1, 2), Step(Do.SIGNAL, 1, 1))), (0, 0, (Step(Do.WAIT, 1, 2),))),),  # or waits in vain
)
def test_a_signal_does_not_come_before_what_it_hides(threads: tuple[tuple[int, int, tuple[Step, ...]], ...]) -> None:
    straight = (Straight(host, rank, f"{t}", steps) for t, (host, rank, steps) in enumerate(threads))
    compare(MachineProgram(tuple(straight), BELLS, ("line 0", "line 1"), ("r0", "r1")))


def test_a_host_that_waits_for_an_event_of_another_does_not_go_first() -> None:
    waits = (Step(Do.AWAIT, 0), Step(Do.STORE, 0, 2))
    looks = (Step(Do.LOAD, 0, register=0), Step(Do.STORE, 2, 2))
    tells = (Step(Do.STORE, 2, 1), Step(Do.RECORD, 0))
    threads = tuple(Straight(t // 2, t, f"{t}", steps) for t, steps in enumerate((waits, looks, tells)))
    program = MachineProgram(threads, BELLS, ("line 0", "line 1"), ("r0",))
    compare(program)
    assert {end.registers for end in core.explore(Machine(program)).outcomes} == {(0,), (2,)}


def test_a_fence_may_come_before_another_stream_waits_for_what_has_not_arrived() -> None:
    rings = (Step(Do.STORE, 0, 1), Step(Do.SIGNAL, 1, 1), Step(Do.SIGNAL, 3, 1))
    waits, passes_on = Step(Do.WAIT, 3, 1), (Step(Do.WAIT, 3, 1), Step(Do.FENCE), Step(Do.SIGNAL, 4, 1))
    looks = (Step(Do.WAIT, 4, 1), Step(Do.INVALIDATE, 0), Step(Do.LOAD, 0, expect=1))
    places = ((0, 1, rings), (0, 0, (waits, Step(Do.WAIT, 1, 1))), (0, 0, passes_on), (1, 2, looks))
    threads = tuple(Straight(host, rank, f"{t}", steps) for t, (host, rank, steps) in enumerate(places))
    program = MachineProgram(threads, (*BELLS, Word("h", 2)), ("line 0", "line 1", "line 2"))
    compare(program)
    assert core.explore(Machine(program)).verdict == Verdict.VIOLATION


# -- messages that are right, with one thing wrong: what reductions are made for


def message(flag: int, data: int, value: int) -> tuple[list[Step], list[Step]]:
    line = CHAIN_WORDS[data].line
    return (
        [Step(Do.STORE, data, value), Step(Do.FLUSH, line), Step(Do.FENCE), Step(Do.SIGNAL, flag, value)],
        [Step(Do.WAIT, flag, value), Step(Do.INVALIDATE, line), Step(Do.LOAD, data, expect=value)],
    )


CHAIN_WORDS = (Word("x", 0), Word("f", 1), Word("g", 2), Word("payload of g", 2))


def conversation() -> list[list[Step]]:
    """x under f, an answer in the line of g, and x once more."""
    (writes, reads), (again, rereads) = message(1, 0, 1), message(1, 0, 2)
    answer = [Step(Do.STORE, 3, 1), Step(Do.SIGNAL, 2, 1)]
    heard = [Step(Do.WAIT, 2, 1), Step(Do.LOAD, 3, expect=1)]
    return [writes + heard + again, reads + answer + rereads]


def as_program(threads: list[list[Step]], hosts: tuple[int, ...] = (0, 1)) -> MachineProgram:
    straight = (Straight(hosts[t], t, f"rank {t}", tuple(steps)) for t, steps in enumerate(threads))
    return MachineProgram(tuple(straight), CHAIN_WORDS, ("x", "f", "g"))


def mutants() -> list[MachineProgram]:
    found = []
    for t, steps in enumerate(conversation()):
        for at in range(len(steps)):
            threads = conversation()
            del threads[t][at]
            found.append(as_program(threads))
            if at:
                threads = conversation()
                threads[t][at - 1 : at + 1] = reversed(threads[t][at - 1 : at + 1])
                found.append(as_program(threads))
    return found


def test_a_right_conversation_is_one_path_and_its_mutants_are_judged_as_unreduced() -> None:
    whole = core.explore(Machine(as_program(conversation())))
    assert whole.verdict == Verdict.OK and whole.states == whole.transitions + 1
    verdicts = []
    for program in mutants():
        machine = Machine(program)
        lazy = core.explore(machine, ample=False, checked_reads=False)
        reduced = core.explore(machine)
        assert said(lazy) == said(reduced)
        assert_replays(machine, reduced)
        verdicts.append(reduced.verdict)
    assert {Verdict.OK, Verdict.VIOLATION} == set(verdicts)


# -- streams of a rank, or ranks of a host: what one of them flushes, the fence of another waits for, or does not

STORES_X = (Step(Do.STORE, 0, 1), Step(Do.FLUSH, 0))
STORES_F, RINGS_F, RINGS_G = Step(Do.STORE, 1, 1), Step(Do.SIGNAL, 1, 1), Step(Do.SIGNAL, 2, 1)


@with_rows(
    (STORES_X, 0, 0, (Step(Do.FENCE), RINGS_G)),
    ((RINGS_F,), 1, 0, (Step(Do.FENCE), RINGS_G)),
    ((*STORES_X, STORES_F), 0, 1, (STORES_F, Step(Do.FENCE), RINGS_G)),  # a fence that does not wait for rank 0
)
def test_a_fence_of_another_stream_may_come_before_the_line_arrives(
    leaves: tuple[Step, ...], line: int, rank: int, rings: tuple[Step, ...]
) -> None:
    looks = (Step(Do.WAIT, 2, 1), Step(Do.INVALIDATE, line), Step(Do.LOAD, line, expect=1))
    hosts = ((0, 0, leaves), (0, rank, rings), (1, 2, looks))
    threads = tuple(Straight(host, of, f"thread {t}", steps) for t, (host, of, steps) in enumerate(hosts))
    program = MachineProgram(threads, CHAIN_WORDS, ("x", "f", "g"))
    compare(program)
    assert core.explore(Machine(program)).verdict == Verdict.VIOLATION


# -- generators: nodes that are found as they are reached, and loops


class Spinning:
    """Loads until it sees the value; with ``invalidates`` it looks anew each time."""

    host, rank, name, first = 1, 1, "spins", 10

    def __init__(self, invalidates: bool) -> None:
        self.invalidates = invalidates

    def step(self, node: int) -> Step | None:
        return {10: Step(Do.INVALIDATE, 0) if self.invalidates else Step(Do.FENCE), 20: Step(Do.LOAD, 0)}.get(node)

    def next(self, node: int, value: int) -> int:
        return 20 if node == 10 else 30 if value == 1 else 10


@pytest.mark.parametrize("invalidates", [True, False])
@pytest.mark.parametrize("reductions", [OFF, *REDUCTIONS], ids=str)
def test_a_loop_that_reads_its_own_cache_for_ever_is_a_livelock(invalidates: bool, reductions: dict[str, bool]) -> None:
    writer = Straight(0, 0, "writer", (Step(Do.STORE, 0, 1), Step(Do.FLUSH, 0), Step(Do.FENCE)))
    machine = Machine(MachineProgram((writer, Spinning(invalidates)), (Word("x", 0),), ("x",)))
    definition = search.explore(machine)
    found = core.explore(machine, **reductions)
    assert (found.finding is None) == invalidates == (definition.finding is None)
    assert found.finding is None or found.finding.kind == FindingKind.LIVELOCK
    assert set(found.outcomes) == set(definition.outcomes)
    assert reductions["lazy"] or (found.states, found.transitions) == (definition.states, definition.transitions)


def test_a_failed_assertion_is_found() -> None:
    thread = Straight(0, 0, "fails", (Step(Do.STORE, 0, 1), Step(Do.FAIL)))
    found = core.explore(Machine(MachineProgram((thread,), (Word("x", 0),), ("x",))))
    assert found.finding and found.finding.kind == FindingKind.ASSERTION and len(found.schedule) == 1


class Raising(Spinning):
    def next(self, node: int, value: int) -> int:
        raise ZeroDivisionError


def test_what_a_thread_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        core.explore(Machine(MachineProgram((Raising(True),), (Word("x", 0),), ("x",))))


# -- bounds


def straight(*steps: Step, words: int = 1) -> Machine:
    thread = Straight(0, 0, "t", steps)
    return Machine(MachineProgram((thread,), tuple(Word(f"w{k}", 0) for k in range(words)), ("line",)))


def test_a_spent_budget_is_no_success() -> None:
    machine = Machine(as_program(conversation()))
    for budget in (Budget(states=5), Budget(seconds=0.0), Budget(nbytes=100)):
        found = core.explore(machine, budget, **OFF)
        assert found.verdict == Verdict.UNKNOWN and "budget" in found.reason


def test_what_the_search_has_no_room_for_is_unknown() -> None:
    found = core.explore(straight(*(Step(Do.SIGNAL, 0, value) for value in range(1, 12))))
    assert found.verdict == Verdict.UNKNOWN and "write-backs" in found.reason
    found = core.explore(straight(*(Step(Do.STORE, 0, value) for value in range(300))))
    assert found.verdict == Verdict.UNKNOWN and "values" in found.reason


@with_rows(
    (straight(words=9).program, "words"),
    (straight(Step(Do.LOAD, 1)).program, "not one of"),
    (straight(Step(Do.FLUSH, -1)).program, "not one of"),
    (straight(Step(Do.LOAD, 0, register=0)).program, "register"),
    (MachineProgram((Straight(9, 0, "t", ()),), (), ()), "host"),
    (MachineProgram(tuple(Straight(0, 0, "t", ()) for _ in range(33)), (), ()), "threads"),
)
def test_a_program_that_is_too_large_or_broken_is_refused(program: MachineProgram, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        core.explore(Machine(program))
