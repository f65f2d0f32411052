"""``cxlemu exec --every``: equal verdicts with and without the reduction, whole programs."""

import contextlib
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from datetime import date
from itertools import count, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cxlemu.cli import main
from faults.programs.area import RawFinding
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.every import record
from faults.programs.every.ahead import RunsAhead
from faults.programs.every.entries import ENTRY, LOAD, Entry
from faults.programs.every.events import RunEvent, Trace, copied
from faults.programs.every.explore import EveryCoverage, EveryLimits, _judge, explore
from faults.programs.every.record import RecordReader
from faults.programs.every.saved import RUNS_OWN, restored, saved
from faults.programs.every.search import Branch, EverySearch, TriedPlace, Turns
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult
from faults.programs.run import run
from faults.programs.servers import ForkServers
from faults.verdict import Verdict
from tests.helpers.every_programs import POOL, compared, seen, setting, verdicts
from tests.helpers.pool_programs import build, on_x86

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples/programs"
WHOLE = EveryLimits()
pytestmark = on_x86


def outcomes(litmus: Path, words: str, *, evictions: int, coherent: bool = False) -> set[str]:
    found, _ = verdicts(setting(litmus, words, coherent=coherent), evictions=evictions)
    return {saw for saw, ending, *_ in found if ending is RunEnding.ENDED}


def test_where_caches_are_coherent_only_interleavings_differ(litmus: Path) -> None:
    words = "s:0:1 l:64 : s:64:1 l:0"
    assert outcomes(litmus, words, evictions=0, coherent=True) == {"01", "10", "11"}
    assert outcomes(litmus, words, evictions=0) == {"00"}  # nobody flushes
    assert outcomes(litmus, words, evictions=1) == {"00", "01", "10"}
    again = "s:0:1 f:0 s:0:2 s:0:3 f:0 x : l:0"  # the 2 leaves once the 1 has arrived
    assert outcomes(litmus, again, evictions=1) == {"0", "1", "2", "3"}


def test_a_host_that_sleeps_between_looks_wakes(litmus: Path) -> None:
    found, _ = verdicts(setting(litmus, "s:0:1 f:0 x v:64:1 : v:0:1 s:64:1 f:64 x l:64"), evictions=0)
    assert {(saw, ending) for saw, ending, *_ in found} == {("1", RunEnding.ENDED)}


def test_lines_that_one_fence_lands_arrive_each_by_itself(litmus: Path) -> None:
    assert outcomes(litmus, "s:0:1 s:64:1 f:0 f:64 x : i:64 l:64", evictions=0) == {"0", "1"}


def test_a_line_that_was_flushed_leaves_before_the_next_look_or_behind_it(litmus: Path) -> None:
    """As no mfence has come in between, which would be no chance either: it takes none of the evictions."""
    assert outcomes(litmus, "s:0:1 f:0 x : l:0 I:0 l:0", evictions=0) == {"00", "01", "11"}
    assert outcomes(litmus, "s:0:1 f:0 x : s:8:1 I:0 s:16:1 l:0", evictions=0) == {"0", "1"}
    assert outcomes(litmus, "s:0:1 : s:0:4 I:0 l:0", evictions=1) == {"1", "4"}
    assert outcomes(litmus, "s:0:1 f:0 x : l:0 k:0 l:0", evictions=0) == {"00", "11"}  # which keeps it


def test_a_line_that_leaves_before_an_mfence_takes_no_execution(litmus: Path) -> None:
    words = "s:0:1 f:0 x i:64 l:64 : i:0 l:0 s:64:1 f:64 x i:0 l:0"
    assert verdicts(setting(litmus, words))[1] == 5


def test_what_is_dirty_where_a_store_past_the_cache_comes_arrives_before_it(litmus: Path) -> None:
    assert outcomes(litmus, "s:0:1 n:0:3 x : l:0", evictions=0) == {"0", "1", "3"}


def test_words_of_a_torn_copy_are_seen_behind_later_steps_on_other_lines(litmus: Path) -> None:
    words = "o:0:1 g:64:1 f:0 x : i:64 l:64 i:0 l:0 l:8"
    assert outcomes(litmus, words, evictions=1) == {f"{k:03b}" for k in range(8)}


def test_what_leaves_by_chance_is_seen_by_either_of_two_hosts_alone(litmus: Path) -> None:
    assert outcomes(litmus, "s:0:1 : l:0 : l:0", evictions=1) == {"00", "01", "10", "11"}


def test_what_is_stored_past_the_cache_arrives_line_by_line_at_any_time_before_its_fence(litmus: Path) -> None:
    words = "n:0:1 n:64:1 x : i:64 l:64 i:0 l:0"
    assert outcomes(litmus, words, evictions=0) == {"00", "01", "10", "11"}
    assert outcomes(litmus, "n:0:1 s:0:2 f:0 x : l:0 i:0 l:0", evictions=0) == {"00", "01", "02", "11", "12", "22"}
    answered = "n:0:1 l:64 n:0:2 x : i:0 l:0 g:64:1"  # between two of them, by a host that has seen the first one
    assert outcomes(litmus, answered, evictions=0) == {"00", "01", "02", "10", "11"}


@pytest.mark.parametrize("count", [1024, 1025])
def test_more_of_them_at_once_than_are_followed_leave_a_search_undecided(litmus: Path, count: int) -> None:
    result = run(setting(litmus, "n:0:1 " * count + ": l:0"), RunChoice(None, 0, ()))
    assert result.ending is RunEnding.ENDED and len(result.exits) == 2
    assert sum("past the caches" in why for why in result.undecided) == count - 1024


@pytest.mark.deep
def test_those_of_two_threads_arrive_in_either_order(litmus: Path) -> None:
    assert outcomes(litmus, "n:0:1 / n:8:2 : i:0 l:0 l:8", evictions=0) == {"00", "02", "10", "12"}


