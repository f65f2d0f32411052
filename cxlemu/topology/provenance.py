"""The provenance of the figures in a topology file: how each came about.

    latency_ns: {value: 214, source: "CCCL, local DRAM load"}

``source`` is a citation, ``fitted`` says to what, ``assumed`` why. A bare figure has no provenance: it is used all
the same, and `cxlemu topology check` counts it. A figure that was measured at several values, or of which only the
order is known, also has a range:

    copy_ns: {value: 5000, assumed: "starting one asynchronous copy", range: [2000, 10000]}

A figure that was fitted says nothing of other machines. It may name the topologies that it belongs to, and no other may
use it:

    doorbell_observe_ns: {value: 26438, fitted: "on AllGather alone", systems: [infiniband-3xh100-cccl]}
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from cxlemu.topology.document import Document, Key, shown

KINDS = ("source", "fitted", "assumed")
TEXT_MAX = 300
RANGE_MAX = 10**9
_UNITS = ("_ns", "gbytes_per_s", "_bytes", "_usd", "_watts")
_COUNTS = ("count", "ranks_per_host")


class Provenance(NamedTuple):
    """How one figure came about: cited, fitted or assumed, and the text that says so."""

    kind: str  # one of KINDS
    text: str
    range: tuple[float, float] | None = None  # the least and the largest value that the figure may have
    systems: tuple[str, ...] | None = None  # of a fitted figure, the topologies that may use it; None: any

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


Provenances = dict[Key, Provenance]


def kinds_of(*described: Provenances) -> str:
    """How many figures are of which kind, such as ``5 source, 2 assumed``."""
    kinds = [its.kind for provenance in described for its in provenance.values()]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in KINDS if kind in kinds)


def take_provenance(document: Document) -> tuple[dict[str, Any], Provenances]:
    """Split a document into plain values and the provenance of each value that has one, by its key in the file."""
    found: Provenances = {}

    def plain(node: Any, key: Key) -> Any:
        if isinstance(node, list):
            return [plain(item, (*key, index)) for index, item in enumerate(node)]
        if not isinstance(node, dict):
            return node
        if "value" not in node:
            return {name: plain(item, (*key, name)) for name, item in node.items()}
        kinds = [name for name in node if name not in ("value", "range", "systems")]
        if len(kinds) != 1 or kinds[0] not in KINDS:
            raise document.error(key, f'should be {{value: ..., {" or ".join(KINDS)}: "text"}}, with one of the three')
        text = node[kinds[0]]
        if not isinstance(text, str) or not text.strip() or not text.isprintable() or len(text) > TEXT_MAX:
            what = f"is {shown(text)} but should be one line of text, {TEXT_MAX} characters at most"
            raise document.error((*key, kinds[0]), what)
        its_range = _range(document, node, key) if "range" in node else None
        systems = _systems(document, node, key) if "systems" in node else None
        found[key] = Provenance(kinds[0], text, its_range, systems)
        return node["value"]

    data: dict[str, Any] = {name: plain(item, (name,)) for name, item in document.data.items()}
    return data, found


def with_provenance(data: dict[str, Any], provenance: Provenances) -> dict[str, Any]:
    """Put each provenance beside its value, in place: the inverse of `take_provenance`."""
    for key, source in provenance.items():
        place: Any = data
        for part in key[:-1]:
            place = place[part]
        place[key[-1]] = {"value": place[key[-1]], source.kind: source.text}
        if source.range is not None:
            place[key[-1]]["range"] = list(source.range)
        if source.systems is not None:
            place[key[-1]]["systems"] = list(source.systems)
    return data


def check_systems(document: Document, provenance: Provenances, name: str) -> None:
    """Refuse fitted figures outside the topologies that they belong to, with a ConfigError."""
    for key, source in provenance.items():
        if source.systems is not None and name not in source.systems:
            where = " or ".join(source.systems)
            raise document.error(key, f"was fitted to {where} and says nothing of {name}: assume a value, or cite one")


def _systems(document: Document, node: dict[str, Any], key: Key) -> tuple[str, ...]:
    names = node["systems"]
    if "fitted" not in node:
        raise document.error((*key, "systems"), "is for fitted figures; leave it out")
    if (
        not isinstance(names, list)
        or not names
        or not all(isinstance(name, str) and name.isprintable() for name in names)
    ):
        raise document.error((*key, "systems"), f"is {shown(names)} but should be a list of names of topologies")
    return tuple(names)


def _range(document: Document, node: dict[str, Any], key: Key) -> tuple[float, float]:
    value, ends = node["value"], node["range"]
    numbers = [value, *ends] if isinstance(ends, list) and len(ends) == 2 else []
    if not numbers or any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        raise document.error((*key, "range"), f"is {shown(ends)} but should be [least, largest], two numbers")
    low, high = ends
    if not 0 <= low <= value <= high <= RANGE_MAX:
        raise document.error((*key, "range"), f"is {shown(ends)} but should hold the value, {shown(value)}")
    return low, high


def figures(node: Any, key: Key = ()) -> Iterator[Key]:
    """Yield the key of each value that claims something about the modelled machine, in the file's order.

    Figures are the values whose names end with a unit, and counts; those under ``emulation`` are about this machine.
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
