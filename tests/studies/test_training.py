"""Training steps: shapes against published sizes, timelines against closed forms, bills that add up, the command."""

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.cli import INTERRUPTED
from cxlemu.errors import ArgumentError, ConfigError
from cxlemu.topology import Accelerator, Topology
from studies.training import pipelined, sharded
from studies.training.compute import Compute
from studies.training.durations import LEVELS, Durations
from studies.training.experts import Router, read_histogram
from studies.training.fabrics import Modelled
from studies.training.language_model import LanguageModel
from studies.training.machine import Offload, TrainingMachine
from studies.training.offload import offload_to
from studies.training.parallelism import Parallelism
from studies.training.step import TrainingStep, train
from studies.training.timeline import BUBBLE, COMPUTE, Part, Timeline, TimelineProgram, run
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples

H100 = Accelerator.load("h100-sxm")
LLAMA = LanguageModel.load("llama3-8b")
TITAN, INFINIBAND = Topology.load("titan2-6xcz120"), Topology.load("infiniband-3xh100")


class Rate:
    """A fabric in which every call takes its size by a rate: 1 GB/s is a byte a nanosecond."""

    name = "rate"
    chosen: ClassVar[dict[str, str]] = {}

    def __init__(self, gbytes_per_s: float) -> None:
        self.gbytes_per_s = gbytes_per_s

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        return round(size_bytes / self.gbytes_per_s) if ranks > 1 else 0


class Fixed:
    """Durations of which every kind takes the same time for each block."""

    def __init__(self, parallelism: Parallelism, blocks: int, **ns: int) -> None:
        self.parallelism = parallelism
        self.model = SimpleNamespace(blocks=blocks, block_parameters=1, embedding_parameters=0, parameters=1)
        self.ns = dict.fromkeys(("forward", "backward", "gather", "scatter", "hand_over", "update"), 0) | ns

    def forward(self, blocks: int, *, head: bool = False) -> list[Part]:
        return [Part("forward", blocks * self.ns["forward"])]

    def backward(self, blocks: int, *, head: bool = False) -> list[Part]:
        return [Part("backward", blocks * self.ns["backward"])]

    def gather(self, blocks: int, embedding: int = 0) -> list[Part]:
        return [Part("all_gather", (blocks + embedding) * self.ns["gather"])]

    def scatter(self, blocks: int, embedding: int = 0) -> list[Part]:
        return [Part("reduce_scatter", (blocks + embedding) * self.ns["scatter"])]

    def hand_over(self) -> list[Part]:
        return [Part("pipeline", self.ns["hand_over"])]

    def update(self, blocks: int, embedding: int) -> list[Part]:
        return [Part("optimizer", self.ns["update"])]


def fixed(parallel: str, blocks: int, microbatches: int, **ns: int) -> Timeline:
    how = Parallelism.parse(parallel, None)
    its: Any = Fixed(how, blocks, **ns)
    return run((sharded if how.sharded else pipelined).program(its, microbatches))


simulate = partial(cxlemu, "simulate", "training")


