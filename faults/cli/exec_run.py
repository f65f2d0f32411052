"""The work of ``cxlemu exec``: runs, one for each seed, and what they came to."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.output import STDOUT, write_json
from cxlemu.cli.progress import bar, spinning
from cxlemu.errors import ArgumentError
from cxlemu.units import counted
from cxlemu.world.signals import stops_exit
from faults.cli.exec_report import check_outputs, write_outputs
from faults.programs import replays
from faults.programs.binary import preloaded
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.judge import again, report_of, suppress
from faults.programs.replays import choice_of, read_token, token_of
from faults.programs.reports import as_json
from faults.programs.result import WORST_CASES, ExecSetting, RunChoice, RunEnding, RunResult, untouched
from faults.programs.run import run as run_once
from faults.programs.suppressions import Suppression
from faults.programs.suppressions import read as read_suppressions
from faults.programs.words import repeats, text, wrapped
from faults.verdict import Verdict

TOKEN_FILE_MAX = 1 << 21
OUTPUT_LINES = 20
PRELOADED = "not compiled with cxlemu cc, so preloaded: "
ACCESSES = "each load and store of a pool faults, which is slow; --no-check is fast"
PAGES = "flushes and fences are seen, loads and stores only as pages that change"


def run(
    ctx: click.Context,
    pools: tuple[str, ...],
    hosts: int,
    seeds: int,
    seed: int | None,
    replay: str | None,
    worst_case: bool | None,
    check: bool,
    free: bool,
    keep_going: bool,
    shrink: bool,
    crash: tuple[int, int] | None,
    link_down: tuple[int, int] | None,
    poison: tuple[int, int] | None,
    lose_card: tuple[int, int] | None,
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

    The command exits with the code that its help tells.

    Args:
        ctx: The command's context. Every other argument is the command's parameter of the same name.

    Raises:
        ArgumentError: Flags or commands are not as they have to be, or a command cannot be started.
        TokenError: The token is damaged.
        ConfigError: A suppression is not as it has to be.
    """
    check_outputs(sarif, html, litmus)
    reasons = read_suppressions(suppressions) if suppressions is not None else []
    setting = ExecSetting(
        commands=parse_commands(words, hosts),
        pools=parse_pools(pools),
        hosts=hosts,
        check=check,
        free=free,
        deadline_s=deadline_s,
        idle_budget=steps,
        crash=crash,
        link_down=link_down,
        poison=(0, *poison) if poison else None,
        lose=lose_card,
    )
    _check_hosts("--crash", crash, hosts)
    _check_hosts("--link-down", link_down, hosts)
    if lose_card and lose_card[0] >= len(setting.pools):
        raise ArgumentError(f"--lose-card: there are pools 0 to {len(setting.pools) - 1}, not {lose_card[0]}")
    if replay is not None and seed is not None:
        raise ArgumentError("--replay and --seed exclude each other: the token has its seed")
    body = read_token(_read(replay)) if replay is not None else None
    if body is not None and body.hosts != hosts:
        raise ArgumentError(f"the token is for --hosts {body.hosts}")
    choices = [choice_of(body)] if body is not None else _choices(seeds, seed, worst_case)
    out = console()
    if followed := preloaded(command.words[0] for command in setting.commands):
        by_access = check and not free
        if not by_access:
            _check_preloaded(followed[0], poison, lose_card, link_down)
        how = PRELOADED + (ACCESSES if by_access else PAGES)
        print_wrapped(out, f"# {', '.join(followed)}: {how}", "yellow")
    if len(choices) == 1:
        setting = replace(setting, show=json_file != STDOUT)
    with stops_exit():
        results = _all(out, setting, choices, keep_going, reasons)
        failed = next((r for r in results if r.failed), None)
        smallest = _shrunk(out, setting, failed) if failed is not None and shrink and body is None else failed
    shown = [smallest if result is failed and smallest is not None else result for result in results]
    told = report_of(setting, shown, words, reasons)
    out.print(text(told), end="", markup=False, highlight=False, soft_wrap=True)
    if failed is not None and smallest is not None:
        _tell(out, setting, smallest)
    unfound = smallest if smallest is not None and not smallest.findings else None
    also = {again(setting, unfound, words): str(unfound.choice)} if unfound is not None else {}
    out.print(repeats(told, also), end="", markup=False, soft_wrap=True)
    if body is not None and results[0].trace != body.trace:
        out.print("another trace than the token's: the programs, their input or their pool differ", style="yellow")
    verdict = _verdict(results)
    out.print(_summary(results), markup=False)
    if untouched(results):
        paths = ", ".join(pool.path for pool in setting.pools)
        out.print(
            f"no command opened a pool, so nothing was checked: do they open {paths}?", style="yellow", markup=False
        )
    write_json(json_file, _document(verdict, setting, results, smallest) | {"found": as_json(told)})
    write_outputs(told, shlex.join(words), sarif, html, litmus)
    ctx.exit(error_exitcode if verdict is Verdict.VIOLATION else verdict.exit_code)


