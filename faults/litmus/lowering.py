"""A litmus test as numbers for `faults.litmus._straight.Straight`, which executes it with machine instructions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from faults.machine.program import Do, MachineProgram, Step, Straight
from faults.protocols.places import WORDS_MAX

Numbers = NDArray[np.int64]

# Do of a step -> what C does; an event is a doorbell on a line of its own.
_DOES = {do: int(do) for do in (Do.STORE, Do.STORE_NT, Do.FLUSH, Do.FLUSH_KEEP, Do.FENCE, Do.INVALIDATE, Do.LOAD)}
_RING, _LOOK = int(Do.SIGNAL), int(Do.WAIT)
_DOES |= {Do.SIGNAL: _RING, Do.WAIT: _LOOK, Do.RECORD: _RING, Do.AWAIT: _LOOK}


@dataclass(frozen=True)
class LoweredTest:
    """A program of straight threads, lowered."""

    steps: tuple[Numbers, ...]  # for each thread int64 of shape (steps, 4): what, place, value, register
    hosts: tuple[int, ...]  # the host of each thread
    slots: Numbers  # int64 of shape (words, 2): each word's line, and its number in it. Events come last
    initial: Numbers  # int64 of shape (words,)
    words: int  # number of the program's own words, without events
    lines: int  # number of lines, with those of events
    registers: int

    @classmethod
    def of(cls, program: MachineProgram) -> LoweredTest:
        """Lower a program that `obstacle` has nothing against."""
        threads = [thread for thread in program.threads if isinstance(thread, Straight)]
        events = 1 + max((s.place for t in threads for s in t.steps if s.do in (Do.RECORD, Do.AWAIT)), default=-1)
        words, lines = len(program.words), len(program.lines)
        taken = [0] * lines
        slots = []
        for word in program.words:
            slots.append((word.line, taken[word.line]))
            taken[word.line] += 1
        slots += [(lines + event, 0) for event in range(events)]
        return cls(
            steps=tuple(
                np.array([_lowered(step, words) for step in thread.steps], np.int64).reshape(-1, 4)
                for thread in threads
            ),
            hosts=tuple(thread.host for thread in threads),
            slots=np.array(slots, np.int64).reshape(-1, 2),
            initial=np.array([*(word.initial for word in program.words), *[0] * events], np.int64),
            words=words,
            lines=lines + events,
            registers=len(program.registers),
        )

    def shares_host(self, thread: int) -> bool:
        return self.hosts.count(self.hosts[thread]) > 1


def obstacle(program: MachineProgram) -> str:
    """Say why hardware cannot run a program; empty if it can."""
    if any(step.do == Do.CRASH for t in program.threads if isinstance(t, Straight) for step in t.steps):
        return "no instruction makes a host lose its cache"
    if not all(isinstance(thread, Straight) for thread in program.threads):
        return "its threads have branches"
    fullest = max((sum(w.line == line for w in program.words) for line in range(len(program.lines))), default=0)
    return f"a line has room for {WORDS_MAX} words, not for {fullest}" if fullest > WORDS_MAX else ""


def _lowered(step: Step, words: int) -> tuple[int, int, int, int]:
    if step.do in (Do.RECORD, Do.AWAIT):
        return _DOES[step.do], words + step.place, 1, -1
    return _DOES[step.do], step.place, step.value, step.register
