"""CUDA's part of a device. All that is CUDA's own stands here.

It needs NVIDIA's ``cuda-bindings`` (``pip install cxlemu[cuda]``); only arrays of CUDA import it. Tests give it a
stand-in for that package, which does on the CPU, at once, what is asked of it.

Doorbells are rung by the host. Streams' memory operations could ring them only on a pool that hardware keeps coherent:
no GPU can flush the line of a doorbell out of its host's cache, or drop it there (docs/accelerator.md).
"""

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cxlemu.accelerator.cuda_products import GpuProducts
from cxlemu.accelerator.device import DeviceBuffer, DeviceView, TileProduct
from cxlemu.accelerator.fold_kernel import KERNEL, kernel_options
from cxlemu.accelerator.kin import ArrayKin
from cxlemu.engines.mover import BufferPart
from cxlemu.errors import ArgumentError, DeviceError
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.plan import DTYPE_NAMES, DTYPES, RedOp
from cxlemu.plan.address import StridedRun

try:
    from cuda.bindings import driver, nvrtc
except ImportError as error:
    raise ArgumentError("CUDA arrays need NVIDIA's cuda-bindings: pip install 'cxlemu[cuda]'") from error

THREADS, BLOCKS_MAX = 256, 4096
LEGACY_STREAM = 1  # of which blocking streams are a part


def devices() -> list[str]:
    """List the names of the GPUs that the driver shows. Raises DeviceError where it shows none."""
    call(driver.cuInit, 0)
    if not (count := call(driver.cuDeviceGetCount)):
        raise DeviceError("the CUDA driver finds no GPU")
    return [cuda_device(ordinal).name for ordinal in range(count)]


def call(function: Any, *arguments: Any) -> Any:
    """Call a function of NVIDIA's. Returns its result or None, and raises DeviceError with the error's name."""
    try:
        status, *results = function(*arguments)
    except RuntimeError as error:  # the package is here, and the library that it is for is not
        raise DeviceError(f"{function.__name__} of CUDA cannot be called: {error}") from error
    if int(status) != 0:
        raise DeviceError(f"{function.__name__} of CUDA returned {getattr(status, 'name', status)}")
    return results[0] if len(results) == 1 else tuple(results) or None


@dataclass(eq=False)
class _Owned:
    """Memory, or an event, that is given back when nothing here holds it any more; CUDA waits with that itself."""

    handle: Any
    free: Any
    context: Any

    def __del__(self) -> None:
        if not sys.is_finalizing():
            driver.cuCtxSetCurrent(self.context)
            self.free(self.handle)


_registering = Lock()
_registered: WeakValueDictionary[tuple[int, int], _Owned] = WeakValueDictionary()  # cards, which ranks may share


