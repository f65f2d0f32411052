"""Which assumption moves ScalePool's speedups: switches, links and RDMA's overhead, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from cxlemu.topology import Costs, Topology
from studies.published.scalepool import Pair, Reproduction

CXL_PORT, RDMA_ADAPTER, SWITCHES = 128, 48, 3  # GB/s, and a leaf, a spine and a leaf: as in configs/
OVERHEADS = ("call_ns", "copy_ns", "doorbell_ring_ns", "doorbell_observe_ns")


class Axis(NamedTuple):
    """One assumption that is varied."""

    name: str
    values: tuple[float, ...]
    base: float  # the value that the configs have
    of: Callable[[float], list[Pair]]  # takes a value of the assumption, and returns the pairs simulated with it


def axes(work: Reproduction) -> Iterator[Axis]:
    """Yield each assumption that is varied; nothing is simulated before its ``of`` is called."""
    cxl, rdma = (Topology.load(name) for name in (work.setup.scalepool, work.setup.baseline))
    yield Axis(
        "CXL switches on the way, 100 ns each",
        (3, 8, 32, 128),
        SWITCHES,
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
        "RDMA's software overhead, times NCCL's",
        (0.25, 1, 4, 16),
        1,
        lambda factor: work.varied(baseline=with_overhead(rdma, factor)).pairs,
    )


def with_switches(topology: Topology, hops: float) -> Topology:
    """Return the topology with another number of switches on each way, each as slow as the ones in the file."""
    (fabric,) = topology.fabrics
    slower = fabric.model_copy(update={"port_latency_ns": round(hops / SWITCHES * fabric.port_latency_ns)})
    return topology.model_copy(update={"fabrics": (slower,)})


def with_rate(topology: Topology, gbytes_per_s: float) -> Topology:
    """Return the topology with another rate of every accelerator's own link; links between switches grow with it."""
    (fabric,) = topology.fabrics
    link = fabric.host_link.model_copy(update={"gbytes_per_s": gbytes_per_s})
    return topology.model_copy(update={"fabrics": (fabric.model_copy(update={"host_link": link}),)})


def with_overhead(topology: Topology, factor: float) -> Topology:
    """Return the topology with slower or faster software, on every call and flag, in every protocol.

    NCCL chooses among the protocols by these costs.
    """
    space = topology.pool_space
    slower = [
        protocol.model_copy(update={"costs": _longer(protocol.costs, factor)}) for protocol in space.protocols or ()
    ]
    return topology.model_copy(update={"spaces": (space.model_copy(update={"protocols": tuple(slower)}),)})


def _longer(costs: Costs, factor: float) -> Costs:
    return costs.model_copy(update={name: round(factor * (getattr(costs, name) or 0)) for name in OVERHEADS})
