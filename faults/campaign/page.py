"""A campaign's result as one HTML page that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from cxlemu.errors import CxlemuError
from cxlemu.version import __version__
from faults.campaign.replay import picture
from faults.campaign.run import Finding, Result

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.5rem;border-top:1px solid #d8dee4;padding-top:1rem}
table{border-collapse:collapse}td,th{padding:.25rem .8rem .25rem 0;text-align:left;vertical-align:top}
th{font-weight:600;border-bottom:1px solid #d8dee4}.bad{color:#c4161c;font-weight:600}.good{color:#1a7f37}
pre{background:#f6f8fa;padding:.7rem;overflow-x:auto;border-radius:6px;font-size:13px}
pre.token{white-space:pre-wrap;word-break:break-all;user-select:all}.picture{overflow-x:auto}.dim{color:#5b6570}
"""


def page(result: Result, title: str) -> str:
    """Draws a picture for each finding of ranks in lockstep, which means to execute it again."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *_summary(result),
        *_table(result),
        *(line for number, finding in enumerate(result.findings, 1) for line in _section(number, finding)),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _summary(result: Result) -> Iterator[str]:
    state = "complete" if result.complete else "interrupted" if result.interrupted else "the budget ended first"
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(result.counts.items())) or "none"
    style = "bad" if result.findings else "good" if result.complete else ""
    found = f"{len(result.findings)} finding{'s' * (len(result.findings) != 1)}"
    yield (
        f'<p><span class="{style}">{found}</span> in {len(result.judged)} of {result.total} cases ({state}): '
        f'{escape(counts)}. <span class="dim">{result.seconds:.1f} s, cxlemu {escape(__version__)}</span></p>'
    )


def _table(result: Result) -> Iterator[str]:
    if not result.findings:
        return
    yield "<table><tr><th></th><th>what</th><th>where</th><th>rule</th><th>cases</th></tr>"
    for number, finding in enumerate(result.findings, 1):
        j = finding.judgement
        cells = "".join(f"<td>{escape(text)}</td>" for text in (j.place, j.rule, str(finding.count)))
        yield f'<tr><td><a href="#f{number}">{number}</a></td><td class="bad">{escape(j.kind)}</td>{cells}</tr>'
    yield "</table>"


def _section(number: int, finding: Finding) -> Iterator[str]:
    j, case = finding.judgement, finding.smallest
    yield f'<h2 id="f{number}">{number}. <span class="bad">{escape(j.kind)}</span>: {escape(j.place)}</h2>'
    yield f"<p>{escape(j.detail)}</p>"
    shrunk = f"{finding.tried} smaller ones tried" + ("" if finding.shrunk else ", not to the end")
    yield f'<table><tr><th>smallest case</th><td>{escape(str(case))} <span class="dim">({shrunk})</span></td></tr>'
    yield f"<tr><th>found in</th><td>{escape(str(finding.first))}</td></tr></table>"
    if case.script.faults or case.script.adversary:
        yield f"<pre>{escape(case.script.dump())}</pre>"
    yield from _picture(finding)
    yield f'<p>Replay it anywhere:</p><pre class="token">{escape(finding.command)}</pre>'


def _picture(finding: Finding) -> Iterator[str]:
    try:
        drawn = picture(finding.smallest)
    except CxlemuError as error:
        yield f'<p class="dim">No picture: {escape(str(error))}</p>'
        return
    if drawn is not None:
        yield f'<div class="picture">{drawn}</div>'
