"""Worlds: results in rank order, failures by their cause, and nothing left behind however a world ends."""

import contextlib
import multiprocessing
import os
import pickle
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.helpers.rank_programs as programs
from cxlemu.errors import (
    ArgumentError,
    CancelledError,
    DeadlineError,
    PeerLostError,
    RankDiedError,
    RankFailures,
    RunError,
)
from cxlemu.memory import MemorySpec
from cxlemu.memory import lock as lock_module
from cxlemu.memory.lock import LOCK_BYTES, HostLock
from cxlemu.pool import segments
from cxlemu.signals import stops_exit
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch, launch_survivors, outcome
from cxlemu.world import processes as processes_module
from cxlemu.world import threads as threads_module
from cxlemu.world.environment import find_place
from tests.helpers.rank_programs import VICTIM
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S

LAPTOP = Topology.load("laptop")
DEADLINE_S = PATIENT_S
both_ways = pytest.mark.parametrize("how", ["threads", "processes"])
threads_and_deep_processes = pytest.mark.parametrize(
    "how", ["threads", pytest.param("processes", marks=pytest.mark.deep)]
)  # processes take two seconds to start


@pytest.fixture
def pool_name() -> Iterator[str]:
    """A name for a pool that must be gone after the test, as must be all children."""
    name = f"test-{os.getpid()}-{secrets.token_hex(3)}"
    before = multiprocessing.active_children()
    yield name
    assert set(multiprocessing.active_children()) <= set(before)
    left = segments.find(name)
    for segment in left:
        segments.remove(segment)
    assert not left


@pytest.fixture
def run(pool_name: str) -> Callable[..., list[Any]]:
    def run(main: Callable[[RankContext], Any], how: str, ranks: int = 3, **options: Any) -> list[Any]:
        usual = {"topology": LAPTOP, "memory": MemorySpec(), "deadline_s": DEADLINE_S, "pool_name": pool_name}
        return launch(main, ranks=ranks, how=how, **(usual | options))  # type: ignore[arg-type]

    return run


def failures_of(run: Callable[..., list[Any]], main: Callable[[RankContext], Any], how: str, **options: Any) -> Any:
    with pytest.raises(RankFailures) as caught:
        run(main, how, **options)
    return caught.value


# -- what ranks get and give


@pytest.mark.each_value_once
@both_ways
@pytest.mark.parametrize("memory", [MemorySpec("shm"), MemorySpec(seed=1)], ids=["shm", "adversary"])
def test_results_come_in_rank_order(run: Callable[..., list[Any]], how: str, memory: MemorySpec) -> None:
    hosts = LAPTOP.place(3)
    assert run(programs.who_am_i, how, memory=memory) == [(rank, 3, hosts[rank], how) for rank in range(3)]


@threads_and_deep_processes
def test_messages_arrive_complete_and_in_order(run: Callable[..., list[Any]], how: str) -> None:
    messages: list[Any] = []
    run(programs.emit_three, how, on_message=messages.append)
    assert sorted(messages) == [(rank, number) for rank in range(3) for number in range(3)]
    assert [number for rank, number in messages if rank == 1] == [0, 1, 2]


@threads_and_deep_processes
def test_messages_without_a_listener_are_dropped(run: Callable[..., list[Any]], how: str) -> None:
    assert run(programs.emit_three, how, ranks=1) == [None]


@threads_and_deep_processes
def test_ranks_share_the_pool(run: Callable[..., list[Any]], how: str) -> None:
    assert run(programs.pass_bytes_on, how) == [64 * 42] * 3


@threads_and_deep_processes
def test_the_session_does_not_fence_what_a_program_forgot_to_fence(run: Callable[..., list[Any]], how: str) -> None:
    assert LAPTOP.place(3)[0] != LAPTOP.place(3)[2]
    assert run(programs.forget_the_fence, how) == [None, None, 0]


