"""The console that commands print to, and how lines fit a terminal.

Tables are laid out for its width, and fit 80 columns. Sentences wrap between words on a terminal, and are one line in a
pipe.
"""

import sys
import textwrap
from collections.abc import Collection

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_CHARS = 1 << 20  # a pipe is as wide as what it is given


def console(*, launched: bool = False, quiet: bool = False) -> Console:
    """Return a console whose lines are as long as what is printed; its width is what sentences and tables may take."""
    shown = sys.stdout.isatty() and (sys.stderr.isatty() or not launched)
    return Console(
        highlight=False,
        emoji=False,
        soft_wrap=True,
        quiet=quiet,
        width=None if shown else PIPE_CHARS,
        force_terminal=None if shown or not launched else False,
    )


def plain_table(*heads: str) -> Table:
    """Make a table with a line below its heads and two spaces between columns; what is too long takes several lines."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def figure_table(first: str, *heads: str, words: Collection[str] = ()) -> Table:
    """Make a plain table of words, then figures, to the right; no cell breaks. ``words``: heads of more words."""
    table = plain_table()
    for head in (first, *heads):
        table.add_column(head, justify="left" if head == first or head in words else "right", no_wrap=True)
    return table


def print_wrapped(out: Console, text: str, style: str = "", *, indent: str = "  ") -> None:
    """Print a sentence, on as many lines as it takes; no word is cut. Spaces before its first word indent all of it."""
    before = text[: len(text) - len(text.lstrip(" "))]
    lines = textwrap.wrap(
        text, out.width, subsequent_indent=before + indent, break_long_words=False, break_on_hyphens=False
    )
    out.print(Text("\n".join(lines), style), soft_wrap=True)
