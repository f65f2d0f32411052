"""The console that tables are printed to."""

from __future__ import annotations

import sys

from rich.console import Console

PIPE_CHARS = 1 << 16  # a pipe is as wide as what it is given


def console() -> Console:
    """Return a console for tables: on a terminal long lines wrap softly, in a pipe they have room."""
    return Console(highlight=False, soft_wrap=True) if sys.stdout.isatty() else Console(width=PIPE_CHARS)
