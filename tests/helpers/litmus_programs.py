"""Litmus tests as programs in C, written from their files: a process for each host, a thread for each rank."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from faults.explore.result import Budget
from faults.litmus.language import Litmus, read
from faults.litmus.run import run as search_model
from faults.machine.program import Do, Step, Straight
from faults.programs.commands import Command, parse_pools
from faults.programs.crashes import Losses
from faults.programs.every.crashes import CrashSearch
from faults.programs.every.events import Trace
from faults.programs.every.record import read as read_record
from faults.programs.every.search import EverySearch, Turns
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult
from faults.programs.run import run
from faults.programs.servers import ForkServers
from faults.programs.turns import crash_in
from tests.helpers.pool_programs import SOURCES, build, programs_folder

LITMUS = SOURCES.parent / "litmus"
NAMES = sorted(file.stem for file in LITMUS.glob("*.yaml"))
POOL = "/dev/shm/litmus"
# Functions of litmus_steps.c, which includes what is written here.
FUNCTIONS = {do: do.name.lower() for do in Do} | {Do.SIGNAL: "ring", Do.WAIT: "wait_for"}
LINE_BYTES, WORD_BYTES = 64, 8
Outcome = frozenset[tuple[str, int]]  # registers and words, with their values


class LitmusProgram(NamedTuple):
    """A litmus test as commands."""

    litmus: Litmus
    commands: list[Command]  # one for each host; behind them one that reads words, on a host of its own
    judged: list[str]  # registers and words on which the outcomes are compared
    read: dict[str, int]  # words that the last command reads, and their lines
    crashes: int | None  # the host that crashes


def c_source(litmus: Litmus, functions: Mapping[Do, str]) -> str:
    """Write what each rank does, a step a line."""

    def line(step: Step) -> str:
        given: list[object] = []
        if step.do in (Do.FLUSH, Do.FLUSH_KEEP, Do.INVALIDATE):
            given.append(f"WORD({step.place * LINE_BYTES})")
        elif step.do in (Do.RECORD, Do.AWAIT):
            given.append(step.place)
        elif step.place >= 0:
            given.append(f"WORD({offsets[step.place]})")
        if step.do in (Do.STORE, Do.STORE_NT, Do.SIGNAL, Do.WAIT):
            given.append(step.value)
        if step.do is Do.LOAD:
            given.append(f'"{litmus.program.registers[step.register]}"')
        return f"    {functions[step.do]}({', '.join(map(str, given))});"

    offsets = list(offsets_of(litmus).values())
    ranks: dict[int, list[str]] = {}
    text = f"/* {litmus.name}: {litmus.doc} */\n"
    for thread in threads_of(litmus):
        name = thread.name.replace(".", "_")
        ranks.setdefault(thread.host, []).append(name)
        steps = "\n".join(map(line, thread.steps))
        text += f"static void *{name}(void *none) {{\n{steps}\n    return none;\n}}\n\n"
    each = ", ".join(f"{{{', '.join(names)}}}" for names in ranks.values())
    return f"{text}static rank *const ranks[][RANKS] = {{{each}}};\n"


def threads_of(litmus: Litmus) -> list[Straight]:
    return [thread for thread in litmus.program.threads if isinstance(thread, Straight)]


def offsets_of(litmus: Litmus) -> dict[str, int]:
    """Where words lie in the pool, by their names."""
    on_line = [0] * len(litmus.program.lines)
    offsets = {}
    for word in litmus.program.words:
        offsets[word.name] = word.line * LINE_BYTES + on_line[word.line] * WORD_BYTES
        on_line[word.line] += 1
    return offsets


def litmus_program(name: str, functions: Mapping[Do, str]) -> LitmusProgram:
    """Compile a litmus test, with these functions of litmus_steps.c in place of the usual ones."""
    litmus = read(LITMUS / f"{name}.yaml")
    assert not any(word.initial for word in litmus.program.words)
    names = litmus.program.registers
    source = Path(programs_folder()) / f"{name}-{'-'.join(functions.values())}.h"
    source.write_text(c_source(litmus, FUNCTIONS | dict(functions)))
    program = build("litmus_steps.c", f'-DTEST="{source}"')
    hosts = range(1 + max(thread.host for thread in litmus.program.threads))
    offsets = offsets_of(litmus)
    named = set(re.findall(r"[\w.]+", " ".join(one.condition.text for one in litmus.expectations)))
    words = [word for word in offsets if word in named]
    places = [f"{word}:{offsets[word]}" for word in words]
    commands = [Command((str(program), POOL, str(host)), host, 0) for host in hosts]
    commands.append(Command((str(program), POOL, "read", *places), len(hosts), 1))
    crashes = next((its.host for its in threads_of(litmus) if Do.CRASH in {step.do for step in its.steps}), None)
    lines = {word: offsets[word] // LINE_BYTES for word in words}
    return LitmusProgram(litmus, commands, [*names, *words], lines, crashes)


def allowed(its: LitmusProgram) -> tuple[set[Outcome], bool]:
    """Search the model: how executions end, and whether some never ends."""
    model = search_model(its.litmus, Budget(), "native")
    assert model.complete
    return {frozenset((name, end[name]) for name in its.judged) for end in model.outcomes()}, model.hangs


def reached(its: LitmusProgram, *, evictions: int) -> tuple[set[Outcome], bool]:
    """Search the program: how its executions end, and whether some never ends.

    Of a test with a crash those count whose host had come to it. Words are those of the pool at last: what is read
    before all has arrived does not count.
    """
    setting = ExecSetting(its.commands, parse_pools([f"{POOL}=2M"]), hosts=len(its.commands), check=False, every=True)
    reader = len(its.commands) - 1
    traces: list[Trace] = []

    def once(turns: Turns, sure: int, losses: Losses | None = None) -> tuple[RunResult, Trace]:
        result = run(setting, RunChoice(None, 0, turns, losses), servers)
        traces[:] = [read_record(result.record, result.turns, sure)]
        return result, traces[0]

    search: EverySearch[RunResult] = EverySearch(once, evictions=evictions)
    if its.crashes is not None:
        search = CrashSearch(once, its.crashes, 1, evictions=evictions)
    outcomes: set[Outcome] = set()
    hangs = False
    with ForkServers() as servers:
        for result in search.all():
            values = {name: int(value) for one in result.exits for name, value in _printed(one.output)}
            if its.crashes is not None and not (values.pop("crashes", 0) and crash_in(result.turns)):
                continue
            hangs |= result.ending is RunEnding.NO_PROGRESS
            if result.ending is RunEnding.ENDED and _all_had_arrived(traces[0], reader, its.read):
                outcomes.add(frozenset((name, values[name]) for name in its.judged))
    assert search.incomplete == 0
    return outcomes, hangs


def _printed(output: str) -> Iterator[tuple[str, str]]:
    for line in output.splitlines():
        name, _, value = line.partition("=")
        yield name, value


def _all_had_arrived(trace: Trace, reader: int, lines: Mapping[str, int]) -> bool:
    """Whether nothing arrives on these lines after the reader has fetched them, or never has."""
    for line in {(0, line) for line in lines.values()}:
        arrivals = [k for k, event in enumerate(trace.events) if line in event.arrived]
        fetches = [k for k, event in enumerate(trace.events) if line in event.fetched and event.host == reader]
        if arrivals and (max(arrivals) > min(fetches) or not trace.events[arrivals[-1]].number):
            return False
    return True
