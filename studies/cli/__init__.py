"""The commands of studies.

verb -> (module or module:name, one line of help): the entry points in pyproject.toml, see cxlemu/cli/commands.py.
"""

from __future__ import annotations

__all__ = ["REPRODUCE", "SIMULATE", "VERBS"]

VERBS: dict[str, tuple[str, str]] = {
    "reproduce": ("studies.cli.reproduce", "Published measurements beside what the model says."),
    "bench": ("studies.cli.bench", "Compare with MPI, Gloo and this machine's limits."),
}

# forms of other packages' commands
SIMULATE: dict[str, tuple[str, str]] = {
    "memory": ("studies.cli.simulate_memory", "Memory-bound workloads on tiers of memory."),
    "trace": ("studies.cli.simulate_trace", "A trace of Chakra's, replayed."),
    "training": ("studies.cli.simulate_training", "A language model's training step."),
}
REPRODUCE: dict[str, tuple[str, str]] = {
    "cccl": ("studies.cli.reproduce:cccl", "Collectives over a CXL pool against NCCL over InfiniBand."),
    "flux": ("studies.cli.reproduce:flux", "GEMMs fused with communication, on NVLink and PCIe."),
    "scalepool": ("studies.cli.reproduce:scalepool", "Training on clusters joined by CXL against RDMA."),
    "validation": ("studies.cli.reproduce:validation", "Measurements of real switches and networks beside the model."),
}
