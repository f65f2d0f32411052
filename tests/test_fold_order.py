"""How an algorithm folds is declared, never guessed from its name; an order of its own is the same on every rank."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from collectives.builder import AGGREGATE, Builder
from collectives.catalog import SHIPPED_NAMES, build, load_algorithm
from collectives.recipes import Recipe, algorithm
from collectives.symbolic import verify
from cxlemu.errors import ArgumentError, ContractError
from cxlemu.plan import Call, Op, Plan, RedOp, encode
from cxlemu.plan.file import load, save
from faults.explore.plans import explore_plan, tiny_layout
from faults.explore.result import Kind
from faults.prove import prove
from faults.verdict import Verdict

EVERY_RANK_ALIKE, OTHER_ON_EACH_RANK = (1, 2, 0), None


def all_reduce(order: Sequence[int] | None, fold_order: str, name: str = "mine", dtype: str = "f32") -> Plan:
    """Everyone folds in this order, or beginning with itself."""

    def folds(b: Builder) -> None:
        for [chunk] in b.rounds(b.nbytes, spread="cards"):
            b.publish(chunk, b.input(chunk.offset), overwritten=True)
            b.fold(b.output(chunk.offset), chunk, b.input(chunk.offset))

    call = Call("all_reduce", name, 3, 128, dtype, "sum")
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
    assert proof.violation is not None and proof.violation.rule == "contract"
    found = explore_plan(plan)
    assert found.finding is not None and found.finding.kind is Kind.FINAL


@pytest.mark.parametrize("fold_order", ["rank", "uniform"])
def test_an_order_of_its_own_is_right_where_it_is_declared_and_shared(fold_order: str) -> None:
    plan = all_reduce(EVERY_RANK_ALIKE, fold_order)
    right = Verdict.OK if fold_order == "uniform" else Verdict.VIOLATION
    assert prove(plan).verdict is right
    assert explore_plan(plan).verdict is right


def test_one_rank_that_folds_otherwise_in_one_round_of_many_is_found() -> None:
    alike = all_reduce(EVERY_RANK_ALIKE, "uniform")
    assert prove(alike).verdict is Verdict.OK
    proof = prove(with_fold(alike, 2, (1, 0, 2)))
    assert proof.violation is not None and "but rank 0 has folded them as" in proof.reason


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


# --- declarations and names --------------------------------------------------------------------------------------

USERS = """
from collectives.recipes import algorithm

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
    with pytest.raises(ArgumentError, match=r"no fold order 'any': it is one of rank, uniform"):
        algorithm("all_reduce", fold_order="any")


def test_a_saved_plan_keeps_the_declaration(tmp_path: Path) -> None:
    plan = all_reduce(EVERY_RANK_ALIKE, "uniform")
    save(plan, tmp_path / "mine.plan")
    assert load(tmp_path / "mine.plan").call.fold_order == "uniform"