@pytest.mark.deep
def test_it_arrives_at_some_time_though_nobody_fences(litmus: Path) -> None:
    found, _ = verdicts(setting(litmus, "n:0:1 w:64:1 : w:0:1 g:64:1"))
    assert {ending for _, ending, _ in found} == {RunEnding.ENDED}


PAST = """#include <fcntl.h>
#include <immintrin.h>
#include <sys/mman.h>

int main(int count, char **given) {
    long long *pool = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, open(given[1], O_CREAT | O_RDWR, 0600), 0);
    if (count > 2) {
        _mm_stream_si64(pool, 1), _mm_stream_si64(pool + 8, 1);
        _mm_sfence();
        return 0;
    }
    const int flag = *(volatile long long *)(pool + 8) == 1;
    _mm_clflush(pool), _mm_mfence();
    return flag && *(volatile long long *)pool == 0;
}
"""


def test_a_store_past_the_cache_that_arrives_late_is_repeated_by_its_token(tmp_path: Path) -> None:
    (tmp_path / "past.c").write_text(PAST)
    program = build(tmp_path / "past.c")
    words = ["--no-check", "--", *f"{program} /dev/shm/past stores : {program} /dev/shm/past".split()]
    flags = ["exec", "--pool", "/dev/shm/past=2M", "--json", "-"]
    found = CliRunner().invoke(main, [*flags, "--every", *words])
    assert found.exit_code == 1, found.output
    assert (1, 1) in {(its["command"], its["code"]) for its in json.loads(found.stdout)["runs"][-1]["exits"]}
    again = CliRunner().invoke(main, [*flags, "--replay", json.loads(found.stdout)["token"], *words])
    assert again.exit_code == 1 and "another trace" not in again.output, again.output


# --- the reduction ---------------------------------------------------------------------------------------------------


def agree(litmus: Path, seeds: Iterable[int]) -> int:
    """Search whole and reduced; return how many programs took fewer executions."""
    return sum(reduced < whole for _, reduced, whole, _ in (compared(litmus, seed) for seed in seeds))


def test_the_reduction_leaves_no_verdict_out(litmus: Path) -> None:
    assert agree(litmus, range(3)) > 0


def test_a_run_that_another_one_repeats_has_not_gone_astray_where_it_ends_before_the_step_that_it_was_to_make(
    litmus: Path,
) -> None:
    assert compared(litmus, 67)[0] == 3


@pytest.mark.deep
def test_nor_does_it_in_others(litmus: Path) -> None:
    """Others every day, for a minute. All 300: ``python -m tests.helpers.every_programs --workers 2``."""
    ends, first = time.monotonic() + 60, 30 * (date.today().toordinal() % 10)
    assert agree(litmus, takewhile(lambda seed: seed < first + 5 or time.monotonic() < ends, count(first))) > 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.deep(rows=lambda seed: seed > 0)
def test_nor_does_it_where_lines_that_were_flushed_linger(litmus: Path, seed: int) -> None:
    compared(litmus, 2000 + seed, operations="sssllIIfx")


def test_a_line_that_was_fetched_before_its_flush_may_still_be_old_behind_it(litmus: Path) -> None:
    assert outcomes(litmus, "f:0 l:0 l:0 x : g:0:1", evictions=0) == {"00", "01", "11"}
    assert outcomes(litmus, "f:0 x l:0 l:0 : g:0:1", evictions=0) == {"00", "11"}
    assert outcomes(litmus, "I:0 l:0 l:0 x : g:0:1", evictions=0) == {"00", "01", "11"}


def test_so_it_may_where_its_host_has_waited_before(litmus: Path) -> None:
    words = "v:128:1 g:0:1 g:64:1 : g:128:1 v:0:1 I:64 l:64 l:64 x"
    assert outcomes(litmus, words, evictions=0) == {"00", "01", "11"}


def test_a_line_that_only_a_round_left_out_has_fetched_does_not_leave(litmus: Path) -> None:
    """An eviction without its fetch would lead the next run astray."""
    assert agree(litmus, [245]) == 1


