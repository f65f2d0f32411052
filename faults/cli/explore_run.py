"""The work of ``cxlemu explore``: finds the program, searches it, and tells the findings."""

import shlex
import time
from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from collectives.choices import is_plan
from cxlemu import userfile
from cxlemu.budget import BudgetSpentError, within
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.output import read_json, write_json
from cxlemu.cli.params import given_flags
from cxlemu.cli.progress import spinning
from cxlemu.errors import ArgumentError, PlanRuleError
from cxlemu.units import counted, format_bytes
from faults.cli.explore import ExploreFlags
from faults.cli.explore_target import FLAGS, searchable
from faults.cli.schedule_table import schedule_table
from faults.cli.searchable import Calls, Searchable
from faults.explore.check import follow, search
from faults.explore.result import Budget, Exploration
from faults.explore.strategies import Strategy, parse
from faults.machine.program import MachineProgram
from faults.machine.schedule import Schedule, from_json, from_token, to_json, to_token
from faults.machine.steps import Machine
from faults.verdict import Verdict

ROWS_MAX = 60  # of the table of an execution that a search found
STRATEGIES_OF = {  # which strategies take a flag
    **dict.fromkeys(("runs", "seed"), ("pct", "random")),
    **dict.fromkeys(("engine", "budget_bytes"), ("exhaustive",)),
}
OWN_CODE_S = 2.0  # after its budget, a search looks at the clock only when the program's own code has come back


def run(ctx: click.Context, asked: ExploreFlags) -> None:
    """Search a program, and print and write the result, as the command's flags say.

    The command exits with the code that its help states.
    """
    strategy = parse(asked.strategy)
    _check_strategy(asked, given_flags(ctx).keys())
    schedule = None if asked.replay is None else _schedule(asked.replay)
    if (asked.program is None) == (asked.algorithm is None):
        raise click.UsageError("give a COLLECTIVE, a FILE.plan or a FILE.py:FUNCTION, with or without --algorithm.")
    spec = str(asked.program or asked.algorithm)
    ranks = _ranks_of_plan(ctx, spec) if is_plan(spec) else asked.ranks
    wanted = Calls(
        asked.total_bytes,
        asked.variant,
        asked.calls,
        asked.cluster,
        asked.datatype,
        asked.op,
        asked.root,
        asked.in_place,
    )
    began, interruption = time.monotonic(), Interruption()
    searched = _built(asked, spec, ranks, wanted)
    how = strategy if schedule is None else schedule
    result = _searched(asked, searched, how, began, interruption)
    ranks = searched.ranks
    again = ["cxlemu", "explore", spec, *([] if is_plan(spec) else ["--ranks", str(ranks)]), *_told(wanted)]
    _print(searched.machine, result, f"{searched.name}, {counted(ranks, 'rank')}", again, searched.note)
    document = _document(searched.machine, result, spec, ranks, asked.strategy)
    write_json(asked.json_file, document | {"interrupted": interruption.happened})
    interruption.exit(ctx, result.verdict.exit_code)


def _check_strategy(asked: ExploreFlags, given: Set[str]) -> None:
    """Refuse flags that do nothing beside the strategy that was asked for, or beside --replay."""
    kind = asked.strategy.partition(":")[0]
    for name, kinds in STRATEGIES_OF.items():
        if name in given and kind not in kinds:
            flag, have = name.replace("_", "-"), "have" if len(kinds) > 1 else "has"
            raise ArgumentError(f"--{flag}: only --strategy {' and '.join(kinds)} {have} it, not {asked.strategy}")
    if asked.replay is not None and (idle := given & {"strategy", "engine"}):
        raise ArgumentError(f"--{min(idle)} does nothing here, because --replay names the execution: leave it out")


def _ranks_of_plan(ctx: click.Context, file: str) -> int:
    """Return a saved plan's ranks. Raises ArgumentError for a flag that says otherwise."""
    from collectives.cli.targets import NEVER, check_options, target  # a protocol needs no collectives

    named = target((file,), None)
    assert named.plan is not None
    never = dict.fromkeys(("total_bytes", "datatype", "op", "root", "in_place", "variant"), NEVER)
    check_options(ctx, named, never | {"ranks": named.plan.ranks})
    return named.plan.ranks


def _built(asked: ExploreFlags, spec: str, ranks: int, wanted: Calls) -> Searchable:
    """Build the program, within the budget: of one that takes longer it is known that nothing is known."""
    nothing, began = Machine(MachineProgram((), (), ())), time.monotonic()
    try:
        with spinning(f"building {spec}"), within(asked.budget_s):
            return searchable(spec, ranks, wanted)
    except PlanRuleError as error:
        exploration = Exploration(Verdict.VIOLATION, 0, 0, time.monotonic() - began, reason=str(error))
        write_json(asked.json_file, _document(nothing, exploration, spec, ranks, asked.strategy))
        raise
    except BudgetSpentError:
        unbuilt = _unknown(asked.budget_s, f"the budget of {asked.budget_s:g} s was spent before the program was built")
        return Searchable(spec, ranks, nothing, lambda explored: explored, known=unbuilt)


