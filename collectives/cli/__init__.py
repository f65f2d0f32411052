"""The commands that run, simulate and show collectives.

verb -> (module, one line of help): the entry points in pyproject.toml, see cxlemu/cli/commands.py.
"""

from cxlemu.cli.commands import Table

__all__ = ["VERBS"]

VERBS: Table = {
    "run": ("collectives.cli.run", "Run collectives on an emulated pool and check them.", "start here"),
    "plan": ("collectives.cli.plan", "Show, save and check plans.", "write"),
    "fused": ("collectives.cli.fused", "Run GEMMs fused with communication.", "write"),
    "simulate": ("collectives.cli.simulate", "Estimate cost: memory, serving, trace, training.", "model"),
}
