"""Whatever may take more than two seconds shows its progress on the terminal, and leaves nothing of it there."""

from __future__ import annotations

import io
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cxlemu.cli import progress
from tests.helpers.commands import cxlemu

ROOT = Path(__file__).parents[1]

LINES = [
    "simulate barrier",
    "simulate memory kv-cache -b 1T",
    "simulate training",
    "simulate serving --hosts 2 --requests 20",
    f"simulate trace {ROOT}/examples/traces/fsdp",
    "mutate barrier -n 2 -j 1",
    "prove barrier -n 2",
    f"prove --algorithm {ROOT}/examples/my_all_reduce.py:my_all_reduce -n 2 -b 1K",
    f"litmus {ROOT}/tests/faults/litmus/ACK-early.yaml",
    f"litmus {ROOT}/tests/faults/litmus/ACK-early.yaml --backend shm --rounds 1 --launch threads",
    "explore barrier",
    "faults sweep barrier --sample 1 -j 1",
    "fused all_gather_gemm --engine virtual",
    "run barrier -n 2 --launch threads",
    f"run --protocol {ROOT}/examples/protocols/ring_queue.py:fixed -n 2 --launch threads --repeat 1 --seeds 1",
    *(
        pytest.param(line, marks=pytest.mark.deep)
        for line in (
            "fused all_gather_gemm -n 2 -s 128x128x128",
            "reproduce validation",
            "faults campaign barrier --seeds 1 -j 1 -n 2",
        )
    ),
]


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


class Recorded(progress.Progress):
    """A bar that remembers those that were shown, and what was done."""

    shown: list[Recorded] = []  # noqa: RUF012 - one list for all, emptied by the test

    def start(self) -> None:
        super().start()
        if not self.disable:
            self.shown.append(self)


@pytest.mark.parametrize("line", LINES)
def test_progress_is_shown(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(progress, "Progress", Recorded)
    monkeypatch.setattr(progress, "Console", partial(Console, file=terminal, force_terminal=True, width=80))
    monkeypatch.setattr(Recorded, "shown", [])
    result = cxlemu(*shlex.split(line))
    assert (result.exit_code, result.stderr) == (0, ""), result.output

    assert Recorded.shown and all(its.tasks and its.tasks[0].description for its in Recorded.shown)
    assert terminal.getvalue().rstrip("\n").endswith(("\x1b[2K", "\x1b[?25h")), "it is gone in the end"


def test_without_a_terminal_there_is_none_not_even_an_empty_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich leaves one; and colours that are asked for make no terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert [*progress.counting([1, 2], "steps"), *progress.counting([3], "steps", 1)] == [1, 2, 3]
    with progress.spinning("something") as now, progress.bar() as bar:
        now("something else")
        bar.add_task("steps")
    assert capsys.readouterr() == ("", "")


def test_lines_that_are_printed_meanwhile_go_to_stdout(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    terminal = Terminal()
    monkeypatch.setattr(progress, "Console", partial(Console, file=terminal, force_terminal=True, width=80))
    for step in progress.counting([1, 2], "steps", 2):
        print("step", step)
    assert capsys.readouterr().out == "step 1\nstep 2\n"
    assert "2/2" in terminal.getvalue() and "step 1" not in terminal.getvalue()
