"""Steps and schedules as people read them: one line per move, in the column of the thread or of nature."""

from collections.abc import Iterator
from typing import NamedTuple

from faults.machine.program import Do, MachineProgram, Step
from faults.machine.schedule import Act, MachineMove, Schedule
from faults.machine.state import MachineState
from faults.machine.steps import TWO_MOVES, Machine, replay

LINE_WISE = (Do.FLUSH, Do.FLUSH_KEEP, Do.INVALIDATE)
NATURE = {
    Act.LAND: "{line} arrives",
    Act.LAND_NT: "{line} arrives (non-temporal)",
    Act.DROPPED: "{line} leaves the cache (flushed)",
    Act.EVICT: "{line} is evicted",
    Act.DROP: "{line} is dropped",
    Act.PREFETCH: "{line} is prefetched",
    Act.LOSE: "{line} is lost on its way",
}


def step_text(program: MachineProgram, step: Step) -> str:
    """Write a step in the words of a litmus test: ``store x 1``."""
    verb = step.do.name.lower()
    if step.do in LINE_WISE:
        return f"{verb} {program.lines[step.place]}"
    if step.do in {Do.STORE, Do.STORE_NT, Do.SIGNAL, Do.WAIT}:
        value = step.value if step.source < 0 else program.registers[step.source]
        return f"{verb} {program.words[step.place].name} {value}"
    if step.do == Do.LOAD:
        return f"{verb} {program.words[step.place].name}"
    return f"{verb} e{step.place}" if step.do in {Do.RECORD, Do.AWAIT} else verb


class ScheduleRow(NamedTuple):
    thread: int  # number of the thread that moves; -1 for nature
    host: int  # the host on which it happens
    text: str


def rows(machine: Machine, schedule: Schedule) -> Iterator[ScheduleRow]:
    states = replay(machine, schedule)
    for state, move in zip(states, schedule, strict=False):
        program = machine.program
        if move.act in {Act.STEP, Act.AGAIN}:
            yield ScheduleRow(move.who, program.threads[move.who].host, _done(machine, state, move))
        else:
            ranks = {thread.rank: thread.host for thread in program.threads}
            host = ranks[move.who] if move.act == Act.LAND_NT else move.who
            yield ScheduleRow(-1, host, NATURE[move.act].format(line=program.lines[move.line]))


def _done(machine: Machine, state: MachineState, move: MachineMove) -> str:
    step = machine.step_of(state, move.who)
    assert step is not None
    text = step_text(machine.program, step)
    if step.do == Do.LOAD:
        return f"{text} -> {machine.visible(state, move.who, step.place)}"
    if move.act == Act.AGAIN:
        return f"{text}: again"
    if step.do in TWO_MOVES:
        return f"{text}: {'done' if state.begun[move.who] else 'begun'}"
    return text
