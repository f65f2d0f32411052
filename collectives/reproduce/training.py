"""CCCL's training case (arXiv 2602.22457): Llama-3-8B with FSDP on three H100s, over the pool and over InfiniBand."""

from __future__ import annotations

from collectives.reproduce.nccl import Nccl


class InfiniBand:
    """NCCL's cost model as a fabric of workloads. ``slice_ns``: the figure of it that is fitted on AllGather."""

    name = "infiniband"

    def __init__(self, nccl: Nccl, slice_ns: int) -> None:
        self.nccl, self.slice_ns = nccl, slice_ns

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        return round(self.nccl.time_us(collective, size_bytes, ranks, self.slice_ns) * 1e3) if ranks > 1 else 0
