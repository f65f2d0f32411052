"""Fused plans: right on every shape, style and tiling, and made of what they promise."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.checking import fused_oracle as oracle
from collectives.fused import KINDS, STYLES, TRANSPORTS, build, fused_plan, roomy_layout
from collectives.fused.builder import FILLED_MIN
from collectives.fused.plans import fused_call
from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.plan import DTYPES, Layout, Op, Plan, rules
from cxlemu.plan.file import load, save
from cxlemu.plan.kernels import KERNELS
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import in_random_order
from faults.prove import prove
from faults.verdict import Verdict
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples


def layout(ranks: int, lines: int = 40) -> Layout:
    return Layout(ranks, 2, 2, lines * 64 * ranks, 3 * (ranks + 1), 64)


def small(kind: str, style: str, ranks: int, dtype: str = "f32", *, lines: int = 40, **tiles: object) -> Plan:
    """Sizes that nothing divides but what has to."""
    n = 7 * ranks if kind == "all_gather_gemm" else 7
    if style == "fused":
        tiles = {"comm_tile_rows": 3, "compute_tile": (2, 5), **tiles}
    return fused_plan(kind, style, layout(ranks, lines), 5 * ranks, n, 6 * ranks, dtype, **tiles)  # type: ignore[arg-type]


def check(plan: Plan, seed: int, calls: int = 3) -> None:
    """On caches that nothing keeps coherent, in a random order, with an adversary: bit for bit what NumPy says."""
    rules.check(plan)
    world = Lockstep(plan.layout, order=in_random_order(seed), memory=MemorySpec("emulated", seed), quick=True)
    ranks = range(plan.ranks)
    got = world.calls(
        [(plan, [oracle.as_bytes(plan.call, rank, 1, serial) for rank in ranks]) for serial in range(calls)]
    )
    for serial in range(calls):
        for rank in ranks:
            right = oracle.expected(plan.call, rank, 1, serial)
            np.testing.assert_array_equal(got[serial][rank].view(right.dtype).reshape(right.shape), right)


@pytest.mark.each_value_once
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_gets_its_part_of_the_product(kind: str, style: str, ranks: int) -> None:
    check(small(kind, style, ranks), seed=ranks)


@pytest.mark.parametrize("kind", KINDS)
def test_many_columns_are_tiles_in_rows_that_are_filled_in(kind: str) -> None:
    a_rank = FILLED_MIN * 3 + 1  # columns: the last tile is cut short
    n = a_rank * (2 if kind == "all_gather_gemm" else 1)
    check(fused_plan(kind, "fused", layout(2), 10, n, 12, comm_tile_rows=3, compute_tile=(2, 3)), seed=5)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_every_dtype(dtype: str) -> None:
    check(small("gemm_reduce_scatter", "fused", 2, dtype), seed=5)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_larger_than_a_slot_take_rounds(kind: str) -> None:
    plan = small(kind, "fused", 3, lines=3)
    assert plan.rounds > 1
    check(plan, seed=6)


@given(
    kind=st.sampled_from(KINDS),
    ranks=st.integers(2, 3),
    comm=st.integers(1, 5),
    rows=st.integers(1, 15),  # of three shards of 5
    cols=st.integers(1, 7),
    natural=st.booleans(),
    last=st.booleans(),
    lines=st.integers(2, 20),
)
@examples(25)
def test_every_tiling_gives_the_same_product(
    kind: str, ranks: int, comm: int, rows: int, cols: int, natural: bool, last: bool, lines: int
) -> None:
    tiles = {"comm_tile_rows": comm, "compute_tile": (rows, cols), "order": "natural" if natural else "shifted"}
    tiles["compute_tile"] = min(rows, 5 * ranks), cols
    plan = small(kind, "fused", ranks, lines=2 * lines, **tiles, transport=TRANSPORTS[kind][-1 if last else 0])
    check(plan, seed=comm, calls=2)


# --- what they are made of -------------------------------------------------------------------------------------------


def ops(plan: Plan, rank: int, stream: str) -> list[Op]:
    return [i.op for s in plan.part(rank).streams if s.name == stream for i in s.instructions]


def test_a_shard_is_copied_in_once_and_reused_over_all_columns() -> None:
    plan = fused_plan("all_gather_gemm", "fused", layout(4), 16, 32, 24, comm_tile_rows=2, compute_tile=(2, 2))
    for rank in range(4):
        assert ops(plan, rank, "retrieve").count(Op.READ) == 3 * 2  # shards of two communication tiles
        assert ops(plan, rank, "compute").count(Op.COMPUTE) == 8 * 4  # row tiles x column tiles


def test_own_rows_are_multiplied_before_anything_is_awaited() -> None:
    plan = fused_plan("all_gather_gemm", "fused", layout(4), 16, 32, 24, comm_tile_rows=2, compute_tile=(2, 8))
    assert ops(plan, 1, "compute")[:3] == [Op.COMPUTE, Op.COMPUTE, Op.AWAIT]


def test_no_two_ranks_turn_to_one_destination_at_the_same_step() -> None:
    plan = fused_plan("gemm_reduce_scatter", "fused", layout(4), 16, 8, 24, comm_tile_rows=4, compute_tile=(4, 8))
    shard_bytes = plan.part(0).buffers[1].nbytes
    visited = []
    for rank in range(4):
        [compute] = [s for s in plan.part(rank).streams if s.name == "compute"]
        visited.append([i.dst.offset // shard_bytes for i in compute.instructions if i.op == Op.COMPUTE])
    assert visited == [[(step - rank) % 4 for step in range(4)] for rank in range(4)]


def test_sizes_of_communication_and_compute_tiles_are_independent() -> None:
    for comm, rows in ((1, 4), (4, 1), (3, 2), (2, 3)):
        plan = fused_plan("all_gather_gemm", "fused", layout(2), 8, 4, 16, comm_tile_rows=comm, compute_tile=(rows, 2))
        assert ops(plan, 0, "retrieve").count(Op.READ) == -(-4 // comm)
        assert ops(plan, 0, "compute").count(Op.COMPUTE) == 2 * -(-4 // rows)


@pytest.mark.each_value_once
@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("shards", [2, 3])
def test_tiles_of_several_shards_wait_for_all_of_them(shards: int, ranks: int) -> None:
    tile = {"comm_tile_rows": 3, "compute_tile": (5 * shards, 7)}
    gathers = small("all_gather_gemm", "fused", ranks, **tile)
    for rank in range(ranks):
        assert ops(gathers, rank, "compute").count(Op.COMPUTE) == -(-ranks // shards)
        first, *_ = ops(gathers, rank, "compute")
        alone = rank == ranks - 1 and ranks % shards == 1  # in a group of its own
        assert first == (Op.COMPUTE if alone else Op.AWAIT)
    for kind in KINDS:
        check(small(kind, "fused", ranks, **tile), seed=shards)


def test_plans_are_pure_and_round_trip_through_files(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan = small("gemm_all_reduce", "fused", 2)
    assert build(plan.layout, plan.call) == plan
    save(plan, tmp_path / "fused.plan")
    assert load(tmp_path / "fused.plan", lambda plan: None) == plan


def test_a_roomy_ring_takes_all_in_one_round() -> None:
    for kind in KINDS:
        for style in STYLES:
            call = fused_call(kind, style, 8, 1024, 512, 1024)
            assert build(roomy_layout(call, 6, 4096, 1 << 30), call).rounds == 1


@with_rows(
    ({"m": 15}, "m = 15 does not divide among 2 ranks"),
    ({"k": 0}, "takes k from 1"),
    ({"dtype": "i32"}, "multiplies f16, bf16, f32, f64, not i32"),
    ({"kind": "gemm"}, "unknown operator 'gemm'"),
    ({"style": "fine"}, "has no style 'fine'"),
    ({"order": "random"}, "has no order 'random'"),
    ({"transport": "throw"}, "has no transport 'throw': it has push, pull"),
    ({"comm_tile_rows": 9}, "has 1 to 8 rows, a rank's shard, not 9"),
    ({"compute_tile": (4, 33)}, "1 x 1 to 16 x 32, not 4 x 33"),
    ({"style": "medium", "comm_tile_rows": 2}, "does not take this tile size"),
    ({"m": 1 << 24, "n": 1 << 24, "compute_tile": (1, 1)}, "compute tiles exceed the limit"),
)
def test_what_is_impossible_is_refused_in_a_sentence(changes: dict[str, object], says: str) -> None:
    asked = {"kind": "gemm_reduce_scatter", "style": "fused", "layout": layout(2), "m": 16, "n": 32, "k": 8} | changes
    with pytest.raises(ArgumentError, match=says):
        fused_plan(**asked)  # type: ignore[arg-type]


def test_a_call_that_came_from_elsewhere_is_checked() -> None:
    plan = small("all_gather_gemm", "fused", 2)
    for wrong in (replace(plan.call, nbytes=8), replace(plan.call, gemm=None), replace(plan.call, redop="sum")):
        with pytest.raises(ArgumentError):
            build(plan.layout, wrong)


# --- the kernel ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [("f32", 2e-6), ("f64", 1e-14), ("f16", 2e-3), ("bf16", 2e-2)])
def test_a_tile_is_written_in_place_and_nothing_beside_it(dtype: str, tolerance: float) -> None:
    random, kind = np.random.default_rng(3), KERNELS[f"gemm_{dtype}"]
    a, b, c = (random.standard_normal(shape).astype(DTYPES[dtype]) for shape in ((6, 10), (9, 8), (6, 8)))
    before, parameters = c.copy(), (4, 3, 9, 10, 8, 8)
    at = (1 * 8 + 2) * c.itemsize, (2 * 10 + 1) * a.itemsize, 4 * b.itemsize
    out, x, y = (
        array.reshape(-1).view(np.uint8)[begin : begin + size]
        for array, begin, size in zip((c, a, b), at, kind.sizes(parameters), strict=True)
    )
    kind.run(parameters, out, [x, y])
    right = a[2:6, 1:10].astype(np.float64) @ b[:, 4:7].astype(np.float64)
    np.testing.assert_allclose(c[1:5, 2:5].astype(np.float64), right, rtol=tolerance, atol=10 * tolerance)
    c[1:5, 2:5] = before[1:5, 2:5]
    assert c.tobytes() == before.tobytes()


def test_rows_shorter_than_what_is_taken_of_them_are_refused() -> None:
    with pytest.raises(ArgumentError, match="rows longer than 8, 3 and 3"):
        KERNELS["gemm_f32"].sizes((4, 3, 9, 8, 3, 3))


# --- tiles of several shards, proved ----------------------------------------------------------------------------------


@pytest.mark.each_value_once
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ranks", "shards"), [(2, 2), (3, 2), (5, 2), (8, 8), (16, 3)])
def test_tiles_of_several_shards_are_proved(kind: str, ranks: int, shards: int) -> None:
    n = 2 * ranks if kind == "all_gather_gemm" else 2
    for transport in TRANSPORTS[kind]:
        plan = fused_plan(
            *(kind, "fused", layout(ranks), 2 * ranks, n, 2 * ranks),
            comm_tile_rows=1,
            compute_tile=(2 * shards, 2),
            transport=transport,
        )
        assert prove(plan).verdict == Verdict.OK
