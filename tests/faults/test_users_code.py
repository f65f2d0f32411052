"""What code of a user's does to leave a command is an exception like any other, and what a builder refused stands."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import faults
from cxlemu import userfile
from cxlemu.budget import BudgetSpentError, within
from cxlemu.signals import stops_exit
from faults.explore import unyielded
from tests.helpers.commands import cxlemu, python
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S

LEAVES = {
    "raise SystemExit(0)": "SystemExit: 0",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise BaseException('mine')": "BaseException: mine",
    "raise MemoryError": "MemoryError",
    "raise type('Mute', (Exception,), {'__str__': lambda self: exit(0)})": "Mute: its text fails",
}
ALGORITHM = """from collectives import Builder, algorithm

@algorithm("all_reduce")
def mine(b: Builder) -> None:
    {}
    for chunks in b.rounds(b.nbytes, blocks=2, spread="cards"):
        for chunk in chunks:
            mine, result = b.input(chunk.offset), b.output(chunk.offset)
            if b.rank == 0:
                b.fold(result, chunk, mine, block=0, republish=1)
            else:
                b.publish(chunk, mine, block=0)
                b.retrieve(result, chunk, 0, block=1)
"""
PROTOCOL = """from faults import Store, protocol

def final(memory, results):
    {final}

@protocol("word", final=final)
def mine(rank, ranks):
    {first}
    yield Store("word", 1)
    {second}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("leave", LEAVES)
@with_rows("prove -n 2 -b 64 -d f32 -o sum", "plan show", "simulate -b 4K", "explore", "mutate")
def test_an_algorithm_does_not_end_the_command(command: str, leave: str, folder: Path) -> None:
    (folder / "user.py").write_text(ALGORITHM.format(leave))
    spec = (f"{folder}/user.py:mine",) if command == "explore" else ("--algorithm", f"{folder}/user.py:mine")
    done = cxlemu(*command.split(), *spec, code=1)
    assert "user.py:5: fails for rank 0 of all_reduce mine" in done.output
    assert f"with {LEAVES[leave]}" in done.output


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("where", ["first", "second", "final"])
def test_a_protocol_does_not_end_the_search(where: str, leave: str, folder: Path) -> None:
    lines = dict.fromkeys(("first", "second", "final"), "pass")
    (folder / "user.py").write_text(PROTOCOL.format(**lines | {where: leave}))
    assert LEAVES[leave] in cxlemu("explore", f"{folder}/user.py:mine", code=1).output


@pytest.mark.deep(rows=lambda leave: "Keyboard" in leave)
@pytest.mark.parametrize("leave", ["raise SystemExit(0)", "raise KeyboardInterrupt"])
def test_a_function_without_yield_does_not_end_the_search_or_the_run(leave: str, folder: Path) -> None:
    (folder / "user.py").write_text(
        f"from faults import protocol\n@protocol('word')\ndef mine(rank, ranks):\n    {leave}\n"
    )
    said = LEAVES[leave]
    assert said in cxlemu("explore", f"{folder}/user.py:mine", code=1).output
    assert (
        f"rank 1 failed: {said}"
        in cxlemu("run", "--protocol", f"{folder}/user.py:mine", "-n", 2, "--repeat", 1, code=1).output
    )


HEAD = """
from faults import protocol, Load, Store
import user_checks


def helper(value):
    assert value < 9


class Checks:
    def of(self, value):
        helper(value)


@protocol("word")
def mine(rank, ranks):
    yield Store("word", rank)
    value = yield Load("word")
    """
CHECKS = "def bound(value):\n    if value > 9: raise ValueError(value)\ndef free(value): pass\n"
ASSERTING = [
    "assert value < 9",
    "assert (\n        value\n        < 9\n    ), (\n        'large')",
    "if value > 9:\n        raise ValueError",
    "helper(value)",
    "Checks().of(value)",
    "user_checks.bound(value)",
    "[helper(v) for v in (1,)]",
]


@pytest.mark.parametrize("line", ["pass", "print(value)", "user_checks.free(value)"])
def test_a_protocol_that_asserts_nothing_is_not_ok(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "user_checks.py").write_text(CHECKS)
    monkeypatch.syspath_prepend(folder)
    (folder / "user.py").write_text(HEAD + line)
    for command in ("explore", "run --seeds 1 --launch threads --protocol"):
        done = cxlemu(*command.split(), f"{folder}/user.py:mine", code=3)
        assert "nothing was judged but that all ranks end" in " ".join(done.output.split())


