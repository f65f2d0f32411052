"""Fused products as users call them, and ``cxlemu fused``: right on every engine and memory, and honest about time."""

import json
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.communicator.communicator import Communicator
from collectives.fused import STYLES
from collectives.fused.choice import Operator, Tiling
from collectives.fused.halves import communicating
from collectives.sweep.fused.measure import Job, Seen, measure
from collectives.sweep.fused.seen import events, metrics, plan_of, refusal, times_ns
from cxlemu.cost import CostModel
from cxlemu.engines import engine_for
from cxlemu.engines.native import NativeEngine
from cxlemu.engines.pace import Pace
from cxlemu.engines.streams import Running
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError, MismatchError, RankFailures
from cxlemu.memory import MemorySpec
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPES, Layout, Op
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch
from tests.helpers import commands
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S

WORDS = ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")
EPS = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}


def operands(word: str, rank: int, ranks: int, dtype: str, serial: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng((rank, serial))
    a, b = ((8, 30), (30, 11)) if word == "all_gather_matmul" else ((8 * ranks, 10), (10, 11))
    return random.standard_normal(a).astype(DTYPES[dtype]), random.standard_normal(b).astype(DTYPES[dtype])


def unsharded(word: str, rank: int, ranks: int, dtype: str, serial: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The rank's part of the whole product in f64, and a bound of the error of any order in which it is summed."""
    everyone = [operands(word, peer, ranks, dtype, serial) for peer in range(ranks)]
    wide = [(a.astype(np.float64), b.astype(np.float64)) for a, b in everyone]
    if word == "all_gather_matmul":
        a, b = np.concatenate([a for a, _ in wide]), wide[rank][1]
    else:
        a, b = np.concatenate([a for a, _ in wide], axis=1), np.concatenate([b for _, b in wide])
    terms = a.shape[1] + ranks  # partial results are rounded to the dtype, and then summed
    right, bound = a @ b, terms * EPS[dtype] / (1 - terms * EPS[dtype]) * (abs(a) @ abs(b))
    if word == "matmul_reduce_scatter":
        rows = slice(rank * 8, rank * 8 + 8)
        return right[rows], bound[rows]
    return right, bound


def every_word(context: RankContext, engine: str, dtype: str) -> list[tuple[str, str, bytes]]:
    found = []
    with Communicator.world(context, engine=engine) as comm:
        for word in WORDS:
            for style in STYLES:
                cut = {"comm_tile_rows": 3, "compute_tile": (2, 5)} if style == "fused" else {}
                for serial in range(2):
                    a, b = operands(word, comm.rank, comm.size, dtype, serial)
                    c = getattr(comm, word)(a, b, style=style, **cut)
                    right, bound = unsharded(word, comm.rank, comm.size, dtype, serial)
                    assert c.shape == right.shape and c.dtype == DTYPES[dtype]
                    assert (abs(c.astype(np.float64) - right) <= bound).all(), (word, style)
                    found.append((word, style, c.tobytes()))
    return found


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_products_are_within_the_bound_and_the_same_bits_in_every_run(engine: str, dtype: str) -> None:
    main_ = partial(every_word, engine=engine, dtype=dtype)
    first = launch(main_, ranks=3, topology="laptop", memory=MemorySpec("emulated", 5))
    assert first == launch(main_, ranks=3, topology="laptop", memory=MemorySpec("emulated", 6))
    if engine == "native":
        assert first == launch(main_, ranks=3, topology="laptop", memory=MemorySpec("shm"))


def repeated(context: RankContext) -> bool:
    with Communicator.world(context) as comm:
        a, b = operands("matmul_all_reduce", comm.rank, comm.size, "f64")
        out = np.empty((16, 11))
        op = comm.persistent.matmul_all_reduce(a, b, out)
        for serial in (3, 4):
            a[:], b[:] = operands("matmul_all_reduce", comm.rank, comm.size, "f64", serial)
            assert op() is out
            right, bound = unsharded("matmul_all_reduce", comm.rank, comm.size, "f64", serial)
            assert (abs(out - right) <= bound).all()
        comm.all_reduce(out)  # on the same ring
        other, _ = operands("matmul_all_reduce", comm.rank, comm.size, "f64", 9)
        again = comm.matmul_all_reduce(other, b)  # the plan is the same, its arrays are not
        return again.tobytes() != out.tobytes()


def test_an_operation_runs_on_what_its_matrices_then_hold() -> None:
    assert launch(repeated, ranks=2, topology="laptop") == [True, True]


def one_rank(context: RankContext) -> bool:
    with Communicator.world(context) as comm:
        a, b = np.ones((4, 3)), np.ones((3, 2))
        return all((getattr(comm, word)(a, b, style=style) == 3).all() for word in WORDS for style in STYLES)


def test_one_rank_multiplies_alone() -> None:
    assert launch(one_rank, ranks=1, topology="laptop") == [True]


@pytest.mark.deep
def test_streams_that_have_nothing_to_do_may_wait_for_the_models_time() -> None:
    """For longer than the engine sleeps without looking after its peers."""
    assert launch(one_rank, ranks=1, topology="laptop", memory=MemorySpec("shm"), pace=Pace(2e4)) == [True]


def refused(context: RankContext) -> list[str]:
    a, b, told = np.ones((4, 6), np.float32), np.ones((6, 2), np.float32), []
    with Communicator.world(context) as comm:
        asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((a[0], b), {}),
            ((a.tolist(), b), {}),
            ((a, b.astype(np.float64)), {}),
            ((a, b[:5]), {}),
            ((a[:3], b), {}),
            ((a, b, np.empty((4, 2), np.float32)), {}),
            ((a, b, a[:2, :2]), {}),
            ((a.T, np.ones((4, 2), np.float32)), {}),
            ((a.astype(np.int32), b.astype(np.int32)), {}),
            ((a, b), {"style": "coarse"}),
            ((a, b), {"comm_tile_rows": 99}),
        ]
        for arguments, keywords in asked:
            with pytest.raises(ArgumentError) as caught:
                comm.matmul_reduce_scatter(*arguments, **keywords)
            told.append(str(caught.value))
        comm.barrier()  # nothing was sent
    return told


def test_matrices_that_do_not_fit_are_refused_before_anything_is_sent() -> None:
    told = launch(refused, ranks=2, topology="laptop")[0]
    for sentence, says in zip(
        told,
        [
            *("of two dimensions, not shape (6,)", "not a list", "b is float64, but a is float32"),
            *("match the rows of b", "m = 3 does not divide among 2 ranks", "out must have shape (2, 2), not (4, 2)"),
            *("out overlaps a or b", "not contiguous", "multiplies f16, bf16, f32, f64, not i32"),
            *("has no style 'coarse'", "a rank's shard, not 99"),
        ],
        strict=True,
    ):
        assert says in sentence


def differently(context: RankContext) -> None:
    with Communicator.world(context) as comm:
        comm.matmul_all_reduce(np.ones((4, 6)), np.ones((6, 2)), style=STYLES[comm.rank])


def test_ranks_that_cut_differently_notice() -> None:
    with pytest.raises(RankFailures) as caught:
        launch(differently, ranks=2, topology="laptop", deadline_s=PATIENT_S)
    assert any(isinstance(error, MismatchError) for error in caught.value.failures.values())


def with_checksums(context: RankContext) -> None:
    with Communicator.world(context, integrity="crc32c") as comm:
        comm.matmul_all_reduce(np.ones((4, 6)), np.ones((6, 2)))


def test_products_carry_no_checksums_and_say_so() -> None:
    with pytest.raises(ArgumentError, match="carry no checksums"):
        launch(with_checksums, ranks=2, topology="laptop")


# --- measured --------------------------------------------------------------------------------------------------------

JOB = Job(
    Operator("gemm_reduce_scatter", 32, 16, 32, "f32"), Tiling(4, (8, 8)), iterations=2, warmup=0, traced=True
)  # fmt: skip


def test_every_instruction_of_a_traced_call_is_on_the_trace() -> None:
    seen = launch(partial(measure, job=JOB), ranks=2, topology="laptop", memory=MemorySpec("shm"))
    assert all(one.wrong == dict.fromkeys(STYLES, 0) for one in seen)
    found = list(events(seen, JOB))
    assert {event.track for event in found} == {
        f"rank{rank} {stream}" for rank in (0, 1) for stream in ("publish", "retrieve", "compute")
    }
    assert sum(event.name.startswith("COMPUTE gemm_f32(8, 8, 16") for event in found) == 2 * 4 * 2  # fused
    for track in {event.track for event in found}:
        its = sorted((event.begin_ns, event.end_ns) for event in found if event.track == track)
        assert all(begin <= end for begin, end in its)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(its))


