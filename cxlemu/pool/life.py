"""A lock that a process holds as long as it lives, so that every other process of the machine can see that it does.

A pid means nothing in another container, and a start time is another one in another time namespace
(``unshare -T --boottime``). A lock on a byte of a file is the kernel's word: it is gone when its holder is, however
that ended, and not before. The lock belongs to an open file description (fcntl(2), F_OFD_SETLK), so that nothing else
that the process opens, locks or closes touches it. The descriptor is read-only, and is not inherited.
"""

import fcntl
import os
import struct
import weakref
from pathlib import Path

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid


class LifeLock:
    """A lock on one byte of a file, from now on until `release` or the end of this process."""

    def __init__(self, path: Path, offset: int) -> None:
        """Take the lock; any number of processes can hold it at once."""
        self._fd: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # closed with this lock, which may not be had
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_RDLCK, offset))
        _ALL.add(self)

    def release(self) -> None:
        """Give the lock up; twice is fine."""
        fd, self._fd = self._fd, None  # in this order: Ctrl-C in between closes no other file the second time
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        self.release()


_ALL: weakref.WeakSet[LifeLock] = weakref.WeakSet()


def is_held(fd: int, offset: int) -> bool:
    """Return whether a living process holds a LifeLock; ``fd`` must have been opened for this question alone."""
    lock = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, offset))
    return bool(_FLOCK.unpack(lock)[0] != fcntl.F_UNLCK)


def is_held_at(path: Path, offset: int) -> bool:
    """Whether a living process holds a LifeLock on byte ``at`` of ``path``; not where there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return is_held(fd, offset)
    finally:
        os.close(fd)


def _flock(kind: int, offset: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0)


def _forked() -> None:
    """A forked child has the descriptors of its parent, but it is not the process whose life they tell."""
    for lock in list(_ALL):
        lock.release()


os.register_at_fork(after_in_child=_forked)
