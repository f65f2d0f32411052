"""The commands that run, simulate and show collectives.

verb -> (module, one line of help): the entry points in pyproject.toml, see cxlemu/cli/commands.py.
"""

from __future__ import annotations

__all__ = ["VERBS"]

VERBS: dict[str, tuple[str, str]] = {
    "run": ("collectives.cli.run", "Run collectives on an emulated pool and check every byte."),
    "fused": ("collectives.cli.fused", "Run GEMMs fused with communication, beside those that are not."),
    "simulate": ("collectives.cli.simulate", "What collectives would cost on a modelled fabric."),
    "plan": ("collectives.cli.plan", "Show, save and check plans."),
}
