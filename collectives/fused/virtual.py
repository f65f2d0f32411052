"""Fused operators in virtual time: what each style takes on a modelled cluster, and the metrics that follow."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collectives.fused.metrics import Metrics
from collectives.fused.plans import build, fused_call, roomy_layout
from cxlemu.engines.virtual import VirtualCall, VirtualRun, simulate
from cxlemu.errors import ArgumentError
from cxlemu.gemm import Product, in_company
from cxlemu.plan import Call, Frame, Layout, Op, Plan, RankPart, Stream
from cxlemu.timing import CostModel
from cxlemu.topology import Topology


@dataclass(frozen=True, slots=True)
class Operator:
    """A product of A (m x k) and B (k x n), shared by all ranks, and what it is fused with."""

    kind: str
    m: int
    n: int
    k: int
    dtype: str = "bf16"

    def __str__(self) -> str:
        return f"{self.kind} {self.m}x{self.n}x{self.k} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Choice:
    """How a fused call is cut. None: what the plan takes by default."""

    comm_tile_rows: int | None = None
    compute_tile: tuple[int, int] | None = None  # rows, columns
    order: str = "shifted"
    transport: str | None = None

    def __str__(self) -> str:
        tile = "x".join(map(str, self.compute_tile)) if self.compute_tile else "by default"
        return f"{self.comm_tile_rows or 'default'} rows, tiles {tile}, {self.order}, {self.transport or 'default'}"


class Simulator:
    """Operators of so many ranks on a topology. Raises ArgumentError for one without an accelerator."""

    def __init__(self, topology: Topology, ranks: int) -> None:
        if topology.accelerator is None:
            raise ArgumentError(
                f"{topology.name} has no accelerator: give it one (accelerator: h100-sxm), or take a topology that has"
            )
        self.topology, self.ranks = topology, ranks
        self.model = CostModel.of(topology, ranks)
        self._space = topology.pool_space
        self._cards = self.model.cards_of(self._space)

    def plan(self, operator: Operator, style: str, choice: Choice | None = None) -> Plan:
        """Raises ArgumentError for an operator or a choice that is not possible."""
        its = choice or Choice()
        call = fused_call(
            *(operator.kind, style, self.ranks, operator.m, operator.n, operator.k, operator.dtype),
            comm_tile_rows=its.comm_tile_rows,
            compute_tile=its.compute_tile,
            order=its.order,
            transport=its.transport,
        )
        return build(self._layout(call), call)

    def _layout(self, call: Call) -> Layout:
        numbers = self.topology.cards_of(self._space)
        room = min(self.topology.card(card).capacity_bytes for card in numbers)
        return roomy_layout(call, len(self._cards), self._space.granule_bytes, room)

    def run(self, plan: Plan, *, log: bool = False) -> VirtualRun:
        return simulate(self.model, [VirtualCall(plan, cards=self._cards)], log=log)

    def fused_ns(self, operator: Operator, choice: Choice) -> int:
        return self.run(self.plan(operator, "fused", choice)).time_ns

    def unfused(self, operator: Operator) -> Plan:
        """The faster of two: shards moved whole, and in as many chunks as a collective takes."""
        shard = Choice(comm_tile_rows=operator.m // self.ranks)
        plans = [self.plan(operator, "unfused"), self.plan(operator, "unfused", shard)]
        return min(plans, key=lambda plan: self.run(plan).time_ns)

    def least_ns(self, operator: Operator, choice: Choice) -> float:
        """What computing in these tiles takes, with nothing to wait for: no fused call is faster."""
        accelerator, tile = self.model.accelerator, choice.compute_tile
        assert accelerator is not None
        if tile is None:
            return 0
        ranks = self.ranks
        n, k = (
            (operator.n // ranks, operator.k)
            if operator.kind == "all_gather_gemm"
            else (operator.n, operator.k // ranks)
        )
        times = operator.m // ranks // tile[0] * ranks * (n // tile[1])
        tiling = in_company(accelerator, Product(*tile, k, operator.dtype), max(times, 1))
        return -(-tiling.tiles * times // accelerator.multiprocessors) * tiling.tile_ns

    def metrics(self, operator: Operator, choice: Choice) -> Metrics:
        fused, unfused = self.plan(operator, "fused", choice), self.unfused(operator)
        run = self.run(fused)
        waits = [run.ops[op] for op in (Op.WAIT, Op.WAIT_DATA) if op in run.ops]
        return Metrics(
            gemm_ns=self.run(computing(unfused)).time_ns,
            tiled_ns=self.run(computing(fused)).time_ns,
            comm_ns=self.run(communicating(unfused)).time_ns,
            unfused_ns=self.run(unfused).time_ns,
            medium_ns=self.run(self.plan(operator, "medium")).time_ns,
            fused_ns=run.time_ns,
            wait_ns=sum(wait.ns for wait in waits) / max(sum(wait.count for wait in waits), 1),
        )


def computing(plan: Plan) -> Plan:
    """What a plan computes, alone, as if all that it waits for were there."""
    return _of(plan, {Op.COMPUTE})


def communicating(plan: Plan) -> Plan:
    """A plan without what it computes."""
    return _of(plan, set(Op) - {Op.COMPUTE})


def _of(plan: Plan, ops: set[Op]) -> Plan:
    def build_part(rank: int) -> tuple[Frame, RankPart]:
        part = plan.part(rank)
        streams = [replace(its, records=its.records[[op in ops for op in its.records["op"]]]) for its in part.streams]
        return plan.frame, replace(part, streams=tuple(Stream(its.name, its.records) for its in streams))

    return Plan(plan.call, plan.layout, build_part)
