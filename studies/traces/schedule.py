"""When each step begins: as soon as what it needs is free, in the order in which steps may begin."""

import heapq
from collections.abc import Sequence
from typing import TypeAlias

from collectives.contracts import COLLECTIVES
from collectives.defaults import AUTO
from collectives.sweep.sweep import Case
from collectives.sweep.virtual.plans import planned
from collectives.sweep.virtual.simulated import check_memory
from cxlemu.chakra.workload import ChakraCollective, ChakraMessage, ChakraWorkload, Computing, PoolAccess, Work
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError, PlanFileError
from cxlemu.plan import Call, Frame, Instruction, Kind, Layout, Op, Operand, Plan, RankPart, Region, Stream, encode
from cxlemu.rounding import round_up
from cxlemu.topology import Accelerator, Topology
from studies.traces.matches import Match, TracedMessage, matched, messages
from studies.traces.outcome import MEMORY, Called, Computed, Replay

ITEM_BYTES = 4  # blocks are whole f32
PEAK_OF = "bf16"
_ALIGN_BYTES = 4096  # of what a rank loads from the pool or stores to it by itself

_Between: TypeAlias = "tuple[ChakraCollective, tuple[int, ...]]"  # a collective, its ranks


class Schedule:
    """A replay in progress: each step begins once what it needs is free, in the order in which steps may begin."""

    def __init__(self, workload: ChakraWorkload, topology: Topology, accelerator: Accelerator | None) -> None:
        self._workload, self._topology, self._accelerator = workload, topology, accelerator
        self._model = CostModel.of(topology, len(workload.ranks))
        self._matches, self._match_of = matched(workload)
        self._message_of = messages(workload)
        self._missing = [[len(step.after) for step in steps] for steps in workload.ranks]
        self._ready_ns = [[0] * len(steps) for steps in workload.ranks]
        self._waiters: list[list[list[int]]] = [[[] for _ in steps] for steps in workload.ranks]
        for rank, steps in enumerate(workload.ranks):
            for index, step in enumerate(steps):
                for other in step.after:
                    self._waiters[rank][other].append(index)
        self._free_ns: dict[tuple[int, str], int] = {}
        self._waiting: list[tuple[int, int, int]] = []  # (when it may begin, rank, place): a heap
        self._times: dict[tuple[_Between, ...], list[tuple[int, str]]] = {}
        self._access_times: dict[tuple[int, PoolAccess], int] = {}
        self._message_times: dict[ChakraMessage, tuple[int, int, str]] = {}
        self._calls: list[Called] = []
        self._computed: list[Computed] = []
        self._left = workload.steps

    def run(self) -> Replay:
        """Replay the workload to its end; a schedule runs once."""
        for rank, missing in enumerate(self._missing):
            for index, count in enumerate(missing):
                if not count:
                    self._offer(rank, index)
        while self._waiting:
            due_ns, rank, index = heapq.heappop(self._waiting)
            if (begin_ns := self._begin_ns(rank, index)) > due_ns:  # what it needs was taken meanwhile
                heapq.heappush(self._waiting, (begin_ns, rank, index))
            elif isinstance(what := self._workload.ranks[rank][index].what, Computing | PoolAccess):
                self._compute(rank, index, what, begin_ns)
            elif isinstance(what, ChakraMessage) and what.source == rank:
                self._send(self._message_of[rank, index], begin_ns)
            elif isinstance(what, ChakraMessage):
                self._receive(self._message_of[rank, index], begin_ns)
            else:
                self._call(self._together(self._match_of[rank, index], begin_ns), begin_ns)
        if self._left:
            raise PlanFileError(self._stuck())
        self._calls.sort(key=lambda call: call.begin_ns)  # a message is known when it is received
        return Replay(self._workload, self._calls, self._computed)

    def _offer(self, rank: int, index: int) -> None:
        """Let a step begin when it may: everything that it comes after is over."""
        what = self._workload.ranks[rank][index].what
        if what is None:
            self._over(rank, index, self._ready_ns[rank][index])
            return
        if isinstance(what, ChakraMessage) and what.target == rank:
            self._message_of[rank, index].ready_ns = self._ready_ns[rank][index]
            if self._message_of[rank, index].begin_ns is None:
                return  # the sender offers it
        if isinstance(what, ChakraCollective):
            match = self._match_of[rank, index]
            match.ready_ns[rank] = self._ready_ns[rank][index]
            match.missing -= 1
            if match.missing:
                return
            rank, index = match.members[0], match.places[0]
        heapq.heappush(self._waiting, (self._begin_ns(rank, index), rank, index))

    def _begin_ns(self, rank: int, index: int) -> int:
        what = self._workload.ranks[rank][index].what
        if not isinstance(what, ChakraCollective):
            sent_ns = self._message_of[rank, index].begin_ns if isinstance(what, ChakraMessage) else 0
            return max(self._ready_ns[rank][index], self._free_ns.get((rank, _unit(what, rank)), 0), sent_ns or 0)
        match = self._match_of[rank, index]
        return max(max(ready, self._free_ns.get((r, "collectives"), 0)) for r, ready in match.ready_ns.items())

    def _compute(self, rank: int, index: int, what: Computing | PoolAccess, begin_ns: int) -> None:
        if isinstance(what, PoolAccess):
            end_ns = begin_ns + self._access_ns(rank, what)
        else:
            end_ns = begin_ns + self._computing_ns(rank, index, what)
        unit = _unit(what, rank)
        self._free_ns[rank, unit] = end_ns
        if end_ns > begin_ns:
            self._computed.append(Computed(rank, index, begin_ns, end_ns, unit))
        self._over(rank, index, end_ns)

    def _send(self, message: TracedMessage, begin_ns: int) -> None:
        """Send a message without waiting for its receiver: it lies in the pool until it is received."""
        what = message.what
        sent_ns, took_ns, message.variant = self._message_ns(what)
        message.begin_ns, message.sent_ns, message.arrives_ns = begin_ns, begin_ns + sent_ns, begin_ns + took_ns
        self._free_ns[what.source, _unit(what, what.source)] = begin_ns + sent_ns
        self._over(what.source, message.places[0], begin_ns + sent_ns)
        if message.ready_ns is not None:
            rank, index = what.target, message.places[1]
            heapq.heappush(self._waiting, (self._begin_ns(rank, index), rank, index))

    def _receive(self, message: TracedMessage, begin_ns: int) -> None:
        """Receive a message: this ends when all of it has come and the receiver has had the time to read it."""
        what, first_ns, ready_ns = message.what, message.begin_ns, message.ready_ns
        assert first_ns is not None and ready_ns is not None
        read_ns = self._access_ns(what.target, PoolAccess(True, what.nbytes))
        end_ns = max(message.arrives_ns, begin_ns + read_ns)
        self._free_ns[what.target, _unit(what, what.target)] = end_ns
        name, ends = self._workload.ranks[what.source][message.places[0]].name, (what.source, what.target)
        ready_ns = min(ready_ns, self._ready_ns[what.source][message.places[0]])
        spans = (first_ns, message.sent_ns), (begin_ns, end_ns)
        self._calls.append(Called(what, name, ends, message.places, message.variant, ready_ns, first_ns, end_ns, spans))
        self._over(what.target, message.places[1], end_ns)

    def _together(self, first: Match, begin_ns: int) -> list[Match]:
        """Find the collectives of other ranks that begin at the same moment."""
        matches, busy, others = [first], set(first.members), []
        while self._waiting and self._waiting[0][0] == begin_ns:
            _, rank, index = entry = heapq.heappop(self._waiting)
            match = self._match_of.get((rank, index))
            if match is None or self._begin_ns(rank, index) > begin_ns or not busy.isdisjoint(match.members):
                others.append(entry)
            else:
                matches.append(match)
                busy.update(match.members)
        for entry in others:
            heapq.heappush(self._waiting, entry)
        return matches

    def _call(self, matches: list[Match], begin_ns: int) -> None:
        for match, (took_ns, variant) in zip(matches, self._take(matches), strict=True):
            rank, index = match.members[0], match.places[0]
            name, ready_ns = self._workload.ranks[rank][index].name, min(match.ready_ns.values())
            end_ns = begin_ns + took_ns
            self._calls.append(
                Called(match.what, name, match.members, match.places, variant, ready_ns, begin_ns, end_ns)
            )
            for member, place in zip(match.members, match.places, strict=True):
                self._free_ns[member, "collectives"] = end_ns
                self._over(member, place, end_ns)

    def _over(self, rank: int, index: int, end_ns: int) -> None:
        self._left -= 1
        for waiter in self._waiters[rank][index]:
            self._ready_ns[rank][waiter] = max(self._ready_ns[rank][waiter], end_ns)
            self._missing[rank][waiter] -= 1
            if not self._missing[rank][waiter]:
                self._offer(rank, waiter)

    def _computing_ns(self, rank: int, index: int, what: Computing) -> int:
        accelerator = self._accelerator
        if accelerator is not None and not what.on_cpu and (what.operations or what.moved_bytes):
            computing_s = what.operations / (accelerator.peak_flop_per_s(PEAK_OF) * accelerator.gemm_efficiency)
            return round(max(computing_s, what.moved_bytes / accelerator.memory_bytes_per_s) * 1e9)
        if what.operations and not what.duration_us:
            step = self._workload.ranks[rank][index]
            raise ArgumentError(f"node {step.id} of rank {rank} has operations, but no time: give --accelerator")
        return what.duration_us * 1000

    def _access_ns(self, rank: int, what: PoolAccess) -> int:
        if (rank, what) not in self._access_times:
            self._access_times[rank, what] = access_ns(self._topology, self._model, rank, what)
        return self._access_times[rank, what]

    def _message_ns(self, what: ChakraMessage) -> tuple[int, int, str]:
        """Simulate a message whose ends are both ready: after how long it is sent and received, in ns; its variant."""
        message = what._replace(tag=0, group="")
        if message not in self._message_times:
            plan = self._planned(what, ends := (what.source, what.target))
            if isinstance(plan, str):
                self._message_times[message] = 0, 0, plan
            else:
                check_memory(calls := [VirtualCall(plan, ends)])
                sent_ns, received_ns = (int(end_ns) for end_ns in simulate(self._model, calls).end_ns[0])
                self._message_times[message] = sent_ns, max(sent_ns, received_ns), plan.call.algorithm
        return self._message_times[message]

    def _take(self, matches: Sequence[Match]) -> list[tuple[int, str]]:
        """Simulate collectives that begin together: how long each takes in ns, and its variant."""
        key = tuple((match.what, match.members) for match in matches)
        if key not in self._times:
            plans = [self._planned(*each) for each in key]
            calls = [
                VirtualCall(plan, entry[1]) for plan, entry in zip(plans, key, strict=True) if isinstance(plan, Plan)
            ]
            check_memory(calls)
            ends = iter(simulate(self._model, calls).end_ns if calls else ())
            self._times[key] = [
                (int(next(ends).max()), plan.call.algorithm) if isinstance(plan, Plan) else (0, plan) for plan in plans
            ]
        return self._times[key]

    def _planned(self, what: ChakraCollective | ChakraMessage, members: tuple[int, ...]) -> Plan | str:
        ranks, contract = len(members), COLLECTIVES[what.name]
        if ranks == 1 or (contract.moves_data and not what.nbytes):
            return "nothing to do"
        blocks = ranks if contract.input_blocks == "ranks" else 1
        nbytes = round_up(-(-what.nbytes // blocks), ITEM_BYTES) if contract.moves_data else 0
        call = Call(what.name, AUTO, ranks, nbytes, "f32", "sum" if contract.reduces else "none")
        return planned(self._topology, Case(call, in_place=what.name == "broadcast"))[0]

    def _stuck(self) -> str:
        """Name a step that waits for itself, or for a rank that waits for it."""
        for match in self._matches:
            if match.missing:
                absent = next(r for r in match.members if r not in match.ready_ns)
                index = match.places[match.members.index(absent)]
                step, why = self._workload.ranks[absent][index], self._why(absent, index)
                called = f"node {step.id} of rank {absent}, {match.what.name},"
                return f"nodes wait for each other: {called} never begins{why}"
        rank, index = next((r, a) for r, counts in enumerate(self._missing) for a, left in enumerate(counts) if left)
        named = f"node {self._workload.ranks[rank][index].id} of rank {rank}"
        return f"nodes wait for each other: {named} never begins{self._why(rank, index)}"

    def _why(self, rank: int, index: int) -> str:
        """Name the nodes of a rank that a node waits for, up to one that waits for one of them."""
        steps, path = self._workload.ranks[rank], [index]
        while (before := next((b for b in steps[path[-1]].after if self._missing[rank][b]), None)) is not None:
            if before in path:
                cycle = [*path[path.index(before) :], before]
                ids = " -> ".join(str(steps[each].id) for each in cycle[:8])
                return f": each waits for the next of {ids}" + " -> ..." * (len(cycle) > 8)
            path.append(before)
        return ""


def _unit(what: Work, rank: int) -> str:
    """What a step keeps busy. A rank's messages do not wait for its collectives, nor what it sends for what it gets."""
    if isinstance(what, ChakraMessage):
        return "sends" if what.source == rank else "receives"
    if not isinstance(what, Computing):
        return MEMORY
    return "processor" if what.on_cpu else "accelerator"


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
