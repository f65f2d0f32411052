"""Which algorithm and protocol NCCL takes: the one that its own formula says is fastest (its src/graph/tuning.cc).

    time = base + steps * step + bytes / (share * rate)

Base is a call's cost. Grouped sends and receives always take the first protocol of the list. The formula only chooses:
times come from the plans.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from collectives.algorithms.nccl import RECIPES
from collectives.builder.recipes import Recipe
from collectives.sizes import size_bytes
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call
from cxlemu.topology import Protocol, Space, Topology

PLATEAU = 1.4  # of the latency of a Simple ring's all_reduce between hosts, from A100 on: tuning.cc


class NcclChoice(NamedTuple):
    """The algorithm and protocol that a call takes on a space, and the machine that speaks the protocol."""

    topology: Topology
    recipe: Recipe
    protocol: str
    reason: str


def take(topology: Topology, space: Space, call: Call) -> NcclChoice:
    """Choose the algorithm and protocol for a call.

    Args:
        topology: The fabric.
        space: A space with protocols.
        call: The call; where its algorithm is "auto", any of NCCL's may be taken.

    Raises:
        ArgumentError: NCCL has no such algorithm for the collective.
    """
    assert space.protocols is not None
    found = {
        name: recipe
        for (collective, name), recipe in RECIPES.items()
        if collective == call.collective and call.algorithm in ("auto", name)
    }
    if not found:
        raise ArgumentError(f"{call.collective} has no {call.algorithm} of NCCL's for space {space.name}")
    options = {
        (name, protocol): _formula_us(topology, space, protocol, call, name)
        for name in found
        for protocol in (space.protocols[:1] if name == "grouped" else space.protocols)
    }
    name, protocol = min(options, key=lambda option: options[option])
    recipe = found[name]
    if protocol.slice_bytes is not None:
        recipe = replace(recipe, spec=replace(recipe.spec, slice_bytes=protocol.slice_bytes))
    others = ", ".join(f"{a} {p.name} {us:.0f} us" for (a, p), us in options.items() if (a, p) != (name, protocol))
    reason = f"{name} with {protocol.name}: {options[name, protocol]:.0f} us by NCCL's formula"
    reason += f"; {others}" if others else ""
    return NcclChoice(topology.speaking(space, protocol), recipe, protocol.name, reason)


def _formula_us(topology: Topology, space: Space, protocol: Protocol, call: Call, name: str) -> float:
    ranks, total = call.ranks, size_bytes(call.collective, call.nbytes, call.ranks)
    steps, share_of_size = {
        "ring": (ranks - 1, (ranks - 1) / ranks),
        "tree": (2 * (ranks - 1).bit_length(), 2.0),
        "chain": (1, 1.0),  # all are under way at once
        "grouped": (1, (ranks - 1) / ranks),
    }[name]
    plateau = 1.0
    if (call.collective, name) == ("all_reduce", "ring"):
        steps, share_of_size = 2 * steps, 2 * share_of_size
        plateau = PLATEAU if protocol is (space.protocols or (protocol,))[0] else 1.0
    latency_ns = plateau * ((protocol.costs.call_ns or 0) + steps * protocol.step_ns)
    rate = _link_gbytes_per_s(topology, space) * protocol.share_of_rate
    return (latency_ns + total * share_of_size / rate) / 1e3


def _link_gbytes_per_s(topology: Topology, space: Space) -> float:
    """The rate of the slowest link on the way to the space's last card."""
    route = topology.fabric().route(0, topology.cards_of(space)[-1])
    assert route is not None  # checks.py sees to it
    return min((link.gbytes_per_s for link in route.links), default=1e6)
