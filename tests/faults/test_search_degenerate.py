"""The search in C on the smallest and the largest programs there can be: it says what the definition says.

Nothing at all, threads without steps, no lines, one rank, and as much of everything as is allowed, and one more.
"""

from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path

import pytest

from cxlemu.errors import ArgumentError
from faults.explore import core, search
from faults.explore.result import Budget
from faults.machine.program import Do, MachineProgram, Step, Straight, Thread, Word
from faults.machine.steps import Machine, replay
from faults.verdict import Verdict
from tests.helpers.commands import cxlemu
from tests.helpers.tables import with_rows

THREADS, HOSTS, LINES, WORDS_IN_A_LINE, REGISTERS, EVENTS, VALUES, STEPS = 32, 8, 1024, 8, 64, 1024, 256, 32_751
REDUCTIONS = [dict(zip(("lazy", "checked_reads", "ample"), on, strict=True)) for on in product((True, False), repeat=3)]
SMALL = Budget(states=2 * STEPS, seconds=60)
CRASH, FENCE, FAIL = Step(Do.CRASH), Step(Do.FENCE), Step(Do.FAIL)


def thread(steps: Iterable[Step], rank: int = 0, *, is_known: bool = True) -> Thread:
    """A thread whose steps are known beforehand, or which the search learns one by one, as those of a generator."""
    return Straight(rank, rank, f"rank {rank}", (*[FENCE] * (not is_known), *steps), first=int(not is_known))


def program(
    threads: Iterable[Thread], words: Iterable[Word] = (), lines: int = 0, registers: int = 0
) -> MachineProgram:
    names = (tuple(f"{kind}{k}" for k in range(count)) for kind, count in (("l", lines), ("r", registers)))
    return MachineProgram(tuple(threads), tuple(words), *names)


def record(event: int) -> Step:
    return Step(Do.RECORD, event)


def wait_for(event: int) -> Step:
    return Step(Do.AWAIT, event)


WITHOUT_LINES: dict[str, list[list[Step]]] = {
    "no threads": [],
    "a thread without steps": [[]],
    "threads without steps": [[], [], []],
    "a fence": [[FENCE]],
    "a crash": [[CRASH]],
    "a crash of one of two": [[FENCE, CRASH, FENCE], [FENCE]],
    "a failure": [[FAIL]],
    "an event": [[record(0)]],
    "an event that another awaits": [[record(0)], [wait_for(0)]],
    "an event that nobody records": [[FENCE], [wait_for(0)]],
    "threads that await each other": [[wait_for(0), record(1)], [wait_for(1), record(0)]],
    "events and fences": [[record(0), FENCE, wait_for(1)], [], [wait_for(0), FENCE, record(1)]],
}


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("lines", [0, 1])
@pytest.mark.parametrize("name", WITHOUT_LINES)
def test_a_program_that_touches_no_line(name: str, lines: int, is_known: bool) -> None:
    threads = (thread(steps, rank, is_known=is_known) for rank, steps in enumerate(WITHOUT_LINES[name]))
    machine = Machine(program(threads, [Word("w", 0)] * lines, lines))
    definition = search.explore(machine)
    for reductions in REDUCTIONS:
        found = core.explore(machine, SMALL, **reductions)
        assert (found.verdict, found.finding, set(found.outcomes)) == (
            definition.verdict,
            definition.finding,
            set(definition.outcomes),
        )
        for outcome, schedule in found.outcomes.items():
            assert search.outcome(replay(machine, schedule)[-1]) == outcome


def ok(machine_program: MachineProgram) -> bool:
    found = core.explore(Machine(machine_program), SMALL)
    return found.verdict is Verdict.OK and len(found.outcomes) == 1


def of_threads(count: int) -> MachineProgram:
    """As many on every host; the first one goes on when all others have begun."""
    others = [Straight(t % HOSTS, t % HOSTS, f"thread {t}", (record(t),)) for t in range(1, count)]
    return program([Straight(0, 0, "thread 0", tuple(map(wait_for, range(1, count)))), *others])


def of_ranks(count: int) -> MachineProgram:
    return program(thread([FENCE], rank) for rank in range(count))


