"""A scenario: a collective, a script and a world, as data; and how every rank ends when it runs.

    report = run(Scenario(collective="all_gather", ranks=3, script=Script.load(path)))
    report.verdict                                   # survived, detected, silently wrong, hung or wrong error

Calls go on after the last fault until its slot of the ring comes round again, because what a fault leaves behind may
show only then. Launched in "turns" a scenario is deterministic and takes milliseconds (faults/inject/scheduler.py).
"""

from functools import cached_property, lru_cache, partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from collectives.algorithms.catalog import check, recipe, ring_of
from collectives.builder.recipes import Recipe, with_checksums
from collectives.checking import oracle
from collectives.communicator.communicator import Communicator
from collectives.contracts import contract_of
from collectives.layouts import SLOTS_MIN
from collectives.sweep.measure import arrays, heap_room, perform
from collectives.sweep.sweep import Case, load_algorithm
from cxlemu.choices import DEFAULT_TOPOLOGY
from cxlemu.errors import ArgumentError
from cxlemu.memory import BACKENDS, MemorySpec
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.plan import Call, Layout
from cxlemu.pool.pool import Pool
from cxlemu.rounding import round_up
from cxlemu.signals import stops_exit
from cxlemu.topology import Topology
from cxlemu.topology.clusters import ranks_per_cluster
from cxlemu.topology.fields import Model
from cxlemu.world import RankContext
from cxlemu.world.context import OnMessage, ignore_message
from cxlemu.world.outcome import Outcome
from cxlemu.world.processes import run_processes
from cxlemu.world.threads import run_threads
from cxlemu.world.world import World
from faults.inject.fault import FAULTS
from faults.inject.fault_engine import injected
from faults.inject.injection import Happened, LinesMoved
from faults.inject.judge import ScenarioReport, became, judge
from faults.inject.scheduler import private_pool, run_in_turns
from faults.inject.script import Script
from faults.inject.unfired import unfired, unmoved

CARD_BYTES = 1 << 20
NBYTES_MAX = 1 << 26  # of a block
REGION_BYTES, HEAP_BYTES = 64 << 10, 32 << 10  # a ring of SLOTS_MIN slots
RINGS = 2  # of a saved plan that its cards have room for: a world's communicator takes half of them
CALLS_AFTER = SLOTS_MIN
START_S = 30.0  # for real processes to meet, before any fault happens
Launch = Literal["turns", "threads", "processes"]


def known_backend(name: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"a backend is one of {', '.join(BACKENDS)}")
    return name


class Scenario(Model):
    """A run, and its faults. A scenario is immutable; equal scenarios that run in turns end equally."""

    collective: str = Field(description="one of the collectives, or barrier")
    variant: str = Field(default="aggregate", description="one of its variants")
    algorithm: str | None = Field(default=None, description="FILE.py:function or FILE.plan, instead of a variant")
    ranks: Annotated[int, Field(ge=1, le=64)] = Field(default=3, description="number of ranks")
    nbytes: Annotated[int, Field(ge=0, le=NBYTES_MAX)] = Field(default=96, description="bytes of a block")
    dtype: str = Field(default="i32", description="type of the elements")
    redop: str = Field(default="sum", description="operation of reductions")
    root: Annotated[int, Field(ge=0, le=63)] = Field(default=0, description="root of rooted collectives")
    engine: str = Field(default="reference", description="reference or native")
    launch: Launch = Field(default="turns", description="turns, threads or processes")
    backend: Annotated[str, AfterValidator(known_backend)] = Field(default="emulated", description="emulated or shm")
    integrity: Literal["crc32c"] | None = Field(default=None, description="crc32c: checksums travel with doorbells")
    config: str | Topology = Field(default="", description="a topology; absent: each rank on a host, and two cards")
    cluster: Annotated[int, Field(ge=1, le=64)] = Field(default=1, description="ranks on each host, without a topology")
    deadline_s: Annotated[float, Field(gt=0, le=600)] = Field(default=1.0, description="limit for each wait")
    script: Script = Field(default=Script(), description="faults, in any order")

    @cached_property
    def call(self) -> Call:
        """The call that every rank makes again and again; that of a saved plan, if there is one."""
        contract = contract_of(self.collective)
        chosen = self._named
        if chosen.plan is not None:
            return chosen.plan.call
        return Call(
            self.collective,
            chosen.name,
            self.ranks,
            self.nbytes if contract.moves_data else 0,
            self.dtype if contract.moves_data else "u8",
            self.redop if contract.reduces else "none",
            self.root if contract.rooted else 0,
            cluster=self.ranks_per_cluster if chosen.builder.takes_clusters else 1,
            fold_order=chosen.fold_order,
        )

    @property
    def ring(self) -> Layout | None:
        """The ring of a saved plan; None: a ring of REGION_BYTES."""
        plan = self._named.plan
        return None if plan is None else ring_of(plan)

    @property
    def topology(self) -> Topology:
        """The topology that ``config`` names; by default two cards, and hosts of ``cluster`` ranks."""
        ring = self.ring
        return _topology(self.config, self.ranks, self.cluster, 0 if ring is None else ring.extent_bytes)

    @property
    def ranks_per_cluster(self) -> int:
        """How many ranks each host has; 1 where there are no clusters."""
        return ranks_per_cluster(self.topology, self.ranks)

    @property
    def in_place(self) -> bool:
        """Whether the result replaces the input, as the result of a broadcast always does."""
        plan = self._named.plan
        return contract_of(self.collective).one_buffer or (plan is not None and plan.call.in_place)

    @property
    def _named(self) -> Recipe:
        if self.algorithm is not None:
            return load_algorithm(self.algorithm)
        return recipe(self.collective, self.variant)

    @property
    def chosen(self) -> Recipe:
        """The algorithm, with checksums if ``integrity`` asks for them."""
        scenario = self._named
        return with_checksums(scenario) if self.integrity else scenario

    @property
    def protected(self) -> bool:
        """Whether a checksum covers the payload."""
        return self.chosen.spec.checked

    @property
    def calls(self) -> int:
        """How many calls each rank makes: up to the last fault, and CALLS_AFTER more."""
        return max((fault.when.call for fault in self.script.faults), default=0) + 1 + CALLS_AFTER

    @property
    def restarts(self) -> bool:
        """Whether a fault of the script lets all ranks begin again."""
        return any(FAULTS[fault.kind].restarts for fault in self.script.faults)

    def world(self) -> World:
        """Describe the world: its topology, its memory with the script's adversary, and its deadline."""
        memory = self.script.memory() if BACKENDS[self.backend].emulates_caches else MemorySpec(self.backend)
        patience_s = self.deadline_s if self.launch == "turns" else max(self.deadline_s, START_S)
        return World(self.ranks, self.topology, memory, patience_s, self.launch)


