"""Arrays of comm.heap: the same results as any others, one place on all ranks, and freed when nobody has them."""

import gc
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms.catalog import build, recipe
from collectives.communicator.communicator import Communicator
from collectives.communicator.heap.heap import SymmetricHeap
from cxlemu.errors import ArgumentError, MismatchError
from cxlemu.memory import AdversaryRates, MemorySpec
from cxlemu.plan import DTYPES, Call, InHeap, Layout, Op
from cxlemu.world import RankContext, launch
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import in_random_order, slow
from faults.zero_copy_calls import HEAP_RANK_BYTES, lent, with_heap
from tests.helpers import worlds
from tests.helpers.expected import COLLECTIVES, OPS, REDUCTIONS, assert_right, input_bytes, some_inputs
from tests.helpers.in_place import may_be_in_place
from tests.helpers.tiers import PATIENT_S, examples
from tests.helpers.worlds import Program, calls_of

LAPTOP, SIX_CARDS = "laptop", "six-cards"
COHERENT, WORST = MemorySpec("shm"), MemorySpec()
BITWISE = ("band", "bor", "bxor")
MOVES = tuple(collective for collective in COLLECTIVES if collective not in ("barrier", "send"))
WORLDS = {
    "reference, shm": ("reference", COHERENT),
    "native, shm": ("native", COHERENT),
    "native, emulated, worst case": ("native", WORST),
    "reference, emulated, worst case": ("reference", WORST),
    "reference, emulated, adversary": ("reference", MemorySpec(seed=5, rates=AdversaryRates(0.3, 0.3, 0.3))),
}

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def together(program: Program, ranks: int = 3, *, world: str = "native, shm", **given: Any) -> list[Any]:
    engine, memory = WORLDS[world]
    return worlds.together(program, ranks, memory, engine, topology=SIX_CARDS, region_bytes=1 << 16, **given)


on_ranks = partial(worlds.on_ranks, by=together)


def made(comm: Communicator, array: np.ndarray) -> np.ndarray:
    """A copy in the pool."""
    copied = comm.heap.empty(array.shape, array.dtype)
    copied[...] = array
    return copied


def elsewhere(comm: Communicator, array: np.ndarray) -> np.ndarray:
    """A copy in the pool, at another place on every rank, and at no line's beginning: a part of an array of its own."""
    room = comm.heap.local.empty(array.size + 7 * comm.rank + 3, array.dtype)
    copied = room[7 * comm.rank + 1 :][: array.size].reshape(array.shape)
    copied[...] = array
    return copied


# --- results ------------------------------------------------------------------------------------------------------


