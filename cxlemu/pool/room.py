"""How much memory there is: in /dev/shm, and under the limits of this process's control groups.

Beyond such a limit the kernel kills without a word, so whoever allocates looks here before.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cxlemu.pool import segments
from cxlemu.pool.segments import SHM_DIR
from cxlemu.units import format_bytes

UNLIMITED = 1 << 60  # version 1 has no word for that, only a number that no machine has
RANK_BYTES = 40 << 20  # what a process takes that imports NumPy and this package


class MemoryLimit(NamedTuple):
    """A control group's limit of memory."""

    path: Path  # of the control group
    limit_bytes: int  # all that its processes may use
    left_bytes: int  # what they do not use; what the kernel can take back from its file cache counts as left


def tightest_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """Find the memory limit that leaves least, of this process's control groups and those around them, or None."""
    return min(_limits(root), key=lambda limit: limit.left_bytes, default=None)


def _limits(root: Path) -> Iterator[MemoryLimit]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    base = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":  # version 2
            for top in (base, base / "unified"):
                yield from _chain(top, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _chain(base / "memory", path, *names)


def _chain(top: Path, path: str, limit: str, usage: str, cached: str) -> Iterator[MemoryLimit]:
    """The limits of a group and of all that it is in; in a container its own path may not be there, but the top is."""
    parts = Path(path.lstrip("/")).parts
    if ".." in parts:
        parts = ()
    for depth in range(len(parts), -1, -1):
        group = top.joinpath(*parts[:depth])
        with suppress(OSError, ValueError):
            most, used = int((group / limit).read_text()), int((group / usage).read_text())
            if most < UNLIMITED:
                yield MemoryLimit(group, most, max(0, most - max(0, used - _statistic(group, cached))))


def _statistic(group: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in (group / "memory.stat").read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0


def shortage(shm_bytes: int, other_bytes: int, root: Path = Path("/")) -> str | None:
    """Say what there is too little of, as a sentence without its end; None where all of it is there."""
    if shm_bytes > (free := segments.free_bytes()):
        return f"{SHM_DIR} has {format_bytes(free)} free, but this pool needs {format_bytes(shm_bytes)}"
    limit = tightest_limit(root)
    if limit is not None and shm_bytes + other_bytes > limit.left_bytes:
        most, left = format_bytes(limit.limit_bytes), format_bytes(limit.left_bytes)
        return (
            f"this process may use {most} of memory, of which {left} are left ({limit.path}), "
            f"but this world needs {format_bytes(shm_bytes + other_bytes)}"
        )
    return None


def available_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that /dev/shm, this process's control groups and this machine all have left."""
    return min(segments.free_bytes(), memory_left_bytes(root))


def memory_left_bytes(root: Path = Path("/")) -> int:
    """Return the memory left to this process's control groups and machine, in bytes; `UNLIMITED` if unknown."""
    limits, limit = [UNLIMITED], tightest_limit(root)
    if limit is not None:
        limits.append(limit.left_bytes)
    with suppress(OSError, StopIteration):
        lines = (root / "proc/meminfo").read_text().splitlines()
        limits.append(next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")))
    return min(limits)


def bus_error() -> str:
    """Say what SIGBUS on shared memory means, and what to do about it, as far as it is known now."""
    return _bus_error(full=segments.free_bytes() < 1 << 20)


def bus_error_later() -> str:
    """The same for a SIGBUS that may come."""
    return _bus_error(full=False)


def _bus_error(*, full: bool) -> str:
    what = f"{SHM_DIR} is full" if full else f"{SHM_DIR} was full, or a file behind memory was cut"
    return (
        f"a page of shared memory could not be allocated: {what}. Make room there (`cxlemu pool clean`; a larger one "
        f"with `docker run --shm-size=1g` or `mount -o remount,size=1g {SHM_DIR}`), or take a smaller topology, such "
        "as -c laptop"
    )