def test_a_look_at_what_keeps_a_host_waiting_may_have_come_earlier(
    litmus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On some machines a cycle is seen a round later: then the looks before it are events, which race as well."""
    let_come_first, rounds = EverySearch._let_come_first, 0

    def counted(self: EverySearch[Any], trace: Trace, offset: int, event: RunEvent) -> None:
        nonlocal rounds
        rounds += all(event is not one for one in trace.events)
        let_come_first(self, trace, offset, event)

    monkeypatch.setattr(EverySearch, "_let_come_first", counted)
    found, executions = verdicts(setting(litmus, "s:64:2 i:64 : z:64"))
    assert {ending for _, ending, _ in found} == {RunEnding.ENDED, RunEnding.NO_PROGRESS} and executions == 5
    assert rounds == 3


LOOKS = [("z:0 : g:0:1 g:0:0", 35, 42), ("y:0:1 : g:64:2 g:0:2", 6, 7), ("G:128:1 g:0:2 : v:128:1 w:0:1", 26, 34)]


@pytest.mark.parametrize(("words", "executions", "runs"), LOOKS)
def test_a_look_in_vain_is_tried_once(litmus: Path, words: str, executions: int, runs: int) -> None:
    assert verdicts(setting(litmus, words))[1] == executions
    assert verdicts(setting(litmus, words), most=10**6)[1] == runs


def test_a_line_that_leaves_where_all_wait_stands_for_no_store_before_it(litmus: Path) -> None:
    found, _ = verdicts(setting(litmus, "G:128:1 g:0:1 g:0:0 : w:128:1 v:0:1"))
    assert RunEnding.ENDED in {ending for _, ending, _ in found}


def test_a_run_that_another_one_repeats_ends_before_the_step_at_which_that_is_seen(litmus: Path) -> None:
    its, early = setting(litmus, "y:0:1 : g:64:2 g:0:2"), 0

    def once(turns: tuple[tuple[int, int], ...], sure: int) -> tuple[RunResult, Trace]:
        nonlocal early
        result = run(its, RunChoice(None, 0, turns), servers)
        trace = record.read(result.record, result.turns, sure)
        if result.ending is RunEnding.REPEATS:
            early += 1
            assert trace.repeats and max(event.number for event in trace.events) < result.steps
        return result, trace

    with ForkServers() as servers:
        for _ in EverySearch(once).all():
            pass
    assert early


# A filter of the system's calls: ioctl with this request fails with ENOTTY, as before Linux 6.11.
OLD_SYSTEM = """
import ctypes, os, struct, sys
def op(code, yes, no, k): return struct.pack("HBBI", code, yes, no, k)
rules = [op(0x20, 0, 0, 0), op(0x15, 0, 3, 16), op(0x20, 0, 0, 24), op(0x15, 0, 1, 0xC0686611), op(6, 0, 0, 0x50019)]
rules = ctypes.create_string_buffer(b"".join([*rules, op(6, 0, 0, 0x7FFF0000)]))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 6, ctypes.addressof(rules)))
prctl = ctypes.CDLL(None).prctl
assert prctl(38, 1, 0, 0, 0) == 0 == prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "cxlemu", *sys.argv[1:]])
"""


def test_a_look_in_vain_is_tried_once_where_the_system_does_not_answer_for_one_mapping(litmus: Path) -> None:
    words = f"{litmus} {POOL} y:0:1 : {litmus} {POOL} g:64:2 g:0:2".split()
    given = ["exec", "--every", "--no-check", "--pool", f"{POOL}=2M", "--budget", "20s", "--json", "-"]
    result = subprocess.run(
        [sys.executable, "-c", OLD_SYSTEM, *given, "--", *words], capture_output=True, text=True, timeout=60
    )
    assert json.loads(result.stdout)["every"]["executions"] == 6, result.stderr


GIVES_BACK = """
#include "words.h"
int main(int count, char **words) {
    word *w = map_pool("/dev/shm/given", 2 * sizeof *w);
    char *most = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int k = 0; count < 2 && k < 2; k++) set(&w[k], 1);
    for (int k = 0; count > 1 && k < 2; k++) {
        while (!get(&w[k])) {}
        munmap(most, 1 << 20);
    }
    return 0;
}
"""


def test_a_program_that_has_given_memory_back_waits_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "given.c").write_text(GIVES_BACK)
    program = build(tmp_path / "given.c", "-I", str(EXAMPLES))
    result = invoke("--pool", "/dev/shm/given", "--", str(program), ":", str(program), "waits")
    assert result.exit_code == 0 and "ok: every interleaving" in result.output, result.output


HANDSHAKES = """#include "pool.h"
#include <pthread.h>
static volatile int asked, told;
static void *other(void *none) {
    while (!asked) {}
    told = 1;
    while (asked != 2) {}
    told = 2;
    return none;
}
int main(int count, char **words) {
    volatile uint64_t *it = map_pool("/dev/shm/handshakes", 4096);
    pthread_t thread;
    if (count == 1) {
        while (!*it) refresh(it, 8);
        return 0;
    }
    pthread_create(&thread, 0, other, 0);
    asked = 1;
    while (told != 1) {}
    asked = atoi(words[1]);
    while (told != 2) {}
    pthread_join(thread, 0);
    *it = 1, publish(it, 8);
    return 0;
}
"""


@pytest.mark.deep(rows=lambda code: code == 0)
@pytest.mark.parametrize(("second", "code", "says"), [(2, 0, "ok: every interleaving"), (3, 1, "the programs hang")])
def test_a_thread_leaves_its_cycle_when_another_one_of_its_host_stores_outside_the_pool(
    tmp_path: Path, second: int, code: int, says: str
) -> None:
    """All that other hosts see is the same meanwhile; the answer to its second question may never come, though."""
    (tmp_path / "handshakes.c").write_text(HANDSHAKES)
    program = build(tmp_path / "handshakes.c", "-I", str(EXAMPLES), "-pthread")
    given = ("--no-shrink", "--", str(program), str(second), ":", str(program))
    result = invoke("--pool", "/dev/shm/handshakes", *given)
    assert result.exit_code == code and says in result.output, result.output


ANSWERS = """#include "pool.h"
#include <pthread.h>
#include <sched.h>
static volatile int asked, done;
static void *other(void *none) {
    while (!asked) {}
    asked = 0;
    for (int k = 0; k < 9; k++) sched_yield();
    done = 1;
    return none;
}
int main(int count, char **words) {
    volatile uint64_t *it = map_pool("/dev/shm/answers", 4096);
    pthread_t thread;
    if (count == 1) {
        while (!*it) refresh(it, 8);
        return 0;
    }
    pthread_create(&thread, 0, other, 0);
    for (int k = 0; k < 9; k++) sched_yield();
    asked = 1;
    while (asked) {}
    while (!done) {}
    pthread_join(thread, 0);
    *it = 1, publish(it, 8);
    return 0;
}
"""


COUNTS = """#include "pool.h"
#include <pthread.h>
static volatile int shown, done;
static void *other(void *none) {
    for (int left = 3; left; left--) {
        while (!shown) {}
#ifdef ANSWERS
        shown = 0;
#else
        while (shown) {}
#endif
    }
    done = 1;
    return none;
}
int main(int count, char **words) {
    volatile uint64_t *it = map_pool("/dev/shm/answers", 4096);
    pthread_t thread;
    if (count == 1) {
        while (!*it) refresh(it, 8);
        return 0;
    }
    pthread_create(&thread, 0, other, 0);
    while (!done) {
        shown = 1;
        (void)it[8];
#ifdef ANSWERS
        while (shown) {}
#else
        shown = 0;
        (void)it[8];
#endif
    }
    pthread_join(thread, 0);
    *it = 1, publish(it, 8);
    return 0;
}
"""
PRIVATE = {
    "one restores the memory in which it waited, at another place of the program": (ANSWERS, "-O1"),
    "one counts in its own stack what the other one asks": (COUNTS, "-DANSWERS"),
    "one sees the other's memory only amid its rounds": (COUNTS, "-DSHOWS"),
}


@pytest.mark.parametrize("what", PRIVATE)
def test_threads_that_share_private_memory_are_not_called_hung_while_they_may_go_on(tmp_path: Path, what: str) -> None:
    """The search is not over within its budget."""
    source, flag = PRIVATE[what]
    (tmp_path / "answers.c").write_text(source)
    program = build(tmp_path / "answers.c", flag, "-I", str(EXAMPLES), "-pthread")
    given = ("--budget", "1s", "--", str(program), "asks", ":", str(program))
    result = invoke("--pool", "/dev/shm/answers", *given)
    assert result.exit_code in (0, 3) and "the programs hang" not in result.output, result.output


ENDS = """#include "words.h"
#include <pthread.h>
#include <pty.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <threads.h>
static word *w;
static void *stores(void *at) {
    set(at, 1);
    return at;
}
static int stores11(void *at) { return stores(at) == 0; }
static void *spins(void *none) {
    while (!get(&w[2])) {}
    return none;
}
int main(int count, char **words) {
    w = map_pool(words[1], 4 * sizeof *w);
    const char how = *words[2];
    void *(*const its)(void *) = how == 'h' || how == 'H' ? spins : stores;
    pthread_t thread;
    thrd_t other;
    int terminal;
    if (how == 'l') {
        const int first = (int)get(&w[0]), second = (int)get(&w[1]);
        printf("r=%d%d\\n", first, second);
        return 0;
    }
    if (how == 'p' || how == 'h') {
        pthread_create(&thread, 0, its, &w[0]);
        pthread_join(thread, 0);
    } else if (how == 't') {
        thrd_create(&other, stores11, &w[0]);
        thrd_join(other, 0);
    } else {
        const pid_t child = how == 's' ? (pid_t)syscall(SYS_fork) : how == 'y' ? forkpty(&terminal, 0, 0, 0) : fork();
        if (!child) its(&w[0]), _exit(0);
        how == 'w' ? wait(0) : waitpid(child, 0, 0);
    }
    set(&w[1], 1);
    return 0;
}
"""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("ends") / "ends.c"
    source.write_text(ENDS)
    return build(source, "-I", str(EXAMPLES), "-pthread", "-lutil")


@pytest.mark.parametrize("how", ["fork", "wait", "syscall", "y: forkpty", "pthread_join", "thrd_join"])
@pytest.mark.deep(rows=lambda how: how not in ("fork", "pthread_join"))
def test_who_waits_for_an_end_takes_no_step_before(ends: Path, how: str) -> None:
    """Of two stores, one behind the other's end, and two loads: what the loads see, and no execution more."""
    for words in (f"{how[0]} : l", f"l : {how[0]}"):
        found, executions = verdicts(setting(ends, words))
        assert found == {(saw, RunEnding.ENDED, False) for saw in ("00", "01", "10", "11")} and executions == 4


