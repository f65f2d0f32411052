"""What is best on this machine and not on another: found out once by ``cxlemu doctor --calibrate``, and kept.

The kept file belongs to this machine: another processor, other caches or another number of cores make it void. Nothing
here changes what a call means or how long its plan is, so that ranks on other machines may keep other figures.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cxlemu import _native
from cxlemu.files import read_file
from cxlemu.units import format_bytes, parse_whole

VARIABLE = "CXLEMU_PAST_CACHES_BYTES"  # goes before the file; tests set it
FILE_BYTES_MAX = 1 << 16
VERSION = 3  # of the file; those of the second were also measured while other work took the cores
LEAST_BYTES: int = _native.CONSTANTS["PAST_CACHES_BYTES"]
NEVER_BYTES = 1 << 60  # no array is as large
CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Thresholds:
    """Sizes from which on this machine is better off with another way."""

    past_caches_bytes: int  # arrays of this size or more that a call fills are stored past the caches
    source: str  # where the figure comes from, for people
    measured: bool = True  # whether the figure was measured here, or given in the environment

    def __str__(self) -> str:
        size = "never" if self.past_caches_bytes >= NEVER_BYTES else f"from {format_bytes(self.past_caches_bytes)} on"
        return f"arrays are stored past the caches {size} ({self.source})"


def kept_file() -> Path:
    """Return where this user's figures are kept: ``cxlemu/machine.json`` in the folder for caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cxlemu" / "machine.json"


@cache
def thresholds() -> Thresholds:
    """Return this machine's figures: of the environment, of the kept file, or by its caches."""
    if (given := os.environ.get(VARIABLE)) is not None:
        return Thresholds(parse_whole(VARIABLE, given, NEVER_BYTES, least=1), VARIABLE)
    file = kept_file()
    try:
        raw = read_file(file, FILE_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return _default("cxlemu doctor --calibrate measures it")
    except OSError as error:
        return _default(f"{file} cannot be read: {error.strerror}")
    kept = _parsed(raw)
    if kept is None:
        return _default(f"{file} is not what this version's cxlemu doctor --calibrate writes")
    if kept["machine"] != identity():
        return _default(f"{file} was measured on another machine")
    return Thresholds(kept["past_caches_bytes"], f"measured, {file}")


def default_bytes(cpu_caches: list[CpuCache]) -> int:
    """Return the threshold where nothing was measured: a quarter of the largest cache, as in glibc, or LEAST_BYTES."""
    return max([LEAST_BYTES, *(cpu_cach.nbytes // 4 for cpu_cach in cpu_caches)])


def _default(why: str) -> Thresholds:
    return Thresholds(default_bytes(caches()), f"a quarter of the largest cache: {why}", measured=False)


def keep(past_caches_bytes: int) -> Path:
    """Keep a figure for this machine; return its file."""
    file = kept_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(f".{os.getpid()}")
    document = {"version": VERSION, "machine": identity(), "past_caches_bytes": past_caches_bytes}
    new.write_text(json.dumps(document, indent=1) + "\n")
    new.replace(file)  # whole, or not at all
    thresholds.cache_clear()
    return file


@dataclass(frozen=True)
class CpuCache:
    """A cache of one core, alone or with others: its level, its size in bytes, and who shares it."""

    level: int
    nbytes: int
    shared_with: str  # such as "0-1"


def caches(cpus: Path = CPUS) -> list[CpuCache]:
    """Return the data caches of the first core that this process may use; none if Linux does not describe them."""
    cpu_caches = []
    for index in sorted(cpus.glob(f"cpu{min(os.sched_getaffinity(0))}/cache/index*")):
        try:
            kind, level, size, shared = (
                (index / name).read_text().strip() for name in ("type", "level", "size", "shared_cpu_list")
            )
            if kind != "Instruction":
                cpu_caches.append(CpuCache(int(level), int(size.removesuffix("K")) << 10, shared))
        except (OSError, ValueError):
            continue  # a kernel that says less
    return cpu_caches


def identity() -> dict[str, Any]:
    """Return what makes figures void when it changes: the processor, its caches, this process' number of cores."""
    model = "unknown"
    try:
        with Path("/proc/cpuinfo").open() as lines:
            model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0))
    return {"model": model, "cores": cores, "caches": [asdict(cpu_cach) for cpu_cach in caches()]}


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("version") != VERSION or "machine" not in document:
        return None
    nbytes = document.get("past_caches_bytes")
    return document if type(nbytes) is int and 0 < nbytes <= NEVER_BYTES else None