def of_lines(count: int) -> MachineProgram:
    words = (Word(f"w{k}", k) for k in range(count))
    return program([thread(Step(Do.SIGNAL, k, 1) for k in range(count))], words, count)


def of_words(count: int) -> MachineProgram:
    return program([thread([Step(Do.SIGNAL, count - 1, 1)])], (Word(f"w{k}", 0) for k in range(count)), 1)


def of_registers(count: int) -> MachineProgram:
    loads = (Step(Do.LOAD, 0, register=k) for k in range(count))
    return program([thread(loads)], [Word("w", 0)], 1, count)


def of_events(count: int) -> MachineProgram:
    return program([thread([*map(record, range(count))]), thread([*map(wait_for, range(count))], 1)])


def of_steps(count: int) -> MachineProgram:
    return program([thread([FENCE] * count)])


@with_rows(
    *((of_threads, THREADS), (of_ranks, HOSTS), (of_lines, LINES), (of_words, WORDS_IN_A_LINE)),
    *((of_registers, REGISTERS), (of_events, EVENTS), (of_steps, STEPS)),
)
def test_as_much_as_is_allowed_is_searched_and_one_more_refused(of: Callable[[int], MachineProgram], most: int) -> None:
    assert ok(of(most))
    with pytest.raises(ArgumentError, match="this program cannot be searched"):
        core.explore(Machine(of(most + 1)))


@pytest.mark.parametrize("is_known", [True, False])
def test_as_many_values_as_are_allowed(is_known: bool) -> None:
    """0 counts, even if nothing names it; one value more is beyond the search, which says so."""
    names_one = [Step(Do.FENCE, value=1)]
    words = [Word(f"w{k}", k // WORDS_IN_A_LINE, initial=1 + k) for k in range(VALUES + 1)]
    lines = VALUES // WORDS_IN_A_LINE + 1
    assert ok(program([thread(names_one, is_known=is_known)], words[: VALUES - 1], lines))
    found = core.explore(Machine(program([thread(names_one, is_known=is_known)], words[:VALUES], lines)))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, "there are more than 256 different values")
    with pytest.raises(ArgumentError, match="at most 256 different values"):
        core.explore(Machine(program([thread(names_one, is_known=is_known)], words, lines)))


# -- the same by its commands

NOTHING_TRAVELS = """
from collectives import Builder, algorithm

@algorithm("gather")
def lazy(b: Builder) -> None:
    if b.is_root:
        b.copy(b.output(), b.input(), b.nbytes)

@algorithm("barrier")
def nothing(b: Builder) -> None:
    pass
"""
ONLY_EVENTS = "name: events\nhosts:\n  A: [record e]\n  B: [await e]\nhangs: forbidden\n"


@pytest.mark.parametrize("engine", ["native", "reference"])
@with_rows(
    ("all_gather", ["-n", "1", "--calls", "2"], 3),
    ("all_reduce", ["-n", "2", "--minbytes", "0", "--calls", "2"], 3),
    ("barrier", ["-n", "1", "--calls", "2"], 3),
    ("own.py:lazy", ["-n", "1", "--calls", "2"], 3),
    ("own.py:lazy", ["-n", "2", "--calls", "2"], 1),
    ("own.py:nothing", ["-n", "1", "--calls", "3"], 3),
    ("own.py:nothing", ["-n", "2"], 1),
)
def test_calls_in_which_little_or_nothing_travels_are_judged(
    program: str, more: list[str], exit_code: int, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(NOTHING_TRAVELS)
    monkeypatch.chdir(tmp_path)
    done = cxlemu("explore", program, *more, "--engine", engine, code=exit_code)
    assert ("ok, in every execution" in done.output) == (exit_code == 0)
    assert ("nothing was judged" in done.output) == (exit_code == 3)


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_a_litmus_test_of_events_alone_is_judged(engine: str, tmp_path: Path) -> None:
    (tmp_path / "events.yaml").write_text(ONLY_EVENTS)
    done = cxlemu("litmus", tmp_path / "events.yaml", "--engine", engine, code=0)
    assert "1 as expected, 0 not, 0 unknown" in done.output
