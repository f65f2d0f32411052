"""Starts the ranks of a training script, restarts them, and leaves none behind."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from cxlemu.signals import stops_exit
from faults.torch.settings import PARENT

GRACE_S = 10.0  # for the other ranks, once one has failed
TICK_S = 0.02


@dataclass
class Round:
    ended: dict[int, float] = field(default_factory=dict)  # for each rank when it ended, by `time.time`
    # for each rank its exit code; negative: the signal that killed it
    codes: dict[int, int] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)  # ranks that were still running when the grace was over
    suspended: list[int] = field(default_factory=list)  # those of them that somebody had stopped by SIGSTOP

    @property
    def failed(self) -> bool:
        """Whether any rank ended with something else than 0."""
        return any(self.codes.values())


def run_ranks(
    script: str,
    arguments: tuple[str, ...],
    ranks: int,
    restarts: int,
    environment: Mapping[str, str],
    say: Callable[[int, str], None],
) -> list[Round]:
    """Run a script on every rank, as torchrun does, on this machine; return every round, the last one last."""
    rounds: list[Round] = []
    with stops_exit():
        while not rounds or (rounds[-1].failed and len(rounds) <= restarts):
            rounds.append(_round(script, arguments, ranks, len(rounds), environment, say))
    return rounds


def _round(
    script: str,
    arguments: tuple[str, ...],
    ranks: int,
    number: int,
    environment: Mapping[str, str],
    say: Callable[[int, str], None],
) -> Round:
    became = Round()
    port = str(_free_port())
    children: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    try:
        for rank in range(ranks):
            places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            env = {
                **environment,
                **{name: str(value) for name, value in places.items()},
                "GROUP_RANK": "0",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "TORCHELASTIC_RESTART_COUNT": str(number),
                "TORCHELASTIC_RUN_ID": f"cxlemu-{os.getpid()}",
                PARENT: str(os.getpid()),
                "PYTHONOPTIMIZE": "",  # the script's assertions are part of what is judged
            }
            child = subprocess.Popen(
                # -P: the folder in which the command runs may be a checkout without what was compiled.
                [sys.executable, "-P", "-u", "-m", "faults.torch.rank", script, *arguments],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # a terminal's Ctrl-C is for this process, which stops them
            )
            children.append(child)
            assert child.stdout is not None
            readers.append(threading.Thread(target=_read, args=(rank, child.stdout, say), daemon=True))
            readers[-1].start()
        _watch(children, became)
    finally:
        for stop in (signal.SIGTERM, signal.SIGKILL):
            for child in children:
                if child.poll() is None:
                    child.send_signal(stop)
                    child.send_signal(signal.SIGCONT)  # so that one that is suspended tells its line
            _wait(children, 3.0 if stop == signal.SIGTERM else 30.0)
        for reader in readers:
            reader.join(5.0)
    for rank, child in enumerate(children):
        became.codes.setdefault(rank, child.returncode)
        became.ended.setdefault(rank, time.time())
    return became


def _watch(children: list[subprocess.Popen[str]], became: Round) -> None:
    end: float | None = None
    while len(became.codes) < len(children):
        for rank, child in enumerate(children):
            if rank not in became.codes and (code := child.poll()) is not None:
                became.codes[rank], became.ended[rank] = code, time.time()
                if code and end is None:
                    end = time.monotonic() + GRACE_S
        if end is not None and time.monotonic() > end:
            became.stopped = [rank for rank in range(len(children)) if rank not in became.codes]
            became.suspended = [rank for rank in became.stopped if _is_suspended(children[rank].pid)]
            return
        time.sleep(TICK_S)


def _is_suspended(pid: int) -> bool:
    """Whether a child, which nobody has waited for, is stopped by a signal; the state follows its name in brackets."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] == b"T"


def _wait(children: list[subprocess.Popen[str]], seconds: float) -> None:
    end = time.monotonic() + seconds
    for child in children:
        try:
            child.wait(max(end - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            continue


def _read(rank: int, stream: IO[str], say: Callable[[int, str], None]) -> None:
    with stream:
        for line in stream:
            say(rank, line)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
