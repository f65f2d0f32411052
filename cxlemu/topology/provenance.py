"""The provenance of the figures in a topology file: how each came about.

    latency_ns: {value: 214, source: "CCCL, local DRAM load"}

``source`` is a citation, ``fitted`` says to what, ``assumed`` why. A bare figure has no provenance: it is used all
the same, and `cxlemu topology check` counts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from cxlemu.topology.document import Document, Key, shown

KINDS = ("source", "fitted", "assumed")
TEXT_MAX = 300
_UNITS = ("_ns", "_gbytes_per_s", "_bytes", "_usd", "_watts")
_COUNTS = ("count", "ranks_per_host")


class Provenance(NamedTuple):
    """How one figure came about: cited, fitted or assumed, and the text that says so."""

    kind: str  # one of KINDS
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


Provenances = dict[Key, Provenance]


def take_provenance(document: Document) -> tuple[dict[str, Any], Provenances]:
    """Separate a document's values from what it says about them.

    Args:
        document: A parsed YAML file.

    Returns:
        The data with plain values, and the provenance of each value that has one, by its key in the file.

    Raises:
        ConfigError: A provenance has no value, no text, or more than one kind.
    """
    found: Provenances = {}

    def plain(node: Any, key: Key) -> Any:
        if isinstance(node, list):
            return [plain(item, (*key, index)) for index, item in enumerate(node)]
        if not isinstance(node, dict):
            return node
        if "value" not in node:
            return {name: plain(item, (*key, name)) for name, item in node.items()}
        kinds = [name for name in node if name != "value"]
        if len(kinds) != 1 or kinds[0] not in KINDS:
            raise document.error(key, f'should be {{value: ..., {" or ".join(KINDS)}: "text"}}, with one of the three')
        text = node[kinds[0]]
        if not isinstance(text, str) or not text.strip() or not text.isprintable() or len(text) > TEXT_MAX:
            what = f"is {shown(text)} but should be one line of text, {TEXT_MAX} characters at most"
            raise document.error((*key, kinds[0]), what)
        found[key] = Provenance(kinds[0], text)
        return node["value"]

    data: dict[str, Any] = {name: plain(item, (name,)) for name, item in document.data.items()}
    return data, found


def with_provenance(data: dict[str, Any], provenance: Provenances) -> dict[str, Any]:
    """Undo `take_provenance`: put each provenance beside its value.

    Args:
        data: The plain values of a file; it changes in place.
        provenance: The provenance of some values, by their keys in ``data``.

    Returns:
        ``data``, as a file says it.
    """
    for key, its in provenance.items():
        place: Any = data
        for part in key[:-1]:
            place = place[part]
        place[key[-1]] = {"value": place[key[-1]], its.kind: its.text}
    return data


def figures(node: Any, key: Key = ()) -> Iterator[Key]:
    """Yield the key of each value that claims something about the modelled machine, in the file's order.

    Figures are the values whose names end with a unit, and counts; those under ``emulation`` are about this machine.

    Args:
        node: A file's plain data, or a part of it.
        key: The key of ``node`` in the file.
    """
    if isinstance(node, dict):
        for name, item in node.items():
            if key or name != "emulation":  # that is this machine's
                yield from figures(item, (*key, name))
    elif isinstance(node, list):
        for index, item in enumerate(node):
            yield from figures(item, (*key, index))
    elif node is not None and key and isinstance(name := key[-1], str) and (name.endswith(_UNITS) or name in _COUNTS):
        yield key
