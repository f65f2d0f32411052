"""What ``cxlemu exec`` writes of its findings: SARIF, a page, litmus tests."""

from __future__ import annotations

import json
from pathlib import Path

from cxlemu.cli.output import check_output, write_output
from cxlemu.errors import ArgumentError
from faults.programs import reports
from faults.programs.reports import ProgramReport


def check_outputs(sarif: Path | None, html: Path | None, litmus: Path | None) -> None:
    """Refuse files before the work begins."""
    check_output("--sarif", sarif)
    check_output("--html", html)
    if litmus is not None and not (litmus.is_dir() or (not litmus.exists() and litmus.parent.is_dir())):
        raise ArgumentError(f"--litmus {litmus}: name a folder, or a new one in an existing folder")


def write_outputs(
    report: ProgramReport, title: str, sarif: Path | None, html: Path | None, litmus: Path | None
) -> None:
    if sarif is not None:
        write_output("--sarif", sarif, (json.dumps(reports.as_sarif(report), indent=2) + "\n").encode())
    if html is not None:
        from faults.programs.page import page  # it needs half of the project

        write_output("--html", html, page(report, title).encode())
    if litmus is not None:
        try:
            litmus.mkdir(exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"--litmus {litmus} cannot be made: {error.strerror}") from error
        for number, mistake in enumerate(report.mistakes, 1):
            chain = mistake.chain()
            if chain is not None:
                write_output("--litmus", litmus / f"{number:02}-{mistake.kind.name}.yaml", chain.broken.encode())
                write_output("--litmus", litmus / f"{number:02}-{mistake.kind.name}-fixed.yaml", chain.fixed.encode())
