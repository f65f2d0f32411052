"""The topology, accelerator and hardware files that come with cxlemu: in the package, or beside it in a checkout."""

from functools import cache
from pathlib import Path


def shipped_configs() -> dict[str, Path]:
    """Map the name of each shipped topology, without ``.yaml``, to its file, in alphabetical order."""
    return dict(_files("*.yaml"))


def shipped_accelerators() -> dict[str, Path]:
    """Map the name of each shipped accelerator to its file, as `shipped_configs` does."""
    return dict(_files("accelerators/*.yaml"))


def shipped_hardware() -> dict[str, Path]:
    """Map the name of each shipped file of figures that topologies share to its path, as `shipped_configs` does."""
    return dict(_files("hardware/*.yaml"))


@cache
def _files(pattern: str) -> dict[str, Path]:
    package = Path(__file__).parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if files := {path.stem: path for path in sorted(folder.glob(pattern), key=lambda path: path.stem)}:
            return files
    return {}
