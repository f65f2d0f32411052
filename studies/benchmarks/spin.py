"""Programs in Promela, for SPIN (Holzmann, The SPIN Model Checker, 2003): explorer.py times the searches.

The Promela model is written from the program, one d_step per move, nature's steps included, so that with nothing
reduced both searches find the same states, and the same transitions but for one: SPIN counts the arrival at the first
state. `message_passing` is the program of the test: store, flush, fence, signal; wait, invalidate, load.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from faults.explore import core
from faults.explore.automaton import RankThread
from faults.explore.result import Budget
from faults.machine.program import Do, MachineProgram, Step, Straight, Thread, Word
from faults.machine.steps import Machine

HASH_TABLE_BITS = 23
DEADLINE_S = 600


class Searched(NamedTuple):
    """One complete search."""

    states: int
    transitions: int


def message_passing(chunks: int) -> MachineProgram:
    """Make the program that is searched: one line for each chunk, and one for the doorbell, which counts them."""
    writer: list[Step] = []
    reader: list[Step] = []
    bell = chunks
    for chunk in range(chunks):
        writer += [Step(Do.STORE, chunk, 1), Step(Do.FLUSH, chunk), Step(Do.FENCE), Step(Do.SIGNAL, bell, chunk + 1)]
        reader += [Step(Do.WAIT, bell, chunk + 1), Step(Do.INVALIDATE, chunk), Step(Do.LOAD, chunk, expect=1)]
    names = (*(f"chunk {chunk}" for chunk in range(chunks)), "doorbell")
    threads = (Straight(0, 0, "writer", tuple(writer)), Straight(1, 1, "reader", tuple(reader)))
    return MachineProgram(threads, tuple(Word(name, line) for line, name in enumerate(names)), names)


# -- the program in Promela: lines of one word, a thread a host


def promela(program: MachineProgram) -> str:
    """Write a program in Promela, whose lines have one word each, and whose hosts one thread each."""
    program = of_touched_lines(program)
    hosts, lines = program.hosts, len(program.lines)
    cells = hosts * lines
    options = [
        *_threads(program),
        *(move for h in range(hosts) for line in range(lines) for move in _nature(h, line, lines)),
    ]
    return "\n".join(
        [
            f"byte pool[{lines}], presence[{cells}], data[{cells}], posted[{cells}], first[{cells}], second[{cells}];",
            f"bool dropping[{cells}], begun[{hosts}];",
            f"short pc[{hosts}];",
            "inline post(c) {",
            "  if :: posted[c] == 0 -> first[c] = data[c] :: else -> assert(posted[c] == 1); second[c] = data[c] fi;",
            "  posted[c]++; presence[c] = 1",
            "}",
            "inline flush(c) {",
            "  if :: presence[c] == 2 -> post(c) :: else fi;",
            "  if :: presence[c] != 0 -> dropping[c] = 1 :: else fi",
            "}",
            "inline fetch(c, l) {",
            "  if",
            "  :: presence[c] == 0 ->",
            "     if :: posted[c] == 2 -> data[c] = second[c] :: posted[c] == 1 -> data[c] = first[c]",
            "        :: else -> data[c] = pool[l] fi;",
            "     presence[c] = 1",
            "  :: else",
            "  fi",
            "}",
            "inline absent(c) { presence[c] = 0; data[c] = 0; dropping[c] = 0 }",
            "active proctype moves() {",
            "end: do",
            *(f"  :: d_step {{ {guard} -> {effect} }}" for guard, effect in options),
            "  od",
            "}",
        ]
    )


def of_touched_lines(program: MachineProgram) -> MachineProgram:
    """Leave out the lines that no step names: what caches do with them only multiplies states.

    Lines have one word each.
    """
    assert [word.line for word in program.words] == list(range(len(program.lines)))
    each = [nodes(thread) for thread in program.threads]
    used = sorted({step.place for steps in each for step, _ in steps.values() if step.place >= 0})
    threads = []
    for thread, steps in zip(program.threads, each, strict=True):
        moved = {
            k: (step._replace(place=used.index(step.place)) if step.place >= 0 else step, nexts)
            for k, (step, nexts) in steps.items()
        }
        threads.append(Known(thread.host, thread.rank, thread.name, thread.first, moved))
    words = tuple(program.words[line]._replace(line=k) for k, line in enumerate(used))
    return MachineProgram(tuple(threads), words, tuple(program.lines[line] for line in used))


@dataclass(frozen=True)
class Known:
    """A thread as far as a model of it goes: each node's step, and the nodes that follow by what its load sees."""

    host: int
    rank: int
    name: str
    first: int
    nodes: dict[int, tuple[Step, dict[int, int]]]

    def step(self, node: int) -> Step | None:
        return self.nodes[node][0] if node in self.nodes else None

    def next(self, node: int, value: int) -> int:
        """Return the node that follows when a load sees ``value``, which is 0 where nothing is loaded."""
        return self.nodes[node][1][value]

    def failure(self, node: int) -> str:
        return ""


