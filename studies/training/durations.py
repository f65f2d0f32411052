"""What each piece of a step takes, as parts of operations, and what a rank must hold."""

from __future__ import annotations

from studies.training.compute import Compute
from studies.training.language_model import LanguageModel
from studies.training.machine import GRADIENT_BYTES, STATE_BYTES, WEIGHT_BYTES, TrainingMachine
from studies.training.parallelism import Parallelism
from studies.training.timeline import Part

BACKWARD = 2  # times forward
GATHERED_UNITS = 2  # when parameters are fully sharded: the one in use and the next one
HIDDEN_BYTES = 2

# What a step's time is billed to, in the order in which people ask, and where it happens.
LEVELS = {
    "forward": "compute",
    "backward": "compute",
    "recompute": "compute",
    "optimizer": "compute",
    "tensor": "inside clusters",
    "all_gather": "between",
    "reduce_scatter": "between",
    "pipeline": "between",
    "offload": "offload",
    "bubble": "idle",
}
BETWEEN = tuple(kind for kind, where in LEVELS.items() if where == "between")


class Durations:
    """What each piece of a training step takes on one rank.

    Args:
        model: Its shape.
        parallelism: Which rank holds what.
        machine: The accelerators and fabrics.
        microbatch: In sequences.
        recompute: One of `studies.training.parallelism.RECOMPUTE`.
    """

    def __init__(
        self, model: LanguageModel, parallelism: Parallelism, machine: TrainingMachine, microbatch: int, recompute: str
    ) -> None:
        self.model, self.parallelism, self.machine = model, parallelism, machine
        self.tokens = microbatch * model.sequence
        self.recompute = recompute
        self.compute = Compute(model, machine.accelerator, parallelism.tensor, sequence=parallelism.sequence)

    # --- computing, with what tensor ranks say to each other meanwhile ----------------------------------------------

    def forward(self, blocks: int, *, head: bool = False) -> list[Part]:
        """Return the forward pass through a stage's blocks, with what tensor ranks exchange meanwhile.

        Args:
            blocks: How many blocks one microbatch passes.
            head: Whether the stage has the head, which turns the last block's output into tokens.
        """
        head_ns = self.compute.head_ns(self.tokens) if head else 0
        return self._parts("forward", blocks * self.compute.block_ns(self.tokens) + head_ns, blocks)

    def backward(self, blocks: int, *, head: bool = False) -> list[Part]:
        """Return the backward pass through a stage's blocks, preceded by what is recomputed.

        Args:
            blocks: How many blocks one microbatch passes.
            head: Whether the stage has the head.
        """
        again = []
        if self.recompute == "full":
            again = self._parts("recompute", blocks * self.compute.block_ns(self.tokens), blocks)
        elif self.recompute == "selective":
            again = [Part("recompute", blocks * self.compute.scores_ns(self.tokens))]
        head_ns = self.compute.head_ns(self.tokens) if head else 0
        ns = BACKWARD * (blocks * self.compute.block_ns(self.tokens) + head_ns)
        return again + self._parts("backward", ns, blocks)

    def _parts(self, kind: str, ns: int, blocks: int) -> list[Part]:
        if self.parallelism.tensor == 1:
            return [Part(kind, ns)]
        return [Part(kind, ns), Part("tensor", blocks * self._tensor_block_ns())]

    def _tensor_block_ns(self) -> int:
        """Return what tensor ranks exchange in one pass through a block.

        They do so after attention and after the feed-forward layer (arXiv 1909.08053).
        """
        assert self.machine.inside is not None
        nbytes = self.tokens * self.model.hidden * HIDDEN_BYTES
        collectives = ("all_gather", "reduce_scatter") if self.parallelism.sequence else ("all_reduce",)
        return 2 * sum(
            self.machine.inside.time_ns(collective, nbytes, self.parallelism.tensor) for collective in collectives
        )

    # --- between data ranks and between stages ----------------------------------------------------------------------

    def share(self, parameters: int) -> int:
        """Return how many of some parameters one tensor rank holds."""
        return -(-parameters // self.parallelism.tensor)

    def gather(self, parameters: int) -> list[Part]:
        """Return how a tensor rank's weights are gathered, of which every data rank has a part."""
        return self._between("all_gather", WEIGHT_BYTES * self.share(parameters))

    def scatter(self, parameters: int) -> list[Part]:
        """Return how a tensor rank's gradients are scattered, of which every data rank keeps the sum of a part."""
        return self._between("reduce_scatter", GRADIENT_BYTES * self.share(parameters))

    def hand_over(self) -> list[Part]:
        """Return how a microbatch's activations, or their gradients, go from one stage's rank to the next one's."""
        nbytes = self.tokens * self.model.hidden * HIDDEN_BYTES
        nbytes //= self.parallelism.tensor if self.parallelism.sequence else 1
        return [Part("pipeline", self.machine.between.time_ns("broadcast", nbytes, 2), nbytes)]

    def _between(self, collective: str, nbytes: int) -> list[Part]:
        """Return a collective between data ranks, in equal parts, as padding would make them."""
        ranks = self.parallelism.data
        each = nbytes // (ranks * WEIGHT_BYTES) * WEIGHT_BYTES
        ns = self.machine.between.time_ns(collective, each * ranks, ranks)
        return [Part(collective, ns, each * (ranks - 1))]

    # --- the optimizer, and room ------------------------------------------------------------------------------------

    def update(self, parameters: int) -> list[Part]:
        """Return the update of those of a tensor rank's parameters whose state this data rank keeps."""
        mine = -(-self.share(parameters) // self.parallelism.data)
        if self.machine.offload is not None:
            return [Part("offload", self.machine.offload.update_ns(mine))]
        return [Part("optimizer", self.compute.update_ns(mine))]

    def memory_bytes(self, microbatches: int) -> int:
        """Return what the fullest rank holds: weights, gradients, state, and the activations of what is under way."""
        its, how = self.model, self.parallelism
        blocks = -(-its.blocks // how.pipeline)
        mine = self.share(blocks * its.block_parameters + its.embedding_parameters // min(how.pipeline, 2))
        state = 0 if self.machine.offload is not None else STATE_BYTES * -(-mine // how.data)
        held = mine
        if how.sharded:
            gathered = GATHERED_UNITS * its.block_parameters + its.embedding_parameters
            held = -(-mine // how.data) + self.share(gathered)
        full = self.recompute == "full"
        under_way = blocks * min(how.pipeline, microbatches)
        kept = under_way * self.compute.kept_bytes(self.tokens, checkpointed=full)
        if full:
            kept += self.compute.kept_bytes(self.tokens)
        return (WEIGHT_BYTES + GRADIENT_BYTES) * held + state + kept
