"""Files of users: read within bounds, written whole or not at all; nothing but a regular file is read or replaced.

Links are followed. Devices and pipes are never read; they are written to as they are, and so is the file that stdout or
stderr goes to (``--json /dev/stdout > log``): a file renamed over it would take its place, and all that was printed
would be lost.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_file(path: Path, bytes_max: int) -> bytes:
    """Read a regular file whole."""
    with open_file(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > bytes_max:
            raise OSError(errno.EFBIG, f"larger than {bytes_max} bytes", str(path))
        content = file.read(nbytes + 1)
    if len(content) != nbytes:
        raise OSError(errno.EAGAIN, f"has {nbytes} bytes, but another number was read: the file is changing", str(path))
    return content


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading. A FIFO or a device, which could be read for ever, is not even opened."""
    try:
        _check_regular(path, path.stat())
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, "not the name of a file", repr(str(path))) from error
    file = os.fdopen(descriptor, "rb")
    try:
        _check_regular(path, os.fstat(descriptor))  # once more: another file may have the name by now
    except OSError:
        file.close()
        raise
    return file


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"{what}, not a regular file", str(path))


def check_writable(path: Path) -> None:
    """Accept a path that `write_atomically` could write now; leave nothing behind, and open no pipe."""
    status = _status(path)
    if status is None or not _takes_a_stream(status):
        descriptor, unfinished = _create_beside(_target(path))
        os.close(descriptor)
        unfinished.unlink()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file: a new or regular one appears whole and keeps its mode; anything else is appended to."""
    status = _status(path)
    if status is not None and _takes_a_stream(status):
        _append(path, data)
        return
    target = _target(path)
    descriptor, unfinished = _create_beside(target)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if status is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
            file.write(data)
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _status(path: Path) -> os.stat_result | None:
    """The status of the file behind all links, or None. Raises OSError where that is not ours to write."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, "this is not the name of a file") from error
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.access(path, os.W_OK):  # renaming would replace it all the same
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    return status


def _takes_a_stream(status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return True
    for descriptor in (1, 2):
        with suppress(OSError):  # closed
            if os.path.samestat(status, os.fstat(descriptor)):
                return True
    return False


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _create_beside(target: Path) -> tuple[int, Path]:
    """A new file in the same directory, with a name of its own: the target's may be as long as names can be."""
    unfinished = target.with_name(f".cxlemu-{os.urandom(8).hex()}")
    return os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), unfinished


def _append(path: Path, data: bytes) -> None:
    # To open a pipe without a reader would wait for ever; without blocking it is an error.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