def _threads(program: MachineProgram) -> Iterator[tuple[str, str]]:
    lines = len(program.lines)
    for h, thread in enumerate(program.threads):
        for k, (step, nexts) in nodes(thread).items():
            here, on = f"pc[{h}] == {k}", f"pc[{h}] = {nexts.get(0, k)}"
            if step.do == Do.FAIL:
                yield here, "assert(false)"
                continue
            line, cell = step.place, h * lines + step.place
            fenced = f"posted[{cell}] == 0 && !dropping[{cell}]"
            pending = f"(posted[{cell}] == 2 -> second[{cell}] : first[{cell}])"
            absent = f"(posted[{cell}] == 0 -> pool[{line}] : {pending})"
            shows = f"(presence[{cell}] -> data[{cell}] : {absent})"
            store = f"fetch({cell}, {line}); data[{cell}] = {step.value}; presence[{cell}] = 2"
            match step.do:
                case Do.STORE:
                    yield here, f"{store}; {on}"
                case Do.SIGNAL:
                    yield here, f"{store}; flush({cell}); {on}"
                case Do.FLUSH:
                    yield here, f"flush({cell}); {on}"
                case Do.FENCE:
                    cells = range(h * lines, (h + 1) * lines)
                    yield " && ".join([here, *(f"posted[{c}] == 0 && !dropping[{c}]" for c in cells)]), on
                case Do.LOAD if step.expect >= 0:
                    yield here, f"assert({shows} == {step.expect}); fetch({cell}, {line}); {on}"
                case Do.LOAD:
                    for value, after in nexts.items():
                        yield f"{here} && {shows} == {value}", f"fetch({cell}, {line}); pc[{h}] = {after}"
                case Do.INVALIDATE | Do.WAIT:
                    yield f"{here} && !begun[{h}]", f"flush({cell}); begun[{h}] = 1"
                    if step.do == Do.INVALIDATE:
                        yield f"{here} && begun[{h}] && {fenced}", f"begun[{h}] = 0; {on}"
                        continue
                    looks = f"{here} && begun[{h}] && {fenced}"
                    yield f"{looks} && {shows} >= {step.value}", f"fetch({cell}, {line}); begun[{h}] = 0; {on}"
                    yield f"{looks} && presence[{cell}] && data[{cell}] < {step.value}", f"flush({cell})"


def nodes(thread: Thread) -> dict[int, tuple[Step, dict[int, int]]]:
    """List each node's step, and the nodes that follow by what its load sees; 0 where nothing is loaded.

    For a protocol these are the nodes that a search has reached, with every value that it saw there: all there are, if
    the search was complete.
    """
    match thread:
        case Known():
            return thread.nodes
        case RankThread():
            return thread.reached()
        case Straight():
            return {k: (step, {0: k + 1}) for k, step in enumerate(thread.steps)}
    raise TypeError(thread)


def _nature(host: int, line: int, lines: int) -> Iterator[tuple[str, str]]:
    c = host * lines + line
    leaves = f"first[{c}] = second[{c}]; second[{c}] = 0; posted[{c}]--"
    yield f"posted[{c}] > 0", f"pool[{line}] = first[{c}]; {leaves}"
    yield f"presence[{c}] && dropping[{c}]", f"if :: presence[{c}] == 2 -> post({c}) :: else fi; absent({c})"
    yield f"presence[{c}] == 2 && posted[{c}] == 0", f"pool[{line}] = data[{c}]; absent({c})"
    yield f"presence[{c}] == 1", f"absent({c})"
    yield f"presence[{c}] == 0", f"fetch({c}, {line})"


# -- the two searches


def ours(program: MachineProgram) -> Searched:
    found = core.explore(Machine(program), Budget(50_000_000, 600.0), lazy=False, checked_reads=False, ample=False)
    assert found.verdict.exit_code == 0, found
    return Searched(found.states, found.transitions)


def compile_spin(program: MachineProgram, where: Path) -> None:
    (where / "model.pml").write_text(promela(program))
    for command in (["spin", "-a", "model.pml"], ["gcc", "-O2", "-DSAFETY", "-o", "pan", "pan.c"]):
        subprocess.run(command, cwd=where, check=True, capture_output=True, timeout=DEADLINE_S)


def spin(where: Path) -> Searched:
    command = ["./pan", f"-w{HASH_TABLE_BITS}", "-m2000000"]
    done = subprocess.run(command, cwd=where, check=True, capture_output=True, text=True, timeout=DEADLINE_S)
    text = done.stdout
    if "errors: 0" not in text:
        raise SystemExit(f"SPIN finds an error, or reached a limit:\n{text}")

    def number(pattern: str) -> int:
        match = re.search(pattern, text)
        assert match, text
        return int(match[1])

    return Searched(number(r"(\d+) states, stored"), number(r"(\d+) transitions"))
