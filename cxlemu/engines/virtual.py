"""The virtual engine: plans as discrete events on a modelled fabric, for thousands of ranks, in virtual time.

cxlemu/cost says what everything costs; events are in C (cxlemu/native/virtual). Time is in integer nanoseconds and
events are in a total order: by time, then by rank and stream. So the same calls give the same run, to the bit.

    run = simulate(CostModel.of(topology, ranks), [VirtualCall(plan)])

Ranks go from call to call without meeting, as real ones do. With a log, the instructions are kept in the order in
which they were executed; `replay` executes them once more on real bytes, in that order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cxlemu import _virtual
from cxlemu.compiled import check_compiled
from cxlemu.cost import SERVICE_RATE_FIELDS, CostModel, Resource
from cxlemu.cost.compute import kernel_costs
from cxlemu.cost.link_table import HOPS_MAX
from cxlemu.engines.deadlocks import deadlock_of
from cxlemu.engines.streams import Streams
from cxlemu.errors import ArgumentError, CutOffError, DeadlineError, DeadlockError, PlanError
from cxlemu.plan import Layout, Op, Plan
from cxlemu.plan.features import declared, features_of_tables, unmodelled
from cxlemu.plan.instructions import Records
from cxlemu.plan.layout import layout_record
from cxlemu.plan.plan import group_table, region_table
from cxlemu.topology.failures import cut_off

check_compiled("cxlemu._virtual", _virtual.CONSTANTS, {"MAX_HOPS": HOPS_MAX})
OVER, DEADLOCK, BAD_RECORD, TOO_LONG, NO_WAY, PAUSED = (
    _virtual.CONSTANTS[name] for name in ("OVER", "DEADLOCK", "BAD_RECORD", "TOO_LONG", "NO_WAY", "PAUSED")
)

MODELS = declared(
    "EVENTS FOLDS HEAP MATRIX_PRODUCTS NON_TEMPORAL OWN_MEMORIES PAYLOADS PEER_WRITES TOLD_PLACES UNEVEN_BLOCKS "
    "UNIFORM_ORDER"
)

RESOURCE_FIELDS = (
    *SERVICE_RATE_FIELDS,
    *("free_ns", "uses", "bytes", "busy_ns", "queue_ns", "transfer", "load", "start_ns"),
)
RESOURCE_DTYPE = np.dtype([(name, "<i8") for name in RESOURCE_FIELDS])
OP_DTYPE = np.dtype([("count", "<i8"), ("ns", "<i8"), ("queue_ns", "<i8")])
EXECUTED_DTYPE = np.dtype(
    [("begin_ns", "<i8"), ("end_ns", "<i8"), ("queue_ns", "<i8")]
    + [(name, "<i4") for name in ("rank", "call", "stream", "at")]
)
RESERVED_DTYPE = np.dtype(
    [("begin_ns", "<i8"), ("end_ns", "<i8"), ("bytes", "<i8"), ("resource", "<i4"), ("rank", "<i4")]
)


@dataclass(frozen=True)
class VirtualCall:
    """One call of a virtual run.

    Calls of the same members with the same layout and cards share a ring, as those of a communicator do.
    """

    plan: Plan
    # the world's ranks that make the call, in the order of the plan's ranks; None for all
    members: tuple[int, ...] | None = None
    # for each card of the layout, the index of the model's card (`CostModel.cards_of` has those of a space); None for
    # the model's first ones
    cards: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Use:
    resource: Resource
    uses: int
    bytes: int
    busy_ns: int  # how long it was in use, in nanoseconds
    queue_ns: int  # how long transfers waited for it, all together


@dataclass(frozen=True)
class OpTotal:
    count: int  # how many there were
    ns: int  # how long they took, all together, in nanoseconds
    queue_ns: int  # how much longer their transfers took than they would have alone


@dataclass(frozen=True)
class VirtualRun:
    """What happened in a simulation, in integer nanoseconds."""

    model: CostModel
    calls: tuple[VirtualCall, ...]
    begin_ns: tuple[NDArray[np.int64], ...]  # for each call, when each member began it
    end_ns: tuple[NDArray[np.int64], ...]  # for each call, when each member ended it
    exposed_wait_ns: NDArray[np.int64]  # for each rank, how long none of its streams did anything but wait for peers
    tiles_ns: NDArray[np.int64]  # for each rank, the time of all tiles that its multiprocessors computed, all together
    ops: dict[Op, OpTotal]  # the totals of each kind of instruction that was executed
    instructions: int  # how many instructions were executed
    executed: Records  # one row of EXECUTED_DTYPE per instruction, in the order of execution; empty without a log
    reserved: Records  # one row of RESERVED_DTYPE per use of a resource; empty without a log
    _resources: Records

    @property
    def time_ns(self) -> int:
        """The run's length: from the start, at 0, to the last rank's end; 0 without calls."""
        return max((int(ends.max()) for ends in self.end_ns), default=0)

    def call_ns(self, call: int) -> int:
        """Compute how long one call took, by index: from its first member's begin to its last one's end."""
        return int(self.end_ns[call].max() - self.begin_ns[call].min())

    @cached_property
    def uses(self) -> list[Use]:
        """What every resource did that was used, in the model's order."""
        columns = ("uses", "bytes", "busy_ns", "queue_ns")
        rows = zip(self.model.resources, self._resources[list(columns)].tolist(), strict=True)
        return [Use(resource, *row) for resource, row in rows if row[0]]

    def busiest(self, kind: str) -> Use | None:
        """Return the "engine", "link" or "card" that was busy longest, the first of equals; None if none was used."""
        return max((use for use in self.uses if use.resource.kind == kind), key=lambda use: use.busy_ns, default=None)


