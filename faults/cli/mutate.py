"""``cxlemu mutate``: every mistake in a plan's synchronization is found, or changes nothing."""

from collections.abc import Sequence
from pathlib import Path

import click

from collectives.defaults import EVERY
from cxlemu.choices import INTEGRITIES
from cxlemu.cli.options import Flags, argument, choice, concept, flag, taking
from cxlemu.cli.params import each_once
from cxlemu.cli.vocabulary import RanksParam
from faults.choices import MUTATED_RANKS_MAX, MUTATIONS

_TOLD = "\b\nOperators:\n" + "\n".join(f"  {name:<10}{what}" for name, what in MUTATIONS.items())


class MutateFlags(Flags):
    collectives: tuple[str, ...] = argument(nargs=-1, metavar="[COLLECTIVE]...|FILE.plan")
    ranks: Sequence[int] = concept("ranks", type=RanksParam(2, MUTATED_RANKS_MAX), default="2")
    variant: str = flag("--variant", default=EVERY, callback=each_once, help="Comma list of variants, or every.")
    algorithm: str | None = concept("algorithm")
    integrity: str | None = choice("--integrity", of=INTEGRITIES, help="Mutate plans whose doorbells carry checksums.")
    jobs: int | None = concept("jobs")
    mutant: str | None = flag(
        "--mutant", help="Try only this mutant of a single case, and print the schedule that shows it."
    )
    case_name: str = flag(
        "--case",
        default="",
        show_default=False,
        help="Try only the case of this name, such as 'all_gather all 2 ranks'.",
    )
    json_file: Path | None = concept("json")


@click.command(epilog=_TOLD)
@taking(MutateFlags, work="mutate_run:run")
def command() -> None:
    """Break the synchronization of plans in every way, and check that each mistake is found.

    Each operator below changes every instruction that it applies to, in every rank, one at a time. A mutant is killed
    if a rule of plans refuses it, or if the prover finds a violation and an execution confirms it: wrong bytes, a
    deadlock, a barrier left too early. The prover must prove every other mutant right. If a plan stays right without
    an instruction, that instruction is needless.

    Exit code 0 if no mutant survived and no instruction is needless, 3 if all survivors are unknown, else 1. In your
    own algorithm or plan, needless instructions are listed but are no failure: the builder may wait once more than
    necessary.

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
