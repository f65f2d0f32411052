"""Rules of the things that records refer to: buffers, regions, rounds, doorbells, groups, events, kernels."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from cxlemu.errors import PlanError
from cxlemu.plan.instructions import OPERAND_FIELDS, Flag, Kind, Op
from cxlemu.plan.kernels import KERNELS
from cxlemu.plan.plan import berths
from cxlemu.plan.rules.program import Defect, Mask, Numbers, PlanTable, one_of

_SIGNALS, _WAITS = one_of((Op.SIGNAL, Op.SIGNAL_DATA)), one_of((Op.WAIT, Op.WAIT_DATA))

Told: TypeAlias = dict[tuple[int, int], set[int]]

RANGES_MAX = 1 << 20
RANGES_PER_INSTRUCTION = 64


def _is_doorbell(p: PlanTable) -> Mask:
    return p.names("doorbell") & (p.arg >= 0) & (p.arg < p.layout.doorbell_count)


# --- operands ------------------------------------------------------------------------------------------


def buffer(p: PlanTable) -> Iterator[Defect]:
    """Yield operands outside the buffers of their rank."""
    tables = [[buffer.nbytes for buffer in part.buffers] for part in p.parts.values()]
    yield from _outside(p, Kind.BUFFER, tables, p.part_of)


def region(p: PlanTable) -> Iterator[Defect]:
    """Yield operands outside the plan's regions."""
    yield from _outside(p, Kind.REGION, [[region.nbytes for region in p.frame.regions]], np.zeros_like(p.part_of))


def _outside(p: PlanTable, kind: Kind, tables: Sequence[Sequence[int]], table_of: Numbers) -> Iterator[Defect]:
    """Operands outside what they name. ``tables``: sizes by id; ``table_of``: which one counts for a row."""
    of_kind, number, offset = p.operands.kind == kind, p.operands.id.astype(np.int64), p.operands.offset
    if not of_kind.any():
        return
    counts = np.array([len(sizes) for sizes in tables], np.int64)
    first = np.cumsum(counts) - counts
    flat = np.array([nbytes for sizes in tables for nbytes in sizes] or [0], np.int64)
    exists = of_kind & (number < counts[table_of])
    sizes = flat[np.where(exists, first[table_of] + number, 0)]
    need = np.broadcast_to(p.records["nbytes"], sizes.shape)
    if (compute := p.op == Op.COMPUTE).any():
        need = np.where(compute, kernel_bytes(p)[:, _kernel_of(p)], need)
    outside = exists & ((offset < 0) | (need > sizes) | (offset > sizes - need))

    def detail(index: int, is_there: int, row: int) -> str:
        what = f"{kind.name.lower()} {number[index, row]}"
        if not is_there:
            return f"there is no {what}"
        extent = f"{need[index, row]} bytes at {offset[index, row]} of {what}"
        return f"operand {OPERAND_FIELDS[index]} is {extent}, which has {sizes[index, row]}"

    yield from p.defects_at(np.stack([of_kind & ~exists, outside], axis=1), detail)


def _kernel_of(p: PlanTable) -> Numbers:
    """The number of the kernel that a row names; -1 for none."""
    return np.where(p.names("kernel") & (p.arg >= 0) & (p.arg < len(p.frame.kernels)), p.arg, -1)


def kernel_bytes(p: PlanTable) -> Numbers:
    """Count the bytes of each operand that each kernel touches; the last one, which stands for none, touches 0."""
    touched = np.zeros((len(OPERAND_FIELDS), len(p.frame.kernels) + 1), np.int64)
    for index, kernel in enumerate(p.frame.kernels):
        for name, nbytes in zip(("dst", "a", "b", "c"), KERNELS[kernel.name].sizes(kernel.parameters), strict=False):
            touched[OPERAND_FIELDS.index(name), index] = nbytes
    return touched


def compute_size(p: PlanTable) -> Iterator[Defect]:
    """Yield each COMPUTE whose size is not that of its kernel's output."""
    compute = (p.op == Op.COMPUTE) & (p.arg >= 0) & (p.arg < len(p.frame.kernels))
    if not compute.any():
        return
    output = kernel_bytes(p)[OPERAND_FIELDS.index("dst"), np.where(compute, p.arg, -1)]
    wrong = compute & (p.records["nbytes"] != output)
    yield from p.defects(wrong, lambda row: f"its kernel writes {output[row]} bytes")


