"""The folder that the processes of a run share."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.programs.area import SHARED, Area, RunOptions, library

PREFIX = "cxlemu-exec-"


@contextmanager
def run_folder() -> Iterator[Path]:
    """Make the folder of runs that come one after another, and remove it afterwards."""
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=SHARED))
    owner = os.open(folder / "owner", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX)
        yield folder
    finally:
        library().program_leave(os.fsencode(folder))
        shutil.rmtree(folder, ignore_errors=True)
        os.close(owner)


@contextmanager
def making(options: RunOptions, folder: Path) -> Iterator[Area]:
    """Make the area of a run; of its files those stay in the folder that the next run has as well."""
    area = Area(folder, options)
    made = _names(folder)
    try:
        yield area
    finally:
        area.close()
        for path in map(folder.joinpath, _names(folder) - made):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _names(folder: Path) -> set[str]:
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries}


def _sweep() -> None:
    """Remove the folders of drivers that were killed: their locks are free, and their processes gone."""
    for folder in SHARED.glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and Path(f"/proc/{pid}").exists():
            continue
        try:
            owner = os.open(folder / "owner", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # just made, or not ours
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(owner)
