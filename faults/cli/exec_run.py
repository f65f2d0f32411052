"""The work of ``cxlemu exec``: runs, one for each seed, and what they came to."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.output import STDOUT, write_json
from cxlemu.cli.progress import bar, spinning
from cxlemu.errors import ArgumentError, NothingJudgedError
from cxlemu.files import read_file
from cxlemu.signals import stops_exit
from cxlemu.units import counted, format_bytes
from faults.cli.exec_report import check_outputs, write_outputs
from faults.programs.binary import preloaded
from faults.programs.commands import parse_coherent, parse_commands, parse_pools
from faults.programs.judge import again, report_of, suppress
from faults.programs.reports import ProgramReport, as_json
from faults.programs.result import WORST_CASES, ExecSetting, RunChoice, RunEnding, RunResult, unfired, untouched
from faults.programs.run import run as run_once
from faults.programs.suppressions import Suppression
from faults.programs.suppressions import read as read_suppressions
from faults.programs.unjudged import absent, not_judged
from faults.programs.words import repeats, text, unused, wrapped
from faults.verdict import Verdict

TOKEN_FILE_MAX = 1 << 21
EVERY_CRASH_S = 60.0
OUTPUT_LINES = 20
PRELOADED = "not compiled with cxlemu cc, so preloaded: "
ACCESSES = "each load and store of a pool faults, which is slow; --no-check is fast"
PAGES = "flushes and fences are seen, loads and stores only as pages that change"


def run(
    ctx: click.Context,
    search: Callable[..., None],
    search_crashes: Callable[..., None],
    pools: tuple[str, ...],
    hosts: int,
    seeds: int,
    seed: int | None,
    replay: str | None,
    worst_case: bool | None,
    check: bool,
    coherent: tuple[str, ...],
    dma_writes: str,
    free: bool,
    every: bool,
    preemptions: int | None,
    evictions: int | None,
    budget_s: float | None,
    resume: Path | None,
    keep_going: bool,
    shrink_s: float,
    crash: tuple[int | None, int | None] | None,
    link_down: tuple[int, int] | None,
    poison: tuple[int, ...] | None,
    lose_card: tuple[int, ...] | None,
    deadline_s: float,
    steps: int,
    error_exitcode: int,
    json_file: Path | None,
    sarif: Path | None,
    html: Path | None,
    litmus: Path | None,
    suppressions: Path | None,
    words: tuple[str, ...],
) -> None:
    """Run programs, and print and write what was found, as the command's flags say.

    The command exits with the code that its help states.
    """
    check_outputs(sarif, html, litmus)
    reasons = read_suppressions(suppressions) if suppressions is not None else []
    files = parse_pools(pools)
    setting = ExecSetting(
        commands=parse_commands(words, hosts),
        pools=files,
        coherent=parse_coherent(coherent, files),
        dma_writes=dma_writes,
        hosts=hosts,
        check=check,
        free=free,
        deadline_s=deadline_s,
        idle_budget=steps,
        crash=_step(crash),
        link_down=link_down,
        poison=poison or None,  # type: ignore[arg-type]  # three numbers
        lose=lose_card or None,  # type: ignore[arg-type]  # two
    )
    used = {command.host for command in setting.commands}
    _check_hosts("--crash", _step(crash), hosts, used)
    _check_hosts("--link-down", link_down, hosts, used)
    for flag, place in (("--lose-card", lose_card), ("--poison", poison)):
        if place and place[0] >= len(setting.pools):
            raise ArgumentError(f"{flag}: there are pools 0 to {len(setting.pools) - 1}, not {place[0]}")
    if poison and poison[1] >= files[poison[0]].capacity:
        room = format_bytes(files[poison[0]].capacity)
        raise ArgumentError(f"--poison: {files[poison[0]].path} has {room}, so there is no byte {poison[1]}")
    unpinned = len(setting.commands) > 1 and not all(command.pinned for command in setting.commands)
    if hosts == 1 and unpinned and not (crash or link_down or poison is not None or lose_card is not None):
        raise NothingJudgedError(
            "nothing between hosts would be judged: --hosts 1 puts all commands on host 0; if that is intended, write "
            "@0 before each of them"
        )
    named = ctx.get_parameter_source("seeds") is ParameterSource.COMMANDLINE
    if replay is not None and (named or seed is not None or worst_case is not None):
        raise ArgumentError(
            "--replay makes the token's run, which holds the seed: leave --seed, --seeds and --worst-case out"
        )
    if named and seed is not None:
        raise ArgumentError("--seed and --seeds exclude each other: --seed makes one run")
    other = free or replay or named or seed is not None or worst_case is not None
    everywhere = {"--crash": crash and crash[1] is None, "--poison": poison == (), "--lose-card": lose_card == ()}
    breaks = next((flag for flag, is_every in everywhere.items() if is_every), None)
    _check_every(every, preemptions, evictions, budget_s, breaks, other)
    several = sum(its is not None for its in (crash, poison, lose_card)) > 1
    if breaks and (other or coherent or link_down or several):
        raise ArgumentError(
            f"{breaks} every makes its own runs, and injects nothing else: leave --free, --seed, --seeds, --replay, "
            "--worst-case, --coherent, --link-down and other faults out"
        )
    if every and (setting.crash or link_down or poison or lose_card):
        raise ArgumentError(
            "--every injects no faults but --crash every, --poison every and --lose-card every: leave a step out, and "
            "--link-down"
        )
    if resume and not every:
        raise ArgumentError("--resume is for a search of interleavings: add --every")
    if every and coherent:
        raise ArgumentError("--every does not model coherent ranges: leave --coherent out")
    trace, choices = _replayed(replay, hosts) if replay is not None else (None, _choices(seeds, seed, worst_case))
    if keep_going and (every or breaks or len(choices) == 1):
        raise ArgumentError("--keep-going does nothing here: a search ends with a failure, and one run is alone")
    out = console()
    for pool in files:
        if pool.content == Path(pool.path) and pool.size:
            print_wrapped(out, f"# The pool begins with the {format_bytes(pool.size)} of {pool.path}", "yellow")
    if followed := preloaded(command.words[0] for command in setting.commands):
        by_access = check and not free
        if every or breaks:
            flag = "--every" if every else f"{breaks} every"
            raise ArgumentError(f"{flag}: {followed[0]} was not compiled with cxlemu cc, so its loads are not all seen")
        if not by_access:
            _check_preloaded(followed[0], poison, lose_card, link_down)
            if check and setting.coherent:
                raise ArgumentError(
                    f"{followed[0]} was not compiled with cxlemu cc: with --free its loads are not seen, so nobody "
                    "knows what hosts learn through --coherent; --no-check judges the program's results only"
                )
        how = PRELOADED + (ACCESSES if by_access else PAGES)
        print_wrapped(out, f"# {', '.join(followed)}: {how}", "yellow")
    if every:
        from faults.programs.every.explore import EveryLimits

        hosts_to_fail = tuple(hosts_that_crash(setting, crash[0] if crash else None, breaks)) if breaks else ()
        limits = EveryLimits(
            preemptions,
            evictions or 0,
            budget_s or EveryLimits.budget_s,
            hosts_to_fail if crash else (),
            "poison" if poison == () else "lose" if lose_card == () else None,
        )
        search(
            ctx,
            out,
            setting,
            limits,
            words,
            reasons,
            shrink_s=shrink_s,
            error_exitcode=error_exitcode,
            json_file=json_file,
            outputs=(sarif, html, litmus),
            resume=resume,
        )
    if breaks:
        search_crashes(
            ctx,
            out,
            setting,
            breaks,
            hosts_that_crash(setting, crash[0] if crash else None, breaks),
            budget_s or EVERY_CRASH_S,
            words,
            reasons,
            shrink_s=shrink_s,
            error_exitcode=error_exitcode,
            json_file=json_file,
            outputs=(sarif, html, litmus),
        )
    if len(choices) == 1:
        setting = replace(setting, show=json_file != STDOUT)
    with stops_exit():
        results = _all(out, setting, choices, keep_going, reasons)
        failed = next((r for r in results if r.failed), None)
        smallest = shorten(out, setting, failed, shrink_s) if failed is not None and trace is None else failed
    shown = [smallest if result is failed and smallest is not None else result for result in results]
    report = report_of(setting, shown, words, reasons)
    out.print(text(report), end="", markup=False, highlight=False, soft_wrap=True)
    if failed is not None and smallest is not None:
        tell(out, setting, smallest)
    unfound = smallest if smallest is not None and not smallest.findings else None
    also = {again(setting, unfound, words): str(unfound.choice)} if unfound is not None else {}
    out.print(repeats(report, also), end="", markup=False, soft_wrap=True)
    differs = trace is not None and results[0].trace != trace
    if differs:
        out.print("another trace than the token's: the programs, their input or their pool differ", style="yellow")
    _tell_late(out, setting, results)
    verdict = _verdict(setting, results)
    if differs and verdict is Verdict.OK:  # of a run that is not the token's
        verdict = Verdict.UNKNOWN
    if (why := absent([r for r in results if r.ending is RunEnding.FAILED])) and not untouched(setting, results):
        print_wrapped(out, why, "yellow")
    out.print(_summary(results, report), markup=False)
    open_questions = dict.fromkeys(sentence for result in results for sentence in result.undecided)
    for sentence in (*unfired(results), *open_questions) if not untouched(setting, results) else ():
        print_wrapped(out, sentence, "yellow")
    out.print(wrapped(not_judged(setting, results, report, followed), more="  "), markup=False)
    write_json(json_file, document(verdict, setting, results, smallest) | {"found": as_json(report)})
    write_outputs(report, shlex.join(words), sarif, html, litmus)
    click.echo(unused(report), err=True, nl=False)
    ctx.exit(error_exitcode if verdict is Verdict.VIOLATION else verdict.exit_code)


def hosts_that_crash(setting: ExecSetting, only: int | None, flag: str) -> list[int]:
    """List the hosts that can crash, or meet what breaks, so that a stage follows which recovers."""
    last = setting.commands[-1].stage
    if last == 0:
        raise ArgumentError(
            f"{flag} every needs a stage that recovers: write -- ./program :: ./recover, where ./recover exits "
            "with 0 if it finds the pool in order"
        )
    hosts = sorted({command.host for command in setting.commands if command.stage < last})
    if only is not None and only not in hosts:
        raise ArgumentError(f"--crash: no command runs on host {only} before the last stage")
    return hosts if only is None else [only]


def _step(crash: tuple[int | None, int | None] | None) -> tuple[int, int] | None:
    """Return the crash that was asked for, unless a search makes all of them."""
    return (crash[0], crash[1]) if crash and crash[0] is not None and crash[1] is not None else None


def _check_every(
    every: bool,
    preemptions: int | None,
    evictions: int | None,
    budget_s: float | None,
    breaks: str | None,
    other: object,
) -> None:
    flags = {"--preemptions": preemptions, "--evictions": evictions, "--budget": None if breaks else budget_s}
    alone = [flag for flag, value in flags.items() if value is not None]
    if alone and not every:
        raise ArgumentError(f"{alone[0]} is for a search: add --every")
    if every and other:
        raise ArgumentError("--every makes its own runs: leave --free, --seed, --seeds, --replay and --worst-case out")


def _check_hosts(flag: str, place: tuple[int, int] | None, hosts: int, used: set[int]) -> None:
    if place and place[0] >= hosts:
        raise ArgumentError(f"{flag}: there are hosts 0 to {hosts - 1}, not {place[0]}")
    if place and place[0] not in used:
        raise ArgumentError(f"{flag}: no command runs on host {place[0]}")


def _check_preloaded(name: str, *failing: tuple[int, ...] | None) -> None:
    if any(failing):
        raise ArgumentError(
            f"{name} was not compiled with cxlemu cc: with --no-check or --free its loads are not seen, so --poison, "
            "--lose-card and --link-down cannot make them fail"
        )


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


def _choices(seeds: int, seed: int | None, worst_case: bool | None) -> list[RunChoice]:
    if seed is not None:
        return [RunChoice(None if worst_case else seed, seed)]
    worst = [] if worst_case is False else [RunChoice(None, schedule) for schedule in WORST_CASES]
    choices = [*worst, *(RunChoice(k, k) for k in range(seeds))]
    if not choices:
        raise ArgumentError("--seeds 0 --no-worst-case: there is nothing to run")
    return choices


def _all(
    out: Console, setting: ExecSetting, choices: list[RunChoice], keep_going: bool, reasons: Sequence[Suppression]
) -> list[RunResult]:
    results: list[RunResult] = []
    notes: set[str] = set()
    with bar(out, silent=setting.show) as progress:
        for choice in progress.track(choices, description="runs"):
            results.append(suppress(setting, run_once(setting, choice), reasons))
            for note in results[-1].notes:
                if note not in notes:
                    print_wrapped(out, f"# {note}", "yellow")
                    notes.add(note)
            if results[-1].ending is RunEnding.DEADLINE or (results[-1].failed and not keep_going):
                break
            if untouched(setting, results):  # another seed opens no other file
                break
    return results


def shorten(out: Console, setting: ExecSetting, failed: RunResult, shrink_s: float) -> RunResult:
    if not shrink_s:
        return failed
    from faults.programs import replays

    began = time.monotonic()
    with spinning("looking for a shorter schedule", out):
        shrink = replays.shrink(setting, failed, seconds=shrink_s)
    if len(shrink.turns) < len(failed.turns):
        turns = f"{counted(len(failed.turns), 'turn')}, now {len(shrink.turns)}"
        out.print(f"# shortened: {turns}, in {time.monotonic() - began:.1f} s", markup=False)
    return shrink


def tell(out: Console, setting: ExecSetting, result: RunResult) -> None:
    where = f"{result.choice}, {counted(result.steps, 'step')}, {counted(len(result.turns), 'turn')}"
    for one in result.exits:
        if not one.failed:
            continue
        name = shlex.join(setting.commands[one.command].words)
        how = f"exited with {one.code}" if one.code > 0 else f"was killed by signal {-one.code}"
        says = wrapped(f"{name} (host {setting.commands[one.command].host}) {how}: {where}", more="  ")
        out.print(says, style="bold red", markup=False)
        for line in one.output.splitlines()[-OUTPUT_LINES:]:
            out.print(f"  | {line}", markup=False)
    if result.ending is RunEnding.NO_PROGRESS:
        says = (
            f"the programs hang: each thread returns to the same step in the same state, and nothing is stored: {where}"
        )
        out.print(wrapped(says), style="bold red", markup=False)
        for sentence in result.doing if not result.findings else ():  # a finding names the load
            out.print(wrapped(sentence, "  ", "  "), markup=False)


def _tell_late(out: Console, setting: ExecSetting, results: list[RunResult]) -> None:
    for result in results:
        if result.ending is not RunEnding.DEADLINE:
            continue
        late = f"undecided: {result.choice} was ended at the deadline of {setting.deadline_s:g} s (--deadline-s)"
        for sentence in (late, *result.doing):
            print_wrapped(out, sentence, "yellow")


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


def document(
    verdict: Verdict, setting: ExecSetting, results: list[RunResult], smallest: RunResult | None
) -> dict[str, Any]:
    return {
        "verdict": verdict.value,
        "commands": [{"words": list(c.words), "host": c.host, "stage": c.stage} for c in setting.commands],
        "runs": [_row(result) for result in results],
        "token": _token(setting, smallest) if smallest is not None else None,
    }


def _token(setting: ExecSetting, result: RunResult) -> str:
    from faults.programs.replays import token_of

    return str(token_of(setting, result))


def _row(result: RunResult) -> dict[str, Any]:
    return {
        "seed": result.choice.seed,
        "schedule": result.choice.schedule,
        "ending": result.ending.value,
        "failed": result.failed,
        "steps": result.steps,
        "turns": len(result.turns),
        "trace": f"{result.trace:016x}",
        "unannounced_lines": result.unannounced,
        "exits": [{"command": e.command, "code": e.code, "asked": e.asked, "output": e.output} for e in result.exits],
        "notes": result.notes,
        "doing": result.doing,
        "unfired": list(result.unfired.values()),
        "undecided": result.undecided,
    }
