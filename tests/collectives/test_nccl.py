"""NCCL's algorithms as plans: right by rules, symbols and proof, on inboxes in a pool and in ranks' own memories."""

from dataclasses import replace

import numpy as np
import pytest

from collectives.algorithms import catalog
from collectives.algorithms.nccl import RECIPES, recipes
from collectives.builder.recipes import Recipe
from collectives.checking.symbolic import verify
from collectives.contracts import COLLECTIVES
from cxlemu.errors import ArgumentError, ContractError
from cxlemu.plan import Call, Kind, Layout, Op, Plan, rules
from cxlemu.plan.instructions import Instruction, Records
from faults.prove import prove
from faults.verdict import Verdict
from tests.helpers.tables import with_rows

ALL = pytest.mark.parametrize(("collective", "name"), RECIPES)


def layout(ranks: int, cards: int, slot_card_bytes: int = 1024) -> Layout:
    return Layout(ranks, cards, 2, slot_card_bytes * ranks, 64 * ranks * cards, 64)


def built(
    collective: str, name: str, ranks: int, cards: int, nbytes: int, *, redop: str = "sum", in_place: bool = False
) -> Plan:
    """In slices of 256 bytes; the last rank is the root."""
    its = COLLECTIVES[collective]
    root = ranks - 1 if its.rooted else 0
    call = Call(collective, name, ranks, nbytes, "f32", redop if its.reduces else "none", root, in_place)
    recipe = RECIPES[collective, name]
    return catalog.build(replace(recipe, spec=replace(recipe.spec, slice_bytes=256)), layout(ranks, cards), call)


@pytest.mark.each_value_once
@ALL
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_every_plan_obeys_the_rules_and_computes_what_it_should(collective: str, name: str, ranks: int) -> None:
    for nbytes in (4, 200, 3000):
        for redop in ("sum", "avg"):
            plan = built(collective, name, ranks, ranks, nbytes, redop=redop)
            rules.check(plan)
            verify(plan)


@pytest.mark.each_value_once
@ALL
@pytest.mark.parametrize(("ranks", "cards"), [(2, 2), (3, 2), (4, 4)])
@pytest.mark.parametrize("in_place", [False, True])
def test_every_plan_is_proved(collective: str, name: str, ranks: int, cards: int, in_place: bool) -> None:
    """Of one round and of several, on own memories and on fewer cards than ranks."""
    for nbytes in (200, 3000):
        proof = prove(built(collective, name, ranks, cards, nbytes, redop="avg", in_place=in_place))
        assert proof.verdict is Verdict.OK, proof.reason


def without(plan: Plan, rank: int, op: Op, number: int) -> Plan:
    """The plan without a rank's n-th instruction of a kind."""

    def part(of: int):  # type: ignore[no-untyped-def]
        whole = plan.part(of)
        if of != rank:
            return plan.frame, whole
        left, streams = number, []
        for stream in whole.streams:
            rows: Records = stream.records
            at = np.flatnonzero(rows["op"] == op)
            if 0 <= left < len(at):
                rows = np.delete(rows, at[left])
            left -= len(at)
            streams.append(replace(stream, records=rows))
        return plan.frame, replace(whole, streams=tuple(streams))

    return Plan(plan.call, plan.layout, part)


@pytest.mark.each_value_once
@ALL
@pytest.mark.parametrize("op", [Op.FLUSH, Op.FENCE, Op.SIGNAL, Op.INVALIDATE, Op.AWAIT])
def test_what_is_left_out_is_missed(collective: str, name: str, op: Op) -> None:
    """Rank 1 neither ends nor begins a chain, and does all there is to do."""
    plan = built(collective, name, 3, 3, 3000, in_place=False)
    rank = next((r for r in (1, 0, 2) if any((s.records["op"] == op).any() for s in plan.part(r).streams)), None)
    if rank is None:
        assert op == Op.AWAIT  # nothing is sent on
        return
    assert prove(without(plan, rank, op, 0)).verdict is Verdict.VIOLATION


def test_contributions_in_another_order_are_the_same_but_no_others() -> None:
    plan = built("all_reduce", "ring", 3, 3, 300)
    assert prove(plan).verdict is Verdict.OK
    ordered = replace(plan.call, fold_order="rank")
    strict = Plan(ordered, plan.layout, lambda rank: (plan.frame, plan.part(rank)))
    assert prove(strict).verdict is Verdict.VIOLATION  # ours fold in rank order
    with pytest.raises(ContractError):
        verify(strict)
    assert prove(without(plan, 1, Op.REDUCE, 0)).verdict is Verdict.VIOLATION  # a contribution is missing


@ALL
def test_writes_and_doorbells_lie_in_their_readers_memory(collective: str, name: str) -> None:
    plan = built(collective, name, 4, 4, 3000)
    readers: dict[int, int] = {}

    def of(rank: int, op: Op) -> list[Instruction]:
        return [i for stream in plan.part(rank).streams for i in stream.instructions if i.op == op]

    for rank in range(4):
        for i in of(rank, Op.WAIT):
            assert readers.setdefault(i.arg, rank) == rank
            assert plan.layout.doorbell_address(i.arg, 1)[0] == rank
        for op, field in ((Op.READ, "a"), (Op.REDUCE, "a")):
            for i in of(rank, op):
                place = getattr(i, field)
                assert plan.frame.regions[place.id].map.locate(place.offset)[0] == rank
        for i in of(rank, Op.WRITE):
            assert plan.frame.regions[i.dst.id].map.locate(i.dst.offset)[0] != rank


@with_rows(  # bytes that each of four ranks sends, of a block; the last one is the root
    ("all_gather", "ring", (3, 3, 3, 3)),
    ("reduce_scatter", "ring", (3, 3, 3, 3)),
    ("all_reduce", "ring", (1.5, 1.5, 1.5, 1.5)),
    ("broadcast", "chain", (1, 1, 0, 1)),
    ("reduce", "chain", (1, 1, 1, 0)),
    ("gather", "grouped", (1, 1, 1, 0)),
    ("scatter", "grouped", (0, 0, 0, 3)),
    ("all_to_all", "grouped", (3, 3, 3, 3)),
    # up: everyone but the top; down: two to their children and one to its own, of each half
    ("all_reduce", "tree", (1.5, 1.5, 1.5, 1.5)),
)
def test_as_many_bytes_are_sent_as_the_papers_say(collective: str, name: str, sends: tuple[float, ...]) -> None:
    nbytes = 64 * 4 * 16
    plan = built(collective, name, 4, 4, nbytes)
    for rank, share in enumerate(sends):
        writes = [i for stream in plan.part(rank).streams for i in stream.instructions if i.op == Op.WRITE]
        assert sum(i.nbytes for i in writes) == share * nbytes
        assert all(i.a.kind == Kind.BUFFER for i in writes)


def test_what_does_not_fit_says_so() -> None:
    recipe = RECIPES["all_gather", "ring"]
    with pytest.raises(ArgumentError, match="2 messages for each of 3 ranks do not fit a slot of 64 bytes on a card"):
        plan = catalog.build(recipe, Layout(3, 3, 2, 64, 64, 64), Call("all_gather", "ring", 3, 1000))
        plan.part(0)
    with pytest.raises(ArgumentError, match=r"broadcast has no variant 'ring': it has naive.*chain"):
        catalog.recipe("broadcast", "ring")
    assert recipes("barrier") == []


def test_ours_never_choose_them() -> None:
    for collective, name in RECIPES:
        assert name not in catalog.variants(collective)
        assert isinstance(catalog.recipe(collective, name), Recipe)
