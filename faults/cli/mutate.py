"""``cxlemu mutate``: every mistake in a plan's synchronization is found, or changes nothing."""

from __future__ import annotations

from typing import Any

import click

from collectives.cli.texts import ALGORITHM_HELP
from collectives.sweep.defaults import EVERY
from cxlemu.choices import INTEGRITIES
from cxlemu.cli.vocabulary import RanksParam, option
from faults.choices import MUTATED_RANKS_MAX, MUTATIONS

_TOLD = "\b\nOperators:\n" + "\n".join(f"  {name:<10}{what}" for name, what in MUTATIONS.items())


@click.command(epilog=_TOLD)
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...|FILE.plan")
@option("ranks", type=RanksParam(2, MUTATED_RANKS_MAX), default="2", show_default=True)
@click.option("--variant", default=EVERY, show_default=True, help="Variants, a comma list, or every.")
@click.option("--algorithm", metavar="FILE.py:FUNCTION", help=ALGORITHM_HELP)
@click.option("--integrity", type=click.Choice(INTEGRITIES), help="Mutate plans whose doorbells carry checksums.")
@click.option("-j", "--jobs", type=click.IntRange(1, 256), help="How many workers.  [default: one per core]")
@click.option("--mutant", help="Try only this mutant of a single case, and print the schedule that shows it.")
@click.option(
    "--case", "case_name", default="", help="Try only the case of this name, such as 'all_gather all 2 ranks'."
)
@option("json")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Make every mistake in the synchronization of plans, and see each found.

    Each operator below changes every instruction of every rank that it is for, one at a time. A mutant is killed
    where a rule of plans refuses it, or the prover finds a violation that an execution then shows:
    wrong bytes, a deadlock, a barrier left too early. Otherwise the prover has to prove it right. A deletion that is
    right means that the plan has an instruction too many.

    Exit code 0: none survived, and no instruction is needless; 1 otherwise. In an algorithm or a plan of your own
    needless instructions are listed and no failure: the builder's words may wait once more than they need to.

    \b
    Examples:
      cxlemu mutate
      cxlemu mutate all_gather broadcast -n 2-3 --variant naive,all
      cxlemu mutate all_gather_gemm gemm_reduce_scatter --variant fused
      cxlemu mutate all_reduce --integrity crc32c
      cxlemu mutate --algorithm examples/my_all_reduce.py:my_all_reduce -n 2-3
      cxlemu mutate all_reduce.plan
      cxlemu mutate -n 4 -j 8 --json mutants.json
      cxlemu mutate --case 'all_gather naive 2 ranks' --mutant 0.0.1:delete
      cxlemu mutate -n 3 --case 'reduce naive 3 ranks' --mutant 0.0.4:sources=bc
    """
    from faults.cli.mutate_run import run

    run(ctx, **flags)
