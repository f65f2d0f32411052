"""The litmus tests in tests/faults/litmus, exhaustively; a sentence taken out of the memory model breaks one."""

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cxlemu.errors import ConfigError
from faults.explore import core
from faults.explore.result import Budget
from faults.explore.search import explore
from faults.litmus.condition import Condition
from faults.litmus.language import Litmus, read
from faults.litmus.run import LitmusResult, run
from faults.machine.program import Do, Step
from faults.machine.schedule import Act, MachineMove
from faults.machine.state import MachineState, put, put2
from faults.machine.steps import Machine, replay
from faults.verdict import Verdict
from tests.faults.test_litmus_shadow import documented
from tests.helpers.tables import with_rows

FILES = sorted((Path(__file__).parent / "litmus").glob("*.yaml"))
BUDGET = Budget(states=5_000_000, seconds=60)


def litmus(name: str) -> Litmus:
    return read(Path(__file__).parent / "litmus" / f"{name}.yaml")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_outcome_is_as_expected(file: Path) -> None:
    test = read(file)
    result = run(test, BUDGET, "native")
    assert test.name == file.stem
    assert result.complete
    assert [e.condition.text for e in test.expectations if result.verdict_of(e) != Verdict.OK] == []
    assert result.verdict == Verdict.OK


def test_verdicts_work_out_no_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search in C keeps paths; to turn one into the definition's moves takes longer than to search."""
    monkeypatch.setattr(core, "concrete", lambda *_: pytest.fail("a witness was worked out"))
    result = run(litmus("MP-nofence"), BUDGET, "native")
    assert result.verdict == Verdict.OK
    assert all(result.sees(e.condition) == e.allowed for e in result.litmus.expectations)
    assert result.outcomes()


def test_every_test_of_the_documentation_is_there_and_expects_the_same() -> None:
    tests = {file.stem: read(file) for file in FILES}
    assert documented().keys() <= tests.keys()
    for name, (outcome, _) in documented().items():
        kinds = {e.allowed for e in tests[name].expectations}
        assert (outcome == "allowed") in kinds, name
    assert len(tests) >= len(documented()) + 25


# Each of these machines lacks one sentence of docs/memory-model.md, or has one too many.


class FenceWaitsForNothing(Machine):
    def _fenced(self, s: MachineState, host: int, rank: int, line: int) -> bool:
        return True


class FlushMarksOnlyWhatItPosts(Machine):
    def _flush(self, s: MachineState, t: int, line: int, *, keep: bool = False) -> MachineState:
        flushed = super()._flush(s, t, line, keep=keep)
        host = self.program.threads[t].host
        before = s.posted[host][line]
        posted = (*before, *flushed.posted[host][line][len(before) :])
        return flushed._replace(posted=put2(flushed.posted, host, line, posted))


class FenceIsTheHosts(Machine):
    def _fenced(self, s: MachineState, host: int, rank: int, line: int) -> bool:
        return super()._fenced(s, host, rank, line) and not s.posted[host][line]


class FlushDropsAtOnce(Machine):
    def _flush(self, s: MachineState, t: int, line: int, *, keep: bool = False) -> MachineState:
        s = super()._flush(s, t, line, keep=keep)
        return s if keep else self._absent(s, self.program.threads[t].host, line)


class FlushKeepsTheLine(Machine):
    def _flush(self, s: MachineState, t: int, line: int, *, keep: bool = False) -> MachineState:
        return super()._flush(s, t, line, keep=True)


class PostedArriveNewestFirst(Machine):
    def apply(self, s: MachineState, move: MachineMove) -> MachineState:
        if move.act == Act.LAND:
            turned = tuple(reversed(s.posted[move.who][move.line]))
            s = s._replace(posted=put2(s.posted, move.who, move.line, turned))
        return super().apply(s, move)


class FetchTakesThePool(Machine):
    def _fetch(self, s: MachineState, host: int, line: int) -> MachineState:
        there = s._replace(posted=put2(s.posted, host, line, ()))
        return super()._fetch(there, host, line)._replace(posted=s.posted)


class WriteBackOfOneWord(Machine):
    """As if bytes and not lines travelled: what was not changed since the fetch is left alone."""

    def _arrive(self, s: MachineState, line: int, values: tuple[int, ...]) -> MachineState:
        for word, value in zip(self.words[line], values, strict=True):
            if value:
                s = s._replace(pool=put(s.pool, word, value))
        return s