@with_rows(("titan2-6xcz120", ["--against", "infiniband-3xh100"]), ("racks-2x72", ["--fail", "switch:cxl-spine0@500"]))
def test_ctrl_c_keeps_the_step_that_ended(fabric: str, second: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[object] = []

    def second_is_interrupted(*told: Any, **more: Any) -> TrainingStep:
        began.append(told)
        if len(began) == 2:
            raise KeyboardInterrupt
        return train(*told, **more)

    monkeypatch.setattr("studies.cli.simulate_training_run.train", second_is_interrupted)
    done, document = with_json("simulate", "training", "-c", fabric, "-n", "3", *second, code=INTERRUPTED)
    assert done.stderr.endswith("cxlemu: interrupted; 1 step not simulated\n")
    assert document["interrupted"] and [step["fabric"] for step in document["steps"]] == [fabric]


@with_rows(
    ("serving", "studies.cli.simulate_serving_run.simulate", "runs"),
    ("training", "studies.cli.simulate_training_run.train", "steps"),
)
def test_ctrl_c_before_anything_ended_is_written(
    verb: str, work: str, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*told: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(work, interrupted)
    _, document = with_json("simulate", verb, code=INTERRUPTED)
    assert document["interrupted"] and document[ended] == []


# --- models ---------------------------------------------------------------------------------------------------------


@with_rows(
    *(("llama3-8b", 8.03), ("llama3-405b", 405.8), ("gpt3-175b", 174.6), ("gopher-280b", 279.7)),
    *(("palm-540b", 540.35), ("megatron-1t", 1008.0), ("qwen3-8b", 8.19)),
    *(("deepseek-v3", 671.0), ("llama4-maverick", 400.7)),
)
def test_models_have_their_published_size(name: str, billions: float) -> None:
    model = LanguageModel.load(name)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=1e-3)
    assert {key[0] for key in model.provenance} == model.model_fields_set - {"name", "description"}


def test_flops_are_palms_formula() -> None:
    """6 N + 12 L H Q T a token, of which a third is forward; N without the embedding, which multiplies nothing."""
    model, tokens = LanguageModel.load("palm-540b"), 1000
    ours = model.blocks * model.block_flops(tokens) + model.head_flops(tokens)
    attention = 12 * model.blocks * model.heads * model.head_size * model.sequence
    assert 3 * ours == tokens * (6 * model.parameters + attention)


@with_rows(
    ("kv_heads: {value: 8", "kv_heads: {value: 7", "kv_heads are 7 but should divide heads, which are 32"),
    ("hidden: {value: 4096", "hidden: {value: 0", "hidden is 0 but should be greater than or equal to 1"),
    ("gated:", "gate:", "gate is not a known key; did you mean gated?"),
    ("blocks: {value: 32, source:", "blocks: {value: 32, sauce:", "source or fitted or assumed"),
)
def test_a_wrong_model_file_is_one_sentence(old: str, new: str, message: str, tmp_path: Path) -> None:
    text = LanguageModel.shipped()["llama3-8b"].read_text()
    file = tmp_path / "model.yaml"
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=r"model\.yaml:\d+: ") as caught:
        LanguageModel.load(file)
    assert message in str(caught.value)


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="'llama3-9b' is neither a file nor a shipped language model"):
        LanguageModel.load("llama3-9b")


def test_a_block_takes_at_least_its_products_at_the_peak() -> None:
    tokens = 8192
    took_ns = Compute(LLAMA, H100).block_ns(tokens)
    assert 0.6 < LLAMA.block_flops(tokens) / (took_ns * H100.peak_flop_per_s("bf16") / 1e9) < 1


def test_tensor_ranks_share_a_block() -> None:
    whole, half = (Compute(LLAMA, H100, tensor, sequence=True).block_ns(8192) for tensor in (1, 2))
    assert 0.5 < half / whole < 0.52


# --- timelines ------------------------------------------------------------------------------------------------------


