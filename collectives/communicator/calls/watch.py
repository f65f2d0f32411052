"""What a rank does while it waits: shows that it is alive, and checks that its peers are alive and in the same call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from collectives.communicator.calls import revocation
from collectives.communicator.calls.loss import LEFT, lost_among
from collectives.contracts import COLLECTIVES
from cxlemu.engines.deadlocks import deadlock_of
from cxlemu.engines.streams import Blocked, Running
from cxlemu.errors import MismatchError, PeerLostError, RunError, name_ranks
from cxlemu.plan import Plan
from cxlemu.pool.board import Board, Cause
from cxlemu.pool.session_area import TEXT_BYTES, Status
from cxlemu.units import typed_bytes
from cxlemu.world import RankContext

LOOK_S = 0.05
ANSWER_S = 10 * LOOK_S  # for a rank that waits to say what it calls
PLAN_S = 1.0  # after which a wait has the plan examined for a deadlock, once in a call
PLAN_INSTRUCTIONS = 10_000  # a tenth of a second: a silent rank is taken for lost
SAME = "all ranks must call the same collectives with the same arguments"


@dataclass
class PeerMonitor:
    """Watches the peers of one communicator; the engine calls it again and again while nothing progresses."""

    context: RankContext  # this rank, and its session with the pool
    board: Board  # the communicator's board, where peers post why they gave up
    comm: int  # the communicator's number, on which all its members agree
    members: tuple[int, ...]  # the world ranks of the communicator, in its order
    deadline_s: float  # after how long a wait a silent peer is lost, in seconds
    call: int = 0  # the number of the call under way
    internal_calls: int = 0  # how many calls the communicator made itself, before its program's first one
    aborted: RunError | None = None  # why another thread of this rank gave the communicator up, or None
    meanwhile: Callable[[], None] = lambda: None  # called whenever a call waits: what else the rank can get on with
    _plan: Plan | None = field(default=None)  # of the call under way, until it was examined
    _told: bool = field(default=False)
    _looked: float = field(default=0.0)
    _gone: frozenset[int] = field(default=frozenset())  # world ranks that had left when we last looked

    def begin(self, call: int, plan: Plan) -> None:
        """Begin call number ``call``. The peers are told which call it is when this rank first has to wait in it."""
        self.call, self._plan = call, plan
        self._told = False
        self._gone = frozenset()

    def __call__(self, running: Running, blocked: list[Blocked], waited_s: float) -> None:
        """Show that this rank is alive, and look whether its peers will still come."""
        if self.aborted is not None:
            raise self.aborted
        self.context.check()
        self._tell(running)
        self.meanwhile()
        if not self._time_to_look(waited_s):
            return
        for peer in self._peers:
            if (status := self.context.session.peek(peer)) is not None:
                self._compare(running, peer, status)
        if waited_s >= PLAN_S and self._plan is not None:
            plan, self._plan = self._plan, None
            if (certain := deadlock_of(plan, PLAN_INSTRUCTIONS)) is not None:
                raise certain
        waits_for = " and for ".join(map(running.describe, blocked))
        waits = f"rank {running.part.rank} waits in [{running.name}] for {waits_for}"
        self._look(waits, {b.owner for b in blocked if b.owner >= 0}, waited_s)

    def look(self, waits: str, awaited: Iterable[int], waited_s: float, deadline_s: float) -> None:
        """Show that this rank is alive, and raise if a rank is lost that a wait outside of a call needs."""
        self.context.check()
        if self._time_to_look(waited_s):
            self._look(waits, set(awaited), waited_s, deadline_s)

    def with_both_calls(self, running: Running, error: MismatchError) -> MismatchError:
        """Add what the other rank called to an engine's error, where that rank says so within some looks."""
        until = time.monotonic() + ANSWER_S
        with suppress(RunError):  # the pool may be out of reach
            self._tell(running)
            while error.ranks and time.monotonic() < until:
                if calls := self._calls(error.ranks, running):
                    return MismatchError(f"{calls}: {SAME}", error.ranks)
                time.sleep(LOOK_S / 10)
        return error

    def _tell(self, running: Running) -> None:
        """Let the peers know what this rank calls."""
        if self._told:
            return
        self.context.session.report(self.comm, self.call, running.binding.tag, _short(running))
        self._told = True

    def _calls(self, ranks: tuple[int, ...], running: Running | None = None) -> str:
        """What two ranks call, in words; nothing where one of them has not said it of the same call as the other.

        A rank's status line keeps the last call in which that rank waited, which may be over for long.
        """
        said: dict[int, tuple[int, str]] = {}  # the number of the call, and the call
        for rank in ranks:
            if running is not None and rank == running.part.rank:
                said[rank] = self.call, _short(running)
            elif (status := self.context.session.peek(self.members[rank])) is not None and status.comm == self.comm:
                said[rank] = status.call, status.text
        if len(ranks) != 2 or len(said) != 2 or len({number for number, _ in said.values()}) > 1:
            return ""
        number = said[ranks[0]][0] - self.internal_calls
        texts = [said[rank][1][:TEXT_BYTES] for rank in ranks]
        one, other = (f"[{_whole_words(text)}] on rank {rank}" for text, rank in zip(texts, ranks, strict=True))
        call = f"call {number} of this communicator is"
        if texts[0] != texts[1]:
            return f"{call} {one} but {other}, or an earlier call differed"
        earlier = f"call {number - 1} or one before it differed" if number > 1 else "an earlier call differed"
        return f"{call} {one} and also on rank {ranks[1]}: {earlier}, or its root, variant or list of arrays differs"

    @property
    def _peers(self) -> list[int]:
        return [member for member in self.members if member != self.context.rank]

    def _time_to_look(self, waited_s: float) -> bool:
        now = self.context.session.clock.now()
        if now - self._looked < LOOK_S and waited_s <= self.deadline_s:
            return False
        self._looked = now
        self.context.session.beat()
        return True

    def _look(self, waits: str, awaited: set[int], waited_s: float, deadline_s: float | None = None) -> None:
        session, deadline_s = self.context.session, self.deadline_s if deadline_s is None else deadline_s
        # What a peer rang before it left may not have been seen at the last look: believe the second one.
        gone = lost_among(self.context, {self.members[rank] for rank in awaited})
        if (notice := revocation.poll(self.board)) is not None:
            self.context.check()  # a peer that lost its capacity has seen that earlier than this rank
            calls = self._calls(notice[1].numbers) if notice[1].cause is Cause.MISMATCH else ""
            error = revocation.as_error(*notice, waits, me=self.members.index(self.context.rank), calls=calls)
            if isinstance(error, PeerLostError) and set(error.ranks) <= set(self._ranks(gone)):
                raise self._lost(gone, error.ranks, waits)  # this rank has also seen it
            raise error
        if lost := gone.keys() & self._gone:
            dead = {peer: how for peer, how in lost_among(self.context, self._peers).items() if how != LEFT}
            raise self._lost(gone | dead, self._ranks(lost | dead.keys()), waits)
        self._gone = frozenset(gone)
        silent = session.silent(self._peers, older_than_s=self.deadline_s / 2)
        if silent and waited_s > deadline_s:
            ranks = self._ranks(silent)
            since = f"gave no sign of life for {self.deadline_s / 2:.3g} s or more"
            raise PeerLostError(f"{name_ranks(ranks)} {since}; {waits}, since {waited_s:.1f} s", ranks)

    def _lost(self, how: dict[int, str], ranks: tuple[int, ...], waits: str) -> PeerLostError:
        """Make the error for ranks of the communicator; ``how`` says of their world ranks what became of them."""
        said = {how[self.members[rank]]: None for rank in ranks}
        return PeerLostError(f"{name_ranks(ranks)} {' and '.join(said)}; {waits}", ranks)

    def _compare(self, running: Running, peer: int, status: Status) -> None:
        """Raises MismatchError where a peer in the same call of this communicator called something else."""
        same_call = (status.comm, status.call) == (self.comm, self.call)
        if same_call and status.tag != running.binding.tag:
            ranks = (running.part.rank, self.members.index(peer))
            raise MismatchError(f"{self._calls(ranks, running)}: {SAME}", ranks)

    def _ranks(self, members: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(self.members.index(member) for member in members))


def _short(running: Running) -> str:
    """What this rank calls, for its peers: what differs most often comes first, as the end may be cut."""
    call, what = running.call, running.verb or running.call.collective
    contract = COLLECTIVES.get(call.collective)  # None: a product of matrices
    how = [call.redop] * (call.redop != "none") + [f"root {call.root}"] * (contract is not None and contract.rooted)
    return " ".join([what, *how, f"{typed_bytes(call.nbytes)}B", call.dtype, call.algorithm])


def _whole_words(text: str) -> str:
    """Leave out the last word of a text that may have been cut."""
    return text if len(text) < TEXT_BYTES else text.rpartition(" ")[0] + " ..."
