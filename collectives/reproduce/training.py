"""CCCL's training case (arXiv 2602.22457): Llama-3-8B with FSDP on three H100s, and what the fabrics cost.

The batch is not known: the row is that of one sequence for each GPU. The more tokens a step has, the less
communication shows, so that any speedup down to 1 is met at some batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from collectives.reproduce.cccl import Row
from collectives.workloads.fabrics import Modelled
from collectives.workloads.language_model import LanguageModel
from collectives.workloads.machine import Machine
from collectives.workloads.parallelism import Parallelism
from collectives.workloads.step import train
from cxlemu.topology import Accelerator, Topology
from cxlemu.topology.bill import bill_of, price_usd

TRAINING, COST = 1.11, 2.75
RANKS = 3
BATCHES = (1, 2, 3, 4, 8)  # sequences a GPU


class Training:
    """Steps on two fabrics, with as many sequences a GPU as asked for."""

    def __init__(self, ours: Topology, baseline: Topology) -> None:
        self.fabrics = Modelled(baseline), Modelled(ours)
        self.model, self.accelerator = LanguageModel.load("llama3-8b"), Accelerator.load("h100-sxm")

    def speedup(self, sequences: int) -> float:
        model = self.model.varied(batch_sequences=sequences * RANKS)
        how = Parallelism(data=RANKS, sharded=True)
        before, after = (
            train(model, how, Machine(self.accelerator, fabric), microbatch=sequences, recompute="full").time_ns
            for fabric in self.fabrics
        )
        return before / after


def rows(ours: Topology, baseline: Topology) -> Iterator[Row]:
    training = Training(ours, baseline)
    its = {sequences: training.speedup(sequences) for sequences in BATCHES}
    shows = ", ".join(f"{value:.2f} with {sequences}" for sequences, value in its.items())
    made = _row("Llama-3-8B with FSDP: training speedup", TRAINING, its[BATCHES[0]], "predicted")
    yield replace(made, shows=f"of {BATCHES[0]} sequence a GPU, as the batch is not known; {shows}")
    ratio = price_usd(bill_of(baseline), "switches") / price_usd(bill_of(ours), "switches")
    yield _row("cost of hardware, switches", COST, ratio, "config")


def _row(figure: str, published: float, ours: float, kind: str) -> Row:
    return Row(figure, published, (published, published), ours, ours / published - 1, kind)
