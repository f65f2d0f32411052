"""What became of a scenario's ranks, held against what each fault that happened owes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from cxlemu.errors import CancelledError, PeerLostError, RankDiedError, RevokedError, RunError
from cxlemu.world.context import World
from cxlemu.world.outcome import Outcome
from faults.inject.acts import Killed
from faults.inject.engine import Happened
from faults.model import FAULTS, Duty
from faults.script import Fault, Script


class End(Enum):
    """Of one rank."""

    RIGHT = "right"
    WRONG = "wrong"
    ERROR = "error"
    DEAD = "dead"
    HUNG = "hung"


class Verdict(Enum):
    """Of a scenario, worst last."""

    SURVIVED = "survived"
    DETECTED = "detected"
    UNPROTECTED = "unprotected"  # wrong bytes that nothing but a checksum can tell
    WRONG_ERROR = "wrong error"
    HUNG = "hung"
    SILENTLY_WRONG = "silently wrong"

    @property
    def ok(self) -> bool:
        return self in (Verdict.SURVIVED, Verdict.DETECTED, Verdict.UNPROTECTED)


@dataclass(frozen=True)
class Became:
    """One rank's end."""

    end: End
    wrong: int = 0  # elements
    error: BaseException | None = None

    def __str__(self) -> str:
        if self.end == End.ERROR:
            return f"{type(self.error).__name__}: {self.error}"
        return f"{self.wrong} elements wrong" if self.end == End.WRONG else self.end.value


@dataclass(frozen=True)
class Report:
    """``ranks``: of each world in turn (a restart makes a second one), what became of its ranks."""

    verdict: Verdict
    ranks: tuple[dict[int, Became], ...]
    happened: tuple[Happened, ...]
    why: str = ""  # of a verdict that is not ok: whom it is about

    @property
    def ok(self) -> bool:
        return self.verdict.ok


def became(outcome: Outcome[int]) -> dict[int, Became]:
    """What each rank's result or failure means."""
    ends = {rank: Became(End.WRONG if wrong else End.RIGHT, wrong) for rank, wrong in outcome.results.items()}
    for rank, error in outcome.failures.items():
        if isinstance(error, Killed | RankDiedError):
            ends[rank] = Became(End.DEAD, error=error)
        elif isinstance(error, CancelledError):
            ends[rank] = Became(End.HUNG, error=error)
        else:
            ends[rank] = Became(End.ERROR, error=error)
    return dict(sorted(ends.items()))


def judge(script: Script, world: World, ranks: Sequence[dict[int, Became]], happened: Sequence[Happened]) -> Report:
    """The worst of what the survivors show."""
    come = [(script.faults[each.fault], each) for each in happened]
    dead = {fault.rank for fault, _ in come if fault.kind in ("kill", "restart", "crash")}
    hosts = {world.hosts[fault.rank] for fault, _ in come if fault.kind == "crash"}
    dead |= {rank for rank in range(world.ranks) if world.hosts[rank] in hosts}
    allowed = {error for fault, each in come for error in _may_be_told(fault, each, world.deadline_s)}
    checksum = any(FAULTS[fault.kind].duty is Duty.CHECKSUM or fault.instructions for fault, _ in come)
    found: list[tuple[Verdict, str]] = [(Verdict.SURVIVED, "")]
    for number, one in enumerate(ranks):
        for rank, end in one.items():
            if number == 0 and rank in dead:
                continue
            verdict = _verdict(end, tuple(allowed) if number == 0 else (), dead, checksum and number == 0)
            found.append((verdict, f"rank {rank}{' after the restart' * number}: {end}"))
    verdict, why = max(found, key=lambda each: list(Verdict).index(each[0]))
    return Report(verdict, tuple(ranks), tuple(happened), "" if verdict.ok else why)


def _may_be_told(fault: Fault, happened: Happened, deadline_s: float) -> tuple[type[RunError], ...]:
    """The errors that survivors may raise for it. A rank may be held up for less than peers take it for dead after."""
    kind = FAULTS[fault.kind]
    if kind.duty is Duty.SURVIVE and happened.delay_s < deadline_s / 2:
        return ()
    return kind.errors


def _verdict(end: Became, allowed: tuple[type[RunError], ...], dead: set[int], checksum: bool) -> Verdict:
    if end.end == End.WRONG:
        return Verdict.UNPROTECTED if checksum else Verdict.SILENTLY_WRONG
    if end.end == End.HUNG:
        return Verdict.HUNG
    if end.end == End.RIGHT:
        return Verdict.SURVIVED
    names_the_dead = not (dead and isinstance(end.error, PeerLostError)) or bool(dead & set(end.error.ranks))
    right_error = isinstance(end.error, allowed) and not isinstance(end.error, RevokedError) and names_the_dead
    return Verdict.DETECTED if right_error else Verdict.WRONG_ERROR