class InvalidateOnlyDrops(Machine):
    def _step(self, s: MachineState, t: int) -> MachineState:
        step = self._at(s, t)
        if step.do == Do.INVALIDATE:
            s = self._absent(s, self.program.threads[t].host, step.place)
        return super()._step(s, t)


class InvalidateFencesAll(Machine):
    def _can(self, s: MachineState, t: int, step: Step) -> bool:
        return super()._can(s, t, Step(Do.FENCE) if step.do == Do.INVALIDATE and s.begun[t] else step)


class SignalFences(Machine):
    def _can(self, s: MachineState, t: int, step: Step) -> bool:
        return super()._can(s, t, step) and (step.do != Do.SIGNAL or super()._can(s, t, Step(Do.FENCE)))


class SignalIsNotPushed(Machine):
    def _flush(self, s: MachineState, t: int, line: int, *, keep: bool = False) -> MachineState:
        step = self.step_of(s, t)
        return s if step is not None and step.do == Do.SIGNAL else super()._flush(s, t, line, keep=keep)


class WaitLooksIntoThePoolOnly(Machine):
    def _can(self, s: MachineState, t: int, step: Step) -> bool:
        return super()._can(s, t, step) and (step.do != Do.WAIT or not s.begun[t] or s.pool[step.place] >= step.value)


class FenceForgetsNonTemporalStores(Machine):
    def _can(self, s: MachineState, t: int, step: Step) -> bool:
        without = s._replace(nt=tuple(((),) * len(lines) for lines in s.nt)) if step.do == Do.FENCE else s
        return super()._can(without, t, step)


class StoreOvertakesNonTemporalStores(Machine):
    def _can(self, s: MachineState, t: int, step: Step) -> bool:
        return step.do == Do.STORE or super()._can(s, t, step)


class NonTemporalStoresAreTheHosts(Machine):
    def visible(self, s: MachineState, t: int, word: int) -> int:
        ranks = {thread.rank for thread in self.program.threads if thread.host == self.program.threads[t].host}
        of_all = (value for rank in ranks for lines in s.nt[rank] for stored, value in lines if stored == word)
        return next(of_all, super().visible(s, t, word))


class NonTemporalStoresAreInvisible(Machine):
    def visible(self, s: MachineState, t: int, word: int) -> int:
        return super().visible(s._replace(nt=tuple(((),) * len(lines) for lines in s.nt)), t, word)


class NonTemporalStoreLeavesTheLineDirty(Machine):
    def _store_nt(self, s: MachineState, t: int, word: int, value: int) -> MachineState:
        thread, line = self.program.threads[t], self.program.words[word].line
        return s._replace(nt=put2(s.nt, thread.rank, line, (*s.nt[thread.rank][line], (word, value))))

    def _land_nt(self, s: MachineState, rank: int, line: int) -> MachineState:
        cached = s.caches[self._host(rank)][line]
        return super()._land_nt(s, rank, line)._replace(caches=put2(s.caches, self._host(rank), line, cached))


class CrashLosesNothingPosted(Machine):
    def enabled(self, s: MachineState) -> list[MachineMove]:
        return [move for move in super().enabled(s) if move.act != Act.LOSE]


class CrashOfOneRank(Machine):
    def _crash(self, s: MachineState, host: int) -> MachineState:
        after = super()._crash(s, host)
        others = [t for t in range(len(s.nodes)) if (step := self.step_of(s, t)) is None or step.do != Do.CRASH]
        nodes = tuple(node if t in others else after.nodes[t] for t, node in enumerate(s.nodes))
        return after._replace(nodes=nodes, posted=s.posted)


def without(*acts: Act) -> type[Machine]:
    class Kinder(Machine):
        def enabled(self, s: MachineState) -> list[MachineMove]:
            return [move for move in super().enabled(s) if move.act not in acts]

    return Kinder


