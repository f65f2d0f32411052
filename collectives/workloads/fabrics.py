"""What a collective takes between some ranks: our plans, in virtual time, each asked for once."""

from __future__ import annotations

from typing import Protocol

from collectives.bench import Sweep
from collectives.virtual import simulate_case
from cxlemu.topology import Topology

DTYPE = "bf16"


class Fabric(Protocol):
    """``size_bytes`` is nccl-tests': of all blocks together where every rank has one."""

    @property
    def name(self) -> str: ...

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        """One call, begun by all ranks at once."""
        ...


class Modelled:
    """Plans on a modelled topology, in the variant that ``auto`` takes there."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.chosen: dict[str, str] = {}  # collective -> variant of the largest call
        self._times_ns: dict[tuple[str, int, int], int] = {}

    @property
    def name(self) -> str:
        return self.topology.name

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        key = collective, size_bytes, ranks
        if ranks < 2 or not size_bytes:
            return 0
        if key not in self._times_ns:
            (case,) = Sweep((collective,), [size_bytes], dtypes=(DTYPE,), check=False).cases(ranks)
            row, run = simulate_case(self.topology, case)
            self._times_ns[key] = run.time_ns
            self.chosen[collective] = row.variant
        return self._times_ns[key]