@pytest.mark.parametrize("line", ASSERTING)
def test_what_asserts_is_found_wherever_it_is(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "user_checks.py").write_text(CHECKS)
    monkeypatch.syspath_prepend(folder)
    (folder / "user.py").write_text(HEAD + line)
    cxlemu("explore", f"{folder}/user.py:mine", code=0)


DEAD = [
    "if rank == 7:\n        assert value",
    "if rank == 7:\n        helper(value)",
    "assert value if rank == 7 else 1",
]


@pytest.mark.skipif(sys.gettrace() is not None, reason="whoever traces the tests has taken the leash's place")
@with_rows(*((line, 0 if line.startswith("assert") else 3) for line in DEAD))
def test_an_assert_to_which_no_execution_comes_decides_nothing(
    line: str, code: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "user_checks.py").write_text(CHECKS)
    monkeypatch.syspath_prepend(folder)
    (folder / "user.py").write_text(HEAD + line)
    cxlemu("explore", f"{folder}/user.py:mine", code=code)
    cxlemu("explore", f"{folder}/user.py:mine", "--replay", "s0s0s1s1", code=0)


@with_rows(("None", 3), ("check(m)", 0))
def test_a_final_that_asserts_nothing_decides_nothing(final: str, code: int, folder: Path) -> None:
    checks = "def check(memory):\n    assert memory['word'] < 2\n"
    (folder / "user.py").write_text(
        f"from faults import Store, protocol\n{checks}@protocol('word', final=lambda m, r: {final})\n"
        "def mine(rank, ranks):\n    yield Store('word', rank)\n"
    )
    for command in ("explore", "run --seeds 1 --launch threads --protocol"):
        cxlemu(*command.split(), f"{folder}/user.py:mine", code=code)


@pytest.mark.parametrize("leave", LEAVES)
def test_a_file_does_not_end_the_command(leave: str, folder: Path) -> None:
    (folder / "user.py").write_text(f"\n{leave}\n")
    for command in ("prove --algorithm", "explore", "run --protocol"):
        done = cxlemu(*command.split(), f"{folder}/user.py:mine", code=2)
        assert f"user.py:2 fails with {LEAVES[leave]}" in done.output


@pytest.mark.deep(rows=lambda command: not command.startswith("prove"))
@pytest.mark.parametrize("command", ["prove -n 2 -b 64 -j 2 --algorithm", "plan show --algorithm", "explore"])
def test_os_exit_does_not_end_the_command(command: str, folder: Path) -> None:
    """In a process of its own, which it would end."""
    (folder / "user.py").write_text(ALGORITHM.format("import os; os._exit(0)"))
    words = [sys.executable, "-m", "cxlemu", *command.split(), "user.py:mine"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "user.py:5: fails for rank 0" in done.stdout + done.stderr
    assert "with os._exit(0)" in done.stdout + done.stderr


def test_a_child_that_the_file_forks_ends_as_it_likes(folder: Path) -> None:
    (folder / "user.py").write_text(
        "import os\nif not (child := os.fork()): os._exit(7)\nstatus = os.waitpid(child, 0)[1]\n"
    )
    assert userfile.load("user.py:status", "x")[0] == 7 << 8
    left = subprocess.run(
        [sys.executable, "-c", "import os, cxlemu.userfile as u\nwith u.foreign(): pass\nos._exit(5)"]
    )
    assert left.returncode == 5


def test_ctrl_c_stops_code_of_a_users() -> None:
    """Where Python's own handler is in place, nothing tells who raised a KeyboardInterrupt."""
    with pytest.raises(KeyboardInterrupt), userfile.foreign():
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), stops_exit({signal.SIGINT}), userfile.foreign():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    with pytest.raises(userfile.LeftError), stops_exit({signal.SIGINT}), userfile.foreign():
        raise KeyboardInterrupt


