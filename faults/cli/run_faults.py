"""``cxlemu run --faults``: the faults of a script happen to an ordinary run, each told when it comes.

The entry point of cxlemu.faults: see collectives/cli/fault_scripts.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click

from collectives.sweep.measure import EngineMaker
from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.units import counted
from faults.inject.fault_engine import armed
from faults.inject.injection import FaultTally, Happened
from faults.inject.script import Script
from faults.inject.unfired import unfired


@dataclass(frozen=True)
class FaultScript:
    """A fault script, and what ``cxlemu run`` needs to let its faults happen."""

    script: Script
    file: Path
    told: list[object] = field(default_factory=list)  # by the ranks, of their faults

    @classmethod
    def load(cls, file: Path, *, how: str, adversary: str | None) -> FaultScript:
        """Read a script, and check that it goes with the command's flags."""
        script = Script.eventful(file)
        if how == "env":
            raise ArgumentError(
                "--faults does not work with --launch env: the command that launches the ranks injects them"
            )
        if script.adversary is not None and adversary is not None:
            raise ArgumentError(f"--adversary does not go with {file}, which has an adversary of its own")
        return cls(script, file)

    def __str__(self) -> str:
        adversary = " and an adversary" if self.script.adversary else ""
        return f"{self.file}: {counted(len(self.script.faults), 'fault')}{adversary}"

    def memory(self, otherwise: MemorySpec) -> MemorySpec:
        """Describe the memory with the script's adversary; ``otherwise`` if it has none."""
        return otherwise if self.script.adversary is None else self.script.memory()

    def check(self, *, ranks: int, backend: str, cards: int) -> None:
        """Check that every fault can happen in a world."""
        self.script.check(ranks=ranks, backend=backend, cards=cards)

    @property
    def engine(self) -> EngineMaker:
        """Makes each rank's engine, to which the faults happen."""
        return partial(armed, script=self.script)

    def listening(self, report: Callable[[object], None]) -> Callable[[object], None]:
        """Return a listener that prints faults as they come, and passes everything else to ``report``."""

        def on_message(message: object) -> None:
            if isinstance(message, Happened):
                click.echo(f"fault: {self.script.faults[message.fault]}", err=True)
            if isinstance(message, Happened | FaultTally):
                self.told.append(message)
            else:
                report(message)

        return on_message

    def unfired(self) -> list[str]:
        """Say of each fault that never happened why it did not."""
        return list(unfired(self.script.faults, self.told).values())