def simulate(model: CostModel, calls: Sequence[VirtualCall], *, log: bool = False, warm: bool = False) -> VirtualRun:
    """Run calls one after another in virtual time."""
    if beyond := unmodelled((call.plan for call in calls), MODELS, "the virtual engine", of=features_of_tables):
        raise ArgumentError(beyond)
    ranks = len(model.hosts)
    core = _virtual.Simulation(model.tables())
    members = [call.members if call.members is not None else tuple(range(ranks)) for call in calls]
    add_calls(core, model, calls, members, warm)
    turns: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for number, numbers in enumerate(members):
        for member, rank in enumerate(numbers):
            turns[rank].append((number, member))
    flat = np.array([turn for mine in turns for turn in mine], np.int32).reshape(-1, 2)
    firsts = np.cumsum([0, *map(len, turns)], dtype=np.int32)
    check_outcome(core, model, calls, *core.run(flat, firsts, log))
    seen = core.seen()
    ends = [[np.frombuffer(table, np.int64) for table in call] for call in seen["calls"]]
    totals = np.frombuffer(seen["ops"], OP_DTYPE)
    return VirtualRun(
        model,
        tuple(calls),
        tuple(begin for begin, _ in ends),
        tuple(end for _, end in ends),
        np.frombuffer(seen["exposed"], np.int64),
        np.frombuffer(seen["tiles"], np.int64),
        {op: OpTotal(*totals[op].tolist()) for op in Op if totals[op]["count"]},
        seen["steps"],
        np.frombuffer(seen["log"], EXECUTED_DTYPE),
        np.frombuffer(seen["reserved"], RESERVED_DTYPE),
        np.frombuffer(seen["resources"], RESOURCE_DTYPE),
    )


def check_outcome(
    core: _virtual.Simulation,
    model: CostModel,
    calls: Sequence[VirtualCall],
    outcome: int,
    rank: int,
    stream: int,
    index: int,
    card: int,
) -> None:
    """Raise what a run ended with, if that is an error."""
    if outcome == DEADLOCK:
        certain = filter(None, (deadlock_of(plan) for plan in dict.fromkeys(call.plan for call in calls)))
        raise next(certain, None) or _deadlock(core)
    if outcome == TOO_LONG:
        raise ArgumentError("these calls take longer than 2^60 ns: make them smaller, or the links faster")
    if outcome == BAD_RECORD:
        raise PlanError(f"rank {rank}, stream {stream}, record {index} cannot be simulated: it names something missing")
    if outcome == NO_WAY:
        raise _no_way(model, rank, card, f"rank {rank}, stream {stream}, record {index}")


