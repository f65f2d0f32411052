"""The ends of a scenario's ranks, judged by the requirement of each fault that happened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from cxlemu.errors import CancelledError, PeerLostError, RankDiedError, RevokedError, RunError
from cxlemu.units import counted
from cxlemu.world.outcome import Outcome
from faults.inject.effects import Killed
from faults.inject.fault import FAULTS, Fault, Requirement
from faults.inject.injection import Happened
from faults.inject.script import Script


class RankEnd(Enum):
    """How one rank's run ended: with the right or a wrong result, with an error, dead or without end."""

    RIGHT = "right"
    WRONG = "wrong"
    ERROR = "error"
    DEAD = "dead"
    HUNG = "hung"


class ScenarioVerdict(Enum):
    """The verdict on a whole scenario, worst last."""

    NEVER = "never happened"  # all is right, but a fault did not come, or nothing came of it
    SURVIVED = "survived"
    DETECTED = "detected"
    UNPROTECTED = "unprotected"  # wrong bytes that only a checksum can tell from right ones
    WRONG_ERROR = "wrong error"
    HUNG = "hung"
    SILENTLY_WRONG = "silently wrong"

    @property
    def ok(self) -> bool:
        """Whether the run did all that the faults require of it."""
        return list(ScenarioVerdict).index(self) <= list(ScenarioVerdict).index(ScenarioVerdict.UNPROTECTED)


@dataclass(frozen=True)
class RankOutcome:
    """How one rank's run ended."""

    end: RankEnd
    wrong: int = 0  # how many elements of its results were wrong
    error: BaseException | None = None

    def __str__(self) -> str:
        if self.end == RankEnd.ERROR:
            return f"{type(self.error).__name__}: {self.error}"
        return f"{counted(self.wrong, 'element')} wrong" if self.end == RankEnd.WRONG else self.end.value


@dataclass(frozen=True)
class ScenarioReport:
    """How a run with faults ended, and what came of each fault."""

    verdict: ScenarioVerdict  # the worst verdict on any survivor
    # how each rank ended, in each world in turn: a restart makes a second one
    ranks: tuple[dict[int, RankOutcome], ...]
    happened: tuple[Happened, ...]  # the faults that came, in the order in which ranks reported them
    # if the verdict is not ok, which rank it is about and how that rank ended; if a fault never happened, why
    why: str = ""
    # a sentence for each fault that never happened, by its number
    unfired: Mapping[int, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.verdict.ok


def became(outcome: Outcome[int]) -> dict[int, RankOutcome]:
    """Tell how each rank ended from its failure, or from its result: how many elements were wrong."""
    ends = {
        rank: RankOutcome(RankEnd.WRONG if wrong else RankEnd.RIGHT, wrong) for rank, wrong in outcome.results.items()
    }
    for rank, error in outcome.failures.items():
        if isinstance(error, Killed | RankDiedError):
            ends[rank] = RankOutcome(RankEnd.DEAD, error=error)
        elif isinstance(error, CancelledError):
            ends[rank] = RankOutcome(RankEnd.HUNG, error=error)
        else:
            ends[rank] = RankOutcome(RankEnd.ERROR, error=error)
    return dict(sorted(ends.items()))


def judge(
    script: Script,
    hosts: Sequence[int],
    ranks: Sequence[dict[int, RankOutcome]],
    happened: Sequence[Happened],
    deadline_s: float,
    *,
    protected: bool = False,
    unfired: Mapping[int, str] | None = None,
) -> ScenarioReport:
    """Judge how ranks ended by what the faults that came require; the worst survivor decides."""
    unfired = unfired or {}
    come = [(script.faults[each.fault], each) for each in happened]
    dead = {fault.rank for fault, _ in come if FAULTS[fault.kind].kills}
    crashed = {hosts[fault.rank] for fault, _ in come if FAULTS[fault.kind].kills == "host"}
    dead |= {rank for rank, host in enumerate(hosts) if host in crashed}
    allowed = {error for fault, each in come for error in _may_be_told(fault, each, deadline_s)}
    silent = any(FAULTS[fault.kind].may_lose_data(fault) for fault, _ in come)
    verdicts: list[tuple[ScenarioVerdict, str]] = [(ScenarioVerdict.SURVIVED, "")]
    for number, one in enumerate(ranks):
        for rank, end in one.items():
            if number == 0 and rank in dead:
                continue
            verdict = _verdict(
                end, tuple(allowed) if number == 0 else (), dead, silent and not protected and number == 0
            )
            verdicts.append((verdict, f"rank {rank}{' after the restart' * number}: {end}"))
    verdict, why = max(verdicts, key=lambda each: list(ScenarioVerdict).index(each[0]))
    if verdict is ScenarioVerdict.SURVIVED and unfired:
        verdict, why = ScenarioVerdict.NEVER, "; ".join(unfired.values())
    elif verdict.ok:
        why = ""
    return ScenarioReport(verdict, tuple(ranks), tuple(happened), why, unfired)


def _may_be_told(fault: Fault, happened: Happened, deadline_s: float) -> tuple[type[RunError], ...]:
    """List the errors that survivors may raise for a fault.

    There are none if the fault must be survived, unless it holds the rank up for half of the deadline or more: peers
    may then take the rank for dead.
    """
    kind = FAULTS[fault.kind]
    if kind.requirement is Requirement.SURVIVE and happened.delay_s < deadline_s / 2:
        return ()
    return kind.errors


def _verdict(
    end: RankOutcome, allowed: tuple[type[RunError], ...], dead: set[int], unprotected: bool
) -> ScenarioVerdict:
    if end.end == RankEnd.WRONG:
        return ScenarioVerdict.UNPROTECTED if unprotected else ScenarioVerdict.SILENTLY_WRONG
    if end.end == RankEnd.HUNG:
        return ScenarioVerdict.HUNG
    if end.end == RankEnd.RIGHT:
        return ScenarioVerdict.SURVIVED
    names_the_dead = not (dead and isinstance(end.error, PeerLostError)) or bool(dead & set(end.error.ranks))
    right_error = isinstance(end.error, allowed) and not isinstance(end.error, RevokedError) and names_the_dead
    return ScenarioVerdict.DETECTED if right_error else ScenarioVerdict.WRONG_ERROR
