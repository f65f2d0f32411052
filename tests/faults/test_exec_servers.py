"""Fork servers of ``exec --every`` and ``exec --crash every``: the same runs as of programs that are started anew."""

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from faults.programs import doing, processes
from faults.programs.area import ENDED, OUTSIDE, RUNNING, STARTING, WAITING, Area, PoolThread
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.crashes import crash_everywhere
from faults.programs.every.ahead import MADE_MOST, RunsAhead
from faults.programs.every.explore import EveryCoverage, EveryLimits, explore
from faults.programs.every.search import EverySearch, Turns
from faults.programs.processes import SLEEPING_LOOKS, RunProcesses
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult
from faults.programs.run import BegunRun, finish, run
from faults.programs.servers import ForkServer, ForkServers, ServedProcess, children
from tests.faults.test_exec_every import EXAMPLES, HERE
from tests.helpers.pool_programs import build, on_x86

POOL = "/dev/shm/servers"
pytestmark = on_x86


def setting(*words: str, pool: str = POOL) -> ExecSetting:
    return ExecSetting(parse_commands(list(words), 2), parse_pools([f"{pool}=2M"]), hosts=2)


def searched(of: ExecSetting, budget_s: float = 60) -> tuple[list[RunResult], EveryCoverage]:
    runs = list(explore(of, EveryLimits(preemptions=1, budget_s=budget_s)))
    return [result for result, _ in runs], runs[-1][1]


def shape(result: RunResult) -> object:
    given_up = result.ending is RunEnding.REPEATS  # its processes may end or be ended
    exits = sorted((its.command, its.code, its.output) for its in result.exits if not given_up)
    return result.trace, result.steps, result.turns, exits, result.signature()


