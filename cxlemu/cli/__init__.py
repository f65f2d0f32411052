"""The command line: packages bring their verbs by entry points, each loaded only when it is used."""

from __future__ import annotations

import errno
import os
import select
import stat
import struct
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import click

from cxlemu.cli.commands import LazyGroup
from cxlemu.errors import CxlemuError
from cxlemu.version import __version__

__all__ = ["INTERRUPTED", "READER_GONE", "VERBS", "VerbGroup", "main"]

# verb -> (module, one line of help): the entry point of cxlemu.commands, see cxlemu/cli/commands.py
VERBS: dict[str, tuple[str, str]] = {
    "topology": ("cxlemu.cli.topology", "Draw and check a topology file."),
    "pool": ("cxlemu.cli.pool", "List, clean, inspect and format pools."),
    "doctor": ("cxlemu.cli.doctor", "What this machine offers."),
}


INTERRUPTED = 130  # as shells report SIGINT
READER_GONE = 141  # as shells report SIGPIPE


class VerbGroup(LazyGroup):
    """The group of all verbs. It turns errors into one sentence and an exit code: ours, and those no verb expects."""

    forms: ClassVar[Mapping[str, str]] = {"simulate": "cxlemu.simulate", "reproduce": "cxlemu.reproduce"}
    _debug = False

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a verb; if stdout cannot be written, say so and exit with 1; other errors of the machine exit with 2.

        A reader that has seen enough, such as ``head``, ends a verb quietly with READER_GONE.
        """
        into_pipe = _stdout_is_pipe()
        try:
            return super().main(*args, **kwargs)
        except SystemExit as stop:  # click's, or rich's, which has sent stdout nowhere by now
            if stop.code == 1 and into_pipe and (_reader_is_gone() or not _stdout_is_pipe()):
                sys.exit(READER_GONE)
            raise
        except (OSError, ValueError, struct.error, RecursionError) as error:
            if isinstance(error, OSError) and _stdout_fails_with(error):
                click.echo(f"cxlemu: the output cannot be written: {error.strerror}", err=True)
                sys.exit(1)
            if self._debug:
                raise
            click.echo(f"cxlemu: {_sentence(error)}; cxlemu --debug shows where", err=True)
            sys.exit(2)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; our errors exit with their code, Ctrl-C with INTERRUPTED."""
        self._debug = ctx.params["debug"]
        try:
            return super().invoke(ctx)
        except CxlemuError as error:
            click.echo(f"cxlemu: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("cxlemu: interrupted", err=True)
            ctx.exit(INTERRUPTED)


def _sentence(error: Exception) -> str:
    """What the machine or a library says, with the file that it is about."""
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename is not None else ""
        return f"{name}{error.strerror or error}"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"


def _stdout_is_pipe() -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):  # no file at all
        return False


def _reader_is_gone() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _stdout_fails_with(error: OSError) -> bool:
    """Decide whether stdout is what failed.

    If it is, it takes no other line either, and what it holds is thrown away, or Python would try once more at its
    exit. A pipe that is closed is click's to end quietly.
    """
    if error.errno == errno.EPIPE or error.filename is not None:
        return False
    try:
        click.echo()
    except OSError as again:
        if again.errno != error.errno:
            return False
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return True
    return False


@click.command(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="cxlemu")
@click.option("--debug", is_flag=True, help="Show the traceback of an error that no command expects.")
def main(debug: bool) -> None:  # VerbGroup.invoke reads it
    """Emulate a CXL shared memory pool and test collectives on it.

    \b
    Exit codes: 0 all right, 1 a run failed or a result was wrong, 2 bad input,
    3 unknown, 130 Ctrl-C.
    """


if __name__ == "__main__":
    main()
