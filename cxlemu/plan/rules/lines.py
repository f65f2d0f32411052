"""Rules of which rank writes which 64-byte lines: exact, by sorting ranges and sweeping over them.

Regions may overlap, so ranges are compared where they really lie: in (slot, card, line) of the ring. The heap counts as
further cards, with one slot and one round; regions there that peers write count as further ones again.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan.accesses import STORED
from cxlemu.plan.address import Extent
from cxlemu.plan.instructions import Kind, Op
from cxlemu.plan.rules.program import Defect, Mask, Numbers, PlanTable, one_of


@dataclass(frozen=True, slots=True)
class Accesses:
    """An entry for each contiguous range of a card that an instruction touches, from the slot's or the heap's begin.

    All fields are arrays of equal length: ``row`` of the plan's table, ``seq`` (the round), ``card``, and ``begin`` and
    ``end`` in bytes. ``card`` of a range in the heap is the layout's number of cards more, and as many more again where
    peers write it.
    """

    row: Numbers
    seq: Numbers
    card: Numbers
    begin: Numbers
    end: Numbers

    @property
    def first_line(self) -> Numbers:
        """The first line that each range touches."""
        return self.begin // LINE_BYTES

    @property
    def end_line(self) -> Numbers:
        """The line behind the last one that each range touches."""
        return -(-self.end // LINE_BYTES)


_STORING = {name: one_of([op for op, names in STORED.items() if name in names]) for name in ("dst", "dst2")}
_DROPPING = one_of((Op.INVALIDATE,))
_STORES: WeakKeyDictionary[PlanTable, Accesses] = WeakKeyDictionary()


def _accesses(p: PlanTable, table: Mask, field: str) -> Accesses:
    """Where the region operands ``field`` of the instructions in a table by opcode lie."""
    maps = [region.map for region in p.frame.regions]

    @cache  # rounds repeat their ranges
    def extents(region: int, offset: int, nbytes: int) -> list[Extent]:
        region_span = p.frame.regions[region]
        heap_cards = p.layout.cards * (region_span.heap + (region_span.writer_bytes > 0))
        return [e._replace(card=e.card + heap_cards) for e in maps[region].extents(offset, nbytes)]

    operand = p.records[field]
    rows = (table[p.op] & (operand["kind"] == Kind.REGION)).nonzero()[0]
    accesses = [
        (row, seq, *extent)
        for row, region, seq, offset, nbytes in zip(
            rows.tolist(),
            operand["id"][rows].tolist(),
            operand["seq"][rows].tolist(),
            operand["offset"][rows].tolist(),
            p.records["nbytes"][rows].tolist(),
            strict=True,
        )
        for extent in extents(region, offset, nbytes)
    ]
    row, seq, card, begin, nbytes = np.array(accesses, np.int64).reshape(-1, 5).T
    return Accesses(row, seq, card, begin, begin + nbytes)


def _stores(p: PlanTable) -> Accesses:
    """All that instructions store to regions, as plan/accesses.py has it; the rules of one table share it."""
    if p not in _STORES:
        kinds = [_accesses(p, table, name) for name, table in _STORING.items()]
        names = ("row", "seq", "card", "begin", "end")
        _STORES[p] = Accesses(*(np.concatenate([getattr(kind, name) for kind in kinds]) for name in names))
    return _STORES[p]


def _clashes(group: NDArray[np.int64], colour: Numbers, first: Numbers, end: Numbers) -> Iterator[tuple[int, int]]:
    """Pairs of entries of one group (rows of ``group`` are equal) and two colours whose ranges overlap.

    One pair for each entry that overlaps an earlier one: the sweep keeps, of all ranges begun, the one that
    reaches furthest and the one of another colour that does.
    """
    if not len(colour) or (colour == colour[0]).all():
        return
    group_of = np.unique(group, axis=0, return_inverse=True)[1].reshape(-1)
    index = -1
    reach: list[tuple[int, int, int]] = []  # (end, colour, entry), at most two, of two colours, furthest first
    for entry in np.lexsort((first, group_of)).tolist():
        if group_of[entry] != index:
            index, reach = group_of[entry], []
        mine = (int(end[entry]), int(colour[entry]), entry)
        rival = next((known for known in reach if known[1] != mine[1]), None)
        if rival is not None and rival[0] > first[entry]:
            yield rival[2], entry
        furthest = sorted([*reach, mine], reverse=True)
        reach = [furthest[0], *[known for known in furthest[1:] if known[1] != furthest[0][1]][:1]]


def _lines(p: PlanTable, stores: Accesses, entry: int) -> str:
    first, last = stores.first_line[entry], stores.end_line[entry] - 1
    of_heap, card = divmod(int(stores.card[entry]), p.layout.cards)
    where = "the heap on " if of_heap else ""
    return f"{f'line {first}' if first == last else f'lines {first}..{last}'} of {where}card {card}"


def _pairs(s: Accesses, group: Numbers, colour: Numbers) -> Iterator[tuple[int, int]]:
    """Stores that clash, the one that comes first in the plan first: the later one is at fault."""
    for pair in _clashes(group, colour, s.first_line, s.end_line):
        earlier, later = sorted(pair, key=lambda entry: int(s.row[entry]))
        yield earlier, later


def one_writer(p: PlanTable) -> Iterator[Defect]:
    """Yield stores to a line that another rank writes in the same round.

    This is stricter than one writer between two synchronizations: a wait inside the round does not help. Blocks that
    peers write have their owner's stores as well, from before it gave them up: the prover says whether it did.
    """
    if len(p.parts) < 2:
        return  # there is no other rank
    s = _stores(p)
    for other, entry in _pairs(s, np.stack([s.seq, s.card], axis=1), p.rank_of[s.row]):
        rival = f"{p.where(int(s.row[other]))} writes {_lines(p, s, other)}"
        yield Defect(f"it writes {_lines(p, s, entry)}, {rival} in round {s.seq[entry]}", int(s.row[entry]))


def own_strip(p: PlanTable) -> Iterator[Defect]:
    """Yield stores to the heap outside the rank's own strip, but for blocks that a region gives it to write.

    This rule makes the heap's lines safe across calls, which rules do not see: each line has one writer for good, or
    in blocks of a result one at a time.
    """
    if not any(region.heap for region in p.frame.regions):
        return
    yield from _others_blocks(p)
    s = _stores(p)
    for entry in (s.card // p.layout.cards == 1).nonzero()[0].tolist():
        rank = int(p.rank_of[s.row[entry]])
        strip = p.layout.heap_strip(rank)
        within = strip.offset <= s.begin[entry] and s.end[entry] <= strip.offset + strip.nbytes
        if s.card[entry] != p.layout.cards + strip.card or not within:
            yield Defect(f"it writes {_lines(p, s, entry)}, which is not rank {rank}'s", int(s.row[entry]))


def _others_blocks(p: PlanTable) -> Iterator[Defect]:
    """Yield stores to regions that peers write, outside the rank's own blocks."""
    each = np.array([region.writer_bytes for region in p.frame.regions], np.int64)
    first_writer = np.array([region.first_writer for region in p.frame.regions], np.int64)
    for field, table in _STORING.items():
        operand, nbytes = p.records[field], p.records["nbytes"]
        rows = (table[p.op] & (operand["kind"] == Kind.REGION) & (nbytes > 0)).nonzero()[0]
        rows = rows[each[operand["id"][rows]] > 0]
        size, begin, own = each[operand["id"][rows]], operand["offset"][rows], first_writer[operand["id"][rows]]
        first, last = own + begin // size, own + (begin + nbytes[rows] - 1) // size
        for index in np.flatnonzero((first != p.rank_of[rows]) | (last != p.rank_of[rows])).tolist():
            row, writers = int(rows[index]), {int(first[index]), int(last[index])}
            named = " and ".join(f"rank {writer}'s" for writer in sorted(writers))
            yield Defect(f"it writes to {named} block of region {operand['id'][row]}", row)