@pytest.mark.parametrize("caught", ["Exception", "BaseException"])
def test_what_is_declined_stays_so(caught: str, folder: Path) -> None:
    (folder / "user.py").write_text(ALGORITHM.format(f"try: b.decline('never')\n    except {caught}: pass"))
    done = cxlemu("prove", "--algorithm", f"{folder}/user.py:mine", "-n", 2, "-b", 64, code=3)
    assert "0 ok, 0 violation, 0 unknown, 16 declined" in done.output and ": never" in done.output


@pytest.mark.parametrize("more", ["pass", "b.decline('then')", "raise ValueError"])
def test_a_mistake_stays_one(more: str, folder: Path) -> None:
    (folder / "user.py").write_text(ALGORITHM.format(f"try: b.scratch(-1)\n    except Exception: {more}"))
    done = cxlemu("prove", "--algorithm", f"{folder}/user.py:mine", "-n", 2, "-b", 64, code=1)
    assert "user.py:5: all_reduce mine" in done.output and "scratch takes a number of bytes, not -1" in done.output


def test_declining_without_a_reason_says_so(folder: Path) -> None:
    (folder / "user.py").write_text(ALGORITHM.format("b.decline('')"))
    done = cxlemu("plan", "show", "--algorithm", f"{folder}/user.py:mine", code=2)
    assert "the algorithm declines it, and gives no reason" in done.output


@pytest.mark.parametrize(("before", "line"), [("", "yield"), ("async ", "pass")])
def test_a_generator_is_no_algorithm(before: str, line: str, folder: Path) -> None:
    (folder / "user.py").write_text(ALGORITHM.format(line).replace("def mine", f"{before}def mine"))
    done = cxlemu("prove", "--algorithm", f"{folder}/user.py:mine", "-n", 2, "-b", 64, code=1)
    assert "mine is a generator or async, so nothing of it ran: leave out yield" in done.output


IN_A_THREAD = "import os, threading; t = threading.Thread(target=os._exit, args=(0,)); t.start(); t.join()"
IN_A_WORKER = f"import multiprocessing; multiprocessing.parent_process() and exec({IN_A_THREAD!r})"


@pytest.mark.deep(rows=lambda command: command.startswith("prove"))
@pytest.mark.parametrize("command", ["prove -n 2 -b 64 -j 1 --algorithm", "explore"])
def test_os_exit_in_a_thread_ends_the_command_with_a_sentence(command: str, folder: Path) -> None:
    (folder / "user.py").write_text(ALGORITHM.format(IN_A_THREAD))
    done = subprocess.run([sys.executable, "-m", "cxlemu", *command.split(), "user.py:mine"], capture_output=True)
    assert done.returncode == 1 and b"a thread of your code ended the process with os._exit(0)" in done.stderr


