"""What runs have in common, what one of them chooses, and what it came to."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from cxlemu.memory.rates import DEFAULT_RATES, AdversaryRates
from faults.programs.area import CodePlace, CrashRecord, RawFinding
from faults.programs.commands import CoherentRange, Command, PoolFile
from faults.programs.histories import LoggedOperation
from faults.programs.suppressions import Suppression
from faults.programs.turns import crash_in

# Schedules of the runs in which nature moves nothing: step by step, by priority, in bursts of 64.
WORST_CASES = (0, 2, 6)
TOO_EARLY = (
    "a thread loads from a line before its non-temporal stores there are fenced, which lets them arrive too early"
)


class RunEnding(Enum):
    """How a run ended."""

    ENDED = "ended"
    FAILED = "failed"  # a program did
    NO_PROGRESS = "no progress"  # every thread goes round in a cycle
    DEADLINE = "deadline"
    REPEATS = "repeats"  # one of a search: what follows is that of another one


@dataclass(frozen=True)
class ExecSetting:
    """What runs have in common."""

    commands: Sequence[Command]
    pools: Sequence[PoolFile]  # the pools that programs open
    hosts: int = 2
    check: bool = True  # whether the checker watches
    free: bool = False  # whether threads run side by side instead of one step at a time
    every: bool = False  # whether the run is one of a search: its steps are recorded, and cycles wait
    deadline_s: float = 60.0  # how long a run may take before it is given up, in seconds
    idle_budget: int = 25_000  # after how many steps that store nothing a cycle of all threads is looked for
    crash: tuple[int, int] | None = None  # host and step of a crash
    link_down: tuple[int, int] | None = None  # host and step from which its link is down
    poison: tuple[int, int, int] | None = None  # pool, offset and step of a poisoned line
    lose: tuple[int, int] | None = None  # pool and step of the loss of a card
    coherent: tuple[CoherentRange, ...] = ()  # where caches are coherent between hosts
    dma_writes: str = "cache"  # where devices write: to their host's cache, or to "memory", past it
    show: bool = False  # whether programs write to the terminal; otherwise their output is kept
    rates: AdversaryRates = DEFAULT_RATES  # how often nature moves


@dataclass(frozen=True)
class RunChoice:
    """What one run chooses."""

    seed: int | None  # seed of nature's moves; None: the worst case, in which it makes none
    schedule: int  # number of the schedule, which decides the turns
    script: tuple[tuple[int, int], ...] = ()  # turns to follow instead: a thread's number, and how many steps
    # of each line whose stores may not have arrived before a crash, how many of the last ones are lost if somebody
    # fetches it, none where the list ends; None: random numbers decide which write-backs arrive, and nothing else does
    losses: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"seed {self.seed}" if self.seed is not None else f"worst case {self.schedule}"


def crashed_host(setting: ExecSetting, choice: RunChoice) -> int | None:
    """Return the host that crashes in a run, by the setting or in its schedule."""
    crash = setting.crash or crash_in(choice.script)
    return crash[0] if crash else None


@dataclass(frozen=True)
class Exit:
    """How a command ended."""

    command: int
    code: int  # its exit code; the negative number of a signal
    asked: bool  # whether the driver ended it, or a crash that was asked for
    output: str  # the last of what it wrote, if that was kept

    @property
    def failed(self) -> bool:
        """Whether the program failed by itself."""
        return self.code != 0 and not self.asked


def dies_of_damage(exits: Sequence[Exit]) -> bool:
    """Whether a command was killed by what a search has broken, which is no failure of it."""
    return any(its.asked and its.code == -signal.SIGBUS for its in exits)


@dataclass
class RunResult:
    """What a run came to."""

    choice: RunChoice
    ending: RunEnding = RunEnding.ENDED
    exits: list[Exit] = field(default_factory=list)
    steps: int = 0  # steps on the pool
    trace: int = 0  # the hash of all steps
    turns: list[tuple[int, int]] = field(default_factory=list)
    record: tuple[int, bytes] = (0, b"")  # of a search's run: how many entries were made, and those that were kept
    crashes: CrashRecord | None = None  # of a run that chooses losses
    unannounced: int = 0  # how often stores to a line were found that nobody had announced
    expected: int = 0  # how often a program marked loads as stale on purpose
    flushed: bool = False  # whether a program flushed a line of a pool, or stored past its cache
    early: bool = False  # whether what was stored past a cache arrived before its fence, for a load
    met: bool = False  # whether an access met a line or a card that is damaged
    touched: bool = False  # whether a program touched a pool or, where its loads are not seen, mapped one
    watched_lines: int = 0  # lines that the checker has seen touched; 0 without it
    watched_bytes: int = 0  # how many bytes it keeps of them
    findings: list[RawFinding] = field(default_factory=list)  # what the checker found and no suppression matches
    warnings: list[RawFinding] = field(default_factory=list)  # what it found that does not fail a run
    suppressed: list[RawFinding] = field(default_factory=list)  # what the checker found and a suppression matches
    matched: frozenset[Suppression] = frozenset()  # the suppressions that match a finding or a warning
    places: list[CodePlace] = field(default_factory=list)  # the positions that the findings' sites number
    absent: list[str] = field(default_factory=list)  # pools that a program opened before anything had made them
    opened: list[str] = field(default_factory=list)  # other files that programs opened, to read and write
    notes: list[str] = field(default_factory=list)  # further remarks for the report
    doing: list[str] = field(default_factory=list)  # what each thread was doing in a hang or at the deadline
    invariants: list[frozenset[tuple[int, int]]] = field(default_factory=list)  # of each its lines, with their pool
    history: list[LoggedOperation] = field(default_factory=list)  # operations that no order explains
    undecided: list[str] = field(default_factory=list)  # what must hold and was not judged, a sentence each
    # why faults that were asked for never happened, by their flags
    unfired: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether the run shows a mistake: by a finding, a program that fails, or one that cannot get on."""
        return bool(self.findings) or self.ending in (RunEnding.FAILED, RunEnding.NO_PROGRESS)

    def signature(self) -> tuple[RunEnding, tuple[tuple[int, int], ...], frozenset[tuple[int, int]]]:
        """Tell what makes two failures the same one."""
        codes = tuple((e.command, e.code) for e in self.exits if e.failed)
        kinds = frozenset((f.kind, f.rule) for f in (*self.findings, *self.suppressed))
        return self.ending, codes, kinds


def untouched(setting: ExecSetting, results: Sequence[RunResult]) -> bool:
    """Say whether no run touched a pool, so that nothing was tried: where accesses are seen, not a line of it."""
    by_line = setting.check and not setting.free
    return not any(result.watched_lines if by_line else result.touched for result in results)


def unfired(results: Sequence[RunResult]) -> list[str]:
    """List the faults that happened in no run: a sentence for each."""
    flags = set.intersection(*(set(result.unfired) for result in results)) if results else set()
    return [max(results, key=lambda result: result.steps).unfired[flag] for flag in sorted(flags)]
