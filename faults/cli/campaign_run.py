"""The work of ``cxlemu faults campaign``: sweeps, shrinks, and writes findings."""

import time
from contextlib import ExitStack

import click

from collectives.cli.targets import check_applies
from cxlemu.cli import INTERRUPTED
from cxlemu.cli.output import check_kept, check_output, write_json, write_output
from cxlemu.signals import stops_exit
from faults.campaign.executors import cores, executors
from faults.campaign.journal import Journal
from faults.campaign.report import as_json, as_junit, page
from faults.campaign.run import CampaignRunner
from faults.campaign.spec import NATURE, UNTAKEN, Spec
from faults.cli.campaign import CampaignFlags
from faults.cli.campaign_report import Screen


def run(ctx: click.Context, asked: CampaignFlags) -> None:
    for flag, path in (("--junit", asked.junit), ("--html", asked.html)):
        check_output(flag, path)
    if asked.resume is not None:
        check_kept("--resume", asked.resume)
    began = time.monotonic()
    check_applies(ctx, asked.collectives)
    spec = _with_flags(Spec.load(asked.config) if asked.config else Spec(), asked)
    sweep = spec.sweep(asked.seeds)
    campaign = {"spec": spec.model_dump(mode="json", exclude_defaults=True), "seeds": asked.seeds}
    workers = asked.jobs or cores()
    with ExitStack() as stack:
        make = stack.enter_context(executors(asked.executor, workers, asked.scheduler))
        journal = stack.enter_context(Journal(asked.resume, campaign)) if asked.resume else None
        screen = stack.enter_context(Screen(len(sweep), workers, asked.executor))
        if set(spec.kinds) - {NATURE} and not sweep.has_faults:
            screen.note(f"only caches move lines, no fault happens: {UNTAKEN}")
        if journal is not None and journal.dropped:
            screen.note(
                f"--resume {asked.resume}: line {journal.dropped} was cut off and is dropped; its case runs again"
            )
        stack.enter_context(stops_exit())
        left_s = max(asked.budget_s - (time.monotonic() - began), 0.0)
        result = CampaignRunner(sweep, make, workers, left_s, journal, screen.tell).run()
    screen.print(result)
    write_json(asked.json_file, as_json(result, campaign))
    if asked.junit is not None:
        write_output("--junit", asked.junit, as_junit(result))
    if asked.html is not None:
        write_output("--html", asked.html, page(result, "Fault campaign").encode())
    ctx.exit(INTERRUPTED if result.interrupted and not result.findings else result.exit_code)


def _with_flags(spec: Spec, asked: CampaignFlags) -> Spec:
    """Let flags replace fields of the file. Raises ArgumentError for values that no campaign can have."""
    given = {name: value for name, value in vars(asked).items() if value and name in {*Spec.model_fields} - {"config"}}
    return Spec.of(spec.model_dump(exclude_unset=True) | given)
