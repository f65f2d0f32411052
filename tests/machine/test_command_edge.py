"""What no command expects ends in one sentence at the command's edge, and with --debug in its traceback."""

import errno
import json
import os
import re
import resource
import struct
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cxlemu.cli import VerbGroup
from tests.helpers.commands import cxlemu
from tests.helpers.tiers import PATIENT_S

UNEXPECTED: dict[str, tuple[Exception, str]] = {
    "a file": (OSError(errno.ENOSPC, "No space left on device", "/x/y"), "/x/y: No space left on device"),
    "no file": (
        OSError(errno.EMFILE, "Too many open files"),
        "Too many open files: raise the limit of open files, as with ulimit -n 4096, or take fewer ranks",
    ),
    "no folder": (
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        "the current folder is gone: change to another one",
    ),
    "a value": (ValueError("no such thing\nsecond line"), "ValueError: no such thing"),
    "bytes": (struct.error("argument out of range"), "error: argument out of range"),
    "a module": (ImportError("it was compiled from other sources"), "ImportError: it was compiled from other sources"),
    "depth": (RecursionError(), "RecursionError: no reason given"),
}
SMALL_RUN = ("run", "all_reduce", "-n", "2", "-b", "1K", "-e", "1K", "-c", "laptop", "--launch", "threads")


@pytest.fixture(params=UNEXPECTED)
def unexpected(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Exception, str]:
    error, sentence = UNEXPECTED[request.param]

    @click.command()
    def command() -> None:
        raise error

    monkeypatch.setattr(VerbGroup, "get_command", lambda *given: command)
    return error, sentence


def test_an_error_that_nobody_expects_is_one_sentence(unexpected: tuple[Exception, str]) -> None:
    result = cxlemu("doctor")
    assert (result.exit_code, result.stderr) == (2, f"cxlemu: {unexpected[1]}; cxlemu --debug shows where\n")


def test_with_debug_it_is_raised(unexpected: tuple[Exception, str]) -> None:
    assert cxlemu("--debug", "doctor").exception is unexpected[0]


@pytest.mark.parametrize("there", [False, True], ids=["no proc", "another namespace's"])
def test_without_its_proc_a_run_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: bool
) -> None:
    if there:
        for name in ("sys/kernel/random/boot_id", "self/ns/pid"):
            (tmp_path / name).parent.mkdir(parents=True)
            (tmp_path / name).write_bytes(b"0" * 32)
    monkeypatch.setattr("cxlemu.pool.owner.PROC", tmp_path)
    result = cxlemu(*SMALL_RUN)
    said = (
        rf"cxlemu: a pool names its process as {tmp_path} does, which has no \S+: mount this namespace's proc there\n"
    )
    assert result.exit_code == 2
    assert re.fullmatch(said, result.stderr)


@pytest.mark.deep(rows=lambda arguments, closed: (len(closed) < 3) == (arguments != ("--help",)))
@pytest.mark.parametrize("closed", [(1,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("arguments", [("topology", "list"), ("--help",), SMALL_RUN], ids=["list", "help", "run"])
def test_a_closed_stdout_is_an_output_that_cannot_be_written(
    arguments: tuple[str, ...], closed: tuple[int, ...]
) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    command = [sys.executable, "-m", "cxlemu", *arguments]
    done = subprocess.run(command, preexec_fn=close, stderr=subprocess.PIPE, text=True, timeout=PATIENT_S)
    assert done.returncode == 1
    assert done.stderr == ("" if 2 in closed else "cxlemu: the output cannot be written: Bad file descriptor\n")


def test_files_that_a_command_opens_are_never_taken_for_its_output(tmp_path: Path) -> None:
    program = "import os, cxlemu.__main__ as m; m._open_closed_streams(); os.write(3, b'%d' % os.open('new', 66))"
    with (tmp_path / "said").open("wb") as said:

        def close() -> None:
            os.dup2(said.fileno(), 3)
            for number in range(3):
                os.close(number)

        command = [sys.executable, "-c", program]
        subprocess.run(command, preexec_fn=close, pass_fds=[3], cwd=tmp_path, check=True, timeout=PATIENT_S)
    assert int((tmp_path / "said").read_text()) > 2


def test_a_timeline_goes_to_stdout_where_its_file_is_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = cxlemu("simulate", "barrier", "-n", "2", "--trace", "-", code=0)
    assert json.loads(done.stdout)["traceEvents"] and "engine virtual" in done.stderr
    assert not [*tmp_path.iterdir()]


def test_too_few_descriptors_are_told() -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))

    command = [sys.executable, "-m", "cxlemu", "run", "all_reduce", "-n", "2", "-e", "32"]
    done = subprocess.run(command, preexec_fn=few, capture_output=True, text=True, timeout=PATIENT_S)
    assert done.returncode == 2, done.stderr
    assert "Too many open files" in done.stderr
    assert "Traceback" not in done.stderr
