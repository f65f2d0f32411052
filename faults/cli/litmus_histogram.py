"""How a litmus test's histogram is printed and written: a line, all outcomes, a row of JSON."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from cxlemu.units import counted
from faults.litmus.condition import Condition
from faults.litmus.histogram import Histogram, Values
from faults.verdict import Verdict

LABELS = {Verdict.OK: "ok", Verdict.VIOLATION: "violation", Verdict.UNKNOWN: "skipped"}
STYLES = {Verdict.OK: "green", Verdict.VIOLATION: "bold red", Verdict.UNKNOWN: "bold yellow"}


def summary_line(histogram: Histogram) -> Text:
    """Sum a test up in a line: how often what is expected was seen."""
    verdict, litmus = histogram.verdict, histogram.task.litmus
    if histogram.skipped:
        rest = histogram.skipped
    else:
        notes = dict.fromkeys(histogram.impossible, " (which the memory model has not)")
        said = [
            f"{_often(histogram, e.condition)} {e.condition.text}{notes.get(e, '') if e.allowed else ' (forbidden)'}"
            for e in litmus.expectations
        ]
        if histogram.hangs:
            said.append(f"{histogram.hangs} hung" + ("" if litmus.hangs else " (forbidden)"))
        strangers = sum(count for values, count in histogram.counts.items() if histogram.foreign(values))
        if strangers and not histogram.forbidden:
            said.append(f"{strangers} ended in outcomes that the memory model does not reach")
        rounds = f"{histogram.rounds:,}"
        if histogram.rounds < histogram.wanted:
            rounds += f" of {counted(histogram.wanted, 'round')} in {histogram.seconds:.1f} s"
        else:
            rounds += " rounds"
        rest = f"{rounds}: {'; '.join(said)}"
    return Text.assemble((f"{LABELS[verdict]:9}", STYLES[verdict]), f" {litmus.name:22} {rest}")


def histogram_lines(histogram: Histogram) -> Iterator[Text]:
    """List the outcomes, the most frequent first: ``!`` is one that is forbidden, ``*`` one that the test names."""
    for values, count in _sorted(histogram):
        mark = "!" if histogram.breaks(values) else "*" if _named(histogram, values) else " "
        ends = "  ".join(f"{name}={value}" for name, value in histogram.named(values).items())
        yield Text(f"  {count:12,} {mark} {ends}", style="bold red" if mark == "!" else "")
    if histogram.hangs:
        yield Text(f"  {histogram.hangs:12,} {' ' if histogram.task.litmus.hangs else '!'} hung")


def row(histogram: Histogram) -> dict[str, Any]:
    """Return a test's row of the file of ``--json``."""
    litmus, possible = histogram.task.litmus, histogram.task.possible
    return {
        "file": litmus.file,
        "name": litmus.name,
        "verdict": LABELS[histogram.verdict],
        "skipped": histogram.skipped or None,
        "rounds": histogram.rounds,
        "wanted": histogram.wanted,
        "seconds": histogram.seconds,
        "hangs": histogram.hangs,
        "possible": None if possible is None else len(possible),
        "outcomes": [
            {"values": histogram.named(values), "count": count, "forbidden": histogram.breaks(values)}
            for values, count in _sorted(histogram)
        ],
        "expectations": [
            {
                "condition": e.condition.text,
                "expected": "allowed" if e.allowed else "forbidden",
                "observation": histogram.observation(e.condition),
                "count": histogram.seen(e.condition),
            }
            for e in litmus.expectations
        ],
    }


def _often(histogram: Histogram, condition: Condition) -> str:
    observation = histogram.observation(condition)
    return f"{observation} ({histogram.seen(condition):,})" if observation == "sometimes" else observation


def _sorted(histogram: Histogram) -> list[tuple[Values, int]]:
    return sorted(histogram.counts.items(), key=lambda item: (-item[1], item[0]))


def _named(histogram: Histogram, values: Values) -> bool:
    named = histogram.named(values)
    return any(e.condition.holds(named) for e in histogram.task.litmus.expectations)
