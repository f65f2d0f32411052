"""``cxlemu replay``: runs the failure that a token describes once more."""

from pathlib import Path
from typing import Any

import click

from cxlemu.cli.vocabulary import option


@click.command()
@click.argument("token")
@option("algorithm", help="File and function of the algorithm that the token names; executes the file.")
@click.option(
    "--svg", type=click.Path(path_type=Path), help="Draw the history of the wrongly read line to an SVG file."
)
@option("json")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Reproduce the failure that TOKEN describes; @FILE reads the token from a file.

    The exit code is 1 if the failure happens again, 0 if not, and 3 if a fault never happens, or nothing fails in a
    file or a plan that is not the one that failed. Nothing that a token names is executed.

    \b
    Examples:
      cxlemu replay cxl1.7Vf...
      cxlemu replay @token.txt --svg picture.svg
      cxlemu replay @token.txt --algorithm my_all_reduce.py:my_all_reduce
    """
    from faults.cli.replay_run import run

    run(ctx, **flags)