def in_round(p: PlanTable) -> Iterator[Defect]:
    """Yield rounds and epochs that the call does not have, and operands in the heap with a round.

    Waits for done lines may reach back, by as many epochs as there are slots.
    """
    rounds = p.frame.rounds
    lies_in_heap = np.array([*(region.heap for region in p.frame.regions), False])
    in_region, seq = p.operands.kind == Kind.REGION, p.operands.seq
    beyond = in_region & ((seq < 0) | (seq >= rounds))
    timed = in_region & lies_in_heap[np.minimum(p.operands.id, len(lies_in_heap) - 1)] & (seq != 0)

    def detail(index: int, has_none: int, row: int) -> str:
        return f"round {seq[index, row]} " + ("in the heap, which has none" if has_none else f"of a call of {rounds}")

    yield from p.defects_at(np.stack([beyond, timed], axis=1), detail)
    value, done = p.records["value"], p.layout.published_count
    done_groups = np.array([group.first >= done for group in p.frame.groups] or [False])
    of_group = p.names("group")
    group_is_done = done_groups[np.clip(np.where(of_group, p.arg, 0), 0, len(done_groups) - 1)]
    reaches_back = (of_group & group_is_done) | (_WAITS[p.op] & (p.arg >= done))
    earliest = np.where(reaches_back, -p.layout.slots, 0)
    wrong = (of_group | p.names("doorbell")) & ((value < earliest) | (value >= rounds))
    yield from p.defects(wrong, lambda row: f"epoch e{value[row]:+} of a call of {rounds} rounds")


def ranges(p: PlanTable) -> Iterator[Defect]:
    """Yield the instruction on the most ranges of cards where all of them together lie on too many.

    Later rules look at every range by itself, so this bound on their number bounds the work for a small file.
    """
    regions = p.frame.regions
    if not regions:
        return
    start, size, cards = (
        np.array([getattr(region, name) for region in regions], np.int64)
        for name in ("start", "granularity_bytes", "cards")
    )
    nbytes = p.records["nbytes"]
    in_region = (p.operands.kind == Kind.REGION) & (nbytes > 0)
    at = np.where(in_region, p.operands.id, 0)
    first = start[at] + p.operands.offset
    granules = (first + nbytes - 1) // size[at] - first // size[at] + 1
    counts = np.where(in_region, np.minimum(granules, cards[at]), 0).sum(axis=0)
    most = ranges_max(len(p.records))
    if (total := int(counts.sum())) > most:
        row = int(np.argmax(counts))
        yield Defect(f"it lies on {counts[row]} cards, all instructions on {total} ranges of cards, above {most}", row)


def ranges_max(instructions: int) -> int:
    """Return on how many ranges of cards so many instructions may lie together."""
    return RANGES_MAX + RANGES_PER_INSTRUCTION * instructions


# --- doorbells -----------------------------------------------------------------------------------------


def doorbell(p: PlanTable) -> Iterator[Defect]:
    """Yield doorbells that the layout does not have."""
    wrong = p.names("doorbell") & ~_is_doorbell(p)
    yield from p.defects(wrong, lambda row: f"there is no doorbell {p.arg[row]}: there are {p.layout.doorbell_count}")


def owner(p: PlanTable) -> Iterator[Defect]:
    """Yield signals of doorbells that belong to another rank."""
    layout = p.layout
    done = p.arg >= layout.published_count
    owners = np.where(done, p.arg - layout.published_count, p.arg // layout.doorbells_per_rank)
    wrong = _SIGNALS[p.op] & _is_doorbell(p) & (owners != p.rank_of)
    yield from p.defects(wrong, lambda row: f"the doorbell is rank {owners[row]}'s")


def _rings(p: PlanTable) -> Iterator[tuple[int, int]]:
    """Signals of one doorbell that follow each other, as rows: by stream, and in its order."""
    rows = _SIGNALS[p.op].nonzero()[0]
    rows = rows[np.lexsort((rows, p.arg[rows]))]
    for before, row in zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True):
        if p.arg[before] == p.arg[row]:
            yield before, row


def one_stream(p: PlanTable) -> Iterator[Defect]:
    """Yield signals of a doorbell that another stream also rings."""
    for before, row in _rings(p):
        if p.stream_of[before] != p.stream_of[row]:
            yield Defect(f"rung from {p.where(before)} as well", row)


