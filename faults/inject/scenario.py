"""A scenario: a collective, a script and a world, as data; and what becomes of every rank when it runs.

    report = run(Scenario(collective="all_gather", ranks=3, script=Script.load(path)))
    report.verdict                                   # survived, detected, silently wrong, hung or wrong error

Calls go on after the last fault until its slot of the ring comes round again, because what a fault leaves behind may
show only then. Launched in "turns" a scenario is deterministic and takes milliseconds (faults/inject/turns.py).
"""

from __future__ import annotations

from functools import cached_property, lru_cache, partial
from typing import Annotated, Any, Literal

from pydantic import Field

from collectives import oracle
from collectives.bench import Case
from collectives.builder import ZERO_COPY
from collectives.catalog import recipe
from collectives.communicator import Communicator
from collectives.contracts import contract_of
from collectives.layouts import SLOTS_MIN
from collectives.measure import arrays, lent_room, perform
from cxlemu.engines import engine_for
from cxlemu.engines.reference import ReferenceEngine
from cxlemu.errors import ArgumentError
from cxlemu.memory import Kind, MemorySpec
from cxlemu.plan import Call
from cxlemu.pool.pool import Pool
from cxlemu.topology import Topology
from cxlemu.topology.fields import Model
from cxlemu.world import RankContext
from cxlemu.world.context import World
from cxlemu.world.outcome import Outcome
from cxlemu.world.processes import run_processes
from cxlemu.world.stops import stops_exit
from cxlemu.world.threads import run_threads
from faults.inject.acts import add
from faults.inject.engine import Happened, Injected
from faults.inject.judge import Report, became, judge
from faults.inject.turns import private_pool, run_in_turns
from faults.script import Script

CARD_BYTES = 1 << 20
REGION_BYTES, HEAP_BYTES = 64 << 10, 32 << 10  # a ring of SLOTS_MIN slots
CALLS_AFTER = SLOTS_MIN
Launch = Literal["turns", "threads", "processes"]


class Scenario(Model):
    """What runs and what happens to it. Immutable; equal scenarios that run in turns end equally."""

    collective: str = Field(description="one of the collectives, or barrier")
    variant: str = Field(default="aggregate", description="one of its variants")
    ranks: Annotated[int, Field(ge=1, le=64)] = Field(default=3, description="number of ranks")
    nbytes: Annotated[int, Field(ge=0, le=1 << 26)] = Field(default=96, description="bytes of a block")
    dtype: str = Field(default="i32", description="of the elements")
    redop: str = Field(default="sum", description="for those that reduce")
    root: Annotated[int, Field(ge=0, le=63)] = Field(default=0, description="for those that have one")
    engine: str = Field(default="reference", description="reference or native")
    launch: Launch = Field(default="turns", description="turns, threads or processes")
    backend: Kind = Field(default="emulated", description="emulated or shm")
    config: str | Topology = Field(default="", description="a topology; absent: each rank on a host, and two cards")
    deadline_s: Annotated[float, Field(gt=0, le=600)] = Field(default=1.0, description="for any one wait")
    script: Script = Field(default=Script(), description="what happens")

    @cached_property
    def call(self) -> Call:
        contract = contract_of(self.collective)
        return Call(
            self.collective,
            recipe(self.collective, self.variant).name,
            self.ranks,
            self.nbytes if contract.moves_data else 0,
            self.dtype if contract.moves_data else "u8",
            self.redop if contract.reduces else "none",
            self.root if contract.rooted else 0,
        )

    @property
    def in_place(self) -> bool:
        """Whether the result replaces the input, as that of a broadcast always does."""
        return self.collective == "broadcast"

    @property
    def calls(self) -> int:
        return max((fault.when.call for fault in self.script.faults), default=0) + 1 + CALLS_AFTER

    @property
    def restarts(self) -> bool:
        return any(fault.kind == "restart" for fault in self.script.faults)

    def world(self) -> World:
        memory = self.script.memory() if self.backend == "emulated" else MemorySpec(self.backend)
        return World(self.ranks, _topology(self.config, self.ranks), memory, self.deadline_s, self.launch)


def run(scenario: Scenario) -> Report:
    """Run it and judge. Raises ConfigError and ArgumentError for what cannot be run, and nothing else."""
    scenario.script.check(ranks=scenario.ranks, backend=scenario.backend)
    if scenario.launch == "turns" and (scenario.engine != "reference" or scenario.backend != "emulated"):
        raise ArgumentError(
            "ranks take turns on the reference engine and an emulated pool only; launch threads instead"
        )
    world = scenario.world()
    if scenario.launch == "turns":
        return _run_in(scenario, world, private_pool(world))
    with stops_exit(), world.create_pool(None) as pool:
        return _run_in(scenario, world, pool)


def _run_in(scenario: Scenario, world: World, pool: Pool) -> Report:
    happened: list[Happened] = []
    ends = [_live(scenario, world, pool, happened)]
    if scenario.restarts and happened:
        again = scenario.model_copy(update={"script": Script(seed=scenario.script.seed)})
        ends.append(_live(again, world, pool, []))
    return judge(scenario.script, world, [became(end) for end in ends], happened)


def _live(scenario: Scenario, world: World, pool: Pool, happened: list[Happened]) -> Outcome[int]:
    def on_message(message: object) -> None:
        assert isinstance(message, Happened)
        happened.append(message)

    main = partial(_rank, scenario=scenario)
    launch = {"turns": run_in_turns, "threads": run_threads, "processes": run_processes}[scenario.launch]
    return launch(main, world, pool, on_message)


def injected_into(context: RankContext, engine: str, script: Script) -> Injected:
    """An engine for a communicator of this rank, to which the script happens once it is armed."""
    inner = engine_for(engine, context.backend, context.memory, context.pool.cards)
    memory: Any = context.memory
    if isinstance(inner, ReferenceEngine):
        inner = ReferenceEngine(context.memory, context.session.clock)
    elif context.backend.name == "emulated":
        memory = memory.native
    return Injected(inner, context, memory, script, add)


def _rank(context: RankContext, scenario: Scenario) -> int:
    """All calls on one rank; how many elements were wrong."""
    injected = injected_into(context, scenario.engine, scenario.script)
    heap_bytes = HEAP_BYTES if scenario.variant == ZERO_COPY.name else 0
    with Communicator.world(context, region_bytes=REGION_BYTES, heap_bytes=heap_bytes, engine=injected) as comm:
        case, wrong = Case(scenario.call, in_place=scenario.in_place), 0
        lent = lent_room(comm, case)
        injected.arm()
        for serial in range(scenario.calls):
            x = oracle.inputs(case.call, comm.rank, scenario.script.seed, serial)
            right = oracle.expected(case.call, comm.rank, scenario.script.seed, serial)
            x, out = arrays(case, comm.rank, x, right, lent)
            perform(comm, case, x, out, None)
            if right is not None and out is not None:
                wrong += oracle.wrong_elements(out, right).size
        return wrong


@lru_cache
def _topology(config: str | Topology, ranks: int) -> Topology:
    if isinstance(config, Topology):
        return config
    if config:
        return Topology.load(config)
    base = Topology.load("laptop")
    return base.model_copy(
        update={
            "hosts": base.hosts.model_copy(update={"count": ranks}),
            "emulation": base.emulation.model_copy(update={"card_bytes": CARD_BYTES}),
        }
    )
