"""A stand-in for NVIDIA's packages, whose device is the CPU and does everything at once. No GPU is asked."""

import ctypes
import importlib
import mmap
import os
import subprocess
import sys
import weakref
from collections import defaultdict
from enum import IntEnum
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cxlemu.accelerator.fold_kernel import KERNEL
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPES

LEGACY_STREAM = 1
REGISTERED_MAX = 1 << 28
ON_CPU = """
#define __device__
#define __global__
static struct { int x; } gridDim = {1}, blockDim = {1}, blockIdx = {0}, threadIdx = {0};
"""


def compiled(folder: Path, options: list[str], kernel: str = KERNEL) -> Path:
    """The kernel as a library of the CPU: what NVRTC is to the GPU."""
    source, library = folder / "kernel.c", folder / "kernel.so"
    source.write_text(ON_CPU + kernel.replace('extern "C" ', ""))
    flags = ["-std=c11", "-O2", "-fPIC", "-shared", "-ffp-contract=off", "-Wall", "-Werror", "-Wno-unused-function"]
    flags += ["-Wno-type-limits", "-Wno-bool-operation"]
    subprocess.run(["cc", *flags, *options, str(source), "-o", str(library)], check=True, timeout=120)
    return library


def operands(dtype: str, count: int) -> list[Bytes]:
    """Any bits, among them every special one, and some ordinary numbers."""
    rng = np.random.default_rng(count)
    found = [rng.integers(0, 256, count * DTYPES[dtype].itemsize).astype(np.uint8) for _ in range(3)]
    small = (rng.integers(-8, 8, (3, count // 2))).astype(np.float32)
    for operand, numbers in zip(found, small, strict=True):
        half = numbers.astype(DTYPES[dtype]).view(np.uint8)
        operand[: half.nbytes] = half
    return found


def without_nans(dtype: str, data: Bytes) -> Bytes:
    """Which NaN it is, IEEE 754 leaves open."""
    if dtype not in ("f16", "bf16", "f32", "f64", "c64", "c128"):
        return data
    parts = data.view({"c64": np.dtype("f4"), "c128": np.dtype("f8")}.get(dtype, DTYPES[dtype])).copy()
    parts[parts != parts] = 0
    return parts.view(np.uint8)


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712
    CUDA_ERROR_INVALID_VALUE = 1


OK = Status.CUDA_SUCCESS


class GpuMemory:
    """Memory at addresses that the host cannot touch, as a GPU's: mapped twice, and only here to be read or written."""

    def __init__(self, nbytes: int = 1 << 30) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        file = os.memfd_create("memory of a GPU")
        os.ftruncate(file, nbytes)
        read_and_write = mmap.PROT_READ | mmap.PROT_WRITE
        self._begin, self._seen = (
            library.mmap(None, nbytes, its, mmap.MAP_SHARED, file, 0) for its in (0, read_and_write)
        )
        os.close(file)
        library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        for begin in (self._begin, self._seen):
            weakref.finalize(self, library.munmap, begin, nbytes)
        self._end, self._next = self._begin + nbytes, self._begin
        self._spare: dict[int, list[int]] = defaultdict(list)
        self._sizes: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int:
        size = -(-nbytes // 256) * 256
        if self._spare[size]:
            address = self._spare[size].pop()
        else:
            address, self._next = self._next, self._next + size
            assert self._next <= self._end, "the stand-in's memory is full"
        self._sizes[address] = size
        return address

    def free(self, address: int) -> None:
        self._spare[self._sizes.pop(address)].append(address)

    def here(self, address: int) -> int:
        return address - self._begin + self._seen if self._begin <= address < self._end else address


class Driver(ModuleType):
    """As much of the driver's interface as our file uses."""

    CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP = 1, 1, 2

    def __init__(self) -> None:
        super().__init__("cuda.bindings.driver")
        self.said: list[str] = []
        self.registers, self.streams = OK, 1000
        self.pages: set[int] = set()
        self.held: dict[int, Bytes] = {}
        self.memory = GpuMemory()
        self.late: list[tuple[int, bytes]] = []
        self.CUdevice_attribute = SimpleNamespace(
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=9, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=0
        )
        self.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
        self.CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
        self.CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_UNIFIED=4)
        self.CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL=9)
        self.CUDA_MEMCPY2D = SimpleNamespace

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Status, int]:
        array = np.zeros(nbytes, np.uint8)
        self.held[array.ctypes.data] = array
        return OK, array.ctypes.data

    def cuMemFreeHost(self, address: int) -> tuple[Status]:
        del self.held[address]
        return (OK,)

    def cuMemAlloc(self, nbytes: int) -> tuple[Status, int]:
        return OK, self.memory.allocate(nbytes)

    def cuMemFree(self, address: int) -> tuple[Status]:
        self.memory.free(address)
        return (OK,)

    def cuMemHostRegister(self, address: int, nbytes: int, flags: int) -> tuple[Status]:
        assert flags == 3 and 0 < nbytes <= REGISTERED_MAX, "a driver takes the memory of all that it registers"
        if address in self.pages:
            return (Status.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,)
        if self.registers == OK:
            self.pages.add(address)
        return (self.registers,)

    def cuMemHostUnregister(self, address: int) -> tuple[Status]:
        self.pages.remove(address)
        return (OK,)

    def cuMemcpyAsync(self, to: int, source: int, nbytes: int, stream: object = None) -> tuple[Status]:
        ctypes.memmove(self.memory.here(to), self.memory.here(source), nbytes)
        return (OK,)

    def cuMemcpy(self, to: int, source: int, nbytes: int) -> tuple[Status]:
        """From memory that is not pinned, bytes have only left that when it returns: see the driver's page on this."""
        if self.memory.here(to) != to and source not in self.held:
            self.late.append((to, ctypes.string_at(source, nbytes)))
            return (OK,)
        return self.cuMemcpyAsync(to, source, nbytes)

    def cuStreamSynchronize(self, stream: int) -> tuple[Status]:
        if stream == LEGACY_STREAM:
            for to, data in self.late:
                ctypes.memmove(self.memory.here(to), data, len(data))
            self.late.clear()
        return (OK,)

    def cuMemcpy2DAsync(self, copy: Any, stream: object) -> tuple[Status]:
        for row in range(copy.Height):
            at = copy.dstDevice + row * copy.dstPitch, copy.srcDevice + row * copy.srcPitch
            ctypes.memmove(*map(self.memory.here, at), copy.WidthInBytes)
        return (OK,)

    def cuModuleLoadData(self, image: bytes) -> tuple[Status, Any]:
        return OK, ctypes.CDLL(image.rstrip(b"\0").decode())

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[Status, Any]:
        return OK, getattr(module, name.decode())

    def cuLaunchKernel(self, function: Any, *how: Any) -> tuple[Status]:
        values, kinds = how[8]
        function.argtypes = list(kinds)
        function(*map(self.memory.here, values))
        return (OK,)

    def cuStreamCreate(self, flags: int) -> tuple[Status, int]:
        self.streams += 1
        return OK, self.streams

    cuEventCreate = cuStreamCreate

    def cuPointerGetAttribute(self, attribute: int, address: int) -> tuple[Status, int]:
        return OK, 0

    def __getattr__(self, name: str) -> Any:
        """All else succeeds; what asks for a number gets 0."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        gives = {"cuDeviceGetName": b"stand-in\0\0", "cuDeviceGetCount": 1, "cuDeviceGetAttribute": 9}
        numbers = ("cuDeviceGet", "cuDevicePrimaryCtxRetain")

        def function(*arguments: Any) -> tuple[Any, ...]:
            self.said.append(name)
            return (OK, gives.get(name, 0)) if name in gives or name in numbers else (OK,)

        function.__name__ = name
        return function


class Nvrtc(ModuleType):
    """NVRTC, in whose place this machine's compiler makes a library of the CPU.

    A program is a folder of its own: the threads of two ranks compile at once.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__("cuda.bindings.nvrtc")
        self.folder = folder

    def nvrtcCreateProgram(self, source: bytes, name: bytes, *headers: Any) -> tuple[Status, Path]:
        program = Path(mkdtemp(dir=self.folder))
        (program / "source").write_bytes(source)
        return OK, program

    def nvrtcCompileProgram(self, program: Path, count: int, flags: list[bytes]) -> tuple[Status]:
        assert count == len(flags) and b"--fmad=false" in flags and b"--gpu-architecture=sm_99" in flags
        options = [flag.decode() for flag in flags if flag.startswith(b"-D")]
        compiled(program, options, (program / "source").read_text())
        return (OK,)

    def nvrtcGetCUBINSize(self, program: Path) -> tuple[Status, int]:
        return OK, len(bytes(program / "kernel.so"))

    def nvrtcGetCUBIN(self, program: Path, image: bytes) -> tuple[Status]:
        path = bytes(program / "kernel.so")
        ctypes.memmove(image, path, len(path))
        return (OK,)


class Cublas(ModuleType):
    """As much of nvmath.bindings.cublas as our file uses. Matrices are columns first, as cuBLAS has them."""

    Operation = SimpleNamespace(N=0)
    ComputeType = SimpleNamespace(COMPUTE_32F=68, COMPUTE_64F=70)
    GemmAlgo = SimpleNamespace(DEFAULT=-1)

    class cuBLASError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("nvmath.bindings.cublas")
        self.streams: list[int] = []

    def create(self) -> int:
        return 5

    def set_stream(self, handle: int, stream: int) -> None:
        assert handle == 5
        self.streams.append(stream)

    def gemm_ex(self, *given: int) -> None:
        handle, opa, opb, m, n, k, alpha, a, atype, lda, b, btype, ldb, beta, c, ctype, ldc, compute, algo = given
        assert (handle, opa, opb, algo) == (5, 0, 0, -1) and atype == btype == ctype
        if m > 1000:
            raise self.cuBLASError("CUBLAS_STATUS_NOT_SUPPORTED")
        dtype = {0: "f32", 1: "f64", 2: "f16", 14: "bf16"}[atype]
        wide = {68: np.float32, 70: np.float64}[compute]
        assert (wide is np.float64) == (dtype == "f64")
        scalars = [
            np.frombuffer((ctypes.c_uint8 * np.dtype(wide).itemsize).from_address(its), wide)[0]
            for its in (alpha, beta)
        ]
        assert scalars == [1, 0]
        left, right, out = (
            self._at(p, dtype, *its) for p, its in ((a, (m, k, lda)), (b, (k, n, ldb)), (c, (m, n, ldc)))
        )
        out[:] = (left.astype(wide) @ right.astype(wide)).astype(out.dtype)

    @staticmethod
    def _at(address: int, dtype: str, rows: int, columns: int, leading: int) -> Any:
        size = DTYPES[dtype].itemsize
        memory = (ctypes.c_uint8 * (((columns - 1) * leading + rows) * size)).from_address(address)
        return np.ndarray((rows, columns), DTYPES[dtype], memory, strides=(size, leading * size))


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import CUDA's file anew, on stand-ins for the driver and for NVRTC."""
    bindings = ModuleType("cuda.bindings")
    bindings.driver, bindings.nvrtc = Driver(), Nvrtc(folder)  # type: ignore[attr-defined]
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", bindings)):
        monkeypatch.setitem(sys.modules, name, module)
    return anew(monkeypatch)


def anew(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import CUDA's file with whatever packages there are; the next one who asks for it imports it again."""
    ours = "cxlemu.accelerator.cuda", "cxlemu.accelerator.cuda_products"
    for name in ours:
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, None)  # so that what is imported now is taken away in the end
        del sys.modules[name]
    return importlib.import_module(ours[0])
