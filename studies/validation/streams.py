"""Processors that read and write the pool, as benchmarks of hardware do: each request follows the one before."""

from collections.abc import Sequence
from typing import NamedTuple

from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.plan import (
    Call,
    Frame,
    Instruction,
    Kind,
    Layout,
    Op,
    Operand,
    Plan,
    RankPart,
    Region,
    Stream,
    encode,
)
from cxlemu.topology import Costs, Topology

REGION_BYTES = 1 << 30
Program = Sequence[Instruction]


class Requests(NamedTuple):
    host: int
    card: int  # the card that it reads or writes
    nbytes: int  # the size of a request
    times: int  # number of requests
    op: Op = Op.READ

    def program(self) -> list[Instruction]:
        pool, mine = Operand(Kind.REGION, self.card), Operand(Kind.BUFFER)
        dst, src = (mine, pool) if self.op == Op.READ else (pool, mine)
        return [Instruction(self.op, nbytes=self.nbytes, dst=dst, a=src)] * self.times


def by_processors(topology: Topology, costs: Costs | None = None) -> Topology:
    """Return a machine as its processors use it: without what copies and doorbells of accelerators cost."""
    hosts = topology.hosts.model_copy(update={"ranks_per_host": 1})
    return topology.model_copy(update={"hosts": hosts, "costs": costs or Costs()})


def ends_ns(topology: Topology, programs: Sequence[tuple[int, Program]]) -> list[int]:
    hosts = [host for host, _ in programs]
    each = max(hosts.count(host) for host in hosts)
    machine = topology.model_copy(update={"hosts": topology.hosts.model_copy(update={"ranks_per_host": each})})
    ranks = each * (max(hosts) + 1)
    todo: list[Program] = [()] * ranks
    first = [host * each for host in range(max(hosts) + 1)]
    where = []
    for host, program in programs:
        todo[first[host]] = program
        where.append(first[host])
        first[host] += 1
    cards = len(machine.cards_of(machine.pool_space))
    layout = Layout(ranks, cards, 4, REGION_BYTES, 1, 64)
    frame = Frame(1, tuple(Region(card, 1, 64, 0, 0, REGION_BYTES) for card in range(cards)))

    def part(rank: int) -> tuple[Frame, RankPart]:
        return frame, RankPart(rank, (), (Stream("requests", encode(list(todo[rank]))),))

    plan = Plan(Call("requests", "requests", ranks, 0), layout, part)
    run = simulate(CostModel.of(machine, ranks), [VirtualCall(plan)])
    return [int(run.end_ns[0][rank]) for rank in where]


def requests_ns(topology: Topology, processors: Sequence[Requests]) -> list[float]:
    """Run processors that begin at once; return the mean time of a request of each, in ns."""
    ends = ends_ns(topology, [(request.host, request.program()) for request in processors])
    return [end / request.times for end, request in zip(ends, processors, strict=True)]


def gbytes_per_s(topology: Topology, processors: Sequence[Requests]) -> float:
    """Return how fast processors that begin and end at about the same time are together, in GB/s."""
    ends = ends_ns(topology, [(request.host, request.program()) for request in processors])
    return sum(request.times * request.nbytes for request in processors) / max(ends)