def epochs_rise(p: PlanTable) -> Iterator[Defect]:
    """Yield signals that do not raise the epoch that the doorbell shows."""
    value = p.records["value"]
    for before, row in _rings(p):
        if p.stream_of[before] == p.stream_of[row] and value[row] <= value[before]:
            yield Defect(f"instruction {p.index_of[before]} has it show e{value[before]:+} already", row)


# --- groups, events, kernels ---------------------------------------------------------------------------


def _numbered(p: PlanTable, what: str, counts: Numbers | int) -> Iterator[Defect]:
    named = p.names(what)
    if not named.any():
        return
    wrong = named & ((p.arg < 0) | (p.arg >= counts))
    yield from p.defects(wrong, lambda row: f"there is no {what} {p.arg[row]}")


def group(p: PlanTable) -> Iterator[Defect]:
    """Yield doorbell groups that the plan does not have."""
    yield from _numbered(p, "group", len(p.frame.groups))


def event(p: PlanTable) -> Iterator[Defect]:
    """Yield events that the rank does not have."""
    yield from _numbered(p, "event", np.array([part.events for part in p.parts.values()], np.int64)[p.part_of])


def kernel(p: PlanTable) -> Iterator[Defect]:
    """Yield kernels that the plan does not have."""
    yield from _numbered(p, "kernel", len(p.frame.kernels))


def recorded(p: PlanTable) -> Iterator[Defect]:
    """Yield each AWAIT without exactly one RECORD that is earlier or in another stream."""
    records: dict[tuple[int, int], list[int]] = {}
    for row in (p.op == Op.RECORD).nonzero()[0].tolist():
        records.setdefault((int(p.rank_of[row]), int(p.arg[row])), []).append(row)
    for row in (p.op == Op.AWAIT).nonzero()[0].tolist():
        record = records.get((int(p.rank_of[row]), int(p.arg[row])), [])
        if len(record) != 1:
            yield Defect(f"{len(record)} RECORDs of event {p.arg[row]}", row)
        elif p.stream_of[record[0]] == p.stream_of[row] and record[0] > row:
            yield Defect(f"its RECORD is instruction {p.index_of[record[0]]}, later in the same stream", row)


# --- arrays whose places doorbells tell -----------------------------------------------------------------


def told(p: PlanTable) -> Iterator[Defect]:
    """Yield instructions that name a peer's array in the heap before a doorbell has told its place.

    It has to have told it in their stream, or in one whose event they come after. Also regions that are no part of an
    array.
    """
    heap = p.plan.call.heap
    if heap is None or not heap.is_told:
        return
    try:
        lie = berths(p.frame, p.layout, heap)
    except PlanError as error:
        yield Defect(str(error))
        return
    owners = lie[:, 0]
    for number in np.flatnonzero((owners >= 0) & (lie[:, 2] < 0)).tolist():
        yield Defect(f"region {number} begins before the array that it is part of")
    asks = (p.op == Op.WAIT) | (p.op == Op.WAIT_DATA)
    asks &= (p.records["flags"] & Flag.PLACES != 0) & (p.arg >= 0) & (p.arg < p.layout.published_count)
    in_region = p.operands.kind == Kind.REGION
    rows = np.flatnonzero(asks | in_region.any(axis=0) | (p.op == Op.RECORD) | (p.op == Op.AWAIT)).tolist()
    at_events: Told = {}  # what is known by then; it grows from one look at all streams to the next
    while True:
        untold, last = _untold(p, rows, asks, owners, at_events)
        if last == at_events:
            yield from untold
            return
        at_events = last


def _untold(p: PlanTable, rows: list[int], asks: Mask, owners: Numbers, at_events: Told) -> tuple[list[Defect], Told]:
    """Find who is named too early, and what is known at each event, if ``at_events`` is what those before it bring."""
    known: Told = defaultdict(set)  # by rank and stream: the ranks that have told it
    places: Told = {}
    untold = []
    for row in rows:
        rank, op = int(p.rank_of[row]), int(p.op[row])
        here, event = known[rank, int(p.stream_of[row])], (rank, int(p.arg[row]))
        if op == Op.RECORD:
            places[event] = set(here)
        elif op == Op.AWAIT:
            here |= at_events.get(event, set())
        elif asks[row]:
            here.add(p.layout.owner(int(p.arg[row])))
        else:
            for number in p.operands.id[p.operands.kind[:, row] == Kind.REGION, row].tolist():
                owner = int(owners[number])
                if owner not in (-1, rank) and owner not in here:
                    untold.append(Defect(f"no doorbell has carried the place of the array of rank {owner}", row))
    return untold, places
