"""CUDA's file without a GPU: its kernel on the CPU, and its calls on a stand-in for NVIDIA's package.

This shows that folds have the reference's bits, and that the file calls functions with arguments that mean what they
should. It shows nothing about a GPU.
"""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from cxlemu import RankContext, launch
from cxlemu.accelerator.arrays import device_view
from cxlemu.accelerator.device import DeviceBuffer, TileProduct, come_after
from cxlemu.accelerator.fold_kernel import kernel_options
from cxlemu.accelerator.named import device_named, name_for_rank
from cxlemu.cli.doctor import examine
from cxlemu.engines.mover import BufferPart
from cxlemu.errors import ArgumentError, DeviceError
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.plan import DTYPE_NAMES, DTYPES, RedOp
from cxlemu.plan.address import StridedRun
from cxlemu.plan.reduction import fold, reductions
from tests.helpers.cuda_stand_in import Cublas, Status, compiled, operands, stand_in, without_nans

OPS = [op.name.lower() for op in RedOp if op != RedOp.NONE]
FEW = [("f16", "sum"), ("bf16", "avg"), ("i8", "avg"), ("c64", "prod"), ("bool", "sum"), ("f32", "min")]


@pytest.mark.deep(rows=lambda dtype, redop: (dtype, redop) not in FEW)
@pytest.mark.parametrize(("dtype", "redop"), reductions(DTYPE_NAMES, OPS))
def test_the_kernel_folds_to_the_bits_of_the_reference(dtype: str, redop: str, tmp_path: Path) -> None:
    op, index = RedOp[redop.upper()], DTYPE_NAMES.index(dtype)
    kernel = ctypes.CDLL(str(compiled(tmp_path, kernel_options(dtype, op)))).fold
    kernel.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_longlong] * 2
    count = 1 << 12
    given = operands(dtype, count)
    elements = count * (2 if dtype.startswith("c") and redop != "prod" else 1)
    for used in (given[:2], given):
        for divisor in (1, 3) if redop == "avg" else (1,):
            out = np.empty_like(given[0])
            pointers = [array.ctypes.data for array in (out, *used)] + [0] * (3 - len(used))
            kernel(*pointers, elements, divisor)
            wanted = fold(index, op, list(used), divisor)
            assert without_nans(dtype, out).tobytes() == without_nans(dtype, wanted).tobytes()


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return stand_in(tmp_path, monkeypatch)


class CudaArray:
    """What libraries of CUDA show of an array."""

    def __init__(self, values: Any, **more: Any) -> None:
        self.values = values
        self.__cuda_array_interface__ = {
            "shape": values.shape,
            "typestr": values.dtype.str,
            "data": (values.ctypes.data, False),
            "version": 3,
            **more,
        }


def test_without_nvidias_package_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cxlemu.accelerator.cuda", raising=False)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(ArgumentError, match=r"pip install 'cxlemu\[cuda\]'"):
        device_view(CudaArray(np.zeros(3)), "x")


