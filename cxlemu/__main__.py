"""Where the command line begins. The ranks that it starts import this module as their program, and so no command."""

import atexit
import gc
import os
import sys

from cxlemu.interrupt import interrupts_end

GARBAGE_SELDOM = 50_000  # new objects, not 700: plans are made of millions, and none of them is garbage in a circle


def main() -> None:
    interrupts_end()
    _open_closed_streams()
    gc.set_threshold(GARBAGE_SELDOM, 10, 10)
    atexit.register(gc.freeze)  # no last look at what the process leaves behind: it takes a tenth of a short command
    from cxlemu.cli import main as command

    try:
        command(prog_name="cxlemu")
    except SystemExit as stop:
        if (users := sys.modules.get("cxlemu.userfile")) and isinstance(stop.code, int):
            users.exit_code = stop.code  # type: ignore[attr-defined]
        raise


def _open_closed_streams() -> None:
    """Let no file that is opened later, such as a card, be taken for stdin, stdout or stderr, where these are closed.

    What is printed to a closed stdout cannot be written, and is an error as on a full disk.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)  # the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)


if __name__ == "__main__":
    main()
