"""Compares messages with Gloo: what a rank sends also travels by Gloo, and the receiver looks at both.

Messages of one rank with one tag match receives in the order in which both were posted. A receive of any source is
compared when it is known what came; one that was posted after it and might have matched the same waits for that.
"""

import threading
import warnings
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch

from collectives.communicator.arrays import Array, dtype_name
from collectives.communicator.messages.requests import ANY, Rank, Request, Status
from cxlemu.choices import DTYPE_NAMES
from cxlemu.errors import ContractError
from cxlemu.memory.protocol import Bytes
from faults.torch.difference import rank_of
from faults.torch.group_faults import GroupNumbers

STAY = timedelta(seconds=20)


@dataclass(frozen=True)
class MessageDifference:
    group: str
    number: int  # which of the messages that the rank sent or received in the group, as its errors count them
    rank: int  # who received it
    world_rank: int  # the same in the world
    source: Rank  # who sent it
    tag: Rank
    dtype: str  # the elements' type, as plans name it
    element: int  # the first wrong element; -1 where the size is wrong
    count: int  # how many elements are wrong
    of: int  # how many were sent
    got: str  # the wrong element, or the wrong size
    right: str  # what it must be

    def sentence(self) -> str:
        subject = f"message {self.number} of group {self.group}, from rank {self.source}, tag {self.tag}, of "
        text = f"{subject}{self.of} x {self.dtype} differs from Gloo: {rank_of(self.rank, self.world_rank)}, "
        if self.element < 0:
            return f"{text}{self.got} bytes instead of {self.right}"
        where = f"element {self.element}: {self.got} instead of {self.right}"
        return f"{text}{where} ({self.count} of {self.of} elements are wrong)"

    def plain(self) -> dict[str, Any]:
        return asdict(self)


class ComparedReceive:
    """A receive under way, which ends with the comparison. Has what a `Request` has."""

    def __init__(self, request: Request, array: Array, number: int, settle: Callable[[], None]) -> None:
        self.request, self.array, self.number = request, array, number
        self.difference: ContractError | None = None
        self.kept: Bytes | None = None  # what came, where it is compared later
        self._settle = settle

    @property
    def done(self) -> bool:
        """Whether the message came, or failed."""
        return self.request.done

    @property
    def status(self) -> Status | None:
        return None if self.difference is not None else self.request.status

    @property
    def error(self) -> BaseException | None:
        return self.difference or self.request.error

    def wait(self, timeout_s: float | None = None) -> Status:
        """Wait as `Request.wait`. Raises ContractError as well, where something else came than was sent."""
        status = self.request.wait(timeout_s)
        self._settle()
        if self.difference is not None:
            raise self.difference
        return status

    def poke(self) -> bool:
        """Make progress, and return whether the request is done. Compares nothing: any thread may ask, at any time."""
        return self.request.poke()

    def add_done_callback(self, function: Callable[[Any], None]) -> None:
        self.request.add_done_callback(lambda _: function(self))

    def might_match(self, source: Rank, tag: Rank) -> bool:
        return self.request.peer in (ANY, source) and self.request.tag in (ANY, tag)


