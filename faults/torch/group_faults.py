"""Faults of one process group: at the call, or after the message, that errors give the same number."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cxlemu.engines.streams import Running
from cxlemu.units import counted
from faults.inject.fault_engine import FaultEngine
from faults.torch.script import GroupFault


class _Here(threading.local):
    """The number of the group's call in which this thread is: 0 outside of calls."""

    call = 0


@dataclass
class GroupNumbers:
    """How far a rank has come in a group, by the group's own numbers."""

    _here: _Here = field(default_factory=_Here)
    calls: int = 0  # number of the last call that began
    messages: int = 0  # number of the last message that was posted

    @property
    def call(self) -> int:
        return self._here.call

    def within(self, number: int, run: Callable[[], None]) -> None:
        """Make a call."""
        outer, self._here.call = self._here.call, number
        self.calls = max(self.calls, number)
        try:
            run()
        finally:
            self._here.call = outer


@dataclass
class GroupFaultEngine(FaultEngine):
    """An engine that knows to which call of the group a plan belongs; other plans are those of messages."""

    numbers: GroupNumbers = field(default_factory=GroupNumbers)
    executed: dict[str, tuple[int, int]] = field(default_factory=dict)  # of a call or message, in its earlier plans

    def _due(self, running: Running) -> Iterator[tuple[int, GroupFault, int]]:
        call = self.numbers.call
        now = kind, number = ("call", call) if call else ("message", self.numbers.messages)
        last, before = self.executed.get(kind, (number, 0))
        before = before if last == number else 0
        self.executed[kind] = number, before + running.part.instruction_count
        for number, fault in enumerate(self.script.faults):
            assert isinstance(fault, GroupFault)
            instruction = fault.when.instruction - before
            if (fault.rank, fault.when.moment) == (self.context.rank, now) and instruction >= 0:
                yield number, fault, instruction

    def _tell_end(self) -> None:
        for number, fault in enumerate(self.script.faults):
            assert isinstance(fault, GroupFault)
            kind, wanted = fault.when.moment
            came_to = self.numbers.calls if kind == "call" else self.numbers.messages
            if came_to < wanted:
                self.missed[number] = f"rank {fault.rank} made {counted(came_to, kind)}"
        super()._tell_end()
