"""``cxlemu litmus``: every outcome of small programs, and whether those that are expected can happen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress
from rich.text import Text

from cxlemu.cli.console import console
from cxlemu.cli.output import check_json_file, write_json
from cxlemu.errors import ArgumentError
from faults.cli.schedule_table import schedule_table
from faults.explore.check import ENGINES
from faults.explore.result import Budget
from faults.litmus.condition import Condition
from faults.litmus.language import Litmus, read
from faults.litmus.run import LitmusResult, run
from faults.machine.schedule import to_json
from faults.machine.steps import Machine
from faults.verdict import Verdict

STYLES = {Verdict.OK: "green", Verdict.VIOLATION: "bold red", Verdict.UNKNOWN: "bold yellow"}


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE|DIRECTORY...", type=click.Path(path_type=Path))
@click.option("-v", "--verbose", is_flag=True, help="All outcomes, and an execution that leads to each allowed one.")
@click.option("--witness", metavar="CONDITION", help="An execution that ends so, such as 'B.r1 == 0 and x == 1'.")
@click.option("--engine", type=click.Choice(ENGINES), default=ENGINES[0], show_default=True)
@click.option("--budget-states", type=click.IntRange(1), default=Budget().states, show_default=True, help="For each.")
@click.option(
    "--budget-s", type=click.FloatRange(0, min_open=True), default=Budget().seconds, show_default=True, help="For each."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[Path, ...],
    verbose: bool,
    witness: str | None,
    engine: str,
    budget_states: int,
    budget_s: float,
    json_file: Path | None,
) -> None:
    """Run litmus tests: small programs in YAML with what their executions may and may not end with.

    All executions are searched: every order of the hosts' steps, every eviction, prefetch and arrival of a line.

    \b
    Examples:
      cxlemu litmus tests/faults/litmus
      cxlemu litmus mp.yaml -v
      cxlemu litmus mp.yaml --witness 'B.r == 0'

    \b
    A test:
      name: MP
      hosts:
        A: [store x 1, flush x, fence, signal f 1]
        B: [wait f 1, invalidate x, load x r]
      allowed: [B.r == 1]
      forbidden: [B.r == 0]

    \b
    Steps: store X VALUE, store_nt X VALUE, flush X, flush_keep X, fence, invalidate X, load X REGISTER, signal X VALUE,
    wait X VALUE, record EVENT, await EVENT, crash. `lines: {L: [x, y]}` puts words into one line, `initial: {x: 1}`
    says what is there first, `hangs: allowed` that an execution need not end. Memory in a condition is the pool when
    everything posted has arrived.

    \b
    Exit codes: 0 all is as expected, 1 something is not, 2 bad input, 3 a budget was spent before that was known.
    """
    check_json_file(json_file)
    tests = [read(file) for file in _files(paths)]
    conditions = [_condition(litmus, witness) for litmus in tests] if witness is not None else []
    out = console()
    results: list[LitmusResult] = []
    began = time.monotonic()
    with Progress(console=out, transient=True, disable=not out.is_terminal) as progress:
        for litmus in progress.track(tests, description="litmus"):
            results.append(run(litmus, Budget(budget_states, budget_s), engine))
            out.print(_line(results[-1]))
            if verbose:
                _print_outcomes(out, results[-1])
    for result, condition in zip(results, conditions, strict=False):
        _print_witness(out, result, condition)
    count = {verdict: sum(result.verdict == verdict for result in results) for verdict in Verdict}
    told = f"{count[Verdict.OK]} as expected, {count[Verdict.VIOLATION]} not, {count[Verdict.UNKNOWN]} unknown"
    out.print(f"{len(results)} tests: {told}; {time.monotonic() - began:.1f} s")
    verdict = next((v for v in (Verdict.VIOLATION, Verdict.UNKNOWN) if count[v]), Verdict.OK)
    write_json(json_file, {"verdict": verdict.value, "rows": [_row(result) for result in results]})
    ctx.exit(verdict.exit_code)


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
    return files


def _condition(litmus: Litmus, text: str) -> Condition:
    try:
        return litmus.condition(text)
    except ValueError as error:
        raise ArgumentError(f"--witness {text!r:.60} {error}, in {litmus.file}") from None


def _line(result: LitmusResult) -> Text:
    said = [
        f"{'allowed' if e.allowed else 'forbidden'} {e.condition.text}: {_seen(result, e.condition)}"
        for e in result.litmus.expectations
        if result.verdict_of(e) != Verdict.OK
    ]
    if result.verdict_of_hangs != Verdict.OK:
        said.append(result.exploration.finding.text if result.exploration.finding else "no execution seen that hangs")
    if not result.complete:
        said.append(result.exploration.reason)
    outcomes = len(result.outcomes())
    counted = f"{outcomes:3} {'outcome' if outcomes == 1 else 'outcomes':8} {result.exploration.states:9} states"
    return Text.assemble(
        (f"{result.verdict.value:9}", STYLES[result.verdict]), f" {result.litmus.name:24} {counted}  ", "; ".join(said)
    )


def _seen(result: LitmusResult, condition: Condition) -> str:
    if result.witness(condition) is not None:
        return "seen"
    return "not seen" if result.complete else "not seen so far"


def _print_outcomes(out: Any, result: LitmusResult) -> None:
    for values in result.outcomes():
        out.print(Text("    " + "  ".join(f"{name}={value}" for name, value in values.items())))
    for expectation in result.litmus.expectations:
        if expectation.allowed:
            _print_witness(out, result, expectation.condition)


def _print_witness(out: Any, result: LitmusResult, condition: Condition) -> None:
    schedule = result.witness(condition)
    if schedule is None:
        ever = "no execution ends" if result.complete else "no execution was seen to end"
        out.print(Text(f"{result.litmus.name}: {ever} with {condition.text}"))
        return
    out.print(Text(f"{result.litmus.name}: an execution that ends with {condition.text}:"))
    out.print(schedule_table(Machine(result.litmus.program), schedule))


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