def _searched(
    asked: ExploreFlags, searched: Searchable, how: Strategy | Schedule, began: float, interruption: Interruption
) -> Exploration:
    """Search, or follow a schedule, with what is left of the budget since the moment ``began``, or until Ctrl-C."""
    left = Budget(asked.budget_states, max(asked.budget_s - (time.monotonic() - began), 0.0), asked.budget_bytes)
    result = _unknown(0.0, "Ctrl-C ended the search")
    try:
        with (
            interruption,
            spinning(f"searching {searched.name}, {counted(searched.ranks, 'rank')}"),
            within(left.seconds + OWN_CODE_S),
        ):
            if searched.known is not None:
                result = searched.known
            elif isinstance(how, tuple):
                result = searched.judge(follow(searched.machine, how, left))
            else:
                result = searched.judge(
                    search(searched.machine, how, left, engine=asked.engine, runs=asked.runs, seed=asked.seed)
                )
                result = replace(result, reason=result.reason.replace(f"{left.seconds:g} s", f"{asked.budget_s:g} s"))
    except BudgetSpentError as spent:
        spec = str(asked.program or asked.algorithm)
        line = userfile.line_of(spent, spec.rpartition(":")[0])
        where = spec if line is None else f"{spec.rpartition(':')[0]}:{line}"
        why = f"the budget of {asked.budget_s:g} s was spent in {where}, which does not return"
        return _unknown(time.monotonic() - began, why)
    return replace(result, seconds=time.monotonic() - began) if interruption.happened else result


def _unknown(seconds: float, reason: str) -> Exploration:
    return Exploration(Verdict.UNKNOWN, 0, 0, seconds, reason=reason)


def _told(calls: Calls) -> list[str]:
    """List the flags that ask for these calls."""
    given = ((flag, getattr(calls, name)) for name, flag in FLAGS.items())
    return [
        flag if value is True else f"{flag}={value}"
        for flag, value in given
        if value is not None and value is not False
    ]


def _schedule(text: str) -> Schedule:
    if not text:
        raise ArgumentError("--replay '' names no execution")
    path = Path(text)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        return from_token(text)
    data = read_json(path, "--replay")
    if isinstance(data, dict) and "schedule" in data:
        return from_json(data["schedule"])
    raise ArgumentError(f"--replay {text}: the file has no schedule; give what `cxlemu explore --json` wrote")


def _print(machine: Machine, result: Exploration, what: str, again: list[str], note: str) -> None:
    out = console()
    if result.finding is not None:
        print_wrapped(out, f"{what}: {result.finding.kind}: {result.finding.text}", "bold red")
    elif result.verdict == Verdict.UNKNOWN:
        print_wrapped(out, f"{what}: unknown: {result.reason}", "bold yellow")
    else:
        where = "this" if result.followed else "every"
        print_wrapped(out, f"{what}: ok, in {where} execution", "bold green")
    memory = f"{format_bytes(result.nbytes)}, " if result.nbytes else ""
    size = f"{counted(result.states, 'state')}, {counted(result.transitions, 'transition')}"
    if result.states:
        print_wrapped(out, f"{size}, {memory}{result.seconds:.2f} s; {counted(len(result.outcomes), 'way')} to end")
    if result.reductions:
        reduced = f"reduced by {', '.join(result.reductions)}; states are compared whole, so none can be missed"
        print_wrapped(out, reduced)
    if note:
        print_wrapped(out, f"note: {note}")
    if result.schedule:
        left_out = 0 if result.followed else max(len(result.schedule) - ROWS_MAX, 0)
        if left_out:
            print_wrapped(out, f"steps 1 to {left_out} are left out; the command below shows them")
        out.print(schedule_table(machine, result.schedule, left_out), soft_wrap=False)
        out.print(f"again: {shlex.join([*again, '--replay', to_token(result.schedule)])}", markup=False)


def _document(machine: Machine, result: Exploration, program: str, ranks: int, strategy: str) -> dict[str, Any]:
    finding = result.finding
    words = [word.name for word in machine.program.words]
    return {
        "program": program,
        "ranks": ranks,
        "strategy": strategy,
        "verdict": result.verdict.value,
        "reason": result.reason,
        "states": result.states,
        "transitions": result.transitions,
        "bytes": result.nbytes,
        "reductions": list(result.reductions),
        "seconds": result.seconds,
        "finding": finding and {"kind": finding.kind.value, "rank": finding.thread, "text": finding.text},
        "schedule": to_json(result.schedule),
        "outcomes": [dict(zip(words, outcome.memory, strict=True)) for outcome in sorted(result.outcomes)],
    }