def run(scenario: Scenario) -> ScenarioReport:
    """Run a scenario and judge how its ranks end."""
    check(scenario.call)
    scenario.script.check(ranks=scenario.ranks, backend=scenario.backend, restarts=True)
    if scenario.launch == "turns" and (
        scenario.engine != "reference" or not BACKENDS[scenario.backend].emulates_caches
    ):
        raise ArgumentError(
            "ranks take turns on the reference engine and an emulated pool only; launch threads instead"
        )
    world = scenario.world()
    if scenario.launch == "turns":
        return _run_in(scenario, world, private_pool(world))
    with stops_exit(), world.create_pool(None) as pool:
        return _run_in(scenario, world.sharing(pool), pool)


def _run_in(scenario: Scenario, world: World, pool: Pool) -> ScenarioReport:
    messages: list[object] = []
    ends = [_live(scenario, world, pool, messages.append)]
    happened = [each for each in messages if isinstance(each, Happened)]
    missing = unfired(scenario.script.faults, messages) | unmoved(scenario.script.faults, messages)
    moved = sum(each.lines for each in messages if isinstance(each, LinesMoved))
    if scenario.script.adversary is not None and not scenario.script.faults and not moved:
        missing = {0: "the adversary moved no line"}
    if scenario.restarts and happened:
        again = scenario.model_copy(update={"script": Script(seed=scenario.script.seed)})
        ends.append(_live(again, world, pool, ignore_message))
    return judge(
        scenario.script,
        world.hosts,
        [became(end) for end in ends],
        happened,
        scenario.deadline_s,
        protected=scenario.protected,
        unfired=missing,
    )


def _live(scenario: Scenario, world: World, pool: Pool, on_message: OnMessage) -> Outcome[int]:
    main = partial(_rank, scenario=scenario)
    launch = {"turns": run_in_turns, "threads": run_threads, "processes": run_processes}[scenario.launch]
    return launch(main, world, pool, on_message)


def _rank(context: RankContext, scenario: Scenario) -> int:
    """Make all calls on one rank; return how many elements were wrong."""
    engine = injected(context, scenario.engine, scenario.script)
    heap_bytes = HEAP_BYTES if scenario.chosen.spec.takes_heap else 0
    with Communicator.world(
        context,
        region_bytes=REGION_BYTES,
        heap_bytes=heap_bytes,
        deadline_s=scenario.deadline_s,
        engine=engine,
        integrity=scenario.integrity,
        layout=scenario.ring,
    ) as comm:
        case, wrong = Case(scenario.call, in_place=scenario.in_place), 0
        in_heap = heap_room(comm, case, scenario.algorithm)
        engine.arm()
        for serial in range(scenario.calls):
            x = oracle.inputs(case.call, comm.rank, scenario.script.seed, serial)
            right = oracle.expected(case.call, comm.rank, scenario.script.seed, serial)
            x, out = arrays(case, comm.rank, x, right, in_heap)
            perform(comm, case, x, out, scenario.algorithm)
            if right is not None and out is not None:
                slack = oracle.slack(case.call, comm.rank, scenario.script.seed, serial)
                wrong += oracle.wrong_elements(out, right, slack).size
        if isinstance(context.memory, ShadowMemory):
            context.emit(LinesMoved(context.memory.moved()))
        return wrong


@lru_cache
def _topology(config: str | Topology, ranks: int, cluster: int, ring_bytes: int) -> Topology:
    """Make or load the topology; ``ring_bytes`` are those of a saved plan's ring on each card, or 0."""
    if isinstance(config, Topology):
        return config
    if config:
        return Topology.load(config)
    base = Topology.load(DEFAULT_TOPOLOGY if ring_bytes else "laptop")
    card_bytes = round_up(ring_bytes * RINGS, CARD_BYTES) + CARD_BYTES
    return base.model_copy(
        update={
            "hosts": base.hosts.model_copy(update={"count": -(-ranks // cluster), "ranks_per_host": cluster}),
            "emulation": base.emulation.model_copy(update={"card_bytes": card_bytes if ring_bytes else CARD_BYTES}),
        }
    )
