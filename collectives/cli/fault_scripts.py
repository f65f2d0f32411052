"""``cxlemu run --faults`` and ``--protocol``: what a run needs of the adversary, brought by entry points.

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
    """A file's faults, and what a run needs to let them happen."""

    @classmethod
    def load(cls, file: Path, *, how: str, adversary: str | None) -> RunFaults:
        """Raises ConfigError for the file, ArgumentError for flags that do not go with it."""

    def memory(self, otherwise: MemorySpec) -> MemorySpec:
        """The script's adversary, if it has one."""

    def check(self, *, ranks: int, backend: str) -> None:
        """Raises ConfigError for what cannot happen there."""

    @property
    def engine(self) -> EngineMaker:
        """What makes each rank's engine."""

    def listening(self, report: Callable[[object], None]) -> Callable[[object], None]:
        """``report``, told of everything but faults."""


def load_script(file: Path, *, how: str, adversary: str | None) -> RunFaults:
    """Raises ArgumentError where no package brings faults, and what the script's `load` raises."""
    brought: type[RunFaults] = _brought("scripts", "--faults")
    return brought.load(file, how=how, adversary=adversary)


def _brought(name: str, flag: str) -> Any:
    entries = sorted(entry_points(group=GROUP, name=name), key=lambda entry: entry.value)
    if not entries:
        again = "delete *.egg-info of an old checkout and install cxlemu again"
        raise ArgumentError(f"{flag}: no installed package brings {name} ({GROUP}): {again}")
    return entries[0].load()


def run_protocol(ctx: click.Context, spec: str) -> NoReturn:
    """``cxlemu run --protocol``: exits with its own code. Raises ArgumentError where no package brings protocols."""
    run: Callable[[click.Context, str], NoReturn] = _brought("protocols", "--protocol")
    run(ctx, spec)
