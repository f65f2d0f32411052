"""The commands that break, search and prove.

verb -> (module, one line of help): the entry points in pyproject.toml, see cxlemu/cli/commands.py.
"""

from __future__ import annotations

__all__ = ["VERBS"]

VERBS: dict[str, tuple[str, str]] = {
    "litmus": ("faults.cli.litmus", "Run litmus tests of the memory model, exhaustively."),
    "explore": ("faults.cli.explore", "Search every execution of a protocol of your own."),
    "prove": ("faults.cli.prove", "Prove plans right in every execution, or say why not."),
    "mutate": ("faults.cli.mutate", "Make every mistake in plans' synchronization, and see it found."),
    "faults": ("faults.cli.faults", "Break things on purpose, and judge what becomes of it."),
    "exec": ("faults.cli.exec", "Run your own programs on an emulated pool, and find their mistakes."),
    "cc": ("faults.cli.cc:cc", "Compile C for cxlemu exec: CC='cxlemu cc' make."),
    "c++": ("faults.cli.cc:cxx", "Compile C++ for cxlemu exec."),
    "torchrun": ("faults.cli.torchrun", "Run a PyTorch training script over the pool, under test."),
    "replay": ("faults.cli.replay", "Reproduce the failure that a token describes."),
}