def every_way(comm: Communicator, collective: str, dtype: str, op: str, root: int) -> list[bytes]:
    """The call with ordinary arrays, then with zero copy: out of place, with out in the pool, and in place.

    Arrays lie at the same place on every rank, and at another one on each; a rank whose array no peer reads has none.
    """
    call = Call(collective, "", comm.size, 301 * DTYPES[dtype].itemsize, dtype, root=root)
    rng = np.random.default_rng(comm.rank)
    blocks = input_bytes(replace(call, root=comm.rank), comm.rank) // call.nbytes
    x = rng.integers(1, 4, (blocks, 301)).astype(DTYPES[dtype]).reshape(-1)
    arguments: dict[str, Any] = {"op": op} if collective in REDUCTIONS else {}
    arguments |= {"root": root} if collective in ("broadcast", "gather", "scatter", "reduce") else {}

    def run(given_array: np.ndarray | None, variant: str, **out: Any) -> bytes:
        result = getattr(comm, collective)(given_array, variant=variant, **arguments, **out)
        return b"" if result is None else np.ascontiguousarray(result).tobytes()

    ordinary = "two_shot" if collective == "all_reduce" else "all"
    out_elements = 301 * (comm.size if collective in ("all_gather", "gather", "all_to_all") else 1)
    fresh = {} if collective == "broadcast" else {"out": np.empty(out_elements, DTYPES[dtype])}
    results = [run(x.copy(), ordinary, **fresh)]
    fresh = {} if collective == "broadcast" else {"out": np.empty(out_elements, DTYPES[dtype])}
    results.append(run(made(comm, x), "zero_copy", **fresh))
    results.append(run(elsewhere(comm, x), "zero_copy", **fresh))
    if collective == "all_reduce":
        results.append(run(made(comm, x), "zero_copy", out=made(comm, x)))
        results.append(run(made(comm, x), "zero_copy"))
    if collective == "all_gather":
        whole = comm.heap.zeros(out_elements, x.dtype)
        mine = whole[comm.rank * 301 :][:301]
        mine[:] = x
        results.append(run(mine, "zero_copy", out=whole))
    if collective == "reduce_scatter":
        whole = made(comm, x)
        results.append(run(whole, "zero_copy", out=whole[comm.rank * 301 :][:301]))
    if collective in ("all_gather", "gather") and comm.size > 1:
        ordinary = collective == "gather" and comm.rank == root
        whole = np.zeros(out_elements, x.dtype)
        whole = whole if ordinary else elsewhere(comm, whole)
        mine = whole[comm.rank * 301 :][:301]
        mine[:] = x
        results.append(run(mine, "zero_copy", out=whole))
    if collective == "all_reduce":
        results.append(run(elsewhere(comm, x), "zero_copy"))
        results.append(run(elsewhere(comm, x), "zero_copy", out=elsewhere(comm, x)))
        if comm.size > 1:  # some ranks in place, others not
            array = elsewhere(comm, x)
            results.append(run(array, "zero_copy", out=array if comm.rank else elsewhere(comm, x)))
    if collective == "reduce" and comm.size > 1:
        results.append(run(x.copy() if comm.rank == root else elsewhere(comm, x), "zero_copy"))
    if comm.size > 1 and collective in ("scatter", "broadcast"):
        given_array = elsewhere(comm, x) if comm.rank == root else None if collective == "scatter" else x.copy()
        fresh = {} if collective == "broadcast" else {"out": np.empty(out_elements, DTYPES[dtype])}
        results.append(run(given_array, "zero_copy", **fresh))
    return results


FAST = {("native, shm", 2), ("native, emulated, worst case", 2)}


@pytest.mark.deep(rows=lambda world: world == "native, shm")
@pytest.mark.deep(rows=lambda world, ranks: (world, ranks) not in FAST)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_results_are_those_of_ordinary_arrays(world: str, ranks: int) -> None:
    cases = [(c, dtype, "sum") for c, dtype in zip(MOVES, DTYPES, strict=False)]
    cases += [(c, "u32" if op in BITWISE else "f32", op) for c in REDUCTIONS for op in OPS[1:]]
    cases += [("all_reduce", dtype, "sum") for dtype in DTYPES]

    def program(comm: Communicator) -> list[tuple[str, ...]]:
        wrong = []
        for number, (collective, dtype, op) in enumerate(cases):
            right, *others = every_way(comm, collective, dtype, op, number % comm.size)
            wrong += [(collective, dtype, op, str(way)) for way, other in enumerate(others) if other != right]
        return wrong

    assert together(program, ranks, world=world) == [[]] * ranks


def calls_in_a_row(context: RankContext) -> list[bool]:
    """x is rewritten as soon as a call returns; what peers read must not change under their hands."""
    right = []
    with Communicator.world(context, engine="native", region_bytes=1 << 16) as comm:
        x, y = comm.heap.empty(20_000, np.int32), comm.heap.empty((comm.size, 20_000), np.int32)
        for number in range(30):
            x[:] = np.arange(20_000) * number + comm.rank
            comm.all_gather(x, out=y)
            x[:] = -1
            right.append(all((y[k] == np.arange(20_000) * number + k).all() for k in range(comm.size)))
            x[:] = number + comm.rank
            comm.all_reduce(x)
            right.append((x == comm.size * number + sum(range(comm.size))).all())
        del x, y
    return right


@pytest.mark.deep(rows=lambda how: how == "processes")
@pytest.mark.parametrize("how", ["threads", "processes"])
def test_an_input_may_change_when_its_call_returns(how: Any) -> None:
    seen = launch(calls_in_a_row, ranks=3, topology=SIX_CARDS, memory=COHERENT, how=how, deadline_s=PATIENT_S)
    assert seen == [[True] * 60] * 3


