"""How an algorithm folds is declared, never guessed from its name; an order of its own is the same on every rank."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from collectives.algorithms.catalog import SHIPPED_NAMES, build, load_algorithm, load_plan
from collectives.builder import AGGREGATE, Builder
from collectives.builder.recipes import Recipe, algorithm
from collectives.checking.symbolic import verify
from collectives.checking.symbols import Fold, text
from cxlemu.errors import ArgumentError, ContractError
from cxlemu.plan import Call, Op, Plan, RedOp, encode
from cxlemu.plan.file import save
from faults.explore.plans import explore_plan, tiny_layout
from faults.explore.result import FindingKind
from faults.lockstep.counterexample import CallSequence
from faults.lockstep.counterexample import CounterexampleKind as Shows
from faults.lockstep.orders import round_robin
from faults.prove import prove
from faults.verdict import Verdict
from tests.helpers.commands import cxlemu
from tests.helpers.tables import with_rows

EVERY_RANK_ALIKE, OTHER_ON_EACH_RANK = (1, 2, 0), None


def all_reduce(
    order: Sequence[int] | None, fold_order: str, name: str = "mine", dtype: str = "f32", op: str = "sum"
) -> Plan:
    """Everyone folds in this order, or beginning with itself."""

    def folds(b: Builder) -> None:
        for [chunk] in b.rounds(b.nbytes, spread="cards"):
            b.publish(chunk, b.input(chunk.offset), overwritten=True)
            b.fold(b.output(chunk.offset), chunk, b.input(chunk.offset))

    call = Call("all_reduce", name, 3, 128, dtype, op)
    layout = tiny_layout(3, lines=6)
    plan = build(Recipe("all_reduce", name, folds, AGGREGATE, fold_order, source="mine.py:mine"), layout, call)
    for rank in range(3):
        turned = order or tuple((rank + k) % 3 for k in range(3))
        plan = with_fold(plan, rank, turned)
    return plan


def with_fold(plan: Plan, rank: int, order: Sequence[int]) -> Plan:
    """The rank's fold with its three sources in another order."""
    part = plan.part(rank)
    [main] = part.streams
    changed = list(main.instructions)
    [at] = [k for k, i in enumerate(changed) if i.op == Op.REDUCE]
    sources = (changed[at].a, changed[at].b, changed[at].c)
    a, b, c = (sources[k] for k in order)
    changed[at] = changed[at]._replace(a=a, b=b, c=c)
    return plan.with_part(dataclasses.replace(part, streams=(dataclasses.replace(main, records=encode(changed)),)))


@pytest.mark.parametrize("name", ["mine", "ring", "tree", "chain"])
@pytest.mark.parametrize("fold_order", ["rank", "uniform"])
def test_ranks_that_fold_differently_are_found_whatever_the_algorithm_is_called(name: str, fold_order: str) -> None:
    plan = all_reduce(OTHER_ON_EACH_RANK, fold_order, name)
    with pytest.raises(ContractError, match=r"of rank 1's output are rank 1\[0\] \+ rank 2\[0\] \+ rank 0\[0\]"):
        verify(plan)
    proof = prove(plan)
    assert proof.violation is not None and proof.violation.rule == "fold_order"
    found = explore_plan(plan)
    assert found.finding is not None and found.finding.kind is FindingKind.FINAL


@pytest.mark.parametrize("fold_order", ["rank", "uniform"])
def test_an_order_of_its_own_is_right_where_it_is_declared_and_shared(fold_order: str) -> None:
    plan = all_reduce(EVERY_RANK_ALIKE, fold_order)
    right = Verdict.OK if fold_order == "uniform" else Verdict.VIOLATION
    assert prove(plan).verdict is right
    assert explore_plan(plan).verdict is right


def test_one_rank_that_folds_otherwise_in_one_round_of_many_is_found() -> None:
    alike = all_reduce(EVERY_RANK_ALIKE, "uniform")
    assert prove(alike).verdict is Verdict.OK
    proof = prove(with_fold(alike, 2, (2, 0, 1)))
    assert proof.violation is not None and "but rank 0 has folded them as" in proof.reason


