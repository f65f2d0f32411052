"""A ring on modelled cards: a real pool has room for whole messages, so a slot takes all of a call.

Only messages that the cards cannot hold four times over go in several rounds.
"""

from dataclasses import replace

from collectives import contracts
from collectives.algorithms.hierarchical.needs import needs
from collectives.builder import ALL
from collectives.builder.recipes import Recipe
from collectives.contracts import COLLECTIVES
from collectives.layouts import MIN_DOORBELLS_PER_RANK, SLOTS_MIN
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Call, Layout
from cxlemu.plan.layout import DATA_ALIGN_BYTES
from cxlemu.rounding import round_down, round_up
from cxlemu.topology import Space, Topology
from cxlemu.topology.clusters import cluster_memory
from cxlemu.units import format_bytes


def virtual_layout(topology: Topology, recipe: Recipe, call: Call, space: Space | None = None) -> Layout:
    """Lay out a ring in which one round takes all of a call, where the cards have room for it.

    On owned memory its cards are the ranks' own, one each, and a doorbell whose index is k more than a multiple of the
    ranks lies in rank k's.
    """
    if call.cluster > 1:
        return _layout_on_levels(topology, call)
    space, ranks = space or topology.pool_space, call.ranks
    cards, room_bytes, granule = on_cards(topology, space, ranks)
    contract = COLLECTIVES[call.collective]
    many = (
        contract.input_blocks == "ranks" or contract.shared_result or contract.reduces
    )  # perhaps in slices, one for each rank
    doorbells = max(MIN_DOORBELLS_PER_RANK, 2 * ranks) if many else MIN_DOORBELLS_PER_RANK
    bare = Layout(ranks, cards, SLOTS_MIN, 0, round_up(doorbells, cards) if space.owned else doorbells, granule)
    blocks = ranks if contract.input_blocks == "ranks" else 1
    if (published := recipe.published(ranks)) is not None:
        blocks = published.blocks + 1
    # what one rank publishes: its input, and in two shots a slice of the result; every block begins with a line
    area = blocks * round_up(call.nbytes, LINE_BYTES) + round_up(-(-call.nbytes // ranks), LINE_BYTES)
    area += (ranks + 1) * LINE_BYTES
    sharers, least_cards = -(-ranks // cards), max(1, cards // ranks)
    in_ranges = -(-area // least_cards) * sharers
    over_all = (area + (cards + 1) * granule) * ranks // cards
    there = contracts.buffers(call, call.root)[1 if recipe.spec.pushes else 0]
    heap_rank_bytes = round_up(there.nbytes, DATA_ALIGN_BYTES) if call.heap else 0
    most = (room_bytes - bare.data_offset - sharers * heap_rank_bytes - DATA_ALIGN_BYTES) // SLOTS_MIN
    wanted = round_up(max(in_ranges, over_all) + sharers * granule, granule)
    if not recipe.spec.interleaved:  # one area after another, from card 0 on: a real card has room for all
        wanted *= cards
    slot_card_bytes = min(wanted, round_down(most, granule))
    if slot_card_bytes * cards < ranks * LINE_BYTES:
        raise ArgumentError(
            f"cards of {format_bytes(room_bytes)} have no room for the doorbells and data of {ranks} ranks: "
            f"give the topology larger cards or more of them"
        )
    return replace(bare, slot_card_bytes=slot_card_bytes, heap_card_bytes=sharers * heap_rank_bytes)


def _layout_on_levels(topology: Topology, call: Call) -> Layout:
    """Lay out the ring for two levels: blocks inside lie in the ranks' own memories, where the topology has such."""
    inside, across, block_bytes = needs(call)
    pool, memory = topology.pool_space, cluster_memory(topology, call.ranks)
    cards, _, granule = on_cards(topology, pool, call.ranks)
    own = ALL.chunks * inside
    bells = ALL.chunks * across + own
    bare = Layout(call.ranks, cards, SLOTS_MIN, 0, bells, granule)
    if memory is not None:
        bare = replace(bare, cards=cards + call.ranks, owned=True, own_doorbells=own)
    area = round_up(block_bytes, LINE_BYTES) + LINE_BYTES
    in_pool = area * (across if memory is not None else inside + across) + granule
    wanted = -(-in_pool // max(1, cards // call.ranks)) * -(-call.ranks // cards) + 2 * granule
    spaces = [pool] if memory is None else [pool, memory]
    room = min(topology.card(topology.cards_of(space)[0]).capacity_bytes for space in spaces)
    most = (room - bare.data_offset - DATA_ALIGN_BYTES) // SLOTS_MIN
    wanted = wanted if memory is None else max(wanted, area * inside)
    size = min(round_up(wanted, granule), round_down(most, granule))
    if size < granule:
        raise ArgumentError(f"memories of {format_bytes(room)} have no room for the doorbells of {call.ranks} ranks")
    return replace(bare, slot_card_bytes=size)


def on_cards(topology: Topology, space: Space, ranks: int) -> tuple[int, int, int]:
    """Return how many cards a layout has on a space, the bytes of the smallest, and the granule in bytes."""
    numbers = topology.cards_of(space)
    card_bytes = min(
        group.capacity_bytes for cards, group in topology.card_groups() if set(numbers).intersection(cards)
    )
    return ranks if space.owned else len(numbers), card_bytes, space.granule_bytes