PLACES = Layout(3, 2, 2, 1024, 8, 256)


@pytest.mark.parametrize("collective", MOVES)
@examples(30, derandomize=True)
@given(st.data())
def test_arrays_on_the_cards_are_right_in_any_order_of_steps(collective: str, data: st.DataObject) -> None:
    """Where NumPy's stores are the pool's: every read of a peer sees what the array's owner stores, as it stores it."""
    layout = with_heap(PLACES)
    in_place = data.draw(st.booleans()) and may_be_in_place(collective, "zero_copy")
    nbytes = data.draw(st.sampled_from([0, 1, 63, 64, 200, 1000]))
    redop = "sum" if collective in REDUCTIONS else "none"
    call = Call(collective, "zero_copy", 3, nbytes, "u8", redop, data.draw(st.integers(0, 2)), in_place)
    heap = lent(call, output=data.draw(st.booleans())).heap
    assert heap is not None
    if in_place and collective == "all_gather":
        heap = InHeap(heap.input, nbytes, told=True)
    call = replace(call, heap=heap)
    plan, seed = build(recipe(collective, "zero_copy"), layout, call), data.draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    program = [(plan, some_inputs(call, rng)) for _ in range(3)]
    order, apart = data.draw(st.sampled_from([in_random_order(seed), slow(seed % 3)])), data.draw(st.integers(0, 300))
    world = Lockstep(layout, memory=COHERENT, order=order, mapped=True, apart=apart)
    assert_right(world, program)


# --- which calls are zero copy ------------------------------------------------------------------------------------


def test_whole_arrays_of_the_pool_are_lent_by_themselves_and_others_are_not() -> None:
    def program(comm: Communicator) -> list[str]:
        taken = calls_of(comm)
        x = comm.heap.zeros((comm.size, 40_000), np.float32)
        small = comm.heap.zeros(4, np.float32)
        taken.clear()
        comm.all_gather(x)
        comm.all_reduce(x.reshape(-1))
        comm.broadcast(x)
        comm.all_gather(np.zeros(40_000))
        comm.all_gather(x[comm.rank])  # at another place on every rank
        comm.all_to_all(x, x)
        comm.scatter(x if comm.rank == 0 else None, np.empty(40_000, np.float32))
        comm.all_gather(small)
        return [call.algorithm for call in taken]

    zero, rest = ["zero_copy"] * 3, ["all", "all", "all", "all", "line"]
    assert together(program, 2) == [zero + rest] * 2


@on_ranks(2, gives=[[1.0, 3.0], [3.0, 3.0]])
def test_collectives_without_zero_copy_take_arrays_of_the_pool_as_any_others(comm: Communicator) -> list[float]:
    x = comm.heap.full(40_000, comm.rank + 1.0, np.float32)
    return [float(comm.scan(x)[-1]), float(comm.all_gatherv(x)[-1])]


def test_the_choice_says_why() -> None:
    def program(comm: Communicator) -> tuple[str, str]:
        return comm.choice("all_gather", 1 << 20, in_pool=True)

    variant, reason = together(program, 1)[0]
    assert variant == "zero_copy"
    assert reason == "1 MiB that lie in the pool: peers read them there, nothing is copied to be published"


