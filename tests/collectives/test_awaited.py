"""Requests and handles in asyncio: awaiting lets other tasks run, and a cancelled one leaves the call under way."""

import asyncio
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from cxlemu.errors import DeadlineError, PeerLostError, RevokedError, TruncationError
from tests.helpers.worlds import on_ranks, together


@on_ranks(gives=[[3, 6], [3, 5]])
def test_handles_and_requests_are_awaited(comm: Communicator) -> list[float]:
    async def both() -> list[float]:
        peer, out = 1 - comm.rank, np.zeros(1)
        coming = comm.irecv(out, peer)
        total, _ = await asyncio.gather(comm.all_reduce(np.full(1, comm.rank + 1.0), async_op=True), send())
        assert await coming == (peer, 0, 8) and await coming == coming.status
        return [total[0], out[0]]

    async def send() -> None:
        await comm.isend(np.full(1, comm.rank + 5.0), 1 - comm.rank)

    return asyncio.run(both())


@on_ranks(gives=[[k + 1 for k in range(50)]] * 2)
def test_other_tasks_run_while_messages_are_awaited(comm: Communicator) -> list[float]:
    """More messages than asyncio has threads; each comes only when another task sends."""
    peer, count, large = 1 - comm.rank, 50, 1 << 18

    async def main() -> list[float]:
        outs = [np.zeros(large if k == 0 else 1) for k in range(count)]
        coming = [asyncio.ensure_future(comm.irecv(out, peer, k)) for k, out in enumerate(outs)]
        await asyncio.sleep(0)  # all are awaited
        for k in reversed(range(count)):
            await comm.isend(np.full(outs[k].size, k + 1.0), peer, k)
        assert [status.tag for status in await asyncio.gather(*coming)] == list(range(count))
        return [float(out[-1]) for out in outs]

    return asyncio.run(main())


@on_ranks()
def test_a_cancelled_await_leaves_its_request_under_way(comm: Communicator) -> None:
    peer, out, sent = 1 - comm.rank, np.zeros(1), np.full(1 << 18, 7.0)  # more than a mailbox takes

    async def impatient() -> list[Any]:
        requests: list[Any] = [comm.irecv(out, peer, 1), comm.isend(sent, peer, 2)]
        for request in requests:
            with suppress(TimeoutError):
                await asyncio.wait_for(request, 1e-3)
            task = asyncio.ensure_future(request)
            await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert task.cancelled() or request is requests[1]  # a peer that waits takes what comes
        return requests

    before, comm.deadline_s = comm.deadline_s, 0.2  # which who goes on to wait reaches, and revokes
    requests = asyncio.run(impatient())
    comm.deadline_s = before
    assert not requests[0].done
    comm.barrier()
    comm.send(np.full(1, comm.rank + 1.0), peer, 1)
    large = np.zeros(1 << 18)
    comm.recv(large, peer, 2)
    assert requests[0].wait() == (peer, 1, 8) and out[0] == peer + 1 and (large == 7).all()
    assert requests[1].wait() == (comm.rank, 2, sent.nbytes)


@on_ranks()
def test_an_awaited_message_has_the_deadline_of_its_communicator(comm: Communicator) -> None:
    async def receive() -> None:
        comm.deadline_s = 0.2
        with pytest.raises(DeadlineError, match=r"rank 0 waited .* in \[recv from rank 1"):
            await comm.irecv(np.zeros(1), 1)

    if comm.rank == 0:
        asyncio.run(receive())
    with pytest.raises(RevokedError if comm.rank == 0 else DeadlineError):
        comm.barrier()


@on_ranks()
def test_an_awaited_message_ends_with_its_peer(comm: Communicator) -> None:
    async def receive() -> None:
        with pytest.raises(PeerLostError, match="rank 1"):
            await comm.irecv(np.zeros(1), 1)

    if comm.rank == 0:
        asyncio.run(receive())


@on_ranks(gives=[8, 8])
def test_an_awaited_call_that_is_cancelled_runs_all_the_same(comm: Communicator) -> float:
    async def impatient(x: np.ndarray) -> None:
        handles = [comm.all_reduce(x, async_op=True) for _ in range(2)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handles[1], 1e-9)
        await handles[1]

    x = np.ones(1)
    asyncio.run(impatient(x))
    return float(comm.all_reduce(x)[0])


def test_an_await_that_is_cancelled_has_not_seen_the_error_of_its_call(caplog: pytest.LogCaptureFixture) -> None:
    def program(comm: Communicator) -> None:
        async def impatient() -> None:
            handle = comm.all_reduce(np.ones(1), async_op=True)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(handle, 1e-3)
            assert not handle.test()

        if comm.rank == 0:
            asyncio.run(impatient())
            comm.send(np.ones(1), 1)
            with pytest.raises(RevokedError):
                comm.close()  # raises what nobody has seen
        else:
            comm.recv(np.zeros(1), 0)
            comm.abort()

    together(program)
    assert not caplog.records  # of a call that ends after its loop


@on_ranks()
def test_an_awaited_call_raises_what_ended_it(comm: Communicator) -> None:
    async def misfit() -> None:
        await comm.irecv(np.zeros(1), 1 - comm.rank)

    comm.send(np.zeros(2), 1 - comm.rank)
    with pytest.raises(TruncationError):
        asyncio.run(misfit())
    comm.barrier()


@on_ranks()
def test_handles_and_requests_say_alike_whether_they_are_done(comm: Communicator) -> None:
    handle = comm.all_reduce(np.ones(1), async_op=True)
    request = comm.isend(np.ones(1), 1 - comm.rank)
    comm.recv(np.zeros(1), 1 - comm.rank)
    handle.wait(), request.wait()
    for each in (handle, request):
        assert each.done and each.test() and repr(each.done) == "True"
    with pytest.warns(DeprecationWarning, match=r"handle\.done\(\) is the attribute handle\.done now: 0\.3\.0"):
        assert handle.done() is True  # type: ignore[operator]
    revoked = comm.all_reduce(np.ones(1), async_op=True) if comm.rank == 0 else None
    comm.abort()
    if revoked is not None:
        for _ in range(2):
            with pytest.raises(RevokedError):
                while not revoked.test():
                    pass
        assert revoked.done and f"{revoked.done}" == "True"
