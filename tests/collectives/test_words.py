"""The words that users' algorithms are written with: what each becomes, and what is said to whoever gets one wrong."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from collectives.algorithms.catalog import build
from collectives.builder import ALL, LINE, NAIVE, SCRATCH, Builder, Chunk, Event, VariantSpec
from collectives.builder.recipes import Recipe
from collectives.checking.symbolic import verify
from cxlemu.errors import BuilderError, DeclinedError
from cxlemu.plan import Call, Flag, Instruction, Kind, Layout, Op, Operand, Plan, RedOp
from faults.prove import prove
from faults.verdict import Verdict

LAYOUT = Layout(3, 2, 2, 1024, 16, 64)
Algorithm = Callable[[Builder], Any]


def plan(
    algorithm: Algorithm, *, collective: str = "all_reduce", spec: VariantSpec = ALL, ranks: int = 3, redop: str = "avg"
) -> Plan:
    recipe = Recipe(collective, "mine", algorithm, spec, fold_order="uniform", source="mine.py:mine")
    redop = {"all_reduce": redop, "reduce": redop}.get(collective, "none")
    nbytes = 0 if collective == "barrier" else 128
    layout = Layout(ranks, 2, 2, 512 * ranks, 16, 64)
    return build(recipe, layout, Call(collective, "mine", ranks, nbytes, "f32", redop))


def stream(of: Plan, rank: int, name: str) -> list[Instruction]:
    return next(its.instructions for its in of.part(rank).streams if its.name == name)


def ops(of: Plan, rank: int, name: str) -> list[str]:
    return [i.op.name for i in stream(of, rank, name)]


def proved(of: Plan) -> bool:
    proof = prove(of)
    assert proof.verdict is Verdict.OK, proof.reason
    return True


# --- events -------------------------------------------------------------------------------------------------------


def chain(b: Builder) -> None:
    """A broadcast from rank to rank."""
    if b.is_root:
        b.copy(b.output(), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        for chunk in chunks:
            came = None
            if not b.is_root:
                came = b.retrieve(b.output(chunk.offset), chunk, b.rank - 1)
            if b.rank + 1 < b.ranks:
                b.publish(chunk, b.output(chunk.offset) if came else b.input(chunk.offset), after=came)


def test_what_is_forwarded_waits_for_what_came_and_for_no_slot() -> None:
    """Whoever published it knew that the slot is free."""
    made = plan(chain, collective="broadcast")
    assert ops(made, 1, "publish") == ["AWAIT", "WRITE", "FLUSH", "FENCE", "SIGNAL"] * 2 + ["RECORD"]
    assert ops(made, 1, "retrieve") == ["WAIT", "INVALIDATE", "READ", "RECORD"] * 2 + ["AWAIT", "SIGNAL"]
    assert ops(made, 0, "publish")[0] == "WAIT_ALL"
    assert proved(made)


def test_events_cost_nothing_with_one_stream_nor_where_nobody_waits() -> None:
    made = plan(chain, collective="broadcast", spec=NAIVE)
    assert not {"AWAIT", "RECORD"} & set(ops(made, 1, "main"))
    last = plan(chain, collective="broadcast")
    assert "RECORD" not in ops(last, 2, "retrieve")


def test_a_stream_waits_once_for_what_it_knows() -> None:
    def twice(b: Builder) -> None:
        place = b.scratch(128)
        copied = b.copy(place, b.input(), 128)
        later = b.copy(b.output(), place, 128)
        for chunks in b.rounds(128, spread="ranges"):
            for chunk in chunks:
                b.publish(chunk, place.at(chunk.offset), after=copied if chunk.number else later)

    made = plan(twice)
    assert ops(made, 0, "publish").count("AWAIT") == 1


# --- scratch and copies -------------------------------------------------------------------------------------------


def through_scratch(b: Builder) -> None:
    first, second = b.scratch(100), b.scratch(128)
    assert second.offset - first.offset == 128
    copied = b.copy(second, b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        for chunk in chunks:
            b.publish(chunk, second.at(chunk.offset), after=copied)
        for chunk in chunks:
            b.fold(b.output(chunk.offset), chunk, second.at(chunk.offset))


@pytest.mark.parametrize("spec", [ALL, NAIVE, LINE], ids=lambda its: its.name)
def test_scratch_is_copied_to_and_published_from_and_no_fold_touches_it(spec: VariantSpec) -> None:
    for ranks in (3, 5):
        made = plan(through_scratch, spec=spec, ranks=ranks)
        copy = next(i for its in made.part(0).streams for i in its.instructions if i.op == Op.COPY)
        assert copy.dst == Operand(Kind.BUFFER, SCRATCH, 0, 128)
        for i in (i for its in made.part(0).streams for i in its.instructions):
            if i.op in (Op.REDUCE, Op.REDUCE_LOCAL, Op.WAIT_DATA) and i.dst.id == SCRATCH:
                assert i.dst.offset >= 256
        assert proved(made)


def test_copies_between_scratch_and_the_same_scratch_are_none() -> None:
    def idle(b: Builder) -> None:
        place = b.scratch(64)
        b.copy(place, place, 64)

    assert plan(idle, collective="broadcast").part(0).streams[1].instructions == []


# --- combine ------------------------------------------------------------------------------------------------------


def line_of_ranks(b: Builder) -> None:
    """A reduce along the ranks, to the last one, from there back to all: in rank order from the left."""
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        for chunk in chunks:
            result, came = b.output(chunk.offset), None
            last = b.rank == b.ranks - 1
            if b.rank:
                came = b.combine(result, chunk, b.rank - 1, b.input(chunk.offset), last=last)
            b.publish(chunk, result if came else b.input(chunk.offset), after=came)
            if not last:
                b.retrieve(result, chunk, b.ranks - 1)


@pytest.mark.parametrize("spec", [NAIVE, LINE], ids=lambda its: its.name)
def test_a_chain_folds_in_rank_order_and_divides_once(spec: VariantSpec) -> None:
    made = plan(line_of_ranks, spec=spec)
    verify(made)
    reduces = [i for rank in range(3) for i in stream(made, rank, "main") if i.op in (Op.REDUCE, Op.REDUCE_LOCAL)]
    assert {i.redop for i in reduces} == {RedOp.AVG}
    divided = [i.arg for i in reduces if i.flags & Flag.DIVIDE]
    assert set(divided) == {3}
    assert len(divided) == len(reduces) // 2
    assert proved(made)


def test_in_two_streams_the_result_may_come_while_the_partial_one_is_published() -> None:
    proof = prove(plan(line_of_ranks))
    assert proof.violation is None or proof.violation.rule == "local"


@pytest.mark.parametrize("peer_left", [True, False])
def test_which_operand_is_left_can_be_said(peer_left: bool) -> None:
    def pair(b: Builder) -> None:
        for chunks in b.rounds(b.nbytes, spread="ranges"):
            for chunk in chunks:
                b.publish(chunk, b.input(chunk.offset))
                peer = 1 - b.rank
                b.combine(b.output(chunk.offset), chunk, peer, b.input(chunk.offset), peer_left=peer_left, last=True)

    made = plan(pair, ranks=2, redop="max")  # the later of two zeros: its operands do not commute
    reduce = next(i for i in stream(made, 0, "retrieve") if i.op == Op.REDUCE)
    assert (reduce.a.kind, reduce.b.kind) == ((Kind.REGION, Kind.BUFFER) if peer_left else (Kind.BUFFER, Kind.REGION))
    proof = prove(made)  # the ranks' left operands are different ones
    assert proof.violation.rule == "fold_order"


# --- bells, parts, several blocks ---------------------------------------------------------------------------------


def test_a_round_of_bells_moves_nothing() -> None:
    def star(b: Builder) -> None:
        with b.bells(2) as turn:
            if b.is_root:
                for peer in b.peers:
                    heard = b.wait(turn, peer, bell=0)
                b.signal(turn, bell=1, after=heard)
            else:
                b.signal(turn, bell=0)
                b.wait(turn, b.root, bell=1)

    made = plan(star, collective="barrier")
    assert made.frame.regions == ()
    assert made.rounds == 1
    assert ops(made, 0, "retrieve")[:3] == ["WAIT", "WAIT", "RECORD"]
    assert ops(made, 0, "publish")[:2] == ["AWAIT", "SIGNAL"]
    assert proved(made)


@pytest.mark.parametrize("spec", [ALL, NAIVE, LINE], ids=lambda its: its.name)
def test_two_halves_of_a_chunk_under_one_bell(spec: VariantSpec) -> None:
    def halves(b: Builder) -> None:
        if b.is_root:
            b.copy(b.output(), b.input(), b.nbytes)
        for chunks in b.rounds(b.nbytes, blocks=2, bells=1, spread="ranges"):
            for chunk in chunks:
                first, rest = b.part(chunk, b.grain), b.part(chunk, chunk.nbytes, b.grain)
                assert first.nbytes + rest.nbytes == chunk.nbytes
                if b.is_root:
                    b.publish(chunk, [b.input(chunk.offset)] * 2, bell=0)
                else:
                    b.retrieve([b.output(first.offset)], first, b.root, block=1, bell=0)
                    b.retrieve([b.output(rest.offset)], rest, b.root, bell=0)

    made = plan(halves, collective="broadcast", spec=spec)
    assert proved(made)
    if spec is ALL:
        assert ops(made, 0, "publish")[1:7] == ["WRITE", "WRITE", "FLUSH", "FLUSH", "FENCE", "SIGNAL"]


def test_an_empty_part_is_signalled_all_the_same() -> None:
    def nothing(b: Builder) -> None:
        for chunks in b.rounds(b.nbytes, spread="ranges"):
            for chunk in chunks:
                empty = b.part(chunk, 0)
                b.publish(empty, b.input(chunk.offset))
                b.retrieve(b.output(chunk.offset), empty, b.peers[0])
                b.combine(b.output(chunk.offset), empty, b.peers[1], b.input(chunk.offset))

    made = plan(nothing)
    assert [op for op in ops(made, 0, "publish") if op != "RECORD"] == ["WAIT_ALL", "SIGNAL", "SIGNAL"]
    assert ops(made, 0, "retrieve")[:4] == ["WAIT", "WAIT", "WAIT", "WAIT"]


# --- what users get wrong -----------------------------------------------------------------------------------------


def in_a_round(word: Callable[[Builder, Chunk], Any], **loop: Any) -> Algorithm:
    def algorithm(b: Builder) -> None:
        for chunks in b.rounds(b.nbytes, **{"spread": "ranges", **loop}):
            word(b, chunks[0])

    return algorithm


def _late(b: Builder) -> None:
    chunks = [chunk for chunks in b.rounds(b.nbytes, spread="ranges") for chunk in chunks]
    b.publish(chunks[0], b.input())


def _break(b: Builder) -> None:
    for _ in b.rounds(b.nbytes, spread="ranges"):
        break


def _nested(b: Builder) -> None:
    for _ in b.rounds(b.nbytes, spread="ranges"):
        for _ in b.rounds(b.nbytes, spread="ranges"):
            pass


def _bells(b: Builder) -> Iterator[None]:
    with b.bells(17):
        pass
    yield


MISUSES: dict[str, tuple[Algorithm, str]] = {
    "a block too many": (
        in_a_round(lambda b, c: b.publish(c, b.input(), block=1)),
        "publish of block 1, the loop has 1",
    ),
    "a negative block": (
        in_a_round(lambda b, c: b.publish(c, b.input(), block=-1)),
        "publish of block -1, the loop has",
    ),
    "too many blocks at once": (
        in_a_round(lambda b, c: b.publish(c, [b.input()] * 3, block=1), blocks=3),
        "publish of 3 blocks from 1 on, the loop has 3 a rank",
    ),
    "no blocks at all": (in_a_round(lambda b, c: b.publish(c, [])), "publish of 0 blocks from 0 on"),
    "a bell too many": (in_a_round(lambda b, c: b.publish(c, b.input(), bell=2), bells=2), "publish under bell 2"),
    "a signal without a bell": (in_a_round(lambda b, c: b.signal(c, bell=1)), "signal under bell 1, the loop has 1"),
    "nobody's rank": (in_a_round(lambda b, c: b.retrieve(b.output(), c, 3)), "names rank 3, there are ranks 0..2"),
    "a rank that is none": (in_a_round(lambda b, c: b.retrieve(b.output(), c, "left")), "retrieve names rank 'left'"),
    "its own rank": (in_a_round(lambda b, c: b.retrieve(b.output(), c, b.rank)), "retrieve from rank 0 itself"),
    "a wait for itself": (in_a_round(lambda b, c: b.wait(c, b.rank, bell=0)), "wait from rank 0 itself"),
    "no writer": (
        in_a_round(lambda b, c: b.publish(c, b.input()), writers=[1]),
        "publish of a block of rank 0, which is not among the loop's writers",
    ),
    "a number for an event": (in_a_round(lambda b, c: b.publish(c, b.input(), after=3)), "follows an event that"),
    "a truth for an event": (in_a_round(lambda b, c: b.wait(c, b.peers[0], bell=0, after=True)), "not True"),
    "a number for memory": (in_a_round(lambda b, c: b.publish(c, 0)), "publish takes b.input"),
    "a peer's memory": (
        in_a_round(lambda b, c: b.retrieve(Operand(Kind.REGION), c, b.peers[0])),
        r"retrieve takes b.input\(\), b.output\(\) or b.scratch\(\)",
    ),
    "a number for a chunk": (in_a_round(lambda b, c: b.publish(0, b.input())), "takes a chunk of a round, not 0"),
    "a chunk of a round that is over": (_late, "publish of a chunk of round 0, which is over"),
    "a chunk that grew": (
        in_a_round(lambda b, c: b.publish(c._replace(nbytes=1 << 20), b.input())),
        "publish of 1048576 bytes exceeds the room of its block",
    ),
    "a part in the middle of a line": (
        in_a_round(lambda b, c: b.part(c, 8, 3)),
        r"a multiple of b.grain \(64\), not 8",
    ),
    "a loop that is left": (_break, "rank 0 leaves round 0 by break: let it run to its end"),
    "a loop in a loop": (_nested, "a round begins inside another one"),
    "no such spread": (in_a_round(lambda b, c: None, spread="card"), 'spread="cards" or "ranges", not \'card\''),
    "no spread": (lambda b: next(b.rounds(b.nbytes)), 'rounds takes spread="cards" or "ranges", not \'\''),
    "no blocks": (in_a_round(lambda b, c: None, blocks=0), "rounds takes blocks, a number from 1 on, not 0"),
    "half a bell": (in_a_round(lambda b, c: None, bells=0.5), "rounds takes bells, a number from 0 on, not 0.5"),
    "no such writer": (in_a_round(lambda b, c: None, writers=[3]), "rounds names rank 3"),
    "less than no scratch": (lambda b: b.scratch(-1), "scratch takes a number of bytes, not -1"),
    "half a byte of scratch": (lambda b: b.scratch(0.5), "scratch takes a number of bytes, not 0.5"),
    "a copy of nothing": (lambda b: b.copy(b.output(), None, 4), "copy takes b.input"),
    "a republished block too many": (
        in_a_round(lambda b, c: b.fold(b.output(), c, b.input(), republish=1)),
        "fold of block 1, the loop has 1",
    ),
}


@pytest.mark.parametrize("what", MISUSES)
def test_misuse_gets_a_sentence(what: str) -> None:
    algorithm, sentence = MISUSES[what]
    with pytest.raises(BuilderError, match=f"^mine.py:mine: all_reduce mine .*{sentence}"):
        assert plan(algorithm).part(0)


def test_more_bells_than_doorbells_are_no_mistake() -> None:
    with pytest.raises(DeclinedError, match="17 bells a rank need as many doorbells"):
        assert plan(lambda b: list(_bells(b))).part(0)


def test_what_an_algorithm_declines_is_no_mistake() -> None:
    with pytest.raises(DeclinedError, match=r"^all_reduce mine 128 B .*: takes odd ranks$"):
        assert plan(lambda b: b.decline("takes odd ranks")).part(0)


def test_only_the_root_of_a_broadcast_has_an_input() -> None:
    made = plan(in_a_round(lambda b, c: b.publish(c, b.input())), collective="broadcast")
    assert made.part(0)
    with pytest.raises(BuilderError, match="publish of rank 1, which is not the root and has no input"):
        assert made.part(1)


@pytest.mark.parametrize("word", ["fold", "combine"])
def test_what_folds_nothing_has_no_use_for_folding(word: str) -> None:
    def folding(b: Builder, chunk: Chunk) -> None:
        if word == "fold":
            b.fold(b.output(), chunk, b.input())
        else:
            b.combine(b.output(), chunk, 1, b.input())

    with pytest.raises(BuilderError, match=f"broadcast folds nothing, so it has no use for {word}"):
        assert plan(in_a_round(folding), collective="broadcast").part(0)


def test_an_event_is_of_a_stream_and_a_moment() -> None:
    found: list[Event] = []
    assert plan(in_a_round(lambda b, c: found.append(b.retrieve(b.output(), c, b.peers[0])))).part(0)
    assert [event.stream for event in found] == ["retrieve"]
    assert found[0].at == 3