REFUSED: dict[str, tuple[Program, str]] = {
    "an ordinary array": (
        lambda c: c.all_gather(np.zeros(9), variant="zero_copy"),
        "all_gather zero_copy publishes x where it lies in the pool: x must be an array that comm.heap made",
    ),
    "all_to_all in place": (
        lambda c: c.all_to_all(x := c.heap.zeros(8), x, variant="zero_copy"),
        "all_to_all zero_copy .* peers still read what the result would replace: pass out",
    ),
    "broken elements": (
        lambda c: c.all_reduce(c.heap.zeros(80, np.uint8)[4:76].view(np.float64), variant="zero_copy"),
        "or whole elements of one",
    ),
    "objects": (lambda c: c.heap.empty(3, object), "arrays of object hold Python objects"),
    "a negative shape": (lambda c: c.heap.empty((2, -1)), r"\(2, -1\) is not the shape of an array"),
    "a shape too large": (lambda c: c.heap.empty(2**62), "shape 4611686018427387904 is larger than any heap"),
    "a broken shape": (lambda c: c.heap.empty(2.5), "2.5 is not the shape of an array"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_lent_is_refused_before_anything_is_sent(what: str) -> None:
    call, message = REFUSED[what]

    def program(comm: Communicator) -> float:
        with pytest.raises(ArgumentError, match=message):
            call(comm)
        return float(comm.all_reduce(np.ones(1))[0])  # the communicator goes on

    assert together(program, 2) == [2.0, 2.0]


@on_ranks(2, gives=[[0.0, 1.0]] * 2)
def test_ranks_lend_different_parts(comm: Communicator) -> list[float]:
    x = comm.heap.full((2, 1000), comm.rank, np.float64)
    return comm.all_gather(x[comm.rank], variant="zero_copy")[:, -1].tolist()


# --- the heap -----------------------------------------------------------------------------------------------------


def test_arrays_are_where_their_backend_can_have_them() -> None:
    def program(comm: Communicator) -> tuple[bool, bool, str]:
        x = comm.heap.full((3, 5), 7, np.int16)
        assert (x == 7).all() and x.shape == (3, 5) and x.flags.c_contiguous and x.ctypes.data % 64 == 0
        return any(np.shares_memory(x, card) for card in comm._context.pool.cards), x.flags.owndata, repr(comm.heap)

    on_card, owns, text = together(program, 2)[1]
    assert (on_card, owns) == (True, False)
    assert re.fullmatch(r"<SymmetricHeap of rank 1: 1 array, views of a card; ([\d.]+ .iB) of \1 free>", text)
    on_card, owns, text = together(program, 2, world="reference, emulated, worst case")[1]
    assert not on_card and "private memory behind an emulated cache" in text


@on_ranks(gives=[[False, True]] * 3)
def test_a_place_is_used_again_when_all_ranks_and_all_views_have_let_it_go(comm: Communicator) -> list[bool]:
    def place(array: np.ndarray) -> int:
        return comm.heap._live[array.ctypes.data].at

    x = comm.heap.empty(1000)
    at = place(x)
    view = x[10:20] if comm.rank == 0 else None
    del x
    second = comm.heap.empty(1000)  # rank 0 still sees a part of the first
    del view
    third = comm.heap.empty(1000)
    return [place(second) == at, place(third) == at]


def test_the_heap_says_what_fills_it() -> None:
    def program(comm: Communicator) -> str:
        held = [comm.heap.empty(1 << 18, np.uint8) for _ in range(3)]
        with pytest.raises(ArgumentError) as raised:
            comm.heap.empty(1 << 19, np.uint8)
        del held[1:]
        comm.heap.empty(1 << 19, np.uint8)
        return str(raised.value)

    message = together(program, 2, heap_bytes=1 << 20)[0]
    assert message == (
        "the heap has no room for 524288 bytes: of 1048576 bytes a rank 262144 are free, 262144 in a row, and it holds "
        "3 arrays, the largest uint8 (262144,); free some, or make the communicator with a larger heap_bytes"
    )


@on_ranks(2, heap_bytes=1 << 20, gives=[True] * 2)
def test_arrays_in_cycles_are_collected_before_the_heap_is_full(comm: Communicator) -> bool:
    cycle: list[Any] = [comm.heap.empty(3 << 18, np.uint8)]
    cycle.append(cycle)
    del cycle
    return comm.heap.empty(3 << 18, np.uint8).nbytes == 3 << 18


def test_a_heap_that_does_not_fit_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"a heap of \d+ bytes a rank is not possible: this communicator has room for"
    ):
        together(lambda comm: None, 2, heap_bytes=1 << 40)


@on_ranks(2, gives=[3.0, 3.0])
def test_ranks_that_ask_for_different_sizes_are_told_so(comm: Communicator) -> float:
    with pytest.raises(MismatchError, match="rank 0 asks the pool for an array of 800 bytes, rank 1 for 808"):
        comm.heap.empty(100 + comm.rank)
    return float(comm.heap.full(1, 3.0)[0])


def test_arrays_that_outlive_their_communicator_are_named() -> None:
    kept: list[np.ndarray] = []

    def main(context: RankContext) -> list[str]:
        comm = Communicator.world(context)
        kept.append(comm.heap.empty((2, 50), np.float32))
        [leak] = comm.heap.leaks()
        assert (leak.shape, leak.dtype, leak.nbytes, leak.freed_by) == ((2, 50), "float32", 400, ())
        with pytest.warns(
            ResourceWarning, match=r"rank 0 still holds 1 array in the pool .* float32 \(2, 50\) of 400 B"
        ):
            comm.close()
        return leak.where.split(":")

    [[file, line]] = launch(main, ranks=1, topology=LAPTOP, memory=COHERENT)
    assert file == __file__ and int(line) > 0
    kept[0][:] = 1  # the memory is still there


@on_ranks(4, gives=[[6.0, 2.0], [6.0, 4.0]] * 2)
def test_a_split_communicator_has_a_heap_of_its_own(comm: Communicator) -> list[float]:
    half = comm.split(comm.rank % 2)
    x, y = comm.heap.full(9000, comm.rank, np.float64), half.heap.full(9000, comm.rank, np.float64)
    half.all_reduce(y)
    comm.all_reduce(x)
    return [x[0], y[0]]


# --- the heap, whenever arrays die --------------------------------------------------------------------------------


class Meeting:
    """An all_gather among threads."""

    def __init__(self, ranks: int) -> None:
        self.barrier, self.rows = threading.Barrier(ranks, timeout=PATIENT_S), [np.empty(0)] * ranks

    def of(self, rank: int) -> Callable[[np.ndarray], np.ndarray]:
        def all_gather(mine: np.ndarray) -> np.ndarray:
            self.barrier.wait()
            self.rows[rank] = mine
            self.barrier.wait()
            return np.stack(self.rows)

        return all_gather


@pytest.mark.deep
@examples(15, derandomize=True)
@given(st.integers(1, 3), st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 1 << 20))
def test_places_agree_and_never_overlap_whatever_is_collected_when(ranks: int, sizes: list[int], seed: int) -> None:
    meeting, strips = Meeting(ranks), [np.zeros(16 * 64, np.uint8) for _ in range(ranks)]
    places: list[list[int | None]] = [[] for _ in range(ranks)]

    def run(rank: int) -> None:
        heap = SymmetricHeap(strips[rank], True, rank, ranks, meeting.of(rank))
        rng, held = np.random.default_rng([seed, rank]), list[np.ndarray]()
        for number, lines in enumerate(sizes):
            try:
                x = heap.empty(lines * 64, np.uint8)
                places[rank].append(x.ctypes.data - strips[rank].ctypes.data)
                x[:] = number
                held.append(x)
                del x
            except ArgumentError:
                places[rank].append(None)
            while held and rng.random() < 0.5:
                held.pop(int(rng.integers(len(held))))
            assert all((x == x[0]).all() for x in held) and len({x[0] for x in held}) == len(held)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == places[0] and len(mine) == len(sizes) for mine in places)
    gc.collect()


# --- plans --------------------------------------------------------------------------------------------------------


def test_nothing_is_copied_into_a_slot() -> None:
    """But for the two-shot result where out is not in the pool."""
    layout = with_heap(PLACES)
    for collective in MOVES:
        call = lent(
            Call(collective, "zero_copy", 3, 300, "u8", "sum" if collective in REDUCTIONS else "none"), output=True
        )
        plan = build(recipe(collective, "zero_copy"), layout, call)
        assert all(region.heap for region in plan.frame.regions)
        stores = {i.op for part in plan.parts for s in part.streams for i in s.instructions if i.dst.kind == 2}
        assert stores == {Op.WRITE}


def test_a_heap_that_is_too_small_for_a_call_is_refused() -> None:
    call = Call("all_gather", "zero_copy", 3, 64, heap=InHeap(HEAP_RANK_BYTES))
    with pytest.raises(ArgumentError, match="do not lie in the heap, which has 81920 bytes a rank"):
        build(recipe("all_gather", "zero_copy"), with_heap(PLACES), call).part(0)
