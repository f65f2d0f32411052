"""A finding of ``cxlemu doctor``, and how files of sysfs and procfs are read for it: never more than so much."""

import re
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

MOST_BYTES = 1 << 20  # of a file; what a driver exports is a page
MOST_ENTRIES = 512  # of one kind in a folder


class DoctorRow(NamedTuple):
    """One finding: what was looked for, whether it is there, and what that means for a run."""

    what: str
    status: Literal["ok", "absent", "look"]
    value: str
    meaning: str


class Detail(DoctorRow):
    """A finding that the table has with ``-v`` alone."""


def row(what: str, good: object, value: str, meaning: str, *, detail: bool = False) -> DoctorRow:
    return (Detail if detail else DoctorRow)(what, "ok" if good else "absent", value, meaning)


def text(path: Path) -> str:
    """Read a file of sysfs or procfs; empty where it is absent or unreadable."""
    try:
        with path.open(errors="replace") as file:
            return file.read(MOST_BYTES).strip()
    except OSError:
        return ""


def integer(path: Path) -> int:
    """Read a number, decimal or 0x...; 0 where the file is absent or holds something else."""
    digits = text(path)
    return int(digits, 0) if re.fullmatch(r"0x[0-9a-f]{1,16}|0|[1-9][0-9]{0,19}", digits) else 0


def numbers(path: Path) -> list[int]:
    """Return the numbers in a name, as dax2.10 -> [2, 10], which sorts by number, not by letter."""
    return [int(digits) for digits in re.findall(r"\d+", path.name)]


def entries(folder: Path, name: str) -> list[Path]:
    """Find what matches ``name``, such as mem[0-9]*, in numeric order, MOST_ENTRIES at most."""
    return sorted(islice(folder.glob(name), MOST_ENTRIES), key=numbers)
