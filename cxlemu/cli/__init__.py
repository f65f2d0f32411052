"""The command line: packages bring their verbs by entry points, each loaded only when it is used."""

import errno
import os
import select
import signal
import stat
import struct
import sys
from itertools import groupby
from typing import Any

import click

from cxlemu.cli.commands import LazyGroup, Table, commands
from cxlemu.errors import CxlemuError
from cxlemu.interrupt import INTERRUPTED
from cxlemu.signals import stops_exit
from cxlemu.version import __version__

__all__ = ["INTERRUPTED", "READER_GONE", "VERBS", "VerbGroup", "main"]

# verb -> (module, one line of help, section): the entry point of cxlemu.commands, see cxlemu/cli/commands.py
VERBS: Table = {
    "topology": ("cxlemu.cli.topology", "Draw, check and price a topology.", "model"),
    "pool": ("cxlemu.cli.pool", "List, clean, inspect and format pools.", "manage"),
    "doctor": ("cxlemu.cli.doctor", "Show what this machine offers to a pool.", "start here"),
}

SECTIONS = ("start here", "write", "break", "your programs", "train", "model", "manage")  # of `cxlemu --help`

READER_GONE = 141  # as shells report SIGPIPE


class VerbGroup(LazyGroup):
    """The group of all verbs. It turns errors into one sentence and an exit code: ours, and those no verb expects."""

    _debug = False

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all verbs by sections, on one screen."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        formatter.write_paragraph()
        verbs = commands(self.entry_group)
        order = [*SECTIONS, *sorted({verb.section for verb in verbs.values()} - {*SECTIONS})]
        for section in order:
            lines = groupby(
                (name for name, verb in verbs.items() if verb.section == section), lambda name: verbs[name].text
            )
            for index, (text, names) in enumerate(lines):
                formatter.write(f"{section if not index else '':<15}{', '.join(names):<11}{text}\n")
        self.format_epilog(ctx, formatter)

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
        except (OSError, ValueError, struct.error, RecursionError, ImportError) as error:
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
            with stops_exit({signal.SIGINT}):
                return super().invoke(ctx)
        except CxlemuError as error:
            click.echo(f"cxlemu: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("cxlemu: interrupted", err=True)
            ctx.exit(INTERRUPTED)


_SHM = "/dev/shm"
_LACKS = {
    errno.EMFILE: "raise the limit of open files, as with ulimit -n 4096, or take fewer ranks",
    errno.ENFILE: "the machine has reached its limit of open files",
}


def _sentence(error: Exception) -> str:
    """What the machine or a library says, with the file that it is about."""
    if isinstance(error, FileNotFoundError) and error.filename is None:  # os.getcwd's
        return "the current folder is gone: change to another one"
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename is not None else ""
        more = f": {_LACKS[error.errno]}" if error.errno in _LACKS else ""
        if str(error.filename).startswith(_SHM) and not os.access(_SHM, os.F_OK):
            more = f": pools need {_SHM}; mount a tmpfs there (mkdir {_SHM} && mount -t tmpfs tmpfs {_SHM})"
        return f"{name}{error.strerror or error}{more}"
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


@click.command(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    options_metavar="[-V] [--debug]",
    subcommand_metavar="COMMAND [--help] [ARGS]...",
    epilog="Exit codes: 0 passed, 1 a wrong result, 2 bad input, 3 unknown, 130 Ctrl-C.",
)
@click.version_option(__version__, "-V", "--version", prog_name="cxlemu")
@click.option("--debug", is_flag=True, help="Show the traceback of an error that no command expects.")
def main(debug: bool) -> None:  # VerbGroup.invoke reads it
    """Emulate a CXL shared memory pool, and test what communicates over it."""


if __name__ == "__main__":
    main()
