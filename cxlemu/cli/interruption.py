"""Ctrl-C in the middle of a command: what is finished is printed and written, and the exit code says so."""

from __future__ import annotations

from typing import NoReturn

import click

from cxlemu.cli import INTERRUPTED


class Interruption:
    """A context that Ctrl-C leaves early and quietly; what ended before it stands."""

    def __init__(self) -> None:
        self.happened = False

    def __enter__(self) -> Interruption:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.happened |= stopped
        return stopped

    def exit(self, ctx: click.Context, code: int, left: str = "") -> NoReturn:
        """End the command with ``code``; after Ctrl-C with INTERRUPTED, unless the code is 1, a finding."""
        if self.happened:
            click.echo(f"cxlemu: interrupted{left and f'; {left}'}", err=True)
            code = code if code == 1 else INTERRUPTED
        ctx.exit(code)