def test_a_turn_that_ends_as_its_thread_waits_for_an_end_is_no_preemption(ends: Path) -> None:
    assert verdicts(setting(ends, "f : l"), preemptions=0, most=1000)[1] == 26


@pytest.mark.deep
@pytest.mark.parametrize("how", ["h: pthread_join", "H: waitpid"])
def test_who_waits_for_an_end_that_never_comes_hangs_at_its_line(ends: Path, how: str) -> None:
    words = ["--pool", POOL, "--", *f"{ends} {POOL} {how[0]} : {ends} {POOL} l".split()]
    result = invoke("--no-shrink", *words)
    line = 1 + ENDS[: ENDS.index(f"{how[3:]}(")].count("\n")
    told = " ".join(result.output.split())
    assert result.exit_code == 1 and "the programs hang" in told, result.output
    assert re.search(rf"thread 0\) its last step: gives its turn away at \S*ends.c:{line} in main", told), told
    (again,) = re.findall("--replay (cxl1\\S+)", result.output)
    made = CliRunner().invoke(main, ["exec", "--replay", again, *words])
    assert made.exit_code == 1 and "another trace" not in made.output, made.output


# Where looks are counted, all of them are tried.
WAITS = [
    "g:0:0 i:0 l:0 : s:0:1 G:0:1 : y:0:1",
    "i:0 l:0 w:64:1 : g:0:0 g:0:0 z:64",
    "y:0:1 : g:0:0 i:64 l:64",
    "g:64:2 w:64:1 : l:64 i:64 l:64 : g:0:2",
    "y:0:1 l:64 : g:64:1 g:0:1",
    "z:0 i:64 l:64 : g:64:1 g:0:1 g:0:0",
    "y:0:1 g:0:2 : g:0:2 g:64:2 : g:64:2",
]


@pytest.mark.parametrize("words", WAITS)
@pytest.mark.deep(rows=lambda words: words not in WAITS[1:3])
def test_looks_that_are_not_tried_would_show_nothing_new(litmus: Path, tmp_path: Path, words: str) -> None:
    counting = build("litmus.c", "-DLOOKS=4")
    folded, _ = verdicts(setting(litmus, words))
    counted, _ = verdicts(setting(counting, words))
    ended = [{saw for saw, ending, _ in its if ending is RunEnding.ENDED} for its in (folded, counted)]
    assert ended[0] == {saw for saw in ended[1] if "vain" not in saw}


