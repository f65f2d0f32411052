"""What the runs of a program did not judge: the last line that ``cxlemu exec`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cxlemu.units import counted
from faults.programs.binary import not_rebuilt
from faults.programs.reports import ProgramReport
from faults.programs.result import ExecSetting, RunResult, untouched

NAMED_MAX = 3


def not_judged(
    setting: ExecSetting, results: Sequence[RunResult], report: ProgramReport, preloaded: Sequence[str]
) -> str:
    """Say in a sentence what was not judged."""
    if untouched(setting, results):
        paths = " or ".join(pool.path for pool in setting.pools)
        why = absent(results) or _others(results, paths) or f"do they open and use {paths}?"
        return f"nothing was judged: no program touched the pool; {why}"
    return "not judged: " + "; ".join(_parts(setting, results, report, preloaded))


def absent(results: Sequence[RunResult]) -> str:
    """Say which pools a program opened that were not there yet, and what makes them; empty: none."""
    paths = list(dict.fromkeys(path for result in results for path in result.absent))
    if not paths:
        return ""
    return (
        f"{paths[0]} was opened without O_CREAT, and was not there: let a command before '::' make it, or fill it with "
        f"a file, --pool {paths[0]}=FILE"
    )


def goes_on(setting: ExecSetting, results: Sequence[RunResult], report: ProgramReport) -> str:
    """Say what may find the missing instruction, where the run that failed was not the last one; empty: nothing."""
    if untouched(setting, results) or any(each.missing for each in (*report.mistakes, *report.suppressed)):
        return ""
    order = "; or the programs' own order may be wrong, such as an acknowledgement before the load"
    how = "--keep-going tries the other ones, too" if setting.check else "--no-check looks for none: leave it out"
    return f"no missing instruction was found in this run: {how}{order if setting.check else ''}"


def for_coherent_caches(setting: ExecSetting, results: Sequence[RunResult], report: ProgramReport) -> str:
    """Say that programs may rely on hardware that keeps caches coherent; empty: they flush, or nothing is missing."""
    missing = any(each.missing for each in (*report.mistakes, *report.warnings))
    if not missing or setting.coherent or any(result.flushed for result in results):
        return ""
    return (
        "no program flushed a line, or stored past its cache: if hardware keeps these caches coherent (CXL 3), say so "
        "by --coherent"
    )


def not_its_own(setting: ExecSetting, failed: RunResult, report: ProgramReport, preloaded: Sequence[str]) -> str:
    """Say that a failure may not be the program's, as not all code was instrumented; empty: none was noticed."""
    if preloaded or not failed.unannounced or any(each.missing for each in report.mistakes):
        return ""
    libraries = ", ".join(not_rebuilt(command.words[0] for command in setting.commands))
    return (
        "no missing instruction was found, and code that cxlemu cc did not build stored to the pool: what such code "
        "loads is not checked, and may be old bytes that no hardware returns, so this failure need not be the "
        "program's; "
        f"build that code with cxlemu cc, too{f' (not built with it: {libraries})' if libraries else ''}"
    )


def _others(results: Sequence[RunResult], paths: str) -> str:
    """Name the files that programs opened instead; empty: none that could be a pool."""
    opened = dict.fromkeys(path for result in results for path in result.opened)
    likely = [path for path in opened if not path.startswith(("/dev/", "/proc/", "/sys/")) or _is_memory(path)]
    return f"they opened {', '.join(likely[:NAMED_MAX])}, not {paths}" if likely else ""


def _is_memory(path: str) -> bool:
    return path.startswith(("/dev/shm/", "/dev/dax"))


def _parts(
    setting: ExecSetting, results: Sequence[RunResult], report: ProgramReport, preloaded: Sequence[str]
) -> list[str]:
    parts = []
    if not setting.check:
        parts.append("the chain behind each load (--no-check), only what programs do")
    elif setting.free and preloaded:
        parts.append(f"single loads and stores of {', '.join(preloaded)} (--free)")
    if preloaded:
        parts.append("code made at run time")
    if setting.check and {Path(command.words[0]).name for command in setting.commands} - set(preloaded):
        parts.append("loads by code that cxlemu cc did not build, if there is any")  # which nothing here can tell
    if silent := sum(result.unannounced for result in results):
        by = "a system call that cxlemu does not know" if preloaded else "code that cxlemu cc did not build"
        parts.append(f"when {counted(silent, 'store')} by {by} took place, only that they did")
    if setting.check and any(result.expected for result in results):
        parts.append("loads that cxl_expect_stale marks")
    if setting.coherent:
        ranges = ", ".join(dict.fromkeys(span.text for span in setting.coherent))
        parts.append(f"whether hardware keeps caches coherent where it was asked for (--coherent {ranges})")
    crashes = any(result.choice.losses is not None for result in results)
    if not (crashes or setting.crash or setting.link_down or setting.poison or setting.lose):
        parts.append("failures (no --crash, --link-down, --poison or --lose-card)")
    if crashes:
        parts.append(
            "several faults in one run" if setting.every else "faults in other interleavings, or several in one run"
        )
    if report.suppressed:
        parts.append(counted(len(report.suppressed), "suppressed finding"))
    return parts
