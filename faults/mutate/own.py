"""A user's plan to be mutated: as it was saved, or as an algorithm makes it of a small call on a small ring."""

from collectives.algorithms.catalog import build
from collectives.builder.recipes import Recipe
from collectives.contracts import COLLECTIVES
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Call, Layout, Plan, rules
from faults.zero_copy_calls import lent_if_zero_copy, with_heap

CARDS = 2
LINES_MAX = 1024  # of a slot on a card
DOORBELLS_MAX = 256  # of a rank


def smallest(own: Recipe, ranks: int, rounds: int) -> Plan:
    """Build a user's plan in the smallest slots without more rounds, or for ``rounds`` 2 twice as many in one slot."""
    if own.plan is not None:
        return own.plan
    contract = COLLECTIVES[own.collective]
    nbytes = 2 * LINE_BYTES * ranks if contract.moves_data else 0  # where blocks are sliced, two lines a slice
    folds = ("f32", "sum") if contract.reduces else ("u8", "none")  # whose bits show the order of folding
    call = Call(own.collective, own.name, ranks, nbytes, *folds)
    call = lent_if_zero_copy(call, own)
    slots = 2 if rounds == 1 else 1

    def built(lines: int, doorbells: int) -> Plan:
        layout = Layout(ranks, CARDS, slots, lines * LINE_BYTES, doorbells, interleave_bytes=LINE_BYTES)
        plan = build(own, with_heap(layout), call)
        rules.check(plan)
        return plan

    def is_room(lines: int, doorbells: int) -> bool:
        try:
            return built(lines, doorbells).rounds <= most
        except ArgumentError:  # a slot has no line for every block, or a rank no doorbell
            return False

    most = built(LINES_MAX, DOORBELLS_MAX).rounds
    doorbells = next((each for each in range(1, DOORBELLS_MAX) if is_room(LINES_MAX, each)), DOORBELLS_MAX)
    if rounds == 1:
        doorbells = min(2 * doorbells, DOORBELLS_MAX)  # two chunks a block, where a style has chunks
    most *= rounds
    return built(next((lines for lines in range(1, LINES_MAX) if is_room(lines, doorbells)), LINES_MAX), doorbells)
