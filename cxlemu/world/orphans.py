"""Workers of ranks that were killed: nobody else ends them, as their parent could not.

A fork copies the rank's end of the pipe to its launcher. What multiprocessing starts anew, such as a Manager, has the
launcher's end of the pipe to its resource tracker instead, and its command says so. A Manager has a folder in /tmp.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Set
from contextlib import ExitStack, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path

PROC = Path("/proc")
_STARTED_ANEW = b"from multiprocessing."  # how the code of its command begins


def pipe_named(descriptor: int) -> str:
    """The name under which /proc lists both ends of a pipe."""
    return f"pipe:[{os.fstat(descriptor).st_ino}]"


def end_workers(pipes: Set[str], patience_s: float) -> None:
    """End the workers of ranks which are gone, given their pipes, and remove the folders in which they listen."""
    for stop in (signal.SIGTERM, signal.SIGKILL):
        with ExitStack() as stack:
            ended: list[int] = []
            for process in _workers(pipes):
                folders = [*_folders(process)]
                with suppress(ProcessLookupError):
                    ended.append(handle := os.pidfd_open(int(process.name)))
                    stack.callback(os.close, handle)
                    signal.pidfd_send_signal(handle, stop)
                for folder in folders:
                    stack.callback(shutil.rmtree, folder, ignore_errors=True)
            while ended and (gone := wait(ended, patience_s)):
                ended = [handle for handle in ended if handle not in gone]


def _workers(pipes: Set[str]) -> list[Path]:
    """Find the processes that write to these pipes, and those started anew whose parent is gone."""
    descriptor = resource_tracker.getfd()
    assert descriptor is not None  # it runs, as for each process that is started
    tracker = pipe_named(descriptor)
    written = {process: its for process in PROC.glob("[0-9]*") if (its := _written(process, {*pipes, tracker}))}
    ours = {process.name for process in written}
    written.pop(PROC / str(os.getpid()), None)
    return [process for process, its in written.items() if its & pipes or _is_orphan(process, ours)]


def _written(process: Path, pipes: Set[str]) -> set[str]:
    """Find out to which of the pipes a process writes."""
    found = set()
    with suppress(OSError):  # another user's, or gone
        for descriptor in (process / "fd").iterdir():
            if (name := _target(descriptor)) in pipes and _writes(process / "fdinfo" / descriptor.name):
                found.add(name)
    return found


def _target(descriptor: Path) -> str:
    with suppress(OSError):
        return str(descriptor.readlink())
    return ""


def _writes(info: Path) -> bool:
    flags = info.read_text().partition("flags:")[2].split()[0]
    return int(flags, 8) & os.O_ACCMODE == os.O_WRONLY


def _is_orphan(process: Path, ours: Set[str]) -> bool:
    with suppress(OSError):
        parent = (process / "status").read_text().partition("PPid:")[2].split()[0]
        return parent not in ours and _STARTED_ANEW in (process / "cmdline").read_bytes()
    return False


def _folders(process: Path) -> Iterator[Path]:
    """Find the folders of multiprocessing's in which a process listens."""
    with suppress(OSError):
        lines = [line.split() for line in (PROC / "net/unix").read_text().splitlines()]
        paths = {f"socket:[{line[6]}]": Path(line[7]) for line in lines if len(line) > 7}
        for descriptor in (process / "fd").iterdir():
            folder = paths.get(_target(descriptor), Path()).parent
            if folder.name.startswith("pymp-"):
                yield folder
