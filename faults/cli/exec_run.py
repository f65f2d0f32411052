"""The work of ``cxlemu exec``: runs, one for each seed, and what they came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click

from cxlemu.cli.output import STDOUT
from cxlemu.cli.params import given_flags
from cxlemu.cli.progress import bar
from cxlemu.errors import ArgumentError, NothingJudgedError
from cxlemu.files import read_file
from cxlemu.signals import stops_exit
from cxlemu.units import counted, format_bytes
from faults.cli.exec import ExecFlags
from faults.cli.exec_report import ExecReport
from faults.programs.binary import preloaded
from faults.programs.commands import hosts_of, parse_coherent, parse_commands, parse_pools
from faults.programs.judge import suppress
from faults.programs.reports import ProgramReport
from faults.programs.result import WORST_CASES, ExecSetting, RunChoice, RunEnding, RunResult, unfired, untouched
from faults.programs.run import run as run_once
from faults.programs.unjudged import absent, for_coherent_caches, goes_on, not_its_own, not_judged
from faults.programs.words import shortened
from faults.verdict import Verdict

TOKEN_FILE_MAX = 1 << 21
EVERY_CRASH_S = 60.0
PRELOADED = "not compiled with cxlemu cc, so preloaded: "
ACCESSES = "each load and store of a pool faults, which is slow; --no-check is fast"
PAGES = "flushes and fences are seen, loads and stores only as pages that change"


def run(ctx: click.Context, asked: ExecFlags) -> None:
    given = given_flags(ctx)
    if asked.no_shrink and "shrink_s" in given:
        raise ArgumentError("--shrink and --no-shrink exclude each other: leave one of them out")
    report = ExecReport(asked)
    setting = _setting(asked)
    _check_places(asked, setting)
    _check_runs(asked, named="seeds" in given)
    trace, choices = _replayed(asked.replay, setting.hosts) if asked.replay is not None else (None, _choices(asked))
    if asked.keep_going and (asked.every or asked.breaks or len(choices) == 1):
        raise ArgumentError("--keep-going does nothing here: a search ends with a failure, and one run is alone")
    for pool in setting.pools:
        if pool.begins:
            report.note(f"# {pool.begins}")
    followed = preloaded(command.words[0] for command in setting.commands)
    if followed:
        by_access = asked.check and not asked.free
        _check_preloaded(asked, followed[0], by_access)
        report.note(f"# {', '.join(followed)}: {PRELOADED}{ACCESSES if by_access else PAGES}")
    if asked.every or asked.breaks:
        _search(ctx, asked, report, setting)
    if len(choices) == 1:
        setting = replace(setting, show=asked.json_file != STDOUT)
    with stops_exit():
        results = _all(report, setting, choices, asked.keep_going)
        failed = next((r for r in results if r.failed), None)
        smallest = report.shorten(setting, failed) if failed is not None and trace is None else failed
    shown = [smallest if result is failed and smallest is not None else result for result in results]
    findings = report.show(setting, shown, smallest, "" if smallest is None else str(smallest.choice))
    if failed is not None and len(results) < len(choices) and (how := goes_on(setting, results, findings)):
        report.note(how)
    if failed is not None and (why := not_its_own(setting, failed, findings, followed)):
        report.note(why)
    if why := for_coherent_caches(setting, results, findings):
        report.note(why)
    differs = trace is not None and results[0].trace != trace
    if differs:
        differ = "another trace than the token's: the programs, their input or their pool differ"
        report.out.print(differ, style="yellow")
    for result in results:
        if result.ending is RunEnding.DEADLINE:
            report.note(
                f"undecided: {result.choice} was ended at the deadline of {setting.deadline_s:g} s (--deadline-s)"
            )
            for sentence in result.doing:
                report.say(shortened(sentence), "  ")
    verdict = _verdict(setting, results)
    if differs and verdict is Verdict.OK:  # of a run that is not the token's
        verdict = Verdict.UNKNOWN
    if (why := absent([r for r in results if r.ending is RunEnding.FAILED])) and not untouched(setting, results):
        report.note(why)
    report.out.print(_summary(results, findings), markup=False)
    open_questions = dict.fromkeys(sentence for result in results for sentence in result.undecided)
    for sentence in (*unfired(results), *open_questions) if not untouched(setting, results) else ():
        report.note(sentence)
    report.say(not_judged(setting, results, findings, followed))
    report.end(ctx, verdict, setting, results, smallest, findings)


def _search(ctx: click.Context, asked: ExecFlags, report: ExecReport, setting: ExecSetting) -> NoReturn:
    """Make the runs of --every, --crash every and the like, and exit."""
    from faults.cli.exec_every import crashes, every
    from faults.programs.every.explore import EveryLimits

    hosts = _hosts_that_crash(asked, setting) if asked.breaks else []
    if not asked.every:
        crashes(ctx, report, setting, str(asked.breaks), hosts, asked.budget_s or EVERY_CRASH_S, asked.resume)
    limits = EveryLimits(
        asked.preemptions,
        asked.evictions or 0,
        asked.budget_s or EveryLimits.budget_s,
        tuple(hosts) if asked.crash else (),
        {"--poison": "poison", "--lose-card": "lose"}.get(asked.breaks or ""),
    )
    every(ctx, report, setting, limits, asked.resume)


def _setting(asked: ExecFlags) -> ExecSetting:
    pools, hosts = parse_pools(asked.pools), asked.hosts or hosts_of(asked.words)
    return ExecSetting(
        commands=parse_commands(asked.words, hosts),
        pools=pools,
        coherent=parse_coherent(asked.coherent, pools),
        dma_writes=asked.dma_writes,
        hosts=hosts,
        check=asked.check,
        free=asked.free,
        deadline_s=asked.deadline_s,
        idle_budget=asked.steps,
        crash=asked.crash_place,
        link_down=asked.link_down,
        poison=asked.poison or None,
        lose=asked.lose_card or None,
    )


def _check_places(asked: ExecFlags, setting: ExecSetting) -> None:
    """Refuse faults of hosts, pools and bytes that there are not, and runs in which no two hosts meet."""
    hosts, pools = setting.hosts, setting.pools
    for flag, of_host in (("--crash", setting.crash), ("--link-down", asked.link_down)):
        if of_host and of_host[0] >= hosts:
            raise ArgumentError(f"{flag}: there are hosts 0 to {hosts - 1}, not {of_host[0]}")
        if of_host and of_host[0] not in {command.host for command in setting.commands}:
            raise ArgumentError(f"{flag}: no command runs on host {of_host[0]}")
    for flag, of_pool in (("--lose-card", setting.lose), ("--poison", setting.poison)):
        if of_pool and of_pool[0] >= len(pools):
            raise ArgumentError(f"{flag}: there are pools 0 to {len(pools) - 1}, not {of_pool[0]}")
    if setting.poison and setting.poison[1] >= (pool := pools[setting.poison[0]]).capacity:
        room = format_bytes(pool.capacity)
        raise ArgumentError(f"--poison: {pool.path} has {room}, so there is no byte {setting.poison[1]}")
    unpinned = len(setting.commands) > 1 and not all(command.pinned for command in setting.commands)
    if (
        hosts == 1
        and unpinned
        and not (asked.crash or asked.link_down or asked.breaks or setting.poison or setting.lose)
    ):
        raise NothingJudgedError(
            "nothing between hosts would be judged: --hosts 1 puts all commands on host 0; if that is intended, write "
            "@0 before each of them"
        )


def _check_runs(asked: ExecFlags, *, named: bool) -> None:
    """Refuse options that choose runs in two ways; ``named`` says whether --seeds was given."""
    every, breaks = asked.every, asked.breaks
    seeded = named or asked.seed is not None or asked.worst_case is not None
    chosen = asked.free or asked.replay or seeded
    budget_s = None if breaks else asked.budget_s
    searching = {"--preemptions": asked.preemptions, "--evictions": asked.evictions, "--budget": budget_s}
    alone = next((flag for flag, value in searching.items() if value is not None), None)
    several = sum(fault is not None for fault in (asked.crash, asked.poison, asked.lose_card)) > 1
    rules: tuple[tuple[object, str], ...] = (
        (
            asked.replay is not None and seeded,
            "--replay makes the token's run, which holds the seed: leave --seed, --seeds and --worst-case out",
        ),
        (named and asked.seed is not None, "--seed and --seeds exclude each other: --seed makes one run"),
        (alone and not every, f"{alone} is for a search: add --every"),
        (every and chosen, "--every makes its own runs: leave --free, --seed, --seeds, --replay and --worst-case out"),
        (
            breaks and (chosen or asked.coherent or asked.link_down or several),
            f"{breaks} every makes its own runs, and injects nothing else: leave --free, --seed, --seeds, --replay, "
            "--worst-case, --coherent, --link-down and other faults out",
        ),
        (
            every and (asked.crash_place or asked.link_down or asked.poison or asked.lose_card),
            "--every injects no faults but --crash every, --poison every and --lose-card every: leave a step out, and "
            "--link-down",
        ),
        (
            asked.resume and not (every or breaks),
            "--resume is for a search: add --every, or --crash every and the like",
        ),
        (every and asked.coherent, "--every does not model coherent ranges: leave --coherent out"),
    )
    for applies, sentence in rules:
        if applies:
            raise ArgumentError(sentence)


def _check_preloaded(asked: ExecFlags, name: str, by_access: bool) -> None:
    """Refuse what needs loads to be seen, of a program that was compiled otherwise."""
    strange = f"{name} was not compiled with cxlemu cc"
    if asked.every or asked.breaks == "--crash" or (asked.breaks and not by_access):
        flag = "--every" if asked.every else f"{asked.breaks} every"
        raise ArgumentError(f"{flag} takes no program that is preloaded: {strange}")
    if not by_access and (asked.poison or asked.lose_card or asked.link_down):
        raise ArgumentError(
            f"{strange}: with --no-check or --free its loads are not seen, so --poison, --lose-card and --link-down "
            "cannot make them fail"
        )
    if not by_access and asked.check and asked.coherent:
        raise ArgumentError(
            f"{strange}: with --free its loads are not seen, so what hosts learn through --coherent is unknown; "
            "--no-check judges the program's results only"
        )


def _hosts_that_crash(asked: ExecFlags, setting: ExecSetting) -> list[int]:
    """List the hosts that can crash, or meet what breaks, so that a stage follows which recovers."""
    last, only = setting.commands[-1].stage, asked.crash[0] if asked.crash else None
    if last == 0:
        raise ArgumentError(
            f"{asked.breaks} every needs a stage that recovers: write -- ./program :: ./recover, where ./recover exits "
            "with 0 if it finds the pool in order"
        )
    hosts = sorted({command.host for command in setting.commands if command.stage < last})
    if only is not None and only not in hosts:
        raise ArgumentError(f"--crash: no command runs on host {only} before the last stage")
    return hosts if only is None else [only]


def _replayed(word: str, hosts: int) -> tuple[int, list[RunChoice]]:
    """Read a token: the hash of its run's steps, and how to make the run."""
    from faults.programs.replays import choice_of, read_token

    body = read_token(_read(word))
    if body.hosts != hosts:
        raise ArgumentError(f"the token is for --hosts {body.hosts}")
    return body.trace, [choice_of(body)]


