"""``cxlemu exec``: other people's programs as processes of emulated hosts on one pool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from cxlemu.cli.vocabulary import option


class Places(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """Numbers with ``@`` between them, such as HOST@STEP."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self._count = name, count

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers; click's usage error for anything else."""
        if isinstance(value, tuple):
            return value
        numbers = re.split("[@:]", value)
        if len(numbers) != self._count or not all(re.fullmatch(r"(0x[0-9a-fA-F]{1,12}|\d{1,15})", n) for n in numbers):
            self.fail(f"{value!r} is not {self.name}.", param, ctx)
        return tuple(int(n, 0) for n in numbers)


@click.command()
@click.option("--pool", "pools", multiple=True, metavar="PATH[=SIZE|=FILE]", help="A pool as programs open it.")
@click.option("--hosts", type=click.IntRange(1, 16), default=2, show_default=True, help="Emulated hosts.")
@click.option("--seeds", type=click.IntRange(0), default=10, show_default=True, help="Runs with nature's moves.")
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), help="One run, with this seed.")
@click.option("--replay", metavar="TOKEN", help="The run that a token describes; @FILE reads the token from a file.")
@click.option("--worst-case/--no-worst-case", default=None, help="Also, or not, runs in which nothing moves by itself.")
@click.option("--check/--no-check", default=True, show_default=True, help="Watch every access for missing steps.")
@click.option("--free", is_flag=True, help="Threads side by side, not one step at a time: no replay.")
@click.option("--keep-going", is_flag=True, help="Do all runs, also behind one that fails.")
@click.option("--shrink/--no-shrink", default=True, show_default=True, help="Shorten the schedule that fails.")
@click.option("--crash", type=Places("HOST@STEP", 2), metavar="HOST@STEP", help="A host dies with its cache.")
@click.option("--link-down", type=Places("HOST@STEP", 2), metavar="HOST@STEP", help="A host's link goes down.")
@click.option("--poison", type=Places("OFFSET@STEP", 2), metavar="OFFSET@STEP", help="A line goes bad.")
@click.option("--lose-card", type=Places("POOL@STEP", 2), metavar="POOL@STEP", help="A pool's memory is lost.")
@click.option("--deadline-s", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, help="Per run.")
@click.option("--steps", type=click.IntRange(16), default=25_000, show_default=True, help="Steps that change nothing.")
@click.option("--error-exitcode", type=click.IntRange(0, 255), default=1, show_default=True, help="For a mistake.")
@option("json")
@click.option("--sarif", type=click.Path(path_type=Path), help="Write findings there for editors and code hosts.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with a picture of each finding.")
@click.option("--litmus", type=click.Path(path_type=Path), help="Write findings as litmus tests into that folder.")
@click.option("--suppressions", type=click.Path(path_type=Path), help="Findings to live with, each with a reason.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [: COMMAND]... [:: ...]")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Run programs as processes of emulated hosts whose caches are not coherent, on a pool that they open by its path.

    Commands with ``:`` between them run side by side, those behind ``::`` when the ones before have ended. Each runs on
    the host of its position (the first on host 0), or on host H with @H before it. A host's cache outlives its
    processes. Every run begins with the pool as it is now; the file itself is never changed.

    \b
    Examples:
      CC="cxlemu cc" make
      cxlemu exec --pool /dev/shm/queue -- ./create :: ./producer : ./consumer
      cxlemu exec --pool /dev/dax0.0=64M --hosts 3 --seeds 50 -- ./a : ./b : ./c
      cxlemu exec --pool /dev/dax0.0=64M --crash 0@1200 -- ./a :: @1 ./recover
      cxlemu exec --pool /dev/shm/queue --replay cxl1.eJx... -- ./a : ./b

    \b
    A line of --suppressions, where * and ? stand for any text, and the reason cannot be left out:
      no-invalidate ring.c:120    # an optimistic read: the checksum finds out

    \b
    Exit codes: 0 nothing was found, 1 a mistake was, or a program failed, 2 bad input, 3 a deadline passed before that
    was known, or no command opened a pool.
    """
    from faults.cli.exec_run import run

    run(ctx, **flags)
