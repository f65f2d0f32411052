"""A fused plan's two halves, each as a plan of its own: what it computes, and what it moves."""

from dataclasses import replace

import numpy as np

from cxlemu.plan import Frame, Op, Plan, RankPart


def computing(plan: Plan) -> Plan:
    """Keep only what a plan computes, as if all that it waits for had arrived. The new plan has no rounds."""

    def build_part(rank: int) -> tuple[Frame, RankPart]:
        return replace(plan.frame, rounds=0), _only(plan.part(rank), {Op.COMPUTE})

    return Plan(plan.call, plan.layout, build_part)


def communicating(plan: Plan) -> Plan:
    """Keep only what a plan moves, without what it computes."""

    def build_part(rank: int) -> tuple[Frame, RankPart]:
        return replace(plan.frame, kernels=()), _only(plan.part(rank), set(Op) - {Op.COMPUTE})

    return Plan(plan.call, plan.layout, build_part)


def _only(part: RankPart, ops: set[Op]) -> RankPart:
    streams = (
        replace(stream, records=stream.records[np.isin(stream.records["op"], sorted(ops))]) for stream in part.streams
    )
    return replace(part, streams=tuple(streams))
