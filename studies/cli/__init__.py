"""The commands of studies.

verb -> (module or module:name, one line of help): the entry points in pyproject.toml, see cxlemu/cli/commands.py.
"""

from cxlemu.cli.commands import Table

__all__ = ["REPRODUCE", "SIMULATE", "VERBS"]

VERBS: Table = {
    "reproduce": ("studies.cli.reproduce", "Compare the model with published measurements.", "model"),
    "bench": ("studies.cli.bench", "Compare with MPI, Gloo and this machine's limits.", "manage"),
}

# forms of other packages' commands
SIMULATE: Table = {
    "memory": ("studies.cli.simulate_memory", "Simulate memory-bound workloads on tiers of memory."),
    "serving": ("studies.cli.simulate_serving", "Simulate serving of a language model."),
    "trace": ("studies.cli.simulate_trace", "Replay a Chakra trace."),
    "training": ("studies.cli.simulate_training", "Simulate a training step of a language model."),
}
REPRODUCE: Table = {
    "cccl": ("studies.cli.reproduce:cccl", "Compare collectives over a CXL pool with NCCL over InfiniBand."),
    "flux": ("studies.cli.reproduce:flux", "Compare GEMMs fused with communication on NVLink and PCIe."),
    "scalepool": ("studies.cli.reproduce:scalepool", "Compare training on clusters joined by CXL and by RDMA."),
    "serving": ("studies.cli.reproduce:serving", "Compare measured servers of language models."),
    "validation": ("studies.cli.reproduce:validation", "Compare measurements of real switches and networks."),
}
