"""What the checker found in all runs of a setting, joined; and what a file of suppressions leaves of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from faults.programs import reports
from faults.programs.findings import OF_FAILURES, ProgramFinding
from faults.programs.reports import Checked, ProgramReport
from faults.programs.result import ExecSetting, RunEnding, RunResult
from faults.programs.suppressions import Suppression


def again(setting: ExecSetting, result: RunResult, words: Sequence[str]) -> str:
    """Write the command that makes a run again; one side by side cannot be repeated: others are made."""
    from faults.programs.replays import token_of  # only here, and where a token is read: it needs pydantic

    pools = " ".join(f"--pool {shlex.quote(str(pool))}" for pool in setting.pools)
    commands = " ".join(word if word in (":", "::") else shlex.quote(word) for word in words)
    flags = "".join(f"{flag} " for flag in _flags(setting))
    how = "--free" if setting.free else f"--replay {token_of(setting, result)}"
    return f"cxlemu exec {pools} --hosts {setting.hosts} {flags}{how} -- {commands}"


def _flags(setting: ExecSetting) -> Iterator[str]:
    """Write the flags on which it depends how a run ends."""
    if not setting.check:
        yield "--no-check"
    if setting.idle_budget != ExecSetting.idle_budget:
        yield f"--steps {setting.idle_budget}"
    yield from dict.fromkeys(f"--coherent {span.text}" for span in setting.coherent)
    if setting.dma_writes != ExecSetting.dma_writes:
        yield f"--dma-writes {setting.dma_writes}"
    broken = {"crash": setting.crash, "link-down": setting.link_down, "lose-card": setting.lose}
    yield from (f"--{flag} {place[0]}@{place[1]}" for flag, place in broken.items() if place)
    if setting.poison:
        pool, offset, step = setting.poison
        yield f"--poison {f'{pool}:' if pool else ''}{offset}@{step}"


def report_of(
    setting: ExecSetting, results: Sequence[RunResult], words: Sequence[str], reasons: Sequence[Suppression]
) -> ProgramReport:
    """Join what the checker found in all runs."""
    checked = [
        Checked(
            ProgramFinding.many(b"".join(map(bytes, (*result.findings, *result.suppressed, *result.warnings)))),
            result.places,
            str(result.choice),
            again(setting, result, words) if result.findings else "",
            result.ending is RunEnding.ENDED,
            result.history,
        )
        for result in results
    ]
    return reports.report(checked, [pool.path for pool in setting.pools], reasons)


def suppress(setting: ExecSetting, result: RunResult, reasons: Sequence[Suppression]) -> RunResult:
    """Set aside the findings that a suppression matches: they do not make a run fail."""
    if not reasons or not (result.findings or result.warnings):
        return result
    report = report_of(setting, [result], (), reasons)
    matched = frozenset(reasons) - frozenset(report.unused)
    counts = {
        (mistake.finding.kind, mistake.finding.site("store"), mistake.finding.site("access"))
        for mistake in report.suppressed
    }
    pairs = [(raw, ProgramFinding.one(bytes(raw))) for raw in result.findings]
    aside = [(f.kind, f.site("store"), f.site("access")) in counts for _, f in pairs]
    kept = [raw for (raw, _), is_aside in zip(pairs, aside, strict=True) if not is_aside]
    gone = [raw for (raw, _), is_aside in zip(pairs, aside, strict=True) if is_aside]
    if result.ending is RunEnding.ENDED and all(raw.kind in OF_FAILURES for raw in kept):
        kept = []  # what was lost did no harm
    return replace(result, findings=kept, suppressed=gone, matched=matched)


def matches_more(result: RunResult, shown: Sequence[RunResult]) -> bool:
    """Whether a suppression matches in a run, and in none of those that are shown."""
    return not result.matched <= frozenset[Suppression]().union(*(run_result.matched for run_result in shown))