@with_rows(
    ("f32", "sum", True), ("f64", "prod", True), ("i32", "max", True), ("f32", "max", False), ("bf16", "min", False)
)
@pytest.mark.parametrize("fold_order", ["rank", "uniform"])
def test_which_operand_comes_first_matters_where_it_has_other_bits(
    dtype: str, op: str, right: bool, fold_order: str
) -> None:
    """Of two zeros min and max of floats take the later one; sums and products are the same either way."""
    plan = with_fold(all_reduce((0, 1, 2), fold_order, dtype=dtype, op=op), 1, (1, 0, 2))
    verdict = Verdict.OK if right else Verdict.VIOLATION
    assert prove(plan).verdict is verdict
    assert explore_plan(plan).verdict is verdict


@pytest.mark.parametrize("change", [{"redop": RedOp.MAX}, {"dtype": 0}])
def test_folding_with_another_operation_or_dtype_breaks_the_contract(change: dict[str, int]) -> None:
    plan = all_reduce((0, 1, 2), "rank")
    part = plan.part(1)
    records = part.streams[0].records.copy()
    reduces = records["op"] == Op.REDUCE
    for name, value in change.items():
        records[name][reduces] = value
    wrong = plan.with_part(dataclasses.replace(part, streams=(dataclasses.replace(part.streams[0], records=records),)))
    with pytest.raises(ContractError, match="rank 1 folds"):
        verify(wrong)
    proof = prove(wrong)
    assert proof.violation is not None and proof.violation.rule == "contract"


def test_folding_halves_of_two_elements_breaks_the_contract() -> None:
    """Every byte has the right contributions; the elements that are added begin in the middle of an f64."""

    def folds(b: Builder) -> None:
        for [chunk] in b.rounds(b.nbytes, spread="cards"):
            b.publish(chunk, b.input(chunk.offset))
            middle = b._scratch(chunk.nbytes)
            for at, nbytes in ((4, 8), (12, 4), (0, 4)):  # turned by half an element
                b._emit("retrieve", Op.COPY, dst=middle.at((at - 4) % 16), a=b.input(at), nbytes=min(nbytes, 16 - at))
            b._emit("retrieve", Op.REDUCE, dst=middle, sources=[middle, middle], nbytes=16)

    recipe = Recipe("all_reduce", "mine", folds, AGGREGATE, source="mine.py:mine")
    plan = build(recipe, tiny_layout(2), Call("all_reduce", "mine", 2, 16, "f64", "sum"))
    with pytest.raises(ContractError, match="folds parts of two elements as one"):
        verify(plan)
    proof = prove(plan)
    assert proof.violation is not None and "folds parts of two elements as one" in proof.reason


# --- executions and tools --------------------------------------------------------------------------------------------


@with_rows(
    ((0, 1, 2), "rank", Shows.NOTHING),
    (EVERY_RANK_ALIKE, "rank", Shows.WRONG),
    (EVERY_RANK_ALIKE, "uniform", Shows.NOTHING),
    (OTHER_ON_EACH_RANK, "uniform", Shows.WRONG),
)
@pytest.mark.parametrize(("dtype", "op"), [("f32", "sum"), ("f64", "prod")])
def test_any_execution_shows_a_wrong_order(
    order: Sequence[int] | None, fold_order: str, kind: Shows, dtype: str, op: str
) -> None:
    plan = all_reduce(order, fold_order, dtype=dtype, op=op)
    assert CallSequence.of([plan, plan]).run(round_robin()).kind is kind


FOLDING = """
from collectives.builder.recipes import algorithm
from cxlemu.plan import Op

def folding(b, order):
    for chunks in b.rounds(b.nbytes, spread="cards"):
        for chunk in chunks:
            b.publish(chunk, b.input(chunk.offset), overwritten=True)
            b.fold(b.output(chunk.offset), chunk, b.input(chunk.offset))
            done = b._instructions("retrieve")
            at = max(k for k, i in enumerate(done) if i.op == Op.REDUCE)
            sources = done[at].a, done[at].b, done[at].c
            done[at] = done[at]._replace(**{name: sources[k] for name, k in zip("abc", order)})

@algorithm("all_reduce")
def last_first(b): folding(b, (2, 1, 0))

@algorithm("all_reduce", fold_order="uniform")
def own_order(b): folding(b, (2, 1, 0))

@algorithm("all_reduce", fold_order="uniform")
def other_on_each(b): folding(b, [(0, 1, 2), (2, 1, 0), (0, 2, 1)][b.rank])
"""
RUN = ["run", "-n", "3", "-b", "1K", "-e", "1K", "--iters", "2", "--launch", "threads"]
SIMULATE = ["simulate", "all_reduce", "-c", "titan2-6xcz120", "-n", "3", "-b", "1K", "-e", "1K", "--check"]