class CudaDevice:
    """A `ComputeDevice` on one GPU. It reaches pools that this host maps: backend dax or shm, not emulated caches."""

    def __init__(self, ordinal: int) -> None:
        call(driver.cuInit, 0)
        self._device = call(driver.cuDeviceGet, ordinal)
        self._context = call(driver.cuDevicePrimaryCtxRetain, self._device)
        call(driver.cuCtxSetCurrent, self._context)
        kind = driver.CUdevice_attribute
        major, minor = (
            call(driver.cuDeviceGetAttribute, attribute, self._device)
            for attribute in (
                kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self._arch = f"sm_{major}{minor}"
        self._kernels: dict[tuple[str, ...], Any] = {}
        self._products = GpuProducts(self._launch, lambda: call(driver.cuCtxSetCurrent, self._context))
        self.lent = self.queue()

    @property
    def name(self) -> str:
        return self._do(driver.cuDeviceGetName, 100, self._device).split(b"\0")[0].decode()  # type: ignore[no-any-return]

    def allocate(self, nbytes: int) -> DeviceBuffer:
        address = int(self._do(driver.cuMemAlloc, max(nbytes, 1)))
        return DeviceBuffer(address, nbytes, self._owned(address, driver.cuMemFree))

    def adopt(self, array: NDArray[Any]) -> DeviceBuffer:
        return DeviceBuffer(array.ctypes.data, array.nbytes, array)

    def pinned(self, nbytes: int) -> Bytes:
        address = int(self._do(driver.cuMemHostAlloc, max(nbytes, 1), driver.CU_MEMHOSTALLOC_PORTABLE))
        memory: Any = (ctypes.c_uint8 * max(nbytes, 1)).from_address(address)
        memory.owner = self._owned(address, driver.cuMemFreeHost)
        return np.frombuffer(memory, np.uint8)[:nbytes]

    def register(self, cards: Sequence[Bytes]) -> list[Any]:
        return [self._registered(number, card) for number, card in enumerate(cards)]

    def queue(self) -> Any:
        return self._do(driver.cuStreamCreate, int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def stream_of(self, queue: Any) -> int:
        return int(queue)

    def publish(
        self, queue: Any, memory: HostMemory, run: StridedRun, source: BufferPart, *, non_temporal: bool
    ) -> None:
        local = _address(source) + run.local_offset
        self._strided(queue, self._on_card(memory, run), run.block_bytes, local, run.stride_bytes, run)

    def retrieve(self, queue: Any, memory: HostMemory, run: StridedRun, target: BufferPart) -> None:
        local = _address(target) + run.local_offset
        self._strided(queue, local, run.stride_bytes, self._on_card(memory, run), run.block_bytes, run)

    def copy(self, queue: Any, target: BufferPart, source: BufferPart) -> None:
        self._do(driver.cuMemcpyAsync, _address(target), _address(source), source.nbytes, queue)

    def fold(
        self, queue: Any, target: BufferPart, dtype: int, redop: RedOp, sources: Sequence[BufferPart], divisor: int
    ) -> None:
        name = DTYPE_NAMES[dtype]
        options = kernel_options(name, redop)
        pairs = name in ("c64", "c128") and "-DCXL_KIND=3" not in options  # folded part by part
        count = target.nbytes // DTYPES[name].itemsize * (2 if pairs else 1)
        addresses = [_address(part) for part in (target, *sources)] + [0] * (3 - len(sources))
        self._launch(queue, KERNEL, "fold", options, addresses, (count, divisor), count)

    def multiply(self, queue: Any, target: BufferPart, product: TileProduct, a: BufferPart, b: BufferPart) -> None:
        self._products.multiply(queue, product, _address(target), _address(a), _address(b))

    def record(self, queue: Any) -> Any:
        event = self._do(driver.cuEventCreate, int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        self._do(driver.cuEventRecord, event, queue)
        return self._owned(event, driver.cuEventDestroy)

    def wait(self, queue: Any, event: Any) -> None:
        self._do(driver.cuStreamWaitEvent, queue, event.handle, 0)

    def happened(self, event: Any) -> bool:
        (status,) = driver.cuEventQuery(event.handle)
        if status not in (status.CUDA_SUCCESS, status.CUDA_ERROR_NOT_READY):
            raise DeviceError(f"GPU work failed: {status.name}")
        return bool(status == status.CUDA_SUCCESS)

    def synchronize(self, queue: Any) -> None:
        self._do(driver.cuStreamSynchronize, queue)

    def read(self, part: BufferPart) -> Bytes:
        out = np.empty(part.nbytes, np.uint8)
        self._do(driver.cuMemcpy, out.ctypes.data, _address(part), part.nbytes)
        return out

    def write(self, part: BufferPart, data: Bytes) -> None:
        self._do(driver.cuMemcpy, _address(part), np.ascontiguousarray(data).ctypes.data, part.nbytes)
        # from memory that is not pinned it returns when the bytes have left that; no queue of ours waits for the rest
        call(driver.cuStreamSynchronize, LEGACY_STREAM)

    def _registered(self, number: int, card: Bytes) -> Any:
        """Return what keeps a card registered; None where somebody else in this process has registered it."""
        key = card.ctypes.data, card.nbytes
        flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP
        with _registering:
            if (kept := _registered.get(key)) is not None:
                return kept
            driver.cuCtxSetCurrent(self._context)
            (status,) = driver.cuMemHostRegister(*key, flags)
            if status == status.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
                return None
            if status != status.CUDA_SUCCESS:
                where = f"card {number}, {card.nbytes} bytes at {key[0]:#x}"
                raise DeviceError(f"{where}, is not registered: cuMemHostRegister returned {status.name}")
            kept = _registered[key] = self._owned(key[0], driver.cuMemHostUnregister)
            return kept

    def _owned(self, handle: Any, free: Any) -> _Owned:
        return _Owned(handle, free, self._context)

    def _do(self, function: Any, *arguments: Any) -> Any:
        """Call a function on this GPU, from whichever thread."""
        call(driver.cuCtxSetCurrent, self._context)
        return call(function, *arguments)

    def _on_card(self, memory: HostMemory, run: StridedRun) -> int:
        if not isinstance(memory, DirectMemory):
            raise DeviceError("a GPU cannot reach the emulated cache of a host: use the backend shm or dax")
        return int(memory.cards[run.card].ctypes.data) + run.card_offset

    def _strided(self, queue: Any, to: int, to_pitch: int, source: int, pitch: int, run: StridedRun) -> None:
        if run.blocks == 1:
            self._do(driver.cuMemcpyAsync, to, source, run.block_bytes, queue)
            return
        copy = driver.CUDA_MEMCPY2D()
        copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        copy.srcDevice, copy.srcPitch, copy.dstDevice, copy.dstPitch = source, pitch, to, to_pitch
        copy.WidthInBytes, copy.Height = run.block_bytes, run.blocks
        self._do(driver.cuMemcpy2DAsync, copy, queue)

    def _launch(
        self,
        queue: Any,
        source: str,
        name: str,
        options: Sequence[str],
        addresses: Sequence[int],
        numbers: Sequence[int],
        threads: int,
    ) -> None:
        """Queue a kernel that as many threads share as there are, if there is anything to do."""
        if threads:
            kinds = [ctypes.c_void_p] * len(addresses) + [ctypes.c_longlong] * len(numbers)
            arguments = (*addresses, *numbers), tuple(kinds)
            function, blocks = self._compiled(source, name, options), min(-(-threads // THREADS), BLOCKS_MAX)
            self._do(driver.cuLaunchKernel, function, blocks, 1, 1, THREADS, 1, 1, 0, queue, arguments, 0)

    def _compiled(self, source: str, name: str, options: Sequence[str]) -> Any:
        key = name, *options
        if key not in self._kernels:
            program = call(nvrtc.nvrtcCreateProgram, source.encode(), f"{name}.cu".encode(), 0, [], [])
            flags = [option.encode() for option in (*options, "--fmad=false", f"--gpu-architecture={self._arch}")]
            call(nvrtc.nvrtcCompileProgram, program, len(flags), flags)
            cubin = b" " * call(nvrtc.nvrtcGetCUBINSize, program)
            call(nvrtc.nvrtcGetCUBIN, program, cubin)
            module = self._do(driver.cuModuleLoadData, cubin)
            self._kernels[key] = self._do(driver.cuModuleGetFunction, module, name.encode())
        return self._kernels[key]


def _address(part: BufferPart) -> int:
    buffer = part.buffer
    return int(buffer.address if isinstance(buffer, DeviceBuffer) else buffer.ctypes.data) + part.offset


@cache
def cuda_device(ordinal: int) -> CudaDevice:
    """Return the GPU of this number, the same object each time. Raises DeviceError where there is none."""
    return CudaDevice(ordinal)


def cuda_view(argument: Any, role: str) -> DeviceView:
    """View an array of CUDA, such as CuPy's, or a tensor of torch."""
    plain, dtype = argument, None
    if (torch := sys.modules.get("torch")) is not None and isinstance(argument, torch.Tensor):
        plain = argument.detach()
        if argument.dtype == torch.bfloat16:  # of which the interface knows nothing
            plain, dtype = plain.view(torch.int16), np.dtype(ml_dtypes.bfloat16)
        stream = torch.cuda.current_stream(argument.device).cuda_stream or LEGACY_STREAM
    else:
        stream = argument.__cuda_array_interface__.get("stream") or LEGACY_STREAM
    interface = plain.__cuda_array_interface__
    address, read_only = interface["data"]
    dtype, shape = dtype or np.dtype(interface["typestr"]), tuple(interface["shape"])
    steps = np.cumprod([dtype.itemsize, *shape[:0:-1]])[::-1].tolist() if shape else []
    if interface.get("strides") is not None and list(interface["strides"]) != steps:
        raise ArgumentError(f"{role} of shape {shape} is not contiguous: pass a contiguous copy")
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    ordinal = 0
    if nbytes:
        attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        ordinal = int(call(driver.cuPointerGetAttribute, attribute, address))
    buffer = DeviceBuffer(address, nbytes, argument)
    return DeviceView(cuda_device(ordinal), buffer, shape, dtype, stream, ArrayKin(argument), not read_only)