def test_an_instruction_with_a_pace_is_over_when_its_modelled_time_is() -> None:
    scale = 2000.0
    seen = launch(
        partial(measure, job=JOB),
        ranks=2,
        topology="laptop",
        memory=MemorySpec("shm"),
        pace=Pace(scale),
        deadline_s=PATIENT_S,
    )
    plan = plan_of(seen[0], JOB, "unfused")
    run = simulate(CostModel.of(Topology.load("laptop"), 2), [VirtualCall(communicating(plan))], warm=True)
    modelled_ns = run.ops[Op.WRITE].ns * scale
    took_ns = sum(
        step.end_ns - step.begin_ns
        for one in seen
        for step in one.steps["unfused"]
        if plan.part(one.rank).streams[step.stream].instructions[step.at].op == Op.WRITE
    )
    assert took_ns >= 0.9 * modelled_ns  # they may begin late, but end no sooner


@dataclass
class Early:
    """An engine that notes how long before its modelled time a stream comes to an instruction."""

    inner: NativeEngine
    early_ns: list[int] = field(default_factory=list)

    def run(self, running: Running, buffers: list[Bytes], **arguments: Any) -> None:
        program = self.inner.program(running)

        def note(stream: int) -> bool:
            modelled_ns = program.modelled_ns(stream)
            assert modelled_ns is not None
            self.early_ns.append(modelled_ns - time.monotonic_ns())
            return False

        streams = enumerate(running.part.streams)
        stops = {(s, at): partial(note, s) for s, its in streams for at in range(len(its.records))}
        self.inner.run(running, buffers, **(arguments | {"stops": stops}))


