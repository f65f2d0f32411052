"""What C was compiled with, compared with what Python says: modules of another version are not run."""

from __future__ import annotations

from collections.abc import Mapping


def check_compiled(module: str, compiled: Mapping[str, int], ours: Mapping[str, int]) -> None:
    """Compare the constants of a C module with Python's numbers of the same names."""
    for name, value in ours.items():
        if compiled.get(name) != value:
            raise ImportError(
                f"{module} was compiled from other sources: {name} is {compiled.get(name, 'unknown')} there and "
                f"{int(value)} here; install the package again"
            )
