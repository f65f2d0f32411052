"""The topology files that come with cxlemu: inside the installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

import cxlemu


def shipped_configs() -> dict[str, Path]:
    """Name without ``.yaml`` -> file, in alphabetical order."""
    package = Path(cxlemu.__file__).parent
    for folder in (package / "configs", package.parent / "configs"):
        if found := {path.stem: path for path in sorted(folder.glob("*.yaml"))}:
            return found
    return {}
