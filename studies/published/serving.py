"""Measured servers of language models beside ``simulate serving``, under the conditions that their reports state.

Nothing is fitted. Where a report states a number of users who each wait for their answer, all requests are there at
once and as many are served at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from cxlemu.topology import Accelerator, Topology
from studies.published.rows import Row, row_of
from studies.serving.iterations import Iterations
from studies.serving.outcome import ServingOutcome
from studies.serving.requests import ServingRequest, generate
from studies.serving.simulation import ServingSetup, simulate, with_hosts
from studies.training.fabrics import TrainingFabric
from studies.training.language_model import LanguageModel
from studies.training.symmetric import fabric_of

MS = 1e6
# Prompts and answers of ten requests at once: input_lens and output_lens of the report's JSON file.
TEN = ([13, 25, 27, 10, 329, 29, 399, 328, 4, 205], [120, 429, 233, 194, 101, 741, 9, 3, 6, 31])

SMALL = "the server's own time for each request or iteration (scheduling, sampling, launching) is not modelled"
LONG = "attention is taken at a large GEMM's rate, and the exchange between tensor ranks at its best"
BATCH = "the server's own time for each iteration is not modelled, and memory is read at its best rate"
CHUNKS = "measured: prompts and answers disturb each other more than a shared iteration does"
COPIES = "a store's software is not modelled: Beluga bills RDMA's many small copies, requests and synchronization"


class ServingReport(NamedTuple):
    """Where figures were read, and what was measured."""

    address: str
    conditions: str


MOONCAKE = ServingReport(
    "github.com/kvcache-ai/Mooncake, docs/source/performance/vllm/vllm-v1-pd-performance.md",
    "Qwen3-8B on 2 x 8 H800, tp=8, vLLM 0.11.2, prompts and answers apart, RoCE with eight adapters, one user",
)
YOBITEL = ServingReport(
    "yobitelcomm.github.io/bench/recipes/concurrency-sweep",
    "Llama 3.1 8B on an H100, fp16, vLLM 0.21.0, a short chat (128 tokens in and out here), 1 and 4 users",
)
MUSGRAVE = ServingReport(
    "johnmusgrave.com/p/vllm-throughput-latency-sweep-on",
    "Llama 3.1 8B on an A100 of 40 GB, vLLM 0.23.0, 1024 tokens in and 128 out, 1 and 8 users",
)
LAMBDA = ServingReport(
    "github.com/LambdaLabsML/vllm-benchmark, results/prompt_10/1xH100-80GB-SXM, Meta-Llama-3-8B-Instruct_tp1_len2048",
    "Llama 3 8B on an H100, vLLM 0.6.0 with ten steps at a time, ten requests at once, with their lengths",
)
SILYBENCH = ServingReport(
    "raw.githubusercontent.com/tgarg01/silybench-data/main/derived/csv/capacity.csv",
    "Qwen3-8B on an H100, bf16, vLLM 0.30.0, tokens in-out and the number of users of each row",
)
BUILDKITE = ServingReport(
    "buildkite.com/vllm/performance-benchmark/builds/9515",
    "Llama 3.1 8B on an H200 (an H100 with 4.8 TB/s here), eight requests at once, 32 tokens in and 128 out",
)
BELUGA = ServingReport(
    "arXiv 2511.20172, abstract",
    "vLLM with keys and values in a CXL pool, against RDMA; here questions about stored documents on two H100",
)


Described = Topology | Accelerator
Machines = tuple[Described, ...]
Rows = Iterator[tuple[ServingReport, Row]]


def rows() -> Rows:
    """Yield each published figure with ours, as they are simulated."""
    for of, machines in parts():
        yield from of(*machines)


def parts() -> list[tuple[Callable[..., Rows], Machines]]:
    """List what yields figures that depend on the same machines, with these."""
    h100 = Accelerator.load("h100-sxm")
    a100 = Accelerator.load("a100-sxm").model_copy(update={"memory_gbytes_per_s": 1555, "memory_bytes": 40 << 30})
    two, sixteen = Topology.load("serving-2x8h800"), Topology.load("serving-16xh100")
    return [
        (_on_h800, (two, Accelerator.load("h800-sxm"))),
        (_on_h100, (h100,)),
        (_on_a100, (a100,)),
        (_with_pool, (sixteen, h100)),
    ]


def _on_h800(topology: Topology, h800: Accelerator) -> Rows:
    for tokens, first_ms, moved_ms in ((8192, 212.05, 8.84), (32768, 749.62, 31.65)):
        ours = apart(topology, h800, tokens)
        figure = f"first token, {tokens} in, tp=8, apart, ms"
        yield MOONCAKE, row_of(figure, first_ms, ours[0], shows=LONG, read_in="repository")
        figure = f"keys and values of {tokens} moved, ms"
        yield (
            MOONCAKE,
            row_of(figure, moved_ms, ours[1], shows="they pass the host's memory here", read_in="repository"),
        )


def _on_h100(h100: Accelerator) -> Rows:
    for users, published in ((1, 6.48), (4, 6.59)):
        ours_ms = token_ms(at_once("llama3-8b", h100, [(128, 128)] * users, users))
        yield YOBITEL, row_of(f"token, H100, {users} at a time, ms", published, ours_ms, shows=SMALL, read_in="paper")
    ten = at_once("llama3-8b", h100, list(zip(*TEN, strict=True)), 10)
    yield LAMBDA, row_of("token, H100, 10 at once, ms", 7.56, token_ms(ten), shows=SMALL, read_in="repository")
    assert ten.first_token is not None
    ours_ms = ten.first_token.mean / MS
    yield LAMBDA, row_of("first token, H100, 10 at once, ms", 62.4, ours_ms, shows=SMALL, read_in="repository")
    for given, wanted, users, published in (
        (128, 1024, 396, 13322.0),
        (1024, 128, 80, 3017.7),
        (2048, 2048, 40, 2814.7),
        (8192, 512, 7, 501.6),
    ):
        outcome = at_once("qwen3-8b", h100, [(given, wanted)] * 3 * users, users)
        figure = f"tokens/s, {given}-{wanted}, {users} users"
        yield SILYBENCH, row_of(figure, published, rate(outcome), shows=BATCH, read_in="repository")
    h200 = h100.model_copy(update={"memory_gbytes_per_s": 4800})
    outcome = at_once("llama3-8b", h200, [(32, 128)] * 8, 8)
    figure = "8 answers of 128, H200, ms"
    yield BUILDKITE, row_of(figure, 833.4, outcome.span_ns / MS, shows=SMALL, read_in="paper")


def _on_a100(a100: Accelerator) -> Rows:
    one, eight = (at_once("llama3-8b", a100, [(1024, 128)] * 20 * users, users) for users in (1, 8))
    yield MUSGRAVE, row_of("tokens/s, A100, 1 user", 75, rate(one), shows=SMALL, read_in="paper")
    yield MUSGRAVE, row_of("8 users by 1, A100", 6.6, rate(eight) / rate(one), shows=CHUNKS, read_in="paper")


def _with_pool(topology: Topology, h100: Accelerator) -> Rows:
    figure = "first token, pool by RDMA"
    yield BELUGA, row_of(figure, 0.104, pool_by_rdma(topology, h100), shows=COPIES, read_in="abstract")


@cache
def _one_host() -> Topology:
    return with_hosts(Topology.load("serving-16xh100"), 1)


@cache
def _nvlink() -> TrainingFabric:
    return fabric_of(Topology.load("nvlink-8xh800"), 8)


def at_once(model: str, accelerator: Accelerator, lengths: list[tuple[int, int]], users: int) -> ServingOutcome:
    """Serve requests that are all there at once, ``users`` at a time, on one accelerator; none reuses anything."""
    iterations = Iterations(LanguageModel.load(model), accelerator)
    setup = ServingSetup(_one_host(), iterations, "accelerator", most=users)
    return ServingOutcome.of(simulate(setup, [ServingRequest(0, *length, ()) for length in lengths]))


def token_ms(outcome: ServingOutcome) -> float:
    """The median time per output token."""
    assert outcome.next_token is not None
    return outcome.next_token.percentiles[0] / MS


def rate(outcome: ServingOutcome) -> float:
    """Output tokens in a second."""
    return outcome.per_s(outcome.output_tokens)


def apart(topology: Topology, h800: Accelerator, tokens: int) -> tuple[float, float]:
    """The time to the first token that the other host makes, and that of its keys and values on the way, in ms."""
    iterations = Iterations(LanguageModel.load("qwen3-8b"), h800, 8, _nvlink())
    run = simulate(ServingSetup(topology, iterations, "rdma", prefill=1), [ServingRequest(0, tokens, 2, ())])
    (answer,) = run.served
    assert answer.end_ns is not None
    assert answer.first_ns is not None
    moved_ns = answer.end_ns - answer.first_ns - iterations.ns(1, 0, tokens + 1, 1)
    return answer.end_ns / MS, moved_ns / MS


def pool_by_rdma(topology: Topology, h100: Accelerator) -> float:
    """The mean time to the first token with a pool, by that over RDMA, where all documents are stored."""
    iterations = Iterations(LanguageModel.load("llama3-8b"), h100)
    topology, requests = with_hosts(topology, 2), generate(300, 20.0, 1, "documents")
    run: Callable[[str], ServingOutcome] = lambda place: ServingOutcome.of(  # noqa: E731
        simulate(ServingSetup(topology, iterations, place, warm=True), requests)
    )
    pool, rdma = (float(np.mean([one.at_once_ns or 0 for one in run(place).done])) for place in ("pool", "rdma"))
    return pool / rdma
