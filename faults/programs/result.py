"""What runs have in common, what one of them chooses, and what it came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from cxlemu.memory.adversary import DEFAULT_RATES, AdversaryRates
from faults.programs.area import CodePlace, RawFinding
from faults.programs.commands import Command, PoolFile

# Schedules of the runs in which nature moves nothing: step by step, by priority, in bursts of 64.
WORST_CASES = (0, 2, 6)


class RunEnding(Enum):
    """How a run ended."""

    ENDED = "ended"
    FAILED = "failed"  # a program did
    NO_PROGRESS = "no progress"
    DEADLINE = "deadline"


@dataclass(frozen=True)
class ExecSetting:
    """What runs have in common.

    Attributes:
        commands: What is run.
        pools: The pools that programs open.
        hosts: How many hosts there are.
        check: Whether the checker watches.
        free: Whether threads run side by side instead of one step at a time.
        deadline_s: How long a run may take before it is given up, in seconds.
        idle_budget: How many steps in a row may change nothing before a run is given up.
        crash: Host and step of a crash.
        link_down: Host and step from which its link is down.
        poison: Pool, offset and step of a poisoned line.
        lose: Pool and step of the loss of a card.
        show: Whether programs write to the terminal; otherwise their output is kept.
        rates: How often nature moves.
    """

    commands: Sequence[Command]
    pools: Sequence[PoolFile]
    hosts: int = 2
    check: bool = True
    free: bool = False
    deadline_s: float = 60.0
    idle_budget: int = 25_000
    crash: tuple[int, int] | None = None
    link_down: tuple[int, int] | None = None
    poison: tuple[int, int, int] | None = None
    lose: tuple[int, int] | None = None
    show: bool = False
    rates: AdversaryRates = DEFAULT_RATES


@dataclass(frozen=True)
class RunChoice:
    """What one run chooses.

    Attributes:
        seed: Seed of nature's moves; None: the worst case, in which it makes none.
        schedule: Number of the schedule, which decides the turns.
        script: Turns to follow instead: a thread's number, and how many steps.
    """

    seed: int | None
    schedule: int
    script: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        return f"seed {self.seed}" if self.seed is not None else f"worst case {self.schedule}"


@dataclass(frozen=True)
class Exit:
    """How a command ended.

    Attributes:
        command: Its number.
        code: Its exit code; the negative number of a signal.
        asked: Whether the driver ended it, or a crash that was asked for.
        output: The last of what it wrote, if that was kept.
    """

    command: int
    code: int
    asked: bool
    output: str

    @property
    def failed(self) -> bool:
        """Whether the program failed by itself."""
        return self.code != 0 and not self.asked


@dataclass
class RunResult:
    """What a run came to.

    Attributes:
        choice: What it chose.
        ending: How it ended.
        exits: How each command ended.
        steps: Steps on the pool.
        trace: The hash of all steps.
        turns: The turns that were taken.
        unannounced: Lines with stores that were not announced.
        watched_lines: Lines that the checker has seen touched; 0 without it.
        watched_bytes: How many bytes it keeps of them.
        findings: What the checker found and no suppression matches.
        suppressed: What the checker found and a suppression matches.
        places: The positions that the findings' sites number.
        notes: Further remarks for the report.
    """

    choice: RunChoice
    ending: RunEnding = RunEnding.ENDED
    exits: list[Exit] = field(default_factory=list)
    steps: int = 0
    trace: int = 0
    turns: list[tuple[int, int]] = field(default_factory=list)
    unannounced: int = 0
    watched_lines: int = 0
    watched_bytes: int = 0
    findings: list[RawFinding] = field(default_factory=list)
    suppressed: list[RawFinding] = field(default_factory=list)
    places: list[CodePlace] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether the run shows a mistake: by a finding, a program that fails, or one that cannot get on."""
        return bool(self.findings) or self.unannounced > 0 or self.ending in (RunEnding.FAILED, RunEnding.NO_PROGRESS)

    def signature(self) -> tuple[object, ...]:
        """Tell what makes two failures the same one."""
        codes = tuple((e.command, e.code) for e in self.exits if e.failed)
        found = tuple(sorted({(f.kind, f.rule) for f in (*self.findings, *self.suppressed)}))
        return self.ending, codes, found, self.unannounced > 0


def untouched(results: Sequence[RunResult]) -> bool:
    """Say whether no run made a step on a pool: its commands opened none, so that nothing was tried."""
    return not any(result.steps for result in results)
