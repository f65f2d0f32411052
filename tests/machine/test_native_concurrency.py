"""The native engine among real threads and processes, more of them than cores: results, and errors that name ranks."""

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from collectives.algorithms.catalog import variants
from collectives.communicator.communicator import Communicator
from cxlemu.errors import DeadlineError, MismatchError, PeerLostError, RankFailures
from cxlemu.memory import MemorySpec
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPES, Call
from cxlemu.plan.reduction import folds
from cxlemu.world import RankContext, launch
from tests.helpers.expected import COLLECTIVES, NOTHING, OPS, REDUCTIONS, expected, input_bytes
from tests.helpers.tiers import PATIENT_S

LAPTOP = "laptop"
Program = Callable[[Communicator], Any]
SILENCE_S = 2.0  # after which a rank that shows no life is given up


def native(context: RankContext, deadline_s: float = PATIENT_S) -> Communicator:
    return Communicator.world(context, region_bytes=1 << 16, engine="native", deadline_s=deadline_s)


COHERENT = MemorySpec("shm")
MEMORIES = {"shm": COHERENT, "emulated": MemorySpec(), "adversary": MemorySpec(seed=3)}


def together(
    program: Program,
    ranks: int = 2,
    *,
    how: Any = "threads",
    deadline_s: float = PATIENT_S,
    memory: MemorySpec = COHERENT,
) -> list[Any]:
    """What ``program`` returns on every rank."""
    main = partial(_main, program, deadline_s)
    # Without heaps of model size, which a sanitizer keeps long after they are given back.
    return launch(main, ranks=ranks, topology=LAPTOP, memory=memory, how=how, deadline_s=PATIENT_S, heap_bytes="cards")


def _main(program: Program, deadline_s: float, context: RankContext) -> Any:
    with native(context, deadline_s) as comm:
        return program(comm)


def failures(*programs: Program, deadline_s: float = PATIENT_S) -> dict[int, BaseException]:
    with pytest.raises(RankFailures) as raised:
        together(lambda comm: programs[comm.rank](comm), len(programs), deadline_s=deadline_s)
    return raised.value.failures


# --- results ------------------------------------------------------------------------------------------------------


