"""Accesses and moves as a plan, and what each access takes on a modelled topology.

A rank has two streams: one reads, access after access, each when the one before it is over; the other moves pages: it
begins when the access after which they should move is over, reads a page where it lies, writes it where it will lie,
and waits until it is there. An access to a page that is on its way waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.tiering.placement import Move
from cxlemu.engines.virtual import VirtualCall, VirtualRun, simulate
from cxlemu.plan import Buffer, Call, Frame, Kind, Layout, Op, Plan, RankPart, Region, Stream
from cxlemu.plan.instructions import RECORD_DTYPE, Records
from cxlemu.timing import CostModel

READS, MOVES = 0, 1  # streams


class Access(NamedTuple):
    tier: int
    offset: int
    nbytes: int


@dataclass
class Program:
    """Of one rank: what it touches, and which moves begin when how many accesses are over."""

    accesses: Sequence[Access]
    page_bytes: int
    moves: dict[int, list[Move]] = field(default_factory=dict)


class _Row(NamedTuple):
    """What an instruction says here."""

    op: int
    arg: int = 0
    region: int = 0
    offset: int = 0
    nbytes: int = 0


def _records(rows: Sequence[_Row]) -> Records:
    op, arg, region, offset, nbytes = np.array(rows, np.int64).reshape(-1, len(_Row._fields)).T
    records = np.zeros(len(rows), RECORD_DTYPE)
    records["op"], records["arg"], records["nbytes"] = op, arg, nbytes
    for which, far, near in ((Op.READ, "a", "dst"), (Op.WRITE, "dst", "a")):
        its = op == which
        records[far]["kind"][its], records[near]["kind"][its] = Kind.REGION, Kind.BUFFER
        records[far]["id"][its], records[far]["offset"][its] = region[its], offset[its]
    records.flags.writeable = False
    return records


def timed(
    model: CostModel, regions: Sequence[Sequence[Region]], programs: Sequence[Program]
) -> tuple[VirtualRun, list[NDArray[np.int64]]]:
    """All ranks' programs at once. ``regions[tier][rank]``: where a tier of a rank lies.

    The second result: of each rank, what each access takes, from the end of the one before it to its own.
    """
    ranks = len(programs)
    table = tuple(its[rank] for its in regions for rank in range(ranks))
    parts = [_part(rank, ranks, program) for rank, program in enumerate(programs)]
    layout = Layout(ranks, len(model.cards), 1, 0, 1, regions[0][0].granularity_bytes)
    plan = Plan(Call("memory", "tiers", ranks, 0), layout, lambda rank: (Frame(1, table), parts[rank]))
    run = simulate(model, [VirtualCall(plan, tuple(range(ranks)))], log=True)
    return run, [_access_ns(run, rank, parts[rank]) for rank in range(ranks)]


def one_by_one(model: CostModel, regions: Sequence[Region], accesses: Sequence[Access]) -> list[int]:
    """What accesses of one rank take on an idle topology, without moves. ``regions``: of each tier."""
    _, (times,) = timed(model, [[region] for region in regions], [Program(accesses, 0)])
    found: list[int] = times.tolist()
    return found


def _part(rank: int, ranks: int, program: Program) -> RankPart:
    reads: list[_Row] = []
    moving: list[_Row] = []
    happened: dict[int, int] = {}  # page: the event of its latest move
    events = 0
    for step, access in enumerate(program.accesses):
        if moves := program.moves.get(step):
            reads.append(_Row(Op.RECORD, events))
            moving.append(_Row(Op.AWAIT, events))
            events += 1
            for move in moves:
                moving += _move(rank, ranks, move, program.page_bytes)
                moving.append(_Row(Op.RECORD, events))
                happened[move.page] = events
                events += 1
        if program.page_bytes and (event := happened.pop(access.offset // program.page_bytes, None)) is not None:
            reads.append(_Row(Op.AWAIT, event))
        reads.append(_Row(Op.READ, 0, access.tier * ranks + rank, access.offset, access.nbytes))
    streams = [Stream("reads", _records(reads))] + [Stream("moves", _records(moving))] * bool(moving)
    return RankPart(rank, (Buffer("page", program.page_bytes),), tuple(streams), events)


def _move(rank: int, ranks: int, move: Move, page_bytes: int) -> list[_Row]:
    offset = move.page * page_bytes
    return [
        _Row(Op.READ, 0, move.source * ranks + rank, offset, page_bytes),
        _Row(Op.WRITE, 0, move.target * ranks + rank, offset, page_bytes),
        _Row(Op.FENCE),
    ]


def _access_ns(run: VirtualRun, rank: int, part: RankPart) -> NDArray[np.int64]:
    mine = run.executed[(run.executed["rank"] == rank) & (run.executed["stream"] == READS)]
    is_read = part.streams[READS].records["op"][mine["at"]] == Op.READ
    ends = mine["end_ns"][is_read]
    times: NDArray[np.int64] = np.diff(ends, prepend=run.begin_ns[0][rank])
    return times
