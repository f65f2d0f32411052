"""``cxlemu litmus``: every outcome of small programs, and whether those that are expected can happen."""

from __future__ import annotations

from pathlib import Path

import click

from cxlemu.cli.backends import backends
from cxlemu.cli.options import JsonFlags, argument, choice, concept, flag, taking, tenant_option
from cxlemu.cli.vocabulary import OneRanksParam
from faults.explore.exhaustive import ENGINES
from faults.explore.result import Budget


class LitmusFlags(JsonFlags):
    paths: tuple[Path, ...] = argument(
        nargs=-1, required=True, metavar="FILE|DIRECTORY...", type=click.Path(path_type=Path)
    )
    verbose: bool = concept("verbose", help="Show all outcomes, and an execution that leads to each allowed one.")
    witness: str | None = flag(
        "--witness", metavar="CONDITION", help="Show an execution that ends in this state: 'B.r1 == 0 and x == 1'."
    )
    engine: str = flag("--engine", type=click.Choice(ENGINES), default=ENGINES[0], help="Engine of the search.")
    budget_states: int = flag(
        "--budget-states",
        type=click.IntRange(1),
        default=Budget().states,
        help="Largest number of states to search for each test.",
    )
    budget_s: float = concept("budget", default=Budget().seconds, help="Time limit for each test.")
    backend: str | None = choice(
        "--backend",
        of=backends().names,
        help="Run the tests as machine instructions on this backend, shm or dax, and count outcomes.",
    )
    devices: tuple[str, ...] = flag(
        "--device", multiple=True, metavar="PATH", help="Device of a DAX pool; repeat it for each card, in any order."
    )
    pool: str | None = flag(
        "--pool", metavar="UUID|NAME", help="Use only devices of this pool; with --tenant, the shared-memory pool."
    )
    tenant: str | None = tenant_option()
    ranks: int | None = concept(
        "ranks",
        type=OneRanksParam(1, 64, "which is enough for all tests"),
        default_text="as many as the largest test needs",
    )
    how: str = concept(
        "launch",
        type=click.Choice(["processes", "threads", "env"]),
        default="processes",
        help="Start ranks as processes or threads; env: mpirun, torchrun or srun started them.",
    )
    rounds: int = flag("--rounds", type=click.IntRange(1, 10**9), default=10_000, help="Number of rounds of each test.")
    seed: int = flag("--seed", type=click.IntRange(0, (1 << 63) - 1), default=0, help="Seed of the timing.")
    deadline_s: float = concept("deadline", default=30.0)


@click.command()
@taking(LitmusFlags, work="litmus_run:run")
def command() -> None:
    """Run litmus tests: small programs in YAML with allowed and forbidden outcomes.

    Searches all executions: every order of the hosts' steps, every eviction, prefetch and arrival of a line.

    \b
    Examples:
      cxlemu litmus tests/faults/litmus
      cxlemu litmus mp.yaml -v
      cxlemu litmus mp.yaml --witness 'B.r == 1'
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

    Steps: store X VALUE, store_nt X VALUE, flush X, flush_keep X, fence, invalidate X, load X REGISTER, signal X VALUE,
    wait X VALUE, record EVENT, await EVENT, crash. `lines: {L: [x, y]}` puts words into one line, `initial: {x: 1}`
    sets initial values. An allowed outcome must happen in some execution, and with `hangs: allowed` some execution must
    not end; otherwise each must. In a condition, memory means the pool after every posted line has arrived.

    With --backend, ranks instead execute the steps many times as machine instructions with varying timing, and outcomes
    are counted. A forbidden outcome, or an outcome that the search does not reach, is a violation. An allowed outcome
    that never happens is no violation, because caches of one machine are coherent.

    Exit codes: 0 all tests end as expected, 1 a test does not, 2 bad input, 3 a budget ran out first, no execution
    ends of a test with forbidden outcomes, --witness finds none, or --backend skips a test.
    """
