"""What a user of a Communicator relies on: results, shapes, order, groups, and errors that name what is wrong."""

import re
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collectives.algorithms.catalog import load_algorithm, variants
from collectives.communicator.calls import watch
from collectives.communicator.communicator import Communicator
from cxlemu.errors import (
    ArgumentError,
    BuilderError,
    CardLostError,
    DeadlineError,
    MismatchError,
    PeerLostError,
    PlanError,
    RankFailures,
    RevokedError,
    RunError,
)
from cxlemu.memory import MemorySpec
from cxlemu.pool.session import Session
from cxlemu.pool.session_area import RankState, Status
from cxlemu.world import RankContext, launch
from tests.helpers import worlds
from tests.helpers.tiers import PATIENT_S
from tests.helpers.worlds import Program, with_cards_of

REGION_BYTES = 1 << 16
LAPTOP, SIX_CARDS = "laptop", "six-cards"


def together(program: Program, ranks: int = 3, memory: MemorySpec | str = "emulated", **given: Any) -> list[Any]:
    given = {"topology": LAPTOP, "region_bytes": REGION_BYTES} | given
    return worlds.together(program, ranks, memory, **given)


on_ranks = partial(worlds.on_ranks, by=together)


def each_its_own(*programs: Program) -> Program:
    return lambda comm: programs[comm.rank](comm)


# A peer that left is given up at the second look, one that is silent after the deadline.
SILENCE_S = 2.0


def failures(program: Program, ranks: int = 2, deadline_s: float = PATIENT_S) -> dict[int, BaseException]:
    with pytest.raises(RankFailures) as raised:
        together(program, ranks, deadline_s=deadline_s)
    return raised.value.failures


def mine(comm: Communicator, *shape: int) -> np.ndarray:
    """10 * rank, 10 * rank + 1, ..."""
    return (np.arange(np.prod(shape, dtype=int), dtype=np.int32) + 10 * comm.rank).reshape(shape)


# --- results ------------------------------------------------------------------------------------------------------


def given(result: Any, x: np.ndarray) -> np.ndarray:
    """``x``, which is what the call returns."""
    assert result is x
    return x


def all_reduce_with_out(comm: Communicator) -> Any:
    x, out = mine(comm, 3), np.zeros(3, np.int32)
    assert comm.all_reduce(x, "max", out) is out
    assert x.tolist() == mine(comm, 3).tolist()
    return out


def reduce_to_a_root(comm: Communicator) -> Any:
    x = mine(comm, 2)
    result = comm.reduce(x, "avg", root=1)
    assert comm.rank == 1 or x.tolist() == mine(comm, 2).tolist()
    return result


def all_gather_in_place(comm: Communicator) -> Any:
    out = np.zeros(6, np.int32)
    own = out[2 * comm.rank : 2 * comm.rank + 2]
    own[:] = mine(comm, 2)
    return given(comm.all_gather(own, out), out)


def scatter_from_a_root(comm: Communicator) -> Any:
    if comm.rank == 1:
        return comm.scatter(mine(comm, 3, 2), root=1)
    return comm.scatter(None, np.zeros((1, 2), np.int32), root=1)


