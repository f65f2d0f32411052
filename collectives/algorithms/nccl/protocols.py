"""Which algorithm and protocol NCCL takes: as in its src/graph/tuning.cc, the one that a formula says is fastest.

NCCL's own formula counts a latency for each step and a bandwidth. This one counts the same costs as the plans: a rank
receives slice after slice, each of which takes the longer one of its way over the wire and of what it costs its
receiver; and the first one has to come through all steps. Grouped sends and receives take the protocol that is for
them, or the first one. The formula only chooses: times come from the plans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from collectives.algorithms.nccl import RECIPES
from collectives.algorithms.nccl.rings import IN_A_CHUNK
from collectives.builder.recipes import Recipe
from collectives.sizes import size_bytes
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call

if TYPE_CHECKING:
    from cxlemu.topology import Protocol, Space, Topology


class NcclChoice(NamedTuple):
    """The algorithm and protocol that a call takes on a space, and the machine that speaks the protocol."""

    topology: Topology
    recipe: Recipe
    protocol: str
    reason: str


def take(topology: Topology, space: Space, call: Call) -> NcclChoice:
    """Choose one of NCCL's algorithms and protocols for a call on a space with protocols; "auto" may be any of them.

    Within a host NCCL counts its tree as a chain, up and down (src/graph/tuning.cc): "auto" takes no tree there.
    """
    assert space.protocols is not None
    trees = call.algorithm == "tree" or len(set(topology.place(call.ranks))) > 1
    sizes = {
        name: recipe
        for (collective, name), recipe in RECIPES.items()
        if collective == call.collective and call.algorithm in ("auto", name) and (trees or name != "tree")
    }
    if not sizes:
        raise ArgumentError(f"{call.collective} has no NCCL {call.algorithm} for space {space.name}")
    options = {
        (name, protocol): _formula_us(topology, space, protocol, call, recipe)
        for name, recipe in sizes.items()
        for protocol in _protocols(space.protocols, name == "grouped")
    }
    name, protocol = min(options, key=lambda option: options[option])
    recipe = sizes[name]
    if protocol.slice_bytes is not None:
        recipe = replace(recipe, spec=replace(recipe.spec, slice_bytes=protocol.slice_bytes))
    others = ", ".join(f"{a} {p.name} {us:.0f} us" for (a, p), us in options.items() if (a, p) != (name, protocol))
    reason = f"{name} with {protocol.name}: {options[name, protocol]:.0f} us by its formula"
    reason += f"; {others}" if others else ""
    return NcclChoice(topology.speaking(space, protocol), recipe, protocol.name, reason)


def _protocols(protocols: tuple[Protocol, ...], grouped: bool) -> Sequence[Protocol]:
    return [protocol for protocol in protocols if protocol.sends == grouped] or protocols[:1]


def _formula_us(topology: Topology, space: Space, protocol: Protocol, call: Call, recipe: Recipe) -> float:
    ranks, total = call.ranks, size_bytes(call.collective, call.nbytes, call.ranks)
    twice = 2 if call.collective == "all_reduce" else 1
    # steps of the way, messages of a block's slices that a rank receives, the block, the fewest slices of it
    steps, messages, block, fewest = {
        "ring": (twice * (ranks - 1), twice * (ranks - 1), total / ranks, IN_A_CHUNK),
        "tree": (2 * (ranks - 1).bit_length(), min(ranks, 4), total / 2, 1),
        "chain": (ranks - 1, 1, total, 1),
        "grouped": (1, ranks - 1, total / ranks, 1),
    }[recipe.name]
    slices = max(fewest, math.ceil(block / (protocol.slice_bytes or recipe.spec.slice_bytes)))
    costs, card = protocol.costs, topology.cards_of(space)[-1]
    wire_ns = block / slices / (_link_gbytes_per_s(topology, space) * protocol.share_of_rate)
    load_ns = topology.load_latency_ns(0, card)
    copied_ns = block / slices / costs.from_pool_gbytes_per_s if costs.from_pool_gbytes_per_s else 0.0
    received_ns = (costs.doorbell_observe_ns or 0) + load_ns + copied_ns
    first_ns = wire_ns + (costs.doorbell_arrival_ns or 0) + load_ns + received_ns
    all_ns = slices * max(wire_ns, received_ns)
    way_ns = max(steps * first_ns + all_ns * (1 - 1 / slices), wire_ns + load_ns + messages * all_ns)
    return ((costs.call_ns or 0) + way_ns) / 1e3


def _link_gbytes_per_s(topology: Topology, space: Space) -> float:
    """The rate of the slowest link on the way to the space's last card."""
    route = topology.fabric().route(0, topology.cards_of(space)[-1])
    assert route is not None  # checks.py sees to it
    return min((link.payload_gbytes_per_s for link in route.links), default=1e6)
