"""The work of ``cxlemu mutate``: chooses cases, and tries every mutant of each."""

import os
from collections.abc import Iterator, Sequence
from functools import partial

import click

from collectives.algorithms.catalog import recipe
from collectives.cli.targets import NEVER, Target, check_options, target
from collectives.contracts import COLLECTIVES, contract_of
from collectives.defaults import EVERY
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.params import given_flags
from cxlemu.errors import ArgumentError
from cxlemu.signals import stops_exit
from cxlemu.units import counted
from faults.campaign.executors import Workers
from faults.choices import MUTATED_RANKS_MAX
from faults.cli.mutate import MutateFlags
from faults.cli.mutate_report import MutateReport, print_one, print_unmutated
from faults.left_out import NOTHING, NotDone, left_out, of_plans, without_clusters
from faults.mutate.cases import OPERATORS, MutationCase, can_check, cases, own_cases, variants
from faults.mutate.mutants import Mutant
from faults.mutate.sweep import sweep
from faults.mutate.trial import Trial
from faults.prove.calls import CARDS_MAX
from faults.verdict import Verdict

SLOTS_MAX = 64  # slots of a saved plan: calls before it fill them all
MEMORY_MAX = 1 << 24  # bytes of a rank's buffers, of each of many calls
PLAN_MAX = 5000  # instructions of a saved plan, each with its mutants


def run(ctx: click.Context, asked: MutateFlags) -> None:
    named = target(asked.collectives, asked.algorithm, variant=asked.variant != EVERY)
    if named.plan is not None:
        check_options(
            ctx, named, {"ranks": asked.ranks if [*asked.ranks] == [named.plan.ranks] else NEVER, "integrity": NEVER}
        )
        _check_size(named)
    there = (
        _cases(named.collectives, asked.ranks, asked.variant)
        if named.source is None
        else own_cases(named.source, asked.ranks)
    )
    if asked.integrity is not None:
        there = (case._replace(checked=True) for case in there if can_check(case))
    chosen = [case for case in there if asked.case_name in ("", str(case))]
    left = _left_out(ctx, asked, named, chosen) if not asked.case_name else NOTHING
    if not chosen and not asked.case_name:
        raise ArgumentError("no chosen variant has anything to mutate, or carries checksums with --integrity")
    if not chosen:
        raise ArgumentError(f"there is no case {asked.case_name!r} among those chosen: --json names them all")
    for case in chosen if named.source is not None else ():
        if (proof := Trial(case).unmutated()).verdict is not Verdict.OK:
            print_unmutated(case, proof, asked.json_file)
            ctx.exit(proof.verdict.exit_code)
    if asked.mutant is not None:
        if len(chosen) > 1:
            raise ArgumentError(
                f"--mutant names a mutant of one case, and {len(chosen)} are chosen: add --case, such as "
                f"--case {str(chosen[0])!r}; --json lists all"
            )
        judgement = Trial(chosen[0]).judge(Mutant.parse(asked.mutant))
        print_one(chosen[0], judgement, asked.json_file)
        ctx.exit(judgement.fate.verdict.exit_code)
    interruption = Interruption()
    with MutateReport(chosen, asked.json_file, interruption, left) as report, interruption:
        _swept(chosen, asked.jobs or len(os.sched_getaffinity(0)), report)
    interruption.exit(ctx, report.verdict.exit_code, f"{counted(report.left, 'plan')} not finished")


def _left_out(ctx: click.Context, asked: MutateFlags, named: Target, chosen: Sequence[MutationCase]) -> NotDone:
    """Say which plans were named and have nothing to mutate."""
    if named.source is not None:
        return NOTHING
    variants = [name for name in asked.variant.split(",") if name != EVERY]
    ranks = asked.ranks if "ranks" in given_flags(ctx) else None
    done = [(case.collective, case.variant, case.ranks) for case in chosen]
    why = partial(of_plans, checked=asked.integrity is not None)
    left = left_out((named.collectives or None, variants or None, ranks), done, why)
    more = [] if variants or asked.integrity else without_clusters(named.collectives or COLLECTIVES, asked.ranks)
    return left._replace(sentences=[*left.sentences, *more])


def _check_size(named: Target) -> None:
    """Raises ArgumentError for a saved plan that is too large to be tried this often."""
    assert named.plan is not None
    instructions = sum(part.instruction_count for part in named.plan.parts)
    layout = named.plan.layout
    for what, number, most in (
        ("ranks", named.plan.ranks, MUTATED_RANKS_MAX),
        ("cards", layout.cards, CARDS_MAX),
        ("slots", layout.slots, SLOTS_MAX),
        ("rounds", named.plan.rounds, SLOTS_MAX),
        ("instructions", instructions, PLAN_MAX),
        ("bytes in the memory of a rank", max(part.memory_bytes for part in named.plan.parts), MEMORY_MAX),
    ):
        if number > most:
            raise ArgumentError(f"{named.source} has {number} {what}, too many to mutate: {most} at most")


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
    with stops_exit(), Workers(jobs) as workers:
        for row in sweep(chosen, workers):
            report.update(row)
