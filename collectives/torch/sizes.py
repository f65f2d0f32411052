"""How large the pool of a process group is: a heap of model size for each rank, which takes memory as it grows."""

from __future__ import annotations

from typing import NamedTuple

from cxlemu.errors import ArgumentError
from cxlemu.memory.cache import host_segment_bytes
from cxlemu.pool.room import available_bytes
from cxlemu.rounding import round_down, round_up
from cxlemu.topology import Topology
from cxlemu.units import format_bytes

PART = 2  # all heaps together may fill one in so many of the bytes that this machine has left
ALIGN_BYTES = 1 << 20


class Sizes(NamedTuple):
    """Sizes that rank 0 chooses and all others take from it.

    Attributes:
        card_bytes: Of each card: address space, of which communicators take memory as they need it.
        heap_bytes: Of each rank's part of the world's heap.
    """

    card_bytes: int
    heap_bytes: int


def sizes_for(topology: Topology, ranks: int, hosts: int, heap_bytes: int | None) -> Sizes | None:
    """Choose sizes for a pool whose cards get memory on demand.

    Args:
        topology: Whose ``card_bytes`` are left for rings, mailboxes and groups.
        ranks: How many ranks have a heap.
        hosts: How many emulated caches there are, each of which may come to hold all arrays; 0 for none.
        heap_bytes: What the user asks for; None: a share of the memory that is left.

    Returns:
        The sizes; None where so little is left that the topology's are as good.

    Raises:
        ArgumentError: There is no memory for ``heap_bytes``.
    """
    cards, probe = topology.pool_card_count, 1 << 30
    each = 1 + hosts * host_segment_bytes(1, probe) / probe  # what a byte of an array can take
    available = available_bytes()
    if heap_bytes is None:
        heap_bytes = round_down(int(available // PART / each / ranks), ALIGN_BYTES)
        if heap_bytes * -(-ranks // cards) <= topology.card_bytes:
            return None
    elif (needed := int(ranks * heap_bytes * each)) > available:
        caches = f" and {hosts} emulated caches" * bool(hosts)
        raise ArgumentError(
            f"heaps of {format_bytes(heap_bytes)} for {ranks} ranks{caches} can take {format_bytes(needed)}, but "
            f"{format_bytes(available)} are left: ask for smaller ones (heap_bytes, or CXLEMU_HEAP_BYTES)"
        )
    share = -(-ranks // cards) * round_up(heap_bytes, ALIGN_BYTES)
    return Sizes(round_up(topology.card_bytes, ALIGN_BYTES) + 2 * share, heap_bytes)  # a world takes half of the pool


def with_card_bytes(topology: Topology, card_bytes: int) -> Topology:
    """Return a topology whose emulated cards have ``card_bytes`` each."""
    emulation = topology.emulation.model_copy(update={"card_bytes": card_bytes})
    return Topology.model_validate(topology.model_copy(update={"emulation": emulation}))
