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
from cxlemu.errors import ConfigError
from cxlemu.units import format_bytes

VARIABLE = "CXLEMU_PAST_CACHES_BYTES"  # goes before the file; tests set it
FILE_BYTES_MAX = 1 << 16
VERSION = 3  # of the file; those of the second were also measured while other work took the cores
LEAST_BYTES: int = _native.CONSTANTS["PAST_CACHES_BYTES"]
NEVER_BYTES = 1 << 60  # no array is as large
CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Thresholds:
    """Sizes from which on this machine is better off with another way.

    Attributes:
        past_caches_bytes: From this size on, the array that a call fills is stored past the caches.
        source: Where the figure comes from, for people.
        measured: Whether the figure was measured here, or given in the environment.
    """

    past_caches_bytes: int
    source: str
    measured: bool = True

    def __str__(self) -> str:
        size = "never" if self.past_caches_bytes >= NEVER_BYTES else f"from {format_bytes(self.past_caches_bytes)} on"
        return f"arrays are stored past the caches {size} ({self.source})"


def kept_file() -> Path:
    """Return where this user's figures are kept: ``cxlemu/machine.json`` in the folder for caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cxlemu" / "machine.json"


@cache
def thresholds() -> Thresholds:
    """Return this machine's figures: of the environment, of the kept file, or by its caches.

    Raises:
        ConfigError: The environment's figure is no number of bytes.
    """
    if (given := os.environ.get(VARIABLE)) is not None:
        if not (given.isascii() and given.isdigit() and 0 < int(given) <= NEVER_BYTES):
            raise ConfigError(f"{VARIABLE}={given[:40]} is no number of bytes: give one such as {LEAST_BYTES}")
        return Thresholds(int(given), VARIABLE)
    file = kept_file()
    try:
        raw = file.read_bytes()[: FILE_BYTES_MAX + 1]
    except OSError:
        return _default("cxlemu doctor --calibrate measures it")
    found = _parsed(raw)
    if found is None:
        return _default(f"{file} is not what this version's cxlemu doctor --calibrate writes")
    if found["machine"] != identity():
        return _default(f"{file} was measured on another machine")
    return Thresholds(found["past_caches_bytes"], f"measured, {file}")


def default_bytes(found: list[CpuCache]) -> int:
    """Return the threshold where nothing was measured: a quarter of its largest cache, as glibc takes for memcpy.

    Args:
        found: Its caches.

    Returns:
        A number of bytes, at least `LEAST_BYTES`.
    """
    return max([LEAST_BYTES, *(its.nbytes // 4 for its in found)])


def _default(why: str) -> Thresholds:
    return Thresholds(default_bytes(caches()), f"a quarter of the largest cache: {why}", measured=False)


def keep(past_caches_bytes: int) -> Path:
    """Keep a figure for this machine.

    Args:
        past_caches_bytes: As in `Thresholds`.

    Returns:
        The file.

    Raises:
        OSError: The file cannot be written.
    """
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
    """Return the data caches of the first core that this process may use, as Linux describes them; none if it does not.

    Args:
        cpus: The folder where Linux does.
    """
    found = []
    for index in sorted(cpus.glob(f"cpu{min(os.sched_getaffinity(0))}/cache/index*")):
        try:
            kind, level, size, shared = (
                (index / name).read_text().strip() for name in ("type", "level", "size", "shared_cpu_list")
            )
            if kind != "Instruction":
                found.append(CpuCache(int(level), int(size.removesuffix("K")) << 10, shared))
        except (OSError, ValueError):
            continue  # a kernel that says less
    return found


def identity() -> dict[str, Any]:
    """Return what makes figures void when it changes: the processor, its caches, this process' number of cores."""
    model = "unknown"
    try:
        with Path("/proc/cpuinfo").open() as lines:
            model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0))
    return {"model": model, "cores": cores, "caches": [asdict(its) for its in caches()]}


def _parsed(raw: bytes) -> dict[str, Any] | None:
    if len(raw) > FILE_BYTES_MAX:
        return None
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("version") != VERSION or "machine" not in found:
        return None
    nbytes = found.get("past_caches_bytes")
    return found if type(nbytes) is int and 0 < nbytes <= NEVER_BYTES else None
