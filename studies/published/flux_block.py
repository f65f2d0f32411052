"""A transformer block with tensor and sequence parallelism: its GEMMs fused with their collectives, or not.

    forward      all-gather + GEMM (queries, keys, values) -> attention -> GEMM + reduce-scatter (its output)
                 all-gather + GEMM (feed-forward, in)       ->           GEMM + reduce-scatter (feed-forward, out)
    backward     of inputs: the same with the collectives swapped; of weights: GEMMs that communicate nothing, as what
                 was gathered forward is kept

In training the baseline is the same, unfused, as Megatron-LM runs it. In inference it is what vLLM runs: no sequence
parallelism, GEMMs without an all-gather, and an all-reduce after two of them. A fused GEMM is taken where it is the
faster one, as a tuner does. All else (attention, norms, activations) is alike in both, and what workloads say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collectives.fused.choice import Operator
from cxlemu.cost.gemm import Product, fastest
from cxlemu.plan import DTYPES
from cxlemu.topology import Accelerator
from studies.training.compute import BACKWARD, DTYPE, Compute
from studies.training.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class Block:
    """What one block takes on one rank, in ns."""

    phase: str
    tokens: int
    fused_ns: float  # GEMMs with their collectives, each fused where that is the faster way
    unfused_ns: float  # the same in the baseline
    medium_ns: float  # the same medium-grained, shard by shard, as TransformerEngine overlaps them
    rest_ns: float  # everything but GEMMs and collectives

    @property
    def speedup(self) -> float:
        """How many times as long the block takes in the baseline as with fused GEMMs."""
        return (self.unfused_ns + self.rest_ns) / (self.fused_ns + self.rest_ns)

    @property
    def speedup_over_medium(self) -> float:
        """How many times as long the block takes medium-grained as with fused GEMMs."""
        return (self.medium_ns + self.rest_ns) / (self.fused_ns + self.rest_ns)


Times = Callable[[str, Operator], float]  # of a style, in ns


def block(
    model: LanguageModel, accelerator: Accelerator, ranks: int, phase: str, tokens: int, times: Times, call_ns: int
) -> Block:
    """Add up what one block takes on one rank."""

    def gemm_ns(m: int, n: int, k: int) -> float:
        return fastest(accelerator, Product(m, n, k, DTYPE)).ns(accelerator.multiprocessors) + call_ns

    def tuned_ns(operator: Operator) -> float:
        return min(times("fused", operator), times("unfused", operator))

    h, f, attention = model.hidden, model.feedforward, model.heads * model.head_size
    into = [(attention + 2 * model.kv_heads * model.head_size, h), (f, h)]  # n, k of what an all-gather feeds
    out_of = [(h, attention), (h, f)]
    gathers = [Operator("all_gather_gemm", tokens, n, k, DTYPE) for n, k in into]
    scatters = [Operator("gemm_reduce_scatter", tokens, n, k, DTYPE) for n, k in out_of]
    compute = Compute(model, accelerator, ranks, sequence=True)
    if phase == "training":
        gathers += [Operator("all_gather_gemm", tokens, k, n, DTYPE) for n, k in out_of]  # of inputs, backward
        scatters += [Operator("gemm_reduce_scatter", tokens, k, n, DTYPE) for n, k in into]
        weights_ns = sum(gemm_ns(k, n // ranks, tokens) for n, k in into) + sum(
            gemm_ns(k // ranks, n, tokens) for n, k in out_of
        )
        unfused_ns = sum(times("unfused", operator) for operator in (*gathers, *scatters))
        rest_ns = (1 + BACKWARD) * compute.rest_ns(tokens) + weights_ns
    else:
        reduces = [Operator("gemm_all_reduce", tokens, n, k, DTYPE) for n, k in out_of]
        unfused_ns = sum(gemm_ns(tokens, n // ranks, k) for n, k in into)
        unfused_ns += sum(times("unfused", operator) for operator in reduces)
        rest_ns = compute.rest_ns(tokens)
        if phase == "decoding":  # every sequence's keys and values are read
            cached = 2 * tokens * model.sequence * model.kv_heads * model.head_size * DTYPES[DTYPE].itemsize
            rest_ns += cached / ranks / accelerator.memory_bytes_per_s * 1e9
    fused_ns = sum(tuned_ns(operator) for operator in (*gathers, *scatters))
    medium_ns = sum(times("medium", operator) for operator in (*gathers, *scatters))
    return Block(phase, tokens, fused_ns, unfused_ns, medium_ns, rest_ns)
