"""What ``cxlemu torchrun`` tells the ranks that it starts, in a file that a variable names."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from cxlemu.files import read_file

SETTINGS_BYTES_MAX = 1 << 20
VARIABLE = "CXLEMU_TORCHRUN"  # the folder
PARENT = "CXLEMU_TORCHRUN_PID"  # with whom ranks end


@dataclass(frozen=True)
class Settings:
    """What a rank is to do beside training."""

    folder: str  # where ranks report, and leave the arrays of a call that went wrong
    compare: bool = False  # shadow every collective on Gloo
    digests: int = 0  # compare replicas after this many steps of the optimizer each time; 0: never
    script: str | None = None  # the fault script; None: no faults
    pace: bool = False  # whether calls take modelled time, and steps are told
    debug: bool = False  # show whole tracebacks

    def write(self) -> None:
        Path(self.folder, "settings.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def of_environment(cls) -> Settings:
        """Read the settings of a rank. Raises KeyError where no ``cxlemu torchrun`` started it."""
        return cls(**json.loads(read_file(Path(os.environ[VARIABLE], "settings.json"), SETTINGS_BYTES_MAX)))