@pytest.mark.deep(rows=lambda command: not command.startswith("prove"))
@with_rows("prove -n 2 -b 64 -d f32 -o sum -j 2", "mutate -j 2", "faults sweep -n 2 --sample 4 -j 2")
def test_nothing_is_known_of_the_work_of_a_worker_that_is_gone(command: str, folder: Path) -> None:
    (folder / "user.py").write_text(ALGORITHM.format(IN_A_WORKER))
    words = [sys.executable, "-m", "cxlemu", *command.split(), "--algorithm", "user.py:mine"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "a worker was killed" in done.stderr and "Traceback" not in done.stderr


def test_what_a_file_leaves_for_the_end_does_not_change_the_exit_code(folder: Path) -> None:
    text = ALGORITHM.format("return").replace("\n\n", "\nimport atexit, os\natexit.register(os._exit, 0)\n\n", 1)
    (folder / "user.py").write_text(text)
    done = python("-m", "cxlemu", "explore", "user.py:mine", code=1)
    assert "are never written" in done.stdout


@pytest.mark.parametrize("said", ["exit(0)", "3", "(0,)", "None"])
def test_what_is_published_is_asked_as_the_rest(said: str, folder: Path) -> None:
    text = ALGORITHM.format("pass").replace('"all_reduce"', f'"all_reduce", publishes=lambda ranks: {said}')
    (folder / "user.py").write_text(text)
    done = cxlemu("simulate", "-n", 2, "-b", "4K", "--algorithm", f"{folder}/user.py:mine", code=1)
    assert "user.py:mine: publishes(2) " in done.output


@pytest.mark.parametrize("command", ["prove -n 2 -b 64 -d f32 -o sum -j 1", "simulate -n 2 -b 4K", "mutate"])
def test_an_algorithm_without_end_is_stopped(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectives.algorithms.catalog.BUILD_S", 0.2)
    (folder / "user.py").write_text(ALGORITHM.format("while True: pass"))
    done = cxlemu(*command.split(), "--algorithm", f"{folder}/user.py:mine", code=1)
    assert "user.py:5: fails for rank 0 of all_reduce mine" in done.output
    assert "with no end after 0.2 s" in done.output


@pytest.mark.parametrize("command", ["prove", "prove -n 2-4 -b 64 -j 1"])
def test_an_algorithm_without_end_is_not_asked_again(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectives.algorithms.catalog.BUILD_S", 0.2)
    asked = "print('asked', flush=True)\n    while True: pass"
    (folder / "user.py").write_text(ALGORITHM.format(asked))
    done = cxlemu(*command.split(), "--algorithm", f"{folder}/user.py:mine", code=1)
    assert done.output.count("asked\n") == 1 and "with no end after 0.2 s" in done.output
    assert ("1 violation, 47 unknown" in done.output) == (command != "prove")


def test_a_thread_is_stopped_as_the_main_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectives.algorithms.catalog.BUILD_S", 0.2)
    (folder / "user.py").write_text(ALGORITHM.format("while True: pass"))
    words = ["run", "-n", "2", "-e", "64", "--launch", "threads", "--algorithm", f"{folder}/user.py:mine"]
    assert "with no end after 0.2 s" in cxlemu(*words, code=1).output


def test_what_a_thread_is_spared_does_not_come_later() -> None:
    """The alarm rings while the budget's end waits for it: it is taken back."""
    late: list[BaseException] = []

    def live() -> None:
        try:
            for _ in range(50):
                with suppress(BudgetSpentError), within(0.0):
                    pass
                for _ in range(1000):
                    pass
        except BudgetSpentError as error:
            late.append(error)

    thread = threading.Thread(target=live)
    thread.start()
    thread.join()
    assert not late


@pytest.mark.parametrize("command", ["prove --algorithm", "explore", "run --protocol"])
def test_a_file_without_end_is_stopped(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(userfile, "LOAD_S", 0.2)
    minute = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass\n"
    (folder / "user.py").write_text(minute)  # which is no end, but for the guard's mutant
    assert "user.py:3 fails with no end after 0.2 s" in cxlemu(*command.split(), "user.py:mine", code=2).output


def test_what_is_published_has_an_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectives.builder.recipes.LOAD_S", 0.2)
    published = '"all_reduce", publishes=lambda ranks: [0 for _ in iter(int, 1)]'
    text = ALGORITHM.format("pass").replace('"all_reduce"', published)
    (folder / "user.py").write_text(text)
    done = cxlemu("simulate", "-n", 2, "-b", "4K", "--algorithm", f"{folder}/user.py:mine", code=1)
    assert "publishes(2) fails with no end after 0.2 s" in done.output


def test_a_protocol_that_waits_for_ever_spends_the_budget(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.cli.explore_run.OWN_CODE_S", 0.0)
    second = "if (yield Load('word')): time.sleep(5)"
    text = PROTOCOL.format(first="import time; from faults import Load", second=second, final="pass")
    (folder / "user.py").write_text(text)
    done = cxlemu("explore", f"{folder}/user.py:mine", "--budget", "0.3s", code=3)
    assert "unknown: the budget of 0.3 s was spent in" in done.output and "user.py:10, which does not" in done.output


@pytest.mark.parametrize(("kind", "make"), [("a FIFO", os.mkfifo), ("a directory", os.mkdir)])
@pytest.mark.parametrize("command", ["prove --algorithm", "explore", "run --protocol"])
def test_what_is_no_file_is_named(command: str, kind: str, make: Callable[[str], None], folder: Path) -> None:
    make("user.py")
    done = cxlemu(*command.split(), "user.py:mine", code=2)
    assert f"the file cannot be read: {kind}, not a regular file" in done.output


def test_a_budget_that_ends_first_is_the_commands(folder: Path) -> None:
    with pytest.raises(BudgetSpentError), within(0.2), userfile.limited(PATIENT_S):
        while True:
            pass
    (folder / "user.py").write_text(ALGORITHM.format("while True: pass"))
    done = cxlemu("explore", f"{folder}/user.py:mine", "--budget", "0.2s", code=3)
    assert "was spent before the program was built" in done.output


def test_a_final_without_end_is_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.explore.programs.FINAL_S", 0.2)
    (folder / "user.py").write_text(PROTOCOL.format(first="pass", second="pass", final="while True: pass"))
    assert "no end after 0.2 s" in cxlemu("explore", f"{folder}/user.py:mine", code=1).output


@pytest.mark.deep(rows=lambda command: command.startswith("run"))
@pytest.mark.parametrize("command", ["explore", "run --repeat 1 --protocol"])
def test_what_a_final_returns_is_no_verdict(command: str, folder: Path) -> None:
    (folder / "user.py").write_text(PROTOCOL.format(first="pass", second="pass", final="return memory['word'] == 7"))
    assert (
        "final returns False, which decides nothing"
        in cxlemu(*command.split(), f"{folder}/user.py:mine", code=2).output
    )


@pytest.mark.deep(rows=lambda command: command.startswith("run"))
@pytest.mark.parametrize("command", ["explore", "run --repeat 1 --protocol"])
def test_ranks_that_do_nothing_are_not_judged(command: str, folder: Path) -> None:
    (folder / "user.py").write_text(PROTOCOL.format(first="return", second="pass", final="pass"))
    assert "nothing was judged: no rank yield" in cxlemu(*command.split(), f"{folder}/user.py:mine", code=3).output


@with_rows(
    ('Store("word", 2)', "write yield Store('word', 2)"),
    ("faults.Fence()", "write yield faults.Fence()"),
    ("helper()", "write yield from helper()"),
    ("inner()", "write yield from inner()"),
)
def test_an_operation_without_yield_is_refused(line: str, right: str, folder: Path) -> None:
    helper = "def helper():\n    yield faults.Fence()\n"
    inner = "def inner():\n        yield Store('word', 2)\n    {}"
    steps = inner.format(line), "yield from helper()\n    assert True"
    text = "import faults\n" + helper + PROTOCOL.format(first=steps[0], second=steps[1], final="pass")
    (folder / "user.py").write_text(text)
    for command in ("explore", "run --repeat 1 --protocol"):
        assert right in cxlemu(*command.split(), f"{folder}/user.py:mine", code=2).output
    (folder / "user.py").write_text(text.replace(f"    {line}\n", "    print()\n"))
    cxlemu("explore", f"{folder}/user.py:mine")


def test_threads_look_for_what_is_not_yielded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 raises a SystemError where two threads parse."""
    both, met = threading.Barrier(2), []

    def meet(function: object, name: str) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
            met.append(name)

    monkeypatch.setattr(unyielded, "_check", meet)
    threads = [threading.Thread(target=unyielded.check_yielded, args=[lambda: None, "mine"]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENT_S)
    assert met == [] and not any(thread.is_alive() for thread in threads)


def test_the_operations_of_the_page_come_from_faults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocols.md").read_text()
    names = set(re.findall(r"^\| `(?:value = yield )?([A-Z]\w+)\(", page, re.MULTILINE))
    assert len(names) == 9 and names <= set(faults.__all__)


@pytest.mark.deep
def test_a_rank_that_never_comes_back_is_stuck(folder: Path) -> None:
    (folder / "user.py").write_text(PROTOCOL.format(first="import time; time.sleep(1000)", second="pass", final="pass"))
    done = cxlemu("run", "--repeat", 1, "--deadline-s", 8, "--protocol", f"{folder}/user.py:mine", code=1)
    assert "stuck at" in done.output and "after 8 s it runs code of its own, after operation 0" in done.output


@pytest.mark.deep(rows=lambda command: command.startswith("faults"))
@pytest.mark.parametrize("command", ["faults sweep -n 2 --sample 4 -j 2 --algorithm", "run -n 2 -e 64 --algorithm"])
def test_what_code_of_a_users_prints_is_not_in_the_json(command: str, folder: Path) -> None:
    (folder / "user.py").write_text(
        ALGORITHM.format("import os; print('printed', flush=True); os.system('echo echoed')")
    )
    words = [sys.executable, "-m", "cxlemu", *command.split(), "user.py:mine", "--json", "-"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) and "printed" in done.stderr and "echoed" in done.stderr
