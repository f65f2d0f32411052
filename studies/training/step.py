"""A training step: what a model, a parallelism and a machine make of it, and what it takes.

    step = train(model, parallelism, machine)

Ranks that do the same at the same time are one lane of the timeline: all of them where there is no pipeline, those of
a stage where there is one. So the work grows with stages and microbatches, not with ranks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cxlemu.errors import ArgumentError
from studies.training import pipelined, sharded
from studies.training.durations import BETWEEN, Durations
from studies.training.experts import ExpertLoad, Router
from studies.training.language_model import LanguageModel
from studies.training.machine import TrainingMachine
from studies.training.parallelism import Parallelism
from studies.training.timeline import Timeline, run

OPERATIONS_MAX = 2_000_000
MODEL_PASSES = 3  # forward, and backward twice as much


@dataclass(frozen=True)
class TrainingStep:
    model: LanguageModel
    parallelism: Parallelism
    machine: TrainingMachine
    microbatches: int  # how many each data rank took
    timeline: Timeline
    billed_ns: dict[str, float]  # where the mean lane's time went; the sum is the step's time
    memory_bytes: int  # what the fullest rank holds
    load: ExpertLoad = ExpertLoad()  # what experts get  # noqa: RUF009 - it is frozen

    @property
    def time_ns(self) -> int:
        return self.timeline.time_ns

    @property
    def tokens(self) -> int:
        """How many tokens the whole step trains on."""
        return self.model.batch_sequences * self.model.sequence

    @property
    def utilization(self) -> float:
        """Model FLOPs divided by what the accelerators' peak allows (arXiv 2204.02311, appendix B)."""
        return self.tflop_a_rank * 1e12 / (self.machine.accelerator.peak_flop_per_s("bf16") * self.time_ns / 1e9)

    @property
    def tflop_a_rank(self) -> float:
        """The mean rank's model FLOPs, in 10^12."""
        model_of = self.model
        flops = MODEL_PASSES * (model_of.blocks * model_of.block_flops(self.tokens) + model_of.head_flops(self.tokens))
        return flops / self.parallelism.ranks / 1e12

    @property
    def between_bytes(self) -> float:
        """How many bytes the mean rank receives from other data ranks and stages."""
        return self.timeline.received_bytes(BETWEEN) / self.parallelism.pipeline


def train(
    model: LanguageModel,
    parallelism: Parallelism,
    machine: TrainingMachine,
    *,
    microbatch: int = 1,
    recompute: str = "none",
    router: Router = Router(),  # noqa: B008 - it is frozen
    later: Sequence[tuple[int, TrainingMachine]] = (),
) -> TrainingStep:
    """Simulate one step of ``model.batch_sequences`` sequences.

    ``later`` is (time in ns, machine), in order of time: operations that begin from then on run on that machine.
    """
    per_rank, rest = divmod(model.batch_sequences, parallelism.data * microbatch)
    if rest or not per_rank:
        raise ArgumentError(
            f"a batch of {model.batch_sequences} sequences does not divide into {parallelism.data} x {microbatch} "
            f"(data ranks x microbatch): give --batch or --microbatch"
        )
    if parallelism.expert > 1 and not model.expert_blocks:
        raise ArgumentError(f"ep={parallelism.expert} does nothing: {model.name} has no experts")
    if model.sequence % parallelism.context:
        raise ArgumentError(f"cp={parallelism.context} does not divide a sequence of {model.sequence} tokens")
    if parallelism.pipeline > model.blocks:
        raise ArgumentError(f"{parallelism.pipeline} stages are more than the {model.blocks} blocks of {model.name}")
    if parallelism.tensor > machine.cluster_ranks:
        raise ArgumentError(
            f"tp={parallelism.tensor} does not fit into a cluster of {machine.cluster_ranks}, inside which they "
            f"communicate: give --inside, the fabric of a larger one"
        )
    count = 4 * per_rank * (model.blocks if parallelism.sharded else parallelism.pipeline)
    if count > OPERATIONS_MAX:
        raise ArgumentError(
            f"a step of some {count} operations is too long: take larger microbatches or more data ranks"
        )
    durations = Durations(model, parallelism, machine, microbatch, recompute, router)
    build = sharded.program if parallelism.sharded else pipelined.program
    others = [(at_ns, Durations(model, parallelism, parts, microbatch, recompute, router)) for at_ns, parts in later]
    timeline = run(build(durations, per_rank), [(at_ns, build(parts, per_rank)) for at_ns, parts in others])
    total: Counter[str] = Counter()
    for lane in range(parallelism.pipeline):
        total.update(timeline.billed(lane))
    billed = {kind: ns / parallelism.pipeline for kind, ns in total.items()}
    return TrainingStep(
        model, parallelism, machine, per_rank, timeline, billed, durations.memory_bytes(per_rank), durations.load
    )