def inputs_of(call: Call, number: int) -> list[Bytes]:
    """Every rank knows every rank's input; small numbers, so that floats add up exactly."""
    rng, dtype = np.random.default_rng(number), DTYPES[call.dtype]
    counts = [input_bytes(call, rank) // dtype.itemsize for rank in range(call.ranks)]
    return [rng.integers(1, 3, count).astype(dtype).view(np.uint8) for count in counts]


def perform(comm: Communicator, call: Call, given: Bytes) -> Bytes:
    """The call, through the front door; its result as bytes."""
    dtype = DTYPES[call.dtype]
    x, blocks = given.view(dtype).copy(), call.nbytes // dtype.itemsize
    zero_copy = call.algorithm == "zero_copy"
    if zero_copy:  # all ranks have an x as large as the largest input
        x = comm.heap.empty(input_bytes(replace(call, root=comm.rank), comm.rank) // dtype.itemsize, dtype)
        x[: given.nbytes // dtype.itemsize] = given.view(dtype)
    at_root = comm.rank == call.root
    match call.collective:
        case "barrier":
            result = comm.barrier(variant=call.algorithm)
        case "broadcast":
            x = x if at_root or zero_copy else np.empty(blocks, dtype)
            result = comm.broadcast(x, root=call.root, variant=call.algorithm)
        case "scatter":
            result = comm.scatter(
                x if at_root or zero_copy else None, np.empty(blocks, dtype), root=call.root, variant=call.algorithm
            )
        case "send":
            x = x if at_root else np.empty(blocks, dtype)
            result = comm.pass_on(x, root=call.root, variant=call.algorithm)
        case "gather":
            result = comm.gather(x, root=call.root, variant=call.algorithm)
        case "reduce":
            result = comm.reduce(x, call.redop, root=call.root, variant=call.algorithm)
        case "all_reduce":
            result = comm.all_reduce(x, call.redop, variant=call.algorithm)
        case "reduce_scatter":
            result = comm.reduce_scatter(x, call.redop, np.empty(blocks, dtype), variant=call.algorithm)
        case other:
            result = getattr(comm, other)(x, variant=call.algorithm)
    return NOTHING if result is None else np.ascontiguousarray(result).reshape(-1).view(np.uint8)


def mixed_calls(comm: Communicator, count: int, seed: int) -> int:
    """Any collectives in any variant, from nothing to several rounds; how many of their results were right."""
    chance = random.Random(seed)
    right = 0
    for number in range(count):
        collective = chance.choice(COLLECTIVES)
        dtype = chance.choice(list(DTYPES))
        op = chance.choice([each for each in OPS if folds(dtype, each)])
        elements = 0 if collective == "barrier" else chance.choice([0, 1, 7, 100, 1000, 5000])
        call = Call(
            collective,
            chance.choice(variants(collective)),
            comm.size,
            elements * DTYPES[dtype].itemsize,
            dtype,
            op if collective in REDUCTIONS else "none",
            chance.randrange(comm.size) if collective in ("broadcast", "gather", "scatter", "reduce", "send") else 0,
        )
        inputs = inputs_of(call, number)
        got = perform(comm, call, inputs[comm.rank])
        right += got.tobytes() == expected(call, inputs)[comm.rank].tobytes()
    return right


@pytest.mark.deep(rows=lambda how, ranks, calls: calls > 100 or (how, ranks) == ("processes", 4))
@pytest.mark.each_value_once
@pytest.mark.parametrize("calls", [100, 300])
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize(("how", "ranks"), [("threads", 2), ("threads", 5), ("processes", 2), ("processes", 4)])
def test_every_result_is_right(how: str, ranks: int, memory: str, calls: int) -> None:
    count = calls // ranks  # ranks share hosts where there are more than 2
    program = partial(mixed_calls, count=count, seed=ranks)
    assert together(program, ranks, how=how, memory=MEMORIES[memory]) == [count] * ranks


def sum_of_calls(comm: Communicator, count: int) -> bool:
    x = np.zeros(1, np.int64)
    for number in range(count):
        x[0] = number * (comm.rank + 1)
        if comm.all_reduce(x)[0] != number * comm.size * (comm.size + 1) // 2:
            return False
    return True


@pytest.mark.deep(rows=lambda how: how == "processes")
@pytest.mark.parametrize("how", ["threads", "processes"])
def test_thousands_of_small_calls(how: str) -> None:
    assert together(partial(sum_of_calls, count=5000), 2, how=how) == [True] * 2


def test_split_communicators_beside_their_parents() -> None:
    def program(comm: Communicator) -> Any:
        half = comm.split(comm.rank // 2)
        single = half.split(half.rank)
        assert single is not None
        sums = [c.all_reduce(np.ones(500, np.int32)) for _ in range(20) for c in (single, half, comm)]
        return [set(x.tolist()) for x in sums]

    assert together(program, 4) == [[{1}, {2}, {4}] * 20] * 4


def test_two_communicators_of_one_world() -> None:
    def main(context: RankContext) -> list[int]:
        first, second = native(context), native(context)
        return [int(c.all_reduce(np.ones(1, np.int32))[0]) for c in (second, first, second, second, first)]

    assert launch(main, ranks=2, topology=LAPTOP, memory=MemorySpec("shm"), deadline_s=PATIENT_S) == [[2] * 5] * 2


def test_asynchronous_calls_run_in_the_order_they_were_made() -> None:
    def program(comm: Communicator) -> Any:
        x = np.ones(3000, np.int64)
        handles = [comm.all_reduce(x, async_op=True) for _ in range(20)]
        y = comm.all_reduce(np.ones(1, np.int64))
        assert all(handle.done for handle in handles)
        assert all(handle.wait() is x for handle in handles)
        return set(x.tolist()), int(y[0])

    assert together(program) == [({2**20}, 2)] * 2


# --- errors -------------------------------------------------------------------------------------------------------


def of(count: int, dtype: str = "i4") -> np.ndarray:
    return np.zeros(count, dtype)


DISAGREEMENTS: dict[str, tuple[Program, Program]] = {
    "op": (lambda c: c.all_reduce(of(4)), lambda c: c.all_reduce(of(4), "max")),
    "dtype": (lambda c: c.all_reduce(of(4)), lambda c: c.all_reduce(of(4, "f4"))),
    "count, one large": (lambda c: c.all_gather(of(4)), lambda c: c.all_gather(of(90_000))),
    "variant": (lambda c: c.all_gather(of(4)), lambda c: c.all_gather(of(4), variant="all")),
    "collective": (lambda c: c.all_reduce(of(4)), lambda c: c.all_gather(of(4))),
    "order": (lambda c: (c.barrier(), c.all_reduce(of(4))), lambda c: (c.all_reduce(of(4)), c.barrier())),
    "two roots that only write": (
        lambda c: (c.broadcast(of(4), root=0), c.barrier()),
        lambda c: (c.broadcast(of(4), root=1), c.barrier()),
    ),
}


@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_ranks_that_call_different_things_are_told_so(what: str) -> None:
    found = failures(*DISAGREEMENTS[what])
    [mismatch, *_] = [str(error) for error in found.values() if isinstance(error, MismatchError)]
    assert "all ranks must call the same" in mismatch and "rank 0" in mismatch and "rank 1" in mismatch


def test_a_rank_that_left_is_named() -> None:
    found = failures(lambda c: c.barrier(), lambda c: None, lambda c: c.barrier())
    assert set(found) == {0, 2}
    for error in found.values():
        assert isinstance(error, PeerLostError) and error.ranks == (1,)
    assert "rank 1 left; rank 0 waits in [barrier line 0 B u8] for rank 1 to ring published[1][0]" in str(found[0])


def silent_or_alive(beats: bool) -> dict[int, BaseException]:
    """Rank 1 does not come; it may show that it lives."""
    over = threading.Event()

    def stays_away(comm: Communicator) -> None:
        if not beats:
            comm._context.session.play_dead()  # nor does its pulse beat
        while not over.wait(0.02):
            if beats:
                comm._context.session.beat()

    def comes(comm: Communicator) -> None:
        try:
            comm.all_reduce(of(4))
        finally:
            over.set()

    return failures(comes, stays_away, deadline_s=SILENCE_S)


def test_a_rank_that_gives_no_sign_of_life_is_named() -> None:
    error = silent_or_alive(beats=False)[0]
    assert isinstance(error, PeerLostError) and error.ranks == (1,) and "rank 1 gave no sign of life" in str(error)


def test_a_rank_that_lives_but_does_not_come_is_a_deadline() -> None:
    found = silent_or_alive(beats=True)
    assert list(found) == [0] and type(found[0]) is DeadlineError
    assert "for rank 1 to ring published[1][0] with epoch 2 (it shows 0; " in str(found[0])


def leave_in_the_middle(comm: Communicator) -> int:
    for number in range(1000):
        if comm.rank == 1 and number == 500:
            return number
        comm.all_reduce(np.ones(10, np.float32))
    raise AssertionError("rank 0 did not notice")


def test_a_process_that_left_in_the_middle_is_named() -> None:
    with pytest.raises(RankFailures) as raised:
        together(leave_in_the_middle, 2, how="processes")
    [error] = raised.value.failures.values()
    assert isinstance(error, PeerLostError) and error.ranks == (1,)
