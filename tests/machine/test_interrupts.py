"""Ctrl-C while a command begins, works or ends: a sentence and exit code 130, never a traceback."""

import os
import re
import signal
import subprocess
import sys
from functools import cache

import pytest

from cxlemu.signals import StopsWait
from tests.helpers.tiers import PATIENT_S

COMMANDS = {
    "topology": ("topology", "list"),
    "threads": ("run", "all_reduce", "-n", "2", "-b", "1K", "-e", "1K", "-c", "laptop", "--launch", "threads"),
    "processes": ("run", "all_reduce", "-n", "2", "-b", "1K", "-e", "1K", "-c", "laptop", "--launch", "processes"),
    "explore": ("explore", "all_reduce"),
}
PARTS = 12  # of a command's imports

# The n-th import of the main thread sends SIGINT; without n, they are counted.
PROGRAM = """
import signal, sys, threading
import cxlemu.__main__
at, imports = int(sys.argv.pop(1)), 0
def look(event, arguments):
    global imports
    if event == "import" and threading.current_thread() is threading.main_thread():
        imports += 1
        if imports == at:
            signal.raise_signal(signal.SIGINT)
sys.addaudithook(look)
try:
    cxlemu.__main__.main()
finally:
    if not at:
        print("imports:", imports, file=sys.stderr)
"""


def started(*arguments: str, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENT_S,
        preexec_fn=lambda: (
            signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler) and None
        ),
    )


# A child is interrupted at each import before the command itself begins, where stops raise.
EACH = """
import os, signal, sys
import cxlemu.__main__
def look(event, arguments):
    if event == "import" and signal.getsignal(signal.SIGINT).__qualname__ != "stops_exit.<locals>.leave":
        child = os.fork()
        if not child:
            signal.raise_signal(signal.SIGINT)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(1, b"%d at %s\\n" % (code, arguments[0].encode()))
sys.addaudithook(look)
cxlemu.__main__.main()
"""

# What the entry point may import before Ctrl-C has its handler: until then Python prints a traceback.
BEFORE = {"cxlemu", "cxlemu.__main__", "cxlemu.interrupt", "cxlemu.lazy", "cxlemu.version", "atexit", "gc", "_signal"}


def test_nothing_else_is_imported_before_an_interrupt_ends_the_command() -> None:
    program = "import sys; before = {*sys.modules}; import cxlemu.__main__; print(*({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENT_S)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= BEFORE


def test_an_interrupt_in_each_import_before_the_command_ends_it() -> None:
    command = [sys.executable, "-c", EACH, "topology", "list", "--json", os.devnull]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENT_S)
    at = [line for line in done.stdout.splitlines() if " at " in line]
    assert len(at) > 50 and not [line for line in at if not line.startswith("130 at ")], done.stdout
    assert (done.returncode, done.stderr) == (0, "cxlemu: interrupted\n" * len(at))


@cache
def imports_of(command: str) -> int:
    return int(re.findall(r"imports: (\d+)", started("-c", PROGRAM, "0", *COMMANDS[command]).stderr)[0])


@pytest.mark.deep(rows=lambda command, part: (command, part) != ("threads", 9))
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_in_any_import_is_one_sentence(command: str, part: int) -> None:
    at = 1 + part * (imports_of(command) - 1) // (PARTS - 1)
    done = started("-c", PROGRAM, str(at), *COMMANDS[command])
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    assert "interrupted" in done.stderr or done.returncode == 0  # it was over before the interrupt came again
    assert done.returncode in (130, 0)


def test_an_interrupt_when_all_is_done_is_one_sentence() -> None:
    program = "import atexit, signal, cxlemu.__main__; atexit.register(signal.raise_signal, 2); cxlemu.__main__.main()"
    done = started("-c", program, *COMMANDS["topology"])
    assert (done.returncode, done.stderr) == (130, "cxlemu: interrupted\n")


@pytest.mark.deep(rows=lambda at: at == 1)
@pytest.mark.parametrize("at", [1, 100])
def test_where_interrupts_are_ignored_they_stay_so(at: int) -> None:
    """As under nohup, or in the background of a script."""
    done = started("-c", PROGRAM, str(at), *COMMANDS["threads"], ignored=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stop_waits_until_it_may_come_and_is_not_lost_behind_the_last_place() -> None:
    with StopsWait() as stops:
        signal.raise_signal(signal.SIGINT)
        done = True
        with pytest.raises(KeyboardInterrupt), stops.come():
            done = False
        with stops.come():  # it came once
            pass
        with pytest.raises(KeyboardInterrupt), stops.come():
            signal.raise_signal(signal.SIGINT)
    assert done
    with pytest.raises(KeyboardInterrupt), StopsWait():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
