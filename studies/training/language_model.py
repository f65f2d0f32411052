"""A decoder-only language model: its shape, and what follows from it - parameters, FLOPs, bytes of activations.

FLOPs are counted as PaLM's paper does (arXiv 2204.02311, appendix B): two for each parameter that multiplies, and
attention over the whole sequence, as if no mask halved it. A backward pass takes twice a forward one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from cxlemu.topology.described import Described
from cxlemu.topology.fields import Misplaced, Name

Count = Annotated[int, Field(ge=1, le=10**7)]
FLOPS_A_PRODUCT = 2  # multiply and add
ACTIVATION_BYTES = 34  # per token and hidden unit in a block, 16-bit, without scores (arXiv 2205.05198, section 4)
CHECKPOINT_BYTES = 2  # the same, where only a block's input is kept


class LanguageModel(Described):
    """A model of ``blocks`` equal transformer blocks between an embedding and a head."""

    noun: ClassVar[str] = "language model"
    folder: ClassVar[Path] = Path(__file__).parent / "models"

    name: Name = Field(description="the model's name")
    description: Annotated[str, Field(max_length=200)] = Field(default="", description="one line for people")
    blocks: Count = Field(description="number of transformer blocks")
    hidden: Count = Field(description="width of the residual stream")
    heads: Count = Field(description="attention heads")
    kv_heads: Count = Field(description="heads of keys and values; same as heads without sharing")
    head_size: Count = Field(description="width of one head")
    feedforward: Count = Field(description="width of the feed-forward layer")
    gated: bool = Field(description="whether the feed-forward layer has a gate, a third matrix")
    experts: Count | None = Field(default=None, description="routed experts of a block; absent: one feed-forward layer")
    active_experts: Count = Field(default=1, description="routed experts that each token meets")
    shared_experts: Annotated[int, Field(ge=0, le=1024)] = Field(default=0, description="experts that all tokens meet")
    expert_feedforward: Count = Field(default=1, description="width of an expert's feed-forward layer")
    dense_blocks: Annotated[int, Field(ge=0, le=10**7)] = Field(
        default=0, description="blocks without experts; time is that of a mean block"
    )
    kv_rank: Annotated[int, Field(ge=0, le=10**7)] = Field(
        default=0, description="width of compressed keys and values (latent attention); 0: none"
    )
    query_rank: Count = Field(default=1, description="with kv_rank, width of compressed queries")
    rope_size: Annotated[int, Field(ge=0, le=10**7)] = Field(
        default=0, description="with kv_rank, width of a head's positional part"
    )
    vocabulary: Count = Field(description="number of tokens")
    position_parameters: Annotated[int, Field(ge=0, le=10**12)] = Field(
        default=0, description="parameters of a block for positions: stored and sent, without computing time"
    )
    tied: bool = Field(description="whether embedding and head share their matrix")
    sequence: Count = Field(description="tokens of one training sequence")
    batch_sequences: Count = Field(description="sequences of one training step, of all ranks together")

    @model_validator(mode="after")
    def _heads_share_evenly(self) -> LanguageModel:
        if self.heads % self.kv_heads:
            raise Misplaced(("kv_heads",), f"are {self.kv_heads} but should divide heads, which are {self.heads}")
        if self.experts is not None and self.active_experts > self.experts:
            raise Misplaced(("active_experts",), f"are {self.active_experts}, more than the {self.experts} experts")
        if self.dense_blocks > self.blocks:
            raise Misplaced(("dense_blocks",), f"are {self.dense_blocks}, more than the {self.blocks} blocks")
        return self

    @property
    def attention_parameters(self) -> int:
        """The parameters of one block's attention."""
        if self.kv_rank:
            return sum(columns * depth for columns, depth in self.attention_products)
        queries_and_output = 2 * self.hidden * self.heads * self.head_size
        return queries_and_output + 2 * self.hidden * self.kv_heads * self.head_size

    @property
    def attention_products(self) -> list[tuple[int, int]]:
        """The products of latent attention (arXiv 2405.04434): columns and depth of each, those of heads last."""
        return [
            (self.query_rank + self.kv_rank + self.rope_size, self.hidden),
            (self.heads * (self.head_size + self.rope_size), self.query_rank),
            (self.heads * 2 * self.head_size, self.kv_rank),
            (self.hidden, self.heads * self.head_size),
        ]

    @property
    def expert_blocks(self) -> int:
        return 0 if self.experts is None else self.blocks - self.dense_blocks

    @property
    def expert_parameters(self) -> int:
        """The parameters of the routed experts of the mean block."""
        return (self.experts or 0) * self._feedforward(self.expert_feedforward) * self.expert_blocks // self.blocks

    @property
    def multiplying_parameters(self) -> int:
        """The parameters of the mean block that a token meets."""
        met = (self.active_experts + self.shared_experts) * self._feedforward(self.expert_feedforward)
        return self.attention_parameters + self._mean(self._feedforward(self.feedforward), met)

    @property
    def block_parameters(self) -> int:
        shared = self.shared_experts * self._feedforward(self.expert_feedforward)
        dense = self.attention_parameters + self._mean(self._feedforward(self.feedforward), shared)
        return dense + self.expert_parameters + self.position_parameters

    def _feedforward(self, width: int) -> int:
        return (3 if self.gated else 2) * self.hidden * width

    def _mean(self, dense: int, expert: int) -> int:
        """Return the mean over blocks without and with experts."""
        return (dense * (self.blocks - self.expert_blocks) + expert * self.expert_blocks) // self.blocks

    @property
    def embedding_parameters(self) -> int:
        """The parameters of embedding and head together."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.blocks * self.block_parameters + self.embedding_parameters

    @property
    def kv_bytes(self) -> int:
        """The bytes of one token's keys and values in all blocks, in 16 bits."""
        if self.kv_rank:
            return 2 * self.blocks * (self.kv_rank + self.rope_size)
        return 2 * 2 * self.blocks * self.kv_heads * self.head_size

    def block_flops(self, tokens: int) -> int:
        """Count the FLOPs of one block's forward pass."""
        return FLOPS_A_PRODUCT * tokens * self.multiplying_parameters + self.scores_flops(tokens)

    def scores_flops(self, tokens: int) -> int:
        """Count those of a block's FLOPs that multiply queries with keys and scores with values."""
        return 2 * FLOPS_A_PRODUCT * tokens * self.sequence * self.heads * self.head_size

    def head_flops(self, tokens: int) -> int:
        """Count the FLOPs of the forward pass that turns the last block's output into tokens."""
        return FLOPS_A_PRODUCT * tokens * self.vocabulary * self.hidden

    def activation_bytes(self, tokens: int, *, checkpointed: bool) -> int:
        """Count the bytes that one block keeps for its backward pass.

        Scores are never kept: they are computed anew, as FlashAttention does.
        """
        return tokens * self.hidden * (CHECKPOINT_BYTES if checkpointed else ACTIVATION_BYTES)
