"""Threads with branches and loops: what the search in C makes at once, renews and forgets loses nothing.

Random automata, searched reduced and unreduced (which test_search_core.py holds to the definition); the classic
protocols among the examples, likewise; and for each rule a program that a wrong rule would judge wrongly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cxlemu import userfile
from faults.explore import core, search
from faults.explore.check import judge_ends
from faults.explore.exhaustive import exhaustive
from faults.explore.programs import RankProtocol
from faults.explore.result import Budget, Exploration, FindingKind
from faults.machine.program import Do, MachineProgram, Step, Word
from faults.machine.steps import Machine, replay
from faults.verdict import Verdict
from tests.helpers.tiers import examples

EXAMPLES = Path(__file__).parents[2] / "examples" / "protocols"
CLASSIC = ("bakery", "peterson", "fast_mutex", "spsc_ring", "once", "granted_lock")
OFF = {"lazy": False, "checked_reads": False, "ample": False}
LITERAL, REDUCED = Budget(states=20_000, seconds=60), Budget(states=80_000, seconds=60)


@dataclass(frozen=True)
class Automaton:
    """``nexts`` holds, for each node, the next one after a load of 0, 1 and 2."""

    host: int
    rank: int
    steps: tuple[Step, ...]
    nexts: tuple[tuple[int, int, int], ...]
    first: int = 0

    @property
    def name(self) -> str:
        return f"rank {self.rank}"

    def step(self, node: int) -> Step | None:
        return self.steps[node] if node < len(self.steps) else None

    def next(self, node: int, value: int) -> int:
        return self.nexts[node][value]

    def failure(self, node: int) -> str:
        return f"fails at {node}"


def straight(rank: int, *steps: Step, host: int | None = None) -> Automaton:
    """Each end says what the last load saw."""
    nexts = [(k + 1, k + 1, k + 1) for k in range(len(steps))]
    nexts[-1] = (len(steps), len(steps) + 1, len(steps) + 2)
    return Automaton(rank if host is None else host, rank, steps, tuple(nexts))


def compare(program: MachineProgram) -> Exploration | None:
    """What all of them find; None where the program is too large to be searched unreduced."""
    machine = Machine(program)
    literal = core.explore(machine, LITERAL, past_hangs=True, **OFF)
    unreduced = core.explore(machine, REDUCED, past_hangs=True, ample=False)
    if Verdict.UNKNOWN in (literal.verdict, unreduced.verdict):
        return None
    reduced = core.explore(machine, REDUCED, past_hangs=True)
    kinds = [found.finding and found.finding.kind for found in (literal, unreduced, reduced)]
    assert (FindingKind.ASSERTION in kinds) == (set(kinds) == {FindingKind.ASSERTION})
    assert_replays(machine, reduced)
    if FindingKind.ASSERTION in kinds:  # it ends a search before all outcomes are there
        return reduced
    assert set(reduced.outcomes) == set(literal.outcomes)
    assert kinds[2] == kinds[0] or kinds == [
        None,
        FindingKind.LIVELOCK,
        FindingKind.LIVELOCK,
    ]  # which a literal search looks into
    return reduced


def assert_replays(machine: Machine, found: Exploration) -> None:
    if found.finding is not None:
        end = replay(machine, found.schedule)[-1]
        assert search.complaint(machine, end) or not machine.ended(end)
    for outcome, schedule in list(found.outcomes.items())[:3]:
        end = replay(machine, schedule)[-1]
        assert machine.ended(end) and search.outcome(end) == outcome


# -- random automata


LINES_OF_WORDS = ((0, 0, 1), (0, 1, 2), (0, 1, 1, 2), (0, 1))


def store(word: int, value: int) -> Step:
    return Step(Do.STORE, word, value)


@st.composite
def automata(draw: st.DrawFn, words: tuple[int, ...], rank: int, host: int, most: int) -> Automaton:
    """Half of its steps come in chains as protocols have them; one step in four goes back, or to the end."""
    word, value = st.integers(0, len(words) - 1), st.integers(0, 2)
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, most))):
        w, v = draw(word), draw(value)
        line = words[w]
        chains = {
            "read": [Step(Do.INVALIDATE, line), Step(Do.LOAD, w)],
            "publish": [store(w, v), Step(Do.FLUSH, line), Step(Do.FENCE)],
            "load": [Step(Do.LOAD, w)],
            "store": [store(w, v)],
            "signal": [Step(Do.SIGNAL, w, v)],
            "wait": [Step(Do.WAIT, w, max(v, 1))],
            "flush": [Step(Do.FLUSH, line)],
            "keep": [Step(Do.FLUSH_KEEP, line)],
            "fence": [Step(Do.FENCE)],
            "invalidate": [Step(Do.INVALIDATE, line)],
            "nt": [Step(Do.STORE_NT, w, v)],
            "crash": [Step(Do.CRASH)],
            "fail": [Step(Do.FAIL)],
        }
        common = ("read", "publish") * 3 + ("load", "store", "signal", "wait") * 2
        steps += chains[draw(st.sampled_from((*common, *chains)))]
    last = len(steps)
    onward = st.sampled_from([1, 1, 1, 1, 1, 1, 0, -1])

    def after(at: int, value: int) -> int:
        go = draw(onward)
        to = at + 1 if go == 1 else last if go == 0 else draw(st.integers(0, last))
        return to if to < last else last + 3 * at + value  # ends say what was seen

    nexts = []
    for at, step in enumerate(steps):
        if step.do == Do.LOAD:
            nexts.append((after(at, 0), after(at, 1), after(at, 2)))
        else:
            nexts.append((after(at, 0),) * 3)
    return Automaton(host, rank, tuple(steps), tuple(nexts))


@st.composite
def programs(draw: st.DrawFn) -> MachineProgram:
    words = draw(st.sampled_from(LINES_OF_WORDS))
    hosts = draw(st.sampled_from([(0, 1), (0, 1), (0, 1), (0, 1, 2), (0, 0, 1)]))
    most = 4 if len(hosts) == 2 else 2
    threads = tuple(draw(automata(words, rank, host, most)) for rank, host in enumerate(hosts))
    lines = tuple(f"line {line}" for line in range(max(words) + 1))
    return MachineProgram(threads, tuple(Word(f"w{k}", line) for k, line in enumerate(words)), lines)


@examples(150)
@given(programs())
def test_random_automata_are_judged_as_unreduced(program: MachineProgram) -> None:
    assume(compare(program) is not None)


# -- protocols


def load(name: str, which: str) -> RankProtocol:
    found = userfile.load(f"{EXAMPLES / name}.py:{which}", "")[0]
    assert isinstance(found, RankProtocol)
    return found


@pytest.mark.parametrize("name", CLASSIC)
def test_classic_protocols_are_judged_as_unreduced_in_far_fewer_states(name: str) -> None:
    for which in ("fixed", "broken"):
        tested = load(name, which)
        machine = Machine(tested.program(2))
        unreduced, reduced = (core.explore(machine, ample=reduces, past_hangs=True) for reduces in (False, True))
        assert set(unreduced.outcomes) == set(reduced.outcomes)
        verdicts = [judge_ends(tested, machine, found).verdict for found in (unreduced, reduced)]
        assert verdicts == [Verdict.OK if which == "fixed" else Verdict.VIOLATION] * 2
        if which == "fixed":
            assert reduced.states * 6 < unreduced.states
            assert reduced.reductions == ("lazy", "checked_reads", "free_steps", "renewal", "retirement")


def test_a_bakery_of_three_ranks_is_within_a_thousandth_of_the_budget() -> None:
    """It was 12,095,811 states and 1.3 GB."""
    tested = load("bakery", "fixed")
    machine = Machine(tested.program(3))
    found = judge_ends(tested, machine, exhaustive(machine, Budget(), "native"))
    assert found.verdict == Verdict.OK
    assert (found.states, len(found.outcomes)) == (10_271, 1)
    assert found.nbytes < 4 << 20
    again = core.explore(machine)
    assert (again.states, again.transitions, again.nbytes) == (found.states, found.transitions, found.nbytes)


# -- one program for each rule


def search_all(*threads: Automaton, lines: tuple[int, ...] = (0, 1)) -> Exploration:
    words = tuple(Word(f"w{k}", line) for k, line in enumerate(lines))
    found = compare(MachineProgram(threads, words, tuple(f"line {line}" for line in sorted(set(lines)))))
    assert found is not None
    return found


def ends(found: Exploration) -> set[tuple[int, ...]]:
    return {outcome.ends for outcome in found.outcomes}


FENCE = Step(Do.FENCE)


def test_a_copy_that_is_looked_at_again_is_not_forgotten() -> None:
    """Loaded, then another line is looked at anew: the second load may still see the old copy."""
    reader = straight(
        1, Step(Do.LOAD, 0), Step(Do.INVALIDATE, 1), Step(Do.LOAD, 1), Step(Do.INVALIDATE, 1), Step(Do.LOAD, 0)
    )
    found = search_all(straight(0, store(0, 1), Step(Do.FLUSH, 0), FENCE, Step(Do.SIGNAL, 1, 1), FENCE), reader)
    assert ends(found) == {(5, 5), (5, 6)}
    assert found.rounds > 1  # that it would not be looked at was taken for granted first


def test_a_store_to_a_dirty_line_waits_its_turn() -> None:
    """Evicted between the stores, the first one is seen."""
    found = search_all(
        straight(0, store(0, 1), store(0, 2), Step(Do.FLUSH, 0), FENCE),
        straight(1, Step(Do.INVALIDATE, 0), Step(Do.LOAD, 0)),
    )
    assert ends(found) == {(4, 2), (4, 3), (4, 4)}


def test_a_store_to_part_of_a_line_that_others_write_waits_its_turn() -> None:
    """What it was stored onto is lost, or is not."""
    found = search_all(
        straight(0, store(0, 1), Step(Do.FLUSH, 0), FENCE),
        straight(1, store(1, 1), Step(Do.FLUSH, 0), FENCE),
        lines=(0, 0),
    )
    assert {outcome.memory for outcome in found.outcomes} == {(0, 1), (1, 0), (1, 1)}


def test_a_wait_that_comes_too_late_hangs() -> None:
    """The flag rises and falls again: passing at once is one way, not the only one."""
    flag = (store(0, 1), Step(Do.FLUSH, 0), FENCE, store(0, 0), Step(Do.FLUSH, 0), FENCE)
    found = search_all(straight(0, *flag), straight(1, Step(Do.WAIT, 0, 1)))
    assert found.finding is not None and found.outcomes


def test_two_reads_see_versions_in_their_order() -> None:
    """IRIW's half: the reader of both lines sees the second old only if it comes before."""
    found = search_all(
        straight(0, store(0, 1), Step(Do.FLUSH, 0), FENCE, store(1, 1), Step(Do.FLUSH, 1), FENCE),
        Automaton(
            1,
            1,
            (Step(Do.INVALIDATE, 1), Step(Do.LOAD, 1), Step(Do.INVALIDATE, 0), Step(Do.LOAD, 0)),
            ((1,) * 3, (4, 2, 2), (3,) * 3, (5, 6, 7)),
        ),
    )
    assert ends(found) == {(6, 4), (6, 6)}


@pytest.mark.parametrize("invalidates", [False, True])
def test_a_loop_may_read_its_copy_for_ever(invalidates: bool) -> None:
    """Renewed, the copy would be new one day."""
    looks: Callable[[int], Step] = lambda line: Step(Do.INVALIDATE if invalidates else Do.FLUSH_KEEP, line)  # noqa: E731
    reader = Automaton(1, 1, (Step(Do.LOAD, 0), looks(0)), ((1, 2, 2), (0, 0, 0)))
    found = search_all(straight(0, store(0, 1), Step(Do.FLUSH, 0), FENCE), reader)
    assert (found.finding is None) == invalidates


def test_ranks_that_share_a_host_see_each_others_copies() -> None:
    """Nothing is taken for granted there: rank 1 reads what rank 0 fetched."""
    found = search_all(
        straight(0, Step(Do.LOAD, 0), host=0),
        straight(1, Step(Do.INVALIDATE, 1), Step(Do.LOAD, 1), Step(Do.LOAD, 0), host=0),
        straight(2, store(0, 1), Step(Do.FLUSH, 0), FENCE, Step(Do.SIGNAL, 1, 1), FENCE, host=1),
    )
    assert len(found.outcomes) == 4
