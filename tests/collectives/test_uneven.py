"""Blocks that differ in size, and scans, beside NumPy: every form of argument, empty blocks, memories and engines."""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Communicator
from collectives.algorithms import catalog
from collectives.checking.symbolic import verify
from collectives.contracts import COLLECTIVES, block_sizes, buffers
from collectives.layouts import layout_for
from cxlemu import RankContext, launch
from cxlemu.errors import ArgumentError, PlanFileError
from cxlemu.memory import AdversaryRates, MemorySpec
from cxlemu.plan import Call
from cxlemu.plan import file as plan_file
from faults.prove import prove
from faults.verdict import Verdict
from tests.helpers import worlds
from tests.helpers.tiers import PATIENT_S, examples
from tests.helpers.worlds import Program

MEMORIES = {"shm": MemorySpec(), "emulated": MemorySpec("emulated", seed=5, rates=AdversaryRates())}
UNEVEN = [name for name, its in COLLECTIVES.items() if its.uneven]


together = partial(worlds.together, memory=MEMORIES["shm"], region_bytes=1 << 14)
on_ranks = partial(worlds.on_ranks, by=together)


def values(rank: int, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng((seed, rank)).integers(-99, 99, count).astype(np.int16)


def split(flat: np.ndarray, counts: list[int]) -> list[np.ndarray]:
    return np.split(flat, list(accumulate(counts))[:-1])


def spread_out(counts: list[int], gap: int) -> tuple[int, list[int]]:
    """How long an array is in which the last block comes first, with gaps between; and where each block begins."""
    displs, at = [0] * len(counts), 0
    for k in reversed(range(len(counts))):
        displs[k], at = at + gap, at + gap + counts[k]
    return at + gap, displs


def gathers(counts: list[int], seed: int, gap: int) -> Program:
    def program(comm: Communicator) -> None:
        blocks = [values(rank, counts[rank], seed) for rank in range(comm.size)]
        x, everything = blocks[comm.rank], np.concatenate(blocks)
        assert (comm.all_gatherv(x) == everything).all()
        assert (comm.all_gatherv(x, counts=counts) == everything).all()
        length, displs = spread_out(counts, gap)
        out = np.full(length, 1234, np.int16)
        assert comm.all_gatherv(x, out, counts, displs) is out
        lists = [np.empty(count, np.int16) for count in counts]
        assert comm.gatherv(x, lists if comm.rank == 1 else None, root=1) is (lists if comm.rank == 1 else None)
        for k, block in enumerate(blocks):
            assert (out[displs[k] : displs[k] + counts[k]] == block).all()
            assert comm.rank != 1 or (lists[k] == block).all()
        assert (out == 1234).sum() >= length - len(everything)
        place = np.zeros(len(everything), np.int16)
        mine = split(place, counts)[comm.rank]
        mine[:] = x
        assert (comm.all_gatherv(mine, place, counts) == everything).all()
        found = comm.persistent.gatherv(x, None, counts)()
        assert found is None if comm.rank else (found == everything).all()

    return program


def scatters(counts: list[int], seed: int, gap: int) -> Program:
    def program(comm: Communicator) -> None:
        rank, size = comm.rank, comm.size
        all_blocks = [split(values(source, sum(counts), seed), counts) for source in range(size)]
        blocks = all_blocks[rank]
        out = np.empty(counts[rank], np.int16)
        whole = np.concatenate(blocks)
        assert (comm.scatterv(whole, out, counts, root=0) == all_blocks[0][rank]).all()
        length, displs = spread_out(counts, gap)
        apart = np.full(length, 77, np.int16)
        for at, block in zip(displs, blocks, strict=True):
            apart[at : at + len(block)] = block
        assert (comm.scatterv(apart, out, counts, displs, root=1) == all_blocks[1][rank]).all()
        total = np.sum([theirs[rank] for theirs in all_blocks], axis=0, dtype=np.int16)
        assert (comm.reduce_scatterv(whole, counts=counts) == total).all()
        assert (comm.reduce_scatterv(blocks, out=out) == total).all() and (whole == np.concatenate(blocks)).all()
        pending = comm.reduce_scatterv(whole, "max", counts=counts, async_op=True)
        sums = comm.scan(blocks[0].copy())
        assert (sums == np.sum([b[0] for b in all_blocks[: rank + 1]], axis=0, dtype=np.int16)).all()
        assert (pending.wait() == np.max([theirs[rank] for theirs in all_blocks], axis=0)).all()

    return program


def exchanges(matrix: list[list[int]], seed: int, gap: int) -> Program:
    def program(comm: Communicator) -> None:
        rank = comm.rank
        sends, gets = matrix[rank], [row[rank] for row in matrix]
        flats = [values(source, sum(matrix[source]), seed) for source in range(comm.size)]
        wanted = [split(flats[source], matrix[source])[rank] for source in range(comm.size)]
        right = np.concatenate(wanted)
        assert (comm.all_to_allv(flats[rank], send_counts=sends) == right).all()
        outs = [np.empty(count, np.int16) for count in gets]
        assert comm.all_to_allv(split(flats[rank], sends), outs) is outs
        assert (np.concatenate(outs) == right).all()
        length, displs = spread_out(gets, gap)
        out = np.zeros(length, np.int16)
        comm.all_to_allv(flats[rank], out, sends, gets, recv_displs=displs)
        for at, block in zip(displs, wanted, strict=True):
            assert (out[at : at + len(block)] == block).all()
        again = comm.persistent.all_to_allv(flats[rank], None, sends)
        assert (again() == right).all() and (again() == right).all()

    return program


def counts_of(ranks: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.sampled_from([0, 0, 1, 3, 40, most]), min_size=ranks, max_size=ranks)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("engine", ["native", "reference"])
@examples(4)
@given(st.data())
def test_every_uneven_verb_does_what_numpy_does(memory: str, engine: str, data: st.DataObject) -> None:
    ranks, gap, seed = data.draw(st.integers(2, 4)), data.draw(st.integers(0, 3)), data.draw(st.integers(0, 99))
    most = 3000 if engine == "native" else 300
    counts = data.draw(counts_of(ranks, most))
    matrix = [data.draw(counts_of(ranks, most // 4)) for _ in range(ranks)]
    for program in (gathers(counts, seed, gap), scatters(counts, seed, gap), exchanges(matrix, seed, gap)):
        together(program, ranks, memory=MEMORIES[memory], engine=engine)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("integrity", [None, "crc32c"])
def test_uneven_blocks_of_all_sizes_in_every_variant(memory: str, integrity: str | None) -> None:
    counts = [0, 5000, 17]

    def program(comm: Communicator) -> None:
        blocks = [values(rank, counts[rank], 1) for rank in range(3)]
        for variant in catalog.variants("all_gatherv"):
            assert (comm.all_gatherv(blocks[comm.rank], variant=variant) == np.concatenate(blocks)).all()
            x = np.concatenate(blocks)
            mine = comm.reduce_scatterv(x, counts=counts, variant=variant)
            assert (mine == blocks[comm.rank] * 3).all()
            total = comm.exscan(np.full(700, comm.rank + 1), variant=variant)
            assert set(total.tolist()) == {[1, 1, 3][comm.rank]}

    together(program, 3, memory=MEMORIES[memory], integrity=integrity)


def test_scans_fold_floats_in_rank_order() -> None:
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(5, 999)).astype(np.float32)

    def program(comm: Communicator) -> None:
        x = rows[comm.rank].copy()
        got = comm.scan(x, out=np.empty_like(x))
        before = comm.exscan(x)
        wanted = list(accumulate(rows))
        assert (got == wanted[comm.rank]).all()
        assert (before == (wanted[comm.rank - 1] if comm.rank else rows[0])).all() and before is x

    for memory in MEMORIES:
        together(program, 5, memory=MEMORIES[memory])


# --- what does not fit --------------------------------------------------------------------------------------------

MISUSES: dict[str, tuple[Callable[[Communicator], Any], str]] = {
    "what one sends and the other does not take": (
        lambda c: c.all_to_allv(np.zeros(4, np.int8), np.zeros(4, np.int8), [2, 2], [2, 2] if c.rank else [1, 3]),
        "all_to_allv: rank 0 sends 2 bytes to rank 0, which expects 1",
    ),
    "counts that the root has otherwise": (
        lambda c: c.gatherv(np.zeros(c.rank + 1, np.int8), counts=[1, 3]),
        "gatherv: rank 1 sends 2 bytes to rank 0, which expects 3",
    ),
    "blocks of which no rank knows the size": (
        lambda c: c.reduce_scatterv(np.zeros(4)),
        "the size of the block from rank 0 to rank 0 is unknown: pass counts",
    ),
    "blocks that differ among ranks": (
        lambda c: c.reduce_scatterv([np.zeros(1 + c.rank), np.zeros(2)]),
        "the block of rank 0 has 8 bytes on rank 0, and 16 on another",
    ),
    "another number of counts": (
        lambda c: c.all_gatherv(np.zeros(2), counts=[2]),
        "counts of out are 2 whole numbers of elements from 0 on, not",
    ),
    "negative counts": (
        lambda c: c.all_gatherv(np.zeros(2), counts=[2, -1]),
        "counts of out are 2 whole numbers of elements from 0 on, not",
    ),
    "an array of another size": (
        lambda c: c.all_gatherv(np.zeros(2), np.zeros(5), counts=[2, 2]),
        r"out has 5 elements, but the blocks have 2 \+ 2: pass an array of 4, or displacements",
    ),
    "a block outside of its array": (
        lambda c: c.all_gatherv(np.zeros(2), np.zeros(5), [2, 2], [0, 4]),
        "out has 5 elements, but a block has 2 from 4 on",
    ),
    "blocks of the result that overlap": (
        lambda c: c.all_gatherv(np.zeros(2), np.zeros(5), [2, 2], [0, 1]),
        r"displacements of out: blocks overlap in \[0, 1\]",
    ),
    "a list of another length": (
        lambda c: c.all_to_allv([np.zeros(2)]),
        "x is a list of 1 arrays: pass one for each of 2 ranks",
    ),
    "a list of several dtypes": (
        lambda c: c.reduce_scatterv([np.zeros(2), np.zeros(2, np.int8)]),
        "x is a list of arrays of several dtypes",
    ),
    "several dtypes and no place for them": (
        lambda c: c.all_to_allv([np.zeros(2), np.zeros(2, np.int8)]),
        "all_to_allv: x has several dtypes: pass out, a list with each rank's array",
    ),
    "objects among several dtypes": (
        lambda c: c.all_to_allv([np.zeros(2), np.array([None, "x"])], [np.zeros(2), np.zeros(2)]),
        "x has Python objects",
    ),
    "objects in a list": (lambda c: c.all_to_allv([np.zeros(2, "O")] * 2), "x has Python objects"),
    "objects inside structures": (
        lambda c: c.all_gatherv(np.zeros(1, "O,i4"), [np.zeros(1, "O,i4")] * 2),
        "x has Python objects",
    ),
    "objects with displacements": (
        lambda c: c.all_gatherv(np.zeros(2), np.zeros(4, "O"), [2, 2], [2, 0]),
        "out has Python objects",
    ),
    "no place for a block": (
        lambda c: c.scatterv(np.zeros(4), None, [2, 2], root=0) if c.rank == 0 else c.scatterv(None),
        "scatterv: rank 1 needs out, an array for its block",
    ),
    "a root that is no rank": (lambda c: c.gatherv(np.zeros(2), root=2), "gatherv: root 2 is not one of the ranks"),
    "an average of some": (lambda c: c.scan(np.zeros(2), "avg"), "scan takes op sum, prod, min, max, band"),
    "blocks that do not take each other's place": (
        lambda c: c.all_to_allv(x := np.zeros(3, np.int8), x, [[1, 2], [0, 3]][c.rank], [[1, 2], [0, 3]][c.rank][::1]),
        "all_to_allv",
    ),
}


@pytest.mark.parametrize("memory", MEMORIES)
def test_every_pair_of_ranks_has_a_dtype_and_shape_of_its_own(memory: str) -> None:
    """mpi4py's Alltoallw. Rank 2 sends and takes one dtype alone, and so does not know of the others'."""
    dtypes = {(0, 0): "f8", (0, 1): "i2", (1, 0): "V5", (1, 1): "c8", (0, 2): "f4", (1, 2): "f4"}

    def block(source: int, target: int) -> np.ndarray:
        dtype = np.dtype(dtypes.get((source, target), "f4"))
        size = (3 * source + target) * 6
        numbers = np.random.default_rng(size).integers(0, 100, size * dtype.itemsize, np.uint8)
        return numbers.view(dtype).reshape(6, -1).T  # which is not contiguous

    def program(comm: Communicator) -> None:
        x = [block(comm.rank, target) for target in range(3)]
        expected = [block(source, comm.rank) for source in range(3)]
        out = [np.zeros_like(each) for each in expected]
        assert comm.all_to_allv(x, out) is out
        for got, each in zip(out, expected, strict=True):
            assert got.dtype == each.dtype and got.tobytes() == each.tobytes()
        for got in out:
            np.copyto(got, np.zeros_like(got))
        again = comm.persistent.all_to_allv(x, out)
        for _ in range(2):
            again()
        assert [got.tobytes() for got in out] == [each.tobytes() for each in expected]

    together(program, 3, memory=MEMORIES[memory])


@pytest.mark.parametrize("misuse", MISUSES)
def test_wrong_arguments_are_refused_in_a_sentence(misuse: str) -> None:
    call, message = MISUSES[misuse]
    alone = misuse == "no place for a block"

    def program(comm: Communicator) -> None:
        if alone and comm.rank == 0:
            return
        with pytest.raises(ArgumentError, match=message):
            call(comm)

    if alone:  # one rank alone is wrong, and its peer would wait
        with pytest.raises(ArgumentError, match=message):
            together(call, 2)
        return
    together(program, 2)


# --- contracts and proofs -----------------------------------------------------------------------------------------


@pytest.mark.each_value_once
@pytest.mark.parametrize("collective", [*UNEVEN, "scan", "exscan"])
@pytest.mark.parametrize("counts", ["given", "staircase"])
def test_plans_of_uneven_blocks_are_proved(collective: str, counts: str) -> None:
    ranks, its = 3, COLLECTIVES[collective]
    given_counts = {"all_to_allv": (0, 8, 600, 64, 0, 8, 0, 0, 512)}.get(collective, (8, 0, 600))
    layout = layout_for(ranks, 2, 1 << 22, 4096, region_bytes=1 << 14)
    for variant in catalog.variants(collective):
        bytes_of = given_counts if its.uneven and counts == "given" else ()
        op = "sum" if its.reduces else "none"
        call = Call(collective, variant, ranks, 600, "f64", op, counts=bytes_of)
        plan = catalog.build(catalog.recipe(collective, variant), layout, call)
        verify(plan)
        assert prove(plan).verdict is Verdict.OK
        for rank in range(ranks if its.uneven else 0):
            assert buffers(call, rank)[1].nbytes in (
                0,
                int(block_sizes(call)[:, rank].sum()),
                block_sizes(call)[0, rank],
            )


def test_counts_are_checked_and_survive_a_file(tmp_path: Any) -> None:
    layout = layout_for(3, 2, 1 << 22, 4096, region_bytes=1 << 14)
    recipe = catalog.recipe("all_gatherv", "all")
    for counts, why in (
        ((8, 0), "takes 3 counts, not 2"),
        ((8, 0, -8), "whole numbers of f64 elements"),
        ((8, 0, 12), "whole numbers of f64 elements"),
        ((8, 0, 32), "up to the largest block's"),
    ):
        with pytest.raises(ArgumentError, match=why):
            catalog.build(recipe, layout, Call("all_gatherv", "all", 3, 24, "f64", counts=counts))
    with pytest.raises(ArgumentError, match="all_gather has equal blocks"):
        catalog.check(Call("all_gather", "all", 3, 24, "f64", counts=(8, 8, 8)))
    plan = catalog.build(recipe, layout, Call("all_gatherv", "all", 3, 24, "f64", counts=(8, 0, 24)))
    plan_file.save(plan, tmp_path / "a.plan")
    assert catalog.load_plan(str(tmp_path / "a.plan")) == plan
    wrong = Call("all_gatherv", "all", 3, 24, "f64", counts=(24, 0, 8))
    assert wrong.tag() != plan.call.tag() and "blocks of 24, 0, 8 B" in str(wrong)
    content = (tmp_path / "a.plan").read_bytes().replace(b'"counts":[8,0,24]', b'"counts":[0,8,24]')
    (tmp_path / "a.plan").write_bytes(content)
    with pytest.raises(PlanFileError):
        catalog.load_plan(str(tmp_path / "a.plan"))


def test_other_counts_are_another_call() -> None:
    from cxlemu.errors import MismatchError, RankFailures

    def program(comm: Communicator) -> None:
        comm.all_gatherv(np.zeros(2), counts=[2, 2] if comm.rank else [2, 3])

    with pytest.raises(RankFailures) as raised:
        together(program, 2)
    assert any(isinstance(error, (MismatchError, ArgumentError)) for error in raised.value.failures.values())


def test_blocks_of_which_no_rank_says_how_large_they_are_are_even() -> None:
    """As in mpi4py; what any rank says goes before that, and what does not divide is refused on all ranks."""

    def main(context: RankContext) -> Any:
        with Communicator.world(context) as comm:
            x = np.arange(4.0) + 10 * comm.rank
            found = [comm.all_to_allv(x).tolist(), comm.all_to_allv(x, np.zeros(4)).tolist()]
            counts = [1, 3] if comm.rank == 0 else None
            found.append(
                comm.all_to_allv(x, send_counts=counts, recv_counts=[1, 2] if comm.rank == 0 else None).tolist()
            )
            for size, out in ((3, None), (4, np.zeros(6 if comm.rank else 4))):
                with pytest.raises(
                    ArgumentError, match=r"the size of the block|rank 0 sends 16 bytes to rank 1, which"
                ):
                    comm.all_to_allv(np.arange(float(size)), out)
            return found

    first, second = launch(main, ranks=2, topology="laptop", memory="shm", deadline_s=PATIENT_S)
    assert first == [[0, 1, 10, 11], [0, 1, 10, 11], [0, 10, 11]]
    assert second == [[2, 3, 12, 13], [2, 3, 12, 13], [1, 2, 3, 12, 13]]


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@on_ranks(2, gives=[[[2, 3, 12, 13]] * 2, [[0, 1, 10, 11]] * 2])
def test_displacements_are_in_elements_whatever_the_arrays_class(comm: Communicator) -> list[Any]:
    """A row of np.matrix stays a matrix where it is made flat."""
    x = np.arange(4.0) + 10 * comm.rank
    return [
        np.asarray(comm.all_to_allv(given, np.zeros(4), [2, 2], [2, 2], [2, 0], [0, 2])).tolist()
        for given in (x, np.matrix(x))
    ]
