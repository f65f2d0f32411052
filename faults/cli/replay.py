"""``cxlemu replay``: runs the failure that a token describes once more."""

from pathlib import Path

import click

from cxlemu.cli.options import Flags, argument, concept, path, taking


class ReplayFlags(Flags):
    token: str = argument()
    algorithm: str | None = concept(
        "algorithm", help="File and function of the algorithm that the token names; executes the file."
    )
    svg: Path | None = path("--svg", help="Draw the history of the wrongly read line to an SVG file.")
    json_file: Path | None = concept("json")


@click.command()
@taking(ReplayFlags, work="replay_run:run")
def command() -> None:
    """Reproduce the failure that TOKEN describes; @FILE reads the token from a file.

    The exit code is 1 if the failure happens again, 0 if not, and 3 if a fault never happens, or if nothing
    fails and the file or the plan has changed. A token by itself never executes code.

    \b
    Examples:
      cxlemu replay cxl1.7Vf...
      cxlemu replay @token.txt --svg picture.svg
      cxlemu replay @token.txt --algorithm my_all_reduce.py:my_all_reduce
    """
