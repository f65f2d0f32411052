"""``cxlemu run --faults`` and ``--protocol``: the parts of a run that entry points bring.

[project.entry-points."cxlemu.faults"]
scripts = "my_package.faults:RunFaults"
protocols = "my_package.protocols:run_protocol"
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from cxlemu.cli.commands import brought

if TYPE_CHECKING:
    import click

    from collectives.sweep.measure import EngineMaker
    from cxlemu.memory import MemorySpec

GROUP = "cxlemu.faults"


class RunFaults(Protocol):
    """The faults of a file, and the parts of a run that let them happen."""

    @classmethod
    def load(cls, file: Path, *, how: str, adversary: str | None) -> RunFaults:
        """Load a file of faults, and check that flags go with it; ``adversary`` is None where it was not given."""

    def memory(self, otherwise: MemorySpec) -> MemorySpec:
        """The memory with the script's adversary, if it has one, else ``otherwise``."""

    def check(self, *, ranks: int, backend: str, cards: int) -> None:
        """Check that the faults can happen in this run; a ConfigError says which one cannot."""

    @property
    def engine(self) -> EngineMaker:
        """Makes each rank's engine."""

    def unfired(self) -> list[str]:
        """After the run: a sentence for each fault that never happened."""

    def listening(self, report: Callable[[object], None]) -> Callable[[object], None]:
        """Wrap ``report`` so that it is told of everything except faults."""


def load_script(file: Path, *, how: str, adversary: str | None) -> RunFaults:
    """Load a file of faults through the package that brings them."""
    scripts: type[RunFaults] = brought(GROUP, "scripts", "--faults")
    return scripts.load(file, how=how, adversary=adversary)


def run_protocol(ctx: click.Context, spec: str) -> NoReturn:
    """Run ``cxlemu run --protocol``, which exits with its own code."""
    run: Callable[[click.Context, str], NoReturn] = brought(GROUP, "protocols", "--protocol")
    run(ctx, spec)
