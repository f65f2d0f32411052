"""What a process group on the pool does, whatever torch's class of it is: process_group.py has the classes."""

import atexit
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

from collectives.communicator.communicator import Communicator
from collectives.communicator.messages.requests import ANY, Rank, Request
from collectives.torch import profiled
from collectives.torch import tensors as of
from collectives.torch.allocation import PoolTensors
from collectives.torch.harness import Installed
from collectives.torch.messages import MessageWork, Progress, received
from collectives.torch.monitored import monitored_barrier
from collectives.torch.options import Options
from collectives.torch.order import CallOrder
from collectives.torch.streams import GroupStreams
from collectives.torch.verbs import GroupVerbs, Run
from collectives.torch.work import Ended, Failed, Result, Together, Work
from collectives.torch.world import GroupPool, open_pool, part_of
from cxlemu.dlpack import pin
from cxlemu.errors import CxlemuError, DeadlineError, InputError, MismatchError, PeerLostError
from cxlemu.units import counted

ENDING_S = 2.0  # for calls under way and callbacks; longer would be felt where they wait for a peer that never comes
NO_TIME = timedelta(0)  # torch says that a call has no time of its own by a negative one
_groups: list[Any] = []  # torch may hold them in C++ alone, where their methods would be lost


class CxlGroup(PoolTensors, GroupVerbs):
    """All that a group does, but for what torch calls its class."""

    def _set_up(self, asked: Any, options: Options) -> None:
        self._rank, self._size = asked.group_rank, asked.group_size
        self._store, self._timeout = asked.store, asked.timeout
        self._name, self._description = str(asked.group_id), "undefined"
        self._ranks = list(asked.global_ranks_in_group) or list(range(self._size))  # torch leaves out the world's
        self._number = 0  # of the last call
        self._last: tuple[str, ...] = ()  # how errors name that one
        self._messages = 0  # count of those sent and received
        self._barriers = 0
        self._coalesced: list[Work | MessageWork] | None = None
        self._error: BaseException | None = None
        try:
            self._part = part_of(self._store, self._ranks)
            self._pool: GroupPool | None = open_pool(
                self._part, self._rank, self._ranks, options, self._timeout, self._name
            )
        except CxlemuError as error:
            raise as_torch(error, self._rank, f"the beginning of group {self._name}") from error

        self.comm: Any = self._pool.comm
        if Installed.harness is not None:
            self.comm = Installed.harness.around(self.comm, self._name, self._part)
        self._order = CallOrder(self._name, self._timeout.total_seconds())
        self._done = Ended(self._order)
        self._progress = Progress()
        self._streams = GroupStreams()
        _groups.append(self)

    # --- calls ------------------------------------------------------------------------------------------------

    def _start(self, name: str, run: Run, result: Result, opts: Any, *about: torch.Tensor, detail: str = "") -> Work:
        number = self._number = self._number + 1
        before, self._last = self._last, (name, detail)
        if Installed.harness is not None:
            run = partial(Installed.harness.call, self._name, number, run)
        if opts is not None and (timeout := opts.timeout) > NO_TIME and self._pool is not None:
            run = partial(_within, self._pool.comm, timeout.total_seconds(), run)
        asynchronous = opts is None or opts.asyncOp or self._coalesced is not None
        seen = None
        if torch.autograd._profiler_enabled():
            out = {"Out msg nelems": profiled.received(result)}
            seen = profiled.SeenCall(name, about, out | self._metadata, asynchronous=asynchronous)
            run = run if asynchronous else seen.around(run)
        if asynchronous:
            named = partial(self._named, number, name, detail, about)
            work = self._post(run, result, about, named, partial(self._failed, before=before))
            work.seen = seen
            return work
        try:
            self._order.call(run)
        except CxlemuError as error:
            raise self._failed(error, self._named(number, name, detail, about), before) from error
        return self._done

    def _post(
        self, run: Run, result: Result, about: Sequence[torch.Tensor], named: Callable[[], str], failed: Failed
    ) -> Work:
        pin(about, result)
        work = Work(self._streams.later(run, about), result, self._order, named, failed)
        self._order.post(work, sum(map(of.nbytes, about)))
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    @property
    def _metadata(self) -> dict[str, Any]:
        """What the profiler keeps of the group, by torch's names."""
        return {
            "Process Group Name": self._name,
            "Process Group Description": self._description,
            "Process Group Ranks": str(self._ranks),
            "Group size": self._size,
            "Rank": self._ranks[self._rank],
        }

    def _named(self, number: int, name: str, detail: str, about: Sequence[torch.Tensor]) -> str:
        what = ", ".join(map(of.describe, about[:1])) + (f" and {len(about) - 1} more" if len(about) > 1 else "")
        return " ".join(filter(None, [f"call {number} of group {self._name}:", name, detail, what]))

    def _failed(self, error: CxlemuError, call: str, before: tuple[str, ...] = ()) -> Exception:
        if before and isinstance(error, MismatchError):
            call += f", after {' '.join(filter(None, before))}"
        failed = as_torch(error, self._rank, call)
        if not isinstance(failed, ValueError):  # else nothing was sent, and the group goes on
            self._error = self._error or failed
        return failed

    def start_coalescing(self, device: Any = None) -> None:
        """Collect the calls from now on, until `end_coalescing`."""
        self._coalesced = []

    def end_coalescing(self, device: Any = None) -> Work:
        """Return the work of all calls since `start_coalescing`."""
        works, self._coalesced = self._coalesced or [], None
        return Together(works, [], self._order)

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing
    supports_coalescing = True
    supports_splitting = False

    # --- point to point ---------------------------------------------------------------------------------------

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> MessageWork:
        (tensor,) = tensors
        of.check(tensor)
        post = partial(self.comm.isend, of.as_array(of.dense(tensor)), dst, tag)
        return self._message(f"send to {dst}, tag {tag},", tensor, post, "send", dst, tag)

    def recv(self, tensors: list[torch.Tensor], src: Rank, tag: int = 0) -> MessageWork:
        (tensor,) = tensors
        of.check(tensor)
        post = partial(received, self.comm, tensor, src, tag)
        return self._message(f"recv {'' if src is ANY else f'from {src}'}, tag {tag},", tensor, post, "recv", src, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> MessageWork:
        return self.recv(tensors, ANY, tag)

    def _message(
        self, name: str, tensor: torch.Tensor, post: Callable[[], Request], verb: str, peer: Rank, tag: int
    ) -> MessageWork:
        number = self._messages = self._messages + 1
        if Installed.harness is not None:
            Installed.harness.message(self._name, number)

        def called() -> str:
            return f"message {number} of group {self._name}: {name} of {of.describe(tensor)}"

        try:
            request = post()
        except CxlemuError as error:
            raise self._failed(error, called()) from error
        if not request.done:
            pin(tensor)
        self._progress.watch(request)
        message = MessageWork(request, [tensor], called, self._failed, self._progress)
        if torch.autograd._profiler_enabled():
            world = self._ranks[peer] if isinstance(peer, int) else -1
            about = {"Dst Rank" if verb == "send" else "Src Rank": world, "Tag": tag} | self._metadata
            message.seen = profiled.SeenCall(verb, [tensor], about, asynchronous=True)
        if self._coalesced is not None:
            self._coalesced.append(message)
        return message

    # --- what torch asks of a group ---------------------------------------------------------------------------

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; rank 0 names those that do not come within ``timeout``, also one in BarrierOptions."""
        self._barriers += 1
        if isinstance(timeout, dist.BarrierOptions):  # so torch from 2.14 on
            timeout = timeout.timeout
        allowed = self._timeout if timeout is None else timeout
        monitored_barrier(self._part, self._rank, self._size, self._barriers, allowed, every=wait_all_ranks)

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size

    def getBackendName(self) -> str:
        return "cxl"

    name = _get_backend_name = getBackendName

    def _set_sequence_number_for_group(self) -> None:
        self._number = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._number

    def _wait_for_pending_works(self) -> None:
        self._order.call(lambda: None)

    def set_timeout(self, timeout: timedelta) -> None:
        """Let calls wait for their peers for as long from now on."""
        self._timeout = timeout
        self._order.timeout_s = timeout.total_seconds()
        if self._pool is not None:
            self._pool.comm.deadline_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def get_error(self) -> Any:
        return ErrorType.COMM_ERROR if self._error is not None else ErrorType.SUCCESS

    def eager_connect_single_device(self, device: Any = None) -> None:
        """Do nothing: members meet when the group is made."""

    def shutdown(self) -> None:
        """Leave the group, after the calls that were made; the pool too, if this is its last group here."""
        self._leave()

    def abort(self) -> None:
        """Give the group up: calls under way raise on all ranks."""
        if self._pool is not None:
            self._pool.comm.abort("the program aborted its process group")
        self._leave(given_up=True)

    def _leave(self, *, given_up: bool = False) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        self._order.close()
        left = self._progress.end(ENDING_S)
        try:
            if Installed.harness is not None and self._error is None and not given_up:
                Installed.harness.leaving(self.comm, self._number + self._messages)
            pool.close()
            if lost := sum(request.status is None for request in left):  # what it sends has left by now
                said = f"rank {self._rank} left group {self._name}, and no message came for {counted(lost, 'recv')}"
                warnings.warn(f"cxl: {said}", RuntimeWarning, stacklevel=2)
        except CxlemuError as error:
            if not given_up and self._error is None:
                raise self._failed(error, f"the end of group {self._name}") from error
        finally:
            if self in _groups:
                _groups.remove(self)


@atexit.register
def _end_threads() -> None:
    """Let no thread of ours be in C++ when Python ends: it ends threads there with the whole process, by SIGABRT."""
    end = time.monotonic() + ENDING_S
    for group in list(_groups):
        group._order.end(max(end - time.monotonic(), 0.0))
        group._progress.end(max(end - time.monotonic(), 0.0))


def _within(comm: Communicator, seconds: float, run: Run) -> None:
    with comm.within(seconds):
        run()


def as_torch(error: CxlemuError, rank: int, call: str) -> Exception:
    """Return torch's error for an error of a call: ValueError for arguments, else DistBackendError (" Timed out ")."""
    if isinstance(error, InputError):
        return ValueError(f"cxl: {call} on rank {rank}: {error}")
    gone = isinstance(error, PeerLostError) and "no sign of life" not in str(error)
    silent = isinstance(error, DeadlineError) and not gone
    how = "Timed out waiting: " if silent else ""
    failed: Exception = dist.DistBackendError(f"cxl: rank {rank} in {call}: {how}{error}")
    return failed