@pytest.mark.each_value_once
@pytest.mark.parametrize(("name", "wrong"), [("last_first", True), ("own_order", False), ("other_on_each", True)])
@pytest.mark.parametrize(
    "arguments", [RUN, [*RUN, "--engine", "reference"], SIMULATE], ids=["native", "reference", "virtual"]
)
def test_tools_hold_an_algorithm_to_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], name: str, wrong: bool
) -> None:
    (tmp_path / "folding.py").write_text(FOLDING)
    cxlemu(*arguments, "--algorithm", f"{tmp_path / 'folding.py'}:{name}", code=int(wrong))


@pytest.mark.parametrize("name", ["last_first", "other_on_each"])
def test_prove_shows_both_folds_at_once_and_looks_for_no_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("faults.lockstep.counterexample.witness", lambda *arguments, **options: pytest.fail("searched"))
    (tmp_path / "folding.py").write_text(FOLDING)
    narrow = ["-n", "3", "-b", "1K", "-d", "f32", "-o", "sum", "--out-of-place"]
    result = cxlemu("prove", "--algorithm", f"{tmp_path / 'folding.py'}:{name}", *narrow, code=1)
    told = " ".join(result.output.split())
    assert "rank 2[0] + rank 1[0] + rank 0[0]" in told, told
    other = "but rank 0 has folded them as rank 0[0] + rank 1[0] + rank 2[0]"
    assert (other if name == "other_on_each" else "the contract says rank 0[0] + rank 1[0] + rank 2[0]") in told


@with_rows(
    ("sum", 1, "rank 0[0] + (rank 1[0] + rank 2[0])"),
    ("avg", 3, "(rank 0[0] + (rank 1[0] + rank 2[0])) / 3"),
    ("max", 1, "max(rank 0[0], max(rank 1[0], rank 2[0]))"),
    ("prod", 1, "rank 0[0] * (rank 1[0] * rank 2[0])"),
    ("bor", 1, "rank 0[0] | (rank 1[0] | rank 2[0])"),
)
def test_a_fold_is_shown_with_its_operation(op: str, divisor: int, shown: str) -> None:
    assert text(Fold(((0, 0), Fold(((1, 0), (2, 0)))), divisor), op) == shown
    assert text(Fold(((0, 8),)), op) == "rank 0[8]"


def test_a_violation_of_max_shows_max(tmp_path: Path) -> None:
    (tmp_path / "folding.py").write_text(FOLDING)
    narrow = ["-n", "3", "-b", "1K", "-d", "f32", "-o", "max", "--out-of-place"]
    result = cxlemu("prove", "--algorithm", f"{tmp_path / 'folding.py'}:last_first", *narrow)
    assert "max(rank 2[0], rank 1[0], rank 0[0]), the contract says" in " ".join(result.output.split()), result.output


# --- declarations and names --------------------------------------------------------------------------------------

USERS = """
from collectives.builder.recipes import algorithm

@algorithm("all_reduce", fold_order="uniform")
def ring(b): pass

@algorithm("all_reduce", name="tree")
def taken(b): pass

@algorithm("all_reduce", name="own")
def named(b): pass

@algorithm("all_reduce")
def plain(b): pass
"""


def test_a_users_algorithm_is_never_taken_for_a_shipped_one(tmp_path: Path) -> None:
    file = tmp_path / "my algorithms.py"
    file.write_text(USERS)
    names = {function: load_algorithm(f"{file}:{function}").name for function in ("ring", "named", "plain")}
    assert names == {"ring": "my_algorithms.ring", "named": "own", "plain": "plain"}
    assert not SHIPPED_NAMES & set(names.values())
    with pytest.raises(ArgumentError, match="'tree' names a shipped variant"):
        load_algorithm(f"{file}:taken")
    assert load_algorithm(f"{file}:ring").fold_order == "uniform"


def test_an_order_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"unknown fold order 'any': choose from rank, uniform"):
        algorithm("all_reduce", fold_order="any")


def test_a_saved_plan_keeps_the_declaration(tmp_path: Path) -> None:
    plan = all_reduce(EVERY_RANK_ALIKE, "uniform")
    save(plan, tmp_path / "mine.plan")
    assert load_plan(tmp_path / "mine.plan").call.fold_order == "uniform"