def pids(name: str) -> Iterator[int]:
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() == name:
                yield int(comm.parent.name)
        except OSError:
            continue


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Lets no server make a process."""
    monkeypatch.setattr(ForkServers, "start", lambda *_: None)
    return monkeypatch


def test_every_run_of_a_search_is_as_without_a_server(anew: pytest.MonkeyPatch) -> None:
    queue = build(EXAMPLES / "queue.c", "-DMESSAGES=1")
    of = setting(str(queue), "send", POOL, ":", str(queue), "receive", POOL)
    slow, covered_slowly = searched(of)
    anew.undo()
    fast, covered = searched(of)
    assert list(map(shape, fast)) == list(map(shape, slow)) and len(fast) > 5
    assert covered.sentence() == covered_slowly.sentence() and not covered.anew


def test_every_run_is_as_where_none_is_made_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = build(EXAMPLES / "queue.c", "-DMESSAGES=1")
    of = setting(str(queue), "send", POOL, ":", str(queue), "receive", POOL)
    ahead, coming, finished = searched(of)[0], list[object](), list[BegunRun]()
    monkeypatch.setattr(EverySearch, "following", lambda _: coming.append(None))
    assert list(map(shape, ahead)) == list(map(shape, searched(of)[0])) and len(coming) == len(ahead)
    monkeypatch.undo()
    monkeypatch.setattr("faults.programs.every.ahead.finish", lambda begun: (finished.append(begun), finish(begun))[1])
    assert list(map(shape, searched(of)[0])) == list(map(shape, ahead))
    assert len(finished) == len(ahead)  # none is made in vain


def ahead(
    following: list[int | None], amiss: Sequence[int] = (), how: RunEnding = RunEnding.ENDED
) -> tuple[RunsAhead, list[int]]:
    """Runs ahead, and the numbers of those that were made; of these the ``amiss`` ones end in another way."""
    made: list[int] = []

    def make(turns: Turns) -> BegunRun:
        made.append(turns[0][0])
        ending = how if len(made) in amiss else RunEnding.ENDED
        yield
        return RunResult(RunChoice(None, 0, turns), ending)

    numbers = iter(following)
    return RunsAhead(make, lambda: ((number, 1),) if (number := next(numbers)) is not None else None), made


def test_a_run_that_was_made_ahead_is_kept_until_it_is_asked_for() -> None:
    runs, made = ahead([2, 2, None, None])
    for number in (1, 3, 4, 2):
        assert runs.run(((number, 1),)).choice.script == ((number, 1),)
    assert made == [1, 2, 3, 4]


@pytest.mark.parametrize("how", [RunEnding.DEADLINE, RunEnding.FAILED])
def test_a_run_ahead_that_ends_at_its_deadline_or_fails_is_made_again(how: RunEnding) -> None:
    runs, made = ahead([2, None], [2], how)
    assert [runs.run(((number, 1),)).ending for number in (1, 2)] == [RunEnding.ENDED] * 2 and made == [1, 2, 2]


def test_of_runs_ahead_that_nobody_asks_for_the_first_are_dropped() -> None:
    runs, made = ahead([*range(100, 101 + MADE_MOST), None, None])
    for number in range(1 + MADE_MOST):
        runs.run(((number, 1),))
    begun = len(made)
    runs.run(((101, 1),))
    assert len(made) == begun
    runs.run(((100, 1),))
    assert len(made) == begun + 1


def test_every_crash_is_as_without_a_server(anew: pytest.MonkeyPatch) -> None:
    log = build(EXAMPLES / "undo_log.c")
    of = setting(str(log), "transfer", "::", str(log), "recover", pool="/dev/shm/bank")
    slow = [shape(result) for result, _ in crash_everywhere(of, [0], 60)]
    anew.undo()
    assert [shape(result) for result, _ in crash_everywhere(of, [0], 60)] == slow and len(slow) > 5


@pytest.mark.parametrize(
    ("does", "why"),
    [("THREADS", "it has threads"), ("FILES", "it has files open"), ("POOL", "it does not reach main"), ("NONE", "")],
)
def test_a_program_that_cannot_be_forked_is_started_anew(tmp_path: Path, does: str, why: str) -> None:
    library = tmp_path / "libearly.so"
    early = HERE / "programs/early.c"
    subprocess.run(["gcc", "-shared", "-fPIC", f"-D{does}", str(early), "-o", str(library)], check=True, timeout=60)
    leaves = build("leaves.c", "-Wl,--no-as-needed", str(library))
    results, covered = searched(setting(str(leaves), "0", ":", str(leaves), "1"))
    assert covered.verdict.exit_code == 0 and len(results) == covered.runs
    assert [its.output for its in sorted(results[0].exits, key=lambda one: one.command)] == ["0\n", "1\n"]
    assert all(f"leaves is started anew in each run, which takes longer: {why}" in its for its in covered.anew)
    assert bool(covered.anew) == bool(why)


def test_what_a_program_leaves_behind_ends_with_its_run() -> None:
    leaves, name, before = build("leaves.c"), f"left-{os.getpid()}", children()
    of = setting(str(leaves), "0", name, ":", str(leaves), "1")
    executions = 0
    for _, covered in explore(of, EveryLimits()):
        executions = covered.executions
        assert not list(pids(name)) and not covered.anew
    assert executions > 0
    assert children() == before


def test_a_server_that_dies_is_done_without() -> None:
    queue = build(EXAMPLES / "queue.c", "-DMESSAGES=1")
    of = setting(str(queue), "send", POOL, ":", str(queue), "receive", POOL)
    whole, before = searched(of)[1], children()
    runs = explore(of, EveryLimits(preemptions=1))
    _, covered = next(runs)
    servers = children() - before
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    for pid in servers:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert len(list(runs)) == whole.runs - 1 and covered.sentence() == whole.sentence()
    assert list(covered.anew) == ["queue is started anew in each run, which takes longer: its fork failed"]


MAKES = """#include "pool.h"
int main(void) {
    const int file = open("/dev/shm/servers", O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, 4096)) return 1;
    volatile uint64_t *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (*at) return 2;
    *at = 1;
    publish(at, 64);
    return 0;
}"""


def test_no_run_finds_what_another_one_has_left(tmp_path: Path) -> None:
    """In one folder, a file that only its maker may make, and the bytes of a pool."""
    (source := tmp_path / "makes.c").write_text(MAKES)
    words = [str(build(source, f"-I{EXAMPLES}")), "::", str(build("litmus.c")), POOL, "l:0"]
    its = ExecSetting(parse_commands(words, 2), parse_pools([POOL]), hosts=2)
    results = [result for result, _ in crash_everywhere(its, [0], 60)]
    assert len(results) > 2 and not any(result.failed for result in results)


ENDS_FIRST = """#include "pool.h"
#include <pthread.h>
#include <sys/syscall.h>
static void *nothing(void *of) { return of; }
int main(void) {
    volatile uint64_t *at = map_pool("/dev/shm/servers", 64);
    pthread_t thread;
    *at = 1;
    publish(at, 64);
    if (pthread_create(&thread, NULL, nothing, NULL)) return 1;
    syscall(SYS_exit_group, 0); /* which takes no step, before which the thread would have to begin */
}"""
NEVER_BEGINS = "int pthread_create(unsigned long *thread, ...) { return *thread = 0, 0; }"  # behind the runtime's


def test_a_process_may_end_before_its_thread_has_begun(tmp_path: Path) -> None:
    source, late, library = tmp_path / "ends_first.c", tmp_path / "late.c", tmp_path / "liblate.so"
    source.write_text(ENDS_FIRST)
    late.write_text(NEVER_BEGINS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", str(late), "-o", str(library)], check=True, timeout=60)
    ends = str(build(source, f"-I{EXAMPLES}", "-Wl,--no-as-needed", str(library)))
    its = replace(setting(ends, "::", ends), deadline_s=20)
    result = run(its, RunChoice(None, 0, ((0, 99),)))  # the schedule goes on with its first thread
    assert result.ending is RunEnding.ENDED and [one.code for one in result.exits] == [0, 0]
    assert not any("has not opened the pool" in note for note in result.notes)


def test_a_process_is_looked_at_and_not_waited_for() -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        process = ServedProcess(1, cast(ForkServer, SimpleNamespace(socket=ours, left=False)))
        assert process.poll() is None
        its.send(struct.pack("ii", 3 << 8, 0))
        assert process.poll() == 3


def test_an_interrupted_search_leaves_no_server(tmp_path: Path) -> None:
    name = tmp_path / f"q{os.getpid()}"
    shutil.copy(build(EXAMPLES / "queue.c", "-DMESSAGES=20"), name)
    words = [sys.executable, "-m", "cxlemu", "exec", "--pool", POOL, "--every", "--", str(name), "send", POOL, ":"]
    search = subprocess.Popen([*words, str(name), "receive", POOL], stdout=subprocess.PIPE, text=True)
    ends = time.monotonic() + 60
    while not list(pids(name.name)) and time.monotonic() < ends:
        time.sleep(0.01)
    time.sleep(0.5)
    search.send_signal(signal.SIGINT)
    assert "it was interrupted" in search.communicate(timeout=60)[0]
    assert search.returncode == 130 and not list(pids(name.name))


@pytest.mark.parametrize(
    ("state", "system", "noted"), [(RUNNING, "R", 0), (ENDED, "D", 0), (OUTSIDE, "R", 1), (WAITING, "S", 1)]
)
def test_a_thread_that_waits_for_one_without_a_processor_does_not_sleep(
    monkeypatch: pytest.MonkeyPatch, state: int, system: str, noted: int
) -> None:
    """Of threads that start, one waits until another lets go of the lock of turns: long, where much else runs."""
    starts, other = PoolThread(0, STARTING, 0, 0, 1, 1), PoolThread(1, state, 0, 0, 2, 2)
    area = SimpleNamespace(
        status=lambda: SimpleNamespace(steps=5), threads=lambda: [starts, other], outside=lambda its: its is starts
    )
    for module in (doing, processes):
        monkeypatch.setattr(module, "system_state", lambda pid, _: "S" if pid == 1 else system)
    result = RunResult(RunChoice(None, 0))
    running = RunProcesses(cast(Area, area), setting("program"), result)
    for _ in range(SLEEPING_LOOKS + 1):
        running._look()
    assert len(result.notes) == noted
