"""What an execution shows as the story of one line: of a read that was wrong, or of a wait that never ends."""

from __future__ import annotations

from collections.abc import Iterator

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Op
from faults.campaign.record import LOADS, Done, Execution, WrongRead, pieces, queues, wrong_read
from faults.campaign.story import Held, Story
from faults.campaign.stuck import Stuck, stuck
from faults.campaign.svg import svg
from faults.campaign.teller import Teller
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import replay


def drawn(execution: Execution) -> str | None:
    """The picture of its first wrong read, or of what it waits for for ever; None where it does neither."""
    told = story(execution)
    return None if told is None else svg(told)


def story(execution: Execution) -> Story | None:
    wrong = wrong_read(execution)
    if wrong is not None:
        return OfRead(execution, wrong).story()
    for_ever = stuck(execution)
    return None if for_ever is None else OfWait(execution, for_ever).story()


class OfRead(Teller):
    """Who stored to the line, who loaded it, and how they synchronized, up to the read."""

    def __init__(self, execution: Execution, wrong: WrongRead) -> None:
        super().__init__(execution, wrong.piece.card, wrong.piece.line, wrong.move)
        self._wrong = wrong
        world = execution.world(replay(()))
        everything = [done for queue in queues(execution.program).values() for done in queue]
        loads = [done for done in everything if done.instruction.op in LOADS]
        self._stores = {(d.rank, d.call) for d in everything if self._touches(world, d, stores=True)}
        self._loads = {(d.rank, d.call) for d in loads if self._touches(world, d, stores=False)}

    def concerns(self, world: Lockstep, done: Done) -> bool:
        return any(self._touches(world, done, stores=stores) for stores in (True, False)) or self._synchronizes(done)

    def verdict(self, number: int, held: Held) -> str:
        if number != self._wrong.move:
            return ""
        piece = self._wrong.piece
        for content, known in self.versions():
            if content[piece.first : piece.last] == self._wrong.right and known != held.cached:
                return f"reads v{held.cached}, should be v{known}"
        return f"reads v{held.cached} too early: what is right is not written yet"

    def _touches(self, world: Lockstep, done: Done, *, stores: bool) -> bool:
        found = pieces(world, self.plan(done), done, stores=stores)
        return any((piece.card, piece.line) == (self.card, self.line) for piece in found)

    def _synchronizes(self, done: Done) -> bool:
        """Who stores to the line with who loads it in the same call; and who loaded it with who stores to it next."""
        i, layout, me = done.instruction, self.execution.layout, (done.rank, done.call)
        match i.op:
            case Op.FENCE | Op.WAIT_ALL:
                return me in self._stores
            case Op.WAIT:
                return me in self._loads and (layout.owner(i.arg), done.call) in self._stores
            case Op.SIGNAL:
                return me in (self._loads if i.arg >= layout.published_count else self._stores)
        return False


class OfWait(Teller):
    """The doorbell's line, what its owner did in the call instead of ringing it, and who waits in the end."""

    def __init__(self, execution: Execution, for_ever: Stuck) -> None:
        card, offset = execution.layout.doorbell_address(for_ever.doorbell, for_ever.epoch)
        base = execution.world(replay(())).base
        super().__init__(execution, card, (base + offset) // LINE_BYTES, len(execution.moves))
        self._stuck, self._owner = for_ever, execution.layout.owner(for_ever.doorbell)
        self.title += f", {execution.layout.doorbell_name(for_ever.doorbell)}"

    def concerns(self, world: Lockstep, done: Done) -> bool:
        return (done.rank, done.call) == (self._owner, self._stuck.waits.call)

    def ending(self) -> Iterator[tuple[Done, str]]:
        for done in self._stuck.others:
            yield done, ""
        yield self._stuck.waits, f"waits for epoch {self._stuck.epoch}, for ever"
