"""What the checker found in all runs of a setting, joined; and what a file of suppressions leaves of it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from faults.programs import reports
from faults.programs.findings import ProgramFinding
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
    """Set aside the findings that a suppression matches: they do not make a run fail."""
    if not reasons or not result.findings:
        return result
    told = report_of(setting, [result], (), reasons)
    counts = {(its.finding.kind, its.finding.site("store"), its.finding.site("access")) for its in told.suppressed}
    found = [(raw, ProgramFinding.one(bytes(raw))) for raw in result.findings]
    aside = [(f.kind, f.site("store"), f.site("access")) in counts for _, f in found]
    kept = [raw for (raw, _), is_aside in zip(found, aside, strict=True) if not is_aside]
    gone = [raw for (raw, _), is_aside in zip(found, aside, strict=True) if is_aside]
    return replace(result, findings=kept, suppressed=gone)
