"""How long an instance computes: an iteration of a batch, in which prompts go on by a chunk and answers by a token.

GEMMs and the head take what the accelerator's model gives for the tokens of the batch, weights read once. Attention of
a chunk is products with all keys before it; attention of an answer's token reads its keys and values from memory.
Tensor ranks reduce twice in a block. Scheduling, sampling and launching kernels take no time.
"""

from __future__ import annotations

from functools import lru_cache

from cxlemu.errors import ArgumentError
from cxlemu.topology import Accelerator
from studies.serving.requests import BLOCK_TOKENS
from studies.training.compute import DTYPE, Compute
from studies.training.fabrics import TrainingFabric
from studies.training.language_model import LanguageModel

BYTES = 2  # of an element: bf16
MEMORY_SHARE = 0.9  # what an instance takes of its accelerators' memory: vLLM's default, --gpu-memory-utilization


class Iterations:
    """What a model's iterations take on ``tensor`` accelerators, which talk to each other over ``inside``."""

    def __init__(
        self, model: LanguageModel, accelerator: Accelerator, tensor: int = 1, inside: TrainingFabric | None = None
    ) -> None:
        if tensor > 1 and inside is None:
            raise ArgumentError(f"tp={tensor} needs --inside, the fabric over which accelerators of a host talk")
        self.model, self.accelerator, self.tensor, self.inside = model, accelerator, tensor, inside
        self._compute = Compute(model, accelerator, tensor)

    @property
    def weight_bytes(self) -> int:
        """The bytes of the model's weights."""
        return BYTES * self.model.parameters

    @property
    def block_bytes(self) -> int:
        """The bytes of one block's keys and values, on all ranks together."""
        return BLOCK_TOKENS * self.model.kv_bytes

    @property
    def blocks(self) -> int:
        """How many blocks of keys and values the accelerators hold beside the weights."""
        room = int(MEMORY_SHARE * self.tensor * self.accelerator.memory_bytes) - self.weight_bytes
        if room < self.block_bytes:
            raise ArgumentError(
                f"{self.model.name} has {self.weight_bytes / 1e9:.1f} GB of weights, which {self.tensor} x "
                f"{self.accelerator.name} cannot hold beside keys and values: give --tp"
            )
        return room // self.block_bytes

    def ns(self, tokens: int, pairs: int, context: int, ends: int) -> int:
        """Return what an iteration takes.

        ``tokens`` are of chunks and answers, ``pairs`` of a chunk's token and one before it; answers look back at
        ``context`` tokens, all together, and ``ends`` tokens come out.
        """
        its = self.model
        attention_flops = 4 * pairs * its.heads * its.head_size * its.blocks / self.tensor
        attention_s = attention_flops / (self.accelerator.peak_flop_per_s(DTYPE) * self.accelerator.gemm_efficiency)
        read_s = context * its.kv_bytes / self.tensor / self.accelerator.memory_bytes_per_s
        return self._dense_ns(tokens) + self._head_ns(ends) + round((attention_s + read_s) * 1e9)

    @lru_cache(maxsize=1 << 14)  # noqa: B019 - as many as a batch may have tokens
    def _dense_ns(self, tokens: int) -> int:
        its = self._compute
        return self.model.blocks * (its.gemms_ns(tokens) + its.moved_ns(tokens) + self._exchanged_ns(tokens))

    @lru_cache(maxsize=1 << 12)  # noqa: B019 - as many as a batch may have requests
    def _head_ns(self, ends: int) -> int:
        return self._compute.head_ns(ends) if ends else 0

    def _exchanged_ns(self, tokens: int) -> int:
        """Return what two reductions take, on a line between the powers of two around a number of tokens."""
        if self.inside is None or self.tensor == 1:
            return 0
        few = 1 << (tokens.bit_length() - 1)
        ends_ns = [
            self.inside.time_ns("all_reduce", n * self.model.hidden * BYTES, self.tensor) for n in (few, 2 * few)
        ]
        return 2 * round(ends_ns[0] + (ends_ns[1] - ends_ns[0]) * (tokens - few) / few)
