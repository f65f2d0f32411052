"""Fused operators in virtual time: what each style takes on a modelled cluster, and the metrics that follow."""

from dataclasses import replace

from collectives.fused.choice import Operator, Tiling, call_of
from collectives.fused.halves import communicating, computing
from collectives.fused.plans import build, roomy_layout
from collectives.fused.shapes import TRANSPORTS
from collectives.sweep.fused.metrics import Metrics, Wait
from cxlemu.cost import CostModel
from cxlemu.cost.gemm import Product, in_company
from cxlemu.engines.virtual import VirtualCall, VirtualRun, simulate
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call, Layout, Op, Plan
from cxlemu.topology import Accelerator, Topology

WAITS = (Op.WAIT, Op.WAIT_DATA)
SHIFTED = ("shifted", "own_last")  # orders in which ranks do not meet


class Simulator:
    """Simulates fused operators of a number of ranks on a topology."""

    def __init__(
        self,
        topology: Topology,
        ranks: int,
        accelerator: Accelerator | None = None,
        plans: dict[tuple[Layout, Call], Plan] | None = None,
    ) -> None:
        if topology.accelerator is None:
            raise ArgumentError(
                f"{topology.name} has no accelerator: give it one (accelerator: h100-sxm), or take a topology that has"
            )
        self.topology, self.ranks = topology, ranks
        self.model = replace(CostModel.of(topology, ranks), computes_with=accelerator)
        self._plans = plans
        self._space = topology.pool_space
        self._cards = self.model.cards_of(self._space)

    def plan(self, operator: Operator, style: str, choice: Tiling | None = None) -> Plan:
        call = call_of(operator, style, self.ranks, choice or Tiling())
        layout = self._layout(call)
        plan = build(layout, call)
        return plan if self._plans is None else self._plans.setdefault((layout, call), plan)

    def resolved(self, operator: Operator, choice: Tiling) -> Tiling:
        """Fill in what the plan takes by default."""
        gemm = call_of(operator, "fused", self.ranks, choice).gemm
        assert gemm is not None
        return Tiling(gemm.comm_tile_rows, (gemm.tile_rows, gemm.tile_cols), gemm.order, gemm.transport)

    def _layout(self, call: Call) -> Layout:
        numbers = self.topology.cards_of(self._space)
        room = min(self.topology.card(card).capacity_bytes for card in numbers)
        return roomy_layout(call, len(self._cards), self._space.granule_bytes, room)

    def run(self, plan: Plan, *, log: bool = False) -> VirtualRun:
        return simulate(self.model, [VirtualCall(plan, cards=self._cards)], log=log)

    def fused_ns(self, operator: Operator, choice: Tiling) -> int:
        return self.run(self.plan(operator, "fused", choice)).time_ns

    def fastest(self, operator: Operator, style: str) -> Plan:
        orders = SHIFTED[:1] if operator.kind == "all_gather_gemm" else SHIFTED  # they are of destinations
        rows = (None, operator.m // self.ranks) if style == "unfused" else (None,)
        plans = [
            self.plan(operator, style, Tiling(row, None, order, transport))
            for row in rows
            for order in orders
            for transport in TRANSPORTS[operator.kind]
        ]
        return min(plans, key=lambda plan: self.run(plan).time_ns)

    def least_ns(self, operator: Operator, choice: Tiling) -> float:
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
        rows = operator.m // ranks
        down = rows // tile[0] * ranks if tile[0] <= rows else ranks // (tile[0] // rows)
        times = down * (n // tile[1])
        tiling = in_company(accelerator, Product(*tile, k, operator.dtype), max(times, 1))
        return -(-tiling.tiles * times // accelerator.multiprocessors) * tiling.tile_ns

    def waits(self, plan: Plan) -> list[Wait]:
        """The waits for doorbells in a plan, in the order of execution."""
        seen_waits = []
        for row in self.run(plan, log=True).executed:
            record = plan.part(int(row["rank"])).streams[row["stream"]].records[row["at"]]
            if record["op"] in WAITS:
                seen_waits.append(Wait(int(row["rank"]), int(record["arg"]), int(row["end_ns"] - row["begin_ns"])))
        return seen_waits

    def metrics(self, operator: Operator, choice: Tiling) -> Metrics:
        """Simulate all styles and halves of an operator."""
        fused, medium, unfused = (
            self.plan(operator, "fused", choice),
            *(self.fastest(operator, style) for style in ("medium", "unfused")),
        )
        run = self.run(fused)
        waits = [run.ops[op] for op in WAITS if op in run.ops]
        return Metrics(
            gemm_ns=self.run(computing(unfused)).time_ns,
            tiled_ns=self.run(computing(fused)).time_ns,
            comm_ns=self.run(communicating(unfused)).time_ns,
            unfused_ns=self.run(unfused).time_ns,
            medium_ns=self.run(medium).time_ns,
            fused_ns=run.time_ns,
            wait_ns=sum(wait.ns for wait in waits) / max(sum(wait.count for wait in waits), 1),
        )
