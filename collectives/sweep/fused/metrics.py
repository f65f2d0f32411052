"""The gain of fusing, as FLUX (arXiv 2406.06858) defines it.

    effective communication time   ECT = T - T_gemm, where T_gemm is that of the fastest product, not split
    overlap efficiency             E = 1 - ECT / ECT_unfused: 1 where all communication hides, negative where fusing
                                   costs more than it hides
    speed of light                 SOL = max(T_gemm, T_comm) / T_fused

Nothing is clamped. T is the latest rank's end, from the call's begin on.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Wait(NamedTuple):
    """How long a rank waited for a doorbell, its look at it included."""

    rank: int
    doorbell: int
    ns: int

    def document(self) -> dict[str, float]:
        """The wait for JSON: its time in us."""
        return {"rank": self.rank, "doorbell": self.doorbell, "us": self.ns / 1e3}


@dataclass(frozen=True, slots=True)
class Metrics:
    """Times of one operator, in ns.

    ``tiled_ns`` is the fused call's tiles alone, as if all doorbells were rung already; ``comm_ns`` the collective
    alone; ``wait_ns`` the mean wait for a doorbell in the fused call.
    """

    gemm_ns: float
    tiled_ns: float
    comm_ns: float
    unfused_ns: float
    medium_ns: float
    fused_ns: float
    wait_ns: float

    def ect_ns(self, style: str) -> float:
        """The effective communication time of "fused", "medium" or "unfused", in ns."""
        return float(getattr(self, f"{style}_ns")) - self.gemm_ns

    def overlap_efficiency(self, style: str = "fused") -> float | None:
        """The overlap efficiency of a style, 1 at most; None where there is no communication to hide."""
        unfused_ns = self.ect_ns("unfused")
        return 1 - self.ect_ns(style) / unfused_ns if unfused_ns > 0 else None

    @property
    def sol(self) -> float:
        """The speed of light: what the slower half takes alone, divided by what the fused call takes."""
        return max(self.gemm_ns, self.comm_ns) / self.fused_ns

    @property
    def gemm_slowdown(self) -> float:
        return self.tiled_ns / self.gemm_ns

    def document(self) -> dict[str, float | None]:
        names = ("gemm", "tiled", "comm", "unfused", "medium", "fused", "wait")
        times: dict[str, float | None] = {f"{name}_us": getattr(self, f"{name}_ns") / 1e3 for name in names}
        return times | {
            "ect_fused_us": self.ect_ns("fused") / 1e3,
            "ect_medium_us": self.ect_ns("medium") / 1e3,
            "ect_unfused_us": self.ect_ns("unfused") / 1e3,
            "overlap_efficiency": self.overlap_efficiency(),
            "overlap_efficiency_medium": self.overlap_efficiency("medium"),
            "sol": self.sol,
            "gemm_slowdown": self.gemm_slowdown,
        }