@with_rows(
    (FenceWaitsForNothing, "MP"),
    (FlushMarksOnlyWhatItPosts, "ONEHOST-pending"),
    (FenceIsTheHosts, "FENCESCOPE"),
    (FlushDropsAtOnce, "FLUSHREAD"),
    (FlushKeepsTheLine, "FLUSHREAD-fenced"),
    (PostedArriveNewestFirst, "OWNFLUSH"),
    (FetchTakesThePool, "OWNPENDING"),
    (WriteBackOfOneWord, "FALSESHARE"),
    (InvalidateOnlyDrops, "MP-invpublishes"),
    (InvalidateFencesAll, "MP-invotherline"),
    (SignalFences, "MP-nofence"),
    (SignalIsNotPushed, "SIGNAL-unfenced"),
    (WaitLooksIntoThePoolOnly, "ONEHOST-wait"),
    (FenceForgetsNonTemporalStores, "MP-nt"),
    (StoreOvertakesNonTemporalStores, "NT-thenstore"),
    (NonTemporalStoresAreTheHosts, "ONEHOST-nt"),
    (NonTemporalStoresAreInvisible, "NT-own"),
    (NonTemporalStoreLeavesTheLineDirty, "NT-afterstore"),
    (CrashLosesNothingPosted, "CRASH-posted-lost"),
    (CrashOfOneRank, "CRASH-neighbour"),
    (without(Act.PREFETCH), "MP-noinv-prefetch"),
    (without(Act.EVICT), "SAMELINE-flagfirst"),
    (without(Act.DROP), "CoRR-noinv"),
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_sentence_of_the_model_that_is_missing_is_noticed(machine: type[Machine], seen_by: str) -> None:
    test = litmus(seen_by)
    assert run(test, BUDGET, "reference").verdict == Verdict.OK
    assert LitmusResult(test, explore(machine(test.program), BUDGET, past_hangs=True)).verdict == Verdict.VIOLATION


MP = """
name: MP
hosts:
  A: [store x 1, flush x, fence, signal f 1]
  B: [wait f 1, invalidate x, load x r]
forbidden: [B.r == 0]
"""


@with_rows(
    ("", "", ""),
    ("store x 1", "stroe x 1", "MP.yaml:4: hosts.A[0] 'stroe x 1' is not a step; its first word is one of store, "),
    ("store x 1", "store x", "MP.yaml:4: hosts.A[0] 'store x' should be store WORD VALUE"),
    ("store x 1", "store x -1", "'-1' should be a number from 0 to 1000000"),
    ("store x 1", "store x 99999999", "should be a number from 0 to 1000000"),
    ("store x 1", "store 1x 1", "'1x' should be a name such as x or flag_1"),
    ("store x 1", "store and 1", "'and' should be a name"),
    ("load x r", "load x 9", "'9' should be a name"),
    ("load x r", "load x r, {a: b}", "MP.yaml:5: hosts.B[3] {'a': 'b'} is not a step"),
    ("[store x 1, flush x, fence, signal f 1]", "7", "MP.yaml:4: hosts.A should be a list of at most 40 steps"),
    ("[store x 1, flush x, fence, signal f 1]", str(["fence"] * 41), "should be a list of at most 40 steps"),
    ("A:", "A-1:", "'A-1' should be a name"),
    ("name: MP", "", "MP.yaml:1: name is missing or empty"),
    ("name: MP", "name: 7", "MP.yaml:2: name is 7 but should be text"),
    ("name: MP", "nmae: MP", "MP.yaml:2: nmae is not a known key; write one of name, doc, lines"),
    ("name: MP", "name: MP\nhangs: maybe", "hangs is 'maybe' but should be allowed or forbidden"),
    ("name: MP", "name: MP\nlines: {L: x}", "lines.L is 'x' but should be a list of words such as [x, y]"),
    ("name: MP", "name: MP\nlines: {L: [x, x]}", "lines.L[1] x appears in two places"),
    ("name: MP", "name: MP\ninitial: {y: 1}", "MP.yaml:3: initial.y is a word that no step uses"),
    ("name: MP", "name: MP\ninitial: {x: one}", "initial.x is 'one' but should be a number from 0 to 1000000"),
    ("name: MP", "name: MP\ninitial: {x: 1000001}", "initial.x is 1000001 but should be a number from 0 to"),
    ("forbidden: [B.r == 0]", "", "no outcome is expected: write allowed, forbidden or hangs"),
    ("B.r == 0", "B.r = 0", "MP.yaml:6: forbidden[0] 'B.r = 0' is not a condition such as"),
    ("B.r == 0", "B.q == 0", "there is no B.q; there are B.r, f, x"),
    ("B.r == 0", "B.r", "it takes comparisons, and, or, not"),
    ("B.r == 0", "B.r == 'a'", "it compares registers, words and whole numbers"),
    ("B.r == 0", "__import__('os').abort() == 0", "it compares registers, words and whole numbers"),
    ("B.r == 0", "x == 0" + " and x == 0" * 50, "is longer than 500 characters"),
    ("[B.r == 0]", "[[]]", "forbidden[0] [] is not a condition"),
    ("forbidden: [B.r == 0]", "forbidden: B.r == 0", "forbidden is 'B.r == 0' but should be a list"),
    ("A: [", "A: {p: [load y r], q: [load y r]}\n  C: [", "A.p also loads A.r; give it another name"),
    ("A: [", "".join(f"H{n}: []\n  " for n in range(7)) + "A: [", "is one rank too many: at most 8"),
    ("A: [", f"C: [{', '.join(f'flush w{n}' for n in range(17))}]\n  A: [", "is one word too many: at most 16"),
    ("[B.r == 0]", "*somewhere", "MP.yaml:6: not plain YAML: aliases are not allowed"),
)
def test_what_is_no_litmus_test_is_said_in_one_sentence(old: str, new: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "MP.yaml"
    file.write_text(MP.replace(old, new, 1) if old else MP)
    if not says:
        assert read(file).expectations
        return
    with pytest.raises(ConfigError) as raised:
        read(file)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


NAMES = ("A.r", "x", "y")
numbers = st.one_of(st.sampled_from(NAMES), st.integers(0, 3).map(str))
comparisons = st.builds(" ".join, st.tuples(numbers, st.sampled_from(("==", "!=", "<", "<=", ">", ">=")), numbers))
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        inner.map(lambda c: f"not ({c})"),
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
    ),
    max_leaves=6,
)


