"""How large a ring is in which an algorithm that sends has room for a whole call, where memories allow it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from collectives.algorithms.nccl.words import Sends
from collectives.builder import Chunk
from collectives.builder.recipes import Recipe
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Call, Layout
from cxlemu.plan.layout import DATA_ALIGN_BYTES
from cxlemu.rounding import round_down, round_up

SLOTS = 4
DOORBELLS_MAX = 1 << 23  # of all ranks in all slots


@dataclass
class _Asking(Sends):
    """Builds nothing: notes what the algorithm asks of an inbox."""

    asked: tuple[int, int, int, int] = field(init=False, default=(0, 1, 1, 1))  # bytes, a slice's, lanes, bells

    def slices(self, nbytes: int, *, lanes: int, bells: int | None = None, at_least: int = 1) -> Iterator[list[Chunk]]:
        self.asked = nbytes, self.slice_bytes(nbytes, at_least), lanes, lanes if bells is None else bells
        return iter(())


def room(recipe: Recipe, call: Call, *, cards: int, card_bytes: int, granule_bytes: int) -> Layout:
    """Lay out a ring in which an algorithm that sends has room for a call: a line of each message at least."""
    bare = Layout(call.ranks, cards, SLOTS, 0, 1, granule_bytes)
    asking = _Asking(call, bare, recipe.spec, 0)
    if call.ranks > 1:
        recipe.algorithm(asking)
    nbytes, step, lanes, bells = asking.asked
    piece, sharers = round_up(nbytes, LINE_BYTES), -(-call.ranks // cards)
    each = bells * sharers * cards  # doorbells of a slice
    slices = max(1, -(-piece // step))
    slices = max(1, min(slices, DOORBELLS_MAX // (SLOTS * call.ranks * each)))
    bare = Layout(call.ranks, cards, SLOTS, 0, each * slices, granule_bytes)
    most = round_down((card_bytes - bare.data_offset - DATA_ALIGN_BYTES) // SLOTS, LINE_BYTES)
    slot = min(sharers * lanes * piece, most)
    if slot < sharers * lanes * LINE_BYTES and nbytes:
        raise ArgumentError(f"[{call}]: memories of {card_bytes} bytes have no room for {lanes} messages of each rank")
    return Layout(call.ranks, cards, SLOTS, slot, each * slices, granule_bytes)
