"""The work of ``cxlemu mutate``: chooses cases, and tries every mutant of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import click

from collectives.algorithms.catalog import recipe
from collectives.cli.targets import NEVER, Target, check_options, target
from collectives.contracts import COLLECTIVES, contract_of
from collectives.sweep.defaults import EVERY
from cxlemu.cli.interruption import Interruption
from cxlemu.errors import ArgumentError, RunError
from cxlemu.units import counted
from cxlemu.world.signals import stops_exit
from faults.campaign.executors import Workers
from faults.choices import MUTATED_RANKS_MAX
from faults.cli.mutate_report import MutateReport, print_one
from faults.mutate.cases import OPERATORS, MutationCase, can_check, cases, own_cases, variants
from faults.mutate.mutants import Mutant
from faults.mutate.sweep import sweep
from faults.mutate.trial import Trial
from faults.prove.calls import CARDS_MAX
from faults.verdict import Verdict

SLOTS_MAX = 64  # slots of a saved plan: calls before it fill them all
PLAN_MAX = 5000  # instructions of a saved plan, each with its mutants


def run(
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
    """Try mutants, and print and write the result, as the command's flags say.

    With Ctrl-C it does so for what is finished. The command exits with 1 if a mutant survived or an instruction is
    needless, else with 130 after Ctrl-C, else with 0.

    Args:
        ctx: The command's context. Every other argument is the command's parameter of the same name.

    Raises:
        ArgumentError: The flags do not fit each other, or there is no such case or mutant.
        RunError: A worker was killed.
    """
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
    interruption = Interruption()
    with MutateReport(chosen, json_file, interruption) as report, interruption:
        _swept(chosen, jobs or len(os.sched_getaffinity(0)), report)
    interruption.exit(ctx, 1 if report.bad else 0, f"{counted(report.left, 'plan')} not finished")


def _check_size(asked: Target) -> None:
    """Raises ArgumentError for a saved plan that is too large to be tried this often."""
    assert asked.plan is not None
    instructions = sum(part.instruction_count for part in asked.plan.parts)
    layout = asked.plan.layout
    for what, number, most in (
        ("ranks", asked.plan.ranks, MUTATED_RANKS_MAX),
        ("cards", layout.cards, CARDS_MAX),
        ("slots", layout.slots, SLOTS_MAX),
        ("rounds", asked.plan.rounds, SLOTS_MAX),
        ("instructions", instructions, PLAN_MAX),
    ):
        if number > most:
            raise ArgumentError(f"{asked.source} has {number} {what}, too many to mutate: {most} at most")


def _cases(collectives: Sequence[str], ranks: Sequence[int], variant: str) -> Iterator[MutationCase]:
    """Yield the cases. Raises ArgumentError for an unknown collective, or a variant that no chosen collective has."""
    for collective in collectives:
        if collective not in OPERATORS:
            contract_of(collective)
    chosen = list(collectives or OPERATORS)
    wanted = variant.split(",")
    for name in wanted if variant != EVERY else ():
        if not any(_has(collective, name) for collective in chosen):
            raise ArgumentError(f"{chosen[0]} has no variant {name!r}: it has {', '.join(variants(chosen[0]))}")
    for collective in chosen:
        for count in ranks:
            for there in variants(collective) if variant == EVERY else wanted:
                if _has(collective, there):
                    yield from cases(collective, there, count)


def _has(collective: str, variant: str) -> bool:
    """Whether a collective or product has a variant, be it one that is cut into fewer chunks, ``NAME-K``."""
    if variant in variants(collective) or collective not in COLLECTIVES:
        return variant in variants(collective)
    try:
        return recipe(collective, variant).spec.chunks > 0 and variant.rpartition("-")[0] in variants(collective)
    except ArgumentError:
        return False


def _swept(chosen: Sequence[MutationCase], jobs: int, report: MutateReport) -> None:
    try:
        with stops_exit(), Workers(jobs) as workers:
            for row in sweep(chosen, workers):
                report.update(row)
    except BrokenProcessPool as error:
        raise RunError("a worker was killed, perhaps for want of memory: try fewer with --jobs") from error
