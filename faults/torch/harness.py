"""What a rank under ``cxlemu torchrun`` does with every process group: faults, comparison, reports."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.communicator.arrays import Array
from collectives.communicator.communicator import Communicator
from cxlemu.engines import Engine, engine_for
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.plan import Op, Plan
from cxlemu.world import RankContext
from faults.inject.fault_engine import prepared
from faults.inject.injection import FaultTally, Happened
from faults.inject.script import Script
from faults.torch.compare import Compared, GlooShadow
from faults.torch.difference import Difference
from faults.torch.group_faults import GroupFaultEngine, GroupNumbers
from faults.torch.leaving_out import LeavingOut, without
from faults.torch.messages import MessageDifference
from faults.torch.saved import save
from faults.torch.script import TrainingScript
from faults.torch.settings import Settings
from faults.torch.steps import PacedSteps

if TYPE_CHECKING:
    from torch.distributed import Store


class TrainingHarness:
    """The harness of one rank: see `collectives.torch.harness.Harness`."""

    def __init__(self, settings: Settings, rank: int) -> None:
        self.settings, self.rank = settings, rank
        self._script = TrainingScript() if settings.script is None else TrainingScript.load(Path(settings.script))
        self._report = Path(settings.folder, f"rank-{rank}.jsonl")
        self._steps = PacedSteps(self.tell) if settings.pace else None
        self._numbers: dict[str, GroupNumbers] = {}  # by group
        self._compared: dict[str, Compared] = {}  # by group, until it is left

    def tell(self, kind: str, **what: Any) -> None:
        """Add a line to this rank's report: what happened, and when."""
        line = json.dumps({"kind": kind, "rank": self.rank, "at": time.time(), **what}) + "\n"
        with self._report.open("a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def engine(self, context: RankContext, group: str) -> str | Engine:
        """Make the engine of a group: with the script's faults for the group, and without what this rank leaves out."""
        engine: str | Engine = "native"
        self.tell("group", group=group)
        self._numbers[group] = GroupNumbers()
        if isinstance(memory := context.memory, ShadowMemory):
            context.at_end.append(lambda: self.tell("nature", moved=memory.moved()))
        if left_out := self._left_out(self.rank):
            inner = engine_for("native", context.backend, context.memory, context.pool.cards, context.pacer)
            engine = leaving = LeavingOut(inner, context, left_out)
            context.at_end.append(partial(self._tell_left_out, leaving))
        its = [number for number, fault in enumerate(self._script.faults) if fault.group == group]
        if not its or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            return engine
        script = Script(seed=self._script.seed, faults=tuple(self._script.faults[number] for number in its))

        def emit(message: object) -> None:
            if isinstance(message, Happened):
                number = its[message.fault]
                self.tell("fault", what=str(self._script.faults[number]), group=group, number=number)
            elif isinstance(message, FaultTally):
                missed = {its[number]: why for number, why in message.missed.items()}
                met = [its[entry] for entry in message.met]
                self.tell("ended", group=group, pool_rank=message.rank, calls=message.calls, missed=missed, met=met)

        inner, view = prepared(context, engine)
        told = replace(context, emit=emit)
        return GroupFaultEngine(inner, told, view, script, armed=True, numbers=self._numbers[group])

    def _tell_left_out(self, engine: LeavingOut) -> None:
        for op, count in engine.left_out.items():
            self.tell("left out", instruction=op.name, count=count, mattered=engine.mattered[op])

    def around(self, comm: Communicator, group: str, store: Store) -> Any:
        """Shadow a group's communicator on Gloo, or take the time of its calls, where that is asked for."""
        if self._steps is not None and not self.settings.compare:
            return self._steps.around(comm)
        if not self.settings.compare or comm.size == 1:
            return comm

        def found(difference: Difference, inputs: list[Array]) -> None:
            if difference.rank == comm.rank:
                folder = Path(self.settings.folder, "call")
                left_out = [each.model_dump() for each in self._script.leave_out]
                save(folder, difference, inputs, comm, left_out)
                self.tell("difference", sentence=difference.sentence(), **difference.plain())

        def found_message(difference: MessageDifference) -> None:
            self.tell("difference", sentence=difference.sentence(), **difference.plain())

        gloo = GlooShadow(store, comm.rank, comm.size, comm.barrier)
        as_run = partial(self._as_run, comm.members)
        its = Compared(comm, group, gloo, found, found_message, as_run, self._numbers[group])
        self._compared[group] = its
        return its

    def call(self, group: str, number: int, run: Callable[[], None]) -> None:
        """Make a call, which faults and comparisons give the group's number."""
        self._numbers[group].within(number, run)

    def message(self, group: str, number: int) -> None:
        """Take note that a message is posted."""
        self._numbers[group].messages = number

    def leaving(self, comm: Any, calls: int) -> None:
        """Let the others compare what this rank sent, and tell what it made, what was compared, how long steps took."""
        self.tell("made", calls=calls)
        if isinstance(comm, Compared):
            comm.leave()
            self._tell_compared(comm.group)
        if self._steps is not None:
            self._steps.leave()

    def stopped(self, where: list[str]) -> None:
        """Tell where this rank was when it was ended, and what was compared until then."""
        self.tell("stopped", where=where)
        self.tell_compared()

    def tell_compared(self) -> None:
        """Tell what was compared in the groups that this rank has not left."""
        for group in list(self._compared):
            self._tell_compared(group)

    def _tell_compared(self, group: str) -> None:
        if (its := self._compared.pop(group, None)) is not None:
            messages = its.messages
            self.tell("compared", group=group, calls=its.calls, messages=messages.compared, lost=messages.lost)

    def _as_run(self, members: Sequence[int], plan: Plan) -> Plan:
        for rank, member in enumerate(members):
            if ops := self._left_out(member):
                plan = plan.with_part(without(plan.part(rank), ops))
        return plan

    def _left_out(self, rank: int) -> frozenset[Op]:
        return frozenset(Op[each.instruction] for each in self._script.leave_out if each.rank == rank)
