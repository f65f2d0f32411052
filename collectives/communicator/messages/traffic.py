"""The messages of one rank that are under way: advances them all, delivers what comes, ends what cannot.

One thread at a time advances calls, with the GIL released, while others may post. It finds out by the lane's ``wake``;
threads that wait meanwhile are told when it comes back, and one goes on. Everything here but `poke` and `wake` is
called with the guard held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from collectives.communicator.calls.watch import PeerMonitor
from collectives.communicator.messages.channels import Channel, Inbox, Outbox
from collectives.communicator.messages.guard import CourierGuard
from collectives.communicator.messages.mailboxes import RECEIVER, SEGMENT_BYTES, SEGMENT_ROUNDS_MAX, SENDER, MailRoom
from collectives.communicator.messages.matching import Matching, Message, Receive
from collectives.communicator.messages.requests import Rank, Request, Status
from collectives.communicator.messages.transfers import ADVANCING, AT_WORK, CLOSED, WAKE, TransferLane
from cxlemu import _native
from cxlemu._native import unlocked
from cxlemu.errors import ArgumentError, RevokedError, RunError
from cxlemu.pool.home import Home
from cxlemu.signals import interrupts, is_from_handler

SLICE_S = 0.05  # how long calls are advanced before the peers are looked at
POKES_MAX = 64  # calls that end while this rank waits for something else
EAGER_BYTES = 64 << 10  # a larger message waits in its mailbox until a receive is posted for it
UNEXPECTED_MAX = 4096  # messages that a rank brings in while it waits for room


class Life(Protocol):
    """The life of the communicator whose messages these are: its `CallRunner`."""

    home: Home
    revoked: RunError | None
    deadline_s: float

    def check_usable(self) -> None:
        """Raise RevokedError where the communicator can be used no longer."""

    def give_up(self, error: RunError) -> None:
        """Revoke the communicator, on all ranks."""


class Traffic:
    """The requests, mailboxes and unexpected messages of one rank of a communicator."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        room: MailRoom | None,
        lane: TransferLane,
        runner: Life,
        monitor: PeerMonitor,
        *,
        checked: bool,
    ) -> None:
        self._rank, self._ranks, self._room, self._lane = rank, ranks, room, lane
        self._runner, self._monitor, self._checked = runner, monitor, checked
        self._couriers = monitor.context.tenancy is None  # which would not look whether the grant is still there
        self._clock = monitor.context.session.clock
        self._gate = lane.gate
        self._lock = threading.Lock()
        self._guard = CourierGuard(self._lock, lane, self._take_up, self._settle, self._give_up, runner.deadline_s)
        self._changed = threading.Condition(self._lock)
        self._waiting = 0  # threads that wait for the one that advances calls
        self.outgoing: dict[int, _native.Courier] = {}
        self.incoming: dict[int, _native.Courier] = {}
        self._matching = Matching(ranks)
        self._outboxes: dict[int, Outbox] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._open: set[Request] = set()
        self._to_call_back: list[Request] = []
        self._at_rest: list[Callable[[], None]] = []  # what to do while no thread advances calls

    def poke(self) -> None:
        """Make what progress there is, without waiting; none where another thread makes it already."""
        self._runner.home.check()
        if (self._open or self._outboxes or self._lane.handed) and not self._guard.taken:
            with self._lock, self._guard:
                for _ in range(POKES_MAX):
                    if self._busy or not self._advance(0.0):
                        break
            self._call_back()

    def wake(self) -> None:
        """Let the thread that advances calls come back soon: the communicator may be revoked."""
        self._gate[CLOSED] = self._gate[WAKE] = 1

    # --- progress ---------------------------------------------------------------------------------------------

    def _advance(self, idle_s: float) -> bool:
        """Go on with all calls under way, or wait for the thread that does. Whether this thread saw any end."""
        if self._runner.revoked is not None:
            self._fail(self._revoked())
            return True
        if self._busy:
            self._await_change(idle_s)
            return False
        self._rest()
        channels = self._under_way()
        self._guard.half_done = False
        if not channels:  # only messages to itself can come
            if idle_s:
                self._changed.wait(min(idle_s, 1e-3))
            return False
        calls = [channel.current for channel in channels if channel.current is not None]
        self._gate[WAKE] = 0
        self._gate[ADVANCING] = 1
        try:
            ended = unlocked(self._lock, self._lane.advance, calls, idle_s)
        except BaseException as error:
            self._gate[ADVANCING] = 0
            if interrupts(error):  # what is under way stays so
                raise
            self._give_up(error)
            return True
        self._gate[ADVANCING] = 0
        if ended is not None:
            self._ended(channels[calls.index(ended)])
        else:
            self._note_progress(channels)
        if self._waiting:
            self._changed.notify_all()
        return ended is not None

    def _await_change(self, idle_s: float) -> None:
        self._waiting += 1
        try:
            self._changed.wait(idle_s)
        finally:
            self._waiting -= 1

    def _note_progress(self, channels: list[Channel]) -> None:
        """Note the time for each message of which a part went over, so that it is not given up before its call ends."""
        for channel in channels:
            current, request = channel.current, channel.request
            if current is not None and current.has_moved() and request is not None:
                request.moved_at = self._clock.now()

    def _push(self, outbox: Outbox) -> None:
        """Let a message that was just posted leave as far as it can, unless another thread sees to it."""
        if self._busy:
            self._gate[WAKE] = 1
            return
        try:
            while outbox.current is not None:
                self._guard.half_done = False
                ended = self._lane.advance([outbox.current], 0.0)
                self._guard.half_done = True
                if ended is None:
                    return
                self._ended(outbox)
        except Exception as error:
            if is_from_handler(error):  # what is under way stays so
                raise
            self._give_up(error)

    def _under_way(self) -> list[Channel]:
        """The mailboxes to go on with: those that a message leaves by, or from which one is wanted."""
        channels: list[Channel] = [outbox for outbox in self._outboxes.values() if outbox.current is not None]
        drains = bool(channels) and len(self._matching.unexpected) < UNEXPECTED_MAX
        for peer, inbox in self._inboxes.items():
            wanted = self._matching.waits_for(peer)
            if wanted or drains:
                self._guard.half_done = inbox.current is None
                # the message that is waited for, or for which there is room, comes after this one
                if inbox.held and inbox.body is not None and (wanted or inbox.body.nbytes <= EAGER_BYTES):
                    inbox.body.data = np.empty(inbox.body.nbytes, np.uint8)
                    inbox.read(inbox.body.data)
                inbox.look()
            elif inbox.body is None:
                continue
            if inbox.current is not None:
                channels.append(inbox)
        return channels

    def _ended(self, channel: Channel) -> None:
        """Go on after a call of a channel ended: a message or a part of it left, or came."""
        try:
            if isinstance(channel, Outbox):
                request, source, tag, _ = channel.queue[0]
                if channel.ended():
                    self._finish(request, Status(self._rank, tag, source.nbytes))
                else:
                    request.moved_at = self._clock.now()
                return
            assert isinstance(channel, Inbox)
            if channel.body is None:
                self._arrived(channel.opened())
                return
            receive = channel.body.receive
            message = channel.ended()
            if receive is not None:
                receive.request.moved_at = self._clock.now()
                if message is not None:
                    self._deliver(message, receive)
        except BaseException as error:  # a line that no rank writes, no memory for a message, or a signal's handler
            self._give_up(error)
            if not isinstance(error, Exception):
                raise

    def _arrived(self, message: Message) -> None:
        """Give a message that came, or of which the envelope came, to the receive that takes it, if there is one."""
        receive = self._matching.arrive(message)
        if receive is not None:
            self._take(message, receive)

    def _offer(self, message: Message) -> None:
        """Give back a message that a receive or a probe took."""
        if message not in self._matching.unexpected and (receive := self._matching.offer(message)) is not None:
            self._take(message, receive)

    def _take(self, message: Message, receive: Receive) -> None:
        """Let a receive take a message, now or when its bytes have come."""
        message.receive, receive.request.arrival = receive, message.arrival
        if message.complete:
            self._deliver(message, receive)
        elif message.data is None:  # held in the mailbox
            fits = message.fits(receive)
            assert isinstance(message.source, int)
            self._inboxes[message.source].read(receive.target[: message.nbytes] if fits else None)

    def _deliver(self, message: Message, receive: Receive) -> None:
        if not message.fits(receive):
            self._finish(receive.request, None, message.misfit(receive))
            return
        if message.data is not None and message.nbytes:
            receive.target[: message.nbytes] = np.frombuffer(message.data, np.uint8)
        if receive.copy_back is not None:
            receive.copy_back(message.nbytes)
        self._finish(receive.request, message.status)

    @property
    def _busy(self) -> bool:
        """Whether a thread advances calls, without the lock."""
        return self._gate[ADVANCING] != 0

    def _settle(self) -> bool:
        """Whether couriers may carry messages from now on: nothing is under way, and nothing has come."""
        if self._open or self._busy or self._gate[AT_WORK] or self._lane.handed or self._matching.unexpected:
            return False
        if not self._couriers or self._runner.revoked is not None:
            return False
        if any(inbox.has_come for inbox in self._inboxes.values()):
            return False
        for inbox in self._inboxes.values():
            inbox.forget()
        for channels, couriers in ((self._inboxes, self.incoming), (self._outboxes, self.outgoing)):
            for peer, channel in channels.items():
                if channel.courier is None or channel.news is not None:
                    channel.hire(self._lane)
                    if channel.courier is not None:
                        couriers[peer] = channel.courier
        return True

    def _take_up(self) -> None:
        """Go on with the message that a courier handed over."""
        raise NotImplementedError

    # --- ends ---------------------------------------------------------------------------------------------------

    def _while_at_rest(self, work: Callable[[], None]) -> None:
        """Do something to calls under way. Another thread that advances them does it, before it goes on."""
        with self._lock, self._guard:
            self._at_rest.append(work)
            while work in self._at_rest:
                if not self._busy:
                    self._rest()
                    break
                self._gate[WAKE] = 1
                self._await_change(SLICE_S)
        self._call_back()

    def _rest(self) -> None:
        while self._at_rest:
            self._at_rest.pop(0)()

    def _finish(self, request: Request, status: Status | None, error: BaseException | None = None) -> None:
        self._open.discard(request)
        if request.end(status, error):
            self._to_call_back.append(request)

    def _call_back(self) -> None:
        """Call the callbacks of requests that ended, without the lock."""
        while self._to_call_back:
            self._to_call_back.pop().call_back()

    def _give_up(self, error: BaseException) -> None:
        """Revoke the communicator; everything under way ends with the error."""
        name = f"{type(error).__name__} in a message of rank {self._rank}"
        revoked = error if isinstance(error, RunError) else RunError(name)
        self._runner.give_up(revoked)
        self._fail(error if isinstance(error, Exception) else revoked)

    def _fail(self, error: Exception) -> None:
        self._outboxes, self._inboxes, self._matching = {}, {}, Matching(self._ranks)
        for request in tuple(self._open):
            self._finish(request, None, error)
        self._changed.notify_all()

    def _revoked(self) -> RevokedError:
        error = RevokedError(f"this communicator was revoked: {self._runner.revoked}")
        error.__cause__ = self._runner.revoked
        return error

    # --- mailboxes --------------------------------------------------------------------------------------------

    def _open_inboxes(self, source: Rank) -> None:
        for peer in (source,) if isinstance(source, int) else range(self._ranks):
            if peer != self._rank and peer not in self._inboxes:
                self._inboxes[peer] = Inbox(*self._mailbox(peer, self._rank, RECEIVER))

    def _outbox(self, dest: int) -> Outbox:
        self._outboxes[dest] = Outbox(*self._mailbox(self._rank, dest, SENDER))
        return self._outboxes[dest]

    def _mailbox(self, source: int, dest: int, role: int) -> tuple[int, int, Any, int, int, bool, Any]:
        if self._room is None:
            raise ArgumentError(
                f"the pool has no room for mailboxes of {self._ranks} ranks: give it larger cards, or make fewer or "
                f"smaller communicators"
            )
        mailboxes, offset = self._room
        layout = mailboxes.layout
        rounds = 1 if self._lane.whole else max(layout.slots, SEGMENT_BYTES // layout.slot_bytes)
        segment_bytes = layout.slot_bytes * min(rounds, SEGMENT_ROUNDS_MAX)
        peer = dest if role == SENDER else source
        base = offset + mailboxes.at(source, dest)
        return peer, role, layout, base, segment_bytes, self._checked, self._lane.begin
