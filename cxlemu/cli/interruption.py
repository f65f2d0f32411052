"""Ctrl-C in the middle of a command: what is finished is printed and written, and the exit code says so."""

from __future__ import annotations

from types import TracebackType
from typing import NoReturn

import click

from cxlemu.cli import INTERRUPTED


class Interruption:
    """A context that Ctrl-C leaves early and quietly; what ended before it stands."""

    def __init__(self) -> None:
        self.happened = False

    def __enter__(self) -> Interruption:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.happened |= stopped
        return stopped

    def exit(self, ctx: click.Context, code: int, left: str = "") -> NoReturn:
        """End the command.

        Args:
            ctx: The command's context.
            code: The exit code of what is finished; after Ctrl-C only 1, a finding, goes before INTERRUPTED.
            left: After Ctrl-C, what did not end, such as ``3 runs did not end``.
        """
        if self.happened:
            click.echo(f"cxlemu: interrupted{left and f'; {left}'}", err=True)
            code = code if code == 1 else INTERRUPTED
        ctx.exit(code)