def _read(word: str) -> str:
    if not word.startswith("@"):
        return word
    path = Path(word[1:])
    try:
        return read_file(path, TOKEN_FILE_MAX).decode("ascii", "replace")
    except OSError as error:
        raise ArgumentError(f"--replay: {path} cannot be read: {error.strerror}") from None


def _choices(asked: ExecFlags) -> list[RunChoice]:
    if asked.seed is not None:
        return [RunChoice(None if asked.worst_case else asked.seed, asked.seed)]
    worst = [] if asked.worst_case is False else [RunChoice(None, schedule) for schedule in WORST_CASES]
    choices = [*worst, *(RunChoice(k, k) for k in range(asked.seeds))]
    if not choices:
        raise ArgumentError("--seeds 0 --no-worst-case: there is nothing to run")
    return choices


def _all(report: ExecReport, setting: ExecSetting, choices: Sequence[RunChoice], keep_going: bool) -> list[RunResult]:
    results: list[RunResult] = []
    notes: set[str] = set()
    with bar(report.out, silent=setting.show) as progress:
        for choice in progress.track(choices, description="runs"):
            results.append(suppress(setting, run_once(setting, choice), report.reasons))
            for note in results[-1].notes:
                if note not in notes:
                    report.note(f"# {note}")
                    notes.add(note)
            if results[-1].ending is RunEnding.DEADLINE or (results[-1].failed and not keep_going):
                break
            if untouched(setting, results):  # another seed opens no other file
                break
    return results


def _verdict(setting: ExecSetting, results: list[RunResult]) -> Verdict:
    if any(result.failed for result in results):
        return Verdict.VIOLATION
    late = any(result.ending is RunEnding.DEADLINE or result.undecided for result in results)
    return Verdict.UNKNOWN if late or untouched(setting, results) or unfired(results) else Verdict.OK


def _summary(results: list[RunResult], report: ProgramReport) -> str:
    failed = sum(result.failed for result in results)
    late = sum(result.ending is RunEnding.DEADLINE for result in results)
    steps = sum(result.steps for result in results)
    ended = f"{failed} failed, {late} past the deadline"
    if report.warnings:
        ended += f", {counted(len(report.warnings), 'warning')}"
    return f"{counted(len(results), 'run')}: {ended}; {counted(steps, 'step')}"
