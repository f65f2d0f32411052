"""Calls whose vectors a switch adds up as they pass (NVLink SHARP), in closed form.

A rank asks the switch for the sum of its own share, for which every rank's link carries that share out: a whole vector
by the end. In an all_reduce the rank then stores the sum once, and the switch hands it to all. Of a vector, a link so
carries 1 + 1/N each way in an all_reduce of N ranks, and 1 in a reduce_scatter. Plans have no such instruction: what is
estimated here is neither proved nor executed.
"""

from cxlemu.plan import Call
from cxlemu.topology import Topology
from cxlemu.topology.fields import Folding, Link

_SUMS = frozenset({"i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64"})
_EXTREMES = _SUMS - {"f32", "f64"}
_FOLDED = {"sum": _SUMS, "min": _EXTREMES, "max": _EXTREMES}  # NCCL src/include/nvls.h, ncclNvlsSupported


def in_switch_ns(topology: Topology, call: Call, size_bytes: int) -> float | None:
    """Return how long a call takes that a switch folds; None where no switch joins and folds for all its ranks."""
    fold_ns = folding(topology)
    carried = {"all_reduce": 1 + 1 / call.ranks, "reduce_scatter": 1.0}.get(call.collective)
    if fold_ns is None or carried is None or call.ranks < 2 or call.dtype not in _FOLDED.get(call.redop, ()):
        return None
    folds, link = fold_ns
    return folds.latency_ns + size_bytes * carried / (link.payload_gbytes_per_s * folds.share_of_rate)


def folding(topology: Topology) -> tuple[Folding, Link] | None:
    """Return what the switch between all ranks folds, and each rank's link to it; None where there is none."""
    alone = "ranks" if topology.hosts.ranks_per_host > 1 else "hosts"
    for switch in topology.switches:
        if switch.folds is None or (switch.per_host and topology.host_count > 1):
            continue
        for link in topology.links:
            if switch.name in link.ends and {"ranks", alone} & set(link.ends):
                return switch.folds, link
    return None
