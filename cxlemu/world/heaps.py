"""How large the ranks' heaps are in a pool that takes memory as arrays need it, and how large its cards are then.

A heap has the size of a model, though most programs use little of it: it is address space until arrays are made. So
its size is known from the pool's, and processes that find the pool need not be told.
"""

from cxlemu.errors import ArgumentError
from cxlemu.memory.cache import host_segment_bytes
from cxlemu.pool.room import available_bytes
from cxlemu.rounding import round_down, round_up
from cxlemu.units import format_bytes

PART = 2  # all heaps together may fill one in so many of the bytes that this machine has left
WORLD_PART = 2  # a world's communicator takes one in so many of the bytes of each card
ALIGN_BYTES = 1 << 20


def usual_heap_bytes(card_bytes: int, cards: int, ranks: int, hosts: int, most_card_bytes: int) -> int | None:
    """Choose the bytes of each rank's heap, a share of the memory left; None: too little is left for heaps."""
    sharers = _sharers(ranks, cards)
    share = min(
        int(available_bytes() // PART / _taken_per_byte(hosts) / ranks),
        (most_card_bytes - round_up(card_bytes, ALIGN_BYTES)) // WORLD_PART // sharers,
    )
    heap_bytes = round_down(share, ALIGN_BYTES)
    return heap_bytes if heap_bytes * sharers > card_bytes else None


def check_heap_bytes(heap_bytes: int, ranks: int, hosts: int) -> None:
    """Raise ArgumentError where this machine has no memory for heaps of so many bytes each; ``hosts`` counts caches."""
    needed, available = int(ranks * heap_bytes * _taken_per_byte(hosts)), available_bytes()
    if needed > available:
        caches = f" and {hosts} emulated caches" * bool(hosts)
        raise ArgumentError(
            f"heaps of {format_bytes(heap_bytes)} for {ranks} ranks{caches} can take {format_bytes(needed)}, but "
            f"{format_bytes(available)} are left: ask for smaller ones (heap_bytes)"
        )


def card_bytes_with_heaps(card_bytes: int, cards: int, ranks: int, heap_bytes: int) -> int:
    """Return the bytes of each card with the heaps, of which a world's communicator takes half."""
    share = _sharers(ranks, cards) * round_up(heap_bytes, ALIGN_BYTES)
    return round_up(card_bytes, ALIGN_BYTES) + WORLD_PART * share


def heap_bytes_in(pool_card_bytes: int, card_bytes: int, cards: int, ranks: int) -> int | None:
    """Return the size of each rank's heap in a pool with cards of ``pool_card_bytes``, as it was rounded up.

    None: the pool has the ``card_bytes`` of a world without such heaps.
    """
    if pool_card_bytes == card_bytes:
        return None
    return (pool_card_bytes - round_up(card_bytes, ALIGN_BYTES)) // WORLD_PART // _sharers(ranks, cards)


def _sharers(ranks: int, cards: int) -> int:
    return -(-ranks // cards)


def _taken_per_byte(hosts: int) -> float:
    """What a byte of an array can come to take, with its copies in emulated caches."""
    probe = 1 << 30
    return 1 + hosts * host_segment_bytes(1, probe) / probe
