"""What ``cxlemu exec`` writes of its findings: text, SARIF, a page, litmus tests; and what is suppressed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cxlemu.cli.output import check_output, write_output
from cxlemu.errors import ArgumentError
from faults.programs import reports
from faults.programs.findings import ProgramFinding
from faults.programs.page import page
from faults.programs.replays import token_of
from faults.programs.reports import Checked, ProgramReport
from faults.programs.result import ExecSetting, RunEnding, RunResult
from faults.programs.suppressions import Suppression


def again(setting: ExecSetting, result: RunResult, words: Sequence[str]) -> str:
    """Write the command that makes a run again."""
    pools = " ".join(f"--pool {shlex.quote(pool.path)}" for pool in setting.pools)
    commands = " ".join(word if word in (":", "::") else shlex.quote(word) for word in words)
    return f"cxlemu exec {pools} --hosts {setting.hosts} --replay {token_of(setting, result)} -- {commands}"


def report_of(
    setting: ExecSetting, results: Sequence[RunResult], words: Sequence[str], reasons: Sequence[Suppression]
) -> ProgramReport:
    """Join what the checker found in all runs.

    Args:
        setting: What was run.
        results: The runs.
        words: The commands, as they were given.
        reasons: What is suppressed.
    """
    checked = [
        Checked(
            ProgramFinding.many(b"".join(map(bytes, (*result.findings, *result.suppressed)))),
            result.places,
            str(result.choice),
            again(setting, result, words) if result.findings else "",
            result.ending is RunEnding.ENDED,
        )
        for result in results
    ]
    return reports.report(checked, [pool.path for pool in setting.pools], reasons)


def suppress(setting: ExecSetting, result: RunResult, reasons: Sequence[Suppression]) -> RunResult:
    """Put the findings aside that somebody gave a reason for: they do not make a run fail."""
    if not reasons or not result.findings:
        return result
    told = report_of(setting, [result], (), reasons)
    counts = {(its.finding.kind, its.finding.site("store"), its.finding.site("access")) for its in told.suppressed}
    found = [(raw, ProgramFinding.one(bytes(raw))) for raw in result.findings]
    aside = [(f.kind, f.site("store"), f.site("access")) in counts for _, f in found]
    kept = [raw for (raw, _), is_aside in zip(found, aside, strict=True) if not is_aside]
    gone = [raw for (raw, _), is_aside in zip(found, aside, strict=True) if is_aside]
    return replace(result, findings=kept, suppressed=gone)


def check_outputs(sarif: Path | None, html: Path | None, litmus: Path | None) -> None:
    """Refuse files before the work begins.

    Raises:
        ArgumentError: One of them could not be written in the end.
    """
    check_output("--sarif", sarif)
    check_output("--html", html)
    if litmus is not None and not (litmus.is_dir() or (not litmus.exists() and litmus.parent.is_dir())):
        raise ArgumentError(f"--litmus {litmus}: name a folder, or one that can be made in a folder that is there")


def write_outputs(told: ProgramReport, title: str, sarif: Path | None, html: Path | None, litmus: Path | None) -> None:
    """Write what flags ask for.

    Args:
        told: The report.
        title: Title of the page.
        sarif: File of ``--sarif``; None: there is none.
        html: File of ``--html``; None: there is none.
        litmus: Folder of ``--litmus``: its chain and the repair of each finding; None: there is none.

    Raises:
        ArgumentError: A file cannot be written after all.
    """
    if sarif is not None:
        write_output("--sarif", sarif, (json.dumps(reports.as_sarif(told), indent=2) + "\n").encode())
    if html is not None:
        write_output("--html", html, page(told, title).encode())
    if litmus is not None:
        try:
            litmus.mkdir(exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"--litmus {litmus} cannot be made: {error.strerror}") from error
        for number, mistake in enumerate(told.mistakes, 1):
            chain = mistake.chain()
            if chain is not None:
                write_output("--litmus", litmus / f"{number:02}-{mistake.kind.name}.yaml", chain.broken.encode())
                write_output("--litmus", litmus / f"{number:02}-{mistake.kind.name}-fixed.yaml", chain.fixed.encode())