def test_without_nvidias_driver_the_sentence_is_that_of_its_package(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def cuInit(flags: int) -> None:
        raise RuntimeError("cuda is found by no search")

    monkeypatch.setattr(sys.modules["cuda.bindings"].driver, "cuInit", cuInit, raising=False)
    with pytest.raises(DeviceError, match="cuInit of CUDA cannot be called: cuda is found by no search"):
        cuda.devices()
    with pytest.raises(ArgumentError, match="no GPU is available: cuInit"):
        name_for_rank("cuda", 1)
    with pytest.raises(ArgumentError, match="cuda:0 is not available: cuInit"):
        device_named("cuda:0")


def test_an_array_of_cuda_is_viewed_with_its_stream(cuda: Any) -> None:
    values = np.arange(12, dtype=np.int16).reshape(3, 4)
    view = device_view(CudaArray(values, stream=77), "x")
    assert (view.shape, view.dtype, view.queue) == ((3, 4), values.dtype, 77)
    assert view.buffer.address == values.ctypes.data and view.buffer.nbytes == 24
    assert view.device is cuda.cuda_device(0) and cuda.devices() == ["stand-in"]
    assert device_view(CudaArray(values, strides=(8, 2)), "x") is not None
    with pytest.raises(ArgumentError, match="not contiguous"):
        device_view(CudaArray(values, strides=(2, 6)), "x")


class Lent:
    """An array of CUDA that has DLPack alone; ``asked`` are the streams that consumers named."""

    def __init__(self, values: Any, kind: int = 2) -> None:
        self.values, self.kind, self.asked, self.dtype, self.device = values, kind, [], values.dtype, "cuda"

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0

    def __dlpack__(self, *, stream: int, max_version: tuple[int, int]) -> Any:
        self.asked.append(stream)
        return self.values.__dlpack__(max_version=max_version)

    def __array_namespace__(self) -> Any:
        return SimpleNamespace(empty=lambda shape, *, dtype, device: Lent(np.zeros(shape, dtype)))


@pytest.mark.parametrize("kind", [2, 13])
def test_an_array_of_cuda_that_has_dlpack_alone_is_lent_for_our_stream(cuda: Any, kind: int) -> None:
    values = np.arange(12, dtype=np.int16).reshape(3, 4)
    array, device = Lent(values, kind), cuda.cuda_device(0)
    view = device_view(array, "x")
    assert view is not None and view.device is device and view.buffer.address == values.ctypes.data
    assert (view.shape, view.dtype, view.queue, view.writeable) == ((3, 4), values.dtype, device.lent, True)
    assert array.asked == [device.stream_of(device.lent)] and array.asked[0] > 2  # neither default stream
    come_after([view])
    assert len(array.asked) == 2
    assert view.kin.like((2, 2)).values.shape == (2, 2)
    assert device_view(Lent(values, 10), "x") is None  # ROCm's


def test_copies_and_folds_arrive(cuda: Any) -> None:
    device = cuda.cuda_device(0)
    cards = [np.zeros(1024, np.uint8)]
    memory = MemorySpec("shm").open(cards, host_cache=None, host=0, rank=0)
    kept = device.register(cards)
    buffer, queue, nbytes = device.allocate(512), device.queue(), 512
    given = (np.arange(nbytes) % 251).astype(np.uint8)
    device.write(BufferPart(buffer, 0, nbytes), given)
    run = StridedRun(card=0, card_offset=128, local_offset=64, block_bytes=64, blocks=4, stride_bytes=128)
    device.publish(queue, memory, run, BufferPart(buffer, 0, nbytes), non_temporal=False)
    assert np.array_equal(cards[0][128:384].reshape(4, 64), run.local(given))
    back = device.allocate(512)
    device.retrieve(queue, memory, run, BufferPart(back, 0, nbytes))
    assert np.array_equal(run.local(device.read(BufferPart(back, 0, nbytes))), run.local(given))
    for dtype, op in (("f32", RedOp.SUM), ("c64", RedOp.PROD), ("c64", RedOp.SUM)):
        device.fold(queue, *_fold(buffer, back, dtype, op))
    pinned = device.pinned(16)
    device.copy(queue, BufferPart(pinned, 0, 16), BufferPart(buffer, 0, 16))
    assert device.happened(device.record(queue)) and pinned.nbytes == 16
    assert len(kept) == 1


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("library", ["cuBLAS", "a kernel of cxlemu"])
def test_products_are_those_of_cublas_where_it_is_and_else_of_our_kernel(
    cuda: Any, dtype: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = sys.modules["cxlemu.accelerator.cuda_products"]
    cublas = Cublas() if library == "cuBLAS" else None
    monkeypatch.setattr(products, "cublas", cublas)
    device = cuda.CudaDevice(0)
    size, rng, queue = DTYPES[dtype].itemsize, np.random.default_rng(3), device.queue()
    for m, n, k, lda, ldb, ldc in ((5, 3, 4, 4, 7, 6), (9, 8, 1, 1, 8, 8), (1, 1, 6, 9, 1, 2)):
        product = TileProduct(dtype, m, n, k, lda, ldb, ldc)
        a, b = (rng.integers(-4, 5, shape).astype(DTYPES[dtype]) for shape in ((m, lda), (k, ldb)))
        c = np.full((m, ldc), 99).astype(DTYPES[dtype])
        at = [DeviceBuffer(each.ctypes.data, each.nbytes, each) for each in (c, a, b)]
        bytes_of = [
            ((rows - 1) * leading + columns) * size
            for rows, columns, leading in ((m, n, ldc), (m, k, lda), (k, n, ldb))
        ]
        out, left, right = (BufferPart(buffer, 0, nbytes) for buffer, nbytes in zip(at, bytes_of, strict=True))
        device.multiply(queue, out, product, left, right)
        wanted = (a[:, :k].astype(np.float64) @ b[:, :n].astype(np.float64)).astype(DTYPES[dtype])
        assert np.array_equal(c[:, :n], wanted)  # whole numbers, so that no order rounds
        assert (c[:, n:].astype(np.float64) == 99).all()
    if cublas is not None:
        assert cublas.streams == [queue] * 3
        too_large = TileProduct(dtype, 1, 1001, 1, 1, 1001, 1001)
        with pytest.raises(DeviceError, match="cuBLAS returned CUBLAS_STATUS_NOT_SUPPORTED"):
            device.multiply(queue, out, too_large, left, right)

        def absent(*_: int) -> None:
            raise RuntimeError("libcublas is not found")

        monkeypatch.setattr(cublas, "set_stream", absent)
        with pytest.raises(DeviceError, match="cuBLAS returned libcublas is not found"):
            device.multiply(queue, out, product, left, right)


def _fold(target: Any, other: Any, dtype: str, op: RedOp) -> tuple[Any, ...]:
    parts = BufferPart(target, 0, 512), BufferPart(other, 0, 512)
    return parts[0], DTYPE_NAMES.index(dtype), op, list(parts), 1


def test_memory_that_cannot_be_registered_and_caches_that_a_gpu_cannot_reach_say_why(cuda: Any) -> None:
    device = cuda.cuda_device(0)
    cards = [np.zeros(1024, np.uint8)]
    sys.modules["cuda.bindings"].driver.registers = Status.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DeviceError, match=r"card 0, 1024 bytes .* CUDA_ERROR_INVALID_VALUE"):
        device.register(cards)
    emulated = MemorySpec().open(cards, host_cache=HostCache.private(cards), host=0, rank=0)
    run = StridedRun(0, 0, 0, 64, 1, 64)
    with pytest.raises(DeviceError, match="backend shm or dax"):
        device.publish(device.queue(), emulated, run, BufferPart(device.allocate(64), 0, 64), non_temporal=False)


def test_a_pool_is_registered_once_and_for_as_long_as_somebody_needs_it(cuda: Any) -> None:
    """Memory that stays registered when it is unmapped would be taken for what is mapped there next."""
    device, cards = cuda.cuda_device(0), [np.zeros(1024, np.uint8), np.zeros(1024, np.uint8)]
    driver = sys.modules["cuda.bindings"].driver
    mine = device.register(cards)
    others = device.register(cards)  # another rank of this process
    assert len(driver.pages) == 2
    del mine
    assert len(driver.pages) == 2
    del others
    assert driver.pages == set()
    driver.pages.add(cards[0].ctypes.data)  # somebody else's: left alone
    del device, cards


def test_doctor_shows_a_gpus_copies_and_why_it_reaches_no_pool(cuda: Any, tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia/gpus/0000:65:00.0").mkdir(parents=True)
    found = {row.what: row for row in examine(tmp_path)}
    assert found["cuda:0"].value == "stand-in" and "has run on one kind of GPU" in found["cuda:0"].meaning
    assert found["cuda:0, shared memory"].value == "registered" and "both at once" in found["cuda:0, copies"].value
    driver = sys.modules["cuda.bindings"].driver
    assert driver.pages == set()
    driver.registers = Status.CUDA_ERROR_INVALID_VALUE
    found = {row.what: row for row in examine(tmp_path, accelerator="cuda:0")}
    why = found["cuda:0, shared memory"]
    assert (why.status, why.value) == ("look", "not registered") and "CUDA_ERROR_INVALID_VALUE" in why.meaning
    assert "cuda:0, copies" not in found


def sums(context: RankContext) -> bool:
    """Ranks that share a GPU, as far as it is one: a fold, and blocks that lie on several cards."""
    mine = np.random.default_rng(context.rank).standard_normal(5000).astype(np.float32)
    every = [np.random.default_rng(rank).standard_normal(5000).astype(np.float32) for rank in range(context.ranks)]
    with Communicator.world(context, region_bytes=1 << 15) as comm:
        gathered = np.zeros((comm.size, 5000), np.float32)
        comm.all_gather(CudaArray(mine), CudaArray(gathered))
        assert np.array_equal(gathered, every)
        with pytest.raises(ArgumentError, match="pass out"):
            comm.all_gather(CudaArray(mine))
        left, right = np.eye(4, 2, dtype=np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
        product = np.zeros((4, 3), np.float32)
        comm.matmul_all_reduce(CudaArray(left), CudaArray(right), CudaArray(product))
        assert np.array_equal(product, comm.size * left @ right)
        others = comm.all_gather(Lent(mine))
        assert isinstance(others, Lent) and np.array_equal(others.values, every)
        comm.all_reduce(CudaArray(mine))
        total = every[0]
        for other in every[1:]:
            total = total + other
        return mine.tobytes() == total.tobytes()


def test_a_communicator_runs_on_the_stand_in(cuda: Any) -> None:
    spec = MemorySpec("shm")
    assert launch(sums, ranks=2, topology="six-cards", how="threads", memory=spec) == [True, True]
    driver = sys.modules["cuda.bindings"].driver
    assert driver.pages == set()  # a communicator that has ended needs the pool no more
    said = driver.said
    assert {"cuEventRecord", "cuStreamWaitEvent", "cuEventQuery", "cuCtxSetCurrent"} <= set(said)
