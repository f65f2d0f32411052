"""``cxlemu litmus``: every outcome of small programs, and whether those that are expected can happen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cxlemu.cli.backends import backends
from cxlemu.cli.vocabulary import OneRanksParam, option
from cxlemu.errors import ArgumentError
from faults.explore.check import ENGINES
from faults.explore.result import Budget

SEARCHES = {"witness", "engine", "budget_states"}  # flags that only the search has
HARDWARE = {"devices", "pool", "ranks", "how", "rounds", "seed", "deadline_s"}  # and those that only --backend has


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
@option("budget", default=Budget().seconds, show_default=True, help="Seconds per test.")
@click.option(
    "--backend",
    type=click.Choice(backends().names),
    help="Run the tests as machine instructions there, and count: shm or dax.",
)
@click.option("--device", "devices", multiple=True, metavar="PATH", help="A card of dax: once for each, in any order.")
@click.option("--pool", metavar="UUID", help="Of the devices, those of this pool.")
@option(
    "ranks",
    type=OneRanksParam(1, 64, "which is enough for all tests"),
    help="Ranks.  [default: as many as the largest test takes]",
)
@option(
    "launch",
    type=click.Choice(["processes", "threads", "env"]),
    default="processes",
    show_default=True,
    help="env: started by mpirun, torchrun or srun, or with RANK and WORLD_SIZE.",
)
@click.option("--rounds", type=click.IntRange(1, 10**9), default=10_000, show_default=True, help="Rounds per test.")
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), default=0, show_default=True, help="Varies the timing.")
@click.option(
    "--deadline-s",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    help="For any one wait of a rank.",
)
@option("json")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Run litmus tests: small programs in YAML with what their executions may and may not end with.

    All executions are searched: every order of the hosts' steps, every eviction, prefetch and arrival of a line.

    \b
    Examples:
      cxlemu litmus tests/faults/litmus
      cxlemu litmus mp.yaml -v
      cxlemu litmus mp.yaml --witness 'B.r == 0'
      cxlemu litmus mp.yaml --backend shm --rounds 100000
      cxlemu litmus mp.yaml --backend dax --device /dev/dax0.0 --launch env

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

    With --backend nothing is searched: ranks execute the steps as machine instructions, many times, with timing
    that varies, and outcomes are counted. A forbidden outcome, or one that the search does not have, is a violation.
    An allowed outcome that never comes is not: caches of one machine are coherent.

    \b
    Exit codes: 0 all is as expected, 1 something is not, 2 bad input, 3 a budget was spent before that was known.
    """
    hardware = flags["backend"] is not None
    for name in sorted(SEARCHES if hardware else HARDWARE):
        if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            flag = next(param.opts[-1] for param in ctx.command.params if param.name == name)
            raise ArgumentError(f"{flag} {'is for the search, not for' if hardware else 'goes with'} --backend")
    if hardware:
        from faults.cli.litmus_hardware import run_on_hardware
        from faults.cli.litmus_run import read_tests

        paths = flags.pop("paths")
        run_on_hardware(ctx, read_tests(paths), **{k: v for k, v in flags.items() if k not in SEARCHES})
    else:
        from faults.cli.litmus_run import run

        run(ctx, **{k: v for k, v in flags.items() if k not in HARDWARE | {"backend"}})
