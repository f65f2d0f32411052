"""Arrays that others own: read-only ones that are only read, lazy ones, buffers that grow, results of the same kind."""

import re
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from cxlemu.errors import ArgumentError
from tests.helpers.worlds import on_ranks, together

LARGE = 9_000_000  # bytes: more than a mailbox takes


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("kind", ["locked", "gaps", "bytes", "memmap", "stride 0"])
def test_a_broadcast_only_reads_its_root(kind: str, engine: str, tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(np.arange(4.0).tobytes())

    def given(comm: Communicator) -> tuple[Any, Any, list[float]]:
        x = np.arange(8.0)[::2] / 2 if kind != "gaps" else np.repeat(np.arange(4.0), 2)[::2]
        if kind == "stride 0":
            x = np.broadcast_to(np.float64(3), 4)
        x.flags.writeable = False
        if kind == "memmap":
            x = np.memmap(file, np.float64, "r")
        wanted = x.tolist()
        mine = np.zeros(4)
        if kind == "bytes":
            return (x.tobytes(), bytearray(32), wanted)
        return x, mine, wanted

    def program(comm: Communicator) -> None:
        root, other, wanted = given(comm)
        for call in (comm.broadcast, comm.broadcast, lambda x: comm.persistent.broadcast(x)()):
            mine = root if comm.rank == 0 else other
            assert call(mine) is mine
            got = np.frombuffer(mine, np.float64) if kind == "bytes" else mine
            assert got.tolist() == wanted
        comm.broadcast_many([root if comm.rank == 0 else other])
        if comm.rank:
            with pytest.raises(ArgumentError, match="x is read-only: the result cannot be written to it"):
                comm.broadcast(root)
            with pytest.raises(ArgumentError, match=r"arrays\[0\] is read-only"):
                comm.broadcast_many([root])

    together(program, engine=engine)


@on_ranks()
def test_errors_name_the_argument_that_was_given(comm: Communicator) -> None:
    locked, peer = np.ones(2), 1 - comm.rank
    locked.flags.writeable = False
    for call, name in (
        (lambda: comm.all_reduce(locked), "x"),
        (lambda: comm.all_reduce(np.ones(2), out=locked), "out"),
        (lambda: comm.scan(locked), "x"),
        (lambda: comm.recv(locked, peer), "array"),
        (lambda: comm.sendrecv(np.ones(2), peer, locked, peer), "out"),
        (lambda: comm.all_reduce_many([np.ones(2), locked]), "arrays[1]"),
        (lambda: comm.all_gather_many([np.ones(1)], outs=[locked]), "outs[0]"),
    ):
        with pytest.raises(ArgumentError, match=rf"^{re.escape(name)} is read-only"):
            call()


@pytest.mark.parametrize("memory", ["shm", "emulated"])
def test_a_buffer_that_is_lent_does_not_grow_and_grows_afterwards(memory: str) -> None:
    def program(comm: Communicator) -> None:
        peer, leaving, coming = 1 - comm.rank, bytearray(LARGE), bytearray(LARGE)
        requests = []
        for rank in range(2):  # in turn, as any call about messages takes what has left the other one
            if comm.rank == rank:
                requests += [comm.isend(leaving, peer, tag=1), comm.irecv(coming, peer, tag=2)]
                for buffer in (leaving, coming):
                    with pytest.raises(BufferError):
                        buffer.append(1)
            comm.barrier()
        requests += [comm.irecv(bytearray(LARGE), peer, tag=1), comm.isend(bytearray(LARGE), peer, tag=2)]
        comm.waitall(requests)
        small = bytearray(64)
        comm.all_reduce(small, "max")
        comm.all_reduce(small, "max", async_op=True).wait()
        for buffer in (leaving, coming, small):
            buffer.append(1)

    together(program, memory=memory, engine="native" if memory == "shm" else "reference")


@pytest.mark.parametrize("wrong", ["3", b"3", float("nan"), -1, True, [1.0], 10**400])
def test_times_to_wait_are_numbers_of_seconds(wrong: Any) -> None:
    def program(comm: Communicator) -> None:
        x, y, peer = np.ones(2), np.ones(2), 1 - comm.rank
        for call in (lambda: comm.send(x, peer, timeout_s=0), lambda: comm.recv(x, peer, timeout_s=0)):  # would revoke
            with pytest.raises(ArgumentError, match="timeout_s is a number of seconds above 0, not 0"):
                call()
        handle = comm.all_reduce(x, async_op=True)
        request = comm.isend(x, peer)
        for call in (
            lambda: comm.all_reduce(x, timeout_s=wrong),
            lambda: comm.gatherv(x, timeout_s=wrong),
            lambda: comm.broadcast_many([x], timeout_s=wrong),
            lambda: comm.send(x, peer, timeout_s=wrong),
            lambda: comm.recv(x, peer, timeout_s=wrong),
            lambda: comm.sendrecv(x, peer, y, peer, timeout_s=wrong),
            lambda: comm.probe(peer, timeout_s=wrong),
            lambda: comm.waitany([request], timeout_s=wrong),
            lambda: request.wait(wrong),
            lambda: handle.wait(wrong),
        ):
            with pytest.raises(ArgumentError, match="timeout_s is a number of seconds"):
                call()
        for make in (
            lambda: Communicator.world(comm._context, deadline_s=wrong),
            lambda: Communicator.of(comm._context, [0, 1], deadline_s=wrong),
            lambda: setattr(comm, "deadline_s", wrong),
        ):
            with pytest.raises(ArgumentError, match=r"deadline\w* is a number of seconds above 0"):
                make()
        handle.wait()
        comm.recv(np.zeros(2), peer)
        comm.barrier()


@pytest.mark.parametrize("wrong", ["1K", -1, 2.0, True, float("nan")])
@on_ranks()
def test_sizes_are_whole_numbers(comm: Communicator, wrong: Any) -> None:
    for size in ("region_bytes", "heap_bytes"):
        for make in (Communicator.world, lambda context, **sizes: Communicator.of(context, [0, 1], **sizes)):
            with pytest.raises(ArgumentError, match=f"{size} is a whole number from 0 on"):
                make(comm._context, **{size: wrong})
    with pytest.raises(ArgumentError, match="nbytes is a whole number from 0 on"):
        comm.choice("all_reduce", wrong)
    Communicator.world(comm._context, region_bytes=np.int64(1 << 16), heap_bytes=np.uint16(4096)).close()


# --- torch ----------------------------------------------------------------------------------------------------------


def test_tensors_without_memory_of_their_own_are_refused() -> None:
    torch = pytest.importorskip("torch")
    zeros, eye = torch._efficientzerotensor(3), torch.eye(3)
    with warnings.catch_warnings(action="ignore"):
        rows = eye.to_sparse_csr()

    def program(comm: Communicator) -> None:
        for x, instead in ((zeros, "clone"), (eye.to_sparse(), "to_dense"), (rows, "to_dense")):
            for call in (comm.all_gather, comm.all_reduce, lambda x: comm.send(x, 1 - comm.rank)):
                with pytest.raises(ArgumentError, match=rf"^\w+ is a tensor of .* pass \w+\.{instead}\(\)$"):
                    call(x)

    together(program)


def test_lazy_tensors_are_refused_and_resolved_ones_are_right() -> None:
    torch = pytest.importorskip("torch")

    def program(comm: Communicator) -> None:
        x = torch.tensor([1 + 2j, 3 + 5j]).conj().imag
        peer, y = 1 - comm.rank, torch.zeros(2)
        for call in (
            lambda: comm.all_gather(x),
            lambda: comm.all_reduce(x, "max", y),
            lambda: comm.all_reduce(y, "max", x),
            lambda: comm.all_gatherv(x),
            lambda: comm.send(x, peer),
            lambda: comm.recv(x, peer),
            lambda: comm.broadcast_many([x]),
        ):
            with pytest.raises(ArgumentError, match=r"to be negated later: pass [][\w]+\.resolve_neg\(\)"):
                call()
        with pytest.raises(ArgumentError, match=r"to be conjugated later: pass x\.resolve_conj\(\)"):
            comm.all_gather(torch.tensor([1 + 2j]).conj())
        assert comm.all_gather(x.resolve_neg()).tolist() == [[-2, -5]] * 2
        with pytest.raises(ArgumentError, match="is on a device unknown to DLPack"):
            comm.all_reduce(torch.empty(3, device="meta"))

    together(program)


def test_results_are_tensors_where_arguments_are() -> None:
    torch = pytest.importorskip("torch")

    def program(comm: Communicator) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            x = torch.tensor([[comm.rank, 1, 0], [1, 0, 1]]).to(dtype)
            everyone = [torch.tensor([[rank, 1, 0], [1, 0, 1]]).to(dtype) for rank in range(2)]
            assert torch.equal(comm.all_gather(x), torch.stack(everyone))
            assert torch.equal(comm.all_to_all(x), torch.stack([each[comm.rank] for each in everyone]))
            assert torch.equal(comm.all_gatherv(x), torch.cat(everyone))
            assert torch.equal(comm.all_gather_many([x])[0], torch.stack(everyone))
            if comm.rank == 0:
                assert torch.equal(comm.gather(x), torch.stack(everyone))
            else:
                assert comm.gather(x) is None
            if dtype != torch.bool:
                assert torch.equal(comm.reduce_scatter(x, "max"), everyone[1][comm.rank : comm.rank + 1])
            assert isinstance(comm.all_gather(x.numpy() if dtype == torch.int64 else bytearray(4)), np.ndarray)

    together(program)


CHANGES: dict[str, Any] = {  # what gives a tensor other memory
    "data": lambda t: setattr(t, "data", t.new_zeros(1)),
    "set_": lambda t: t.set_(t.new_zeros(1)),
    "resize_": lambda t: t.resize_(t.numel() * 2),
    "storage": lambda t: t.untyped_storage().resize_(0),
}
REPLACE, RESIZE = ("data", "set_"), ("resize_", "storage")


@pytest.mark.parametrize("how", RESIZE)
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_a_tensor_of_an_operation_is_not_resized(how: str, engine: str) -> None:
    torch = pytest.importorskip("torch")

    def program(comm: Communicator) -> None:
        x, y, result = torch.ones(8), torch.ones(2, 4).t(), torch.zeros(8)
        for operation, lent in (
            (comm.persistent.all_reduce(x, timeout_s=60), x),
            (comm.persistent.all_reduce(y), y),
            (comm.persistent.all_reduce(torch.ones(8), out=result), result),
            (comm.persistent.all_to_allv([x := torch.ones(4), torch.ones(4)]), x),
            ((gather := comm.persistent.all_gatherv(torch.ones(8))), gather()),
        ):
            with pytest.raises(RuntimeError, match="not resizable"):
                CHANGES[how](lent)
            operation()

    together(program, engine=engine)


@pytest.mark.parametrize("how", REPLACE)
def test_an_operation_keeps_the_memory_that_it_was_made_with(how: str) -> None:
    torch = pytest.importorskip("torch")

    def program(comm: Communicator) -> None:
        x, out = torch.full((LARGE,), 1, dtype=torch.uint8), torch.zeros(LARGE, dtype=torch.uint8)
        operation = comm.persistent.all_reduce(x, out=out)
        CHANGES[how](x)
        after = torch.full((LARGE,), 9, dtype=torch.uint8)  # where memory was, if it was freed
        operation()
        assert bool((out == 2).all()) and bool((after == 9).all())

    together(program)


@pytest.mark.parametrize("how", CHANGES)
def test_what_is_under_way_keeps_the_memory_of_its_tensors(how: str) -> None:
    torch = pytest.importorskip("torch")

    def program(comm: Communicator) -> None:
        peer, x, y = 1 - comm.rank, torch.full((LARGE,), comm.rank + 1, dtype=torch.uint8), torch.zeros(LARGE // 8)
        requests = [comm.isend(x, peer), comm.irecv(y.view(torch.uint8), peer, 1)]
        comm.barrier()
        for t in (x, y):
            with pytest.raises(RuntimeError, match="not resizable") if how in RESIZE else nullcontext():
                CHANGES[how](t)
        after = [torch.full((LARGE,), 9, dtype=torch.uint8) for _ in range(2)]  # where memory was, if it was freed
        coming = np.zeros(LARGE, np.uint8)
        comm.recv(coming, peer, 0)
        comm.send(np.full(LARGE // 2, comm.rank + 1, np.uint8), peer, 1)
        comm.waitall(requests)
        assert (coming == peer + 1).all() and all(int((each != 9).sum()) == 0 for each in after)

    together(program)


def test_the_backend_of_torch_keeps_the_memory_of_tensors() -> None:
    torch = pytest.importorskip("torch")
    from collectives.torch.tensors import as_array, shared

    for view in (as_array, shared):
        x = torch.ones(LARGE)
        seen = view(x)
        x.data = x.new_zeros(1)
        after = torch.full((LARGE,), 9.0)  # where memory was, if it was freed
        assert (seen == 1).all() and after[0] == 9


def test_a_handle_keeps_the_memory_of_its_tensors() -> None:
    torch = pytest.importorskip("torch")

    def program(comm: Communicator) -> None:
        for begin in (
            lambda x: comm.all_reduce(x, async_op=True),
            lambda x: comm.all_reduce(x, async_op=True, timeout_s=60),
            lambda x: comm.all_reduce_many([x], async_op=True),
            lambda x: comm.all_to_allv([x, x], async_op=True),
            lambda x: comm.all_gather(torch.ones(1), x, async_op=True),
        ):
            x = torch.ones(2)
            handle = begin(x)
            with pytest.raises(RuntimeError, match="not resizable"):
                x.untyped_storage().resize_(0)
            handle.wait()
        x = torch.ones(2)
        comm.all_reduce(x)
        assert comm.all_reduce(x.resize_(3)[:2]).tolist() == [4, 4]  # a call that is over holds nothing

    together(program)


def test_tensors_with_less_memory_than_elements_are_refused() -> None:
    torch = pytest.importorskip("torch")
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(4)
    empty, short = torch.ones(4), torch.ones(4)
    empty.untyped_storage().resize_(0)
    short.untyped_storage().resize_(8)

    def program(comm: Communicator) -> None:
        for x, why in ((fake, "without memory"), (empty, "has 0 bytes of memory"), (short, "has 8 bytes of memory")):
            for call in (comm.all_reduce, lambda x: comm.all_reduce_many([x]), lambda x: comm.isend(x, 1 - comm.rank)):
                with pytest.raises(ArgumentError, match=why):
                    call(x)
        assert comm.all_gather(torch.ones(0)).shape == (2, 0)

    together(program)
