"""The work of ``cxlemu litmus``: runs tests, and prints a line for each."""

import time
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from cxlemu.cli.console import console
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.output import write_json
from cxlemu.cli.params import given_flags
from cxlemu.cli.progress import counting
from cxlemu.errors import ArgumentError
from cxlemu.units import counted
from faults.cli.litmus import LitmusFlags
from faults.cli.schedule_table import schedule_table
from faults.explore.result import Budget
from faults.litmus import run as litmus_run
from faults.litmus.condition import Condition
from faults.litmus.language import Litmus, read
from faults.litmus.run import LitmusResult
from faults.machine.schedule import to_json
from faults.machine.steps import Machine
from faults.verdict import Verdict

STYLES = {Verdict.OK: "green", Verdict.VIOLATION: "bold red", Verdict.UNKNOWN: "bold yellow"}


SEARCHES = {"witness", "engine", "budget_states"}  # options that only the search has
# and those that only --backend has
HARDWARE = {"devices", "pool", "tenant", "ranks", "how", "rounds", "seed", "deadline_s"}


def run(ctx: click.Context, asked: LitmusFlags) -> None:
    hardware = asked.backend is not None
    for name, flag in given_flags(ctx).items():
        if name in (SEARCHES if hardware else HARDWARE):
            raise ArgumentError(f"{flag} {'is for the search, not for' if hardware else 'goes with'} --backend")
    tests = [read(file) for file in _files(asked.paths)]
    if hardware:
        from faults.cli.litmus_hardware import run_on_hardware  # it takes NumPy, which the search does not

        run_on_hardware(ctx, asked, tests)
        return
    conditions = [_condition(litmus, asked.witness) for litmus in tests] if asked.witness is not None else []
    out = console()
    results: list[LitmusResult] = []
    interruption, began = Interruption(), time.monotonic()
    with interruption:
        for litmus in counting(tests, "litmus", len(tests), out):
            results.append(litmus_run.run(litmus, Budget(asked.budget_states, asked.budget_s), asked.engine))
            out.print(_line(results[-1]))
            if asked.verbose:
                _print_outcomes(out, results[-1])
    shown = [_print_witness(out, result, condition) for result, condition in zip(results, conditions, strict=False)]
    count = {verdict: sum(result.verdict == verdict for result in results) for verdict in Verdict}
    text = f"{count[Verdict.OK]} as expected, {count[Verdict.VIOLATION]} not, {count[Verdict.UNKNOWN]} unknown"
    out.print(f"{counted(len(results), 'test')}: {text}; {time.monotonic() - began:.1f} s")
    verdict = next((v for v in (Verdict.VIOLATION, Verdict.UNKNOWN) if count[v]), Verdict.OK)
    if verdict == Verdict.OK and not all(shown):
        verdict = Verdict.UNKNOWN
    if asked.json_file is not None:  # a row works out witnesses
        rows = [_row(result) for result in results]
        write_json(asked.json_file, {"verdict": verdict.value, "rows": rows, "interrupted": interruption.happened})
    interruption.exit(ctx, verdict.exit_code, f"{counted(len(tests) - len(results), 'test')} not finished")


def _files(paths: tuple[Path, ...]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        try:
            inside = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        except (OSError, ValueError) as error:
            raise ArgumentError(f"{str(path)!r} cannot be read: {error}") from error
        if not inside:
            raise ArgumentError(f"{path} holds no .yaml file")
        files += inside
    if twice := next((file for file in files if files.count(file) > 1), None):
        raise ArgumentError(f"{twice} is named twice")
    return files


def _condition(litmus: Litmus, text: str) -> Condition:
    try:
        return litmus.condition(text)
    except ValueError as error:
        raise ArgumentError(f"--witness {text!r:.60} {error}, in {litmus.file}") from None


def _line(result: LitmusResult) -> Text:
    passed = {Verdict.OK} | ({Verdict.UNKNOWN} if result.verdict == Verdict.VIOLATION and result.complete else set())
    said = [
        f"{'allowed' if e.allowed else 'forbidden'} {e.condition.text}: {_seen(result, e.condition)}"
        for e in result.litmus.expectations
        if result.verdict_of(e) not in passed
    ]
    if result.verdict_of_hangs != Verdict.OK:
        said.append(result.exploration.finding.text if result.exploration.finding else "no hanging execution was seen")
        said += [f"no rank stores {value} or more to {word}" for word, value in result.litmus.unmet]
    if not result.complete:
        said.append(result.exploration.reason)
    elif not result.exploration.outcomes:
        said.append("no execution ends")
    number, word = counted(len(result.outcomes()), "outcome").split()
    outcomes = f"{number:>3} {word:8} {counted(result.exploration.states, 'state'):>16}"
    return Text.assemble(
        (f"{result.verdict.value:9}", STYLES[result.verdict]), f" {result.litmus.name:24} {outcomes}  ", "; ".join(said)
    )


def _seen(result: LitmusResult, condition: Condition) -> str:
    if result.sees(condition):
        return "seen"
    return "not seen" if result.complete else "not seen so far"


def _print_outcomes(out: Any, result: LitmusResult) -> None:
    for values in result.outcomes():
        out.print(Text("    " + "  ".join(f"{name}={value}" for name, value in values.items())))
    for expectation in result.litmus.expectations:
        if expectation.allowed:
            _print_witness(out, result, expectation.condition)


def _print_witness(out: Any, result: LitmusResult, condition: Condition) -> bool:
    schedule = result.witness(condition)
    if schedule is None:
        ever = "no execution ends" if result.complete else "no execution was seen to end"
        out.print(Text(f"{result.litmus.name}: {ever} with {condition.text}"))
        return False
    out.print(Text(f"{result.litmus.name}: an execution that ends with {condition.text}:"))
    out.print(schedule_table(Machine(result.litmus.program), schedule), soft_wrap=False)
    return True


def _row(result: LitmusResult) -> dict[str, Any]:
    return {
        "file": result.litmus.file,
        "name": result.litmus.name,
        "verdict": result.verdict.value,
        "complete": result.complete,
        "states": result.exploration.states,
        "transitions": result.exploration.transitions,
        "seconds": result.exploration.seconds,
        "hangs": result.hangs,
        "outcomes": result.outcomes(),
        "expectations": [
            {
                "condition": e.condition.text,
                "expected": "allowed" if e.allowed else "forbidden",
                "verdict": result.verdict_of(e).value,
                "witness": None if (witness := result.witness(e.condition)) is None else to_json(witness),
            }
            for e in result.litmus.expectations
        ],
    }