def test_what_a_process_stores_past_the_cache_at_last_arrives_when_it_ends(litmus: Path) -> None:
    assert outcomes(litmus, "l:0 : n:0:1", evictions=0) == {"0", "1"}


@pytest.mark.parametrize("preemptions", [0, 1])
@pytest.mark.parametrize("seed", range(1000, 1006))
@pytest.mark.deep(rows=lambda seed: seed not in (1001, 1004, 1005))
def test_nor_does_it_where_preemptions_are_bounded(litmus: Path, seed: int, preemptions: int) -> None:
    compared(litmus, seed, preemptions)


def test_a_line_that_leaves_where_all_threads_wait_may_not_be_there_in_another_order(litmus: Path) -> None:
    """Then its eviction cannot come, which is no program that depends on more."""
    found, _ = verdicts(setting(litmus, "w:64:1 : w:64:2 : l:0"), evictions=1)
    assert {ending for _, ending, _ in found} == {RunEnding.NO_PROGRESS}


def test_a_line_that_leaves_behind_a_store_of_the_same_bytes_is_no_reason_to_go_astray(litmus: Path) -> None:
    """Whether that store has happened is not known before its thread's next step, which brings the line back."""
    found, _ = verdicts(setting(litmus, "s:8:2 g:64:1 g:64:2 : x s:64:1 l:0"), evictions=1)
    assert {its[0] for its in found} == {"0"}


@pytest.mark.parametrize(("words", "code"), [("n:0:1 l:8 x", 3), ("n:0:1 s:8:1 f:0 x", 0), ("n:0:1 x l:8", 0)])
def test_a_load_that_awaits_a_store_past_the_cache_is_not_judged(litmus: Path, words: str, code: int) -> None:
    """In the memory model, that store arrives at its fence: another host may see the line before it."""
    given = f"{litmus} {POOL} {words} : {litmus} {POOL} n:8:4 x l:0".split()
    result = invoke("--no-check", "--pool", f"{POOL}=2M", "--", *given)
    assert result.exit_code == code and ("non-temporal stores there" in result.output) == (code == 3), result.output


def test_a_line_that_is_fetched_behind_a_store_past_the_cache_is_no_move_of_its_own(litmus: Path) -> None:
    found, _ = verdicts(setting(litmus, "n:64:2 l:64 : g:64:1"))  # which would go astray where it is
    assert {its[0] for its in found} == {"2"}


def test_a_bound_on_preemptions_leaves_out_what_takes_more(litmus: Path) -> None:
    words = "g:0:1 g:0:2 : i:0 l:0 i:0 l:0"
    seen = [{its[0] for its in verdicts(setting(litmus, words), preemptions=bound)[0]} for bound in (0, 1, None)]
    assert seen[0] < seen[1] <= seen[2]
    assert seen[2] == {f"{a}{b}" for a in range(3) for b in range(a, 3)}


READ = [
    (WAITS[0], WHOLE),
    ("s:0:1 s:64:1 f:0 f:64 x : i:64 l:64 : g:64:2", EveryLimits(evictions=1)),
    ("g:64:2 s:0:2 n:128:1 f:0 x : g:256:1 i:64 l:64 : s:192:1 :: l:64 l:0 l:128", EveryLimits(crashes=(0,))),
    ("s:0:1 f:0 x g:64:2 : i:0 l:0 i:64 l:64 :: l:128", EveryLimits(damage="poison")),
]


def settings_of(litmus: Path, words: str) -> ExecSetting:
    given, hosts = re.sub(r"(^|::? )", rf"\1{litmus} {POOL} ", words).split(), len(re.findall(" :(?!:)", words)) + 1
    return ExecSetting(parse_commands(given, hosts), parse_pools([f"{POOL}=2M"]), hosts=hosts, check=False)


@pytest.mark.parametrize(("words", "limits"), [*READ, ("y:0:1 : g:64:2 g:0:2", WHOLE)])
def test_all_that_a_reader_learns_on_its_way_is_kept_for_the_next_run(
    litmus: Path, monkeypatch: pytest.MonkeyPatch, words: str, limits: EveryLimits
) -> None:
    takes, changed = record._Reader._take, set[str]()

    def watched(self: record._Reader, number: int) -> None:
        before = {name: copied(value) for name, value in vars(self).items() if name not in ("_order", "_marks")}
        takes(self, number)
        changed.update(name for name, value in before.items() if vars(self)[name] != value)

    monkeypatch.setattr(record._Reader, "_take", watched)
    assert [covered.undecided for _, covered in explore(settings_of(litmus, words), limits)][-1] == {}
    assert changed and changed <= set(record._STATE)


@pytest.mark.parametrize(("words", "limits"), READ)
@pytest.mark.deep(rows=lambda words, limits: limits is not WHOLE)
def test_a_run_is_read_behind_the_begin_of_another_as_it_is_read_alone(
    litmus: Path, monkeypatch: pytest.MonkeyPatch, words: str, limits: EveryLimits
) -> None:
    """Else races would be lost, or found that are none."""
    reads, names = RecordReader.read, [field.name for field in fields(RunEvent)]
    begun: list[bool] = []

    def plain(event: RunEvent) -> list[object]:
        return [getattr(event, name) for name in names]

    def both(self: RecordReader, *its: Any) -> Trace:
        last = self._last
        trace, alone = reads(self, *its), reads(RecordReader(self._coherent), *its)
        assert self._last
        assert [*map(plain, trace.events)] == [*map(plain, alone.events)]
        assert (trace.enabled, trace.complete) == (alone.enabled, alone.complete)
        assert [(k, plain(its)) for k, its in trace.rounds] == [(k, plain(its)) for k, its in alone.rounds]
        begun.append(last is not None and len(last._marks) > 1 and last._marks[1] in self._last._marks[1:2])
        return trace

    monkeypatch.setattr(RecordReader, "read", both)
    monkeypatch.setattr(record, "_APART_LEAST", 2)
    assert [covered.undecided for _, covered in explore(settings_of(litmus, words), limits)][-1] == {}
    assert sum(begun) > 3


