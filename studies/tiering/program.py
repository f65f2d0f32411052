"""Accesses and moves as a plan, and what each access takes on a modelled topology.

A rank has two streams: one reads, access after access, each when the one before it is over; the other moves pages: it
begins when the access after which they should move is over, reads a page where it lies, writes it where it will lie,
and waits until it is there. An access to a page that is on its way waits for it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, VirtualRun, simulate
from cxlemu.plan import Buffer, Call, Frame, Kind, Layout, Op, Plan, RankPart, Region, Stream
from cxlemu.plan.instructions import RECORD_DTYPE, Records
from studies.tiering.placement import Move

READS = 0  # the stream of accesses; moves are the next one

Row = tuple[int, int, int, int, int]  # op, arg, region, offset, nbytes


@dataclass(frozen=True)
class Program:
    tiers: NDArray[np.int64]  # for each access, the tier where its page lies then
    pages: NDArray[np.int64]  # for each access, its page
    nbytes: NDArray[np.int64]  # for each access, how much of the page it reads
    page_bytes: int  # the size of every page
    moves: dict[int, list[Move]] = field(default_factory=dict)  # by k, the moves that begin when k accesses are over


def timed(
    model: CostModel, regions: Sequence[Sequence[Region]], programs: Sequence[Program]
) -> tuple[VirtualRun, list[NDArray[np.int64]]]:
    """Run all ranks' programs at once in virtual time; return the run, and the time of each access by rank, in ns.

    ``regions[tier][rank]`` is a rank's part of a tier. An access takes from the end of the one before it to its own.
    """
    ranks = len(programs)
    table = tuple(region[rank] for region in regions for rank in range(ranks))
    parts = [_part(rank, ranks, program) for rank, program in enumerate(programs)]
    layout = Layout(ranks, len(model.cards), 1, 0, 1, regions[0][0].granularity_bytes)
    plan = Plan(Call("memory", "tiers", ranks, 0), layout, lambda rank: (Frame(1, table), parts[rank]))
    run = simulate(model, [VirtualCall(plan, tuple(range(ranks)))], log=True)
    return run, [_access_ns(run, rank, parts[rank]) for rank in range(ranks)]


def _part(rank: int, ranks: int, program: Program) -> RankPart:
    """Build a rank's part of the plan; region ``tier * ranks + rank`` is where a tier of this rank lies."""
    reads = np.zeros(len(program.pages), RECORD_DTYPE)
    reads["op"], reads["nbytes"] = Op.READ, program.nbytes
    reads["dst"]["kind"], reads["a"]["kind"] = Kind.BUFFER, Kind.REGION
    reads["a"]["id"], reads["a"]["offset"] = program.tiers * ranks + rank, program.pages * program.page_bytes
    moving: list[Row] = []
    begun: list[tuple[int, int]] = []  # before which access what happens: that moves may begin
    events = 0
    awaited: dict[int, int] = {}  # access: the event that its page is there
    touched = _Touched(program.pages) if program.moves else None
    for step, moves in sorted(program.moves.items()):
        begun.append((step, events))
        moving.append((Op.AWAIT, events, 0, 0, 0))
        events += 1
        for move in moves:
            offset, nbytes = move.page * program.page_bytes, program.page_bytes
            moving.append((Op.READ, 0, move.source * ranks + rank, offset, nbytes))
            moving.append((Op.WRITE, 0, move.target * ranks + rank, offset, nbytes))
            moving.append((Op.FENCE, 0, 0, 0, 0))
            moving.append((Op.RECORD, events, 0, 0, 0))
            assert touched is not None
            if (access := touched.next(move.page, step)) is not None:
                awaited[access] = events
            events += 1
    rows: list[Row] = [(Op.RECORD, event, 0, 0, 0) for _, event in begun]
    rows += [(Op.AWAIT, event, 0, 0, 0) for event in awaited.values()]
    reads = np.insert(reads, [*(step for step, _ in begun), *awaited], _records(rows))
    streams = [Stream("reads", reads)] + [Stream("moves", _records(moving))] * bool(moving)
    return RankPart(rank, (Buffer("page", program.page_bytes),), tuple(streams), events)


class _Touched:
    def __init__(self, pages: NDArray[np.int64]) -> None:
        self._order = np.argsort(pages, kind="stable")
        self._pages = pages[self._order]

    def next(self, page: int, step: int) -> int | None:
        """The first access to the page that is not before ``step``."""
        first, end = np.searchsorted(self._pages, [page, page + 1]).tolist()
        order = self._order[first:end]
        index = bisect_left(order, step)
        return int(order[index]) if index < len(order) else None


def _records(rows: Sequence[Row]) -> Records:
    op, arg, region, offset, nbytes = np.array(rows, np.int64).reshape(-1, 5).T
    records = np.zeros(len(rows), RECORD_DTYPE)
    records["op"], records["arg"], records["nbytes"] = op, arg, nbytes
    for which, far, near in ((Op.READ, "a", "dst"), (Op.WRITE, "dst", "a")):
        mask = op == which
        records[far]["kind"][mask], records[near]["kind"][mask] = Kind.REGION, Kind.BUFFER
        records[far]["id"][mask], records[far]["offset"][mask] = region[mask], offset[mask]
    return records


def _access_ns(run: VirtualRun, rank: int, part: RankPart) -> NDArray[np.int64]:
    mine = run.executed[(run.executed["rank"] == rank) & (run.executed["stream"] == READS)]
    is_read = part.streams[READS].records["op"][mine["at"]] == Op.READ
    ends = mine["end_ns"][is_read]
    times: NDArray[np.int64] = np.diff(ends, prepend=run.begin_ns[0][rank])
    return times