def add_calls(
    core: _virtual.Simulation,
    model: CostModel,
    calls: Sequence[VirtualCall],
    members: Sequence[tuple[int, ...]],
    warm: bool,
) -> None:
    rings = [(call.plan.layout, member, _cards(model, call)) for call, member in zip(calls, members, strict=True)]
    rounds: dict[tuple[Layout, tuple[int, ...], tuple[int, ...]], int] = {}
    for call, ring in zip(calls, rings, strict=True):
        rounds[ring] = rounds.get(ring, 0) + call.plan.rounds
    used = {ring: ring[0].slots if warm else 0 for ring in rounds}
    numbers, epochs = {}, {ring: number + 1 for ring, number in used.items()}
    for ring, total in rounds.items():
        layout, ranks, cards = ring
        if (
            len(ranks) != layout.ranks
            or len(set(ranks)) != len(ranks)
            or not all(0 <= r < len(model.hosts) for r in ranks)
        ):
            raise ArgumentError(f"a call of {layout.ranks} ranks needs as many different members of the world")
        table = np.array(cards, np.int32)
        try:
            numbers[ring] = core.communicator(layout_record(layout), table, used[ring] + total, used[ring])
        except MemoryError:
            raise ArgumentError(
                f"not enough memory for the doorbells of {layout.ranks} ranks: use fewer ranks"
            ) from None
    packed: dict[int, int] = {}  # by a plan's id, the call that has its records
    for call, ring in zip(calls, rings, strict=True):
        frame = call.plan.frame
        its_parts = (([stream.records for stream in part.streams], part.events) for part in call.plan.each_part())
        packed[id(call.plan)] = core.call(
            numbers[ring],
            epochs[ring],
            frame.rounds,
            region_table(frame.regions),
            group_table(frame.groups),
            kernel_costs(
                model.accelerator, frame, call.plan.part(0), model.link_gbytes_per_s if frame.kernels else 0.0
            ),
            packed.get(id(call.plan), its_parts),
        )
        epochs[ring] += frame.rounds


def _cards(model: CostModel, call: VirtualCall) -> tuple[int, ...]:
    layout = call.plan.layout
    cards = tuple(range(layout.cards)) if call.cards is None else call.cards
    if len(cards) != layout.cards or not all(0 <= card < len(model.cards) for card in cards):
        raise ArgumentError(f"a layout on {layout.cards} cards does not fit a pool of {len(model.cards)}")
    return cards


def _no_way(model: CostModel, rank: int, card: int, where: str) -> PlanError | CutOffError:
    """Make the error of a route that was never there, or that a failure ended."""
    host, number = model.hosts[rank], model.cards[card]
    name = model.topology.card_name(number)
    whose = "" if name == f"card{number}" else f" ({name})"
    for change in model.changes:
        if (host, number) in change.ended:
            what = " and ".join(map(str, change.failures))
            return CutOffError(
                host, number, f"{whose}, which rank {rank} needs: {what} cut off {cut_off(change.ended)}"
            )
    return PlanError(f"{where} cannot be simulated: no link leads from host{host} to {name}")


def _deadlock(core: _virtual.Simulation) -> DeadlockError:
    waits = [
        f"rank {rank} at record {index} of stream {stream} for " + ("its own event" if bell < 0 else f"doorbell {bell}")
        for rank, stream, index, bell in core.blocked()
    ]
    more = f" and {len(waits) - 8} more" if len(waits) > 8 else ""
    return DeadlockError(f"deadlock: waiting are {'; '.join(waits[:8])}{more}")


def replay(run: VirtualRun, runners: Sequence[Sequence[Streams]]) -> None:
    """Execute a logged run on real bytes, in the order of the run, with one fresh runner per member of each call."""
    groups = [call.members or range(len(run.model.hosts)) for call in run.calls]
    member = [{rank: number for number, rank in enumerate(ranks)} for ranks in groups]
    for row in run.executed[["rank", "call", "stream"]].tolist():
        rank, call, stream = row
        blocked = runners[call][member[call][rank]].step(stream)
        if blocked is not None:
            raise DeadlineError(f"the run executes {blocked.stream}:{blocked.at} of rank {rank} before it may be")
