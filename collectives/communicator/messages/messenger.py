"""Posts the messages of one rank of a communicator, waits for them, and watches the peers meanwhile.

The thread that waits does the work (traffic.py). Couriers in C carry small messages while nothing is under way, and
hand over to this page what takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from collectives.communicator.arguments import as_array
from collectives.communicator.arrays import Array, as_bytes
from collectives.communicator.messages.addresses import check_destination, check_pattern
from collectives.communicator.messages.channels import Sending
from collectives.communicator.messages.envelopes import ITEM_BYTES_MAX, MESSAGE_BYTES_MAX, unpack
from collectives.communicator.messages.matching import Message, Receive
from collectives.communicator.messages.requests import ANY, Request, Status
from collectives.communicator.messages.traffic import Traffic
from collectives.communicator.messages.transfers import WAKE
from cxlemu.accelerator.arrays import device_view, fetched, put_back
from cxlemu.errors import ArgumentError, DeadlineError, RevokedError, RunError

SLICE_S = 0.05  # how long calls are advanced before the peers are looked at


class Messenger(Traffic):
    """The messages of one rank of a communicator."""

    # --- posting ----------------------------------------------------------------------------------------------

    def send(self, array: Array, dest: int, tag: int) -> Request:
        """Post a send, and let as much of it leave as the mailbox has room for.

        Args:
            array: Array, or what shares its memory, which must not change before the request is done. One on a device
                is copied to pinned memory first.
            dest: The rank that gets it.
            tag: 0 or more.

        Raises:
            ArgumentError: An argument does not fit; nothing was sent.
            RevokedError: The communicator is revoked.
        """
        check_destination(dest, tag, self._ranks)
        view = device_view(array, "array")
        array = np.asarray(as_array(array, "array"), order="C") if view is None else fetched(view)
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
            array: Array, or what shares its memory; the message replaces its first elements. One on a device gets it
                from pinned memory before the request is done.
            source: The rank that sends it, or `ANY`.
            tag: Its tag, or `ANY`.

        Raises:
            ArgumentError: An argument does not fit; nothing was posted.
            RevokedError: The communicator is revoked.
        """
        check_pattern("recv", source, tag, self._ranks)
        view = device_view(array, "array")
        given = as_array(array, "array") if view is None else view.device.pinned(view.buffer.nbytes).view(view.dtype)
        if given.dtype.hasobject:
            raise ArgumentError(f"recv: dtype {given.dtype} holds Python objects, which no other process sends")
        if not (given.flags.writeable if view is None else view.writeable):
            raise ArgumentError("array is read-only, the message cannot be written to it")
        array = given if given.flags.c_contiguous else given.copy()
        target, copy_back = as_bytes(array, "array", writeable=True), None
        if view is not None:
            copy_back = partial(put_back, view, target)
        elif array is not given:
            copy_back = partial(_copy_whole, given, array)
        self._runner.check_usable()
        request = Request(self, source, True, tag, target.nbytes)
        receive = Receive(request, source, tag, target, array.dtype.itemsize, copy_back)
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
            timeout_s: As in `Request.wait`, in seconds; 0: look once.

        Returns:
            Its source, tag and size; None where ``timeout_s`` is 0 and there is none.

        Raises:
            ArgumentError: There is no such rank.
            TimeoutError: None came in ``timeout_s``.
            RunError: What ended the wait; the communicator is revoked.
        """
        check_pattern("probe", source, tag, self._ranks)
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
            timeout_s: After this many seconds a TimeoutError is raised, while the request goes on; None: never.
            patience_s: After this many seconds the communicator is revoked (default: its deadline, or never with
                ``timeout_s``).

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

    def close(self) -> None:
        """Let all sends leave, although no caller may wait for them any more; receives end with a RevokedError.

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

    # --- taking over from couriers ----------------------------------------------------------------------------

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


def _copy_whole(to: Array, array: Array, nbytes: int) -> None:
    """Replace all elements, whatever the message's size: ``array`` began as a copy of them."""
    np.copyto(to, array)
