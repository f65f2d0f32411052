"""The prover's answer: a verdict and, where a plan is wrong, which rule it breaks, where, and in a sentence why."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from cxlemu.errors import ArgumentError
from cxlemu.plan import Plan
from cxlemu.suggest import unknown
from faults.verdict import Verdict

# The rules of docs/memory-model.md, in the order of enum rule in pass/pass.h; each can be switched off.
RULES = (
    "order",  # the write that a read must see comes before it, and all others before that write or after the read
    "landed",  # ... has been flushed, and fenced by the rank that flushed it
    "older_write",  # what lay beneath it had landed before
    "fresh",  # the reader's host dropped the line after that
    "residue",  # no other host held the line dirty when it was written
    "stale_allocate",  # a rank that stores beside it holds it fresh
    "false_sharing",  # no rank stores beside it at the same time
    "payload",  # a doorbell's payload has been taken before the next one is stored
    "fence_scope",  # a fence is its rank's, not its host's
    "local",  # streams of one rank do not race for its buffers
    "exit",  # when all ranks are done with a round, all it wrote has landed, all it read has been read
    "reuse",  # a rank that stores to a slot knows that all ranks are done with the round before
    "barrier",  # no rank leaves a barrier before all ranks have come
    "contract",  # every byte of a result is folded from the contributions that it should be
    "fold_order",  # in the order that the call declares, and alike on all ranks that hold it
)
FOLD_ORDER = RULES[-1]  # breaking it shows without a schedule, in all executions that are right otherwise
DEADLOCK = "deadlock"  # also found: a wait that no signal satisfies


@dataclass(frozen=True, slots=True)
class ProgramPoint:
    """An instruction of a call."""

    call: int
    rank: int
    stream: int  # number of the rank's stream
    # number of the instruction in the stream; -1 for what the user does before the call, one too many for after it
    at: int


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that is broken at an instruction."""

    rule: str  # name of the rule, one of RULES, or DEADLOCK
    call: int  # number of the call; with ``rank``, ``stream`` and ``at`` it is the instruction's `ProgramPoint`
    rank: int
    stream: int
    at: int
    card: int  # the card of the line; -1 if no pool line is at stake
    line: int  # the line of the communicator's extent on that card; -1 if no pool line is at stake
    sentence: str  # what is wrong, for people
    by: ProgramPoint | None = None  # the other instruction that is involved, if there is one
    # whether arrays of the heap lie in the pool itself in the calls that were proved, as on real cards
    mapped: bool = False


@dataclass(frozen=True, slots=True)
class Proof:
    """The prover's answer about a sequence of calls."""

    verdict: Verdict  # OK, VIOLATION or UNKNOWN
    violation: Violation | None  # what is wrong, if the verdict is VIOLATION and the prover's own pass found it
    reason: str  # the sentence of a violation, or what the prover cannot do if the verdict is UNKNOWN
    instructions: int  # count of instructions that were looked at
    seconds: float
    # the plans of the calls; a violation counts them from 0
    calls: tuple[Plan, ...] = field(default=(), repr=False, compare=False)
    # count of further rounds of the call that were not looked at, because they repeat those that were (rounds.py says
    # why that is enough)
    rounds_alike: int = 0
    empty: bool = False  # whether it is OK because the plan has no instruction


def nothing_judged(proofs: Sequence[Proof]) -> str:
    """Say so where proofs are of empty plans alone, so that none judged anything; empty: they are not."""
    return "nothing was judged: no plan has an instruction" if proofs and all(proof.empty for proof in proofs) else ""


def mask_of(without: Collection[str]) -> int:
    """Encode rules that are switched off: bit k for rule k of RULES."""
    for name in without:
        if name not in RULES:
            raise ArgumentError(unknown("rule", name, RULES))
    return sum(1 << RULES.index(name) for name in set(without))
