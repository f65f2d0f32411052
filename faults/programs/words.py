"""A report for a terminal: 80 columns, but for paths and the command that repeats a run."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping

from cxlemu.units import counted
from faults.programs.histories import words_of
from faults.programs.positions import SourcePlace, source_line
from faults.programs.reports import ProgramMistake, ProgramReport

WIDTH = 80
_DEEPER = 4  # columns by which a source line is indented below its position


def text(report: ProgramReport) -> str:
    """Write a report for a terminal; the commands that `repeats` writes come after it."""
    parts = ["\n".join(_told(f"{number}.", mistake)) for number, mistake in enumerate(report.mistakes, 1)]
    parts += ["\n".join(_told("warning:", mistake)) for mistake in report.warnings]
    suppressed = Counter(
        f"suppressed: {mistake.kind.name} at {_where(mistake)}: {mistake.reason}" for mistake in report.suppressed
    )
    parts += [wrapped(says + (f" ({n} findings)" if n > 1 else ""), more="  ") for says, n in suppressed.items()]
    return "\n\n".join(parts) + "\n" if parts else ""


def unused(report: ProgramReport) -> str:
    """Write which suppressions matched nothing; empty if each matched."""
    lines = ", ".join(f"line {each.line} ({each.kind} {each.where})" for each in report.unused)
    return (
        lines
        and wrapped(f"note: {counted(len(report.unused), 'suppression')} matched nothing: {lines}", more="  ") + "\n"
    )


def repeats(report: ProgramReport, also: Mapping[str, str] | None = None) -> str:
    """Write the command that makes a run again, for each run once."""
    runs = {mistake.replay: mistake.run for mistake in report.mistakes if mistake.replay} | dict(also or {})
    return "".join(f"again{f' ({run})' if len(runs) > 1 else ''}: {replay}\n" for replay, run in runs.items())


def wrapped(sentence: str, indent: str = "", more: str = "") -> str:
    """Write a sentence on lines of 80 columns, those behind the first with `more` before them; no word is cut."""
    lines = textwrap.wrap(
        sentence,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + more,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


def shortened(place: str) -> str:
    """Leave out the arguments of templates where a place does not fit a line with them."""
    kept = ""
    while len(place) > WIDTH and kept != place:
        kept, place = place, re.sub(r"<[^<>]*>", "\0", place)
    return place.replace("\0", "<...>")


def _told(which: str, mistake: ProgramMistake) -> Iterator[str]:
    yield f"{which} {mistake.kind.name}: {mistake.kind.title}"
    yield wrapped(mistake.sentence, "   ")
    yield wrapped(mistake.shows, "   ")
    steps = list(mistake.all_steps())
    width = max((len(says) for _, says, _ in steps), default=0)
    for _, says, place in steps:
        yield from _step(f"     {says:{width}}  ", place)
    yield from (f"     {line}" for line in words_of(mistake.history))
    if mistake.missing:
        yield wrapped(f"missing: {mistake.missing}", "   ")
    times, runs = counted(mistake.times, "time"), counted(mistake.runs, "run")
    yield f"   rule {mistake.kind.rule}; found {times} in {runs}"


def _step(says: str, place: SourcePlace) -> Iterator[str]:
    margin = " " * len(says)
    if place.caller and len(says) + len(str(place)) > WIDTH:
        at, *outer, last = (shortened(str(frame)) for frame in (place.at, *place.callers))
        yield f"{says}{at},"
        yield from (f"{margin}called from {caller}," for caller in outer)
        yield f"{margin}called from {last}"
    else:
        yield f"{says}{shortened(str(place))}"
    if code := source_line(place.at):
        room = WIDTH - len(margin) - _DEEPER
        yield margin + " " * _DEEPER + (code if len(code) <= room else code[: room - 4].rstrip() + " ...")


def _where(mistake: ProgramMistake) -> str:
    place = mistake.places.get("access") or mistake.places.get("store")
    return shortened(str(place.at)) if place else "an unknown place"
