"""Outcomes of litmus tests beside herd7 (Alglave, Maranget, Tautschnig 2014), for docs/explorer.md.

    PATH=/path/to/herd7:$PATH python -m studies.benchmarks.herd

herd7 knows coherent memory: it is given each test for x86, with an MFENCE behind each store. Ours has a flush and a
fence behind each store, and an invalidate before each load, which must make a pool as strong: the outcomes have to be
equal.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from faults.explore.result import Budget
from faults.litmus.language import parse
from faults.litmus.run import run

Outcomes = frozenset[tuple[int, ...]]

# A thread's accesses: a word that is loaded, or a store of a value to one.
TESTS: dict[str, list[str]] = {
    "MP": ["x=1 y=1", "y x"],
    "SB": ["x=1 y", "y=1 x"],
    "R": ["x=1 y=1", "y=2 x"],
    "2+2W": ["x=1 y=2 y", "y=1 x=2 x"],
    "WRC": ["x=1", "x y=1", "y x"],
    "IRIW": ["x=1", "y=1", "x y", "y x"],
    "SB of 4": ["x=1 y", "y=1 z", "z=1 w", "w=1 x"],
}


def _loads(threads: list[str]) -> list[tuple[int, int]]:
    """Return the threads and the places in them that load, in order: an outcome has a value for each."""
    return [(k, n) for k, thread in enumerate(threads) for n, its in enumerate(thread.split()) if "=" not in its]


def ours(threads: list[str]) -> tuple[Outcomes, float]:
    """Return every outcome on a pool, and the seconds of the search."""
    lines = ["name: test", "hosts:"]
    for k, thread in enumerate(threads):
        steps = []
        for n, its in enumerate(thread.split()):
            word, _, value = its.partition("=")
            steps += [f"store {word} {value}", f"flush {word}", "fence"] if value else []
            steps += [] if value else [f"invalidate {word}", f"load {word} r{n}"]
        lines.append(f"  T{k}: [{', '.join(steps)}]")
    k, n = _loads(threads)[0]
    litmus = parse("\n".join([*lines, f"allowed: [T{k}.r{n} == 0]"]).encode(), "test")
    begin = time.perf_counter()
    found = run(litmus, Budget(), "native")
    seconds = time.perf_counter() - begin
    return frozenset(tuple(its[f"T{k}.r{n}"] for k, n in _loads(threads)) for its in found.outcomes()), seconds


def herd7(threads: list[str], program: str) -> tuple[Outcomes, float]:
    """Return every outcome that herd7 allows on x86, and its seconds."""
    columns = []
    for thread in threads:
        column = []
        for n, its in enumerate(thread.split()):
            word, _, value = its.partition("=")
            column += [f"MOV [{word}],${value}", "MFENCE"] if value else [f"MOV {('EAX', 'EBX', 'ECX')[n]},[{word}]"]
        columns.append(column)
    rows = [[column[n] if n < len(column) else "" for column in columns] for n in range(max(map(len, columns)))]
    registers = [f"{k}:{('EAX', 'EBX', 'ECX')[n]}" for k, n in _loads(threads)]
    heads = [f"P{k}" for k in range(len(threads))]
    text = "X86 test\n{ }\n" + "".join(f" {' | '.join(row)} ;\n" for row in [heads, *rows])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "test.litmus")
        file.write_text(text + f"locations [{' '.join(f'{its};' for its in registers)}]\n" + "forall true\n")
        begin = time.perf_counter()
        said = subprocess.run([program, str(file)], capture_output=True, text=True, timeout=600, check=True).stdout
        seconds = time.perf_counter() - begin
    states = [dict(re.findall(r"(\d+:\w+)=(\d+);", line)) for line in said.splitlines()]
    return frozenset(tuple(int(its[name]) for name in registers) for its in states if its), seconds


def main() -> int:
    program = shutil.which("herd7")
    if not program:
        print("herd7 is not on the PATH: nothing was compared", file=sys.stderr)
        return 3
    differ = 0
    print("| test | outcomes | time | herd7: outcomes | time |\n|---|---|---|---|---|")
    for name, threads in TESTS.items():
        (mine, seconds), (theirs, other_seconds) = ours(threads), herd7(threads, program)
        differ += mine != theirs
        print(f"| {name} | {len(mine)} | {seconds * 1e3:.1f} ms | {len(theirs)} | {other_seconds * 1e3:.0f} ms |")
    print(f"{differ} tests differ" if differ else "no test differs")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
