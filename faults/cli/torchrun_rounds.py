"""The last table of ``cxlemu torchrun``: what failed on which rank, and below it which rank was the cause."""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.markup import escape
from rich.table import Table

from cxlemu.cli.console import console
from cxlemu.errors import name_ranks
from cxlemu.units import counted
from faults.torch.launch import Round

LINE_MAX = 480
COLUMN_CHARS = 60
OF_TORCH = re.compile(r"^RuntimeError: Got the following error when running the callback: ")  # what it puts before ours
OF_GROUPS = re.compile(r"^\w*Error: cxl: rank \d+ in |^ContractError: |^RuntimeError: \[\S*/gloo/transport/")
WAITS = re.compile(r"; rank \d+ waits in \[.*")

Event = dict[str, Any]


class RankRow(NamedTuple):
    round: int
    consequence: bool  # of what another rank did: such rows come last
    at: float  # when it happened, by `time.time`
    rank: int
    what: str


def tell_rounds(events: Sequence[Event], rounds: Sequence[Round], wrong: Sequence[Event], *, debug: bool) -> None:
    """Print each fault and each rank that failed or that others waited for, then one line with the cause.

    Args:
        events: What the ranks reported.
        rounds: What became of them.
        wrong: The differences among the events, which are printed elsewhere.
        debug: Whether to print what each rank waited for.
    """
    rows = sorted(
        row for number, each in enumerate(rounds) for row in _rows(number, each, events, rounds, wrong, debug)
    )
    faults = [float(event["at"]) for event in events if event["kind"] == "fault"]
    several = len(rounds) > 1
    table = Table("rank", *["round"] * several, "what", *["after"] * bool(faults), box=None)
    for row in rows:
        what = escape(textwrap.fill(row.what, COLUMN_CHARS))
        after = [f"{row.at - min(faults):.2f} s"] if faults else []
        table.add_row(str(row.rank), *[str(row.round)] * several, what, *after)
    console().print(table, soft_wrap=False)
    if several and not rounds[-1].failed:
        click.echo(f"round {len(rounds) - 1}: all ranks ended well, after {counted(len(rounds) - 1, 'restart')}")
    if not faults and not wrong:
        _tell_cause([row for row in rows if row.round == len(rounds) - 1])


def _tell_cause(rows: Sequence[RankRow]) -> None:
    """Print who began it, where ranks failed in calls with a rank that had failed or left by itself."""
    others = sorted({row.rank for row in rows if row.consequence})
    causes = [row for row in rows if not row.consequence]
    if others and causes:
        click.echo(f"cause: rank {causes[0].rank}: {causes[0].what}; {name_ranks(others)} failed in calls with it")


def _rows(
    number: int, round: Round, events: Sequence[Event], rounds: Sequence[Round], wrong: Sequence[Event], debug: bool
) -> list[RankRow]:
    its = [event for event in events if _round_of(event, rounds) == number]
    rows, failed, groups = [], set(), ""
    for event in its:
        if event["kind"] == "fault":
            rows.append(RankRow(number, False, float(event["at"]), event["rank"], f"fault: {event['what']}"))
        elif event["kind"] == "error":
            line = _line(event)
            of_group = OF_GROUPS.match(line) is not None
            groups += f"{line}\n" * of_group
            failed.add(event["rank"])
            rows.append(RankRow(number, of_group, float(event["at"]), event["rank"], _error(event, line, wrong, debug)))
    where = {event["rank"]: place(event) for event in its if event["kind"] == "stopped"}
    for rank, code in round.codes.items():
        if code < 0:
            how = "stopped by cxlemu torchrun" if rank in round.stopped else f"ended by signal {-code}"
            how = "suspended, as by SIGSTOP" if rank in round.suspended else how
        elif rank in failed:
            continue
        elif code:
            how = f"exited with code {code}"
        elif re.search(rf": ranks? ([\d, to]+ )?{rank}\b[\d, to]* (left|died)\b", groups):
            how = "ended normally while others waited for it"
        else:
            continue
        rows.append(RankRow(number, False, round.ended[rank], rank, how + where.get(rank, "")))
    return rows


def _line(event: Event) -> str:
    """Return an error's first line, without the modules of its type."""
    return re.sub(r"^(\w+\.)+(?=\w+: )", "", OF_TORCH.sub("", event["text"].splitlines()[0]))


def place(event: Event) -> str:
    """Return the script's line of an event, in parentheses; nothing where it has none."""
    where = re.search(r'File "([^"]*)", line (\d+)', "".join(event.get("where", ())))
    return f" ({Path(where[1]).name} line {where[2]})" if where else ""


def _error(event: Event, line: str, wrong: Sequence[Event], debug: bool) -> str:
    """Shorten an error, or leave only its kind where it tells of a difference that is printed below."""
    if any(each["sentence"].partition(":")[0] in line for each in wrong):
        return f"{line.partition(':')[0]}: see below{place(event)}"
    if not debug:
        line = textwrap.shorten(WAITS.sub("", line), LINE_MAX, placeholder=" ...")
    return line + place(event)


def _round_of(event: Event, rounds: Sequence[Round]) -> int:
    for number, each in enumerate(rounds):
        if float(event["at"]) <= max(each.ended.values()) + 0.5:
            return number
    return len(rounds) - 1