def test_no_adversary_draws_on_what_depends_on_time(
    run: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank has a memory of its own; one for its session, its pulse and its looks at pulses each, undisturbed."""
    opened: list[tuple[int, int | None]] = []
    original = MemorySpec.open

    def record(spec: MemorySpec, *arguments: Any, host: int, rank: int, **options: Any) -> Any:
        opened.append((rank, spec.seed))
        return original(spec, *arguments, host=host, rank=rank, **options)

    monkeypatch.setattr(MemorySpec, "open", record)
    run(programs.who_am_i, "threads", ranks=2, memory=MemorySpec(seed=1))
    assert sorted(opened, key=str) == [(0, 1), *[(0, None)] * 3, (1, 1), *[(1, None)] * 3]


def test_a_backends_name_is_a_memory() -> None:
    kinds = launch(lambda context: type(context.memory), ranks=1, topology=LAPTOP, memory="shm")
    assert kinds == launch(lambda context: type(context.memory), ranks=1, topology=LAPTOP, memory=MemorySpec("shm"))


def test_one_rank_is_a_world(run: Callable[..., list[Any]]) -> None:
    assert run(programs.who_am_i, "threads", ranks=1) == [(0, 1, 0, "threads")]


@with_rows(
    *(({"ranks": wrong}, f"ranks is a whole number from 1 on, not {wrong!r}") for wrong in (0, "2", 2.0, None)),
    *(({"heap_bytes": wrong}, f"heap_bytes is a whole number from 0 on, not {wrong!r}") for wrong in (-1, "1GiB")),
    ({"hosts": (0, "1")}, "each of hosts is a whole number from 0 on, not '1'"),
    ({"hosts": 2}, "hosts is a list of whole numbers, not 2"),
    ({"main": 3}, "main is a function that every rank runs, not 3"),
    ({"how": "fibers"}, "not as 'fibers'"),
    ({"memory": "cxl"}, "a backend is one of .*, not 'cxl'"),
    ({"memory": None}, "memory is a MemorySpec or the name of a backend, not None"),
    *(
        ({"deadline_s": wrong}, f"deadline_s is a number of seconds above 0, not {wrong!r}")
        for wrong in (0.0, -1, float("nan"), "x", None, True)
    ),
)
def test_impossible_worlds_are_refused(options: dict[str, Any], sentence: str, pool_name: str) -> None:
    usual = {"main": programs.who_am_i, "ranks": 2, "topology": LAPTOP, "memory": MemorySpec(), "pool_name": pool_name}
    for run in (launch, launch_survivors):
        if run is launch or "hosts" not in options:
            with pytest.raises(ArgumentError, match=sentence):
                run(**(usual | options))


def test_a_program_that_cannot_be_sent_is_refused(run: Callable[..., list[Any]]) -> None:
    with pytest.raises(ArgumentError, match="use a function of a module"):
        run(lambda context: None, "processes")


# -- failures


@threads_and_deep_processes
def test_the_rank_that_failed_comes_first(run: Callable[..., list[Any]], how: str) -> None:
    error = failures_of(run, programs.fail, how)
    assert next(iter(error.failures)) == VICTIM
    assert isinstance(error.failures.pop(VICTIM), ZeroDivisionError)
    assert [type(other) for other in error.failures.values()] == [PeerLostError, PeerLostError]
    assert str(error).splitlines()[0] == "rank 1 failed: ZeroDivisionError('one rank fails')"


@threads_and_deep_processes
def test_bad_input_is_reported_as_such(run: Callable[..., list[Any]], how: str) -> None:
    with pytest.raises(ArgumentError, match=r"^rank 1 was given nonsense$"):
        run(programs.misuse, how)


@threads_and_deep_processes
def test_leaving_python_is_a_failure(run: Callable[..., list[Any]], how: str) -> None:
    error = failures_of(run, programs.leave_python, how)
    assert isinstance(error.failures[VICTIM], SystemExit)


def test_a_killed_rank_is_named_and_the_others_notice(run: Callable[..., list[Any]]) -> None:
    error = failures_of(run, programs.kill_itself, "processes")
    assert str(error).splitlines()[0] == "rank 1 was killed by SIGKILL"
    assert isinstance(error.failures[0], PeerLostError)
    assert error.failures[0].ranks == (VICTIM,)
    assert isinstance(error.failures[2], PeerLostError)


@pytest.mark.deep
def test_a_rank_that_exits_without_a_word_is_named(run: Callable[..., list[Any]]) -> None:
    error = failures_of(run, programs.exit_without_a_word, "processes")
    assert str(error).splitlines()[0] == "rank 1 exited with code 3 and no result"
    assert isinstance(error.failures[VICTIM], RankDiedError)


@both_ways
def test_who_does_not_notice_a_failure_is_stopped(
    run: Callable[..., list[Any]], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "GRACE_S", 0.2 - DEADLINE_S)  # not after the usual deadline, but soon
    error = failures_of(run, programs.fail_while_others_work, how)
    assert isinstance(error.failures[VICTIM], ZeroDivisionError)
    told = {
        "threads": "stopped, because its world was stopped",
        "processes": "terminated, because it went on after another rank failed",
    }
    assert {str(error.failures[rank]) for rank in (0, 2)} == {told[how]}


def test_a_thread_that_never_checks_is_given_up(run: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "GRACE_S", 0.2 - DEADLINE_S)
    monkeypatch.setattr(threads_module, "GRACE_S", 0.1)
    release, here = threading.Event(), threading.Barrier(3)

    def deaf(context: RankContext) -> None:
        here.wait(PATIENT_S)  # who is told to stop before it begins does not begin
        if context.rank == VICTIM:
            raise ZeroDivisionError("one rank fails")
        release.wait(PATIENT_S)

    try:
        error = failures_of(run, deaf, "threads")
    finally:
        release.set()
    assert str(error.failures[0]) == "did not stop within 0.1 s"


def test_an_error_that_does_not_travel_is_retold(run: Callable[..., list[Any]]) -> None:
    error = failures_of(run, programs.raise_picky, "processes", ranks=1)
    assert isinstance(error.failures[0], RunError)
    assert "PickyError: 1 and 2" in str(error)


@with_rows(
    (programs.return_a_lock, "cannot pickle"),
    (
        programs.return_what_fails,
        "^rank 0 failed: sent an object that cannot be unpickled: ZeroDivisionError: unpickled$",
    ),
    (programs.leave_with_0, "^rank 0 exited with code 0 and no result$"),
)
def test_a_result_that_does_not_come_is_a_failure(main: Any, says: str, run: Callable[..., list[Any]]) -> None:
    assert re.search(says, str(failures_of(run, main, "processes", ranks=1)))


@threads_and_deep_processes
def test_a_listener_that_fails_ends_the_world(run: Callable[..., list[Any]], how: str) -> None:
    def refuse(message: object) -> None:
        raise KeyError(message)

    with pytest.raises(KeyError):
        run(programs.wait_for_each_other, how, on_message=refuse)


def test_failures_survive_pickling_and_tell_causes_first() -> None:
    told = RankFailures({0: DeadlineError("slow"), 3: CancelledError("stopped"), 2: RankDiedError("died")})
    assert list(told.failures) == [2, 0, 3]
    again = pickle.loads(pickle.dumps(told))
    assert str(again) == str(told) == "rank 2 died\nrank 0 failed: slow\nrank 3 stopped"


def test_memory_that_is_missing_is_a_sentence() -> None:
    with pytest.raises(MemoryError) as missing:
        np.empty(1 << 50, np.uint8)
    assert "rank 0 failed: Unable to allocate 1.00 PiB for an array" in str(RankFailures({0: missing.value}))


# -- stopped from outside


@contextlib.contextmanager
def program(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """tests/helpers/rank_programs.py in a process group of its own, which is empty afterwards."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, programs.__file__, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=clean_environment() | {"PYTHONPATH": str(root)} | environment,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def clean_environment() -> dict[str, str]:
    prefixes = ("OMPI_", "PMI", "PMIX_", "SLURM_", "TORCHELASTIC_", "MASTER_")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(prefixes) and name not in ("RANK", "WORLD_SIZE")
    }