# --- programs --------------------------------------------------------------------------------------------------------


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, ["exec", "--every", *words])


def test_a_hang_names_its_mistake_and_is_made_again_by_its_token(litmus: Path) -> None:
    words = ("--pool", POOL, "--", str(litmus), POOL, "s:0:1", ":", str(litmus), POOL, "w:0:1")
    found = invoke(*words)
    assert found.exit_code == 1 and "not-flushed" in found.output and "differently" not in found.output
    (again,) = re.findall("--replay (cxl1\\S+)", found.output)
    made = CliRunner().invoke(main, ["exec", "--replay", again, *words])
    assert made.exit_code == 1 and "not-flushed" in made.output and "another trace" not in made.output


def test_a_run_that_another_one_repeats_shows_no_mistake_that_its_rest_would_excuse(tmp_path: Path) -> None:
    """The bakery's numbers are only looked at, as is seen where a host learns by one: not before the run is ended."""
    right, number = (EXAMPLES / "locks.h").read_text(), "set(&b->number[me], mine);"
    assert number in right
    late = right.replace(number, "b->number[me].it = mine, cxl_flush(&b->number[me], CXL_LINE);")
    (tmp_path / "locks.h").write_text(late)
    program = build(shutil.copy(EXAMPLES / "locks.c", tmp_path), "-I", str(EXAMPLES))
    given = (f"{program} bakery {host} 3" for host in range(3))
    words = ["--pool", "/dev/shm/locks", "--", *" : ".join(given).split()]
    found = invoke(*words)
    assert found.exit_code == 1 and "not-fenced" in found.output and "differently" not in found.output
    (again,) = re.findall("--replay (cxl1\\S+)", found.output)
    made = CliRunner().invoke(main, ["exec", "--replay", again, *words])
    assert made.exit_code == 1 and "not-fenced" in made.output and "another trace" not in made.output


