"""A certificate of what was seen of real cards and what was not: a document for JSON, and a page of HTML.

What ranks saw of each other's stores is not measured here: ``cxlemu litmus --backend dax --json`` saw it, from a host
at each port, and its file is a part of the certificate.
"""

import datetime
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from html import escape
from typing import Any

from cxlemu._native import lines_instructions
from cxlemu.calibrate.cards import MeasuredCards
from cxlemu.calibrate.measure import Calibration
from cxlemu.errors import ArgumentError
from cxlemu.units import counted, format_bytes
from cxlemu.version import __version__

NOTHING = "Nothing of a device was measured."
_STYLE = (
    "body{font:15px/1.4 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}table{border-collapse:collapse}"
    "td,th{text-align:left;padding:.15em 1em .15em 0;vertical-align:top}.bad{color:#b00020;font-weight:bold}"
)


def certificate(
    measured: Calibration, cards: MeasuredCards | None, litmus: Mapping[str, Any] | None, *, load: float, virtual: bool
) -> dict[str, Any]:
    """Return the document; ``cards`` is None where shared memory was measured, ``litmus`` where no test was run.

    ``virtual`` says that the machine is a virtual one.
    """
    seen = None if litmus is None else visibility(litmus)
    return {
        "certificate": 1,
        "cxlemu": __version__,
        "date": datetime.date.today().isoformat(),
        "machine": platform.node(),
        "kernel": platform.release(),
        "instructions": lines_instructions(),
        "cores": measured.cores,
        "load": round(load, 2),
        "virtual_machine": virtual,
        "device_measured": cards is not None and cards.devices,
        "cards": [] if cards is None else [asdict(card) for card in cards.cards],
        "together_gbytes_per_s": None if cards is None else cards.together_gbytes_per_s,
        "visibility": seen,
        "not_seen": [*_not_measured(measured, cards, virtual=virtual), *_not_visible(seen)],
    }


def visibility(litmus: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file of ``cxlemu litmus --backend ... --json`` says of visibility; refuse another file."""
    try:
        rows = [row for row in litmus["rows"] if not row["skipped"]]
        expected = [(row["name"], expectation) for row in rows for expectation in row["expectations"]]
        return {
            "backend": str(litmus["backend"]),
            "machines": int(litmus["machines"]),
            "cards": str(litmus["cards"]),
            "rounds": sum(int(row["rounds"]) for row in rows),
            "tests": len(rows),
            "forbidden": [str(row["name"]) for row in rows if row["verdict"] == "violation"],
            "never": [
                f"{name}: {expectation['condition']}"
                for name, expectation in expected
                if (expectation["expected"], expectation["observation"]) == ("allowed", "never")
            ],
        }
    except (KeyError, TypeError, ValueError):
        raise ArgumentError("--litmus takes what `cxlemu litmus --backend dax --json FILE` wrote") from None


def _not_measured(measured: Calibration, cards: MeasuredCards | None, *, virtual: bool) -> Iterator[str]:
    if cards is None:
        yield "any card: what was measured is this machine's shared memory"
    for card in () if cards is None else cards.cards:
        if card.kind != "device-DAX":
            yield f"a device at {card.path}: it is a file, a stand-in whose bytes lie where its file system keeps them"
    if virtual:
        yield "hardware: this is a virtual machine, and its host provides the devices"
    if cards is not None:
        yield "requests of other hosts to the same cards at the same time"
        yield f"load from more than {counted(measured.cores, 'core')} of this host at once"
        yield "writes past the caches: stores here read each line before, and are flushed"
        yield "links and cards that fail, poison, and power that is lost"


def _not_visible(seen: Mapping[str, Any] | None) -> Iterator[str]:
    if seen is None:
        yield "visibility between ports: give --litmus what `cxlemu litmus --backend dax --launch env --json` wrote"
    elif seen["backend"] != "dax":
        yield f"visibility between ports: the litmus tests ran on the backend {seen['backend']}, not on cards"
    elif seen["machines"] < 2:
        yield "visibility between ports: the litmus tests ran on one machine, whose caches are coherent"
    elif seen["never"]:
        yield f"allowed outcomes that never occurred: {'; '.join(seen['never'])}"


def page(document: Mapping[str, Any]) -> str:
    """Return the certificate as one page of HTML that needs nothing else."""
    title = f"cxlemu: cards of {document['machine']}, {document['date']}"
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{escape(title)}</h1>',
            *_body(document),
            "</body></html>\n",
        ]
    )


def _body(document: Mapping[str, Any]) -> Iterator[str]:
    if not document["device_measured"]:
        yield f'<p class="bad">{NOTHING}</p>'
    about = f"cxlemu {document['cxlemu']}, Linux {document['kernel']}, {document['instructions']}"
    yield f"<p>{escape(about)}; {counted(document['cores'], 'core')}, load {document['load']}</p><h2>Seen</h2>"
    for card in document["cards"]:
        yield f"<h3>{escape(card['path'])}: {card['kind']}, {format_bytes(card['nbytes'])}</h3>"
        yield from _table(facts(card))
    if document["cards"]:
        yield f"<p>All cores read all cards: {document['together_gbytes_per_s']:.1f} GB/s</p>"
    if (seen := document["visibility"]) is not None:
        ran = f"{counted(seen['tests'], 'litmus test')}, {counted(seen['rounds'], 'round')}"
        where = f"backend {seen['backend']}, {counted(seen['machines'], 'machine')}"
        yield f"<p>Visibility: {ran} ({escape(where)}; {escape(seen['cards'] or 'no cards')}): "
        ended = f"forbidden outcomes: {', '.join(seen['forbidden'])}" if seen["forbidden"] else "no forbidden outcome"
        yield f"{escape(ended)}</p>"
    yield "<h2>Not seen</h2><ul>"
    yield from (f"<li>{escape(text)}</li>" for text in document["not_seen"])
    yield "</ul>"


def facts(card: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    one = card["one_core"]
    yield "a load that depends on the previous one", f"{card['latency_ns']:.0f} ns"
    for load in card["loaded"]:
        readers = counted(load["cores"], "core")
        yield f"the same beside reads of {load['gbytes_per_s']:.1f} GB/s by {readers}", f"{load['latency_ns']:.0f} ns"
    yield "one core", f"reads {one['read']:.1f}, writes {one['write']:.1f} GB/s"
    for mix, rate in card["mixes"].items():
        yield f"all cores, {mix}", f"{rate:.1f} GB/s"
    yield "flushing a line, dropping a line", f"{card['flush_line_ns']:.1f} ns, {card['invalidate_line_ns']:.1f} ns"
    yield "a fence, a store until its line is on the card", f"{card['fence_ns']:.1f} ns, {card['ring_ns']:.0f} ns"


def _table(rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    yield "<table>"
    yield from (f"<tr><td>{escape(what)}</td><td>{escape(value)}</td></tr>" for what, value in rows)
    yield "</table>"