def await_running(process: subprocess.Popen[str]) -> list[int]:
    """The pids of the ranks, once all of them run."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], PATIENT_S)[0]
    word, *pids = process.stdout.readline().split()
    assert word == "running"
    return [int(pid) for pid in pids]


def await_end_of(pids: list[int]) -> None:
    end = time.monotonic() + PATIENT_S
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < end, f"still running: {[pid for pid in pids if is_running(pid)]}"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def group_of(process: subprocess.Popen[str]) -> list[int]:
    """All processes of its group: ranks, and whatever helpers Python started."""
    members = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getpgid(int(entry.name)) == process.pid:
                members.append(int(entry.name))
    return members


@pytest.mark.deep(
    rows=lambda how, number: (how, number) not in (("processes", signal.SIGINT), ("threads", signal.SIGTERM))
)
@both_ways
@with_rows((signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, True), (signal.SIGQUIT, True))
def test_a_stopped_world_leaves_no_process_and_no_segment(
    number: signal.Signals, to_group: bool, pool_name: str, how: str
) -> None:
    with program("launch", "wait_for_each_other", how, pool_name) as process:
        await_running(process)
        members = group_of(process)
        assert segments.find(pool_name)
        (os.killpg if to_group else os.kill)(process.pid, number)
        _, errors = process.communicate(timeout=PATIENT_S)
        await_end_of(members)
    interrupted = number == signal.SIGINT
    assert process.returncode == (-number if interrupted else 128 + number)
    assert errors.count("Traceback") == (1 if interrupted else 0), errors  # ranks do not join in
    assert not segments.find(pool_name)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_stop_does_not_disturb_the_clean_up(second: signal.Signals) -> None:
    found = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest-xdist may have ignored it
    cleaned = False
    try:
        with pytest.raises((SystemExit, KeyboardInterrupt)) as caught, stops_exit():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(second)
                cleaned = True
    finally:
        signal.signal(signal.SIGINT, found)
    assert cleaned
    assert isinstance(caught.value, SystemExit)
    assert caught.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(("number", "left_by"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_stop_in_a_destructor_comes_again(number: signal.Signals, left_by: type[BaseException]) -> None:
    """Python swallows what a destructor raises: here twice in a row."""

    class Interrupted:
        def __del__(self) -> None:
            signal.raise_signal(number)

    found = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest-xdist may have ignored it
    hook = sys.unraisablehook
    try:
        with pytest.raises(left_by), stops_exit():
            for _ in range(2):
                Interrupted()
            threading.Event().wait(DEADLINE_S)
    finally:
        signal.signal(signal.SIGINT, found)
    assert sys.unraisablehook is hook


@pytest.mark.parametrize(("number", "left_by"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_stop_while_numpy_asks_an_object_comes_again(number: signal.Signals, left_by: type[BaseException]) -> None:
    """NumPy takes whatever is raised for an attribute that is not there."""

    class Asked(type):
        def __getattr__(cls, name: str) -> None:
            signal.raise_signal(number)
            raise AttributeError(name)

    found = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest-xdist may have ignored it
    try:
        with pytest.raises(left_by), stops_exit():
            np.zeros(1) == Asked("Value", (), {})()  # noqa: B015
            threading.Event().wait(60)  # sooner than a mutant is given up
    finally:
        signal.signal(signal.SIGINT, found)


def test_an_ignored_stop_stays_ignored() -> None:
    found = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stops_exit():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, found)


class HandlesItself:
    """A program whose module sets a handler of its own, which a rank imports before it is one."""

    came = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _handles, ()

    def __call__(self, context: RankContext) -> int:
        signal.raise_signal(signal.SIGINT)
        return HandlesItself.came


def _handles() -> HandlesItself:
    def count(*_: object) -> None:
        HandlesItself.came += 1

    signal.signal(signal.SIGINT, count)
    return HandlesItself()


def _starts_a_program(context: RankContext) -> bool:
    """Whether a program that a rank starts ignores what the rank does not heed, Ctrl-C."""
    signal.raise_signal(signal.SIGINT)
    status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    return bool(int(re.findall(r"SigIgn:\s+(\w+)", status)[0], 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.deep(rows=lambda expected: expected is False)
@pytest.mark.parametrize(("main", "expected"), [(HandlesItself(), 1), (_starts_a_program, False)], ids=["own", "none"])
def test_a_rank_keeps_a_handler_of_its_users_and_ignores_nothing_for_others(main: Any, expected: Any) -> None:
    """Without one a rank goes on: the launcher ends it."""
    assert launch(main, ranks=1, memory="shm", how="processes", deadline_s=DEADLINE_S) == [expected]


def test_a_stop_between_taking_a_lock_and_its_block_locks_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "DEADLINE_S", 0.2)
    word = np.zeros(LOCK_BYTES, np.uint8)
    lock, of_another_rank = HostLock(word), HostLock(word)

    def enter() -> bool:
        with of_another_rank:
            return True

    with ThreadPoolExecutor(1) as another:
        lock.__enter__()  # here the stop comes: nobody leaves what was entered
        with pytest.raises(DeadlineError):
            another.submit(enter).result()
        with lock:  # as the session does when the rank leaves
            pass
        assert another.submit(enter).result()


def test_ranks_die_with_a_killed_parent(pool_name: str) -> None:
    with program("launch", "sleep", "processes", pool_name) as process:
        await_running(process)
        members = group_of(process)
        os.kill(process.pid, signal.SIGKILL)
        await_end_of(members)
    for segment in segments.find(pool_name):  # nobody was left to remove them: `cxlemu pool clean` does
        segments.remove(segment)


def test_a_child_of_a_dead_parent_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[int] = []
    monkeypatch.setattr(processes_module.os, "_exit", exits.append)
    monkeypatch.setattr(processes_module.os, "getppid", lambda: 1)
    monkeypatch.setattr(processes_module.sys, "platform", "other")  # not to tie this process to its parent
    processes_module.die_with(parent_pid=4711)
    assert exits == [1]


# -- started by somebody else

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "17"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}
SRUN = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0"}
LAUNCHERS = {"torchrun": TORCHRUN, "Open MPI": OPEN_MPI, "MPICH": MPICH, "srun": SRUN}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_is_understood(name: str) -> None:
    place = find_place(LAUNCHERS[name])
    assert (place.launcher, place.rank, place.ranks) == (name, 1, 4)
    segments.check_pool_name(place.pool_name)


def test_an_inner_launcher_comes_before_the_allocation_around_it() -> None:
    assert find_place(SRUN | OPEN_MPI).launcher == "Open MPI"
    assert find_place(SRUN | MPICH).launcher == "MPICH"
    assert find_place(SRUN | OPEN_MPI | TORCHRUN).launcher == "torchrun"


BY_HAND = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("outer", [OPEN_MPI, MPICH, SRUN])
def test_variables_left_over_from_elsewhere_that_contradict_a_launcher_are_refused(outer: dict[str, str]) -> None:
    rank, size = list(outer)[:2]
    says = f"RANK 0 with WORLD_SIZE 1 and {rank} 1 with {size} 4 contradict each other: unset the variables of the one"
    with pytest.raises(ArgumentError, match=says):
        find_place(BY_HAND | outer)
    with pytest.raises(ArgumentError, match="contradict"):
        find_place(BY_HAND | outer, one_machine=False)
    with pytest.raises(ArgumentError, match=f"RANK 0 with WORLD_SIZE 4 and {rank} 1 with"):
        find_place(BY_HAND | outer | {"WORLD_SIZE": "4"})
    assert find_place(BY_HAND | outer | {"RANK": "1", "WORLD_SIZE": "4"}).rank == 1  # handed on
    assert find_place(BY_HAND | outer | {rank: "0", size: "1", "RANK": "2", "WORLD_SIZE": "3"}).rank == 2


def test_of_launchers_that_contradict_each_other_those_pass_that_nest() -> None:
    several = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}  # of a batch script
    for inner in (TORCHRUN, OPEN_MPI, MPICH):
        assert find_place(SRUN | several | inner).ranks == 4
    with pytest.raises(ArgumentError, match="RANK 0 with WORLD_SIZE 4 and OMPI_COMM_WORLD_RANK 1 with"):
        find_place(OPEN_MPI | TORCHRUN | {"RANK": "0"})
    assert find_place(OPEN_MPI | TORCHRUN | {"RANK": "0"}, one_machine=False).rank == 0  # one torchrun a machine


@with_rows(
    (TORCHRUN, "TORCHELASTIC_RUN_ID", "y"),
    (OPEN_MPI, "PMIX_NAMESPACE", "18"),
    (MPICH, "PMI_JOBID", "5.1"),
    (SRUN, "SLURM_STEP_ID", "1"),
)
def test_another_job_has_another_pool(environment: dict[str, str], variable: str, value: str) -> None:
    assert find_place(environment).pool_name != find_place(environment | {variable: value}).pool_name


def test_rank_and_size_set_by_hand_are_not_called_torchrun() -> None:
    assert find_place(BY_HAND).launcher == "the environment"
    assert find_place(BY_HAND | {"TORCHELASTIC_RESTART_COUNT": "0"}).launcher == "torchrun"


def test_torchrun_without_a_run_id_goes_by_its_master() -> None:
    assert find_place(BY_HAND).pool_name != find_place(BY_HAND | {"MASTER_PORT": "29501"}).pool_name


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("value", ["", "x", "-1", "1.0", " 1", "٣", "9" * 30])
def test_a_malformed_number_is_refused_by_its_name(name: str, value: str) -> None:
    for variable in list(LAUNCHERS[name])[:2]:
        with pytest.raises(ArgumentError, match=variable):
            find_place(LAUNCHERS[name] | {variable: value})


@with_rows(
    (TORCHRUN | {"RANK": "4"}, "RANK is 4, which must be less than WORLD_SIZE, 4"),
    (TORCHRUN | {"WORLD_SIZE": "999999999"}, "WORLD_SIZE is 999999999, but a pool holds at most 65536 ranks"),
    (TORCHRUN | {"LOCAL_WORLD_SIZE": "2"}, "LOCAL_WORLD_SIZE is 2 with WORLD_SIZE 4, expected 4"),
    (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "all ranks must run there"),
    (SRUN | {"SLURM_STEP_NUM_NODES": "2"}, "SLURM_STEP_NUM_NODES is 2"),
    ({"RANK": "0"}, "WORLD_SIZE is not set, but it goes with RANK"),
    ({"RANK": "0", "WORLD_SIZE": "x"}, "WORLD_SIZE is 'x', expected a whole number from 0 to 999999999$"),
    ({"RANK": "0", "WORLD_SIZE": "1"}, "RANK is set, but not MASTER_ADDR and MASTER_PORT: set both, to the same words"),
    ({"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0"}, "by which torchrun names its runs"),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "9"}, "SLURM_JOB_ID and SLURM_STEP_ID"),
    ({}, "mpirun -np 4"),
)
def test_an_inconsistent_environment_is_refused(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        find_place(environment)


def start_ranks(
    stack: contextlib.ExitStack, *arguments: str, ranks: int = 3, namespace: str = ""
) -> list[subprocess.Popen[str]]:
    """As Open MPI would start them."""
    job = {"OMPI_COMM_WORLD_SIZE": str(ranks), "PMIX_NAMESPACE": namespace or secrets.token_hex(8)}
    return [
        stack.enter_context(program("environment", *arguments, **job, OMPI_COMM_WORLD_RANK=str(rank)))
        for rank in range(ranks)
    ]


def test_ranks_from_the_environment_meet_in_one_world_after_another() -> None:
    with contextlib.ExitStack() as stack:
        started = start_ranks(stack, "2")
        outputs = [process.communicate(timeout=PATIENT_S) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], outputs
    lines = [output.splitlines() for output, _ in outputs]
    assert lines[0][0] == "heard from rank 0"
    assert [len(own) for own in lines] == [4, 2, 2]  # only rank 0's messages arrive
    names = [line.split()[-1] for line in lines[0] if line.startswith("world")]
    assert lines[2] == [f"world {world} rank 2 of 3 pool {name}" for world, name in enumerate(names)]
    assert len({name.rpartition("-")[0] for name in names}) == 1 and len(set(names)) == 2
    assert not any(segments.find(name) for name in names)


@pytest.mark.deep
def test_a_failing_rank_from_the_environment_fails_them_all_and_the_pool_goes() -> None:
    namespace = secrets.token_hex(8)
    with contextlib.ExitStack() as stack:
        started = start_ranks(stack, "1", "failing", namespace=namespace)
        outputs = [process.communicate(timeout=PATIENT_S) for process in started]
    assert [process.returncode for process in started] == [1, 1, 1], outputs
    assert "ZeroDivisionError" in outputs[VICTIM][1]
    assert re.search(r"rank 1 gone before barrier \d", outputs[0][1])
    job = {"OMPI_COMM_WORLD_SIZE": "3", "PMIX_NAMESPACE": namespace, "OMPI_COMM_WORLD_RANK": "0"}
    assert not [name for name in segments.pool_names() if name.startswith(str(find_place(job).pool_name))]


@pytest.mark.deep  # the fast tier has tests/machine/test_launchers.py
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_real_mpirun() -> None:
    done = subprocess.run(
        [
            *("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3"),
            *(sys.executable, programs.__file__, "environment", "2"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
        env=clean_environment() | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("world"))
    assert [line.split(" pool ")[0] for line in lines] == [f"world {w} rank {r} of 3" for w in (0, 1) for r in range(3)]
    assert not segments.find(lines[0].split()[-1])
