"""What each piece of a step takes, as parts of operations, and what a rank must hold."""

from studies.training.compute import Compute
from studies.training.experts import ExpertLoad, Router
from studies.training.fabrics import TrainingFabric
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
    "all_to_all": "experts",
    "context": "context ranks",
    "all_gather": "between",
    "reduce_scatter": "between",
    "pipeline": "between",
    "offload": "offload",
    "bubble": "idle",
}
BETWEEN = tuple(kind for kind, where in LEVELS.items() if where == "between")


class Durations:
    """What each piece of a training step takes on one rank."""

    def __init__(
        self,
        model: LanguageModel,
        parallelism: Parallelism,
        machine: TrainingMachine,
        microbatch: int,
        recompute: str,
        router: Router = Router(),  # noqa: B008 - it is frozen
    ) -> None:
        self.model, self.parallelism, self.machine = model, parallelism, machine
        self.tokens = microbatch * model.sequence // parallelism.context
        self.recompute = recompute
        self.load = router.load(model, self.tokens, parallelism.expert) if model.expert_blocks else ExpertLoad()
        self.compute = Compute(
            model,
            machine.accelerator,
            parallelism.tensor,
            sequence=parallelism.sequence,
            experts=parallelism.expert,
            busiest=self.load.busiest,
        )

    # --- computing, with what tensor ranks say to each other meanwhile ----------------------------------------------

    def forward(self, blocks: int, *, head: bool = False) -> list[Part]:
        """Return the forward pass through a stage's blocks, with what tensor ranks exchange meanwhile."""
        head_ns = self.compute.head_ns(self.tokens) if head else 0
        return self._parts("forward", blocks * self.compute.block_ns(self.tokens) + head_ns, blocks)

    def backward(self, blocks: int, *, head: bool = False) -> list[Part]:
        """Return the backward pass through a stage's blocks, preceded by what is recomputed."""
        again = []
        if self.recompute == "full":
            again = self._parts("recompute", blocks * self.compute.block_ns(self.tokens), blocks)
        elif self.recompute == "selective":
            again = [Part("recompute", blocks * self.compute.scores_ns(self.tokens))]
        head_ns = self.compute.head_ns(self.tokens) if head else 0
        ns = BACKWARD * (blocks * self.compute.block_ns(self.tokens) + head_ns)
        return again + self._parts("backward", ns, blocks)

    def _parts(self, kind: str, ns: int, blocks: int) -> list[Part]:
        parts = [Part(kind, ns)]
        how = self.parallelism
        if how.tensor > 1:
            parts.append(Part("tensor", blocks * self._tensor_block_ns()))
        if how.expert > 1 and self.model.expert_blocks:
            parts.append(
                Part("all_to_all", blocks * self._experts_ns() * self.model.expert_blocks // self.model.blocks)
            )
        if how.context > 1:
            parts.append(Part("context", blocks * self._context_ns(backward=kind == "backward")))
        return parts

    def _fabric(self, ranks: int) -> TrainingFabric:
        """Return the fabric over which some ranks talk that are neighbours beyond tensor ranks."""
        machine = self.machine
        return (
            machine.inside
            if machine.inside is not None and ranks * self.parallelism.tensor <= machine.cluster_ranks
            else machine.between
        )

    def _experts_ns(self) -> int:
        """Return how long tokens are on their way to their experts and back, as the busiest rank sees it."""
        ranks, model = self.parallelism.expert, self.model
        sent = self.tokens * model.active_experts * model.hidden * HIDDEN_BYTES * self.load.busiest
        sent /= self.parallelism.tensor if self.parallelism.sequence else 1
        size_bytes = round(sent) // (ranks * HIDDEN_BYTES) * HIDDEN_BYTES * ranks
        return 2 * self._fabric(ranks).time_ns("all_to_all", size_bytes, ranks)

    def _context_ns(self, *, backward: bool) -> int:
        """Return what context ranks' keys and values add to a pass through a block.

        They are gathered, and their gradients scattered, or go round behind the scores (arXiv 2310.01889).
        """
        ranks = self.parallelism.context
        fabric = self._fabric(ranks)
        each = self.tokens * self.model.kv_bytes // self.model.blocks // self.parallelism.tensor
        each = each // HIDDEN_BYTES * HIDDEN_BYTES
        if self.parallelism.ring:
            round_ns = (ranks - 1) * fabric.time_ns("broadcast", each, 2)
            return (2 if backward else 1) * max(round_ns - self.compute.scores_ns(self.tokens), 0)
        gathered_ns = fabric.time_ns("all_gather", each * ranks, ranks)
        return gathered_ns + (fabric.time_ns("reduce_scatter", each * ranks, ranks) if backward else 0)

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

    def gather(self, blocks: int, embedding: int = 0) -> list[Part]:
        """Return how a tensor rank's weights are gathered, of which every rank that holds the same ones has a part."""
        return self._sharded("all_gather", WEIGHT_BYTES, blocks, embedding)

    def scatter(self, blocks: int, embedding: int = 0) -> list[Part]:
        """Return how a tensor rank's gradients are scattered, of which every such rank keeps the sum of a part."""
        return self._sharded("reduce_scatter", GRADIENT_BYTES, blocks, embedding)

    def _sharded(self, collective: str, nbytes: int, blocks: int, embedding: int) -> list[Part]:
        """Return a collective of blocks and an embedding: one more for experts, which fewer ranks have alike."""
        model, how = self.model, self.parallelism
        experts = blocks * model.expert_parameters
        if how.expert == 1:
            return self._between(
                collective, nbytes * self.share(blocks * model.block_parameters + embedding), how.replicas
            )
        others = blocks * model.block_parameters - experts + embedding
        mine = self._between(collective, nbytes * self.share(-(-experts // how.expert)), how.replicas // how.expert)
        return self._between(collective, nbytes * self.share(others), how.replicas) + mine

    def hand_over(self) -> list[Part]:
        """Return how a microbatch's activations, or their gradients, go from one stage's rank to the next one's."""
        nbytes = self.tokens * self.model.hidden * HIDDEN_BYTES
        nbytes //= self.parallelism.tensor if self.parallelism.sequence else 1
        return [Part("pipeline", self.machine.between.time_ns("broadcast", nbytes, 2), nbytes)]

    def _between(self, collective: str, nbytes: int, ranks: int) -> list[Part]:
        """Return a collective between some ranks, in equal parts, as padding would make them."""
        each = nbytes // (ranks * WEIGHT_BYTES) * WEIGHT_BYTES
        ns = self.machine.between.time_ns(collective, each * ranks, ranks)
        return [Part(collective, ns, each * (ranks - 1), (collective, each * ranks, ranks) if ns else None)]

    # --- the optimizer, and room ------------------------------------------------------------------------------------

    def update(self, blocks: int, embedding: int) -> list[Part]:
        """Return the update of those of a tensor rank's parameters whose state this rank keeps."""
        mine = -(-self.share(blocks * self.model.block_parameters + embedding) // self.parallelism.replicas)
        if self.machine.offload is not None:
            return [Part("offload", self.machine.offload.update_ns(mine))]
        return [Part("optimizer", self.compute.update_ns(mine))]

    def memory_bytes(self, microbatches: int) -> int:
        """Return what the fullest rank holds: weights, gradients, state, and the activations of what is under way."""
        model, how = self.model, self.parallelism
        blocks = -(-model.blocks // how.pipeline)
        block = model.block_parameters - model.expert_parameters + -(-model.expert_parameters // how.expert)
        mine = self.share(blocks * block + model.embedding_parameters // min(how.pipeline, 2))
        all_of = self.share(blocks * model.block_parameters + model.embedding_parameters // min(how.pipeline, 2))
        kept_state = -(-all_of // how.replicas)
        state = 0 if self.machine.offload is not None else STATE_BYTES * kept_state
        held = mine
        if how.sharded:
            held = kept_state + self.share(GATHERED_UNITS * block + model.embedding_parameters)
        full = self.recompute == "full"
        under_way = blocks * min(how.pipeline, microbatches)
        kept = under_way * self.compute.kept_bytes(self.tokens, checkpointed=full)
        if full:
            kept += self.compute.kept_bytes(self.tokens)
        return (WEIGHT_BYTES + GRADIENT_BYTES) * held + state + kept
