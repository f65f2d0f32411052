"""Commands that work on many processes leave none behind, and nothing in /dev/shm, whichever way they are stopped."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from faults.campaign.executors import Workers
from tests.helpers.tiers import PATIENT_S

WORKERS = 2
COMMANDS = {
    "mutate": ("mutate", "all_reduce", "-n", "4-8"),
    "campaign": ("faults", "campaign", "all_reduce", "--seeds", "1000", "--budget", "1h"),
    "prove": ("prove", "-n", "16-32"),
}
COPIES = ("prove",)  # whose workers are copies of the process, and share nothing that has a name

FAST = (("mutate", signal.SIGINT), ("prove", signal.SIGKILL))


def eventually(holds: Callable[[], bool], words: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENT_S
    while not holds():
        assert time.monotonic() < deadline, words()
        time.sleep(0.02)


def session_of(leader: int) -> dict[int, str]:
    """Its processes, whoever their parents are by now, and what was started."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == leader and (command := (entry / "cmdline").read_text()):
                found[int(entry.name)] = command.replace("\0", " ")
    return found


def shared_of(processes: dict[int, str]) -> set[Path]:
    """Semaphores and segments that they have mapped, by names that there are: one is made under another name first."""
    found: set[Path] = set()
    for pid in processes:
        with contextlib.suppress(OSError):
            found |= {Path(name) for name in re.findall(r"/dev/shm/\S+", Path(f"/proc/{pid}/maps").read_text())}
    return {path for path in found if path.exists()}


def busy(processes: dict[int, str]) -> list[int]:
    """Workers that have started: they have the thread that waits for their parent's end, and compute."""
    found = []
    for pid in processes:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            ignored = int(re.findall(r"SigIgn:\s+(\w+)", status)[0], 16) >> (signal.SIGINT - 1) & 1
            threads = int(re.findall(r"Threads:\s+(\d+)", status)[0])
            if ignored and threads > 1:
                found.append(pid)
    return found


@pytest.mark.deep(rows=lambda command, number: (command, number) not in FAST)
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("number", "to_group", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143), (signal.SIGKILL, False, -signal.SIGKILL)],
    ids=["Ctrl-C", "SIGTERM", "SIGKILL"],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_stopped_command_leaves_nothing(tmp_path: Path, command: str, number: int, to_group: bool, code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "cxlemu", *COMMANDS[command], "-j", str(WORKERS)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
    )
    try:
        eventually(lambda: len(busy(session_of(process.pid))) >= WORKERS, lambda: str(session_of(process.pid)))
        shared = shared_of(session_of(process.pid))
        assert shared or command in COPIES  # the executor's semaphores
        (os.killpg if to_group else os.kill)(process.pid, number)
        assert process.wait(PATIENT_S) == code
        eventually(lambda: not session_of(process.pid), lambda: f"left behind: {session_of(process.pid)}")
        eventually(lambda: not any(path.exists() for path in shared), lambda: f"left behind: {shared}")
        said = process.stderr.read()
        assert "Traceback" not in said and "leaked" not in said
        assert list(tmp_path.iterdir()) == []
    finally:
        for pid in session_of(process.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def sleeps(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_left_by_an_exception_workers_do_not_finish_their_work() -> None:
    with pytest.raises(KeyError), Workers(1) as workers:
        future = workers.submit(sleeps, 10 * PATIENT_S)
        eventually(future.running, lambda: "it never began")
        raise KeyError
    assert future.done()


def test_the_parents_handler_of_sigterm_is_not_that_of_its_copies() -> None:
    """It would wait until C returns, and the worker with it."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with Workers(1, copied=True) as workers:
            assert workers.submit(signal.getsignal, signal.SIGTERM).result(PATIENT_S) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_left_in_peace_workers_finish_their_work() -> None:
    with Workers(1) as workers:
        futures = [workers.submit(sleeps, 0.01) for _ in range(5)]
    assert [future.result() for future in futures] == [0.01] * 5


def test_a_worker_that_still_starts_is_ended_at_once() -> None:
    """It does not watch its parent yet: under load its imports take many seconds, which a budget does not have."""
    workers = Workers(1)
    workers._initializer, workers._initargs = time.sleep, (5.0,)  # and then it would end well
    workers.submit(os.getpid)
    (process,) = workers._processes.values()
    workers.end()
    assert process.exitcode == -signal.SIGTERM


def test_work_that_was_cancelled_can_fail_with_its_worker() -> None:
    workers = Workers(1, copied=True)
    futures = [workers.submit(time.sleep, 1000) for _ in range(5)]
    try:
        cancelled = next(future for future in futures if future.cancel())
        cancelled.set_exception(BrokenProcessPool())  # as the pool's thread does, which would end there
        assert cancelled.cancelled()
    finally:
        workers.end()
