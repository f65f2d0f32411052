"""Posts the messages of one rank of a communicator, waits for them, and watches the peers meanwhile.

The thread that waits does the work (traffic.py). Couriers in C carry small messages while nothing is under way, and
hand over to this page what takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from collectives.communicator.arrays import Array, as_bytes, check_distinct
from collectives.communicator.calls.arguments import as_array
from collectives.communicator.messages.addresses import destination, pattern
from collectives.communicator.messages.channels import Sending
from collectives.communicator.messages.envelopes import ITEM_BYTES_MAX, MESSAGE_BYTES_MAX, unpack
from collectives.communicator.messages.matching import Message, Receive
from collectives.communicator.messages.requests import ANY, PROC_NULL, MatchedMessage, Rank, Request, Status, Tag
from collectives.communicator.messages.traffic import SLICE_S, Traffic
from collectives.communicator.messages.transfers import WAKE
from cxlemu._native import Courier
from cxlemu.accelerator.arrays import device_view, fetched, put_back
from cxlemu.errors import ArgumentError, DeadlineError, RevokedError, RunError
from cxlemu.numbers import seconds
from cxlemu.signals import is_from_handler

TURN_S = 1e-3  # how long each communicator of several is waited for; and between two looks of who awaits a message
IDLE_LOOKS = 100  # of who awaits a message, before it pauses between two


class Messenger(Traffic):
    _glance_at = 0.0  # before that time, on the session's clock, calls that do not wait do not look at the peers

    # --- posting ----------------------------------------------------------------------------------------------

    def send(self, array: Array, dest: Rank, tag: int, role: str = "array") -> Request:
        """Post a send, and let what there is room for leave; the array must not change before the request is done."""
        dest, tag = destination(dest, tag, self._ranks)
        array = _contents(array, role)
        if array.dtype.hasobject:
            raise ArgumentError(f"send: dtype {array.dtype} holds Python objects, which other processes cannot read")
        source, itemsize = as_bytes(array, role), array.dtype.itemsize
        if source.nbytes > MESSAGE_BYTES_MAX or itemsize > ITEM_BYTES_MAX:
            raise ArgumentError(f"send: {source.nbytes} bytes are too large a message: {MESSAGE_BYTES_MAX} at most")
        self._runner.check_usable()
        request = Request(self, dest, False, tag, source.nbytes)
        if not isinstance(dest, int):
            request.end(Status(self._rank, tag, source.nbytes))
            return request
        try:
            with self._lock, self._guard:
                if dest == self._rank:
                    self._arrived(Message(dest, tag, source.nbytes, itemsize, source.tobytes(), True))
                    self._finish(request, Status(dest, tag, source.nbytes))
                else:
                    outbox = self._outboxes.get(dest) or self._outbox(dest)
                    self._open.add(request)
                    outbox.send(Sending(request, source, tag, itemsize))
                    self._push(outbox)
            self._call_back()
        except BaseException as error:
            self.detach(request, error)
            raise
        return request

    def sent(self, dest: Rank, tag: int, nbytes: int) -> Request:
        """Make the request of a message that a courier took."""
        request = Request(self, dest, False, int(tag), nbytes)
        request.end(Status(self._rank, int(tag), nbytes))
        return request

    def receive(self, array: Array, source: Rank, tag: Tag, role: str = "array") -> Request:
        """Post a receive; the message replaces the array's first elements."""
        receive = self._receive(array, *pattern("recv", source, tag, self._ranks), role)
        request = receive.request
        if receive.source is PROC_NULL:
            request.end(Status(PROC_NULL, ANY, 0))
            return request
        try:
            with self._lock, self._guard:
                self._open_inboxes(receive.source)
                self._open.add(request)
                message = self._matching.post(receive)
                if message is not None:
                    self._take(message, receive)
                self._gate[WAKE] = self._busy
            self._call_back()
        except BaseException:
            self.unreceive(request, array)
            raise
        return request

    def receive_matched(self, message: Message, array: Array) -> Request:
        """Receive a message that a probe took, once."""
        if message.receive is not None:
            raise ArgumentError("this message was received before: a matched message is received once")
        receive = self._receive(array, message.source, message.tag, "array")
        try:
            with self._lock, self._guard:
                self._open.add(receive.request)
                self._take(message, receive)
                self._gate[WAKE] = self._busy
            self._call_back()
        except BaseException:
            self.unreceive(receive.request, array, message)
            raise
        return receive.request

    def _receive(self, array: Array, source: Rank, tag: Tag, role: str) -> Receive:
        view = device_view(array, role)
        given = as_array(array, role) if view is None else view.device.pinned(view.buffer.nbytes).view(view.dtype)
        if given.dtype.hasobject:
            raise ArgumentError(f"recv: dtype {given.dtype} holds Python objects, which no other process sends")
        if not (given.flags.writeable if view is None else view.writeable):
            raise ArgumentError(f"{role} is read-only: the message cannot be written to it")
        if not given.flags.c_contiguous:
            check_distinct(given, role)
        array = given if given.flags.c_contiguous else given.copy()
        target, copy_back = as_bytes(array, role, writeable=True), None
        if view is not None:
            copy_back = partial(put_back, view, target)
        elif array is not given:
            copy_back = partial(_copy_whole, given, array)
        self._runner.check_usable()
        request = Request(self, source, True, tag, target.nbytes)
        return Receive(request, source, tag, target, array.dtype.itemsize, copy_back)

    def match(self, source: Rank, tag: Tag, timeout_s: float | None) -> MatchedMessage | None:
        """Take a message that no receive took, as `probe` finds it, so that only its own receive has it."""
        messages: list[Message] = []
        try:
            self._find("mprobe", source, tag, timeout_s, messages, take=True)
            return MatchedMessage(self, messages[0]) if messages else None
        except BaseException:
            if messages and isinstance(messages[0].source, int):
                self._while_at_rest(partial(self._offer, messages[0]))
            raise

    def probe(self, source: Rank, tag: Tag, timeout_s: float | None) -> Status | None:
        """Wait for a message that no receive took, without taking it; None if ``timeout_s`` is 0 and there is none."""
        messages: list[Message] = []
        self._find("probe", source, tag, timeout_s, messages, take=False)
        return messages[0].status if messages else None

    def _find(
        self, verb: str, source: Rank, tag: Tag, timeout_s: float | None, found: list[Message], *, take: bool
    ) -> None:
        timeout_s = None if timeout_s is None else seconds(timeout_s, "timeout_s")
        source, tag = pattern(verb, source, tag, self._ranks)
        self._runner.check_usable()
        if source is PROC_NULL:
            found.append(Message(PROC_NULL, ANY, 0, 1, b"", True))
            return
        looking = Request(self, source, True, tag, 0, verb)

        def ready() -> bool:
            found.extend(filter(None, [self._matching.find(source, tag)]))
            return looking.done or bool(found)

        with self._lock, self._guard:
            self._open_inboxes(source)
            self._open.add(looking)
            try:
                if not ready():
                    self._matching.want(source, 1)  # so that what lies in front is brought
                    try:
                        self._complete(ready, looking, timeout_s)
                    except TimeoutError:
                        if timeout_s or isinstance(looking.error, RunError):
                            raise
                    finally:
                        self._matching.want(source, -1)
            finally:
                self._open.discard(looking)
            if found and take:
                self._matching.unexpected.remove(found[0])
        self._call_back()
        if looking.error is not None:
            raise looking.error

    # --- waiting ----------------------------------------------------------------------------------------------

    def complete(self, request: Request, timeout_s: float | None, patience_s: float | None = None) -> None:
        """Make progress until a request is done; what ended it is in the request."""
        self._runner.home.check()
        with self._lock, self._guard:
            if not request.done:
                self._complete(lambda: request.done, request, timeout_s, patience_s)
        self._call_back()

    def complete_any(self, requests: list[Request], timeout_s: float | None) -> None:
        """Make progress until one of several requests is done. Raises as `complete`."""

        def ready() -> bool:
            return any(request.done for request in requests)

        self._runner.home.check()
        with self._lock, self._guard:
            if not ready():
                self._complete(ready, requests[0], timeout_s)
        self._call_back()

    def complete_any_of(self, by: dict[Messenger, list[Request]], timeout_s: float | None, verb: str) -> None:
        """As `complete_any`, for requests of several messengers, each of which makes progress in turn."""
        if len(by) == 1:
            for messenger, requests in by.items():
                messenger.complete_any(requests, timeout_s)
            return
        timeout_s = self._runner.deadline_s if timeout_s is None else timeout_s
        until = self._clock.now() + timeout_s
        while True:
            for messenger, requests in by.items():
                with suppress(TimeoutError):
                    messenger.complete_any(requests, TURN_S)
                if any(request.done for request in requests):
                    return
            if self._clock.now() > until:
                raise TimeoutError(f"{verb}: no request has ended after {timeout_s:g} s")

    def poke(self, about: Request | None = None) -> None:
        """Make what progress there is, without waiting, and look now and then whether ``about`` may still come."""
        super().poke()
        if about is None or about.done or self._clock.now() < self._glance_at or self._guard.taken:
            return
        with self._lock, self._guard:
            if not (about.done or self._busy):
                self._glance(about, self._clock.now())
        self._call_back()

    def attend(self, request: Request) -> Iterator[float]:
        """As `complete`, but yield again and again for how many seconds the caller may do something else, or stop.

        Only the time counts that passes between two looks in a row: the caller may be away for longer.
        """
        now = self._clock.now()
        waited_s, look_at, idle = 0.0, now + SLICE_S, 0
        while True:
            moved_at, before = request.moved_at, now
            super().poke()
            if request.done:
                return
            now = self._clock.now()
            waited_s, idle = waited_s + min(now - before, SLICE_S), idle + 1
            if request.moved_at != moved_at:
                waited_s, idle = 0.0, 0
            if now >= look_at:
                look_at = now + SLICE_S
                with self._lock, self._guard:
                    if not request.done:
                        self._watch(request, waited_s, self._runner.deadline_s)
                self._call_back()
            yield 0.0 if idle < IDLE_LOOKS else TURN_S

    def close(self) -> None:
        """Let all sends leave, although no caller may wait for them any more; receives end with a RevokedError."""
        for request in [each for each in tuple(self._open) if not each.receives]:
            request.wait()
        with self._lock, self._guard:
            self._fail(RevokedError("the communicator was closed before a message arrived"))
            self._couriers = False  # which would go on in room that is given back
        self._call_back()

    def _complete(
        self, ready: Callable[[], bool], about: Request, timeout_s: float | None, patience_s: float | None = None
    ) -> None:
        """Make progress until ``ready()``; ``about`` says what is waited for. With the lock held."""
        self._guard.half_done = False
        began: float | None = None
        if patience_s is None:
            patience_s = self._runner.deadline_s if timeout_s is None else math.inf
        slice_s = SLICE_S if timeout_s is None else min(SLICE_S, timeout_s)
        if any(outbox.current is not None for outbox in self._outboxes.values()):
            self._open_inboxes(ANY)  # whoever is to make room may itself wait for room
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
                    self._glance(about, now)
                    if ready():
                        return
                    raise TimeoutError(f"rank {self._rank}: [{about.call}] has not ended after {timeout_s:g} s")
                slice_s = min(SLICE_S, left_s)
            self._watch(about, now - max(began, about.moved_at), patience_s)
            if ready():
                return

    def _glance(self, about: Request, now: float) -> None:
        """Look at the peers for a call that does not wait, as a program may make it again and again."""
        if now >= self._glance_at:
            self._glance_at = now + SLICE_S
            self._watch(about, 0.0, math.inf)

    def _watch(self, about: Request, waited_s: float, patience_s: float) -> None:
        """Look whether what is waited for may still come; where it may not, the communicator is given up."""
        peers = {rank for rank in range(self._ranks) if rank != self._rank}
        whose = "any rank" if about.peer is ANY else f"rank {about.peer}"
        waits = f"rank {self._rank} waits in [{about.call}] for {whose} to {'send' if about.receives else 'make room'}"
        try:
            awaited: Iterable[int] = {about.peer} & peers if isinstance(about.peer, int) else ()
            if about.peer is ANY and peers:
                members = self._monitor.members
                gone = self._monitor.context.session.departed(members[rank] for rank in peers)
                awaited = peers if len(gone) == len(peers) else ()
            self._monitor.look(waits, awaited, waited_s, patience_s)
            if waited_s > patience_s:
                what = waits.partition(" waits in ")[2]
                raise DeadlineError(f"rank {self._rank} waited {waited_s:.1f} s in {what}")
        except Exception as error:
            if is_from_handler(error):
                raise
            self._give_up(error)

    # --- after the handler of a signal raised ------------------------------------------------------------------

    def interrupted_receive(self, request: Request | None, array: Array, courier: Courier | None) -> None:
        """Undo a receive that its courier may have carried, whose caller does not learn of it."""
        if request is None and courier is not None and courier.last is not None:
            if type(courier.last) is list:
                request = self.taken_up(courier.last)
            else:
                request = Request(self, courier.last.source, True, courier.last.tag, 0)
                request.end(courier.last)
        if request is not None:
            self.unreceive(request, array)

    def unreceive(self, request: Request, array: Array, matched: Message | None = None) -> None:
        """Undo a receive whose caller does not learn of it: its message, if it has one, is there for another receive,
        or for that of the ``matched`` message. One that does not fit its array is lost."""

        def undo() -> None:
            inbox = next((each for each in self._inboxes.values() if each.request is request), None)
            message: Message | None = None
            if inbox is not None and (message := inbox.release()) is None:
                return
            if inbox is None and request.status is not None and isinstance(request.status.source, int):
                contents = _contents(array, "array")
                message = matched or Message(*request.status, contents.dtype.itemsize, arrival=request.arrival)
                message.data, message.complete = as_bytes(contents, "array")[: message.nbytes].copy(), True
                message.receive = None
            self._matching.withdraw(request)
            self._open.discard(request)
            if message is not None and matched is None:
                self._offer(message)

        self._while_at_rest(undo)

    def interrupted_send(
        self, request: Request | None, error: BaseException, courier: Courier | None, dest: Any, tag: Any
    ) -> None:
        """As `detach`, for a send that its courier may have carried."""
        if request is None and courier is not None and courier.last:
            if courier.last is True:
                _note_sent(error, dest, tag)
                return
            request = self.taken_up(courier.last)
        if request is not None:
            self.detach(request, error)

    def detach(self, request: Request, error: BaseException) -> None:
        """Let a send whose caller does not learn of it go on from a copy of its array, and the error say so."""

        def undo() -> None:
            waits = any(outbox.copy(request) for outbox in self._outboxes.values())
            if waits or (request.status is not None and isinstance(request.peer, int)):
                _note_sent(error, request.peer, request.tag)

        self._while_at_rest(undo)

    # --- taking over from couriers ----------------------------------------------------------------------------

    def taken_up(self, handed: list[Any]) -> Request | None:
        """Return the request of a message that a courier handed over; None where only its envelope came."""
        with self._lock, self._guard:
            request: Request | None = handed[-1]
        return request

    def _take_up(self) -> None:
        """Go on with the message that a courier handed over; all of it again where a handler raised in here.

        Nothing else was under way, and no message waited.
        """
        handed = self._lane.handed[0]
        peer, array, tag, line, begun, request = handed
        if begun and request is None:
            tag = tag if tag is ANY else int(tag)
            request = handed[-1] = Request(self, peer, line is not None, tag, array.nbytes)
        if begun:
            self._open.add(request)
        try:
            if line is None:
                sending = Sending(request, as_bytes(array, "array"), request.tag, array.dtype.itemsize)
                self._outboxes[peer].resume(sending)
            elif begun:
                nbytes, came, itemsize, _ = unpack(line, peer)
                target = as_bytes(array, "array", writeable=True)
                receive = Receive(request, peer, request.tag, target, array.dtype.itemsize)
                self._inboxes[peer].resume(Message(peer, came, nbytes, itemsize, receive=receive), target[:nbytes])
            else:
                self._matching.unexpected = [self._inboxes[peer].came(line)]
        except Exception as error:  # a line that no rank writes
            if is_from_handler(error):
                raise
            self._give_up(error)
        self._lane.handed.clear()
        handed[1] = None  # its courier may keep the list for long


def _note_sent(error: BaseException, dest: Any, tag: Any) -> None:
    """Let the exception that interrupted a send say that its message is sent all the same."""
    error.add_note(f"The message to rank {dest}, tag {tag}, is sent all the same: do not send it again.")


def _contents(array: Any, role: str) -> Array:
    """View an argument's elements in C order, or copy them."""
    view = device_view(array, role)
    return np.asarray(as_array(array, role), order="C") if view is None else fetched(view)


def _copy_whole(to: Array, array: Array, nbytes: int) -> None:
    """Replace all elements, whatever the message's size: ``array`` began as a copy of them."""
    np.copyto(to, array)
