"""Whether a plan deadlocks in itself: its signals and waits alone, without any memory.

Plans do not branch on data, and each doorbell has one writer and rising values. So if one order comes to an end all do,
and ranks that wait in one wait in all: if a deadline passes in a call that deadlocks, no slow rank was the cause.
"""

from dataclasses import dataclass, field

from cxlemu.engines.streams import Binding, Blocked, Streams, run_in_turn
from cxlemu.errors import DeadlockError
from cxlemu.plan import Instruction, Op, Plan

WAITS_TOLD = 8
INSTRUCTIONS_MAX = 1_000_000  # larger plans are not examined: that would take longer than the deadline


@dataclass
class _Bells(Streams):
    """A rank that does nothing but ring and wait."""

    shown: dict[tuple[int, int], int] = field(kw_only=True)  # address of a doorbell -> epoch

    def execute(self, instruction: Instruction) -> Blocked | None:
        i, layout, epoch = instruction, self.binding.layout, self.binding.epoch + instruction.value
        match i.op:
            case Op.SIGNAL | Op.SIGNAL_DATA:
                self.shown[layout.doorbell_address(i.arg, epoch)] = epoch
            case Op.WAIT | Op.WAIT_DATA | Op.WAIT_ALL:
                for bell in self.frame.groups[i.arg].doorbells if i.op == Op.WAIT_ALL else (i.arg,):
                    shows = self.shown.get(layout.doorbell_address(bell, epoch), 0)
                    if shows < epoch:
                        return Blocked("", 0, i, bell, layout.owner(bell), epoch, shows)
            case Op.RECORD:
                self.events.add(i.arg)
            case Op.AWAIT if i.arg not in self.events:
                return Blocked("", 0, i)
        return None


def deadlock_of(plan: Plan, most: int | None = None) -> DeadlockError | None:
    """Find the waits in which every execution of a call ends. None: the call completes, or has too many instructions.

    Args:
        plan: What the ranks execute.
        most: How many instructions are examined. None: INSTRUCTIONS_MAX.
    """
    if sum(part.instruction_count for part in plan.parts) > (INSTRUCTIONS_MAX if most is None else most):
        return None
    layout = plan.layout
    binding = Binding(layout, base=0, epoch=layout.slots + 1, tag=0)
    shown = {layout.doorbell_address(layout.done(rank), 0): layout.slots for rank in range(plan.ranks)}
    ranks = [_Bells(plan.call, plan.frame, part, binding, shown=shown) for part in plan.parts]
    try:
        run_in_turn(ranks)
    except DeadlockError:
        waits = [_told(rank, blocked) for rank in ranks for blocked in rank.advance()[0]]
        more = f" and {len(waits) - WAITS_TOLD} more" if len(waits) > WAITS_TOLD else ""
        return DeadlockError(f"deadlock in [{plan.call}], whatever the order: {'; '.join(waits[:WAITS_TOLD])}{more}")
    return None


def _told(rank: _Bells, blocked: Blocked) -> str:
    layout, where = rank.binding.layout, f"{blocked.stream}:{blocked.at} {blocked.instruction.op.name}"
    if blocked.doorbell < 0:
        return f"rank {rank.part.rank} waits for its own event {blocked.instruction.arg} ({where})"
    bell = layout.doorbell_name(blocked.doorbell)
    return f"rank {rank.part.rank} waits for rank {blocked.owner} to ring {bell} ({where})"