def earliest(context: RankContext) -> int:
    inner = engine_for("native", context.backend, context.memory, context.pool.cards, context.pacer)
    assert isinstance(inner, NativeEngine)
    engine = Early(inner)
    with Communicator.world(context, engine=engine) as comm:
        comm.all_reduce(np.ones(20_000), variant="all")
    return max(engine.early_ns)


def test_with_a_pace_a_stream_stops_when_what_precedes_is_over() -> None:
    found = launch(
        earliest, ranks=2, topology="laptop", memory=MemorySpec("shm"), pace=Pace(500.0), deadline_s=PATIENT_S
    )
    assert max(found) < 1000  # of rounding


def seen_of(rank: int, comm_ns: int, *, a_core_each: bool = True) -> Seen:
    layout = Layout(2, 1, 1, 64, 1, 64)
    times = {"gemm": 100, "tiled": 110, "comm": comm_ns, "unfused": 160, "medium": 130, "fused": 115}
    entered = {name: [5 * rank, 1000] for name in times}
    left = {name: [ns + 1 - rank, 1000 + ns] for name, ns in times.items()}
    return Seen(rank, 2, a_core_each, layout, entered, left, dict.fromkeys(STYLES, 0), {})


def test_times_are_from_the_first_begin_to_the_last_end() -> None:
    assert times_ns([seen_of(0, 50), seen_of(1, 50)], "fused") == [116, 115]


@with_rows(
    (50, None, True, "with --pace its copies take modelled time"),
    (50, 50.0, False, "2 ranks share 2 cores"),
    (90, 50.0, True, "does not keep up: communication takes 1.8 times as long as modelled"),
    (70, 50.0, True, ""),
)
def test_overlap_is_claimed_only_where_it_can_be(
    comm_ns: int, modelled_ns: float | None, a_core_each: bool, says: str
) -> None:
    seen = [seen_of(rank, comm_ns, a_core_each=a_core_each) for rank in range(2)]
    assert says in refusal(seen, modelled_ns)
    assert bool(refusal(seen, modelled_ns)) == bool(says)