@given(conditions, st.tuples(*[st.integers(0, 3)] * 3))
def test_a_condition_holds_where_python_says_so(text: str, values: tuple[int, int, int]) -> None:
    assume(any(name in text for name in NAMES))
    here = dict(zip(NAMES, values, strict=True))
    expected = eval(text.replace("A.r", "A_r"), {}, {name.replace(".", "_"): value for name, value in here.items()})
    try:
        assert Condition.parse(text, NAMES).holds(here) is expected
    except ValueError as refused:
        assert f"it is {str(expected).lower()} at every end" in str(refused)


@given(st.text(alphabet="Axy.()[]{}=<>!'\"0123 andornotlambda:,+-*\n#", max_size=60))
def test_any_other_text_is_refused(text: str) -> None:
    try:
        assert Condition.parse(text, NAMES).holds(dict.fromkeys(NAMES, 0)) in (True, False)
    except ValueError as error:
        assert str(error)


@with_rows(
    ("A.r == 1 and A.r == 0", "false"),
    ("x < 1 and x > 0", "false"),
    ("A.r < x and x < y and y < A.r", "false"),
    ("A.r < x < y < 2", "false"),
    ("A.r == A.r", "true"),
    ("x >= 0", "true"),
    ("not x == 1 or x == 1", "true"),
)
def test_a_condition_that_is_the_same_at_every_end_is_refused(text: str, truth: str) -> None:
    with pytest.raises(ValueError, match=f"it is {truth} at every end"):
        Condition.parse(text, ["A.r", "x", "y"])


@pytest.mark.parametrize("text", ["A.r < x < y < 3", "x > 999999", "A.r == x", "x == 1 and y == 1 and A.r == 1"])
def test_a_condition_that_can_be_both_is_none_of_these(text: str) -> None:
    assert Condition.parse(text, ["A.r", "x", "y"]).text == text


def test_the_pools_end_is_when_everything_posted_has_arrived() -> None:
    """x = 1 is posted when the only thread ends; the outcome has it, and a dirty y is there or was evicted."""
    result = run(litmus("OWNPENDING"), BUDGET, "reference")
    assert {values["x"] for values in result.outcomes()} == {1}
    assert {values["x"] for values in run(litmus("CoRW"), BUDGET, "reference").outcomes()} == {0, 1}


@pytest.mark.parametrize("name", ["MP-nofence", "FALSESHARE", "CRASH-torn", "NT-order", "FENCESCOPE"])
def test_each_witness_replays_to_its_outcome_and_is_shown_as_such(name: str) -> None:
    test = litmus(name)
    result = run(test, BUDGET, "reference")
    machine = Machine(test.program)
    for outcome, schedule in result.exploration.outcomes.items():
        end = replay(machine, schedule)[-1]
        assert machine.ended(end)
        assert (end.registers, end.pool, end.nodes) == outcome


def test_a_spent_budget_is_unknown_unless_what_was_seen_decides() -> None:
    assert run(litmus("SB"), Budget(states=100), "reference").verdict == Verdict.UNKNOWN
    assert run(litmus("SB"), Budget(seconds=1e-9), "reference").verdict == Verdict.UNKNOWN
    wrong = litmus("MP-noflush")
    late = max(result.states for result in [run(wrong, BUDGET, "reference").exploration])
    short = run(wrong, Budget(states=late - 1), "reference")
    assert not short.complete
    assert [short.verdict_of(e) for e in short.litmus.expectations] == [Verdict.OK, Verdict.OK]
