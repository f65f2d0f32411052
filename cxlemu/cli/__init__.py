"""The command line: one file a verb, loaded only when its verb is used."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click

from cxlemu import __version__
from cxlemu.errors import CxlemuError

# verb -> (module, one line of help). The module holds a click command named `command`.
VERBS: dict[str, tuple[str, str]] = {
    "run": ("cxlemu.cli.run", "Run collectives on an emulated pool and check every byte."),
    "fused": ("cxlemu.cli.fused", "Run GEMMs fused with communication, beside those that are not."),
    "simulate": ("cxlemu.cli.simulate", "What collectives would cost on a modelled fabric."),
    "reproduce": ("cxlemu.cli.reproduce", "Published measurements beside what the model says."),
    "bench": ("cxlemu.cli.bench", "Compare with MPI, Gloo and this machine's limits."),
    "litmus": ("cxlemu.cli.litmus", "Run litmus tests of the memory model, exhaustively."),
    "explore": ("cxlemu.cli.explore", "Search every execution of a protocol of your own."),
    "prove": ("cxlemu.cli.prove", "Prove plans right in every execution, or say why not."),
    "mutate": ("cxlemu.cli.mutate", "Make every mistake in plans' synchronization, and see it found."),
    "faults": ("cxlemu.cli.faults", "Break things on purpose, and judge what becomes of it."),
    "replay": ("cxlemu.cli.replay", "Reproduce the failure that a token describes."),
    "plan": ("cxlemu.cli.plan", "Show, save and check plans."),
    "topology": ("cxlemu.cli.topology", "Draw and check a topology file."),
    "pool": ("cxlemu.cli.pool", "List, clean, inspect and format pools."),
    "doctor": ("cxlemu.cli.doctor", "What this machine offers."),
}


INTERRUPTED = 130  # as shells report SIGINT


class Verbs(click.Group):
    """Loads a verb on first use and turns our errors into one sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command: click.Command = importlib.import_module(VERBS[name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if not _stdout_fails_with(error):
                raise
            click.echo(f"cxlemu: the output cannot be written: {error.strerror}", err=True)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CxlemuError as error:
            click.echo(f"cxlemu: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("cxlemu: interrupted", err=True)
            ctx.exit(INTERRUPTED)


def _stdout_fails_with(error: OSError) -> bool:
    """Whether stdout is what failed: then it takes no other line either, and what it holds is thrown away, or Python
    would try once more at its exit. A pipe that is closed is click's to end quietly."""
    if error.errno == errno.EPIPE:
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


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="cxlemu")
def main() -> None:
    """Emulate a CXL shared memory pool and test collectives on it.

    \b
    Exit codes: 0 all right, 1 a run failed or a result was wrong, 2 bad input, 3 unknown, 130 Ctrl-C.
    """


if __name__ == "__main__":
    main()
