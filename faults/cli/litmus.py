"""``cxlemu litmus``: every outcome of small programs, and whether those that are expected can happen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from faults.explore.check import ENGINES
from faults.explore.result import Budget


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE|DIRECTORY...", type=click.Path(path_type=Path))
@click.option(
    "-v", "--verbose", is_flag=True, help="Show all outcomes, and an execution that leads to each allowed one."
)
@click.option("--witness", metavar="CONDITION", help="Show an execution that ends like this: 'B.r1 == 0 and x == 1'.")
@click.option("--engine", type=click.Choice(ENGINES), default=ENGINES[0], show_default=True)
@click.option(
    "--budget-states", type=click.IntRange(1), default=Budget().states, show_default=True, help="States per test."
)
@click.option(
    "--budget-s",
    type=click.FloatRange(0, min_open=True),
    default=Budget().seconds,
    show_default=True,
    help="Seconds per test.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Run litmus tests: small programs in YAML with what their executions may and may not end with.

    All executions are searched: every order of the hosts' steps, every eviction, prefetch and arrival of a line.

    \b
    Examples:
      cxlemu litmus tests/faults/litmus
      cxlemu litmus mp.yaml -v
      cxlemu litmus mp.yaml --witness 'B.r == 0'

    \b
    A test:
      name: MP
      hosts:
        A: [store x 1, flush x, fence, signal f 1]
        B: [wait f 1, invalidate x, load x r]
      allowed: [B.r == 1]
      forbidden: [B.r == 0]

    \b
    Steps: store X VALUE, store_nt X VALUE, flush X, flush_keep X, fence, invalidate X, load X REGISTER, signal X VALUE,
    wait X VALUE, record EVENT, await EVENT, crash. `lines: {L: [x, y]}` puts words into one line, `initial: {x: 1}`
    says what is there first, `hangs: allowed` that an execution need not end. Memory in a condition is the pool when
    everything posted has arrived.

    \b
    Exit codes: 0 all is as expected, 1 something is not, 2 bad input, 3 a budget was spent before that was known.
    """
    from faults.cli.litmus_run import run

    run(ctx, **flags)
