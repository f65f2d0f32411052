"""The HTML page of a program's mistakes: one file that needs nothing else, with a picture of each."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from cxlemu.units import counted
from cxlemu.version import __version__
from faults.campaign.report import html_page
from faults.programs.histories import words_of
from faults.programs.history_picture import history_svg
from faults.programs.picture import picture
from faults.programs.positions import source_line
from faults.programs.reports import ProgramMistake, ProgramReport


def page(report: ProgramReport, title: str) -> str:
    """Write a report as an HTML page; each finding's chain is searched on the abstract machine, to draw it."""
    sections = (
        line
        for number, mistake in enumerate((*report.mistakes, *report.warnings), 1)
        for line in _section(number, mistake)
    )
    return html_page(title, [*_summary(report), *sections, *_suppressed(report)])


def _summary(report: ProgramReport) -> Iterator[str]:
    count = len(report.mistakes)
    style = "bad" if count else "good"
    words, runs = counted(count, "finding"), f"in {counted(report.runs, 'run')}"
    words += f" and {counted(len(report.warnings), 'warning')}" * bool(report.warnings)
    yield f'<p><span class="{style}">{words}</span> {runs}. <span class="dim">cxlemu {escape(__version__)}</span></p>'
    if count:
        yield "<table><tr><th></th><th>what</th><th>where</th><th>missing</th></tr>"
        for number, mistake in enumerate(report.mistakes, 1):
            place = mistake.places.get("access") or mistake.places.get("store")
            cells = "".join(f"<td>{escape(text)}</td>" for text in (str(place.at) if place else "", mistake.missing))
            what = f'<td class="bad">{escape(mistake.kind.title)}</td>'
            yield f'<tr><td><a href="#f{number}">{number}</a></td>{what}{cells}</tr>'
        yield "</table>"


def _section(number: int, mistake: ProgramMistake) -> Iterator[str]:
    kind = mistake.kind
    yield f'<h2 id="f{number}">{number}. <span class="bad">{escape(kind.name)}</span>: {escape(kind.title)}</h2>'
    yield f"<p>{escape(mistake.sentence)}; {escape(mistake.shows)}.</p><table>"
    for _, says, place in mistake.all_steps():
        code = source_line(place.at)
        yield f"<tr><th>{escape(says)}</th><td>{escape(str(place))}<br><code>{escape(code)}</code></td></tr>"
    yield "</table>"
    if mistake.history:
        yield f'<div class="picture">{history_svg(mistake.history)}</div>'
        yield f"<pre>{escape(chr(10).join(words_of(mistake.history)))}</pre>"
    if mistake.missing:
        yield f"<p><b>Missing:</b> {escape(mistake.missing)}.</p>"
    chain = mistake.chain()
    if chain is not None:
        short = {role: f"{place.at.file}:{place.at.line}" for role, _, place in mistake.steps() if place.at.line}
        drawn = picture(chain, mistake.line, (mistake.by, mistake.host), short)
        if drawn is not None:
            yield f'<div class="picture">{drawn}</div>'
        yield "<p>The same on the abstract machine, for <code>cxlemu litmus</code>:</p>"
        yield f"<pre>{escape(chain.broken)}</pre>"
    if mistake.replay:
        yield f'<p>Make this run again:</p><pre class="token">{escape(mistake.replay)}</pre>'


def _suppressed(report: ProgramReport) -> Iterator[str]:
    if report.suppressed:
        yield "<h2>Suppressed</h2><table><tr><th>what</th><th>where</th><th>reason</th></tr>"
        for mistake in report.suppressed:
            place = mistake.places.get("access") or mistake.places.get("store")
            cells = (mistake.kind.name, str(place.at) if place else "", mistake.reason)
            yield "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in cells) + "</tr>"
        yield "</table>"
