"""What the explorer spends on protocols, before its reductions and now, beside SPIN: for docs/explorer.md.

    python -m studies.benchmarks.explorer                          every protocol, a minute for each search
    python -m studies.benchmarks.explorer bakery:3 --limit-s 300   this one, of three ranks
    python -m studies.benchmarks.explorer --before ../old          with an older checkout, built, as what was before

Each search runs in a process of its own; memory is what that process grew by. "Before" is, without --before, today's
search with ``ample`` off: it visits the states that the search visited before it reduced threads with branches.
SPIN searches the definition itself (studies/benchmarks/spin.py), of the lines that the protocol touches, with its own
partial order reduction, gcc -O2 -DSAFETY -DMEMLIM. A search that does not end in its time, or in 4 GiB, says how far
it came.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from cxlemu import userfile
from faults.explore import core
from faults.explore.result import Budget
from faults.machine.steps import Machine
from faults.verdict import Verdict
from studies.benchmarks.spin import promela

ROOT = Path(__file__).resolve().parents[2]
PROTOCOLS: tuple[str, ...] = (
    "once:2",
    "spsc_ring:2",
    "peterson:2",
    "bakery:2",
    "fast_mutex:2",
    "granted_lock:3",
    "granted_lock:4",
)
PROTOCOLS += ("peterson:3", "fast_mutex:3", "bakery:3")
STATES_MAX, MEMORY_MIB = 100_000_000, 4096


class Spent(NamedTuple):
    states: int
    seconds: float
    nbytes: int  # how much memory it took
    whole: bool  # whether it ended within its time and memory, with the verdict ok

    def __str__(self) -> str:
        return f"{'' if self.whole else '> '}{self.states:,} | {self.seconds:.2f} s | {self.nbytes / 1e6:.1f} MB"


def program_of(spec: str):  # type: ignore[no-untyped-def]
    """Load a protocol's program from ``NAME:RANKS``, its fixed form."""
    name, _, ranks = spec.partition(":")
    return userfile.load(f"{ROOT / 'examples' / 'protocols' / name}.py:fixed", "")[0].program(int(ranks))


def search(spec: str, ample: bool, limit_s: float) -> Spent:
    """Search every execution of a protocol, in this process."""
    machine, before = Machine(program_of(spec)), _memory()
    found = core.explore(machine, Budget(STATES_MAX, limit_s, MEMORY_MIB << 20), ample=ample)
    return Spent(found.states, found.seconds, _memory() - before, found.verdict == Verdict.OK)


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_a_process(spec: str, ample: bool, limit_s: float, checkout: Path = ROOT) -> Spent:
    """Search in a process of its own, so that memory is what that process grew by."""
    code = f"from studies.benchmarks.explorer import *; print(json.dumps(search({spec!r}, {ample}, {limit_s})))"
    if checkout != ROOT:  # it has no such file, and the protocols are those of today
        code = f"import runpy, sys; g = runpy.run_path({__file__!r}); sys.path.pop(); {code.partition('; ')[2]}"
        code = code.replace("search(", "g['search'](").replace("json", "g['json']")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(checkout), str(ROOT)])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=checkout, env=environment, check=True, capture_output=True, text=True)
    return Spent(*json.loads(done.stdout))


def spin(spec: str, limit_s: float) -> Spent:
    program = program_of(spec)
    core.explore(Machine(program), Budget(STATES_MAX, limit_s))  # which finds the nodes that the model is made of
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        (where / "model.pml").write_text(promela(program))
        compiler = ["gcc", "-O2", "-DSAFETY", f"-DMEMLIM={MEMORY_MIB}", "-o", "pan", "pan.c"]
        for command in (["spin", "-a", "model.pml"], compiler):
            subprocess.run(command, cwd=where, check=True, capture_output=True, timeout=600)
        command = ["timeout", "-s", "INT", str(limit_s), "./pan", "-m4000000", "-w22"]
        said = subprocess.run(command, cwd=where, check=False, capture_output=True, text=True).stdout
    numbers = [
        re.search(pattern, said)
        for pattern in (r"(\d+) states, stored", r"elapsed time ([\d.e+]+) s", r"([\d.]+)\s+total actual memory usage")
    ]
    if None in numbers or "errors: 0" not in said:
        raise SystemExit(f"SPIN on {spec}:\n{said}")
    states, seconds, megabytes = (float(number[1]) for number in numbers if number)
    whole = not any(word in said for word in ("nterrupted", "too small", "memory limit", "out of memory"))
    return Spent(int(states), seconds, int(megabytes * 1e6), whole)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocols", nargs="*", default=list(PROTOCOLS), metavar="NAME:RANKS")
    parser.add_argument("--limit-s", type=float, default=60.0)
    parser.add_argument("--before", type=Path, default=ROOT)
    chosen = parser.parse_args()
    columns = " | ".join(f"{who}: states | time | memory" for who in ("before", "now", "SPIN"))
    print(f"| protocol, hosts | {columns} |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for spec in chosen.protocols:
        before = in_a_process(spec, chosen.before != ROOT, chosen.limit_s, chosen.before.resolve())
        now = in_a_process(spec, True, chosen.limit_s)
        name, _, ranks = spec.partition(":")
        print(f"| `{name}`, {ranks} | {before} | {now} | {spin(spec, chosen.limit_s)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
