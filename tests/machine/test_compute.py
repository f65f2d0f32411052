"""COMPUTE in virtual time against a pencil: tiles, waves, memory, and who waits for what is computed."""

from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.cost import CostModel
from cxlemu.cost.compute import COST_DTYPE, kernel_costs
from cxlemu.cost.gemm import FULL_TILE, TILES, Product, efficiency, fastest, in_company, tile_ns
from cxlemu.engines.trace import events
from cxlemu.engines.virtual import VirtualCall, VirtualRun, simulate
from cxlemu.errors import ArgumentError, ConfigError, PlanError
from cxlemu.plan import Frame, Instruction, Kernel, Kind, Op, Operand, Plan, RankPart, Stream, encode
from cxlemu.topology import Accelerator, Topology, shipped_accelerators
from tests.helpers.by_hand import FENCE
from tests.helpers.fabric_helpers import WAY_NS, fabric, ns, plan, write
from tests.helpers.tables import with_rows

A100, K = Accelerator.load("a100-sxm"), 4096
SMS = A100.multiprocessors
TILE = Kernel("gemm_bf16", (64, 64, K))  # the smallest: it can only be computed as one
FULL_NS = ceil(tile_ns(A100, 64, 64, K, "bf16"))  # no tile here is slowed by memory
RECORD, AWAIT = Instruction(Op.RECORD), Instruction(Op.AWAIT)


def computing(topology: Topology) -> Topology:
    return topology.model_copy(update={"accelerator": "a100-sxm"})


def tile(number: int, kernel: int = 0) -> Instruction:
    """All of the same A and B, which so hardly load the memory."""
    a, b, c = (Operand(Kind.BUFFER, *place) for place in ((0,), (1,), (2, 0, number * 512)))
    return Instruction(Op.COMPUTE, arg=kernel, dst=c, a=a, b=b)


def run(streams: list[list[Instruction]], kernels: tuple[Kernel, ...] = (TILE,), *, calls: int = 1) -> VirtualRun:
    bare = plan([streams], 1, events=1)

    def build(rank: int) -> tuple[Frame, RankPart]:
        frame, part = bare.build(rank)
        return replace(frame, kernels=kernels), part

    topology = computing(fabric(1, 1, to_pool_gbytes_per_s=20))
    program = [VirtualCall(Plan(bare.call, bare.layout, build))] * calls
    return simulate(CostModel.of(topology, 1), program, log=True)


@pytest.mark.parametrize(("tiles", "waves"), [(1, 1), (SMS, 1), (SMS + 1, 2), (2 * SMS, 2), (5 * SMS - 1, 5)])
def test_tiles_come_in_waves(tiles: int, waves: int) -> None:
    its = run([[tile(k) for k in range(tiles)]])
    assert its.time_ns == waves * FULL_NS
    assert its.tiles_ns.tolist() == [tiles * FULL_NS]


def test_times_of_all_tiles_are_summed_up_to_the_longest_run() -> None:
    large = Kernel("gemm_bf16", (1 << 16, 1 << 16, 1 << 34))  # in one COMPUTE, 2 ^ 55 ns of all multiprocessors
    assert 2**55 < run([[tile(0)]], (large,)).tiles_ns[0] < 2**56
    with pytest.raises(ArgumentError, match=r"longer than 2\^60 ns"):
        run([[tile(0)] * 33], (large,))


def test_a_whole_product_takes_what_its_tiles_take() -> None:
    m, n, k = 4096, 6144, 12288
    best = fastest(A100, Product(m, n, k))
    assert (best.rows, best.columns, best.tiles) == (256, 128, 768)
    cut = [tile(number) for number in range(768)]
    whole_ns = run([[tile(0)]], (Kernel("gemm_bf16", (m, n, k)),)).time_ns
    assert whole_ns == best.ns(SMS) == run([cut], (Kernel("gemm_bf16", (256, 128, k)),)).time_ns


def test_a_stream_goes_on_beside_its_tiles_and_a_reader_of_them_waits() -> None:
    """The other stream writes what the first tile computed; the second wave goes on beside that."""
    nbytes = 1_000_003
    tiles = [tile(0), RECORD, *(tile(k) for k in range(1, SMS + 1))]
    its = run([tiles, [AWAIT, write(0, nbytes), FENCE]])
    assert its.time_ns == max(2 * FULL_NS, FULL_NS + ns(nbytes, 20) + 2 * WAY_NS)
    alone = run([[tile(0), write(0, nbytes), FENCE]])  # in one stream the write waits as well
    assert alone.time_ns == FULL_NS + ns(nbytes, 20) + 2 * WAY_NS


