"""``cxlemu run --faults`` and ``--protocol``: the parts of a run that entry points bring.

[project.entry-points."cxlemu.faults"]
scripts = "my_package.faults:RunFaults"
protocols = "my_package.protocols:run_protocol"
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from cxlemu.errors import ArgumentError

if TYPE_CHECKING:
    import click

    from collectives.sweep.measure import EngineMaker
    from cxlemu.memory import MemorySpec

GROUP = "cxlemu.faults"


class RunFaults(Protocol):
    """The faults of a file, and the parts of a run that let them happen."""

    @classmethod
    def load(cls, file: Path, *, how: str, adversary: str | None) -> RunFaults:
        """Load a file of faults.

        Args:
            file: The file.
            how: How the ranks are launched: "processes", "threads" or "env".
            adversary: The value of ``--adversary``, None where it was not given.

        Raises:
            ConfigError: The file is wrong.
            ArgumentError: Flags do not go with it.
        """

    def memory(self, otherwise: MemorySpec) -> MemorySpec:
        """The memory with the script's adversary, if it has one, else ``otherwise``."""

    def check(self, *, ranks: int, backend: str) -> None:
        """Check that the faults can happen in this run.

        Args:
            ranks: The number of ranks.
            backend: The backend's name.

        Raises:
            ConfigError: A fault cannot happen there.
        """

    @property
    def engine(self) -> EngineMaker:
        """Makes each rank's engine."""

    def unfired(self) -> list[str]:
        """After the run: a sentence for each fault that never happened."""

    def listening(self, report: Callable[[object], None]) -> Callable[[object], None]:
        """Wrap ``report`` so that it is told of everything except faults."""


def load_script(file: Path, *, how: str, adversary: str | None) -> RunFaults:
    """Load a file of faults through the package that brings them."""
    brought: type[RunFaults] = _brought("scripts", "--faults")
    return brought.load(file, how=how, adversary=adversary)


def _brought(name: str, flag: str) -> Any:
    entries = sorted(entry_points(group=GROUP, name=name), key=lambda entry: entry.value)
    if not entries:
        again = "delete *.egg-info of an old checkout and install cxlemu again"
        raise ArgumentError(f"{flag}: no installed package brings {name} ({GROUP}): {again}")
    return entries[0].load()


def run_protocol(ctx: click.Context, spec: str) -> NoReturn:
    """Run ``cxlemu run --protocol``, which exits with its own code."""
    run: Callable[[click.Context, str], NoReturn] = _brought("protocols", "--protocol")
    run(ctx, spec)
