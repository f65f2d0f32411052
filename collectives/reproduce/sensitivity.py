"""Which assumption moves ScalePool's speedups: switches, links and RDMA's overhead, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from collectives.reproduce.scalepool import Pair, Reproduction
from cxlemu.topology import Topology

CXL_PORT, RDMA_ADAPTER = 128, 48  # GB/s, as in configs/
OVERHEADS = ("call_ns", "copy_ns", "doorbell_ring_ns", "doorbell_observe_ns")


class Axis(NamedTuple):
    """``of(value)``: the pairs where the assumption has this value. ``base``: the configs' own."""

    name: str
    values: tuple[float, ...]
    base: float
    of: Callable[[float], list[Pair]]


def axes(work: Reproduction) -> Iterator[Axis]:
    cxl, rdma = (Topology.load(name) for name in (work.setup.scalepool, work.setup.baseline))
    yield Axis(
        "CXL switches on the way",
        (2, 8, 32, 128),
        2,
        lambda hops: work.varied(scalepool=with_switches(cxl, hops)).pairs,
    )
    yield Axis(
        "CXL port, GB/s",
        (32, 64, 128, 256),
        CXL_PORT,
        lambda rate: work.varied(scalepool=with_rate(cxl, rate)).pairs,
    )
    yield Axis(
        "RDMA adapter, GB/s",
        (12, 24, 48, 96),
        RDMA_ADAPTER,
        lambda rate: work.varied(baseline=with_rate(rdma, rate)).pairs,
    )
    yield Axis(
        "RDMA's overhead, times",
        (0.25, 1, 4, 16),
        1,
        lambda factor: work.varied(baseline=with_overhead(rdma, factor)).pairs,
    )


def with_switches(topology: Topology, hops: float) -> Topology:
    """As many on each way, each as slow as those that there are: the spine stands for all but one."""
    leaf, spine = topology.switches
    slower = spine.model_copy(update={"port_latency_ns": round((hops - 1) * spine.port_latency_ns)})
    return topology.model_copy(update={"switches": (leaf, slower)})


def with_rate(topology: Topology, gbytes_per_s: float) -> Topology:
    """Every accelerator's own link; those between switches grow with it."""
    factor = gbytes_per_s / topology.links[0].gbytes_per_s
    links = [link.model_copy(update={"gbytes_per_s": link.gbytes_per_s * factor}) for link in topology.links]
    return topology.model_copy(update={"links": tuple(links)})


def with_overhead(topology: Topology, factor: float) -> Topology:
    """Of software, on every call, copy and flag."""
    costs = topology.costs
    longer = {name: round(factor * (getattr(costs, name) or 0)) for name in OVERHEADS}
    return topology.model_copy(update={"costs": costs.model_copy(update=longer)})