def test_a_bill_goes_back_along_what_was_waited_for() -> None:
    made = TimelineProgram()
    one = made.add("send", 0, "wire", [Part("all_gather", 10)])
    two = made.add("compute", 0, COMPUTE, [Part("forward", 5)], [one])
    made.add("send", 0, "wire", [Part("reduce_scatter", 3)], [two])  # 15 to 18, while the next one computes
    made.add("compute", 0, COMPUTE, [Part("backward", 2)])  # 15 to 17
    made.add("elsewhere", 1, COMPUTE, [Part("forward", 20)])
    timeline = run(made)
    assert timeline.time_ns == 20
    assert timeline.billed(0) == {"all_gather": 10, "forward": 5, "backward": 2, BUBBLE: 3}
    assert timeline.billed(1) == {"forward": 20}


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([COMPUTE, "wire"]), st.integers(0, 9), st.sets(st.integers(1, 5))),
        min_size=1,
        max_size=30,
    )
)
@examples(200)
def test_every_bill_is_the_whole_time(rows: Sequence[tuple[int, str, int, set[int]]]) -> None:
    made = TimelineProgram()
    for number, (lane, stream, ns, back) in enumerate(rows):
        after = [number - step for step in sorted(back) if step <= number]
        made.add(str(number), lane, stream, [Part(stream, ns), Part("more", ns // 2)], after)
    timeline = run(made)
    for lane in range(3):
        assert sum(timeline.billed(lane).values()) == timeline.time_ns
    free: dict[tuple[int, str], int] = {}
    for number, its in enumerate(made.operations):  # as if executed one by one
        begins = max([free.get((its.lane, its.stream), 0), *(timeline.end_ns[other] for other in its.after)])
        assert timeline.begin_ns[number] == begins
        free[its.lane, its.stream] = timeline.end_ns[number]


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (2, 2), (4, 3), (4, 8), (8, 16)])
def test_a_pipeline_takes_microbatches_and_a_bubble(stages: int, microbatches: int) -> None:
    """(m + p - 1) (forward + backward), of which (p - 1) are idle: arXiv 2104.04473, section 2.2.1."""
    timeline = fixed(f"pp={stages}", stages, microbatches, forward=10, backward=20)
    assert timeline.time_ns == (microbatches + stages - 1) * 30
    for lane in range(stages):
        bill = timeline.billed(lane)
        assert (bill["forward"], bill["backward"]) == (10 * microbatches, 20 * microbatches)
        assert bill[BUBBLE] == 30 * (stages - 1)


def test_what_is_handed_over_shows_where_the_pipeline_fills_and_drains() -> None:
    timeline = fixed("pp=4", 4, 8, forward=10, backward=20, hand_over=1)
    assert timeline.time_ns > (8 + 3) * 30 + 2 * 3
    assert timeline.billed(3)["pipeline"] >= 3


def test_fully_sharded_computing_hides_gathering() -> None:
    blocks, forward, backward, gather, scatter = 8, 100, 200, 60, 70
    timeline = fixed("fsdp", blocks, 1, forward=forward, backward=backward, gather=gather, scatter=scatter, update=5)
    again = gather  # of the last block, which was dropped when its forward was through
    assert timeline.time_ns == gather + blocks * forward + again + blocks * backward + scatter + 5
    assert timeline.billed(0)["all_gather"] == gather + again
    assert timeline.billed(0)["reduce_scatter"] == scatter


def test_fully_sharded_gathering_hides_computing() -> None:
    blocks, gather, scatter = 8, 100, 150
    timeline = fixed("fsdp", blocks, 1, forward=1, backward=2, gather=gather, scatter=scatter)
    sent = 2 * blocks * gather + blocks * scatter
    # it stands still while the last block of the forward pass, and the first of the backward pass, compute
    assert sent <= timeline.time_ns <= sent + 3 * (1 + 2)


def test_without_overlap_all_follows_all() -> None:
    ns = {"forward": 10, "backward": 20, "gather": 7, "scatter": 3, "update": 5}
    assert fixed("fsdp,serial", 4, 2, **ns).time_ns == 2 * 4 * (10 + 20 + 2 * 7 + 3) + 5
    assert fixed("dp=2,serial", 4, 2, **ns).time_ns == 2 * 4 * (10 + 20) + 4 * (7 + 3) + 5


@given(st.integers(1, 4), st.integers(1, 6), st.lists(st.integers(0, 50), min_size=6, max_size=6), st.booleans())
@examples(60)
def test_overlap_is_never_slower_and_never_too_fast(stages: int, count: int, ns: list[int], fsdp: bool) -> None:
    words = "fsdp" if fsdp else f"pp={stages}"
    kinds = dict(zip(("forward", "backward", "gather", "scatter", "hand_over", "update"), ns, strict=True))
    with_, without = (fixed(words + more, 4, count, **kinds) for more in ("", ",serial"))
    assert with_.time_ns <= without.time_ns
    blocks = pipelined.blocks_of(4, 1 if fsdp else stages)
    assert with_.time_ns >= count * max(blocks) * (kinds["forward"] + kinds["backward"]) + kinds["update"]


def test_blocks_are_shared_out_evenly() -> None:
    assert pipelined.blocks_of(126, 16) == [7] + [8] * 14 + [7]
    assert sum(pipelined.blocks_of(118, 7)) == 118


# --- steps ----------------------------------------------------------------------------------------------------------


def test_what_computes_is_faster_with_a_faster_fabric_and_no_slower_than_alone() -> None:
    how = Parallelism.parse("fsdp", 3)
    times = [train(LLAMA, how, TrainingMachine(H100, Rate(rate))).time_ns for rate in (1.0, 10.0, 1e6)]
    assert times[0] > times[1] > times[2]
    alone = train(LLAMA.varied(batch_sequences=1), Parallelism.parse("fsdp", 1), TrainingMachine(H100, Rate(1)))
    more_ns = alone.billed_ns["optimizer"] * 2 / 3  # alone, a rank updates everything
    assert times[2] == pytest.approx(alone.time_ns - more_ns, rel=1e-3)


def test_recomputing_takes_time_and_frees_memory() -> None:
    machine, how = TrainingMachine(H100, Rate(100)), Parallelism.parse("fsdp", 3)
    none, selective, full = (train(LLAMA, how, machine, recompute=r) for r in ("none", "selective", "full"))
    assert none.time_ns < selective.time_ns < full.time_ns
    assert none.memory_bytes > full.memory_bytes
    assert full.billed_ns["recompute"] == pytest.approx(LLAMA.blocks * Compute(LLAMA, H100).block_ns(8192))


def test_tensor_parallelism_talks_inside_the_cluster() -> None:
    inside, between = Rate(450), Rate(20)
    step = train(LLAMA, Parallelism.parse("tp=4,sp,dp=3", 12), TrainingMachine(H100, between, inside, 8))
    nbytes = 8192 * LLAMA.hidden * 2
    each_pass = 2 * 2 * round(nbytes / 450)  # after attention and after the feed-forward layer, two collectives each
    assert step.billed_ns["tensor"] == LLAMA.blocks * 2 * each_pass
    with pytest.raises(ArgumentError, match="tp=4 does not fit into a cluster of 1"):
        train(LLAMA, Parallelism.parse("tp=4,dp=3", 12), TrainingMachine(H100, between))


def test_offloading_moves_gradients_or_state() -> None:
    parameters = 10**9
    host = Offload("host", 20, 20, at_memory=True, update_gbytes_per_s=100)
    assert host.update_ns(parameters) == 24 * parameters // 100  # the processor is slower than the link
    pool = Offload("pool", 20, 30, at_memory=False)
    assert pool.update_ns(parameters) == 12 * parameters // 20
    assert offload_to("pool", TITAN, 3).to_gbytes_per_s == 20  # six cards of 51.2 GB/s are more than three engines need
    assert offload_to("pool", TITAN, 9).to_gbytes_per_s == pytest.approx(6 * 51.2 / 9 / 2)
    with pytest.raises(ArgumentError, match="unknown place for the optimizer's state 'disk'"):
        offload_to("disk", TITAN, 3)


def test_a_fabrics_times_are_what_simulate_says() -> None:
    fabric = Modelled(TITAN)
    done = cxlemu("simulate", "all_gather", "-b", "3M", "-n", "3", "-d", "bf16", "-c", TITAN.name)
    (row,) = [line.split() for line in done.output.splitlines() if line.split()[:1] == [str(3 << 20)]]
    assert float(row[5]) == pytest.approx(fabric.time_ns("all_gather", 3 << 20, 3) / 1e3, abs=0.05)
    assert fabric.time_ns("all_gather", 3 << 20, 1) == 0


@with_rows(
    ("fdsp", 3, "does not take 'fdsp'"),
    ("tp=0", 3, "does not take 'tp=0'"),
    ("dp=2", 3, "dp x tp x pp is 2, but there are 3 ranks"),
    ("tp=2", 3, "3 ranks are not a multiple of tp x pp, 2"),
    ("fsdp,pp=3", 3, "fsdp does not go with pp"),
    ("fsdp,ep=2", 3, "ep=2 does not divide the 3 ranks that hold the same weights"),
    ("cp=2", 3, "3 ranks are not a multiple of tp x pp x cp, 2"),
    ("dp=2,cp=3", 5, "dp x tp x pp x cp is 6, but there are 5 ranks"),
    ("fsdp,ring", 3, "ring goes with cp=N"),
    ("dp=9999999", 3, "--parallel does not take"),
)
def test_a_wrong_parallelism_is_refused(text: str, ranks: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Parallelism.parse(text, ranks)


# --- experts and context ranks --------------------------------------------------------------------------------------


class Linear:
    """A fabric on which a collective takes a nanosecond for each byte, and which remembers what it carried."""

    name = "linear"

    def __init__(self) -> None:
        self.chosen: dict[str, str] = {}
        self.asked: list[tuple[str, int, int]] = []

    def line(self, ranks: int) -> str:
        return ""

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        if ranks > 1:
            self.asked.append((collective, size_bytes, ranks))
        return size_bytes if ranks > 1 else 0


def mixed(**parallel: Any) -> tuple[Durations, Linear]:
    """What pieces of a step of a small mixture of experts take: half its blocks have 8 experts, of which 2 are met."""
    fabric = Linear()
    model = LanguageModel.load("llama4-maverick").varied(
        blocks=4, dense_blocks=2, experts=8, active_experts=2, hidden=256, sequence=512, batch_sequences=64
    )
    how = Parallelism(**parallel)
    return Durations(model, how, TrainingMachine(H100, fabric), 1, "none"), fabric


def test_experts_are_divided_and_all_else_is_not() -> None:
    its, fabric = mixed(data=16, expert=4, sharded=True)
    model = its.model
    routed = 8 * 3 * 256 * 8192 // 2  # of the mean block
    assert model.expert_parameters == routed
    others = model.block_parameters - routed
    assert [part.ns for part in its.gather(1)] == [2 * others, 2 * routed // 4]
    assert sorted((name, ranks) for name, _, ranks in fabric.asked) == [("all_gather", 4), ("all_gather", 16)]
    whole, _ = mixed(data=16, sharded=True)
    assert sum(part.ns for part in whole.gather(1)) == 2 * model.block_parameters
    assert its.memory_bytes(1) < whole.memory_bytes(1)


def test_tokens_go_to_their_experts_and_come_back() -> None:
    """Each rank sends its 512 tokens to two experts each, 512 bytes a token, in half of the blocks; there and back."""
    its, fabric = mixed(data=16, expert=4)
    parts = {part.kind: part.ns for part in its.forward(4)}
    sent = round(512 * 2 * 256 * 2 * its.load.busiest) // 8 * 8
    assert parts["all_to_all"] == 4 * 2 * sent // 2
    assert {asked for asked in fabric.asked if asked[0] == "all_to_all"} == {("all_to_all", sent, 4)}
    assert "all_to_all" not in {part.kind for part in mixed(data=16)[0].forward(4)}


def test_a_router_loads_ranks_by_its_seed_and_drops_what_is_beyond_its_capacity() -> None:
    model = LanguageModel.load("deepseek-v3")
    even, skewed = Router().load(model, 4096, 32), Router(skew=0.5).load(model, 4096, 32)
    assert 1 < even.busiest < 1.02 < skewed.busiest
    assert even.dropped == skewed.dropped == 0
    assert skewed == Router(skew=0.5).load(model, 4096, 32) != Router(skew=0.5, seed=2).load(model, 4096, 32)
    capped = Router(skew=0.5, capacity=1.25).load(model, 4096, 32)
    assert capped.busiest <= 1.25
    assert 0 < capped.dropped < 0.3
    assert Router(skew=0.5, capacity=1.25).load(model, 4096, 1).busiest == pytest.approx(1 - capped.dropped, abs=0.02)
    tight = Router(capacity=0.5).load(model, 4096, 32)  # every expert gets more than half the mean
    assert (tight.busiest, tight.dropped) == (0.5, 0.5)


def test_a_histogram_says_what_each_expert_gets(tmp_path: Path) -> None:
    """Of 8 experts on four ranks, the last rank's two get half of all tokens, twice the mean."""
    model = LanguageModel.load("deepseek-v3").varied(experts=8)
    load = Router(histogram=(1, 1, 1, 1, 1, 1, 2, 4)).load(model, 1000, 4)
    assert (load.busiest, load.dropped) == (pytest.approx(2.0), pytest.approx(0))
    assert load == Router(histogram=(1, 1, 1, 1, 1, 1, 2, 4), seed=2, skew=3).load(model, 1000, 4)  # nothing is drawn
    capped = Router(histogram=(1, 1, 1, 1, 1, 1, 2, 4), capacity=2).load(model, 1000, 4)
    # each expert has room for two of eight parts, 3 of 12: the last one gives up 1 of its 4 parts
    assert (capped.busiest, capped.dropped) == (pytest.approx(5 / 3), pytest.approx(1 / 12))
    assert Router(histogram=(1e308,) * 8).load(model, 1000, 4).busiest == pytest.approx(1)
    file = tmp_path / "tokens"
    file.write_text("1 2,3\n4e2\n")
    assert read_histogram(str(file)) == read_histogram("1,2, 3,4e2") == (1, 2, 3, 400)
    file.write_text("\n".join(["3"] * 255 + ["765"]))
    words = "--model deepseek-v3 -c racks-2x72-rdma -n 16 --batch 16 --parallel fsdp,ep=16 --histogram"
    # the last rank's 16 experts get 45 + 765 of 1530 tokens, the mean rank 1530 / 16
    assert "the busiest rank gets 8.47 times the mean" in simulate(*words.split(), str(file), code=0).output


@with_rows(
    ("1,2", "--histogram has 2 numbers, but deepseek-v3 has 256 experts"),
    ("1,-2", "'-2', of expert 1, should be a number of tokens, 0 or more"),
    ("1,nan", "'nan', of expert 1"),
    ("inf,1", "'inf', of expert 0"),
    ("1,,2", "'', of expert 1"),
    ("1,many", "'many', of expert 1"),
    ("0,0", "no expert gets any token"),
    (".", "a directory, not a regular file"),
)
def test_a_bad_histogram_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        Router(histogram=read_histogram(text)).load(LanguageModel.load("deepseek-v3"), 4096, 32)


def test_context_ranks_gather_keys_and_values_or_pass_them_round() -> None:
    its, fabric = mixed(data=2, context=4)
    assert its.tokens == 128
    each = 128 * 2 * 2 * 8 * 128  # of a block
    assert {part.kind: part.ns for part in its.forward(1)}["context"] == 4 * each
    assert {part.kind: part.ns for part in its.backward(1)}["context"] == 2 * 4 * each
    ring, _ = mixed(data=2, context=4, ring=True)
    hidden = ring.compute.scores_ns(128)
    assert {part.kind: part.ns for part in ring.forward(1)}["context"] == 3 * each - hidden
    assert fabric.asked[0] == ("all_gather", 4 * each, 4)


def test_a_step_of_a_mixture_says_what_experts_got() -> None:
    words = (
        "--model llama4-maverick -c racks-2x72-rdma -n 16 --batch 16 --parallel fsdp,ep=8 --skew 1 --capacity-factor 2"
    )
    done, document = with_json("simulate", "training", *words.split(), code=0)
    assert document["steps"][0]["billed_ns"]["all_to_all"] > 0
    assert 0 < document["dropped_tokens"] < 1
    assert 0 < document["busiest_experts"] <= 2
    assert "the busiest rank gets" in done.output


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_says_where_time_goes(tmp_path: Path) -> None:
    files = [tmp_path / "step.json", tmp_path / "trace.json"]
    arguments = ["--against", "infiniband-3xh100", "--json", str(files[0]), "--trace", str(files[1])]
    first, second = simulate(*arguments), simulate(*arguments)
    assert (first.exit_code, first.output) == (0, second.output)
    document = json.loads(files[0].read_text())
    ours, other = document["steps"]
    for step in (ours, other):
        assert sum(step["billed_ns"].values()) == pytest.approx(step["time_ns"], rel=1e-12)
    ratio = other["time_ns"] / ours["time_ns"]
    faster = f"takes a step {max(ratio, 1 / ratio):.2f} times as fast"
    assert f"{ours['fabric'] if ratio > 1 else other['fabric']} {faster}" in re.sub(r"\s+", " ", first.output)
    slices = [event for event in json.loads(files[1].read_text())["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(ours["time_ns"] / 1e3)


def test_a_batch_of_ones_own_has_no_standing(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    assert simulate("--batch", "6", "--json", str(file)).exit_code == 0
    model = json.loads(file.read_text())["model"]
    assert model["batch_sequences"] == 6
    assert model["blocks"]["value"] == 32


@with_rows(
    (["--model", "nothing"], "neither a file nor a shipped language model"),
    (["--accelerator", "nothing"], "neither a file nor a shipped accelerator"),
    (["--batch", "4"], "a batch of 4 sequences does not divide into 3 x 1"),
    (["--parallel", "tp=3"], "give --inside"),
    (["--parallel", "fsdp,ep=3"], "ep=3 does nothing: llama3-8b has no experts"),
    (["--skew", "1"], "--skew does nothing here: llama3-8b has no experts"),
    (["--capacity-factor", "1"], "--capacity-factor does nothing here"),
    (["--model", "deepseek-v3", "--parallel", "fsdp,ep=3"], "ep=3 does not divide the 256 experts of deepseek-v3"),
    (["--parallel", "cp=3"], "cp=3 does not divide a sequence of 8192 tokens"),
    (["-n", "98304", "--parallel", "fsdp,tp=32,sp"], "3072 are to talk to each other over it, with 32 tensor"),
    (["-n", "98304", "--parallel", "fsdp,tp=32,sp"], "98304 in all"),
    (["-n", "98304", "--parallel", "fsdp,tp=32,sp", "-c", "clusters-64x64"], "4096 ranks, but 98304 are to be"),
    (["-n", "98304", "--parallel", "fsdp,tp=32,sp", "-c", "clusters-64x64"], "32 tensor ranks for each of 3072"),
    (["--histogram", "1,2"], "--histogram does nothing here: llama3-8b has no experts"),
    (["--model", "deepseek-v3", "--histogram", "1,2", "--skew", "1"], "--skew does nothing with --histogram"),
    (["--model", "deepseek-v3", "--histogram", "1,2", "--seed", "1"], "--seed does nothing with --histogram"),
    (["--model", "deepseek-v3", "--histogram", "/nonexistent"], "/nonexistent: the file cannot be read: No such"),
    (["-n", "6", "--batch", "6"], "titan2-6xcz120 has places for 3 ranks, but 6 are to talk to each other over it"),
    (["--json", "/nonexistent/x.json"], "--json /nonexistent/x.json cannot be written"),
)
def test_bad_input_is_one_sentence(arguments: list[str], message: str) -> None:
    done = simulate(*arguments, code=2)
    assert message in done.output
    assert "Traceback" not in done.output


def test_thousands_of_accelerators_are_a_matter_of_seconds() -> None:
    words = (
        "--model palm-540b --accelerator b200 --parallel fsdp,tp=12,sp,serial -n 6144 --microbatch 4 -c clusters-cxl"
    )
    done = simulate(*words.split(), "--inside", "nvl72", code=0)
    assert "fsdp=512 tp=12" in done.output
    assert "collectives of 512 ranks follow a line through 8 and 16" in done.output
    assert "plans on clusters-cxl: all_gather as ring" in done.output


def test_the_rate_of_a_model_that_does_not_fit_says_so() -> None:
    done, document = with_json("simulate", "training", "-n", "1", "--batch", "1", code=0)
    assert "on the fullest: does not fit\n" in done.output and not document["memory_fits"]
    assert "of the peak in model FLOPs, if its memory sufficed\n" in done.output


def test_collectives_are_simulated_as_before() -> None:
    assert cxlemu("simulate", "broadcast", "-b", "1M").exit_code == 0
    done = cxlemu("simulate", "trainings")
    assert (done.exit_code, "unknown collective 'trainings'" in done.output) == (2, True)
    assert "\n  training  " in cxlemu("simulate", "--help").output
    assert "--parallel" in cxlemu("simulate", "training", "--help").output


def test_the_docs_have_what_the_command_prints() -> None:
    text = (Path(__file__).parents[2] / "docs" / "modelled-training.md").read_text()
    others = (INFINIBAND, *(Topology.load(f"{INFINIBAND.name}-{kind}") for kind in ("gpudirect", "cccl")))
    its = [train(LLAMA, Parallelism.parse("fsdp", 3), TrainingMachine(H100, Modelled(its))) for its in (TITAN, *others)]
    rows = {
        "forward, backward, optimizer": ("forward", "backward", "optimizer"),
        "all_gather, exposed": ("all_gather",),
        "reduce_scatter, exposed": ("reduce_scatter",),
        "all": tuple(LEVELS),
    }
    for words, kinds in rows.items():
        cells = [f"{sum(step.billed_ns.get(kind, 0) for kind in kinds) / 1e6:.0f}" for step in its]
        assert f"| {words} | {' | '.join(cells)} |" in text
    ratios = [step.time_ns / its[0].time_ns for step in its[1:]]
    assert f"takes {min(ratios):.2f} to {max(ratios):.2f} times as long as on the pool" in text


@pytest.mark.deep
@pytest.mark.parametrize("ranks", [1024, 10240])
def test_the_docs_say_what_a_mixture_gains_from_cxl_between_clusters(ranks: int) -> None:
    text = (Path(__file__).parents[2] / "docs" / "modelled-training.md").read_text()
    (line,) = re.findall(rf"^cxlemu simulate training (.* -n {ranks} --parallel fsdp,ep=64.*)$", text, re.M)
    done = simulate(*line.split(), "--json", "-")
    ours, other = json.loads(done.stdout)["steps"]
    sent = ours["billed_ns"]["all_to_all"]
    assert sent == other["billed_ns"]["all_to_all"]  # inside a cluster
    cells = f"{sent / 1e6:,.0f} | {ours['time_ns'] / 1e6:,.0f} | {other['time_ns'] / 1e6:,.0f}"
    assert f"| {ranks:,}, ep=64, inside a cluster | {cells} | {other['time_ns'] / ours['time_ns']:.2f} |" in text


def test_the_page_lists_all_shipped_models() -> None:
    page = (Path(__file__).parents[2] / "docs" / "modelled-training.md").read_text()
    assert [name for name in LanguageModel.shipped() if name not in page.partition("Shipped models: ")[2][:200]] == []
