"""Ctrl-C before a command has begun: what the entry point imports first, so it imports nothing that takes time."""

import _signal  # type: ignore[import-not-found]  # of C: `signal` loads enum
import os

INTERRUPTED = 130  # as shells report SIGINT

_leave_process = os._exit  # the system's own, whatever stands in its place while code of users runs


def interrupts_end() -> None:
    """Let Ctrl-C end this process with a sentence, outside `stops_exit`: for a command that has nothing to clean up.

    It stays ignored where it is, as under nohup.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, end_interrupted)


def end_interrupted(number: int, frame: object) -> None:
    os.write(2, b"cxlemu: interrupted\n")
    _leave_process(INTERRUPTED)