def test_a_dependent_product_waits_for_an_event() -> None:
    assert run([[tile(0), tile(1)]]).time_ns == FULL_NS
    assert run([[tile(0), RECORD, AWAIT, tile(1)]]).time_ns == 2 * FULL_NS


def test_the_next_call_begins_when_all_is_computed() -> None:
    assert run([[tile(0)]], calls=3).time_ns == 3 * FULL_NS


def test_few_rows_take_what_moving_the_weights_takes() -> None:
    product = Product(64, 12288, 6144)
    least_ns = 2 * (64 * 6144 + 6144 * 12288 + 64 * 12288) / (A100.memory_gbytes_per_s * A100.memory_efficiency)
    assert fastest(A100, product).ns(SMS) == pytest.approx(least_ns, rel=1e-4)
    cut = [columns(k, first_row=0) for k in range(96)]
    costs = kernel_costs(A100, *_frame(Kernel("gemm_bf16", (64, 128, 6144)), cut))
    assert costs["tile_ns"][0] == pytest.approx(least_ns, rel=1e-4)  # in tiles, A counts once and not 96 times


def test_tiles_beside_copies_are_slowed_and_held() -> None:
    """Held by copies, they take the link's time for what the rank writes longer, all together."""
    tiles = [tile(k) for k in range(3 * SMS)]
    shared = A100.model_copy(update={"held_by_copies": 0.5, "slowed_by_copies": 0.25})

    def tile_ns_of(its: Accelerator, *, copied: bool = True, tiles: list[Instruction] = tiles) -> int:
        program = [*tiles, write(0, 3_000_000)] if copied else tiles
        return int(kernel_costs(its, *_frame(TILE, program), 100.0)["tile_ns"][0])

    assert tile_ns_of(A100) == tile_ns_of(A100, copied=False) == tile_ns_of(shared, copied=False) == FULL_NS
    assert tile_ns_of(shared) == ceil(1.25 * FULL_NS + 0.5 * 3_000_000 / 100 / 3)
    assert tile_ns_of(shared, tiles=tiles[:1]) == tile_ns_of(A100, tiles=tiles[:1])  # a kernel before its copies


def test_weights_are_loaded_again_for_each_wave() -> None:
    """Twice as many tiles, row by row: the second row loads all of B once more."""
    kernel = Kernel("gemm_bf16", (64, 64, 6144))
    rows = [columns(k, first_row=row) for row in range(2) for k in range(SMS)]
    one, both = (kernel_costs(A100, *_frame(kernel, its))["tile_ns"][0] for its in (rows[:SMS], rows))
    assert one == both > tile_ns(A100, 64, 64, 6144, "bf16")


def columns(number: int, *, first_row: int) -> Instruction:
    """A tile of some columns of B, and some rows of A."""
    a, b = Operand(Kind.BUFFER, 0, 0, first_row), Operand(Kind.BUFFER, 1, 0, 256 * number)
    return Instruction(Op.COMPUTE, dst=Operand(Kind.BUFFER, 2, 0, (first_row << 20) + 256 * number), a=a, b=b)


def _frame(kernel: Kernel, records: list[Instruction]) -> tuple[Frame, RankPart]:
    return Frame(1, kernels=(kernel,)), RankPart(0, (), (Stream("compute", encode(records)),))


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 20_000))
def test_nothing_beats_the_peak_or_the_memory(m: int, n: int, k: int) -> None:
    product = Product(m, n, k)
    least_ns = fastest(A100, product).ns(SMS)
    assert least_ns >= product.flops / A100.peak_flop_per_s("bf16") * 1e9
    nbytes = 2 * (m * k + k * n + m * n)
    assert least_ns >= nbytes / A100.memory_bytes_per_s * 1e9


