"""CCCL's training case (arXiv 2602.22457): Llama-3-8B with FSDP on three H100s, and what the fabrics cost.

The batch is not known: the row is that of one sequence for each GPU. The more tokens a step has, the less
communication shows, so that any speedup down to 1 is met at some batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from cxlemu.topology import Accelerator, Topology
from cxlemu.topology.bill import bill_of, price_usd
from studies.published.rows import Row, row_of
from studies.training.fabrics import Modelled
from studies.training.language_model import LanguageModel
from studies.training.machine import TrainingMachine
from studies.training.parallelism import Parallelism
from studies.training.step import train

TRAINING, COST = 1.11, (2.75, 2.76)  # cut off or rounded
RANKS = 3
BATCHES = (1, 2, 3, 4, 8)  # sequences a GPU


class Training:
    """CCCL's training case on two fabrics. The speedup's row is that of the first of BATCHES."""

    def __init__(self, ours: Topology, baseline: Topology, simulated: Training | None = None) -> None:
        known = {id(fabric.topology): fabric for fabric in (simulated.fabrics if simulated else ())}
        self.fabrics: tuple[Modelled, ...] = tuple(known.get(id(side)) or Modelled(side) for side in (baseline, ours))
        self.model, self.accelerator = LanguageModel.load("llama3-8b"), Accelerator.load("h100-sxm")

    def speedup(self, sequences: int) -> float:
        """Return how many times as long a step takes on the baseline, with a number of sequences for each GPU."""
        model = self.model.varied(batch_sequences=sequences * RANKS)
        how = Parallelism(data=RANKS, sharded=True)
        before, after = (
            train(model, how, TrainingMachine(self.accelerator, fabric), microbatch=sequences, recompute="full").time_ns
            for fabric in self.fabrics
        )
        return before / after

    @cached_property
    def by_sequences(self) -> dict[int, float]:
        return {sequences: self.speedup(sequences) for sequences in BATCHES}

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the speedup and of the cost of switches."""
        speedup = self.by_sequences[BATCHES[0]]
        yield row_of("Llama-3-8B with FSDP: training speedup", TRAINING, speedup, shows=self.told(), read_in="abstract")
        baseline, ours = (price_usd(bill_of(fabric.topology), "switches") for fabric in self.fabrics)
        yield row_of("cost of hardware: switches", COST, baseline / ours, "config", read_in="abstract")

    def told(self) -> str:
        """Say what the speedup would be with other batches."""
        each = ", ".join(f"{value:.2f} with {sequences}" for sequences, value in self.by_sequences.items())
        return f"sequences of {self.model.sequence} tokens a GPU are not known: {each}"