PROGRAMS = {
    "queue": (EXAMPLES / "queue.c", ("-DMESSAGES=2",), "/dev/shm/queue", "send", "receive"),
    "hash_table": (EXAMPLES / "hash_table.c", ("-DKEYS=1",), "/dev/shm/table", "0", "1"),
    "kv_index": (EXAMPLES / "kv_index.c", ("-DVERSIONS=2", "-DBLOCKS=1"), "/dev/shm/kv", "publish", "read"),
    "peterson": (EXAMPLES / "locks.c", (), "/dev/shm/locks", "peterson 0 2", "peterson 1 2"),
    "bakery": (EXAMPLES / "locks.c", (), "/dev/shm/locks", "bakery 0 2", "bakery 1 2"),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.deep(rows=lambda name: name != "hash_table")
def test_a_right_program_is_ok_in_every_interleaving(name: str) -> None:
    source, flags, pool, *hosts = PROGRAMS[name]
    program = build(source, *flags)
    words = " : ".join(f"{program} {host}" for host in hosts).split()
    result = invoke("--pool", f"{pool}=2M", "--budget", "10m", "--json", "-", "--", *words)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["verdict"] == "ok" and told["every"]["undecided"] == []
    assert told["every"]["executions"] > 1  # its hosts take turns: kv_index has two


# The orders of the reads and writes of a lock, without looks in vain: counted beside, state by state.
@pytest.mark.parametrize(("lock", "executions"), [("peterson", 5), ("bakery", 9)])
def test_a_lock_takes_no_execution_for_a_look_in_vain(lock: str, executions: int) -> None:
    program = build(EXAMPLES / "locks.c")
    words = f"{program} {lock} 0 2 : {program} {lock} 1 2".split()
    result = invoke("--pool", "/dev/shm/locks=2M", "--json", "-", "--", *words)
    assert json.loads(result.stdout)["every"]["executions"] == executions


def test_a_line_leaves_by_chance_only_where_another_host_could_notice() -> None:
    program = build(EXAMPLES / "queue.c", "-DMESSAGES=1")
    words = f"{program} send : {program} receive".split()
    result = invoke("--pool", "/dev/shm/queue=2M", "--evictions", "1", "--json", "-", "--", *words)
    told = json.loads(result.stdout)["every"]
    assert (told["executions"], told["runs"]) == (8, 8)


@pytest.mark.deep
def test_a_look_that_is_not_tried_again_hides_nothing_that_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word of the bakery is 0 before it is 1: where the look at 1 is left out, the one at 0 is tried still."""
    program = build(EXAMPLES / "locks.c")
    words = " : ".join(f"{program} bakery {host} 3" for host in range(3)).split()
    its = ExecSetting(parse_commands(words, 3), parse_pools(["/dev/shm/locks=2M"]), hosts=3, every=True)

    def all_looks() -> tuple[set[Any], int]:
        found, runs = set[Any](), 0
        for result, covered in explore(its, EveryLimits(budget_s=600)):
            runs = covered.runs
            if result.ending is not RunEnding.REPEATS:
                found.add(looks.pop())
        assert covered.verdict is Verdict.OK
        return found, runs

    looks: list[frozenset[Any]] = []
    read_record = RecordReader.read

    def noted(self: RecordReader, recorded: tuple[int, bytes], *more: Any) -> Trace:
        entries = map(Entry._make, ENTRY.iter_unpack(recorded[1]))
        looks[:] = [frozenset((e.thread, e.line, e.bytes) for e in entries if e.kind == LOAD)]
        return read_record(self, recorded, *more)

    monkeypatch.setattr(RecordReader, "read", noted)
    some, fewer = all_looks()
    monkeypatch.setattr(EverySearch, "_is_vain", lambda *_: False)
    whole, runs = all_looks()
    assert whole <= some and 2 * fewer < runs


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_planted_mistake_is_found_and_repeats(name: str) -> None:
    source, flags, pool, *hosts = PROGRAMS[name]
    program = build(source, *flags, "-DBUG")
    words = " : ".join(f"{program} {host}" for host in hosts).split()
    result = invoke("--pool", f"{pool}=2M", "--budget", "10m", "--json", "-", "--", *words)
    assert result.exit_code == 1, result.output
    token = json.loads(result.stdout)["token"]
    again = CliRunner().invoke(main, ["exec", "--pool", f"{pool}=2M", "--replay", token, "--", *words])
    assert again.exit_code == 1, again.output
    assert "another trace" not in again.output


def test_a_suppression_that_matches_in_any_interleaving_is_used(litmus: Path, tmp_path: Path) -> None:
    """What the second host reads is not flushed yet, or has been: so in the first run, that a report shows anyway."""
    (known := tmp_path / "known").write_text("not-flushed *  # at times\nmsync *  # none here\n")
    words = f"{litmus} {POOL} s:0:1 g:64:1 f:0 x g:64:2 : {litmus} {POOL} w:64:1 i:0 l:0".split()
    result = invoke("--pool", f"{POOL}=2M", "--suppressions", str(known), "--", *words)
    assert result.exit_code == 0 and "suppressed: not-flushed at " in result.output, result.output
    assert result.stderr == "note: 1 suppression matched nothing: line 2 (msync *)\n"


def test_a_hang_of_one_interleaving_is_found_and_repeats(litmus: Path) -> None:
    """The second host clears the flag: before the first one has seen it, or after."""
    words = f"{litmus} {POOL} w:0:1 : {litmus} {POOL} g:0:1 g:0:0".split()
    result = invoke("--pool", f"{POOL}=2M", "--no-check", "--json", "-", "--", *words)
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    assert told["runs"][-1]["ending"] == "no progress"
    again = ["exec", "--no-check", "--pool", f"{POOL}=2M", "--replay", told["token"], "--", *words]
    assert "another trace" not in (said := CliRunner().invoke(main, again)).output and said.exit_code == 1


def test_a_spent_budget_is_unknown(litmus: Path) -> None:
    many = " ".join(f"i:0 l:0 g:64:{k}" for k in range(1, 9)), " ".join(f"i:64 l:64 g:0:{k}" for k in range(1, 9))
    words = " : ".join(f"{litmus} {POOL} {steps}" for steps in many).split()
    result = invoke("--pool", f"{POOL}=2M", "--budget", "0.3s", "--no-check", "--", *words)
    assert result.exit_code == 3, result.output
    assert "the budget of 0.3 s is spent" in result.output


@pytest.mark.parametrize("late", ["run", "read"])
def test_a_run_is_given_up_where_it_takes_too_long_to_examine(
    litmus: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """The budget ends before it is read, or before its races are searched for; it is no execution of this search."""
    now, done = [0.0], list[str]()

    def until_late(what: str, does: Callable[..., Any]) -> Callable[..., Any]:
        def its(*given: Any) -> Any:
            result = does(*given)
            now[0] += 100.0 * (what == late)
            done.append(what)
            return result

        return its

    monkeypatch.setattr("faults.programs.every.explore.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(RunsAhead, "run", until_late("run", RunsAhead.run))
    monkeypatch.setattr(RecordReader, "read", until_late("read", RecordReader.read))
    ((_, covered),) = explore(setting(litmus, "s:0:1 f:0 x : i:0 l:0"), EveryLimits(budget_s=60.0))
    assert done == ["run", "read"][: 1 + (late == "read")] and (covered.executions, covered.runs) == (0, 1)
    assert list(covered.undecided) == ["the budget of 60 s is spent (--budget)"]


def test_a_run_is_read_up_to_as_many_events_as_there_is_memory_for(
    litmus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "EVENTS_MOST", 4)
    *_, (_, covered) = explore(setting(litmus, "s:0:1 f:0 x : i:0 l:0"), WHOLE)
    assert list(covered.undecided) == ["an execution had more steps than can be recorded"]


# --- a search in several calls ----------------------------------------------------------------------------------------


@pytest.mark.deep(rows=lambda seed: seed > 0)
@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_was_given_up_is_made_again(litmus: Path, seed: int) -> None:
    """Also by another call, which has the places that were saved."""

    class GivenUp(Exception):
        pass

    def in_time() -> None:
        if draw.random() < 1 / 40:
            raise GivenUp

    def once(turns: Turns, sure: int) -> tuple[RunResult, Trace]:
        result = run(its, RunChoice(None, 0, turns), servers)
        return result, record.read(result.record, result.turns, sure)

    its, draw, times = setting(litmus, "s:0:1 f:0 x i:64 l:64 : s:64:1 f:64 x i:0 l:0 : z:0"), random.Random(seed), 0
    with ForkServers() as servers:
        whole = EverySearch(once, evictions=1)
        expected = {(seen(result), result.ending) for result in whole.all()}
        search, found = EverySearch(once, evictions=1, in_time=in_time), set[tuple[str, RunEnding]]()
        while True:
            try:
                for result in search.all():
                    found.add((seen(result), result.ending))
                break
            except GivenUp:
                places, executions, times = saved(search.places), search.executions, times + 1
                search = EverySearch(once, evictions=1, in_time=in_time)
                search.places, search.executions = restored(json.loads(json.dumps(places))), executions
    assert times > 2 and found == expected and search.executions >= whole.executions


def test_a_search_that_is_resumed_comes_to_what_one_call_comes_to(litmus: Path, tmp_path: Path) -> None:
    """Each call is stopped in a run, at whose place the next one goes on; the last one finds nothing left."""
    words = "y:0:1 i:0 l:0 : g:64:2 g:0:2"
    its, journal = replace(setting(litmus, words), deadline_s=60), tmp_path / "journal"
    whole = {seen(result) for result, _ in explore(its, EveryLimits())}
    found: set[str] = set()
    for resumed in (0, 3, 6):
        *runs, (_, covered) = explore_until(its, journal, resumed + 3)
        found |= {seen(result) for result, _ in runs}
        assert covered.resumed == resumed
    assert found == whole and covered.executions == 8 and covered.verdict is Verdict.OK
    (_, covered), *more = explore(its, EveryLimits(), resume=journal)
    assert not more and covered.executions == covered.resumed == 8
    assert "ok: every interleaving, 8 executions (8 of them in earlier calls)" in covered.sentence()
    assert "(1,312 of them in" in replace(covered, resumed=1312).sentence()


def test_every_field_of_an_event_is_saved_but_those_of_its_run() -> None:
    """Also a field that is new: a search that goes on without one would count or compare otherwise."""
    line, more = (
        frozenset({(0, 5)}),
        {"waits_for": (1, 2), "stage": 3, "steps": 4, "number": 5, "before": 6, "races": [7]}
        | {"look": (1, 8, (0, 5)), "replaced": frozenset({((0, 5), 9)}), "apart": 10},
    )
    touched = ("fetched", "arrived", "cached", "posted", "stored", "torn", "flushed", "dropped", "linger", "old")
    lines = dict.fromkeys(touched, line)
    flags = dict.fromkeys(("stores", "leaves", "ends", "owed"), True)
    event = RunEvent((1, 2, 0, 5), 2, **lines, **flags, **more)  # type: ignore[arg-type]
    names = [field.name for field in fields(RunEvent)]
    assert set(names) == {"actor", "host", *lines, *flags, *more}
    place = TriedPlace(event, frozenset({0}), {}, 1, True, 2, 1, {0: event}, [Branch(1, event, [Branch(2)])], [3])
    (again,) = restored(json.loads(json.dumps(saved([place]))))
    same = [name for name in names if name not in RUNS_OWN]
    for copy in (again.event, again.done[0], again.todo[0].event):
        assert copy and [getattr(copy, name) for name in same] == [getattr(event, name) for name in same]
    assert again.todo[0].behind[0].actor == 2 and (again.evictions, again.spare) == (1, [3])


def explore_until(
    its: ExecSetting, journal: Path, executions: int, limits: EveryLimits = WHOLE
) -> list[tuple[RunResult, EveryCoverage]]:
    """Make runs; behind this many executions comes Ctrl-C, which waits for the next run."""
    runs: list[tuple[RunResult, EveryCoverage]] = []
    with contextlib.suppress(KeyboardInterrupt):
        for result, covered in explore(its, limits, resume=journal):
            runs.append((result, covered))
            if covered.executions == executions:
                signal.raise_signal(signal.SIGINT)
    return [*runs, runs[-1]]


def test_the_journal_of_another_search_is_refused(litmus: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    program = shutil.copy(litmus, tmp_path)
    for words, code, changed, says in (
        ("s:0:1 f:0 x", 0, b"", "ok: every interleaving"),
        ("s:0:2 f:0 x", 2, b"", "is of another search: give the same flags as then, or another file"),
        ("s:0:1 f:0 x", 0, b"", "ok: every interleaving"),  # its bytes are the same
        ("s:0:1 f:0 x", 2, b"built anew", "is of another search: give the same programs as then, or another file"),
    ):
        with Path(program).open("ab") as file:
            file.write(changed)
        Path(program).touch()
        given = f"{program} {POOL} {words} : {litmus} {POOL} l:0".split()
        result = invoke("--pool", f"{POOL}=2M", "--no-check", "--resume", str(journal), "--", *given)
        assert result.exit_code == code and says in " ".join(result.output.split()), result.output


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--every", "--free"], "--every makes its own runs"),
        (["--every", "--seeds", "10"], "--every makes its own runs"),
        (["--every", "--crash", "0@5"], "--every injects no faults but --crash every"),
        (["--preemptions", "2"], "--preemptions is for a search: add --every"),
        (["--budget", "2s"], "--budget is for a search: add --every"),
        (["--resume", "j"], "--resume is for a search: add --every"),
    ],
)
def test_what_does_not_go_together_is_bad_input(flags: list[str], says: str) -> None:
    result = CliRunner().invoke(main, ["exec", "--pool", f"{POOL}=2M", *flags, "--", "true"])
    assert result.exit_code == 2 and says in result.output


@pytest.mark.parametrize(
    ("disturbed", "later", "depends"),
    [
        ({"ending": RunEnding.DEADLINE}, True, False),
        ({"ending": RunEnding.DEADLINE, "findings": [RawFinding()]}, False, False),
        ({"notes": ["a computes"]}, True, False),
        ({}, True, True),
    ],
)
def test_a_run_that_was_disturbed_is_not_said_to_depend_on_a_clock(
    disturbed: dict[str, Any], later: bool, depends: bool
) -> None:
    """Nor is a later one: the search has taken up what the disturbed one did."""
    search = EverySearch[RunResult](lambda turns, sure: pytest.fail("no run"))
    search.strayed = 1
    covered = EveryCoverage(EveryLimits(), seconds=100.0)
    for its in (disturbed, {})[: 1 + later]:
        result = RunResult(RunChoice(None, 0), touched=True, watched_lines=1, **its)
        _judge(covered, ExecSetting((), ()), result, search)
        assert any("depends on what the search does not see" in why for why in covered.undecided) == depends
