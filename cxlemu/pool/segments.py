"""One POSIX shared-memory segment: its name, its checks, its mapping. Nothing here knows what it holds."""

import mmap
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np
import posix_ipc

from cxlemu import _native
from cxlemu.errors import ArgumentError, PoolError
from cxlemu.memory.protocol import Bytes

SHM_DIR = Path("/dev/shm")  # where Linux shows POSIX shared memory as files
MODE = 0o600

_POOL_NAME = r"[A-Za-z0-9._-]{1,64}"
_FILE_NAME = re.compile(rf"cxlemu-({_POOL_NAME})-(card|clock|host)(0|[1-9][0-9]{{0,5}})", re.ASCII)


Kind = Literal["card", "clock", "host"]


@dataclass(frozen=True, order=True)
class Segment:
    """The name of a segment: the pool's, what it holds, and its index among those of its kind."""

    pool: str
    kind: Kind
    index: int

    @property
    def shm_name(self) -> str:
        return f"/cxlemu-{self.pool}-{self.kind}{self.index}"

    @property
    def path(self) -> Path:
        return SHM_DIR / self.shm_name[1:]

    def __str__(self) -> str:
        return str(self.path)


class MissingSegmentError(PoolError):
    """There is no segment of this name."""


def check_pool_name(name: str) -> None:
    """Check that a pool can have this name. Raises ArgumentError."""
    if not re.fullmatch(_POOL_NAME, name):
        raise ArgumentError(f"pool name {name!r} is not 1 to 64 letters, digits, '.', '_' or '-'")


def find(pool: str | None = None) -> list[Segment]:
    """List segments in /dev/shm, in order of pool, kind (cards first) and index."""
    if not SHM_DIR.is_dir():  # as in containers and guests that run on devices alone
        return []
    matches = (_FILE_NAME.fullmatch(entry.name) for entry in os.scandir(SHM_DIR))
    segments = [Segment(m[1], cast(Kind, m[2]), int(m[3])) for m in matches if m]
    return sorted(segment for segment in segments if pool in (None, segment.pool))


def is_ours(segment: Segment) -> bool:
    """Whether the segment is this user's. Another user may make files of any name; they belong to no pool of ours."""
    with suppress(FileNotFoundError):
        return segment.path.lstat().st_uid == os.geteuid()
    return False


def pool_names() -> list[str]:
    """List the names of all pools in /dev/shm, of any user, sorted."""
    return sorted({segment.pool for segment in find()})


@contextmanager
def create(segment: Segment, nbytes: int) -> Iterator[int]:
    """Create a sparse segment of zeros, which no owner has signed yet; yield its descriptor, open in the context."""
    try:
        shm = posix_ipc.SharedMemory(segment.shm_name, posix_ipc.O_CREX, mode=MODE, size=nbytes)
    except posix_ipc.ExistentialError:
        raise PoolError(f"{segment} exists already: {taken(segment.pool)}") from None
    try:
        yield shm.fd
    finally:
        shm.close_fd()


def taken(pool: str) -> str:
    """Return advice for a message: what to do where a pool has this name already."""
    return f"choose another name than {pool}, or remove a dead pool with `cxlemu pool clean {pool}`"


@contextmanager
def opened(segment: Segment, *, writable: bool = True) -> Iterator[int]:
    """Open an existing segment, once it proved private to this user; yield its descriptor, open in the context."""
    try:
        status = segment.path.lstat()  # before opening: opening a foreign FIFO could block
        _check_status(segment, status)
        shm = posix_ipc.SharedMemory(segment.shm_name, read_only=not writable)
    except (FileNotFoundError, posix_ipc.ExistentialError):
        raise MissingSegmentError(f"{segment} does not exist") from None
    except posix_ipc.PermissionsError:
        raise PoolError(f"{segment} may not be opened: its mode is not {MODE:04o}") from None
    try:
        _check_status(segment, os.fstat(shm.fd))  # again, now that the name can no longer be swapped
        yield shm.fd
    finally:
        shm.close_fd()


def _check_status(segment: Segment, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise PoolError(f"{segment} is not a shared-memory segment")
    if status.st_uid != os.geteuid():
        raise PoolError(f"{segment} belongs to user {status.st_uid}, not to user {os.geteuid()}")
    mode = stat.S_IMODE(status.st_mode)
    if mode & ~MODE:
        raise PoolError(f"{segment} is open to others: mode {mode:04o}, at most {MODE:04o} is safe")


def map_shared(fd: int, nbytes: int, offset: int = 0, *, writable: bool = True) -> Bytes:
    """Map bytes of a segment from the start of a page; they are unmapped with the last array that shows them."""
    return np.frombuffer(_native.map_pages(fd, mmap.MAP_SHARED, offset, nbytes, writable, False), dtype=np.uint8)


def free_bytes() -> int:
    """Return how many bytes /dev/shm has free for this user."""
    status = os.statvfs(SHM_DIR)
    return status.f_bavail * status.f_frsize


def remove(segment: Segment) -> None:
    """Remove a segment's name, if it is still there; processes that mapped it keep the bytes."""
    with suppress(posix_ipc.ExistentialError):  # another process was faster: it is gone all the same
        posix_ipc.unlink_shared_memory(segment.shm_name)