# --- the command -----------------------------------------------------------------------------------------------------


cxlemu = partial(commands.cxlemu, "fused")


SMALL = ("-s", "64x32x64", "--backend", "shm", "--iters", 1, "-w", 0)


def test_the_command_measures_every_style_and_claims_nothing_without_a_pace(tmp_path: Path) -> None:
    files = tmp_path / "fused.json", tmp_path / "trace.json"
    done = cxlemu("all_gather_gemm", *SMALL, "--json", files[0], "--trace", files[1], code=0)
    assert "no overlap is claimed: a rank copies and computes on one core" in done.output
    told = json.loads(files[0].read_text())
    assert set(told["times_us"]) == {"gemm", "tiled", "comm", *STYLES}
    assert told["wrong"] == dict.fromkeys(STYLES, 0)
    assert told["metrics"]["overlap_efficiency"] is None
    its = told["metrics"]
    assert its["ect_fused_us"] == pytest.approx(its["fused_us"] - its["gemm_us"])
    assert its["wait_us"] > 0
    assert its["wait_us"] == pytest.approx(sum(row["us"] for row in told["waits"]) / len(told["waits"]))
    assert {row["rank"] for row in told["waits"]} == {0, 1}
    rows = json.loads(files[1].read_text())["traceEvents"]
    assert {row["args"]["style"] for row in rows if row["ph"] == "X"} == set(STYLES)


@pytest.mark.deep
def test_with_a_pace_the_command_says_what_communication_should_take(tmp_path: Path) -> None:
    done = cxlemu("gemm_reduce_scatter", *SMALL, "--pace", "--json", tmp_path / "fused.json", code=0)
    told = json.loads((tmp_path / "fused.json").read_text())
    assert told["modelled_comm_us"] > 0 and told["pace"]["value"] > 0
    assert told["chosen"] == "as given, or by default"
    assert "communication takes 0.5 of the product's time here" in done.output
    assert (told["metrics"]["overlap_efficiency"] is None) == bool(told["no_overlap_because"])


@pytest.mark.deep
def test_one_style_alone_has_a_time_and_no_metrics() -> None:
    done = cxlemu("gemm_all_reduce", *SMALL, "--style", "medium", code=0)
    assert "  medium " in done.output and "  fused " not in done.output and "T_fused" not in done.output


@with_rows(
    (["all_reduce"], "unknown operator 'all_reduce'; did you mean gemm_all_reduce? Choose from all_gather_gemm"),
    (["all_gather_gemm", "-s", "64x64"], "is not MxNxK, such as 256x256x256"),
    (["all_gather_gemm", "-s", "63x64x64"], "m = 63 does not divide among 2 ranks"),
    (["all_gather_gemm", "--tile", "0x4"], "a compute tile is of 1 x 1 to"),
    (["gemm_all_reduce", "--transport", "mail"], "has no transport 'mail'"),
    (["gemm_all_reduce", "--time-scale", "2"], "--time-scale is for --pace"),
    (["all_gather_gemm", "-c", "nvlink-8xa100", "--pace"], "a pace needs a pool of cards"),
    (["gemm_all_reduce", "--pace", "--time-scale", "nan"], "is not a number"),
    (["gemm_all_reduce", "--share", "1"], "--share is for --pace"),
    (["gemm_all_reduce", "--pace", "--share", "1", "--time-scale", "2"], "--share sets the time scale"),
    (["gemm_all_reduce", "--tuned", __file__], "give a file that --tuned wrote"),
    (["gemm_all_reduce", "--json", "/no/such/folder/file"], "--json"),
)
def test_bad_input_is_told_in_a_sentence_before_anything_runs(arguments: list[str], says: str) -> None:
    done = cxlemu(*arguments)
    assert (done.exit_code, says in done.output) == (2, True), done.output


def test_metrics_need_all_styles() -> None:
    seen = [seen_of(0, 50), seen_of(1, 50)]
    assert metrics(seen, Job(JOB.operator, JOB.choice, styles=("fused",))) is None
