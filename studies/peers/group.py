"""The coordinator's side: the worker processes of one implementation, asked all at once."""

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from cxlemu.errors import DeadlineError, InputError, RankDiedError, RunError, name_ranks

ROOT = Path(__file__).parents[2]  # where `studies` is imported from
TICK_S = 0.05
GRACE_S = 5.0
REFUSED = 200  # exit code of a process whose last word is why its input was refused


class PeerProcess(NamedTuple):
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = {}  # what must be in its environment beside ours
    pass_fds: tuple[int, ...] = ()  # file descriptors that it inherits


def worker_arguments(python: str, module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that starts a worker in any Python.

    Our package comes last on its path, so that the interpreter's own packages are the ones it uses; and the folder in
    which the command runs is not on it, as that may be a checkout without what was compiled.
    """
    path = f"import sys; sys.path[:] = [*filter(None, sys.path), {str(ROOT)!r}]"
    code = f"{path}; from studies.peers import {module} as worker; worker.main(*sys.argv[1:])"
    return (python, "-c", code, *arguments)


class Group:
    """Starts processes, of which ``ranks`` connect to the socket; as a context it ends them all."""

    def __init__(self, name: str, ranks: int, *, deadline_s: float) -> None:
        self.name = name
        self.ranks = ranks
        self.version = ""
        self._deadline_s = deadline_s
        self._stack = ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: dict[int, socket.socket] = {}
        self._streams: dict[int, Any] = {}
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix=f"cxlemu-{name}-")))
        self.socket_path = str(self.folder / "socket")
        self._printed = self._stack.enter_context((self.folder / "printed").open("w+b"))
        self._listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(self.socket_path)
        self._listener.listen(ranks)

    def start(self, programs: Iterable[PeerProcess]) -> None:
        """Start processes, and wait until all ranks have connected."""
        for program in programs:
            self._processes.append(
                subprocess.Popen(
                    program.arguments,
                    env=os.environ | program.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=self._printed,
                    stderr=self._printed,
                    pass_fds=program.pass_fds,
                    start_new_session=True,  # a terminal's Ctrl-C is for us, we stop them in order
                )
            )
        ends = time.monotonic() + self._deadline_s
        self._listener.settimeout(TICK_S)
        while len(self._streams) < self.ranks:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                self._check_alive()
                if time.monotonic() > ends:
                    raise DeadlineError(
                        f"{self.name}: only {len(self._streams)} of {self.ranks} ranks connected within "
                        f"{self._deadline_s:g} s{self._tail()}"
                    ) from None
                continue
            connection.settimeout(self._deadline_s)
            stream = self._stack.enter_context(connection.makefile("r", encoding="utf-8"))
            self._stack.enter_context(connection)
            hello = self._read(stream, "a new rank")
            self._connections[hello["rank"]], self._streams[hello["rank"]] = connection, stream
            self.version = hello["version"]

    def ask(self, command: Mapping[str, Any], each: Sequence[Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
        for rank in range(self.ranks):
            own = dict(command) | (dict(each[rank]) if each else {})
            try:
                self._connections[rank].sendall(json.dumps(own).encode() + b"\n")
            except OSError as error:
                raise RankDiedError(f"{self.name}: rank {rank} is gone ({error.strerror}){self._tail()}") from error
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < self.ranks:
            for rank in self._readable(self._streams.keys() - answers.keys()):
                answers[rank] = self._read(self._streams[rank], f"rank {rank}")
        return [answers[rank] for rank in range(self.ranks)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for connection in self._connections.values():  # also after Ctrl-C, so that MPI removes what it made
                with suppress(OSError):  # a rank that is gone needs no goodbye
                    connection.sendall(b'{"do": "close"}\n')
            if self._connections:
                self._join()
        finally:
            self._end()
            self._stack.close()

    def _readable(self, ranks: Iterable[int]) -> list[int]:
        """Return the ranks that have answered, as answers come.

        The first rank that fails is the cause, and others may wait for it.
        """
        connections = {self._connections[rank]: rank for rank in ranks}
        ready, _, _ = select.select(list(connections), [], [], self._deadline_s)
        if not ready:
            silent = name_ranks(connections.values())
            raise DeadlineError(f"{self.name}: {silent} gave no answer within {self._deadline_s:g} s{self._tail()}")
        return [connections[connection] for connection in ready]

    def _read(self, stream: Any, who: str) -> dict[str, Any]:
        try:
            line = stream.readline()
        except TimeoutError:
            raise DeadlineError(
                f"{self.name}: {who} gave no answer within {self._deadline_s:g} s{self._tail()}"
            ) from None
        except OSError:
            line = ""
        if not line:
            self._join(1.0)
            raise RankDiedError(f"{self.name}: {who} ended without an answer{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RunError(f"{self.name}: {who} failed: {answer['error'].strip()}")
        return answer

    def _check_alive(self) -> None:
        for process in self._processes:
            if process.poll() == REFUSED:
                raise InputError(self._tail().strip())
            if process.returncode is not None:
                raise RankDiedError(f"{self.name}: did not start, exit code {process.returncode}{self._tail()}")

    def _tail(self) -> str:
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").strip().splitlines()
        return "".join(f"\n  {line}" for line in lines[-8:])

    def _join(self, seconds: float = GRACE_S) -> None:
        ends = time.monotonic() + seconds
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, ends - time.monotonic()))

    def _end(self) -> None:
        """End the processes that are left.

        SIGTERM lets a launcher, and ours, clean up after itself; SIGKILL to the whole session ends all that remain.
        """
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        self._join()
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
