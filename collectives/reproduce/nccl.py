"""NCCL over InfiniBand as a cost model: NCCL's own, by which it chooses algorithms, not a simulation of its plans.

    time = base + steps * step + bytes / (share * rate),    rate = slice / (slice / wire + what receiving a slice costs)

Rings (all_reduce, all_gather, reduce_scatter) and chains (broadcast, reduce) take the cheapest of the protocols Simple,
LL128 and LL. The other three collectives are grouped sends and receives, where the busiest sender, at the wire's rate,
and the busiest receiver bound each other. All links are busy in both directions at once. nccl.yaml has the figures and
where they come from. Not modelled: trees (at three hosts they never win from 1 MB on), registration, and what reducing
takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cxlemu.topology.document import Document
from cxlemu.topology.standing import Standings, take_standings

FILE = Path(__file__).with_name("nccl.yaml")
PROTOCOLS = ("simple", "ll128", "ll")
GROUPED = ("gather", "scatter", "all_to_all")
CHAINS = ("broadcast", "reduce")


@dataclass(frozen=True, slots=True)
class Protocol:
    base_us: float
    step_us: float
    share_of_rate: float


@dataclass(frozen=True, slots=True)
class Nccl:
    """``standings`` says of each figure how it came about."""

    wire_gbytes_per_s: float
    protocols: dict[str, Protocol]
    all_reduce_plateau: float
    ring_slice_bytes: int
    chain_slice_bytes: int
    grouped_slice_bytes: int
    grouped_steps: int
    standings: Standings

    @classmethod
    def load(cls) -> Nccl:
        data, standings = take_standings(Document.read(FILE, "baseline"))
        protocols = {name: Protocol(**data.pop(name)) for name in PROTOCOLS}
        return cls(protocols=protocols, standings=standings, **data)

    def time_us(self, collective: str, size_bytes: int, ranks: int, slice_ns: int) -> float:
        """One call of two or more ranks, a host each; ``size_bytes`` as nccl-tests counts them.

        ``slice_ns``: what receiving a slice costs beside its time on the wire.
        """
        rate = self.receive_gbytes_per_s(collective, slice_ns)
        if collective in GROUPED:
            return self._grouped_us(collective, size_bytes, ranks, rate)
        if collective in CHAINS:  # all steps are under way at once, and NCCL counts one
            steps, share_of_size = 1, 1.0
        else:
            steps = (ranks - 1) * (2 if collective == "all_reduce" else 1)
            share_of_size = steps / ranks
        return min(
            self._latency_us(name, collective, steps) + size_bytes * share_of_size / (its.share_of_rate * rate * 1e3)
            for name, its in self.protocols.items()
        )

    def receive_gbytes_per_s(self, collective: str, slice_ns: int) -> float:
        if collective in GROUPED:
            slice_bytes = self.grouped_slice_bytes
        else:
            slice_bytes = self.chain_slice_bytes if collective in CHAINS else self.ring_slice_bytes
        return slice_bytes / (slice_bytes / self.wire_gbytes_per_s + slice_ns)

    def _latency_us(self, protocol: str, collective: str, steps: int) -> float:
        its = self.protocols[protocol]
        latency_us = its.base_us + steps * its.step_us
        return latency_us * (self.all_reduce_plateau if (protocol, collective) == ("simple", "all_reduce") else 1)

    def _grouped_us(self, collective: str, size_bytes: int, ranks: int, receive_gbytes_per_s: float) -> float:
        block_bytes = size_bytes / ranks
        sent = block_bytes * (1 if collective == "gather" else ranks - 1)
        received = block_bytes * (1 if collective == "scatter" else ranks - 1)
        slower_us = max(sent / (self.wire_gbytes_per_s * 1e3), received / (receive_gbytes_per_s * 1e3))
        return self._latency_us("simple", collective, self.grouped_steps) + slower_us
