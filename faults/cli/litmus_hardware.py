"""The work of ``cxlemu litmus --backend``: tests as machine instructions, and what they ended with."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from collectives.cli.run_memory import memory_of, real_cards, topology_for
from cxlemu._native import lines_instructions
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.output import STDOUT, write_json
from cxlemu.cli.progress import bar
from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.units import counted
from cxlemu.world import from_environment, launch
from cxlemu.world.environment import find_place
from faults.cli.litmus_histogram import histogram_lines, row, summary_line
from faults.explore.check import ENGINES
from faults.explore.result import Budget
from faults.litmus import run as search
from faults.litmus.hardware import HardwareSetting, run
from faults.litmus.histogram import Histogram, LitmusTask
from faults.litmus.language import Litmus
from faults.litmus.lowering import obstacle
from faults.verdict import Verdict

SEARCH = Budget(states=200_000, seconds=10.0)  # for the outcomes that the model has of each test


def run_on_hardware(
    ctx: click.Context,
    tests: list[Litmus],
    verbose: bool,
    backend: str,
    devices: tuple[str, ...],
    pool: str | None,
    ranks: int | None,
    how: str,
    rounds: int,
    seed: int,
    budget_s: float,
    deadline_s: float,
    json_file: Path | None,
) -> None:
    """Run litmus tests on a backend, and print and write what they ended with.

    The command exits with the code that its help tells.

    Args:
        ctx: The command's context.
        tests: The tests. Every other argument is the command's parameter of the same name.

    Raises:
        ArgumentError: The flags do not fit each other, or no test can be run.
    """
    memory, _ = memory_of(backend, None, devices, pool, None)
    if memory.backend.emulates_caches:
        raise ArgumentError(
            f"--backend {backend} is software: leave it out, and every execution is searched; "
            "shm and dax run tests as machine instructions"
        )
    place = find_place(os.environ, one_machine=not memory.backend.on_devices) if how == "env" else None
    if place is not None and ranks not in (None, place.ranks):
        raise ArgumentError(f"--ranks is {ranks}, but {place.launcher} started {place.ranks}: leave it out")
    takes = [len(test.program.threads) for test in tests if not obstacle(test.program)]
    if not takes:
        raise ArgumentError(f"hardware can run none of these tests: {obstacle(tests[0].program)}")
    there = place.ranks if place is not None else ranks or max(takes)
    if there < min(takes):
        take = "1 rank takes" if there == 1 else f"{there} ranks take"
        raise ArgumentError(f"{take} part, and the smallest of these tests takes {min(takes)}")
    prints = place is None or place.rank == 0
    world: dict[str, Any] = {
        "topology": topology_for(None, memory, None, may_be_smaller=True),
        "memory": memory,
        "deadline_s": deadline_s,
        "heap_bytes": "cards",
    }
    setting = HardwareSetting(rounds, seed, budget_s)
    report = _Report(len(tests), verbose or len(tests) == 1, silent=not prints, quiet=json_file == STDOUT)
    report.header(memory, there, setting)
    tasks = [LitmusTask(test, _possible(test) if prints else None) for test in tests]
    again = partial(run, tasks=tasks, setting=setting)
    with report:
        if how == "env":
            with from_environment(on_message=report, **world) as context:
                wrong = again(context)
        else:
            wrong = launch(again, ranks=there, how=how, on_message=report, **world)[0]  # type: ignore[arg-type]
    if prints:
        report.footer()
        about = {"backend": backend, "ranks": there, "seed": seed, "instructions": lines_instructions()}
        verdict = (Verdict.VIOLATION if wrong else Verdict.OK).value
        write_json(json_file, {"verdict": verdict, **about, "rows": [row(each) for each in report.seen]})
    ctx.exit(1 if wrong else 0)


def _possible(test: Litmus) -> frozenset[tuple[int, ...]] | None:
    """Search the outcomes that the abstract machine has; None if the budget does not suffice, or nothing will run."""
    if obstacle(test.program):
        return None
    found = search.run(test, SEARCH, ENGINES[0])
    return frozenset(tuple(test.values(end).values()) for end in found.exploration.outcomes) if found.complete else None


class _Report:
    """Prints each test's histogram as it comes, where this process prints."""

    def __init__(self, tests: int, verbose: bool, *, silent: bool, quiet: bool) -> None:
        self.seen: list[Histogram] = []
        self._verbose, self._silent = verbose, silent or quiet
        self._out = console()
        self._began = time.monotonic()
        self._progress = bar(self._out, silent=self._silent)
        self._bar = self._progress.add_task("litmus", total=tests)

    def __enter__(self) -> None:
        self._progress.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, message: object) -> None:
        if not isinstance(message, Histogram):
            if not self._silent:
                print_wrapped(self._out, f"# {message}", indent="# ")
            return
        self.seen.append(message)
        self._progress.advance(self._bar)
        if self._silent:
            return
        self._out.print(summary_line(message))
        if (self._verbose or message.verdict == Verdict.VIOLATION) and not message.skipped:
            for line in histogram_lines(message):
                self._out.print(line)

    def header(self, memory: MemorySpec, ranks: int, setting: HardwareSetting) -> None:
        if self._silent:
            return
        cards = real_cards(memory)
        with_what = f"{counted(ranks, 'rank')}, {lines_instructions()}; seed {setting.seed}"
        print_wrapped(self._out, f"# {memory.backend.summary}, {with_what}", indent="# ")
        if cards:
            print_wrapped(self._out, f"# cards: {cards}", indent="# ")

    def footer(self) -> None:
        if self._silent:
            return
        ran = [each for each in self.seen if not each.skipped]
        wrong = sum(each.verdict == Verdict.VIOLATION for each in ran)
        allowed = sum(e.allowed for each in ran for e in each.task.litmus.expectations)
        unseen = sum(len(each.unseen) for each in ran)
        skipped = len(self.seen) - len(ran)
        ended = f"{wrong} ended as none may, {len(ran) - wrong} did not, {skipped} skipped"
        seen = f"{allowed - unseen} of {counted(allowed, 'allowed outcome')} seen"
        rounds = counted(sum(each.rounds for each in ran), "round")
        seconds = time.monotonic() - self._began
        print_wrapped(self._out, f"{counted(len(self.seen), 'test')}: {ended}; {seen} in {rounds}; {seconds:.1f} s")
