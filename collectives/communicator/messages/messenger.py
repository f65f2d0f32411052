"""Sends and receives the messages of one rank of a communicator: posts, makes progress, waits, watches the peers.

The thread that waits does the work: one at a time advances all calls under way, with the GIL released, while others may
post. It finds out by the lane's ``wake``; threads that wait meanwhile are told when it comes back, and one goes on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from collectives.communicator.arguments import as_array
from collectives.communicator.arrays import Array, as_bytes
from collectives.communicator.messages.channels import Channel, Inbox, Outbox, Sending
from collectives.communicator.messages.envelopes import ITEM_BYTES_MAX, MESSAGE_BYTES_MAX, TAG_MAX, unpack
from collectives.communicator.messages.guard import CourierGuard
from collectives.communicator.messages.mailboxes import (
    RECEIVER,
    SEGMENT_BYTES,
    SEGMENT_ROUNDS_MAX,
    SENDER,
    Mailboxes,
)
from collectives.communicator.messages.matching import Matching, Message, Receive
from collectives.communicator.messages.requests import ANY, Request, Status
from collectives.communicator.messages.transfers import ADVANCING, AT_WORK, CLOSED, WAKE, TransferLane
from collectives.communicator.runner import CallRunner
from collectives.communicator.watch import PeerMonitor
from cxlemu import _native
from cxlemu.errors import ArgumentError, DeadlineError, RevokedError, RunError

SLICE_S = 0.05  # how long calls are advanced before the peers are looked at
POKES_MAX = 64  # calls that end while this rank waits for something else


class MailRoom(NamedTuple):
    """The mailboxes of a communicator, and where they begin on every card, in bytes."""

    mailboxes: Mailboxes
    at: int


class Messenger:
    """The messages of one rank of a communicator.

    Args:
        rank: This rank's number in the communicator.
        ranks: The communicator's size.
        room: Where its mailboxes lie; None where the pool has no room for them.
        lane: Runs calls on mailboxes.
        runner: The communicator's, which knows whether it is revoked.
        monitor: Watches the peers, for messages alone.
        checked: Whether checksums travel with what lies in slots.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        room: MailRoom | None,
        lane: TransferLane,
        runner: CallRunner,
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
        self._guard = CourierGuard(self._lock, self._gate, self._settle, runner.deadline_s)
        self._changed = threading.Condition(self._lock)
        self._waiting = 0  # threads that wait for the one that advances calls
        self.outgoing: dict[int, _native.Courier] = {}
        self.incoming: dict[int, _native.Courier] = {}
        self._matching = Matching(ranks)
        self._outboxes: dict[int, Outbox] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._open: set[Request] = set()
        self._to_call_back: list[Request] = []

    # --- posting ----------------------------------------------------------------------------------------------

    def send(self, array: Array, dest: int, tag: int) -> Request:
        """Post a send, and let as much of it leave as the mailbox has room for.

        Args:
            array: Array, or what shares its memory, which must not change before the request is done.
            dest: The rank that gets it.
            tag: 0 or more.

        Raises:
            ArgumentError: An argument does not fit; nothing was sent.
            RevokedError: The communicator is revoked.
        """
        if not (isinstance(dest, int) and 0 <= dest < self._ranks and isinstance(tag, int) and 0 <= tag <= TAG_MAX):
            raise self._misaddressed("send", "dest", dest, tag)
        array = np.asarray(as_array(array, "array"), order="C")
        if array.dtype.hasobject:
            raise ArgumentError(f"send: dtype {array.dtype} holds Python objects, which other processes cannot read")
        source, itemsize = as_bytes(array, "array"), array.dtype.itemsize
        if source.nbytes > MESSAGE_BYTES_MAX or itemsize > ITEM_BYTES_MAX:
            raise ArgumentError(f"send: {source.nbytes} bytes are too large a message: {MESSAGE_BYTES_MAX} at most")
        self._runner.check_usable()
        request = Request(self, dest, False, tag, source.nbytes)
        with self._guard:
            if dest == self._rank:
                self._arrived(Message(dest, tag, source.nbytes, itemsize, source.tobytes(), True))
                self._finish(request, Status(dest, tag, source.nbytes))
            else:
                outbox = self._outboxes.get(dest) or self._outbox(dest)
                self._open.add(request)
                outbox.send(Sending(request, source, tag, itemsize))
                self._push(outbox)
        self._call_back()
        return request

    def sent(self, dest: int, tag: int, nbytes: int) -> Request:
        """Make the request of a message that a courier took."""
        request = Request(self, dest, False, tag, nbytes)
        request.end(Status(self._rank, tag, nbytes))
        return request

    def receive(self, array: Array, source: int, tag: int) -> Request:
        """Post a receive.

        Args:
            array: Array, or what shares its memory; the message replaces its first elements.
            source: The rank that sends it, or `ANY`.
            tag: Its tag, or `ANY`.

        Raises:
            ArgumentError: An argument does not fit; nothing was posted.
            RevokedError: The communicator is revoked.
        """
        self._check_pattern("recv", source, tag)
        array, copied = as_array(array, "array"), None
        if array.dtype.hasobject:
            raise ArgumentError(f"recv: dtype {array.dtype} holds Python objects, which no other process sends")
        if not array.flags.writeable:
            raise ArgumentError("array is read-only, the message cannot be written to it")
        if not array.flags.c_contiguous:
            copied = array, array.copy()
        target = as_bytes(array if copied is None else copied[1], "array", writeable=True)
        self._runner.check_usable()
        request = Request(self, source, True, tag, target.nbytes)
        receive = Receive(request, source, tag, target, array.dtype.itemsize, copied)
        with self._guard:
            self._open_inboxes(source)
            self._open.add(request)
            message = self._matching.post(receive)
            if message is not None:
                self._take(message, receive)
            self._gate[WAKE] = self._busy
        self._call_back()
        return request

    def probe(self, source: int, tag: int, timeout_s: float | None) -> Status | None:
        """Wait for a message that no receive took, without taking it.

        Args:
            source: The rank that sends it, or `ANY`.
            tag: Its tag, or `ANY`.
            timeout_s: As `Request.wait` has it; 0: look once.

        Returns:
            Its source, tag and size; None where ``timeout_s`` is 0 and there is none.

        Raises:
            ArgumentError: There is no such rank.
            TimeoutError: None came in ``timeout_s``.
            RunError: What ended the wait; the communicator is revoked.
        """
        self._check_pattern("probe", source, tag)
        self._runner.check_usable()
        looking = Request(self, source, True, tag, 0)
        found: list[Message] = []

        def ready() -> bool:
            found.extend(filter(None, [self._matching.find(source, tag)]))
            return looking.done or bool(found)

        with self._guard:
            self._open_inboxes(source)
            self._open.add(looking)
            if not ready():
                self._matching.want(source, 1)  # so that what lies in front is brought
                try:
                    self._complete(ready, looking, timeout_s)
                except TimeoutError:
                    if timeout_s or isinstance(looking.error, RunError):
                        raise
                finally:
                    self._matching.want(source, -1)
            self._open.discard(looking)
        self._call_back()
        if looking.error is not None:
            raise looking.error
        return found[0].status if found else None

    # --- waiting ----------------------------------------------------------------------------------------------

    def complete(self, request: Request, timeout_s: float | None, patience_s: float | None = None) -> None:
        """Make progress until a request is done; what ended it is in the request.

        Args:
            request: The request.
            timeout_s: After which a TimeoutError is raised, while the request goes on; None: no such time.
            patience_s: After which the communicator is revoked (default: its deadline, or never with ``timeout_s``).

        Raises:
            TimeoutError: The request is still under way after ``timeout_s``.
        """
        with self._guard:
            if not request.done:
                self._complete(lambda: request.done, request, timeout_s, patience_s)
        self._call_back()

    def complete_any(self, requests: list[Request], timeout_s: float | None) -> int:
        """Make progress until one of several requests is done, and return its index. Raises as `complete`."""

        def ready() -> bool:
            return any(request.done for request in requests)

        with self._guard:
            if not ready():
                self._complete(ready, requests[0], timeout_s)
        self._call_back()
        return next(at for at, request in enumerate(requests) if request.done)

    def poke(self) -> None:
        """Make what progress there is, without waiting; none where another thread makes it already."""
        if (self._open or self._outboxes) and self._guard.enter_at_once():
            try:
                for _ in range(POKES_MAX):
                    if self._busy or not self._advance(0.0):
                        break
            finally:
                self._guard.__exit__()
            self._call_back()

    def wake(self) -> None:
        """Let the thread that advances calls come back soon: the communicator may be revoked."""
        self._gate[CLOSED] = self._gate[WAKE] = 1

    def resume_send(self, array: Array, dest: int, tag: int) -> Request:
        """Make the request of a message whose last bytes a courier began to send."""
        request = Request(self, dest, False, tag, array.nbytes)
        with self._guard.taking_over():
            self._open.add(request)
            self._outboxes[dest].resume(Sending(request, as_bytes(array, "array"), tag, array.dtype.itemsize))
            self._gate[WAKE] = self._busy
        return request

    def resume_receive(self, array: Array, source: int, tag: int, line: bytes) -> Request:
        """Make the request of a message whose last bytes a courier began to receive."""
        request = Request(self, source, True, tag, array.nbytes)
        target = as_bytes(array, "array", writeable=True)
        receive = Receive(request, source, tag, target, array.dtype.itemsize)
        with self._guard.taking_over():
            self._open.add(request)
            nbytes, came, itemsize, _ = unpack(line, source)
            message = Message(source, came, nbytes, itemsize, receive=receive)
            self._inboxes[source].resume(message, target[:nbytes])
            self._gate[WAKE] = self._busy
        return request

    def opened(self, source: int, line: bytes) -> None:
        """Take the envelope of a message that a courier brought and could not deliver."""
        with self._guard.taking_over():
            try:
                self._arrived(self._inboxes[source].came(line))
            except Exception as error:  # a line that no rank writes
                self._give_up(error)

    def close(self) -> None:
        """Let all sends leave, for which nobody may wait any more; receives end with a RevokedError.

        Raises:
            RunError: What ended a send.
        """
        for request in [each for each in tuple(self._open) if not each.receives]:
            request.wait()
        with self._guard:
            self._fail(RevokedError("the communicator was closed before a message came"))
        self._call_back()

    def _complete(
        self, ready: Callable[[], bool], about: Request, timeout_s: float | None, patience_s: float | None = None
    ) -> None:
        """Make progress until ``ready()``; ``about`` says what is waited for. With the lock held."""
        began: float | None = None
        if patience_s is None:
            patience_s = self._runner.deadline_s if timeout_s is None else math.inf
        slice_s = SLICE_S if timeout_s is None else min(SLICE_S, timeout_s)
        while True:
            if self._advance(slice_s):
                if ready():
                    return
                continue
            if ready():
                return
            now = self._clock.now()
            began = now - slice_s if began is None else began
            if timeout_s is not None:
                left_s = began + timeout_s - now
                if left_s <= 0:
                    raise TimeoutError(f"rank {self._rank}: [{about.call}] has not ended after {timeout_s:g} s")
                slice_s = min(SLICE_S, left_s)
            self._watch(about, now - max(began, about.moved_at), patience_s)
            if ready():
                return

    def _watch(self, about: Request, waited_s: float, patience_s: float) -> None:
        """Look whether what is waited for may still come; where it may not, the communicator is given up."""
        peers = {rank for rank in range(self._ranks) if rank != self._rank}
        whose = "any rank" if about.peer == ANY else f"rank {about.peer}"
        waits = f"rank {self._rank} waits in [{about.call}] for {whose} to {'send' if about.receives else 'make room'}"
        try:
            awaited: Iterable[int] = {about.peer} & peers
            if about.peer == ANY and peers:
                members = self._monitor.members
                gone = self._monitor.context.session.departed(members[rank] for rank in peers)
                awaited = peers if len(gone) == len(peers) else ()
            self._monitor.look(waits, awaited, waited_s, patience_s)
            if waited_s > patience_s:
                what = waits.partition(" waits in ")[2]
                raise DeadlineError(f"rank {self._rank} waited {waited_s:.1f} s in {what}")
        except Exception as error:
            self._give_up(error)

    # --- progress: with the lock held ---------------------------------------------------------------------------

    def _advance(self, idle_s: float) -> bool:
        """Go on with all calls under way, or wait for the thread that does. Whether this thread saw any end."""
        if self._runner.revoked is not None:
            self._fail(self._revoked())
            return True
        if self._busy:
            self._waiting += 1
            self._changed.wait(idle_s)
            self._waiting -= 1
            return False
        channels = self._under_way()
        if not channels:  # only messages to itself can come
            if idle_s:
                self._changed.wait(min(idle_s, 1e-3))
            return False
        calls = [channel.current for channel in channels if channel.current is not None]
        self._gate[WAKE] = 0
        self._busy = True
        self._lock.release()
        try:
            ended = self._lane.advance(calls, idle_s)
        except Exception as error:
            self._lock.acquire()
            self._busy = False
            self._give_up(error)
            return True
        except BaseException:  # Ctrl-C: what is under way stays so
            self._lock.acquire()
            self._busy = False
            raise
        self._lock.acquire()
        self._busy = False
        if ended is not None:
            self._ended(channels[calls.index(ended)])
        else:
            self._note_progress(channels)
        if self._waiting:
            self._changed.notify_all()
        return ended is not None

    def _note_progress(self, channels: list[Channel]) -> None:
        """Nobody gives up a message of which a part went over, although its call has not ended."""
        for channel in channels:
            its, request = channel.current, channel.request
            if its is not None and its.has_moved() and request is not None:
                request.moved_at = self._clock.now()

    def _push(self, outbox: Outbox) -> None:
        """Let a message that was just posted leave as far as it can, unless another thread sees to it."""
        if self._busy:
            self._gate[WAKE] = 1
            return
        try:
            while outbox.current is not None and self._lane.advance([outbox.current], 0.0) is not None:
                self._ended(outbox)
        except Exception as error:
            self._give_up(error)

    def _under_way(self) -> list[Channel]:
        """The mailboxes to go on with: those that a message leaves by, or from which one is wanted."""
        found: list[Channel] = [outbox for outbox in self._outboxes.values() if outbox.current is not None]
        for peer, inbox in self._inboxes.items():
            if self._matching.waits_for(peer):
                if inbox.held:  # the message that is waited for comes after this one
                    assert inbox.body is not None
                    inbox.body.data = np.empty(inbox.body.nbytes, np.uint8)
                    inbox.read(inbox.body.data)
                inbox.look()
            elif inbox.body is None:
                continue
            if inbox.current is not None:
                found.append(inbox)
        return found

    def _ended(self, channel: Channel) -> None:
        """A call of a channel ended: a message or a part of it left, or came."""
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
        except Exception as error:  # a line that no rank writes, or no memory for a message
            self._give_up(error)

    def _arrived(self, message: Message) -> None:
        """A message came, or its envelope: to the receive that takes it, if there is one."""
        receive = self._matching.arrive(message)
        if receive is not None:
            self._take(message, receive)

    def _take(self, message: Message, receive: Receive) -> None:
        """A receive takes a message: now, or when its bytes have come."""
        message.receive = receive
        if message.complete:
            self._deliver(message, receive)
        elif message.data is None:  # held in the mailbox
            fits = message.fits(receive)
            self._inboxes[message.source].read(receive.target[: message.nbytes] if fits else None)

    def _deliver(self, message: Message, receive: Receive) -> None:
        if not message.fits(receive):
            self._finish(receive.request, None, message.misfit(receive))
            return
        if message.data is not None and message.nbytes:
            receive.target[: message.nbytes] = np.frombuffer(message.data, np.uint8)
        if receive.copied is not None:
            np.copyto(*receive.copied)
        self._finish(receive.request, message.status)

    @property
    def _busy(self) -> bool:
        """Whether a thread advances calls, without the lock."""
        return self._gate[ADVANCING] != 0

    @_busy.setter
    def _busy(self, busy: bool) -> None:
        self._gate[ADVANCING] = busy

    def _settle(self) -> bool:
        """Whether couriers may carry messages from now on: nothing is under way, and nothing has come."""
        if self._open or self._busy or self._gate[AT_WORK] or self._matching.unexpected:
            return False
        if not self._couriers or self._runner.revoked is not None:
            return False
        if any(inbox.body is not None for inbox in self._inboxes.values()):
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

    # --- ends ---------------------------------------------------------------------------------------------------

    def _finish(self, request: Request, status: Status | None, error: BaseException | None = None) -> None:
        self._open.discard(request)
        if request.end(status, error):
            self._to_call_back.append(request)

    def _call_back(self) -> None:
        """Call those who asked to be told. Without the lock."""
        while self._to_call_back:
            self._to_call_back.pop().call_back()

    def _give_up(self, error: Exception) -> None:
        """Revoke the communicator; everything under way ends with the error."""
        name = f"{type(error).__name__} in a message of rank {self._rank}"
        self._runner.give_up(error if isinstance(error, RunError) else RunError(name))
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._outboxes, self._inboxes, self._matching = {}, {}, Matching(self._ranks)
        for request in tuple(self._open):
            self._finish(request, None, error)
        self._changed.notify_all()

    def _revoked(self) -> RevokedError:
        error = RevokedError(f"this communicator is revoked since: {self._runner.revoked}")
        error.__cause__ = self._runner.revoked
        return error

    # --- ranks and mailboxes --------------------------------------------------------------------------------------

    def _misaddressed(self, verb: str, role: str, rank: object, tag: object) -> ArgumentError:
        if not isinstance(rank, int) or not 0 <= rank < self._ranks:
            which = " or ANY" if role == "source" else ""
            return ArgumentError(f"{verb}: {role} {rank!r} is not one of the ranks 0..{self._ranks - 1}{which}")
        which = ", or ANY" if role == "source" else ""
        return ArgumentError(f"{verb}: a tag is a whole number from 0 to {TAG_MAX}{which}, not {tag!r}")

    def _check_pattern(self, verb: str, source: int, tag: int) -> None:
        """Raises ArgumentError unless these are a source and a tag to receive from, or `ANY`."""
        ranks, tags = range(ANY, self._ranks), range(ANY, TAG_MAX + 1)
        if not (isinstance(source, int) and source in ranks and isinstance(tag, int) and tag in tags):
            raise self._misaddressed(verb, "source", 0 if source == ANY else source, tag)

    def _open_inboxes(self, source: int) -> None:
        for peer in range(self._ranks) if source == ANY else (source,):
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
        mailboxes, at = self._room
        layout = mailboxes.layout
        rounds = 1 if self._lane.whole else max(layout.slots, SEGMENT_BYTES // layout.slot_bytes)
        segment_bytes = layout.slot_bytes * min(rounds, SEGMENT_ROUNDS_MAX)
        peer = dest if role == SENDER else source
        base = at + mailboxes.at(source, dest)
        return peer, role, layout, base, segment_bytes, self._checked, self._lane.begin
