"""How fast the virtual engine is: instructions a second as ranks grow, and beside the same model written in SimPy.

    python -m studies.benchmarks.virtual_engine            # pip install simpy, for the second table

Times are this process's own CPU time, so that others on the machine disturb less. The SimPy model computes with the
same resources and must end at the same nanosecond; it has what the compared plan needs: one card per transfer.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.plans import planned
from cxlemu.cost import CostModel, duration_ns
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.plan import Op, Plan
from cxlemu.topology import Topology

T = TypeVar("T")


def timed(do: Callable[..., T], *arguments: Any, times: int = 1) -> tuple[T, float]:
    """Call a function a few times."""
    begin = time.process_time()
    for _ in range(times):
        done = do(*arguments)
    return done, (time.process_time() - begin) / times


def plan_of(topology: Topology, collective: str, variant: str, ranks: int, nbytes: int) -> Plan:
    """Build the plan of one call; ``nbytes`` as nccl-tests counts it."""
    (case,) = Sweep((collective,), [nbytes], variant=variant).cases(ranks)
    return planned(topology, case)[0]


def growth() -> None:
    """Print how fast the engine is as ranks grow."""
    topology = Topology.load("thousand-hosts")
    print("all_reduce two_shot of 64 MiB on thousand-hosts (64 cards)")
    print(f"{'ranks':>6} {'instructions':>13} {'plan s':>7} {'engine s':>9} {'M instructions/s':>17} {'ns each':>8}")
    for ranks in (16, 64, 128, 256, 512, 1024):
        plan, building_s = timed(plan_of, topology, "all_reduce", "two_shot", ranks, 64 << 20)
        _, parts_s = timed(lambda of: of.parts, plan)
        run, engine_s = timed(simulate, CostModel.of(topology, ranks), [VirtualCall(plan)], times=max(1, 1024 // ranks))
        each_s = engine_s / run.instructions
        print(
            f"{ranks:>6} {run.instructions:>13} {building_s + parts_s:>7.2f} {engine_s:>9.3f} "
            f"{1e-6 / each_s:>17.2f} {each_s * 1e9:>8.0f}"
        )


class InSimpy:
    """The cost model as SimPy processes, one for each stream."""

    def __init__(self, model: CostModel, plan: Plan) -> None:
        import simpy

        self.env: Any = simpy.Environment()
        self.model, self.plan, self.costs = model, plan, model.costs[0]
        self.free_ns = [0] * len(model.resources)
        self.landed_ns = [0] * plan.ranks
        self.bells: dict[tuple[int, int], Any] = {}
        self.events: dict[tuple[int, int], Any] = {}
        self.done_ns = 0

    def run(self) -> int:
        """Run the plan to its end, and return when it ends, in ns."""
        for part in self.plan.parts:
            for stream in part.streams:
                self.env.process(self.stream(part.rank, stream.instructions))
        self.env.run()
        return self.done_ns

    def bell(self, doorbell: int, epoch: int) -> Any:
        """Return the event that a doorbell shows an epoch."""
        return self.bells.setdefault((doorbell, epoch), self.env.event())

    def event(self, rank: int, number: int) -> Any:
        """Return the event of a plan's event on one rank."""
        return self.events.setdefault((rank, number), self.env.event())

    def way(self, rank: int, card: int, to_pool: bool) -> tuple[list[int], int]:
        """Return the resources between a rank and a card, in the order bytes pass them, and the latency in ns."""
        model = self.model
        host = model.hosts[rank]
        route = model.routes[model.route_of[0, host, card]]
        hops = route["to_pool" if to_pool else "from_pool"][: route["hops"]].tolist()
        links = [first + by_host * host + by_card * card for first, by_host, by_card in hops]
        ends = [model.first["write" if to_pool else "read"] + card, model.first["total"] + card]
        return links + ends if to_pool else ends[::-1] + links, int(route["latency_ns"])

    def take(self, number: int, asked_ns: int, nbytes: int) -> tuple[int, int]:
        """Occupy a resource as soon as it is free; return when bytes begin to pass, and when the last has passed."""
        resource = self.model.resources[number]
        if resource.gbytes_per_s is None:
            return asked_ns, asked_ns
        start = max(asked_ns, self.free_ns[number])
        self.free_ns[number] = start + resource.kept_ns(nbytes)
        return start, self.free_ns[number]

    def transfer(self, rank: int, operand: Any, nbytes: int, to_pool: bool) -> tuple[int, int]:
        """Copy between a rank's memory and one card; return when the last byte arrived, and the way there and back."""
        (piece,) = self.plan.frame.regions[operand.id].map.extents(operand.offset, nbytes)
        resources, latency_ns = self.way(rank, piece.card, to_pool)
        engine = self.model.first["to" if to_pool else "from"] + rank
        now = int(self.env.now) + int(self.costs["copy_ns"])
        began = max(now, self.free_ns[engine])
        here = end = began
        for number in resources:
            here, there = self.take(number, here, nbytes)
            end = max(end, there)
        end = max(end, (began if to_pool else here) + self.model.resources[engine].kept_ns(nbytes))
        self.free_ns[engine] = end
        return end, 2 * latency_ns + (0 if to_pool else int(self.model.card_rows["latency_ns"][piece.card]))

    def look_ns(self, rank: int, doorbell: int) -> int:
        """Return what a poll of a doorbell takes."""
        card = self.plan.layout.doorbell_address(doorbell, 1)[0]
        latency_ns = self.way(rank, card, False)[1]
        return 2 * latency_ns + int(self.model.card_rows["latency_ns"][card]) + int(self.costs["doorbell_observe_ns"])

    def stream(self, rank: int, instructions: list[Any]) -> Iterator[Any]:
        """Run one stream's instructions, as a SimPy process."""
        env, costs = self.env, self.costs
        yield env.timeout(int(costs["call_ns"]))
        for i in instructions:
            if i.op == Op.WRITE:
                end, way_ns = self.transfer(rank, i.dst, i.nbytes, True)
                self.landed_ns[rank] = max(self.landed_ns[rank], end + way_ns)
                yield env.timeout(end - env.now)
            elif i.op == Op.READ:
                end, way_ns = self.transfer(rank, i.a, i.nbytes, False)
                yield env.timeout(end + way_ns - env.now)
            elif i.op == Op.FENCE:
                yield env.timeout(max(0, self.landed_ns[rank] - env.now) + int(costs["fence_ns"]))
            elif i.op == Op.SIGNAL:
                card = self.plan.layout.doorbell_address(i.arg, 1)[0]
                yield env.timeout(int(costs["doorbell_ring_ns"]))
                env.process(self.shown(self.bell(i.arg, i.value), self.way(rank, card, True)[1]))
            elif i.op == Op.WAIT:
                yield self.bell(i.arg, i.value)
                yield env.timeout(self.look_ns(rank, i.arg))
            elif i.op == Op.COPY:
                yield env.timeout(duration_ns(i.nbytes, self.model.topology.costs.local_copy_gbytes_per_s))
            elif i.op == Op.RECORD:
                self.event(rank, i.arg).succeed()
            elif i.op == Op.AWAIT:
                yield self.event(rank, i.arg)
            elif i.op not in (Op.FLUSH, Op.INVALIDATE) and not (i.op == Op.WAIT_ALL and i.value < 0):
                raise NotImplementedError(i.op.name)
        self.done_ns = max(self.done_ns, int(env.now))

    def shown(self, bell: Any, after_ns: int) -> Iterator[Any]:
        """Show a doorbell's event after the way to the pool."""
        yield self.env.timeout(after_ns)
        bell.succeed()


def beside_simpy() -> None:
    """Print times beside those of SimPy, and assert that both end at the same nanosecond."""
    if importlib.util.find_spec("simpy") is None:
        print("simpy is not installed: pip install simpy")
        return
    topology = Topology.load("twelve-hosts")
    print("all_gather all of 12 MiB on twelve-hosts: the same model in C and in SimPy")
    for ranks in (6, 12, 24):
        plan = plan_of(topology, "all_gather", "all", ranks, 12 << 20)
        instructions = sum(len(stream.instructions) for part in plan.parts for stream in part.streams)
        model = CostModel.of(topology, ranks)
        run, ours_s = timed(simulate, model, [VirtualCall(plan)], times=50)
        theirs_ns, simpy_s = timed(InSimpy(model, plan).run)
        assert theirs_ns == run.time_ns, (theirs_ns, run.time_ns)
        print(
            f"{ranks:>4} ranks, {instructions:>5} instructions, both end at {theirs_ns} ns: "
            f"ours {ours_s * 1e3:.2f} ms, SimPy {simpy_s * 1e3:.2f} ms, ratio {simpy_s / ours_s:.0f}"
        )


if __name__ == "__main__":
    beside_simpy()
    growth()
