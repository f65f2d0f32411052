"""The work of ``cxlemu litmus --backend``: tests as machine instructions, and what they ended with."""

import os
from functools import partial
from typing import Any

import click

from collectives.cli.run_memory import memory_of, real_cards, topology_for
from cxlemu._native import lines_instructions
from cxlemu.capacity.lease import lease_for
from cxlemu.cli.console import print_wrapped
from cxlemu.cli.output import STDOUT, write_json
from cxlemu.cli.report import LiveReport
from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.units import counted
from cxlemu.world import from_environment, launch
from cxlemu.world.environment import find_place
from faults.cli.litmus import LitmusFlags
from faults.cli.litmus_histogram import histogram_lines, row, summary_line
from faults.explore.exhaustive import ENGINES
from faults.explore.result import Budget
from faults.litmus import run as search
from faults.litmus.hardware import HardwareSetting, RankMachines, run
from faults.litmus.histogram import Histogram, LitmusTask
from faults.litmus.language import Litmus
from faults.litmus.lowering import obstacle
from faults.verdict import Verdict

SEARCH = Budget(states=200_000, seconds=10.0)  # for the outcomes that the model has of each test


def run_on_hardware(ctx: click.Context, asked: LitmusFlags, tests: list[Litmus]) -> None:
    memory, pool_name = memory_of(str(asked.backend), None, asked.devices, asked.pool, asked.tenant)
    if memory.backend.emulates_caches:
        raise ArgumentError(
            f"--backend {asked.backend} is software: leave it out, and every execution is searched; "
            "shm and dax run tests as machine instructions"
        )
    place = find_place(os.environ, one_machine=not memory.backend.on_devices) if asked.how == "env" else None
    if place is not None and asked.ranks not in (None, place.ranks):
        raise ArgumentError(f"--ranks is {asked.ranks}, but {place.launcher} started {place.ranks}: leave it out")
    takes = [len(test.program.threads) for test in tests if not obstacle(test.program)]
    if not takes:
        raise ArgumentError(f"hardware can run none of these tests: {obstacle(tests[0].program)}")
    there = place.ranks if place is not None else asked.ranks or max(takes)
    if there < min(takes):
        take = "1 rank takes" if there == 1 else f"{there} ranks take"
        raise ArgumentError(f"{take} part, and the smallest of these tests takes {min(takes)}")
    prints = place is None or place.rank == 0
    lease = None if asked.tenant is None else lease_for(asked.tenant, memory, pool_name, wait_s=asked.deadline_s)
    world: dict[str, Any] = {
        "topology": topology_for(None, memory, lease, may_be_smaller=True),
        "memory": memory,
        "deadline_s": asked.deadline_s,
        "tenant": asked.tenant,
        "pool_name": pool_name,
        "heap_bytes": "cards",
    }
    setting = HardwareSetting(asked.rounds, asked.seed, asked.budget_s)
    report = _Report(len(tests), asked.verbose or len(tests) == 1, silent=not prints, quiet=asked.json_file == STDOUT)
    report.header(memory, there, setting)
    tasks = [LitmusTask(test, _possible(test) if prints else None) for test in tests]
    again = partial(run, tasks=tasks, setting=setting)
    with report:
        if asked.how == "env":
            with from_environment(on_message=report, **world) as context:
                wrong = again(context)
        else:
            wrong = launch(again, ranks=there, how=asked.how, on_message=report, **world)[0]  # type: ignore[arg-type]
    if prints:
        report.footer()
        machines, cards = report.machines, real_cards(memory)
        about = {
            "backend": asked.backend,
            "ranks": there,
            "machines": machines,
            "cards": cards,
            "seed": asked.seed,
            "instructions": _instructions(),
        }
        rows = [row(each) for each in report.seen]
        write_json(asked.json_file, {"verdict": report.verdict.value, **about, "rows": rows})
    ctx.exit((Verdict.VIOLATION if wrong else report.verdict).exit_code)


def _instructions() -> str:
    """Name those of the steps: `store_nt` stores a word, which on x86-64 no copy of lines does."""
    flushes, _, copies = lines_instructions().rpartition(", ")
    return f"{flushes}, {copies if copies == 'stnp' else 'movnti'}"


def _possible(test: Litmus) -> frozenset[tuple[int, ...]] | None:
    """Search the outcomes that the abstract machine has; None if the budget does not suffice, or nothing will run."""
    if obstacle(test.program):
        return None
    answer = search.run(test, SEARCH, ENGINES[0])
    return (
        frozenset(tuple(test.values(end).values()) for end in answer.exploration.outcomes) if answer.complete else None
    )


class _Report(LiveReport):
    """Prints each test's histogram as it comes, where this process prints."""

    def __init__(self, tests: int, verbose: bool, *, silent: bool, quiet: bool) -> None:
        super().__init__("litmus", tests, silent=silent or quiet)
        self.seen: list[Histogram] = []
        self.machines = 1
        self._verbose, self._silent = verbose, silent or quiet

    @property
    def verdict(self) -> Verdict:
        """The worst of all verdicts: a violation, then unknown, then ok."""
        verdicts = {each.verdict for each in self.seen}
        return next((v for v in (Verdict.VIOLATION, Verdict.UNKNOWN) if v in verdicts), Verdict.OK)

    def __call__(self, message: object) -> None:
        if isinstance(message, RankMachines):
            self.machines = message.count
        if not isinstance(message, Histogram):
            if not self._silent:
                print_wrapped(self._out, f"# {message}", indent="# ")
            return
        self.seen.append(message)
        self._progress.advance(self._task)
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
        with_what = f"{counted(ranks, 'rank')}, {_instructions()}; seed {setting.seed}"
        print_wrapped(self._out, f"# {memory.describe().partition(',')[0]}, {with_what}", indent="# ")
        if cards:
            print_wrapped(self._out, f"# cards: {cards}", indent="# ")

    def footer(self) -> None:
        if self._silent:
            return
        ran = [each for each in self.seen if not each.skipped]
        wrong = sum(each.verdict == Verdict.VIOLATION and not each.impossible for each in ran)
        allowed = sum(e.allowed for each in ran for e in each.task.litmus.expectations)
        unseen = sum(len(each.unseen) for each in ran)
        skipped = len(self.seen) - len(ran)
        ended = f"{len(ran)} ran, {wrong} with forbidden outcomes, {skipped} skipped"
        if impossible := sum(bool(each.impossible) for each in ran):
            ended += f", {impossible} with expectations that the memory model cannot meet"
        seen = f"{allowed - unseen} of {counted(allowed, 'allowed outcome')} seen"
        rounds = counted(sum(each.rounds for each in ran), "round")
        print_wrapped(
            self._out, f"{counted(len(self.seen), 'test')}: {ended}; {seen} in {rounds}; {self.seconds:.1f} s"
        )
