"""What no command expects ends in one sentence at the command's edge, and with --debug in its traceback."""

from __future__ import annotations

import errno
import resource
import struct
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import cxlemu.cli
from cxlemu.cli import main
from tests.helpers.tiers import PATIENT_S

UNEXPECTED: dict[str, tuple[Exception, str]] = {
    "a file": (OSError(errno.ENOSPC, "No space left on device", "/x/y"), "/x/y: No space left on device"),
    "no file": (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
    "a value": (ValueError("no such thing\nsecond line"), "ValueError: no such thing"),
    "bytes": (struct.error("argument out of range"), "error: argument out of range"),
    "depth": (RecursionError(), "RecursionError: no reason given"),
}


@pytest.fixture(params=UNEXPECTED)
def unexpected(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Exception, str]:
    error, sentence = UNEXPECTED[request.param]

    @click.command()
    def command() -> None:
        raise error

    monkeypatch.setattr(cxlemu.cli.VerbGroup, "get_command", lambda *given: command)
    return error, sentence


def test_an_error_that_nobody_expects_is_one_sentence(unexpected: tuple[Exception, str]) -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert (result.exit_code, result.stderr) == (2, f"cxlemu: {unexpected[1]}; cxlemu --debug shows where\n")


def test_with_debug_it_is_raised(unexpected: tuple[Exception, str]) -> None:
    assert CliRunner().invoke(main, ["--debug", "doctor"]).exception is unexpected[0]


def test_too_few_descriptors_are_told() -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))

    command = [sys.executable, "-m", "cxlemu", "run", "all_reduce", "-n", "2", "-e", "32"]
    done = subprocess.run(command, preexec_fn=few, capture_output=True, text=True, timeout=PATIENT_S)
    assert done.returncode == 2, done.stderr
    assert "Too many open files" in done.stderr
    assert "Traceback" not in done.stderr
