"""FLUX's table with every assumed figure a quarter lower and higher, one at a time, on all clusters at once.

Links, costs and accelerators assume the same kinds of figures on every cluster. Fused calls keep the tiles that are
fastest with the figures as assumed; unfused ones take the fastest order and transport anew.
"""

from __future__ import annotations

from collections.abc import Iterator

from cxlemu.topology import Accelerator, Topology
from cxlemu.topology.document import Key
from studies.published.flux import MEASURED, REPORTED, Reproduction
from studies.published.flux_clusters import Clusters
from studies.published.variation import AS_ASSUMED, FACTORS, assumed, beside, predictions, varied


def otherwise(work: Reproduction) -> Iterator[tuple[str, dict[str, tuple[float, float]]]]:
    """Vary every assumed figure of the clusters that FLUX measured, one at a time, by a quarter."""
    usual = predictions(work.rows)
    yield AS_ASSUMED, beside(usual, usual)
    clusters = dict.fromkeys((*MEASURED, *(cluster for cluster, _ in REPORTED)))
    topologies = {name: Topology.load(name) for name in clusters}
    accelerators = {name: Accelerator.load(str(its.accelerator)) for name, its in topologies.items()}
    of_fabrics = {key: name for its in topologies.values() for key, name in assumed(its)}
    of_chips = {key: name for its in accelerators.values() for key, name in assumed(its)}
    for keys, words in ((of_fabrics, ""), (of_chips, "accelerator: ")):
        for key, name in keys.items():
            its = (predictions(_with(work, topologies, accelerators, key, by).rows) for by in FACTORS)
            yield f"{words}{name}", beside(*its)


def _with(
    work: Reproduction, topologies: dict[str, Topology], accelerators: dict[str, Accelerator], key: Key, by: float
) -> Reproduction:
    """Return the table where a figure is changed wherever it is assumed."""

    def described(cluster: str) -> tuple[Topology, Accelerator]:
        topology, accelerator = topologies[cluster], accelerators[cluster]
        if key in dict(assumed(topology)):
            topology = varied(topology, key, by)
        if key in dict(assumed(accelerator)):
            accelerator = varied(accelerator, key, by)
        return topology, accelerator

    return Reproduction(work.m, clusters=Clusters(work.clusters, described))