def one_kind(p: PlanTable) -> Iterator[Defect]:
    """Yield non-temporal and cached stores of one stream to one line with no FENCE between them.

    The FENCEs of the store's own stream count; stores of different streams are left to the prover.
    """
    if not (p.op == Op.WRITE_NT).any():
        return  # all are of one kind
    s = _stores(p)
    fences = np.cumsum(p.op == Op.FENCE)
    group = np.stack([p.stream_of[s.row], fences[s.row], s.seq % p.layout.slots, s.card], axis=1)
    past_the_cache = (p.op[s.row] == Op.WRITE_NT).astype(np.int64)
    for other, entry in _pairs(s, group, past_the_cache):
        rival = f"instruction {p.index_of[s.row[other]]}"
        yield Defect(f"it writes {_lines(p, s, entry)}, and so does {rival}", int(s.row[entry]))


def stale_line(p: PlanTable) -> Iterator[Defect]:
    """Yield stores to part of a line that another rank wrote in an earlier round, with no INVALIDATE since.

    The rule is approximate where streams meet: an INVALIDATE in another stream of the rank counts wherever it stands.
    What counts is the latest earlier round of the slot in which another rank wrote the line, and an
    INVALIDATE counts from that round on. Only stores through the cache fetch the rest of a line.
    """
    if len(p.parts) < 2:
        return  # there is no other rank
    s = _stores(p)
    edges = _broken_lines(s, p.op[s.row] != Op.WRITE_NT)
    if not edges:
        return
    drops = _Drops(p)
    for entry, line, since, writer in _after_others(p, s, edges):
        row = int(s.row[entry])
        if not drops.between(p, row, int(s.seq[entry]), int(s.card[entry]), line, since):
            yield Defect(f"rank {writer} wrote line {line} of card {s.card[entry]} in round {since}", row)


