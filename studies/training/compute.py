"""How long a transformer block computes on an accelerator: its GEMMs, attention, and what only moves bytes.

GEMMs take what cxlemu/cost/gemm.py says. Attention keeps no scores and skips what the mask hides, so that half the
products remain, at the rate of a large GEMM. All else (norms, activations, residuals) moves each byte that a block
keeps for its backward pass twice. A backward pass takes twice as long as a forward one; its own recomputing of scores
is not counted.
"""

import math
from functools import lru_cache

from cxlemu.cost.gemm import Product, fastest
from cxlemu.topology import Accelerator
from studies.training.language_model import LanguageModel

DTYPE = "bf16"
VISIBLE = 0.5  # of the scores, behind a causal mask
WHOLE_BYTES = 10  # of ACTIVATION_BYTES what tensor parallelism leaves whole (arXiv 2205.05198, section 4.1)
BACKWARD = 2  # times forward
ADAM_BYTES = 30  # per parameter: gradient read; master, both moments read and written in 32 bits; 16-bit weight written


class Compute:
    """What a model's blocks take on an accelerator."""

    def __init__(
        self,
        model: LanguageModel,
        accelerator: Accelerator,
        tensor: int = 1,
        *,
        sequence: bool = False,
        experts: int = 1,
        busiest: float = 1.0,
    ) -> None:
        """``experts`` ranks share the experts; the busiest of them gets ``busiest`` times the mean number of tokens."""
        self.model, self.accelerator, self.tensor, self.sequence = model, accelerator, tensor, sequence
        self.experts, self.busiest = experts, busiest

    @lru_cache(maxsize=16)  # noqa: B019 - a few durations, asked for thousands of times
    def block_ns(self, tokens: int) -> int:
        """Return what one block's forward pass takes on one rank."""
        return self.gemms_ns(tokens) + self.rest_ns(tokens)

    def gemms_ns(self, tokens: int) -> int:
        """Return what the GEMMs of a block's forward pass take on one rank."""
        model, share = self.model, self.tensor
        if model.kv_rank:
            (down, depth), *heads, (hidden, values) = model.attention_products
            pairs = [(down, depth), *((-(-columns // share), depth) for columns, depth in heads)]
            pairs.append((hidden, -(-values // share)))
        else:
            columns = -(-(model.heads + 2 * model.kv_heads) * model.head_size // share)
            pairs = [(columns, model.hidden), (model.hidden, -(-model.heads * model.head_size // share))]
        attention_ns = sum(self._gemm_ns(tokens, *pair) for pair in pairs)
        dense_ns = self._feedforward_ns(tokens, model.feedforward) if model.expert_blocks < model.blocks else 0
        if not model.expert_blocks:
            return attention_ns + dense_ns
        mixed_ns = self._experts_ns(tokens)
        if model.shared_experts:
            mixed_ns += self._feedforward_ns(tokens, model.shared_experts * model.expert_feedforward)
        return (
            attention_ns
            + (dense_ns * (model.blocks - model.expert_blocks) + mixed_ns * model.expert_blocks) // model.blocks
        )

    def _feedforward_ns(self, tokens: int, width: int) -> int:
        mine = -(-width // self.tensor)
        up = (2 if self.model.gated else 1) * mine
        return self._gemm_ns(tokens, up, self.model.hidden) + self._gemm_ns(tokens, self.model.hidden, mine)

    def _experts_ns(self, tokens: int) -> int:
        """Return what the busiest rank's routed experts take: one product of all their tokens, and all weights read."""
        model = self.model
        routed = math.ceil(tokens * model.active_experts * self.busiest)
        met = min((model.experts or 1) // self.experts, routed)
        weights = met * (3 if model.gated else 2) * model.hidden * -(-model.expert_feedforward // self.tensor)
        return max(self._feedforward_ns(routed, model.expert_feedforward), self._stream_ns(2 * weights))

    def rest_ns(self, tokens: int) -> int:
        """Return what a block's forward pass takes without its GEMMs."""
        return self.scores_ns(tokens) + self.moved_ns(tokens)

    def moved_ns(self, tokens: int) -> int:
        """Return what norms, activations and residuals of a block's forward pass take."""
        return self._stream_ns(2 * self.kept_bytes(tokens))

    def scores_ns(self, tokens: int) -> int:
        """Return what attention itself takes in a block's forward pass."""
        flops = VISIBLE * self.model.scores_flops(tokens) / self.tensor
        rate = self.accelerator.peak_flop_per_s(DTYPE) * self.accelerator.gemm_efficiency
        return round(flops / rate * 1e9)

    def head_ns(self, tokens: int) -> int:
        """Return what the forward pass takes that turns the last block's output into tokens."""
        return self._gemm_ns(tokens, -(-self.model.vocabulary // self.tensor), self.model.hidden)

    def kept_bytes(self, tokens: int, *, checkpointed: bool = False) -> int:
        """Return what one block keeps on one rank for its backward pass."""
        whole = self.model.activation_bytes(tokens, checkpointed=checkpointed)
        if self.sequence or checkpointed:
            return whole // (self.tensor if self.sequence else 1)
        left = WHOLE_BYTES * tokens * self.model.hidden
        return left + (whole - left) // self.tensor

    def update_ns(self, parameters: int) -> int:
        """Return what Adam takes for a number of parameters, whose state is in the accelerator's memory."""
        return self._stream_ns(ADAM_BYTES * parameters)

    def _gemm_ns(self, rows: int, columns: int, depth: int) -> int:
        return fastest(self.accelerator, Product(rows, columns, depth, DTYPE)).ns(self.accelerator.multiprocessors)

    def _stream_ns(self, nbytes: int) -> int:
        return round(nbytes / self.accelerator.memory_bytes_per_s * 1e9)
