"""Random small programs, searched by ``cxlemu exec --every`` with its reduction and without: equal verdicts.

python -m tests.helpers.every_programs --programs 300
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from faults.programs.commands import parse_coherent, parse_commands, parse_pools
from faults.programs.every.events import Trace
from faults.programs.every.record import read
from faults.programs.every.search import EverySearch, Turns
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult
from faults.programs.run import run
from faults.programs.servers import ForkServers
from tests.helpers.pool_programs import build

POOL = "/dev/shm/every"
MOST = 150  # executions of an unreduced search; a program that takes more is made shorter
OPERATIONS = "ssgggllllifxknwz"  # as litmus.c has them
FLUSHES = "ssgllllIIfx"  # of which some leave a line where it is up to a fence
Verdicts = set[tuple[str, object, bool]]


def generated(seed: int, operations: str = OPERATIONS) -> str:
    """The steps of each host of a program: two of them, or three in every fourth program."""
    draw = random.Random(seed)

    def step() -> str:
        operation, at, value = draw.choice(operations), draw.choice((0, 0, 8, 64, 64)), draw.choice((1, 1, 2))
        return "x" if operation == "x" else f"{operation}:{at}" + (f":{value}" if operation in "sgnw" else "")

    counts = (1, 1, 1) if seed % 4 == 3 else draw.choice(((1, 2), (2, 1), (2, 2), (1, 3), (3, 1)))
    return " : ".join(" ".join(_on_lines_of_its_own([step() for _ in range(count)])) for count in counts)


def _on_lines_of_its_own(steps: list[str]) -> list[str]:
    """Store past the cache only to lines that the host does not touch otherwise: there no search moves the arrival."""
    line = {step: int(step.split(":")[1]) // 64 for step in steps if step != "x"}
    touched = {at for step, at in line.items() if step[0] != "n"}
    return [f"s{step[1:]}" if step[0] == "n" and line[step] in touched else step for step in steps]


def shortened(words: str) -> str:
    """Leave out the last step of the host that has most."""
    hosts = [steps.split() for steps in words.split(" : ")]
    max(hosts, key=len).pop()
    return " : ".join(map(" ".join, hosts))


def setting(litmus: Path, words: str, *, check: bool = False, coherent: bool = False) -> ExecSetting:
    hosts = words.split(" : ")
    commands = parse_commands(" : ".join(f"{litmus} {POOL} {steps}" for steps in hosts).split(), len(hosts))
    pools = parse_pools([f"{POOL}=2M"])
    ranges = parse_coherent(["all"] if coherent else [], pools)
    return ExecSetting(commands, pools, hosts=len(hosts), check=check, every=True, coherent=ranges)


def seen(result: RunResult) -> str:
    loads = [one.output.split() for one in sorted(result.exits, key=lambda one: one.command)]
    return "".join(load.partition("=")[2] for its in loads for load in its)


def verdicts(
    setting: ExecSetting,
    *,
    most: int | None = None,
    preemptions: int | None = None,
    evictions: int = 0,
    reduced: bool = True,
) -> tuple[Verdicts, int]:
    """Return how executions end, and how many there are; or runs, where those are limited to about ``most``."""

    def once(turns: Turns, sure: int) -> tuple[RunResult, Trace]:
        result = run(setting, RunChoice(None, 0, turns), servers)
        return result, read(result.record, result.turns, sure, setting.coherent)

    search = EverySearch(once, preemptions=preemptions, evictions=evictions, reduced=reduced)
    found: Verdicts = set()
    with ForkServers() as servers:
        for result in search.all():
            # Kinds of findings are not compared: of two stores in no order, the later one is called dirty at exit.
            if result.ending is not RunEnding.REPEATS:  # another run shows what comes then
                found.add((seen(result), result.ending, bool(result.findings)))
            if most is not None and search.executions + search.repeated > most:
                break
    assert search.strayed == search.incomplete == 0
    return found, search.executions + (0 if most is None else search.repeated)


def compared(
    litmus: Path, seed: int, preemptions: int | None = None, operations: str = OPERATIONS
) -> tuple[int, int, int, int]:
    """A program's hosts, its executions with the reduction and without, and its seed; the verdicts are the same."""
    words = generated(seed, operations)
    while True:
        its = setting(litmus, words, check=True)
        whole, count = verdicts(its, preemptions=preemptions, reduced=False, most=MOST)
        if count <= MOST:
            break
        words = shortened(words)
    reduced, fewer = verdicts(its, preemptions=preemptions)
    assert reduced == whole, f"{words}: {reduced} with the reduction, {whole} without"
    return len(its.commands), fewer, count, seed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--workers", type=int, default=1, help="programs at a time")
    its = parser.parse_args(arguments)
    done: list[tuple[int, int, int, int]] = []
    wrong = 0
    with ProcessPoolExecutor(its.workers) as pool:
        litmus = build("litmus.c")
        for future in as_completed(
            pool.submit(compared, litmus, its.first + k, None, OPERATIONS if k % 3 else FLUSHES)
            for k in range(its.programs)
        ):
            if isinstance(error := future.exception(), AssertionError):
                print(error, flush=True)
                wrong += 1
            else:
                done.append(future.result())
                hosts, reduced, whole, seed = done[-1]
                print(f"{seed}: {hosts} hosts, {reduced} and {whole} executions", file=sys.stderr, flush=True)
    each = ", ".join(f"{count} of {n} hosts" for n, count in sorted(Counter(n for n, *_ in done).items()))
    print(f"equal verdicts: {len(done)} programs ({each}), {wrong} differ")
    print(f"executions: {sum(its[1] for its in done)} with the reduction, {sum(its[2] for its in done)} without")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
