"""Calls in order on a coherent pool: what a plan computes when nothing goes wrong, and what is wrong even then."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.checking.symbolic import SymbolicPool, SymbolicRank, check_results
from collectives.checking.symbols import SymbolicBytes
from cxlemu.engines.streams import Binding, Blocked, run_together
from cxlemu.errors import ContractError, DeadlineError
from cxlemu.plan import Plan
from faults.explore.result import FindingKind, SearchFinding
from faults.machine.program import Do
from faults.machine.schedule import Act, MachineMove, Schedule
from faults.machine.steps import Machine

CALL_SHIFT = 10**12  # inputs of call k count from k times this number on, so that no two calls share an input


BEGINS, ENDS = -1, 1 << 30  # instead of an instruction's number: what a rank does before and after a call


class PlanPoint(NamedTuple):
    call: int  # number of the call, from 0
    rank: int
    stream: int  # number of the rank's stream
    at: int  # number of the instruction in the stream; BEGINS or ENDS: what the rank does before or after the call


@dataclass(frozen=True)
class Trouble:
    """A mistake that calls show even in order on a coherent pool."""

    finding: SearchFinding
    order: tuple[PlanPoint, ...]  # the instructions that were executed
    call: int  # the last one

    def shown(self, machine: Machine, origins: Sequence[Sequence[PlanPoint]]) -> tuple[SearchFinding, Schedule]:
        """Show the same order as an execution of the abstract machine, in which everything arrives at once."""
        thread_of = {(steps[0].rank, steps[0].stream): t for t, steps in enumerate(origins) if steps}
        run = _Settled(machine)
        for place in self.order:
            run.between_calls(origins)
            thread = thread_of.get((place.rank, place.stream))
            if thread is None:  # a stream that does nothing in the pool
                continue
            while (node := run.state.nodes[thread]) < len(origins[thread]) and origins[thread][node] == place:
                run.step(thread)
        run.between_calls(origins)
        run.wait_in_vain()
        return self.finding, tuple(run.moves)


@dataclass
class _Ordered(SymbolicRank):
    call_number: int = field(kw_only=True)
    order: list[PlanPoint] = field(kw_only=True)

    def step(self, stream: int) -> Blocked | None:
        index = self.position[stream]
        blocked = super().step(stream)
        if blocked is None:
            self.order.append(PlanPoint(self.call_number, self.part.rank, stream, index))
        return blocked


def in_order(plans: Sequence[Plan], epochs: Sequence[int]) -> tuple[tuple[PlanPoint, ...], Trouble | None]:
    """Execute calls on a coherent pool; return the instructions in order, and what stopped them, or None.

    Ranks' first streams, which publish, go first.
    """
    layout = plans[0].layout
    pool = SymbolicPool([SymbolicBytes(layout.extent_bytes) for _ in range(layout.cards)])
    order: list[PlanPoint] = []
    for number, (plan, epoch) in enumerate(zip(plans, epochs, strict=True)):
        binding = Binding(layout, base=0, epoch=epoch, tag=plan.call.tag())
        ranks = [
            _Ordered(plan.call, plan.frame, part, binding, pool=pool, call_number=number, order=order)
            for part in plan.parts
        ]
        try:
            _run(ranks, number * CALL_SHIFT)
        except (DeadlineError, ContractError) as error:
            kind = FindingKind.DEADLOCK if isinstance(error, DeadlineError) else FindingKind.FINAL
            finding = SearchFinding(kind, 0, f"wrong already in order and without any caches: {error}")
            return tuple(order), Trouble(finding, tuple(order), number)
    return tuple(order), None


def _run(ranks: Sequence[_Ordered], shift: int) -> None:
    for rank in ranks:
        rank.begin(shift)
    run_together(ranks, lambda steps: min(steps, key=lambda step: (step[1], step[0])))
    check_results(ranks, shift)


class _Settled:
    """After each step all that was stored is in the pool, and nothing is cached."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.state = machine, machine.initial()
        self.moves: list[MachineMove] = []

    def step(self, thread: int) -> None:
        self._do(MachineMove(Act.STEP, thread))
        step = self.machine.step_of(self.state, thread)
        if self.state.begun[thread] and step is not None and step.do in (Do.WAIT, Do.INVALIDATE):
            self._settle()
            self._do(MachineMove(Act.STEP, thread))
        self._settle()

    def between_calls(self, origins: Sequence[Sequence[PlanPoint]]) -> None:
        """Let ranks do what they do between calls, as far as they can."""
        for _ in range(2):  # all end a call before the first one begins the next
            for thread, places in enumerate(origins):
                while (node := self.state.nodes[thread]) < len(places) and places[node].at in (BEGINS, ENDS):
                    if MachineMove(Act.STEP, thread) not in self.machine.enabled(self.state):
                        break
                    self.step(thread)

    def wait_in_vain(self) -> None:
        """Threads wait, some of them for several doorbells, until all look in vain."""
        for thread in range(len(self.state.nodes)):
            while (step := self.machine.step_of(self.state, thread)) is not None and step.do == Do.WAIT:
                if MachineMove(Act.STEP, thread) not in self.machine.enabled(self.state):
                    break
                self._do(MachineMove(Act.STEP, thread))
                self._settle()

    def _settle(self) -> None:
        for act in (Act.LAND, Act.LAND_NT, Act.EVICT, Act.DROP):
            while move := next((move for move in self.machine.enabled(self.state) if move.act == act), None):
                self._do(move)

    def _do(self, move: MachineMove) -> None:
        self.state = self.machine.apply(self.state, move)
        self.moves.append(move)
