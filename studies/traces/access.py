"""What a rank takes to load from the pool or store to it by itself: the memory nodes of a trace."""

from __future__ import annotations

from cxlemu.chakra.workload import PoolAccess
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.plan import Call, Frame, Instruction, Kind, Layout, Op, Operand, Plan, RankPart, Region, Stream, encode
from cxlemu.rounding import round_up
from cxlemu.topology import Topology

_ALIGN_BYTES = 4096


def access_ns(topology: Topology, model: CostModel, rank: int, what: PoolAccess) -> int:
    """Simulate one access on a fabric that is otherwise idle."""
    if not what.nbytes:
        return 0
    space = topology.pool_space
    cards, each = len(topology.cards_of(space)), round_up(what.nbytes, _ALIGN_BYTES)
    frame = Frame(1, (Region(0, cards, space.granule_bytes, 0, 0, each),))
    pool, mine = Operand(Kind.REGION, 0), Operand(Kind.BUFFER)
    if what.loads:
        steps = [
            Instruction(Op.INVALIDATE, nbytes=what.nbytes, a=pool),
            Instruction(Op.READ, nbytes=what.nbytes, dst=mine, a=pool),
        ]
    else:
        steps = [
            Instruction(Op.WRITE, nbytes=what.nbytes, dst=pool, a=mine),
            Instruction(Op.FLUSH, nbytes=what.nbytes, a=pool),
            Instruction(Op.FENCE),
        ]
    part = RankPart(0, (), (Stream("access", encode(steps)),))
    plan = Plan(Call("access", "access", 1, 0), Layout(1, cards, 4, each, 1, 64), lambda _: (frame, part))
    return int(simulate(model, [VirtualCall(plan, (rank,))]).end_ns[0][0])
