"""A campaign's result as JSON, as JUnit XML that continuous integration reads, and as one HTML page.

The page needs nothing else: no network, no script, no other file.
"""

import re
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any
from xml.etree import ElementTree as ET

from cxlemu.errors import CxlemuError
from cxlemu.units import counted
from cxlemu.version import __version__
from faults.campaign.judge import NEVER
from faults.campaign.picture import picture
from faults.campaign.run import CampaignFinding, CampaignResult
from faults.inject.fault import FAULTS
from faults.left_out import together

# XML 1.0 has no other control characters, and no lone surrogates.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_json(result: CampaignResult, campaign: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": __version__,
        "campaign": campaign,
        "cases": result.total,
        "judged": len(result.judged),
        "resumed": result.resumed,
        "complete": result.complete,
        "interrupted": result.interrupted,
        "unfinished": result.unfinished,
        "lost": result.lost,
        "declined": result.declined,
        **together(result.left_out, result.kinds_left_out).data,
        "seconds": result.seconds,
        "counts": dict(sorted(result.counts.items())),
        "findings": [_finding(finding) for finding in result.findings],
    }


def _finding(finding: CampaignFinding) -> dict[str, Any]:
    return {
        **finding.judgement.plain(),
        "count": finding.count,
        "first": str(finding.first),
        "smallest": str(finding.smallest),
        "case": finding.smallest.plain(),
        "tried": finding.tried,
        "fully_shrunk": finding.shrunk,
        "token": str(finding.token),
        "replay": finding.command,
    }


def as_junit(result: CampaignResult) -> bytes:
    """Write a campaign's result as JUnit XML, in UTF-8.

    There is a test case for each case, in a suite for each collective; a case whose fault never happened is a skip, and
    the cases that the budget did not reach are one skip.
    """
    suites = ET.Element("testsuites", name="cxlemu faults campaign")
    by_collective: dict[str, list[tuple[str, str, Any, float]]] = {}
    for entry in result.judged:
        by_collective.setdefault(entry[1].split(" ", 1)[0], []).append(entry)
    total = failures = skipped = 0
    for collective, entries in by_collective.items():
        failed = sum(judgement.fails for _, _, judgement, _ in entries)
        seconds = sum(seconds for *_, seconds in entries)
        suite = ET.SubElement(suites, "testsuite", name=collective, tests=str(len(entries)), failures=str(failed))
        never = sum(judgement.kind == NEVER for _, _, judgement, _ in entries)
        suite.attrib |= {"errors": "0", "skipped": str(never), "time": f"{seconds:.3f}"}
        for case_id, words, judgement, its_seconds in entries:
            attributes = {"classname": f"cxlemu.{collective}", "name": _clean(f"{words} [{case_id}]")}
            case = ET.SubElement(suite, "testcase", attributes, time=f"{its_seconds:.6f}")
            if judgement.fails:
                finding = result.found[judgement.key]
                failure = ET.SubElement(case, "failure", type=_clean(judgement.kind), message=_clean(judgement.detail))
                failure.text = _clean(f"smallest: {finding.smallest}\n{finding.command}\n")
            elif judgement.kind == NEVER:
                ET.SubElement(case, "skipped", message=_clean(judgement.detail))
        total, failures, skipped = total + len(entries), failures + failed, skipped + never
    if not result.complete:
        left = result.total - len(result.judged)
        suite = ET.SubElement(suites, "testsuite", name="not judged", tests="1", failures="0", errors="0", skipped="1")
        suite.attrib["time"] = "0"
        case = ET.SubElement(suite, "testcase", classname="cxlemu", name=f"{left} more cases", time="0")
        ET.SubElement(case, "skipped", message=f"{left} of {counted(result.total, 'case')} not judged: {result.state}")
        total, skipped = total + 1, skipped + 1
    suites.attrib |= {"tests": str(total), "failures": str(failures), "errors": "0", "skipped": str(skipped)}
    suites.attrib["time"] = f"{result.seconds:.3f}"
    ET.indent(suites)
    written: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub("?", text)


# --- the page --------------------------------------------------------------------------------------------------------

STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.5rem;border-top:1px solid #d8dee4;padding-top:1rem}
table{border-collapse:collapse}td,th{padding:.25rem .8rem .25rem 0;text-align:left;vertical-align:top}
th{font-weight:600;border-bottom:1px solid #d8dee4}.bad{color:#c4161c;font-weight:600}.good{color:#1a7f37}
pre{background:#f6f8fa;padding:.7rem;overflow-x:auto;border-radius:6px;font-size:13px}
pre.token{white-space:pre-wrap;word-break:break-all;user-select:all}.picture{overflow-x:auto}.dim{color:#5b6570}
"""


def html_page(title: str, body: Iterable[str]) -> str:
    """Put lines of HTML into a page that needs nothing else."""
    head = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
    ]
    return "\n".join([*head, *body, "</body></html>"]) + "\n"


def page(result: CampaignResult, title: str) -> str:
    """Write a campaign's result as an HTML page; this executes each finding of ranks in lockstep again, to draw it."""
    sections = (line for number, finding in enumerate(result.findings, 1) for line in _section(number, finding))
    return html_page(title, [*_summary(result), *_table(result), *sections])


def _summary(result: CampaignResult) -> Iterator[str]:
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(result.counts.items())) or "none"
    style = "bad" if result.findings else "" if result.exit_code else "good"
    findings, cases = counted(len(result.findings), "finding"), counted(result.total, "case")
    yield (
        f'<p><span class="{style}">{findings}</span> in {len(result.judged)} of {cases} ({result.state}): '
        f'{escape(counts)}. <span class="dim">{result.seconds:.1f} s, cxlemu {escape(__version__)}</span></p>'
    )


def _table(result: CampaignResult) -> Iterator[str]:
    if not result.findings:
        return
    yield "<table><tr><th></th><th>what</th><th>where</th><th>rule</th><th>cases</th></tr>"
    for number, finding in enumerate(result.findings, 1):
        j = finding.judgement
        cells = "".join(f"<td>{escape(text)}</td>" for text in (j.place, j.rule, str(finding.count)))
        yield f'<tr><td><a href="#f{number}">{number}</a></td><td class="bad">{escape(j.kind)}</td>{cells}</tr>'
    yield "</table>"


def _section(number: int, finding: CampaignFinding) -> Iterator[str]:
    j, case = finding.judgement, finding.smallest
    yield f'<h2 id="f{number}">{number}. <span class="bad">{escape(j.kind)}</span>: {escape(j.place)}</h2>'
    yield f"<p>{escape(j.detail)}</p>"
    shrunk = f"{finding.tried} smaller ones tried" + ("" if finding.shrunk else ", not to the end")
    yield f'<table><tr><th>smallest case</th><td>{escape(str(case))} <span class="dim">({shrunk})</span></td></tr>'
    yield f"<tr><th>found in</th><td>{escape(str(finding.first))}</td></tr></table>"
    if case.script.faults or case.script.adversary:
        yield f"<pre>{escape(case.script.dump())}</pre>"
        for fault in case.script.faults:
            yield f'<p class="dim">{escape(f"{fault}: {FAULTS[fault.kind].what}")}</p>'
    yield from _picture(finding)
    yield f'<p>Replay it anywhere:</p><pre class="token">{escape(finding.command)}</pre>'


def _picture(finding: CampaignFinding) -> Iterator[str]:
    try:
        drawn = picture(finding.smallest)
    except CxlemuError as error:
        yield f'<p class="dim">No picture: {escape(str(error))}</p>'
        return
    if drawn is not None:
        yield f'<div class="picture">{drawn}</div>'