def test_the_fastest_tiling_is_the_best_of_all() -> None:
    product = Product(300, 5000, 3000)
    best = fastest(A100, product).ns(SMS)
    for rows, columns in TILES:
        tiles = -(-300 // rows) * -(-5000 // columns)
        assert best <= -(-tiles // SMS) * tile_ns(A100, rows, columns, 3000, "bf16") + SMS


def test_small_tiles_compute_more_slowly() -> None:
    assert efficiency(A100, *FULL_TILE) == A100.gemm_efficiency
    by_size = [efficiency(A100, edge, edge) for edge in (64, 128, 256)]
    assert by_size == sorted(by_size)
    # of an endless one's rate, half
    half = efficiency(A100, A100.half_rate_tile, A100.half_rate_tile)
    assert half * 2 == pytest.approx(A100.gemm_efficiency * (1 + 40 * 3 / 256))


@with_rows(
    ("a100-sxm", 271.2, (1024, 10240, 5120)),
    ("a100-pcie", 252.9, (2048, 5120, 6144)),
    ("h100-sxm", 794.5, (2048, 2048, 13312)),
)
def test_the_best_products_that_were_measured_come_out(
    name: str, tflop_per_s: float, shape: tuple[int, int, int]
) -> None:
    """github.com/stas00/ml-engineering, compute/accelerator: what each chip's efficiency is derived from."""
    its, product = Accelerator.load(name), Product(*shape)
    ns = fastest(its, product).ns(its.multiprocessors)
    assert product.flops / ns / 1e3 == pytest.approx(tflop_per_s, rel=0.001)


def test_gemm_times_that_flux_publishes_come_out() -> None:
    """flux/docs/performance_report.md, in ms; nothing is fitted to them."""
    for name, published_ms in (("a100-sxm", (2.378, 2.429)), ("h800-sxm", (0.814, 0.818))):
        its = Accelerator.load(name)
        for (n, k), ms in zip(((6144, 12288), (12288, 6144)), published_ms, strict=True):
            assert fastest(its, Product(4096, n, k)).ns(its.multiprocessors) / 1e6 == pytest.approx(ms, rel=0.07)


def test_traces_show_overlapping_tiles_on_tracks_of_their_own() -> None:
    found = [e for e in events(run([[tile(k) for k in range(SMS + 1)]])) if e.name.startswith("COMPUTE")]
    assert {e.track for e in found} == {f"rank0 computes {lane}" for lane in range(SMS)}
    assert [(e.begin_ns, e.end_ns) for e in found if e.track == "rank0 computes 0"] == [
        (0, FULL_NS),
        (FULL_NS, 2 * FULL_NS),
    ]


def test_what_has_no_cost_is_refused() -> None:
    frame, part = _frame(Kernel("crc32c", (64,)), [tile(0)])
    with pytest.raises(PlanError, match="crc32c has no cost"):
        kernel_costs(A100, frame, part)
    frame, part = _frame(TILE, [tile(0)])
    with pytest.raises(ArgumentError, match="needs an accelerator: give the topology one"):
        kernel_costs(None, frame, part)
    frame, part = _frame(Kernel("gemm_bf16", (1 << 24, 1 << 24, 8)), [tile(0)])
    with pytest.raises(ArgumentError, match="too large: cut it into tiles"):
        kernel_costs(A100, frame, part)
    for shape, sentence in (
        ((1 << 40,) * 3, "too large"),
        ((64, 128, 1 << 63), "has sizes from 1 to"),
        ((0, 1, 1), "not 0 x 1 x 1"),
    ):
        with pytest.raises(ArgumentError, match=sentence):
            kernel_costs(A100, *_frame(Kernel("gemm_bf16", shape), [tile(0)]))
    with pytest.raises(ArgumentError, match="a100-sxm has no rate for i8"):
        in_company(A100, Product(1, 1, 1, "i8"), 1)
    assert kernel_costs(None, Frame(1), part).dtype == COST_DTYPE


def test_a_kernel_that_is_not_there_is_a_bad_record() -> None:
    with pytest.raises(PlanError, match="record 0 cannot be simulated"):
        run([[replace_arg(tile(0), 1)]])


def replace_arg(instruction: Instruction, arg: int) -> Instruction:
    return instruction._replace(arg=arg)


# --- accelerators -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_accelerators())
def test_every_figure_of_a_shipped_accelerator_has_a_standing(name: str) -> None:
    its = Accelerator.load(name)
    plain = its.model_dump(exclude_none=True)
    figures = {(key, *more) for key, value in plain.items() if key not in ("name", "description")
               for more in ([(dtype,) for dtype in value] if isinstance(value, dict) else [()])}  # fmt: skip
    assert its.name == name
    assert figures == set(its.provenance)


@with_rows(
    ("gemm_efficiency: {value: 0.890", "gemm_efficiency: {value: 1.5", r"gemm_efficiency is 1.5 but should be less"),
    ("multiprocessors:", "multiprocesors:", "multiprocesors is not a known key; did you mean multiprocessors"),
    ("tile_ns: {value: 1500, assumed:", "tile_ns: {value: 1500, guessed:", "tile_ns should be {value: ..., source"),
)
def test_mistakes_in_an_accelerator_are_one_sentence(old: str, new: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = shipped_accelerators()["a100-sxm"].read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=rf"mine.yaml:\d+: {says}"):
        Accelerator.load(file)


def test_an_unknown_accelerator_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"shipped accelerator; did you mean a100-.*Choose from .*a100-sxm"):
        Accelerator.load("a1000")
    text = Path(__file__).parents[2].joinpath("configs/laptop.yaml").read_text()
    with pytest.raises(
        ConfigError, match="accelerator is a100, which is not a shipped accelerator; did you mean a100-"
    ):
        Topology.parse((text + "\naccelerator: a100\n").encode(), "mine.yaml")
