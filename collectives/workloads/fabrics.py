"""What a collective takes between some ranks: our plans, in virtual time, each asked for once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from collectives import catalog
from collectives.bench import AUTO, Sweep
from collectives.virtual import simulate_case
from cxlemu.timing import duration_ns
from cxlemu.topology import Topology
from cxlemu.topology.failures import Failure

DTYPE = "bf16"
TUNED = ("aggregate", "all", "two_shot")  # variants worth trying for large messages


class Fabric(Protocol):
    """``size_bytes`` is nccl-tests': of all blocks together where every rank has one."""

    @property
    def name(self) -> str: ...

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        """One call, begun by all ranks at once."""
        ...


class Modelled:
    """Plans on a modelled topology: those that ``auto`` takes, or with ``tuned`` the fastest that there are.

    Among these a reduce-scatter may be an all-to-all, after which every rank folds what it got: it reads its peers in
    any order, where a plan that folds what it reads has to go in the order of ranks.
    """

    def __init__(self, topology: Topology, *, tuned: bool = False, failures: Sequence[Failure] = ()) -> None:
        """``failures``: of links and switches, before anything begins."""
        self.topology, self.tuned = topology, tuned
        self._failures = [failure._replace(at_ns=0) for failure in failures]
        self.chosen: dict[str, str] = {}  # collective -> what the last call that was simulated took
        self._times_ns: dict[tuple[str, int, int], int] = {}

    @property
    def name(self) -> str:
        return f"{self.topology.name}, failing" if self._failures else self.topology.name

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        key = collective, size_bytes, ranks
        if ranks < 2 or not size_bytes:
            return 0
        if key not in self._times_ns:
            ways = self._ways(*key) if self.tuned else {AUTO: lambda: self._simulated(*key, AUTO)}
            times = {name: its() for name, its in ways.items()}
            self.chosen[collective] = min(times, key=lambda name: times[name])
            self._times_ns[key] = times[self.chosen[collective]]
        return self._times_ns[key]

    def _ways(self, collective: str, size_bytes: int, ranks: int) -> dict[str, Callable[[], int]]:
        ways: dict[str, Callable[[], int]] = {}
        for variant in TUNED:
            if variant in catalog.variants(collective):
                ways[variant] = partial(self._simulated, collective, size_bytes, ranks, variant)
            if collective == "reduce_scatter" and variant in catalog.variants("all_to_all"):
                ways[f"all_to_all, {variant}, and a fold"] = partial(self._folded, size_bytes, ranks, variant)
        return ways

    def _simulated(self, collective: str, size_bytes: int, ranks: int, variant: str) -> int:
        (case,) = Sweep((collective,), [size_bytes], dtypes=(DTYPE,), variant=variant, check=False).cases(ranks)
        row, run = simulate_case(self.topology, case, failures=self._failures)
        self.chosen[collective] = row.variant
        return run.time_ns

    def _folded(self, size_bytes: int, ranks: int, variant: str) -> int:
        """Read are all that came, and the sum written once."""
        folded_bytes = size_bytes + size_bytes // ranks
        fold_ns = duration_ns(folded_bytes, self.topology.costs.reduce_gbytes_per_s)
        return self._simulated("all_to_all", size_bytes, ranks, variant) + fold_ns
