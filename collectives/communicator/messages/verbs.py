"""Send and receive as a user calls them: mpi4py's names and meanings, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence

from collectives.communicator.arrays import Array
from collectives.communicator.messages.messenger import Messenger
from collectives.communicator.messages.requests import ANY, Request, Status


class PointToPoint:
    """Messages between two ranks of a communicator.

    Messages from one rank to another with the same tag come in the order in which they were sent. Any thread of a rank
    may send and receive at any time, also while another one is in a collective of the same communicator. An array of
    any dtype and size goes, and whatever shares its memory by the buffer protocol or DLPack: bytes travel, and the size
    of elements is compared, where neither side's are bytes.

    A small message, and of a large one as much as its mailbox holds, leaves whether or not the receiver is there yet;
    the rest moves while both ranks wait for something: a request, another message, or a collective.
    """

    _messenger: Messenger

    def send(self, array: Array, dest: int, tag: int = 0, *, timeout_s: float | None = None) -> None:
        """Send an array, and return when it may be changed again: all its bytes are in the mailbox, or came.

        Args:
            array: Array of any shape and dtype, or what shares its memory; one that is not contiguous is copied.
            dest: The rank that receives it, which may be this rank itself.
            tag: A number by which the receiver may ask for the message, from 0 to 2^31 - 1.
            timeout_s: How long to wait for the receiver, in seconds (default: the communicator's deadline).

        Raises:
            ArgumentError: An argument does not fit; nothing was sent.
            RunError: The receiver left or did not come, or the pool failed: see `Communicator`.
        """
        messenger = self._messenger
        courier = messenger.outgoing.get(dest)
        left = False if courier is None else courier(array, tag)
        if left:
            return
        request = (messenger.resume_send if left is None else messenger.send)(array, dest, tag)
        if not request.done:
            messenger.complete(request, None, timeout_s)
        if request.error is not None:
            raise request.error

    def recv(self, array: Array, source: int = ANY, tag: int = ANY, *, timeout_s: float | None = None) -> Status:
        """Receive a message into an array.

        Args:
            array: Array, at least as large as the message, which replaces its first elements.
            source: The rank that sends; ANY: whichever does.
            tag: The message's tag; ANY: whichever it has.
            timeout_s: How long to wait for the sender, in seconds (default: the communicator's deadline).

        Returns:
            The message's source, tag and size in bytes.

        Raises:
            ArgumentError: An argument does not fit.
            TruncationError: The message is longer than the array, or its elements are of another size. It is lost, and
                the communicator goes on.
            RunError: The sender left or did not come, or the pool failed: see `Communicator`.
        """
        messenger = self._messenger
        courier = messenger.incoming.get(source)
        came = None if courier is None else courier(array, tag)
        if type(came) is Status:
            return came
        if type(came) is list:
            request = messenger.resume_receive(array, source, tag, came[0])
        else:
            if came is not None:
                messenger.opened(source, came)
            request = messenger.receive(array, source, tag)
        if not request.done:
            messenger.complete(request, None, timeout_s)
        if request.error is not None:
            raise request.error
        assert request.status is not None
        return request.status

    def isend(self, array: Array, dest: int, tag: int = 0) -> Request:
        """Begin to send an array, which must not change before the request is done.

        Args:
            array: Array of any shape and dtype, or what shares its memory; one that is not contiguous is copied.
            dest: The rank that receives it.
            tag: A number by which the receiver may ask for the message, from 0 to 2^31 - 1.

        Returns:
            The request to wait for. Without a wait it is over when the communicator is closed.

        Raises:
            ArgumentError: An argument does not fit; nothing was sent.
            RevokedError: The communicator is revoked.
        """
        messenger = self._messenger
        courier = messenger.outgoing.get(dest)
        left = False if courier is None else courier(array, tag)
        if left:
            return messenger.sent(dest, tag, array.nbytes)
        return (messenger.resume_send if left is None else messenger.send)(array, dest, tag)

    def irecv(self, array: Array, source: int = ANY, tag: int = ANY) -> Request:
        """Begin to receive a message into an array.

        Args:
            array: Array, at least as large as the message.
            source: The rank that sends; ANY: whichever does.
            tag: The message's tag; ANY: whichever it has.

        Returns:
            The request to wait for, whose status says what came.

        Raises:
            ArgumentError: An argument does not fit.
            RevokedError: The communicator is revoked.
        """
        return self._messenger.receive(array, source, tag)

    def sendrecv(
        self,
        x: Array,
        dest: int,
        out: Array,
        source: int = ANY,
        sendtag: int = 0,
        recvtag: int = ANY,
        *,
        timeout_s: float | None = None,
    ) -> Status:
        """Send one array and receive another, at once: two ranks that exchange arrays never wait for each other.

        Args:
            x: The array to send.
            dest: The rank that receives it.
            out: The array for what comes; it does not overlap ``x``.
            source: The rank that sends it; ANY: whichever does.
            sendtag: The tag of what is sent.
            recvtag: The tag of what comes; ANY: whichever it has.
            timeout_s: How long to wait for each of the two, in seconds (default: the communicator's deadline).

        Returns:
            Source, tag and size in bytes of what came.

        Raises:
            ArgumentError, TruncationError, RunError: As `send` and `recv`.
        """
        coming = self._messenger.receive(out, source, recvtag)
        leaving = self._messenger.send(x, dest, sendtag)
        for request in (coming, leaving):
            if not request.done:
                self._messenger.complete(request, None, timeout_s)
        leaving.wait()
        return coming.wait()

    def probe(self, source: int = ANY, tag: int = ANY, *, timeout_s: float | None = None) -> Status:
        """Wait for a message without receiving it, to learn where it comes from and how large it is.

        Args:
            source: The rank that sends; ANY: whichever does.
            tag: The message's tag; ANY: whichever it has.
            timeout_s: How long to wait, in seconds, before a TimeoutError is raised; None: the communicator's deadline.

        Returns:
            The message's source, tag and size in bytes.

        Raises:
            ArgumentError: An argument does not fit.
            TimeoutError: None came in ``timeout_s``.
            RunError: The sender left or did not come, or the pool failed.
        """
        found = self._messenger.probe(source, tag, timeout_s)
        if found is None:
            raise TimeoutError("no such message is there")
        return found

    def iprobe(self, source: int = ANY, tag: int = ANY) -> Status | None:
        """Return source, tag and size of a message that is there to be received, or None. Raises as `probe`."""
        return self._messenger.probe(source, tag, 0.0)

    def waitall(self, requests: Sequence[Request], timeout_s: float | None = None) -> list[Status]:
        """Wait for all of several requests.

        Args:
            requests: Requests of this communicator.
            timeout_s: How long to wait for each of them, as `Request.wait`.

        Returns:
            Their statuses, in order.

        Raises:
            TimeoutError, TruncationError, RunError: What `Request.wait` raises for the first one that fails; the others
                are waited for before that.
        """
        for request in requests:
            if not request.done:
                self._messenger.complete(request, timeout_s)
        return [request.wait(timeout_s) for request in requests]

    def waitany(self, requests: Sequence[Request], timeout_s: float | None = None) -> int:
        """Wait until one of several requests is done, well or with an error.

        Args:
            requests: Requests of this communicator, one or more.
            timeout_s: How long to wait, in seconds, before a TimeoutError is raised; None: the communicator's deadline.

        Returns:
            The index of the first that is done.

        Raises:
            TimeoutError: None is done after ``timeout_s``.
        """
        return self._messenger.complete_any(list(requests), timeout_s)