def _check_hosts(flag: str, place: tuple[int, int] | None, hosts: int) -> None:
    if place and place[0] >= hosts:
        raise ArgumentError(f"{flag}: there are hosts 0 to {hosts - 1}, not {place[0]}")


def _check_preloaded(name: str, *failing: tuple[int, int] | None) -> None:
    if any(failing):
        raise ArgumentError(
            f"{name} was not compiled with cxlemu cc: with --no-check or --free its loads are not seen, so --poison, "
            "--lose-card and --link-down cannot make them fail"
        )


def _read(word: str) -> str:
    if not word.startswith("@"):
        return word
    path = Path(word[1:])
    if not path.is_file():
        raise ArgumentError(f"--replay: {path} is not a regular file")
    with path.open("rb") as file:
        return file.read(TOKEN_FILE_MAX).decode("ascii", "replace")


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
    told: set[str] = set()
    with bar(out, silent=setting.show) as progress:
        for choice in progress.track(choices, description="runs"):
            results.append(suppress(setting, run_once(setting, choice), reasons))
            for note in results[-1].notes:
                if note not in told:
                    print_wrapped(out, f"# {note}", "yellow")
                    told.add(note)
            if results[-1].ending is RunEnding.DEADLINE or (results[-1].failed and not keep_going):
                break
    return results


def _shrunk(out: Console, setting: ExecSetting, failed: RunResult) -> RunResult:
    began = time.monotonic()
    with spinning("looking for a shorter schedule", out):
        found = replays.shrink(setting, failed)
    if found is not failed:
        turns = f"{counted(len(failed.turns), 'turn')}, now {len(found.turns)}"
        out.print(f"# shortened: {turns}, in {time.monotonic() - began:.1f} s", markup=False)
    return found


def _tell(out: Console, setting: ExecSetting, result: RunResult) -> None:
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
        says = f"no step of any program changed anything for {counted(setting.idle_budget, 'step')}: {where}"
        out.print(wrapped(says), style="bold red", markup=False)
    if result.unannounced:
        says = (
            f"{counted(result.unannounced, 'line')} with stores that nobody announced: compile all of it with cxlemu cc"
        )
        out.print(wrapped(says), style="bold red", markup=False)


def _verdict(results: list[RunResult]) -> Verdict:
    if any(result.failed for result in results):
        return Verdict.VIOLATION
    late = any(result.ending is RunEnding.DEADLINE for result in results)
    return Verdict.UNKNOWN if late or untouched(results) else Verdict.OK


def _summary(results: list[RunResult]) -> str:
    failed = sum(result.failed for result in results)
    late = sum(result.ending is RunEnding.DEADLINE for result in results)
    steps = sum(result.steps for result in results)
    ended = f"{failed} failed, {late} past the deadline"
    return f"{counted(len(results), 'run')}: {ended}; {counted(steps, 'step')}"


def _document(
    verdict: Verdict, setting: ExecSetting, results: list[RunResult], smallest: RunResult | None
) -> dict[str, Any]:
    return {
        "verdict": verdict.value,
        "commands": [{"words": list(c.words), "host": c.host, "stage": c.stage} for c in setting.commands],
        "runs": [_row(result) for result in results],
        "token": str(token_of(setting, smallest)) if smallest is not None else None,
    }


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
    }
