"""Where the command line begins. The ranks that it starts import this module as their program, and so no command."""

from __future__ import annotations

import atexit
import gc

GARBAGE_SELDOM = 50_000  # new objects, not 700: plans are made of millions, and none of them is garbage in a circle


def main() -> None:
    """Run the command line."""
    gc.set_threshold(GARBAGE_SELDOM, 10, 10)
    atexit.register(gc.freeze)  # no last look at what the process leaves behind: it takes a tenth of a short command
    from cxlemu.cli import main as command

    command(prog_name="cxlemu")


if __name__ == "__main__":
    main()
