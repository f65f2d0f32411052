"""How long an instance computes: an iteration of a batch, in which prompts go on by a chunk and answers by a token.

GEMMs and the head take what the accelerator's model gives for the tokens of the batch, weights read once. Attention of
a chunk is products with all keys before it; attention of an answer's token reads its keys and values from memory.
Tensor ranks reduce twice in a block. With expert ranks, each group of tensor ranks attends to its share of the requests
and holds its share of the experts, to which all tokens go and come back; each expert gets the mean. Scheduling,
sampling and launching kernels take no time.
"""

from __future__ import annotations

from functools import lru_cache

from cxlemu.errors import ArgumentError
from cxlemu.rounding import round_up
from cxlemu.topology import Accelerator
from studies.serving.requests import BLOCK_TOKENS
from studies.training.compute import DTYPE, Compute
from studies.training.fabrics import TrainingFabric
from studies.training.language_model import LanguageModel

BYTES = 2  # of an element: bf16
MEMORY_SHARE = 0.9  # what an instance takes of its accelerators' memory: vLLM's default, --gpu-memory-utilization


class Iterations:
    """What a model's iterations take on ``tensor`` x ``expert`` accelerators, which talk over ``inside``."""

    def __init__(
        self,
        model: LanguageModel,
        accelerator: Accelerator,
        tensor: int = 1,
        inside: TrainingFabric | None = None,
        expert: int = 1,
    ) -> None:
        for name, degree in (("tp", tensor), ("ep", expert)):
            if degree > 1 and inside is None:
                raise ArgumentError(
                    f"{name}={degree} needs --inside, the fabric over which accelerators of a host talk"
                )
        if expert > 1 and not model.expert_blocks:
            raise ArgumentError(f"ep={expert} does nothing: {model.name} has no experts")
        if (model.experts or 0) % expert:
            raise ArgumentError(f"ep={expert} does not divide the {model.experts} experts of {model.name}")
        self.model, self.accelerator, self.inside = model, accelerator, inside
        self.tensor, self.expert, self.ranks = tensor, expert, tensor * expert
        self._compute = Compute(model, accelerator, tensor, experts=expert)

    def on(self, accelerator: Accelerator) -> Iterations:
        """Return what the same iterations take on other accelerators."""
        if accelerator is self.accelerator:
            return self
        return Iterations(self.model, accelerator, self.tensor, self.inside, self.expert)

    @property
    def weight_bytes(self) -> int:
        """The bytes of the model's weights on all ranks: experts once, all else for each expert rank."""
        experts = self.model.blocks * self.model.expert_parameters
        return BYTES * (experts + self.expert * (self.model.parameters - experts))

    @property
    def block_bytes(self) -> int:
        """The bytes of one block's keys and values, on all ranks together."""
        return BLOCK_TOKENS * self.model.kv_bytes

    @property
    def blocks(self) -> int:
        """How many blocks of keys and values the accelerators hold beside the weights."""
        room = int(MEMORY_SHARE * self.ranks * self.accelerator.memory_bytes) - self.weight_bytes
        if room < self.block_bytes:
            raise ArgumentError(
                f"{self.model.name} has {self.weight_bytes / 1e9:.1f} GB of weights, which {self.ranks} x "
                f"{self.accelerator.name} cannot hold beside keys and values: give --tp"
            )
        return room // self.block_bytes

    def ns(self, tokens: int, pairs: int, context: int, ends: int) -> int:
        """Return what an iteration takes.

        ``tokens`` are of chunks and answers, ``pairs`` of a chunk's token and one before it; answers look back at
        ``context`` tokens, all together, and ``ends`` tokens come out.
        """
        model = self.model
        attention_flops = 4 * pairs * model.heads * model.head_size * model.blocks / self.ranks
        attention_s = attention_flops / (self.accelerator.peak_flop_per_s(DTYPE) * self.accelerator.gemm_efficiency)
        read_s = context * model.kv_bytes / self.ranks / self.accelerator.memory_bytes_per_s
        mine, mine_ending = -(-tokens // self.expert), -(-ends // self.expert)
        return self._dense_ns(mine) + self._head_ns(mine_ending) + round((attention_s + read_s) * 1e9)

    @lru_cache(maxsize=1 << 14)  # noqa: B019 - as many as a batch may have tokens
    def _dense_ns(self, tokens: int) -> int:
        compute, model = self._compute, self.model
        blocks_ns = model.blocks * (compute.gemms_ns(tokens) + compute.moved_ns(tokens))
        hidden_bytes = model.hidden * BYTES
        reduced_ns = self._carried_ns("all_reduce", tokens, hidden_bytes, self.tensor)
        sent_ns = self._carried_ns("all_to_all", tokens, model.active_experts * hidden_bytes, self.expert)
        return blocks_ns + 2 * (model.blocks * reduced_ns + model.expert_blocks * sent_ns)

    @lru_cache(maxsize=1 << 12)  # noqa: B019 - as many as a batch may have requests
    def _head_ns(self, ends: int) -> int:
        return self._compute.head_ns(ends) if ends else 0

    def _carried_ns(self, collective: str, tokens: int, token_bytes: int, ranks: int) -> int:
        """Return what a collective takes, on a line between the powers of two around a number of tokens."""
        if self.inside is None or ranks == 1:
            return 0
        few = 1 << (tokens.bit_length() - 1)
        sizes = [round_up(n * token_bytes, ranks * BYTES) for n in (few, 2 * few)]
        ends_ns = [self.inside.time_ns(collective, size, ranks) for size in sizes]
        return round(ends_ns[0] + (ends_ns[1] - ends_ns[0]) * (tokens - few) / few)
