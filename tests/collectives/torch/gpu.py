"""Tensors of a GPU that is a fake device: its streams are late queues, its memory is that of torch's CPU tensors.

What torch itself does to such tensors, it does at once: only what cxl queues, and what `Gpu.later` queues, is late.
"""

import ctypes
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from collectives.torch import streams, tensors
from collectives.torch.harness import Installed
from collectives.torch.process_group import group_is_behind
from cxlemu.accelerator.device import DeviceBuffer, DeviceView
from cxlemu.accelerator.fake import FakeDevice
from cxlemu.engines.mover import BufferPart
from tests.collectives.torch.matrix import FEW, call, rows, tensor_of


class Gpu(torch.Tensor):
    """A tensor of the CPU that says that it is on a GPU; so do those that torch makes of it."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]


class Memory:
    """What a FakeDevice asks of memory: here anybody may touch it."""

    def of(self, address: int, nbytes: int) -> Any:
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        return np.frombuffer(memory, np.uint8)


class Cuda:
    """torch.cuda, as far as our code uses it, on a fake device."""

    def __init__(self, device: FakeDevice) -> None:
        self._device, self._its = device, threading.local()
        self.main = self.Stream(None)
        self.seen: list[Any] = []
        self.settled = 0

    def Stream(self, _: Any) -> Any:
        queue = self._device.queue()
        return SimpleNamespace(
            queue=queue,
            wait_event=lambda event: self._device.wait(queue, event.its),
            synchronize=lambda: self._settle(queue),
        )

    def _settle(self, queue: Any) -> None:
        self.settled += 1
        self._device.synchronize(queue)

    def Event(self) -> Any:
        event = SimpleNamespace(its=None)
        event.record = lambda stream: setattr(event, "its", self._device.record(stream.queue))
        return event

    def current_stream(self, _: Any = None) -> Any:
        return getattr(self._its, "stream", self.main)

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self._its.stream = self.current_stream(), stream
        self.seen.append(stream)
        try:
            yield
        finally:
            self._its.stream = before

    def view(self, tensor: torch.Tensor, role: str) -> DeviceView:
        buffer = DeviceBuffer(tensor.data_ptr(), tensor.nbytes, Memory())
        assert tensor.dtype not in tensors.ONLY_MOVED, "CUDA's interface of arrays has no such elements"
        dtype = tensors._SEEN_AS[tensor.dtype]
        return DeviceView(self._device, buffer, tuple(tensor.shape), dtype, self.current_stream().queue, None)  # type: ignore[arg-type]

    def later(self, tensor: torch.Tensor, value: float, stream: Any = None) -> None:
        """Queue in the current stream what sets a tensor."""
        data = np.full(tensor.numel(), value, np.float32).view(np.uint8)
        queue = self.current_stream().queue if stream is None else stream.queue
        self._device.copy(queue, _whole(self.view(tensor, "")), BufferPart(data, 0, data.nbytes))

    def now(self, tensor: torch.Tensor) -> list[float]:
        """Return what a tensor has when the current stream has come so far."""
        data, queue = np.zeros(tensor.nbytes, np.uint8), self.current_stream().queue
        self._device.copy(queue, BufferPart(data, 0, data.nbytes), _whole(self.view(tensor, "")))
        self._device.synchronize(queue)
        return sorted(set(data.view(np.float32).tolist()))


def _whole(view: DeviceView) -> BufferPart:
    return BufferPart(view.buffer, 0, view.buffer.nbytes)


def installed(device: FakeDevice) -> Cuda:
    cuda = Cuda(device)
    streams.cuda, tensors.gpu_view = cuda, cuda.view
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # which torch asks before it broadcasts f8
    if hasattr(c10d, "has_torch_function"):  # torch's calls of cxl would hide the class from what is made in them
        c10d.has_torch_function = lambda *_: False
    return cuda


def bits(rank: int, ranks: int, store: Any) -> dict[str, Any]:
    """Whether every row of the matrix has the bits of tensors on the CPU; messages as well."""
    warnings.simplefilter("ignore")
    cuda = installed(FakeDevice(rank, eagerness=1.0))
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    found: dict[str, Any] = {"same": 0, "differ": []}
    for collective, dtype, op, layout in rows([*FEW, torch.float8_e5m2], ["SUM", "AVG"]):
        got = []
        for place in (torch.Tensor, Gpu):
            x = tensor_of(dtype, rank, layout).as_subclass(place)
            try:
                results = call(None, collective, x, getattr(dist.ReduceOp, op or "SUM"))
            except (RuntimeError, ValueError):
                got.append("refused")
                continue
            assert all(type(result) is place for result in results)
            got.append([result.contiguous().reshape(-1).view(torch.uint8).tolist() for result in results])
        if got[0] == got[1]:
            found["same"] += got[0] != "refused"
        else:
            found["differ"].append(f"{collective} {dtype} {op} {layout}: {got}")
    x = torch.full((4, 6), float(rank)).as_subclass(Gpu)
    y = torch.zeros(6, 4).as_subclass(Gpu).t()  # not dense: copied once more
    requests = [dist.isend(x, 1 - rank), dist.irecv(y, 1 - rank)]
    for request in requests:
        request.wait()
    assert cuda.settled == 1  # after the copy to what is not dense, which another thread may queue
    found["message"] = y.contiguous().reshape(-1).tolist() == [float(1 - rank)] * 24
    try:
        dist.all_gather_into_tensor(torch.ones(4).as_subclass(Gpu), torch.ones(2))
    except ValueError as error:
        found["said"] = str(error)
    Installed.harness = SimpleNamespace(call=lambda group, number, run: run())  # type: ignore[assignment]
    try:
        dist.all_reduce(x)
    except ValueError as error:
        found["said"] += str(error)
    Installed.harness = None
    dist.destroy_process_group()
    return found


def order(rank: int, ranks: int, store: Any) -> list[Any]:
    """A lazy GPU: nothing is done before somebody waits. Only the order of streams makes these right."""
    device = FakeDevice(rank, eagerness=0)
    cuda = installed(device)
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    found: list[Any] = []
    x = torch.zeros(50_000).as_subclass(Gpu)
    cuda.later(x, 1 + rank)
    dist.all_reduce(x)  # comes after that, in the current stream
    found.append((cuda.now(x), len(cuda.seen)))
    cuda.later(x, 10 + rank)
    work = dist.all_reduce(x, async_op=True)  # in a stream of the group's, after that too
    work.wait()
    assert not cuda.seen[0].queue.todo  # the GPU has done it
    other = cuda.Stream(None)
    with cuda.stream(other):  # whichever stream is used next
        found.append((cuda.now(x), cuda.seen[0] is not cuda.main, group_is_behind() or work.is_completed()))
    mine = cuda.Stream(None)
    with cuda.stream(mine):
        cuda.later(x, 100 + rank)
        future = dist.all_reduce(x, async_op=True).get_future()
        (result,) = future.wait()
        found.append((cuda.now(result), len({id(stream) for stream in cuda.seen})))
        dist.all_reduce(x)  # in this stream, which is current now
        found.append(cuda.now(x))
    dist.destroy_process_group()
    return found
