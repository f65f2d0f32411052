"""In which figures topologies differ: what stands behind different answers on them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from cxlemu.errors import ArgumentError
from cxlemu.topology.document import Key
from cxlemu.topology.intervals import named
from cxlemu.topology.model import Topology
from cxlemu.topology.provenance import figures


def against(topology: Topology | None, names: Sequence[str]) -> list[Topology]:
    """Load the topologies of ``--against``. Those of one name are called as their files are.

    Raises ArgumentError for the one that is compared with them.
    """
    topologies = [Topology.load(name) for name in names]
    for name, other in zip(names, topologies, strict=True):
        if other == topology:
            raise ArgumentError(f"--against {name} is the topology that is simulated: name another, or leave it out")
    called = Counter(each.name for each in (*topologies, *([topology] if topology else [])))
    return [
        each.model_copy(update={"name": name}) if called[each.name] > 1 else each
        for name, each in zip(names, topologies, strict=True)
    ]


def differences(topologies: Sequence[Topology]) -> list[str]:
    """List the figures in which topologies differ: ``links.nic.latency_ns: 300 (source) in a; 200 (fitted) in b``."""
    values = [_figures(topology) for topology in topologies]
    lines = []
    for key in dict.fromkeys(key for value in values for key in value):
        names: dict[str, list[str]] = {}
        for topology, keyed in zip(topologies, values, strict=True):
            kind = f" ({topology.provenance[key].kind})" if key in topology.provenance else ""
            names.setdefault(f"{keyed[key]:g}{kind}" if key in keyed else "nothing", []).append(topology.name)
        if len({value.get(key) for value in values}) > 1:
            said = "; ".join(f"{value} in {', '.join(where)}" for value, where in names.items())
            where = next(topology_at for topology_at, of in zip(topologies, values, strict=True) if key in of)
            lines.append(f"{named(where, key)}: {said}")
    return lines


def spread(names: Sequence[str], ratios: Sequence[float]) -> str:
    """Say over what range an answer goes, by ratios of baselines' times to ours, and whether it crosses 1."""
    low, high = min(ratios), max(ratios)
    turns = ": the answer depends on which of them is right" if low < 1 < high else ""
    least, most = names[ratios.index(low)], names[ratios.index(high)]
    return f"{low:.2f} ({least}) to {high:.2f} ({most}) times as long{turns}"


def _figures(topology: Topology) -> dict[Key, Any]:
    plain = topology.plain()
    places = {}
    for key in figures(plain):
        place: Any = plain
        for part in key:
            place = place[part]
        if isinstance(place, int | float):
            places[key] = place
    return places
