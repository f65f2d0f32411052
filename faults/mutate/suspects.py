"""Where an execution should look for a mutant's mistake: which rank comes too early, and which lines may be stale."""

from collections.abc import Sequence

from cxlemu.plan import Op, Plan
from faults.lockstep.counterexample import Suspect
from faults.lockstep.places import Line, epochs, instruction_lines
from faults.mutate.mutants import Mutant
from faults.mutate.operators import FAR, WAITS


def suspect(plans: Sequence[Plan], plan: Plan, mutant: Mutant) -> Suspect:
    stream = plan.part(mutant.rank).streams[mutant.stream].instructions
    instruction, layout = stream[mutant.at], plan.layout
    owner = None
    if instruction.op in WAITS:
        owner = layout.owner(instruction.arg)
    elif instruction.op == Op.WAIT_ALL:
        member = mutant.kind.partition("=")[2]
        owner = int(member) if member else (mutant.rank + 1) % plan.ranks
    nearby = stream[max(mutant.at - 1, 0) : mutant.at + 3]  # a WAIT, the INVALIDATE and the READ
    operator, _, other = mutant.kind.partition("=")
    if operator == FAR:  # the other one comes before what it has waited for
        between = [i for i in stream[mutant.at + 1 : int(other)] if i.op in WAITS]
        owner = layout.owner(between[-1].arg) if owner is None and between else owner
        nearby = [*nearby, stream[int(other)]]
    lines: dict[Line, None] = {}
    for called, epoch in epochs(plans):
        if called is plan:
            lines |= dict.fromkeys(line for i in nearby for line in instruction_lines(plan, epoch, i))
    return Suspect(mutant.rank, mutant.stream, owner, tuple(lines))
