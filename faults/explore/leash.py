"""Foreign Python code on a leash: what runs a million lines without coming back is stopped."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from cxlemu.signals import Stop

LINES_MAX = 1_000_000
_OURS = "faults.explore."  # modules of which calls alone count: they look at what the code holds, item by item


class RanAwayError(Stop):
    """The code executed more than LINES_MAX lines."""


@contextmanager
def leash() -> Iterator[None]:
    """Stop code that runs away.

    Under a debugger or coverage, which count lines themselves, nothing is stopped.
    """
    if sys.gettrace() is not None:
        yield
        return
    lines = 0

    def call(frame: FrameType, event: str, arg: Any) -> Any:
        line(frame, event, arg)
        return None if frame.f_globals.get("__name__", "").startswith(_OURS) else line

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += 1
        if lines > LINES_MAX:
            raise RanAwayError
        return line

    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(None)


@contextmanager
def noted(ran: set[tuple[str, int]]) -> Iterator[None]:
    """Add the file and the number of each line that is executed to ``ran``; under a debugger or coverage none."""
    if sys.gettrace() is not None:
        yield
        return

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        ran.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    sys.settrace(line)
    try:
        yield
    finally:
        sys.settrace(None)
