"""Send and receive as a user calls them: mpi4py's names and meanings, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from collectives.communicator.arrays import Array
from collectives.communicator.calls.arguments import viewed
from collectives.communicator.calls.progress import Handle
from collectives.communicator.messages.addresses import destination, pattern
from collectives.communicator.messages.messenger import Messenger
from collectives.communicator.messages.requests import (
    ANY,
    UNDEFINED,
    MatchedMessage,
    PersistentMessage,
    Rank,
    Request,
    Special,
    Status,
    Tag,
)
from cxlemu.errors import ArgumentError
from cxlemu.numbers import seconds


class PointToPoint:
    """Messages between two ranks of a communicator.

    Messages from one rank to another with the same tag come in the order in which they were sent. Any thread of a rank
    may send and receive at any time, also while another one is in a collective of the same communicator. An array of
    any dtype and size goes, and whatever shares its memory by the buffer protocol or DLPack: bytes travel, and the size
    of elements is compared, where neither side's are bytes.

    A small message, and of a large one as much as its mailbox holds, leaves whether or not the receiver is there yet;
    the rest moves while both ranks wait for something: a request, another message, or a collective. A rank that waits
    for room brings in the small messages that come meanwhile.

    ``timeout_s`` of a call that moves a message (`send`, `recv`, `sendrecv`) replaces the communicator's deadline: the
    peer is then taken for lost, and the communicator revoked, as a part of the message may have gone over, and only one
    of the two ranks knows that the other gave up. What only looks or waits for a request (`probe`, `mprobe`,
    `Request.wait`, `waitany` and the like) has nothing to take back: it raises TimeoutError, and everything stays as it
    is.

    Ranks and tags are integers of any kind: ``dest`` is the rank that receives, which may be this rank itself, and
    ``source`` the rank that sends, or ANY. A send's tag is a number from 0 to 2^31 - 1, and a receive asks for one
    or for ANY. A message to or from `PROC_NULL` is over at once, and no array changes.

    All raise ArgumentError where an argument does not fit (nothing was sent), RevokedError on a communicator that is
    revoked, and RunError where the peer left or did not arrive, or the pool failed: see `Communicator`.
    """

    size: int
    _messenger: Messenger

    def send(self, array: Array, dest: Rank, tag: int = 0, *, timeout_s: float | None = None) -> None:
        """Send an array, and return when it may be changed again: its bytes are in the mailbox, or received.

        Args:
            array: Array of any shape and dtype, or an object that shares its memory; copied if not contiguous.
            timeout_s: How long to wait for the receiver, in seconds (default: the communicator's deadline), before the
                communicator is revoked. To go on instead: ``isend(...).wait(timeout_s)``.
        """
        timeout_s = None if timeout_s is None else seconds(timeout_s, "timeout_s", above_0=True)
        messenger = self._messenger
        courier = messenger.outgoing.get(dest) if type(dest) is int else None
        request = None
        try:
            left = False if courier is None else courier(array, tag)
            if left is True:
                return
            request = (messenger.taken_up(left) if left else None) or messenger.send(array, dest, tag)
            if not request.done:
                messenger.complete(request, None, timeout_s)
            if request.error is not None:
                raise request.error
        except BaseException as error:
            messenger.interrupted_send(request, error, courier, dest, tag)
            raise

    def recv(self, array: Array, source: Rank = ANY, tag: Tag = ANY, *, timeout_s: float | None = None) -> Status:
        """Receive a message into an array.

        Args:
            array: Array, at least as large as the message, which replaces its first elements.
            timeout_s: How long to wait for the sender, in seconds (default: the communicator's deadline), before the
                communicator is revoked. To go on instead: `probe`, or ``irecv(...).wait(timeout_s)``.

        Returns:
            The message's source, tag and size in bytes.

        Raises:
            TruncationError: The message is longer than the array, or its elements are of another size. It is lost, and
                the communicator goes on.
        """
        timeout_s = None if timeout_s is None else seconds(timeout_s, "timeout_s", above_0=True)
        messenger = self._messenger
        courier = messenger.incoming.get(source) if type(source) is int else None
        request = None
        try:
            came = None if courier is None else courier(array, tag)
            if type(came) is Status:
                return came
            request = messenger.taken_up(came) if came else None
            if request is None:
                request = messenger.receive(array, source, tag)
            if not request.done:
                messenger.complete(request, None, timeout_s)
            if request.error is not None:
                raise request.error
            assert request.status is not None
            return request.status
        except BaseException:
            messenger.interrupted_receive(request, array, courier)
            raise

    def isend(self, array: Array, dest: Rank, tag: int = 0) -> Request:
        """Begin to send an array, which must not change before the request is done.

        Args:
            array: Array of any shape and dtype, or an object that shares its memory; copied if not contiguous.

        Returns:
            The request to wait for. Without a wait it is over when the communicator is closed.
        """
        messenger = self._messenger
        courier = messenger.outgoing.get(dest) if type(dest) is int else None
        try:
            left = False if courier is None else courier(array, tag)
            if left is True:
                return messenger.sent(dest, tag, array.nbytes)
            request = messenger.taken_up(left) if left else None
            return (request or messenger.send(array, dest, tag)).holding(array)
        except BaseException as error:
            messenger.interrupted_send(None, error, courier, dest, tag)
            raise

    def irecv(self, array: Array, source: Rank = ANY, tag: Tag = ANY) -> Request:
        """Begin to receive a message into an array.

        Args:
            array: Array, at least as large as the message.

        Returns:
            The request to wait for, whose status describes the message.
        """
        return self._messenger.receive(array, source, tag).holding(array)

    def sendrecv(
        self,
        x: Array,
        dest: Rank,
        out: Array,
        source: Rank = ANY,
        sendtag: int = 0,
        recvtag: Tag = ANY,
        *,
        timeout_s: float | None = None,
    ) -> Status:
        """Send one array and receive another, at once: two ranks that exchange arrays never wait for each other.

        Args:
            x: The array to send.
            out: The array that receives; it does not overlap ``x``.
            timeout_s: How long to wait for each of the two, in seconds (default: the communicator's deadline), before
                the communicator is revoked.

        Returns:
            Source, tag and size in bytes of the received message.
        """
        timeout_s = None if timeout_s is None else seconds(timeout_s, "timeout_s", above_0=True)
        x, out = viewed(x, "x"), viewed(out, "out")
        if isinstance(x, np.ndarray) and isinstance(out, np.ndarray) and np.shares_memory(x, out):
            raise ArgumentError("sendrecv: x and out overlap: receive into another array, or send a copy")
        messenger, coming, leaving = self._messenger, None, None
        try:
            coming = messenger.receive(out, source, recvtag, "out")
            leaving = messenger.send(x, dest, sendtag, "x")
            for request in (coming, leaving):
                if not request.done:
                    messenger.complete(request, None, timeout_s)
            leaving.retire()
            return coming.wait()
        except BaseException as error:
            if coming is not None:
                messenger.unreceive(coming, out)
            if leaving is not None:
                messenger.detach(leaving, error)
            raise

    def probe(self, source: Rank = ANY, tag: Tag = ANY, *, timeout_s: float | None = None) -> Status:
        """Wait for a message without receiving it, to learn where it comes from and how large it is.

        Args:
            timeout_s: How long to wait, in seconds, before a TimeoutError is raised; None: the communicator's deadline.

        Returns:
            The message's source, tag and size in bytes.

        Raises:
            TimeoutError: None arrived within ``timeout_s``; nothing has changed.
        """
        status = self._messenger.probe(source, tag, timeout_s)
        if status is None:
            raise TimeoutError("there is no such message")
        return status

    def iprobe(self, source: Rank = ANY, tag: Tag = ANY) -> Status | None:
        """Return source, tag and size of a message that is there to be received, or None. Raises as `probe`."""
        return self._messenger.probe(source, tag, 0.0)

    def mprobe(self, source: Rank = ANY, tag: Tag = ANY, *, timeout_s: float | None = None) -> MatchedMessage:
        """Wait for a message as `probe` does, and reserve it for the returned object: no other receive takes it.

        Until it is received, messages that the same rank sent after a large one wait behind it.
        """
        message = self._messenger.match(source, tag, timeout_s)
        if message is None:
            raise TimeoutError("there is no such message")
        return message

    def improbe(self, source: Rank = ANY, tag: Tag = ANY) -> MatchedMessage | None:
        """Return a message that is there as `mprobe` does, or None. Raises as `probe`."""
        return self._messenger.match(source, tag, 0.0)

    def send_init(self, array: Array, dest: Rank, tag: int = 0) -> PersistentMessage:
        """Make a send that `PersistentMessage.start` begins, as often as one likes. Arguments are those of `isend`."""
        destination(dest, tag, self.size)
        return PersistentMessage(partial(self.isend, array, dest, tag))

    def recv_init(self, array: Array, source: Rank = ANY, tag: Tag = ANY) -> PersistentMessage:
        """Make a receive that `PersistentMessage.start` begins. Arguments are those of `irecv`."""
        pattern("recv", source, tag, self.size)
        return PersistentMessage(partial(self.irecv, array, source, tag))

    def waitall(self, requests: Sequence[Request | Handle[Any]], timeout_s: float | None = None) -> list[Any]:
        """Wait for all of several requests.

        Args:
            requests: Requests, also of other communicators, and handles of collectives.
            timeout_s: How long to wait for each of them, as `Request.wait`.

        Returns:
            Their statuses, and what the collectives return, in order.

        Raises:
            TimeoutError, TruncationError, RunError: What `Request.wait` raises for the first one that fails; the other
                requests are waited for before that.
        """
        timeout_s, requests = (
            None if timeout_s is None else seconds(timeout_s, "timeout_s"),
            _listed(requests, "waitall"),
        )
        for request in _requests(requests, "waitall", Handle):
            if not request.done:
                request.waiter.complete(request, timeout_s)
        return [request.wait(timeout_s) for request in requests]

    def waitany(self, requests: Sequence[Request], timeout_s: float | None = None) -> int | Special:
        """Wait until one of several requests is done.

        Args:
            requests: Requests, also of other communicators. Those of which a wait or a test has said that they are
                done are skipped: a loop over ``waitany(requests)`` gets each index, or its error, once.
            timeout_s: How long to wait, in seconds, before a TimeoutError is raised; None: the communicator's deadline.

        Returns:
            The index of the first that is done; `UNDEFINED` where all are skipped.

        Raises:
            ArgumentError: One is no request, such as None or a handle.
            TimeoutError: None is done after ``timeout_s``; or after the deadline, where they are of several
                communicators, none of which is then revoked.
            TruncationError, RunError: What ended that request; its ``error`` tells which it was.
        """
        requests = _listed(requests, "waitany")
        indices = self._await_any(requests, timeout_s, "waitany")
        return _retired(requests, indices[:1])[0] if indices else UNDEFINED

    def waitsome(self, requests: Sequence[Request], timeout_s: float | None = None) -> list[int] | None:
        """Wait until one or more of several requests are done.

        Returns:
            The indices of all that are done; None where all are skipped. Arguments and errors are those of `waitany`:
            where one failed, its error is raised, and the next call returns the others.
        """
        requests = _listed(requests, "waitsome")
        indices = self._await_any(requests, timeout_s, "waitsome")
        return _retired(requests, indices) if indices else None

    def _await_any(self, requests: list[Request], timeout_s: float | None, verb: str) -> list[int]:
        """Wait until one is done of those that are not skipped; return the indices of all that are."""
        timeout_s = None if timeout_s is None else seconds(timeout_s, "timeout_s")
        active = _active(requests, verb)
        by_waiter: dict[Any, list[Request]] = {}
        for index in active:
            by_waiter.setdefault(requests[index].waiter, []).append(requests[index])
        if active:
            self._messenger.complete_any_of(by_waiter, timeout_s, verb)
        return [index for index in active if requests[index].done]

    def testall(self, requests: Sequence[Request]) -> bool:
        """Make progress without waiting. Returns whether all are done; until then none of them is skipped later.

        Raises:
            TruncationError, RunError: All are done, and this ended the first that failed; raised each time.
        """
        pending = _requests(_listed(requests, "testall"), "testall")
        over = all([request.poke() for request in pending])  # noqa: C419, each makes progress
        if over:
            for request in pending:
                request.active = False
            for request in pending:
                request.retire()
        return over

    def testany(self, requests: Sequence[Request]) -> tuple[int | Special, bool]:
        """Make progress without waiting, and look whether one of several requests is done.

        Returns:
            Its index, or `UNDEFINED` where none is; and whether one is, or all are skipped. Raises as `waitany`.
        """
        requests = _listed(requests, "testany")
        active = _active(requests, "testany")
        index = next((index for index in active if requests[index].test()), UNDEFINED)
        return index, index is not UNDEFINED or not active

    def testsome(self, requests: Sequence[Request]) -> list[int] | None:
        """Make progress without waiting. Returns the indices of all that are done; None where all are skipped. Raises
        as `waitsome`."""
        requests = _listed(requests, "testsome")
        active = _active(requests, "testsome")
        return _retired(requests, [index for index in active if requests[index].poke()]) if active else None


def _listed(requests: Any, verb: str) -> list[Any]:
    try:
        return list(requests)
    except TypeError:
        raise ArgumentError(f"{verb} takes a list of requests, not a {type(requests).__name__}") from None


def _active(requests: Sequence[Any], verb: str) -> list[int]:
    """Return the indices of requests of which no wait or test has said that they are done."""
    return [index for index, request in enumerate(_requests(requests, verb)) if request.active]


def _retired(requests: list[Request], indices: list[int]) -> list[int]:
    """Return the indices of requests that are done. Where one failed, raise its error; the others are for later."""
    for index in indices:
        if requests[index].error is not None:
            requests[index].retire()
    try:
        for index in indices:
            requests[index].active = False
    except BaseException:  # of the handler of a signal: the caller does not learn of them
        for index in indices:
            requests[index].active = True
        raise
    return indices


def _requests(given: Sequence[Any], verb: str, *others: type) -> list[Request]:
    """Return the requests among what a verb was given. Raises ArgumentError for anything but ``others``."""
    for each in given:
        if not isinstance(each, (Request, *others)):
            raise ArgumentError(
                f"{verb}: a {type(each).__name__} is not a request of a message"
                + (": wait for it by its own wait()" if isinstance(each, Handle) else "")
            )
    return [each for each in given if isinstance(each, Request)]
