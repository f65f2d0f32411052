"""What a training step runs on: accelerators in clusters, a fabric inside each, one between them, room for state."""

from dataclasses import dataclass

from cxlemu.cost import duration_ns
from cxlemu.topology import Accelerator
from studies.training.fabrics import TrainingFabric

STATE_BYTES = 12  # per parameter: the 32-bit master and both moments of Adam
STATE_MOVED_BYTES = 24  # read and written
GRADIENT_BYTES = WEIGHT_BYTES = 2


@dataclass(frozen=True, slots=True)
class Offload:
    """A place for the optimizer's state beside an accelerator."""

    name: str
    to_gbytes_per_s: float
    from_gbytes_per_s: float
    # gradients are sent there and weights come back, as in ZeRO-Offload (arXiv 2101.06840), and the processor there
    # updates. Without it the state itself passes the accelerator
    at_memory: bool
    # with ``at_memory``, the rate at which state passes the processor there, one accelerator's share of it
    update_gbytes_per_s: float | None = None

    def update_ns(self, parameters: int) -> int:
        """Return the time from the last gradient to the last weight; both ways are used at once where they can be."""
        out, back = (GRADIENT_BYTES, WEIGHT_BYTES) if self.at_memory else (STATE_BYTES, STATE_BYTES)
        moved_ns = max(
            duration_ns(out * parameters, self.to_gbytes_per_s), duration_ns(back * parameters, self.from_gbytes_per_s)
        )
        computed_ns = duration_ns(STATE_MOVED_BYTES * parameters, self.update_gbytes_per_s)
        return max(moved_ns, computed_ns)


@dataclass(frozen=True, slots=True)
class TrainingMachine:
    """Accelerators and the fabrics between them."""

    accelerator: Accelerator
    between: TrainingFabric  # carries all communication except tensor parallelism
    inside: TrainingFabric | None = None  # carries tensor parallelism, in clusters of ``cluster_ranks``
    cluster_ranks: int = 1
    offload: Offload | None = None  # the place for the optimizer's state; None: it stays in the accelerators' memory
