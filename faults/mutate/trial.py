"""One mutant on trial: the rules of plans, the prover and executions each have their say, and must agree.

refused       a rule of plans rejects it before anything runs                     killed
confirmed     the prover finds a violation, and an execution shows it             killed
hidden        the prover finds another fold order, which no values of the plan's dtype and operation show    killed
equivalent    the prover proves it right whatever calls come before and after, and no execution shows anything
indebted      the prover proves it right between all calls that we ship, but other ones might rely on what it omits
unconfirmed   the prover finds a violation that no execution shows                survived
missed        the prover proves it right, and an execution shows that it is not   survived
unknown       the prover cannot tell                                              survived
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import NamedTuple

from collectives.checking import oracle
from collectives.contracts import COLLECTIVES
from cxlemu.plan import Call, Plan
from cxlemu.plan.accesses import in_regions, loaded, stored
from cxlemu.plan.rules import findings
from faults.lockstep.counterexample import CallSequence, Counterexample, CounterexampleKind, orders, search, suspects
from faults.mutate.cases import MutationCase, mixtures, plan_of, sequence
from faults.mutate.mutants import Mutant, apply, mutants
from faults.mutate.suspects import suspect
from faults.prove import Proof, prove_calls
from faults.prove.sequences import on_some_hosts
from faults.verdict import Verdict

TRIED = 1  # orders in which what is proved right is executed all the same


class Fate(Enum):
    """What became of a mutant; the head of this module describes each fate."""

    REFUSED = "refused"
    CONFIRMED = "confirmed"
    HIDDEN = "hidden"
    EQUIVALENT = "equivalent"
    INDEBTED = "indebted"
    UNCONFIRMED = "unconfirmed"
    MISSED = "missed"
    UNKNOWN = "unknown"

    @property
    def survived(self) -> bool:
        """Whether prover and executions disagree, or the prover cannot tell."""
        return self in (Fate.UNCONFIRMED, Fate.MISSED, Fate.UNKNOWN)

    @property
    def verdict(self) -> Verdict:
        """What the mutant says of prover and executions: they agree, they disagree, or the prover cannot tell."""
        return Verdict.UNKNOWN if self is Fate.UNKNOWN else Verdict.VIOLATION if self.survived else Verdict.OK


SURVIVAL = {
    Fate.UNCONFIRMED: "the prover rejects it, but no execution that was tried goes wrong: the prover may be too strict",
    Fate.MISSED: "the prover proves it right, but an execution goes wrong: a mistake of the prover",
    Fate.UNKNOWN: "the prover cannot tell whether it is right",
}


class MutantJudgement(NamedTuple):
    mutant: Mutant
    fate: Fate
    instruction: str  # name of the opcode of the instruction that it changes
    reason: str = ""  # in a sentence, what is wrong or not known
    shown: Counterexample | None = None  # an execution in which it goes wrong, if one was found


@dataclass
class Trial:
    """All mutants of one plan, on trial in the calls that cases.py puts around it."""

    case: MutationCase  # what is mutated
    plan: Plan = field(init=False)  # its plan, without a mistake
    _programs: dict[int, CallSequence] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = plan_of(self.case)

    def mutants(self) -> Iterator[Mutant]:
        return mutants(self.plan)

    def unmutated(self) -> Proof:
        """Prove the plan without any mistake: its mutants tell nothing unless it is right."""
        plans = self.program(0).plans
        return on_some_hosts(self.plan.call, lambda hosts: prove_calls(plans, hosts=hosts))

    def program(self, rank: int) -> CallSequence:
        """Return the right calls in which a mistake of ``rank`` is looked for."""
        if rank not in self._programs:
            self._programs[rank] = CallSequence.of(sequence(self.case, self.plan, rank))
        return self._programs[rank]

    def judge(self, mutant: Mutant) -> MutantJudgement:
        mutated = apply(self.plan, mutant)
        name = self.plan.part(mutant.rank).streams[mutant.stream].instructions[mutant.at].op.name
        finding = next(findings(mutated), None)
        if finding is not None:
            return MutantJudgement(mutant, Fate.REFUSED, name, str(finding))
        right = self.program(mutant.rank)
        wrong = right.with_plan(self.plan, mutated)
        here = suspect(right.plans, self.plan, mutant)
        for program, proof in self._proofs(wrong, mutated):
            if proof.verdict is Verdict.UNKNOWN:
                return MutantJudgement(mutant, Fate.UNKNOWN, name, proof.reason)
            if proof.violation is not None:
                if proof.violation.rule == "fold_order" and hides_order(self.plan.call):
                    return MutantJudgement(mutant, Fate.HIDDEN, name, proof.reason)
                shown = search(program, (here, *suspects(proof.violation)))
                if shown is None and _is_unread(mutated, mutant.rank):
                    why = f"{proof.reason}; no rank reads what rank {mutant.rank} publishes, so nothing shows it"
                    return MutantJudgement(mutant, Fate.UNCONFIRMED, name, why)
                return MutantJudgement(mutant, Fate.CONFIRMED if shown else Fate.UNCONFIRMED, name, proof.reason, shown)
        for order in islice(orders(wrong.plans, (here,)), TRIED):
            shown = wrong.run(order, quick=True)
            if shown.kind is not CounterexampleKind.NOTHING:
                return MutantJudgement(mutant, Fate.MISSED, name, shown.detail, shown)
        obliged = prove_calls(wrong.plans, obliges=True)
        fate = Fate.EQUIVALENT if obliged.verdict is Verdict.OK else Fate.INDEBTED
        return MutantJudgement(mutant, fate, name, obliged.reason)

    def _proofs(self, wrong: CallSequence, mutated: Plan) -> Iterator[tuple[CallSequence, Proof]]:
        """Yield the proof of the calls in which most mistakes matter; then, if the mutant breaks what other calls rely
        on, those proofs of all mixtures that are not OK."""
        yield wrong, prove_calls(wrong.plans)
        if prove_calls(wrong.plans, obliges=True).verdict is not Verdict.OK:
            for plans in mixtures(self.case, mutated):
                proof = prove_calls(plans)
                if proof.verdict is not Verdict.OK:
                    yield CallSequence.of(plans), proof


def _is_unread(plan: Plan, rank: int) -> bool:
    """Whether a rank stores to regions of the pool of which no other rank loads."""
    stores, loads = (
        {
            operand.id
            for part in plan.parts
            if (part.rank == rank) == own
            for stream in part.streams
            for instruction in stream.instructions
            for operand in in_regions(touched(instruction))
        }
        for own, touched in ((True, stored), (False, loaded))
    )
    return bool(stores) and stores.isdisjoint(loads)


def hides_order(call: Call) -> bool:
    """Whether right and wrong fold orders give the same bits for all inputs that executions have."""
    return call.collective in COLLECTIVES and not oracle.reveals_order(call)
