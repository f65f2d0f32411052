"""The work of ``cxlemu faults campaign``: sweeps, shrinks, and writes findings."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from collectives.cli.targets import check_applies
from cxlemu.cli import INTERRUPTED
from cxlemu.cli.output import check_output, write_json, write_output
from cxlemu.errors import ArgumentError
from cxlemu.signals import stops_exit
from cxlemu.units import format_bytes, typed_bytes
from faults.campaign.case import BLOCK_BYTES_MAX
from faults.campaign.executors import cores, executors
from faults.campaign.journal import Journal
from faults.campaign.report import as_json, as_junit, page
from faults.campaign.run import CampaignResult, CampaignRunner
from faults.campaign.spec import NATURE, UNTAKEN, Spec
from faults.cli.campaign_report import Screen


def run(
    collectives: tuple[str, ...],
    config: str | None,
    seeds: int,
    budget: float,
    jobs: int | None,
    executor: str,
    scheduler: str | None,
    resume: Path | None,
    json_file: Path | None,
    junit: Path | None,
    html: Path | None,
    **flags: Any,
) -> None:
    outputs = {"--junit": junit, "--html": html}
    for flag, path in outputs.items():
        if path is not None:
            check_output(flag, path)
    asked = {"collectives": collectives, "sizes": flags.pop("size"), **flags}
    began = time.monotonic()
    check_applies(click.get_current_context(), collectives)
    spec = _with_flags(Spec.load(config) if config else Spec(), asked)
    sweep = spec.sweep(seeds)
    campaign = {"spec": spec.model_dump(mode="json", exclude_defaults=True), "seeds": seeds}
    workers = jobs or cores()
    with ExitStack() as stack:
        make = stack.enter_context(executors(executor, workers, scheduler))
        journal = stack.enter_context(Journal(resume, campaign)) if resume else None
        screen = stack.enter_context(Screen(len(sweep), workers, executor))
        if set(spec.kinds) - {NATURE} and not sweep.has_faults:
            screen.note(f"only caches move lines, no fault happens: {UNTAKEN}")
        if journal is not None and journal.dropped:
            screen.note(f"--resume {resume}: line {journal.dropped} was cut off and is dropped; its case runs again")
        stack.enter_context(stops_exit())
        left_s = max(budget - (time.monotonic() - began), 0.0)
        result = CampaignRunner(sweep, make, workers, left_s, journal, screen.tell).run()
    screen.print(result)
    write_json(json_file, as_json(result, campaign))
    _write(result, outputs)
    click.get_current_context().exit(INTERRUPTED if result.interrupted and not result.findings else result.exit_code)


def _with_flags(spec: Spec, asked: dict[str, Any]) -> Spec:
    """Let flags replace fields of the file. Raises ArgumentError for values that no campaign can have."""
    given = {name: value for name, value in asked.items() if value}
    try:
        return Spec.model_validate(spec.model_dump(exclude_unset=True) | given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        if place.startswith("sizes.") and first["type"] == "less_than_equal":
            most = format_bytes(BLOCK_BYTES_MAX)
            raise ArgumentError(f"-b {typed_bytes(first['input'])} exceeds the limit of {most}") from None
        raise ArgumentError(f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


def _write(result: CampaignResult, outputs: dict[str, Path | None]) -> None:
    contents = {
        "--junit": lambda: as_junit(result),
        "--html": lambda: page(result, "Fault campaign").encode(),
    }
    for flag, path in outputs.items():
        if path is not None:
            write_output(flag, path, contents[flag]())
