"""``cxlemu mutate``: every mistake in a plan's synchronization is found, or is none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import click

from collectives.cli.targets import NEVER, Target, check_options, target
from collectives.cli.texts import ALGORITHM_HELP
from collectives.contracts import contract_of
from cxlemu.cli.output import check_json_file
from cxlemu.errors import ArgumentError, RunError
from cxlemu.plan.checksums import INTEGRITIES
from cxlemu.world.signals import stops_exit
from faults.campaign.executors import Workers
from faults.cli.mutate_report import MutateReport, print_one
from faults.cli.ranks import RanksParam
from faults.mutate import operators
from faults.mutate.cases import OPERATORS, MutationCase, can_check, cases, own_cases, variants
from faults.mutate.mutants import Mutant
from faults.mutate.sweep import sweep
from faults.mutate.trial import Trial
from faults.prove.calls import CARDS_MAX
from faults.verdict import Verdict

EVERY = "every"
RANKS_MAX = 8  # plans are small, but mutants many
PLAN_MAX = 5000  # instructions of a saved plan, each with its mutants
SLOTS_MAX = 64  # of a saved plan: calls before it fill them all


_TOLD = "\b\nOperators:\n" + "\n".join(f"  {operator.name:<10}{operator.what}" for operator in operators.OPERATORS)


@click.command(epilog=_TOLD)
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...|FILE.plan")
@click.option("-n", "--ranks", type=RanksParam(2, RANKS_MAX), default="2", show_default=True, metavar="N|N-N|N,N")
@click.option("--variant", default=EVERY, show_default=True, help="One or more, as a comma list, or every.")
@click.option("--algorithm", metavar="FILE.py:FUNCTION", help=ALGORITHM_HELP)
@click.option("--integrity", type=click.Choice(INTEGRITIES), help="Plans whose doorbells carry checksums.")
@click.option("-j", "--jobs", type=click.IntRange(1, 256), help="Workers.  [default: one a core]")
@click.option("--mutant", help="Only this mutant of the one case that is left; prints the schedule that shows it.")
@click.option("--case", "case_name", default="", help="Only the case of this name, such as 'all_gather all 2 ranks'.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
@click.pass_context
def command(
    ctx: click.Context,
    collectives: tuple[str, ...],
    ranks: Sequence[int],
    variant: str,
    algorithm: str | None,
    integrity: str | None,
    jobs: int | None,
    mutant: str | None,
    case_name: str,
    json_file: Path | None,
) -> None:
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
      cxlemu mutate --case 'all_gather naive 2 ranks' --mutant 0.0.2:delete
      cxlemu mutate -n 3 --case 'reduce naive 3 ranks' --mutant 0.0.4:sources=bc
    """
    check_json_file(json_file)
    asked = target(collectives, algorithm, variant=variant != EVERY)
    if asked.plan is not None:
        check_options(ctx, asked, {"ranks": ranks if [*ranks] == [asked.plan.ranks] else NEVER, "integrity": NEVER})
        _check_size(asked)
    there = _cases(asked.collectives, ranks, variant) if asked.source is None else own_cases(asked.source, ranks)
    if integrity is not None:
        there = (case._replace(checked=True) for case in there if can_check(case))
    chosen = [case for case in there if case_name in ("", str(case))]
    if not chosen:
        raise ArgumentError(f"there is no case {case_name!r} among those chosen: --json names them all")
    for case in chosen if asked.source is not None else ():
        if (proof := Trial(case).unmutated()).verdict is not Verdict.OK:
            click.echo(f"{case}: {proof.verdict.value} before anything is mutated: {proof.reason}")
            ctx.exit(proof.verdict.exit_code)
    if mutant is not None:
        if len(chosen) > 1:
            raise ArgumentError(f"--mutant is one of one case, and {len(chosen)} are chosen: add --case")
        judgement = Trial(chosen[0]).judge(Mutant.parse(mutant))
        print_one(chosen[0], judgement)
        ctx.exit(1 if judgement.fate.survived else 0)
    with MutateReport(chosen, json_file) as report:
        _swept(chosen, jobs or len(os.sched_getaffinity(0)), report)
    ctx.exit(1 if report.bad else 0)


def _check_size(asked: Target) -> None:
    """Raises ArgumentError for a saved plan that is too large to be tried so often."""
    assert asked.plan is not None
    instructions = sum(part.instruction_count for part in asked.plan.parts)
    layout = asked.plan.layout
    for what, number, most in (
        ("ranks", asked.plan.ranks, RANKS_MAX),
        ("cards", layout.cards, CARDS_MAX),
        ("slots", layout.slots, SLOTS_MAX),
        ("rounds", asked.plan.rounds, SLOTS_MAX),
        ("instructions", instructions, PLAN_MAX),
    ):
        if number > most:
            raise ArgumentError(f"{asked.source} has {number} {what}, too many to mutate: {most} at most")


def _cases(collectives: Sequence[str], ranks: Sequence[int], variant: str) -> Iterator[MutationCase]:
    """Raises ArgumentError for a collective that there is not, or a variant that none of them has."""
    for collective in collectives:
        if collective not in OPERATORS:
            contract_of(collective)
    chosen = list(collectives or OPERATORS)
    wanted = variant.split(",")
    for name in wanted if variant != EVERY else ():
        if not any(name in variants(collective) for collective in chosen):
            raise ArgumentError(f"{chosen[0]} has no variant {name!r}: it has {', '.join(variants(chosen[0]))}")
    for collective in chosen:
        for count in ranks:
            for there in variants(collective):
                if variant == EVERY or there in wanted:
                    yield from cases(collective, there, count)


def _swept(chosen: Sequence[MutationCase], jobs: int, report: MutateReport) -> None:
    try:
        with stops_exit(), Workers(jobs) as workers:
            for row in sweep(chosen, workers):
                report.update(row)
    except BrokenProcessPool as error:
        raise RunError("a worker was killed, perhaps for want of memory: try fewer with --jobs") from error