class MessageShadow:
    """A rank's messages in a group, once more through Gloo."""

    def __init__(
        self, comm: Any, group: str, gloo: Any, on_wrong: Callable[[MessageDifference], None], at: GroupNumbers
    ) -> None:
        self._comm, self._group, self._gloo, self._found, self._at = comm, group, gloo, on_wrong, at
        self._changed = threading.RLock()
        self._leaving: list[tuple[Any, torch.Tensor]] = []  # Gloo reads the tensors
        self._to_itself: dict[Rank, deque[tuple[Bytes, str]]] = defaultdict(deque)  # by tag
        self._posted: list[ComparedReceive] = []  # in order
        self.compared = 0
        self.lost = False  # a message that did not fit is gone, and what follows is not known

    def isend(self, array: Array, dest: int, tag: int = 0) -> Request:
        """Begin to send an array, by Gloo as well."""
        with self._changed:
            raw, name = np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy(), dtype_name(array, reduces=False)
            request: Request = self._comm.isend(array, dest, tag)
            if dest == self._comm.rank:
                self._to_itself[tag].append((raw, name))
                return request
            self._leaving = [each for each in self._leaving if not each[0].is_completed()]
            for part in (np.array([raw.nbytes, DTYPE_NAMES.index(name)], np.int64), raw):
                if part.nbytes:
                    tensor = torch.from_numpy(part)
                    self._leaving.append((self._gloo.send([tensor], dest, tag), tensor))
            return request

    def irecv(self, array: Array, source: Rank = ANY, tag: Rank = ANY) -> ComparedReceive:
        """Begin to receive a message, which is compared when it came."""
        with self._changed:
            receive = ComparedReceive(self._comm.irecv(array, source, tag), array, self._at.messages, self.settle)
            self._posted.append(receive)
            return receive

    def leave(self) -> None:
        """Compare messages that no caller waited for, and stay until the others have compared what this rank sent."""
        self.settle()
        for work, _ in self._leaving:
            try:
                work.wait(STAY)
            except RuntimeError:  # its receiver never looked at it
                return

    def settle(self) -> None:
        """Compare every message that came and whose place in the order is known."""
        with self._changed:
            still_open: list[ComparedReceive] = []
            for receive in list(self._posted):
                status = receive.request.status
                if not receive.request.done:
                    still_open.append(receive)
                elif status is None or self.lost:
                    self.lost = True
                    self._posted.remove(receive)
                elif any(each.might_match(status.source, status.tag) for each in still_open):
                    if receive.kept is None:
                        receive.kept = _bytes(receive.array)[: status.nbytes].copy()
                else:
                    self._posted.remove(receive)
                    self._compare(receive, status)

    def _compare(self, receive: ComparedReceive, status: Status) -> None:
        self.compared += 1
        try:
            right, sent = self._sent(status.source, status.tag)
        except RuntimeError as error:  # Gloo's
            self.lost = True
            self._warn(f"messages of group {self._group} are not compared from number {receive.number} on: {error}")
            return
        came = _bytes(receive.array)[: status.nbytes] if receive.kept is None else receive.kept
        dtype, name = receive.array.dtype, dtype_name(receive.array, reduces=False)
        if sent != name:
            which = f"message {receive.number} of group {self._group}, from rank {status.source}, tag {status.tag}"
            self._warn(f"{which}, was sent as {sent} and is received as {name}: its bytes are not converted")
        element, count, got, wanted = -1, 0, str(came.nbytes), str(right.nbytes)
        if came.nbytes == right.nbytes:
            differ = np.flatnonzero((came != right).reshape(-1, dtype.itemsize).any(axis=1))
            if not differ.size:
                return
            element, count = int(differ[0]), differ.size
            got, wanted = (str(each.view(dtype)[element]) for each in (came, right))
        rank, of = self._comm.rank, right.nbytes // dtype.itemsize
        fields = (self._group, receive.number, rank, self._comm.members[rank], status.source, status.tag, name)
        difference = MessageDifference(*fields, element, count, of, got, wanted)
        self._found(difference)
        receive.difference = ContractError(difference.sentence())

    def _warn(self, sentence: str) -> None:
        warnings.warn(sentence, RuntimeWarning, stacklevel=3)

    def _sent(self, source: Rank, tag: Rank) -> tuple[Bytes, str]:
        """Receive by Gloo what was sent, and the type of its elements."""
        if source == self._comm.rank:
            return self._to_itself[tag].popleft()
        head = torch.zeros(2, dtype=torch.int64)
        self._gloo.recv([head], source, tag).wait()
        raw = torch.zeros(int(head[0]), dtype=torch.uint8)
        if raw.numel():
            self._gloo.recv([raw], source, tag).wait()
        array: Bytes = raw.numpy()
        return array, DTYPE_NAMES[int(head[1])]


def _bytes(array: Array) -> Bytes:
    return array.reshape(-1).view(np.uint8)