def _broken_lines(s: Accesses, counts: NDArray[np.bool_]) -> dict[int, list[int]]:
    """Entry -> the lines that it writes in part: its first, its last, or none."""
    broken: dict[int, list[int]] = {}
    for entry in np.flatnonzero(counts & ((s.begin % LINE_BYTES != 0) | (s.end % LINE_BYTES != 0))).tolist():
        begin, end = int(s.begin[entry]), int(s.end[entry])
        broken[entry] = sorted({offset // LINE_BYTES for offset in (begin, end) if offset % LINE_BYTES})
    return broken


def _after_others(p: PlanTable, s: Accesses, edges: dict[int, list[int]]) -> Iterator[tuple[int, int, int, int]]:
    """(entry, line, round, rank): that rank wrote in that earlier round the line that the entry breaks."""
    by_place: dict[tuple[int, int], list[int]] = defaultdict(list)
    slot = (s.seq % p.layout.slots).tolist()
    for entry in np.argsort(s.seq, kind="stable").tolist():
        by_place[slot[entry], int(s.card[entry])].append(entry)
    for entries in by_place.values():
        lines = np.array(sorted({line for entry in entries for line in edges.get(entry, [])}), np.int64)
        if not len(lines):
            continue
        # For each of these lines the latest writer, and the latest writer of another rank than that one.
        last_seq, last_rank = np.full((2, len(lines)), -1), np.full((2, len(lines)), -1)
        for entry in entries:
            seq, rank = int(s.seq[entry]), int(p.rank_of[s.row[entry]])
            for line in edges.get(entry, []):
                index = int(np.searchsorted(lines, line))
                other = int(last_rank[0, index] == rank)
                if 0 <= last_seq[other, index] < seq:
                    yield entry, line, int(last_seq[other, index]), int(last_rank[other, index])
            mine = slice(*np.searchsorted(lines, (s.first_line[entry], s.end_line[entry])).tolist())
            new = last_rank[0, mine] != rank
            last_seq[1, mine] = np.where(new, last_seq[0, mine], last_seq[1, mine])
            last_rank[1, mine] = np.where(new, last_rank[0, mine], last_rank[1, mine])
            last_seq[0, mine], last_rank[0, mine] = seq, rank


class _Drops:
    """The plan's INVALIDATEs, to be asked whether one of them dropped a line."""

    def __init__(self, p: PlanTable) -> None:
        self.at = _accesses(p, _DROPPING, "a")
        self.rank, self.stream = p.rank_of[self.at.row], p.stream_of[self.at.row]
        self.slot = self.at.seq % p.layout.slots

    def between(self, p: PlanTable, row: int, seq: int, card: int, line: int, since: int) -> bool:
        """Whether the row's rank dropped the line, from round ``since`` on and before the row (round ``seq``)."""
        touch = self.at
        covers = (
            (self.slot == seq % p.layout.slots)
            & (touch.card == card)
            & (touch.first_line <= line)
            & (line < touch.end_line)
        )
        timely = (touch.seq >= since) & (touch.seq <= seq) & ((self.stream != p.stream_of[row]) | (touch.row < row))
        return bool(np.any((self.rank == p.rank_of[row]) & covers & timely))
