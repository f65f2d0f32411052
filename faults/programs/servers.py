"""Fork servers: in a search a program is loaded once, and waits before main; each run makes its process by a fork.

``native/server.c`` is the other end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from faults.programs.folders import run_folder

VARIABLE = "CXLEMU_PROGRAM_SERVER"  # the server's end of the socket; in a process that is no server:
NO_SERVER = "-01"
ANSWER_S = 30.0
_ANSWER = struct.Struct("ii")
_REFUSALS = ("", "it has threads before main", "it has files open before main")
_SYSTEM = ctypes.CDLL(None)
_ADDR_NO_RANDOMIZE = 0x0040000
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class ServedProcess:
    """A process that a server has made, used as one of subprocess.Popen."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        self.pid, self._server = pid, server
        self.returncode: int | None = None

    def fileno(self) -> int:
        """Return the socket on which the server tells of the end."""
        return self._server.socket.fileno()

    def poll(self) -> int | None:
        """Return its exit code, or the negative number of a signal; None as long as it runs."""
        if self.returncode is None:
            try:
                answer = self._server.socket.recv(_ANSWER.size, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            status, self._server.left = _ANSWER.unpack(answer) if answer else (signal.SIGKILL, True)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    @property
    def left(self) -> bool:
        """Whether it left processes behind, which are children of the server."""
        return self._server.left


class ForkServer:
    """A program that waits before main."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.left = False  # whether processes of a run are left behind, as children of the server
        self._made: ServedProcess | None = None
        self.socket, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # the system's own: no look before each call
            self.socket.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", int(ANSWER_S), 0))
        nothing = subprocess.DEVNULL
        with child, same_addresses():
            self._process = subprocess.Popen(
                words,
                env={**environment, VARIABLE: f"{child.fileno():03d}"},
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                process_group=0,
                pass_fds=[child.fileno()],
            )
        self.pid = self._process.pid

    def answer(self) -> int | None:
        """Return the first number that the server answers, None where it does not."""
        try:
            answer = self.socket.recv(_ANSWER.size)
        except OSError:
            return None
        return int(_ANSWER.unpack(answer)[0]) if answer else None

    def fork(self, thread: str) -> ServedProcess | None:
        """Make a process for a run; None where that cannot be."""
        if self._made and self._made.returncode is None:
            return None
        with contextlib.suppress(OSError):
            self.socket.send(thread.encode() + b"\0")
            pid = self.answer()
            self._made = ServedProcess(pid, self) if pid and pid > 0 else None
            return self._made
        return None

    def close(self) -> None:
        """End the server; what its processes have left behind becomes ours."""
        self.socket.close()
        self._process.kill()
        self._process.wait()


class ForkServers:
    """The servers of a search, by the numbers of their commands."""

    def __init__(self) -> None:
        self._servers: dict[int, ForkServer | None] = {}  # None: its program is started anew in each run
        self.others = children()  # of ours, which no run has made
        self.anew: dict[str, None] = {}  # which programs are, and why, a sentence each

    def __enter__(self) -> ForkServers:
        self._adopting = adopt(True)
        self._files = contextlib.ExitStack()
        self.folder = self._files.enter_context(run_folder())
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        adopt(self._adopting)
        self._files.close()

    def end(self) -> None:
        """End the servers and all that they have made, also a process in whose making an interrupt came."""
        for server in self._servers.values():
            if server:
                server.close()
        self._servers.clear()
        while end_children(self.others):
            time.sleep(0.001)

    def start(
        self, number: int, words: Sequence[str], thread: str, environment: Callable[[], Mapping[str, str]]
    ) -> ServedProcess | None:
        """Make a command's process; None where its program has to be started anew."""
        if number not in self._servers:
            self._begin(number, words, environment())
        server = self._servers[number]
        if server is None:
            return None
        made = server.fork(thread)
        if made is None:
            self._refuse(number, words, server, "its fork failed")
        return made

    def _begin(self, number: int, words: Sequence[str], environment: Mapping[str, str]) -> None:
        server = self._servers[number] = ForkServer(words, environment)
        self.others.add(server.pid)
        why = server.answer()
        if why is None:
            self._refuse(number, words, server, "it does not reach main, or opens the pool before")
        elif why:
            self._refuse(number, words, server, _REFUSALS[why])

    def _refuse(self, number: int, words: Sequence[str], server: ForkServer, why: str) -> None:
        server.close()
        self._servers[number] = None
        self.anew[f"{Path(words[0]).name} is started anew in each run, which takes longer: {why}"] = None

    def end_those_left(self) -> bool:
        """End each server that has children of a run, which become ours; return whether there was any."""
        left = [number for number, server in self._servers.items() if server and server.left]
        for number in left:
            server = self._servers.pop(number)
            assert server is not None
            server.close()
        return bool(left)


def children() -> set[int]:
    """The children of this process, also those that have ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there is none: not worth a walk through all processes
        return set()
    those = [its for its in Path("/proc").iterdir() if its.name.isdecimal()]  # glob fails where one ends meanwhile
    return {int(its.name) for its in those if _parent(its) == os.getpid()}


def end_children(but: Set[int]) -> bool:
    """Kill the children of this process but those; return whether there was any: what these leave comes next."""
    left = children() - but
    for pid in left:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)
    return bool(left)


def adopt(orphans: bool) -> bool:
    """Let orphans among our descendants become our children, or not; return whether they did."""
    before = ctypes.c_int()
    _SYSTEM.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    _SYSTEM.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(orphans), 0, 0, 0)
    return bool(before.value)


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError):  # it has ended
        return 0


@contextlib.contextmanager
def same_addresses() -> Iterator[None]:
    """Give processes that are started inside the same addresses each time, where the system allows that."""
    personality = _SYSTEM.personality
    before = personality(0xFFFFFFFF)
    if before >= 0:
        personality(before | _ADDR_NO_RANDOMIZE)
    try:
        yield
    finally:
        if before >= 0:
            personality(before)