BLOCKS = [[0, 1], [10, 11], [20, 21]]
TRANSPOSED = [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
# What ranks 0, 1 and 2 get.
RESULTS: dict[str, tuple[Program, list[Any]]] = {
    "all_reduce replaces x": (
        lambda comm: given(comm.all_reduce(x := mine(comm, 2, 2)), x),
        [[[30, 33], [36, 39]]] * 3,
    ),
    "all_reduce with out leaves x alone": (all_reduce_with_out, [[20, 21, 22]] * 3),
    "reduce gives the root alone a result": (reduce_to_a_root, [None, [10, 11], None]),
    "broadcast": (lambda comm: comm.broadcast(mine(comm, 2), root=2), [[20, 21]] * 3),
    "all_gather makes an array of all blocks": (lambda comm: comm.all_gather(mine(comm, 2)), [BLOCKS] * 3),
    "all_gather keeps a block's shape": (
        lambda comm: comm.all_gather(mine(comm, 2, 1)),
        [[[[0], [1]], [[10], [11]], [[20], [21]]]] * 3,
    ),
    "all_gather in place": (all_gather_in_place, [[0, 1, 10, 11, 20, 21]] * 3),
    "gather gives the root all blocks": (lambda comm: comm.gather(mine(comm, 2), root=2), [None, None, BLOCKS]),
    "scatter deals out the blocks of the root": (scatter_from_a_root, [[[10, 11]], [[12, 13]], [[14, 15]]]),
    "reduce_scatter leaves every rank its block": (
        lambda comm: comm.reduce_scatter(mine(comm, 6)),
        [[30, 33], [36, 39], [42, 45]],
    ),
    "all_to_all transposes blocks": (lambda comm: comm.all_to_all(mine(comm, 3)), TRANSPOSED),
    "all_to_all in place": (lambda comm: comm.all_to_all(x := mine(comm, 3), x), TRANSPOSED),
}


@pytest.mark.parametrize("what", RESULTS)
def test_every_rank_gets_its_result(what: str) -> None:
    program, expected = RESULTS[what]
    assert [None if result is None else result.tolist() for result in together(program)] == expected


@pytest.mark.parametrize("variant", ["auto", *variants("all_reduce")])
@on_ranks(gives=[True] * 3)
def test_messages_of_many_rounds(comm: Communicator, variant: str) -> Any:
    x = comm.heap.empty(50_001, np.float32)
    x[:] = np.arange(50_001) % 100 * (comm.rank + 1)
    return (comm.all_reduce(x, variant=variant) == np.arange(50_001) % 100 * 6).all()


def test_nobody_leaves_a_barrier_before_everybody_is_there() -> None:
    arrived = set()

    def program(comm: Communicator) -> Any:
        if comm.rank:
            comm.barrier()
        arrived.add(comm.rank)
        if comm.rank == 0:
            comm.barrier()
        return len(arrived) if comm.rank == 0 else 0 in arrived

    assert all(together(program))


def test_no_elements_and_one_rank() -> None:
    def program(comm: Communicator) -> Any:
        comm.barrier()
        nothing = comm.all_reduce(np.empty(0, np.float64))
        return nothing.shape, comm.all_gather(mine(comm, 2)).tolist(), comm.all_reduce(mine(comm, 2)).tolist()

    assert together(program, ranks=1) == [((0,), [[0, 1]], [0, 1])]
    assert together(lambda comm: comm.all_reduce(np.empty(0, np.float64)).shape, ranks=2) == [(0,), (0,)]


@pytest.mark.parametrize("memory", [MemorySpec("shm"), MemorySpec(), MemorySpec(seed=3)], ids=str)
def test_more_ranks_than_cards_and_several_ranks_on_a_host(memory: MemorySpec) -> None:
    """Seven ranks on two hosts with two cards."""

    def program(comm: Communicator) -> Any:
        return comm.all_to_all(mine(comm, 7)).tolist(), comm.all_reduce(mine(comm, 40)).tolist()

    for rank, (transposed, total) in enumerate(together(program, ranks=7, memory=memory)):
        assert transposed == [10 * peer + rank for peer in range(7)]
        assert total == [7 * k + 210 for k in range(40)]


def test_more_cards_than_ranks() -> None:
    assert together(lambda comm: comm.all_reduce(mine(comm, 2)).tolist(), 2, topology=SIX_CARDS) == [[10, 12]] * 2


@on_ranks(ranks=2)
def test_thousands_of_small_calls(comm: Communicator) -> None:
    """The ring wraps hundreds of times, each call's numbers are its own."""
    x = np.zeros(1, np.int64)
    for call in range(3000):
        x[0] = call * (comm.rank + 1)
        assert comm.all_reduce(x)[0] == 3 * call


# --- asynchronous calls -------------------------------------------------------------------------------------------


@on_ranks(ranks=2, gives=[[32, 2]] * 2)
def test_asynchronous_calls_run_in_the_order_they_were_made(comm: Communicator) -> Any:
    x = np.ones(1, np.int64)
    handles = [comm.all_reduce(x, async_op=True) for _ in range(5)]
    y = comm.all_reduce(np.ones(1, np.int64))  # a synchronous one waits for its turn
    assert all(handle.done for handle in handles)
    assert all(handle.wait() is x for handle in reversed(handles))
    return [int(x[0]), int(y[0])]


def test_close_waits_for_what_is_under_way() -> None:
    results = [np.ones(1, np.int64) for _ in range(2)]
    together(lambda comm: comm.all_reduce(results[comm.rank], async_op=True) and None, ranks=2)
    assert [int(x[0]) for x in results] == [2, 2]


def test_an_asynchronous_error_that_nobody_waited_for_is_raised_at_close() -> None:
    found = failures(each_its_own(lambda comm: comm.barrier(async_op=True) and None, lambda comm: None))
    assert list(found) == [0] and isinstance(found[0], PeerLostError)


@pytest.mark.parametrize("how", ["under way", "failed with PeerLostError: rank 1 left", "", "raised"])
def test_of_a_communicator_that_is_not_closed_a_call_that_nobody_waited_for_is_warned_of(how: str) -> None:
    ended = threading.Event()

    def main(context: RankContext) -> None:
        comm = Communicator.world(context, region_bytes=REGION_BYTES)
        if context.rank == 0 or not how:
            handle = comm.barrier(async_op=True)
            context.at_end.append(ended.set)
            while how != "under way" and not handle.done:
                time.sleep(0.001)
        elif how == "under way":
            ended.wait(PATIENT_S)
        if how == "raised":
            raise KeyError

    fails = pytest.raises(RankFailures) if how == "raised" else nullcontext()
    with warnings.catch_warnings(record=True, action="always") as found, fails:
        launch(main, ranks=2, topology=LAPTOP, deadline_s=PATIENT_S)
    said = [str(each.message) for each in found]
    assert len(said) == (how not in ("", "raised"))
    assert all(f"rank 0 ends, and nobody waited for 1 call: {how}" in each for each in said)


@on_ranks(ranks=2)
def test_an_asynchronous_error_is_raised_by_its_handle_and_calls_behind_it_fail_at_once(comm: Communicator) -> None:
    if comm.rank == 0:
        first, second = comm.barrier(async_op=True), comm.barrier(async_op=True)
        with pytest.raises(PeerLostError):
            first.wait()
        with pytest.raises(RunError, match="was revoked: rank 1 left"):
            second.wait()


# --- groups -------------------------------------------------------------------------------------------------------


def part_of(comm: Communicator, color: int, key: int | None = None) -> Communicator:
    part = comm.split(color, key)
    assert part is not None
    return part


@on_ranks(
    ranks=5, gives=[(0, 3, [0, 20, 40]), (0, 2, [10, 30]), (1, 3, [0, 20, 40]), (1, 2, [10, 30]), (2, 3, [0, 20, 40])]
)
def test_split_makes_a_communicator_of_every_color(comm: Communicator) -> Any:
    half = part_of(comm, comm.rank % 2)
    return half.rank, half.size, half.all_gather(mine(comm, 1)).ravel().tolist()


@on_ranks(ranks=4, gives=[(rank, (2, 3, 0, 1)) for rank in (2, 3, 0, 1)])
def test_split_orders_by_key_then_rank(comm: Communicator) -> Any:
    other = part_of(comm, 7, key=-(comm.rank // 2))
    return other.rank, other.members


@on_ranks(gives=[[20], None, [20]])
def test_who_has_no_color_takes_no_part(comm: Communicator) -> Any:
    part = comm.split(None if comm.rank == 1 else -4)
    return None if part is None else part.all_reduce(mine(comm, 1)).tolist()


@on_ranks(ranks=4, gives=[[1, 2, 4] * 6] * 4)
def test_split_of_a_split_beside_its_parents(comm: Communicator) -> Any:
    half = part_of(comm, comm.rank // 2)
    single = part_of(half, half.rank)
    results = [c.all_reduce(np.ones(1, np.int32)) for _ in range(6) for c in (single, half, comm)]
    return [int(x[0]) for x in results]


def test_several_world_communicators_on_one_pool() -> None:
    def main(context: RankContext) -> list[int]:
        first = Communicator.world(context, region_bytes=REGION_BYTES)
        second = Communicator.world(context, region_bytes=REGION_BYTES)
        return [int(c.all_reduce(np.ones(1, np.int32))[0]) for c in (second, first, second, second, first)]

    assert launch(main, ranks=2, topology=LAPTOP, memory=MemorySpec(), deadline_s=PATIENT_S) == [[2] * 5] * 2


def test_a_pool_without_room_says_so() -> None:
    def program(comm: Communicator) -> None:
        held = [comm]
        while True:
            held.append(part_of(comm, 0))

    with pytest.raises(ArgumentError, match=r"a communicator of 2 ranks.* or make fewer communicators"):
        together(program, ranks=2, topology=with_cards_of(1 << 20))


# --- wrong arguments ----------------------------------------------------------------------------------------------


def read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


MISUSES: dict[str, tuple[Callable[[Communicator, np.ndarray], Any], str]] = {
    "out of another size": (
        lambda comm, x: comm.all_reduce(x, out=np.zeros(5, np.int32)),
        r"all_reduce: out of rank \d must have 24 bytes \(6 x i32\), but has 20 bytes, shape \(5,\)",
    ),
    "out of another dtype": (
        lambda comm, x: comm.all_reduce(x, out=np.zeros(6, np.float32)),
        "all_reduce: out is float32, but the call is of i32",
    ),
    "blocks that do not divide": (
        lambda comm, x: comm.all_to_all(np.zeros(5, np.int32)),
        "all_to_all: x has 5 elements, which do not divide among 2 ranks",
    ),
    "a first axis that does not divide": (
        lambda comm, x: comm.reduce_scatter(x.reshape(3, 2)),
        r"reduce_scatter: x of shape \(3, 2\) does not divide into 2 blocks",
    ),
    "the greatest of complex numbers": (
        lambda comm, x: comm.all_reduce(x.astype(np.complex64), "max"),
        "all_reduce: there is no max of c64: complex numbers have no order: use sum, prod, avg",
    ),
    "bits of floats": (
        lambda comm, x: comm.all_reduce(x.astype(np.float32), "bxor"),
        "all_reduce: there is no bxor of f32: bitwise operations take integers and bools",
    ),
    "a sum of big-endian numbers": (
        lambda comm, x: comm.all_reduce(x.astype(">i4")),
        "dtype >i4 cannot be reduced: use one of uint8, int8, .*bfloat16",
    ),
    "Python objects": (
        lambda comm, x: comm.all_gather(np.array([{}, {}])),
        "dtype object holds Python objects, which other processes cannot read",
    ),
    "another dtype without a name": (
        lambda comm, x: comm.all_to_all(x.view(">i4"), out=x.view("V4").copy()),
        r"all_to_all: out is \|V4, but x is >i4",
    ),
    "a read-only result": (
        lambda comm, x: comm.all_reduce(read_only(x)),
        "x is read-only: the result cannot be written to it",
    ),
    "arrays that overlap": (
        lambda comm, x: comm.all_reduce(x[:4], out=x[2:]),
        r"all_reduce: x and out of rank \d overlap; in place",
    ),
    "another rank's block in place": (
        lambda comm, x: comm.all_gather(x[3:] if comm.rank == 0 else x[:3], out=x),
        r"all_gather: x and out of rank \d overlap",
    ),
    "a root that is no rank": (
        lambda comm, x: comm.broadcast(x, root=2),
        r"broadcast: root 2 is not one of the ranks 0\.\.1",
    ),
    "a negative root": (lambda comm, x: comm.gather(x, root=-1), r"gather: root -1 is not one of the ranks 0\.\.1"),
    "a root that is no whole number": (
        lambda comm, x: comm.broadcast(x, root=1.0),  # type: ignore[arg-type]
        r"broadcast: root 1\.0 is not one of the ranks 0\.\.1",
    ),
    "a root that is a word": (
        lambda comm, x: comm.reduce(x, root="1"),  # type: ignore[arg-type]
        r"reduce: root '1' is not one of the ranks 0\.\.1",
    ),
    "a truth value as root": (
        lambda comm, x: comm.broadcast(x, root=True),
        r"broadcast: root True is not one of the ranks 0\.\.1",
    ),
    "a masked array": (
        lambda comm, x: comm.all_reduce(np.ma.masked_array(x, x == 0)),
        r"x is a masked array: its mask would be lost, so pass x\.filled\(VALUE\)",
    ),
    "an unknown op": (
        lambda comm, x: comm.all_reduce(x, "xor"),
        "all_reduce takes op sum, prod, min, max, avg, band, bor, bxor, not 'xor'",
    ),
    "a variant that is no name": (
        lambda comm, x: comm.all_gather(x, variant=None),
        "all_gather has no variant 'None': it has naive, aggregate, all, line, zero_copy",
    ),
    "an unknown variant": (
        lambda comm, x: comm.all_gather(x, variant="two_shot"),
        "all_gather has no variant 'two_shot': it has naive, aggregate, all, line, zero_copy",
    ),
    "a list": (
        lambda comm, x: comm.all_reduce([1, 2]),  # type: ignore[arg-type]
        "x is a list: a NumPy array is needed",
    ),
    "nothing to scatter to": (
        lambda comm, x: comm.scatter(None, root=1 - comm.rank),
        "scatter: this rank needs an array",
    ),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_wrong_arguments_are_refused_before_anything_is_sent(misuse: str) -> None:
    call, message = MISUSES[misuse]

    def program(comm: Communicator) -> Any:
        with pytest.raises(ArgumentError, match=message):
            call(comm, np.zeros(6, np.int32))
        return comm.all_reduce(mine(comm, 1)).tolist()  # the communicator goes on

    assert together(program, ranks=2) == [[10]] * 2


def test_a_pool_that_is_too_small_for_its_ranks_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"a communicator of 30 ranks( needs .* bytes or more|.* or make fewer)"):
        together(lambda comm: None, ranks=30, topology=with_cards_of(64 << 10))


# --- ranks that disagree, and ranks that do not come --------------------------------------------------------------


def of(count: int, dtype: str = "i4") -> np.ndarray:
    return np.zeros(count, dtype)


DISAGREEMENTS: dict[str, tuple[Program, Program]] = {
    "op": (lambda c: c.all_reduce(of(4)), lambda c: c.all_reduce(of(4), "max")),
    "dtype": (lambda c: c.all_reduce(of(4)), lambda c: c.all_reduce(of(4, "f4"))),
    "count": (lambda c: c.all_reduce(of(4)), lambda c: c.all_reduce(of(8))),
    "count, one large": (lambda c: c.all_gather(of(4)), lambda c: c.all_gather(of(90_000))),
    "count of a broadcast": (lambda c: c.broadcast(of(4)), lambda c: c.broadcast(of(3))),
    "nothing and something": (
        lambda c: (c.all_reduce(of(0)), c.barrier()),
        lambda c: (c.all_reduce(of(4)), c.barrier()),
    ),
    "variant": (lambda c: c.all_gather(of(4)), lambda c: c.all_gather(of(4), variant="all")),
    "root of a gather": (lambda c: c.gather(of(4)), lambda c: c.gather(of(4), root=1)),
    "root of a reduce": (lambda c: c.reduce(of(4)), lambda c: c.reduce(of(4), root=1)),
    "collective": (lambda c: c.all_reduce(of(4)), lambda c: c.all_gather(of(4))),
    "rooted or not": (lambda c: c.broadcast(of(4)), lambda c: c.all_gather(of(4))),
    "order": (lambda c: (c.barrier(), c.all_reduce(of(4))), lambda c: (c.all_reduce(of(4)), c.barrier())),
    "sizes in a list": (lambda c: c.all_reduce_many([of(4), of(2)]), lambda c: c.all_reduce_many([of(2), of(4)])),
    "length of a list": (lambda c: c.all_gather_many([of(6)]), lambda c: c.all_gather_many([of(2), of(4)])),
    "dtypes in a list": (
        lambda c: c.broadcast_many([of(2), of(2, "f4")]) and c.barrier(),
        lambda c: c.broadcast_many([of(2, "f4"), of(2)]) and c.barrier(),
    ),
    "list and array": (lambda c: c.all_reduce_many([of(4)]), lambda c: c.all_reduce(of(4))),
    "sizes in a block of calls": (lambda c: _in_one(c, of(4), of(2)), lambda c: _in_one(c, of(2), of(4))),
}


def _in_one(comm: Communicator, *arrays: np.ndarray) -> None:
    with comm.coalesce() as batch:
        for x in arrays:
            batch.reduce_scatter(x, of(x.size // 2))


@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_ranks_that_call_different_things_are_told_so(what: str) -> None:
    found = failures(each_its_own(*DISAGREEMENTS[what]))
    assert any(isinstance(error, MismatchError) for error in found.values()), found
    assert all(isinstance(error, RunError) for error in found.values()), found
    [mismatch, *_] = [str(error) for error in found.values() if isinstance(error, MismatchError)]
    assert "all ranks must call the same" in mismatch and "rank 0" in mismatch and "rank 1" in mismatch


@pytest.mark.parametrize("size", [2, 4])
def test_all_ranks_are_told_what_both_sides_called(size: int) -> None:
    def program(comm: Communicator) -> None:
        comm.barrier()
        if comm.rank == 1:
            comm.broadcast(of(4))
        else:
            comm.all_reduce(of(4), "max")

    told = {rank: str(error) for rank, error in failures(program, size).items()}
    assert told.keys() == set(range(size))
    for said in told.values():
        assert "call 2 of this communicator is" in said
        assert re.search(r"\[broadcast [^]]*\] on rank 1", said) and re.search(
            r"\[all_reduce [^]]*max[^]]*\] on", said
        ), said


# What the ranks call, and how a rank's error names its call.
NAMED: dict[str, tuple[Program, Program, str]] = {
    "objects": (lambda c: c.gather_object(1), lambda c: c.all_gather_object(1), r"\[gather_object 8B i64 "),
    "other objects": (
        lambda c: c.broadcast_object(1, root=1),
        lambda c: c.barrier(),
        r"\[broadcast_object ",
    ),
    "arrays of any dtype": (
        lambda c: c.all_to_allw([of(1)] * 2, [of(1)] * 2),
        lambda c: c.barrier(),
        r"\[all_to_allw ",
    ),
    "a list": (lambda c: c.all_reduce_many([of(4)]), lambda c: c.barrier(), r"\[all_reduce_many sum "),
    "a split": (lambda c: c.split(0), lambda c: c.barrier(), r"\[split "),
    "the heap": (lambda c: c.heap.zeros(4), lambda c: c.barrier(), r"\[heap.empty "),
    "a variant": (
        lambda c: c.all_gather(of(4)),
        lambda c: c.all_gather(of(4), variant="all"),
        r"\[all_gather 16B i32 line\] .* but \[all_gather 16B i32 all\]",
    ),
    "an earlier call": (
        lambda c: (c.broadcast(of(4), root=0), c.barrier()),
        lambda c: (c.broadcast(of(4), root=1), c.barrier()),
        r"call 2 of .* is \[barrier .* on rank 0 and also on rank 1: call 1 or one before it differed, or its root, ",
    ),
    "a root": (lambda c: c.reduce(of(4)), lambda c: c.reduce(of(4), root=1), r"but \[reduce sum root 1 .* on rank 1"),
}


@pytest.mark.parametrize("what", NAMED)
def test_errors_name_what_the_user_called(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ANSWER_S", PATIENT_S)  # a busy machine lets the other rank say it late
    *programs, expected = NAMED[what]
    assert re.search(expected, str(failures(each_its_own(*programs))[0]))


@pytest.mark.parametrize("comes", [True, False])
def test_what_a_peer_called_earlier_is_not_taken_for_its_call_now(monkeypatch: pytest.MonkeyPatch, comes: bool) -> None:
    """A rank's line keeps the last call in which it waited, until it waits again."""
    error, looks = MismatchError("rank 1 rang in another call", (0, 1)), []
    older, now = (Status(1, 1, call, 7, 9, RankState.RUNNING, text) for call, text in ((2, b"barrier"), (13, b"scan")))

    def peek(rank: int) -> Status:
        looks.append(rank)
        return now if comes and len(looks) > 3 else older

    monkeypatch.setattr(watch, "ANSWER_S", 30 * watch.LOOK_S if comes else watch.LOOK_S)
    session: Any = SimpleNamespace(peek=peek, report=lambda *its: None)
    context: Any = SimpleNamespace(session=session, rank=0)
    monitor = watch.PeerMonitor(
        context, board=session, comm=7, members=(0, 1), deadline_s=1.0, call=13, internal_calls=1
    )
    call: Any = SimpleNamespace(collective="gather", redop="none", root=1, nbytes=4, dtype="u8", algorithm="line")
    part: Any = SimpleNamespace(rank=0)
    running: Any = SimpleNamespace(call=call, part=part, verb="", binding=SimpleNamespace(tag=3))
    said = str(monitor.with_both_calls(running, error))
    named = "call 12 of this communicator is [gather root 1 4B u8 ...] on rank 0 but [scan] on rank 1"
    assert said.startswith(named) if comes else said == str(error)


def test_who_cannot_ask_for_the_other_call_tells_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool may be out of reach by then: the communicator is given up all the same."""

    def out_of_reach(*its: object) -> None:
        raise CardLostError(0)

    monkeypatch.setattr(Session, "report", out_of_reach)
    found = failures(lambda comm: comm.broadcast(of(4)) if comm.rank == 1 else comm.all_reduce(of(4)))
    assert any("rang published[0][0] in another call" in str(error) for error in found.values()), found

    def main(context: RankContext) -> bool:
        comm = Communicator.world(context, region_bytes=REGION_BYTES, deadline_s=SILENCE_S)
        with pytest.raises(RunError):
            comm.broadcast(of(4)) if comm.rank == 1 else comm.all_reduce(of(4))
        with pytest.raises(RevokedError):
            comm.barrier()
        return True

    assert launch(main, ranks=2, topology=LAPTOP, deadline_s=PATIENT_S) == [True, True]


@pytest.mark.parametrize("collective", ["broadcast", "scatter"])
def test_two_roots_that_only_write_are_told_so(collective: str) -> None:
    """Nobody waits for anything in this call: it is the next one that notices."""

    def program(comm: Communicator) -> None:
        if collective == "broadcast":
            comm.broadcast(of(4), root=comm.rank)
        else:
            comm.scatter(of(4), root=comm.rank)
        comm.barrier()

    assert any(isinstance(error, MismatchError) for error in failures(program).values())


def test_a_rank_that_left_is_named() -> None:
    found = failures(each_its_own(lambda c: c.barrier(), lambda c: None, lambda c: c.barrier()), ranks=3)
    assert set(found) == {0, 2}
    for error in found.values():
        assert isinstance(error, PeerLostError) and error.ranks == (1,)
    assert "rank 1 left; rank 0 waits in [barrier line 0 B u8] for rank 1 to ring published[1][0]" in str(found[0])


def test_a_rank_that_left_is_named_within_a_short_deadline() -> None:
    found = failures(each_its_own(lambda c: c.barrier(), lambda c: None), deadline_s=0.5)
    assert isinstance(found[0], PeerLostError)


@pytest.mark.parametrize("lives", [False, True])
def test_a_rank_that_does_not_come_is_named(lives: bool) -> None:
    """Where its pulse beats, as in a long computation, the deadline passed; else it is lost."""
    over = threading.Event()

    def program(comm: Communicator) -> None:
        if comm.rank == 1:
            if not lives:
                comm._context.session.play_dead()
            over.wait(PATIENT_S)
            return
        try:
            comm.all_reduce(of(4))
        finally:
            over.set()

    found = failures(program, deadline_s=SILENCE_S)
    error = found[0]
    if lives:
        assert list(found) == [0] and type(error) is DeadlineError
        assert "for rank 1 to ring published[1][0]" in str(error)
    else:
        assert isinstance(error, PeerLostError) and error.ranks == (1,)
        assert "rank 1 gave no sign of life" in str(error)


@on_ranks(ranks=2)
def test_a_revoked_communicator_raises_at_once(comm: Communicator) -> None:
    if comm.rank == 0:
        with pytest.raises(PeerLostError):
            comm.barrier()
        for _ in range(100):  # each wait would take its deadline
            with pytest.raises(RunError, match="this communicator was revoked: rank 1 left"):
                comm.all_reduce(of(4))


def test_an_input_error_of_one_rank_is_what_the_caller_sees() -> None:
    with pytest.raises(ArgumentError, match="cannot be reduced"):
        together(lambda c: c.all_reduce(of(4).view(">u4") if c.rank == 1 else of(4)), ranks=3)


# --- what an acceptance review found -------------------------------------------------------------------------------


@pytest.mark.deep(rows=lambda config: config in ("laptop", "twelve-hosts", "six-cards"))
@pytest.mark.parametrize("config", ["laptop", "one-host-four-ranks", "titan2-6xcz120", "twelve-hosts", "six-cards"])
def test_every_shipped_config_has_room_for_a_split(config: str) -> None:
    def main(context: RankContext) -> int:
        with Communicator.world(context) as comm:
            return int(part_of(comm, comm.rank % 2).all_reduce(np.ones(1, np.int32))[0])

    assert launch(main, ranks=4, topology=config, deadline_s=PATIENT_S) == [2] * 4


def test_ranks_with_other_rings_are_told_so() -> None:
    def main(context: RankContext) -> None:
        region_bytes = REGION_BYTES if context.rank == 0 else 2 * REGION_BYTES
        with Communicator.world(context, region_bytes=region_bytes) as comm:
            comm.all_reduce(of(50_000))

    with pytest.raises(RankFailures) as raised:
        launch(main, ranks=2, topology=LAPTOP, deadline_s=PATIENT_S)
    assert any(isinstance(error, MismatchError) for error in raised.value.failures.values())


@pytest.mark.parametrize("color", [2**70, "a", 1.5])
def test_a_color_is_a_64_bit_number(color: Any) -> None:
    with pytest.raises(ArgumentError, match="split takes"):
        together(lambda comm: comm.split(color), ranks=2)


OVERSTEPPING = """
from collectives.builder import Builder
from collectives.builder.recipes import algorithm

@algorithm("all_reduce")
def far_block(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        for chunk in chunks:
            b.publish(chunk, b.input(chunk.offset), block=40)
            b.fold(b.output(chunk.offset), chunk, b.input(chunk.offset), block=40)
"""


def test_an_algorithm_that_breaks_a_rule_is_refused_before_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OVERSTEPPING)
    mine = load_algorithm(f"{file}:far_block")
    with pytest.raises(BuilderError, match=r"mine\.py:9: .*publish of block 40, the loop has 1 a rank"):
        together(lambda comm: comm.all_reduce(of(100), variant=mine), ranks=2)
    file.write_text(OVERSTEPPING.replace("=40", "=0").replace("b.output(chunk", "b.output(4 + chunk"))
    far = load_algorithm(f"{file}:far_block")
    with pytest.raises(PlanError, match="operand dst is"):
        together(lambda comm: comm.all_reduce(of(100), variant=far), ranks=2)


def test_an_algorithm_whose_ranks_disagree_is_refused_before_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OVERSTEPPING.replace("b.nbytes, spread", "b.nbytes // (1 + b.rank), spread").replace("=40", "=0"))
    mine = load_algorithm(f"{file}:far_block")
    with pytest.raises(PlanError, match="builds other tables"):
        together(lambda comm: comm.all_reduce(of(50_000), variant=mine), ranks=2)


def test_a_communicator_says_who_it_is() -> None:
    def main(context: RankContext) -> str:
        with Communicator.world(context) as comm, comm.split(0, key=-comm.rank) as turned:
            return repr(turned)

    said = launch(main, ranks=2, topology="laptop")
    assert said[1] == "<Communicator rank 0 of 2, world ranks (1, 0)>"
