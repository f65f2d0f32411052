"""What the prover says: a verdict and, where a plan is wrong, which rule it breaks, where, and in a sentence why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from cxlemu.errors import ArgumentError
from cxlemu.plan import Plan
from faults.verdict import Verdict

# The rules of docs/memory-model.md, in the order of enum rule in pass/pass.h; each can be switched off.
RULES = (
    "order",  # the write that a read must see comes before it, and all others before that write or after the read
    "landed",  # ... has been flushed, and fenced by the rank that flushed it
    "older_write",  # what lay beneath it had landed before
    "fresh",  # the reader's host dropped the line after that
    "residue",  # no other host held the line dirty when it was written
    "stale_allocate",  # who stores beside it holds it fresh
    "false_sharing",  # nobody stores beside it at the same time
    "payload",  # a doorbell's payload has been taken before the next one is stored
    "fence_scope",  # a fence is its rank's, not its host's
    "local",  # streams of one rank do not race for its buffers
    "exit",  # when all are done with a round, all it wrote has landed, all it read has been read
    "reuse",  # who stores to a slot knows that all are done with the round before
    "barrier",  # nobody leaves a barrier before everybody came
    "contract",  # every byte of a result is folded from the contributions that it should be
    "fold_order",  # in the order that the call declares, and alike on all ranks that hold it
)
FOLD_ORDER = RULES[-1]  # what breaks it is seen without a schedule: in all executions that are right otherwise
DEADLOCK = "deadlock"  # found as well: a wait that no signal satisfies


@dataclass(frozen=True, slots=True)
class ProgramPoint:
    """An instruction of a call. ``at`` is -1 for what the user does before it, and one too many for after it."""

    call: int
    rank: int
    stream: int
    at: int


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that is broken at an instruction.

    ``card`` and ``line`` (of the communicator's extent on that card) are -1 where no pool line is at stake; ``by`` is
    the other instruction that is involved, if there is one. ``mapped``: found where arrays of the heap lie in the
    pool itself, as on real cards.
    """

    rule: str
    call: int
    rank: int
    stream: int
    at: int
    card: int
    line: int
    sentence: str
    by: ProgramPoint | None = None
    mapped: bool = False


@dataclass(frozen=True, slots=True)
class Proof:
    """``instructions`` were looked at. ``reason``: of a violation its sentence, of unknown what the prover cannot do.
    ``calls``: those that it is about; a violation counts them from 0. ``rounds_alike``: so many more rounds of the call
    were not looked at, because they repeat those that were (rounds.py says why that is enough).
    """

    verdict: Verdict
    violation: Violation | None
    reason: str
    instructions: int
    seconds: float
    calls: tuple[Plan, ...] = field(default=(), repr=False, compare=False)
    rounds_alike: int = 0


def mask_of(without: Collection[str]) -> int:
    """Raises ArgumentError for a rule that there is not."""
    for name in without:
        if name not in RULES:
            raise ArgumentError(f"there is no rule {name!r} to switch off: it is one of {', '.join(RULES)}")
    return sum(1 << RULES.index(name) for name in set(without))
