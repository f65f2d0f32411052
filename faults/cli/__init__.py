"""The commands that break, search and prove.

verb -> (module, one line of help): the entry points in pyproject.toml, see cxlemu/cli/commands.py.
"""

from cxlemu.cli.commands import Table

__all__ = ["VERBS"]

VERBS: Table = {
    "prove": ("faults.cli.prove", "Prove that plans are right in every execution.", "write"),
    "explore": ("faults.cli.explore", "Search every execution of a protocol.", "write"),
    "litmus": ("faults.cli.litmus", "Run litmus tests of the memory model.", "write"),
    "mutate": ("faults.cli.mutate", "Break a plan's synchronization in every way.", "write"),
    "faults": ("faults.cli.faults", "Inject faults, and judge how collectives end.", "break"),
    "replay": ("faults.cli.replay", "Replay the failure that a token describes.", "break"),
    "exec": ("faults.cli.exec", "Run your own programs, and name the missing flush.", "your programs"),
    "cc": ("faults.cli.cc:cc", "Compile C and C++ for exec.", "your programs"),
    "c++": ("faults.cli.cc:cxx", "Compile C and C++ for exec.", "your programs"),
    "torchrun": ("faults.cli.torchrun", "Train with PyTorch over the pool.", "train"),
}
