"""What ``cxlemu torchrun`` tells the ranks that it starts, in a file that a variable names."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "CXLEMU_TORCHRUN"  # the folder
PARENT = "CXLEMU_TORCHRUN_PID"  # with whom ranks end


@dataclass(frozen=True)
class Settings:
    """What a rank is to do beside training.

    Attributes:
        folder: Where ranks report, and leave the arrays of a call that went wrong.
        compare: Shadow every collective on Gloo.
        digests: Compare replicas after this many steps of the optimizer each time; 0: never.
        script: The fault script; None: no faults.
        pace: Whether calls take modelled time, and steps are told.
    """

    folder: str
    compare: bool = False
    digests: int = 0
    script: str | None = None
    pace: bool = False

    def write(self) -> None:
        """Write the settings to the folder, for ranks."""
        Path(self.folder, "settings.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def of_environment(cls) -> Settings:
        """Read the settings of a rank. Raises KeyError where no ``cxlemu torchrun`` started it."""
        return cls(**json.loads(Path(os.environ[VARIABLE], "settings.json").read_text()))
