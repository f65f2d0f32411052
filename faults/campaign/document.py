"""A campaign's result as JSON, and as JUnit XML that continuous integration reads."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

from cxlemu.version import __version__
from faults.campaign.run import Finding, Result

# XML 1.0 has no other control characters, and no lone surrogates.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_json(result: Result, campaign: dict[str, Any]) -> dict[str, Any]:
    """``campaign`` is what was asked for."""
    return {
        "version": __version__,
        "campaign": campaign,
        "cases": result.total,
        "judged": len(result.judged),
        "resumed": result.resumed,
        "complete": result.complete,
        "interrupted": result.interrupted,
        "seconds": result.seconds,
        "counts": dict(sorted(result.counts.items())),
        "findings": [_finding(finding) for finding in result.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
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


def as_junit(result: Result) -> bytes:
    """A test case for each case, in a suite for each collective; cases that the budget did not reach are one skip."""
    suites = ET.Element("testsuites", name="cxlemu faults campaign")
    by_collective: dict[str, list[tuple[str, str, Any, float]]] = {}
    for entry in result.judged:
        by_collective.setdefault(entry[1].split(" ", 1)[0], []).append(entry)
    total = failures = skipped = 0
    for collective, entries in by_collective.items():
        failed = sum(judgement.fails for _, _, judgement, _ in entries)
        seconds = sum(seconds for *_, seconds in entries)
        suite = ET.SubElement(suites, "testsuite", name=collective, tests=str(len(entries)), failures=str(failed))
        suite.attrib |= {"errors": "0", "skipped": "0", "time": f"{seconds:.3f}"}
        for case_id, words, judgement, its_seconds in entries:
            attributes = {"classname": f"cxlemu.{collective}", "name": _clean(f"{words} [{case_id}]")}
            case = ET.SubElement(suite, "testcase", attributes, time=f"{its_seconds:.6f}")
            if judgement.fails:
                finding = result.found[judgement.key]
                failure = ET.SubElement(case, "failure", type=_clean(judgement.kind), message=_clean(judgement.detail))
                failure.text = _clean(f"smallest: {finding.smallest}\n{finding.command}\n")
        total, failures = total + len(entries), failures + failed
    if not result.complete:
        left = result.total - len(result.judged)
        why = "Ctrl-C" if result.interrupted else "the budget ended"
        suite = ET.SubElement(suites, "testsuite", name="not judged", tests="1", failures="0", errors="0", skipped="1")
        suite.attrib["time"] = "0"
        case = ET.SubElement(suite, "testcase", classname="cxlemu", name=f"{left} more cases", time="0")
        ET.SubElement(case, "skipped", message=f"{why} before {left} of {result.total} cases were judged")
        total, skipped = total + 1, 1
    suites.attrib |= {"tests": str(total), "failures": str(failures), "errors": "0", "skipped": str(skipped)}
    suites.attrib["time"] = f"{result.seconds:.3f}"
    ET.indent(suites)
    written: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub("?", text)
