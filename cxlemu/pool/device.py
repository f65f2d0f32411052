"""A device-DAX device, or a file that stands in for one: its size, its alignment, and its mapping.

A device knows no read(), its st_size is 0, and a mapping past its end succeeds and faults later: so size and alignment
are asked of sysfs and checked here, and everything goes through the mapping.
"""

import errno
import mmap
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from cxlemu import _native
from cxlemu.errors import PoolError
from cxlemu.memory.protocol import Bytes
from cxlemu.pool.superblock import PAGE_BYTES
from cxlemu.rounding import round_down
from cxlemu.units import format_bytes, typed_bytes

SYSFS = Path("/sys")

_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's are
_MAP_SHARED_VALIDATE, _MAP_SYNC = 0x03, 0x80000  # linux/mman.h; Python's mmap has no names for them


@dataclass(frozen=True)
class Device:
    """A device or file, with its size and alignment."""

    path: str  # as it was given
    kind: Literal["device-DAX", "file"]
    nbytes: int
    align_bytes: int  # every mapping begins and ends at a multiple of this
    identity: tuple[int, ...]  # the same for two paths to one device

    @property
    def usable_bytes(self) -> int:
        return round_down(self.nbytes, self.align_bytes)


class Mapped(NamedTuple):
    device: Device
    pages: Bytes
    how: Literal["MAP_SYNC", "MAP_SHARED"]


def examine_device(path: str) -> Device:
    """Tell a device's size and alignment without opening it."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        raise PoolError(f"{path} cannot be examined: {getattr(error, 'strerror', error)}") from error
    _check_kind(path, status.st_mode)
    return _examine(path, status)


def map_device(path: str) -> Mapped:
    """Map a device whole. The holes of a file are filled, for to touch one in a full file system is SIGBUS."""
    with _opened(path) as fd:
        device = _examine(path, os.fstat(fd))
        if device.kind == "file":
            reserve(fd, path, device.nbytes)
        try:
            return Mapped(device, *_map(fd, device, 0, device.usable_bytes))
        except OSError as error:
            raise PoolError(f"{path} cannot be mapped: {error.strerror}") from error


def reserve(fd: int, path: str, nbytes: int) -> None:
    """Reserve all bytes of a file; what they hold stays."""
    wanted, room = nbytes - os.fstat(fd).st_blocks * _BLOCK_BYTES, os.fstatvfs(fd)
    if wanted <= 0:
        return  # which also spares the kernel a look at every page
    try:
        if wanted > room.f_bavail * room.f_frsize:  # else some file systems would keep what they could get
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        raise PoolError(f"{path} has no room for {typed_bytes(nbytes)}: {error.strerror}") from error


def map_part(device: Device, offset: int, nbytes: int, *, writable: bool = True) -> Bytes:
    """Map some bytes of a device alone; ``at`` and ``nbytes`` are multiples of its ``align_bytes``."""
    if (
        offset % device.align_bytes
        or nbytes % device.align_bytes
        or not 0 <= offset <= offset + nbytes <= device.usable_bytes
    ):
        raise PoolError(f"{device.path} has no {nbytes} bytes at {offset} in whole pages of {device.align_bytes}")
    with _opened(device.path, writable=writable) as fd:
        if _examine(device.path, os.fstat(fd)).identity != device.identity:
            raise PoolError(f"{device.path} has become another device")
        try:
            return _map(fd, device, offset, nbytes, writable=writable)[0]
        except OSError as error:
            raise PoolError(f"{device.path} cannot be mapped: {error.strerror}") from error


@contextmanager
def _opened(path: str, *, writable: bool = True) -> Iterator[int]:
    try:
        _check_kind(path, Path(path).stat().st_mode)  # before opening: that could block, or do something
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    except FileNotFoundError:
        raise PoolError(
            f"{path} does not exist: give a device that `cxlemu doctor` lists, or a file, as `cxlemu pool format "
            f"--create-size 64M` makes"
        ) from None
    except PermissionError:
        raise PoolError(f"{path} may not be read and written by user {os.geteuid()}: see its permissions") from None
    except (OSError, ValueError) as error:
        raise PoolError(f"{path} cannot be opened: {getattr(error, 'strerror', error)}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _check_kind(path: str, mode: int) -> None:
    if stat.S_ISBLK(mode):
        raise PoolError(f"{path} is a block device: give its /dev/daxX.Y, or a file on it mounted with -o dax")
    if not (stat.S_ISCHR(mode) or stat.S_ISREG(mode)):
        raise PoolError(f"{path} is neither a device nor a regular file")


def _examine(path: str, status: os.stat_result) -> Device:
    if stat.S_ISCHR(status.st_mode):
        nbytes, align_bytes = _sysfs_facts(path, os.major(status.st_rdev), os.minor(status.st_rdev))
        device = Device(path, "device-DAX", nbytes, align_bytes, (status.st_rdev,))
    else:
        # A huge page where the file system has only those.
        align_bytes = max(PAGE_BYTES, status.st_blksize)
        device = Device(path, "file", status.st_size, align_bytes, (status.st_dev, status.st_ino))
    if device.usable_bytes == 0:
        raise PoolError(
            f"{path} has {format_bytes(device.nbytes)}, which is less than its alignment, {format_bytes(align_bytes)}"
        )
    return device


def _sysfs_facts(path: str, major: int, minor: int) -> tuple[int, int]:
    """Read size and alignment by the device's number: its path may be a link, or another name."""
    node = SYSFS / "dev/char" / f"{major}:{minor}"
    name = node.resolve().name
    directory = SYSFS / "bus/dax/devices" / name
    if not re.fullmatch(r"dax[0-9]+\.[0-9]+", name) or not directory.is_dir():
        raise PoolError(f"{path} is a character device but not a device-DAX: {node} links to none")
    facts = []
    for fact in ("size", "align"):
        try:
            text = (directory / fact).read_text().strip()
        except OSError as error:
            raise PoolError(f"{path} has an unknown {fact}: {directory / fact}: {error.strerror}") from error
        if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII):
            raise PoolError(f"{path} has an unknown {fact}: {directory / fact} says {text[:40]!r}, not a number")
        facts.append(int(text))
    nbytes, align_bytes = facts
    if align_bytes % PAGE_BYTES or align_bytes.bit_count() != 1:
        raise PoolError(f"{path} has alignment {align_bytes}, which is not a power of two of {PAGE_BYTES} or more")
    return nbytes, align_bytes


def _map(
    fd: int, device: Device, offset: int, nbytes: int, *, writable: bool = True
) -> tuple[Bytes, Literal["MAP_SYNC", "MAP_SHARED"]]:
    """Map bytes of a device or file; return how it was mapped as well.

    A file is mapped with MAP_SYNC where its file system knows that (fsdax): then its metadata are as durable as its
    bytes. A device has no metadata.
    """
    if device.kind == "file":
        try:
            return _pages(fd, _MAP_SHARED_VALIDATE | _MAP_SYNC, offset, nbytes, writable=writable), "MAP_SYNC"
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
    return _pages(fd, mmap.MAP_SHARED, offset, nbytes, writable=writable), "MAP_SHARED"


def _pages(fd: int, flags: int, offset: int, nbytes: int, *, writable: bool) -> Bytes:
    """Map pages, which are unmapped when the last array that shows them is gone."""
    return np.frombuffer(_native.map_pages(fd, flags, offset, nbytes, writable, True), dtype=np.uint8)
