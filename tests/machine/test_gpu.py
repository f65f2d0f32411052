"""What a GPU is to show, where there is one. The same tests run on the stand-in, so that they are right when one comes.

pip install 'cxlemu[cuda]' nvidia-cuda-nvrtc-cu12 && pytest --deep tests/machine/test_gpu.py
Its bandwidths: cxlemu doctor --accelerator cuda:0. NVRTC compiles where there is no GPU, too.
"""

import importlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from cxlemu import RankContext, launch
from cxlemu.accelerator import cuda_products, fold_kernel
from cxlemu.accelerator.arrays import DeviceArray
from cxlemu.accelerator.device import DeviceBuffer, TileProduct
from cxlemu.calibrate.measure import memory
from cxlemu.choices import GEMM_DTYPES
from cxlemu.engines.mover import BufferPart
from cxlemu.errors import CxlemuError
from cxlemu.memory import MemorySpec
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPE_NAMES, DTYPES, RedOp
from cxlemu.plan.address import StridedRun
from cxlemu.plan.reduction import fold, reductions
from tests.helpers.commands import python
from tests.helpers.cuda_stand_in import Nvrtc, anew, operands, stand_in, without_nans
from tests.helpers.device_verbs import RANKS, verbs

ON_STUB = "CXLEMU_TEST_STUB_DRIVER"  # in the environment: the driver is tests/helpers/stub_driver.c
OPS = [op.name.lower() for op in RedOp if op != RedOp.NONE]


@pytest.fixture(params=["a GPU", "a stand-in"])
def gpu(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "a stand-in":
        return stand_in(tmp_path, monkeypatch).cuda_device(0)
    if ON_STUB in os.environ:
        bindings = importlib.import_module("cuda.bindings")
        nvrtc = Nvrtc(tmp_path)
        monkeypatch.setattr(bindings, "nvrtc", nvrtc, raising=False)
        monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", nvrtc)
    try:
        return anew(monkeypatch).cuda_device(0)
    except CxlemuError as error:
        pytest.skip(f"there is no GPU: {error}")


def on_device(gpu: Any, data: Bytes) -> DeviceBuffer:
    buffer: DeviceBuffer = gpu.allocate(data.nbytes)
    gpu.write(whole(buffer), data)
    return buffer


def whole(buffer: DeviceBuffer) -> BufferPart:
    return BufferPart(buffer, 0, buffer.nbytes)


def both(context: RankContext, gpu: Any) -> bool:
    """Whether arrays on the GPU, which the ranks share, and arrays on the host come to the same bits."""
    queue = gpu.queue()

    def put(given: Any) -> DeviceArray:
        made = DeviceArray(gpu, queue, given.shape, given.dtype)
        made.set(given)
        return made

    with Communicator.world(context, region_bytes=1 << 16) as comm:
        on_host = verbs(comm, np.copy, np.asarray)
        on_gpu = verbs(comm, put, DeviceArray.get)
    return all(
        (wanted is None) == (got is None) and (wanted is None or wanted.tobytes() == got.tobytes())
        for wanted, got in zip(on_host, on_gpu, strict=True)
    )


def test_every_verb_has_the_bits_of_the_host(gpu: Any) -> None:
    asked = partial(both, gpu=gpu)
    assert launch(asked, ranks=RANKS, topology="six-cards", how="threads", memory=MemorySpec("shm")) == [True] * RANKS


LIBRARIES: dict[str, tuple[str, Any, Any]] = {  # the module, how it makes an array, and how that comes to the host
    "CuPy": ("cupy", lambda its, value: its.full(3000, value, np.float32), lambda its, array: its.asnumpy(array)),
    "torch": ("torch", lambda its, value: its.full((3000,), value, device="cuda:0"), lambda its, array: array.cpu()),
}


def of_library(context: RankContext, name: str) -> tuple[bool, list[float]]:
    """Whether results are arrays of the library, and which values of some calls came to the host."""
    module, make, fetch = LIBRARIES[name]
    its = importlib.import_module(module)
    with Communicator.world(context, region_bytes=1 << 16) as comm:
        x = make(its, float(context.rank + 1)) * 2  # queued, perhaps not done yet
        calls = [comm.all_reduce, comm.all_gather, lambda array: comm.all_reduce(array) + 1]  # the first is in place
        found = [(type(one) is type(x), float(np.asarray(fetch(its, one)).sum())) for one in (it(x) for it in calls)]
        return all(kind for kind, _ in found), [total for _, total in found]


@pytest.mark.deep
@pytest.mark.parametrize("library", LIBRARIES)
def test_arrays_of_other_libraries_come_back_as_theirs(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        pytest.importorskip(LIBRARIES[library][0])
        anew(monkeypatch).cuda_device(0)
    except CxlemuError as error:
        pytest.skip(f"there is no GPU: {error}")
    asked = partial(of_library, name=library)
    wanted = True, [6 * 3000.0, 2 * 6 * 3000.0, (12 + 1) * 3000.0]
    assert launch(asked, ranks=2, topology="six-cards", how="threads", memory=MemorySpec("shm")) == [wanted] * 2


def test_what_is_contiguous_on_a_card_and_strided_here_comes_and_goes(gpu: Any) -> None:
    pool = memory(1 << 16, None)
    kept, direct, queue = gpu.register([pool]), DirectMemory([pool]), gpu.queue()
    given = (np.arange(4096) % 251).astype(np.uint8)
    run = StridedRun(card=0, card_offset=128, local_offset=64, block_bytes=64, blocks=20, stride_bytes=192)
    gpu.publish(queue, direct, run, whole(on_device(gpu, given)), non_temporal=False)
    back = on_device(gpu, np.zeros(4096, np.uint8))
    gpu.retrieve(queue, direct, run, whole(back))
    gpu.synchronize(queue)
    assert np.array_equal(pool[128 : 128 + run.nbytes].reshape(20, 64), run.local(given))
    wanted = np.zeros(4096, np.uint8)
    run.local(wanted)[:] = run.local(given)
    assert np.array_equal(gpu.read(whole(back)), wanted)
    del kept


@pytest.mark.deep
def test_folds_have_the_bits_of_the_reference(gpu: Any) -> None:
    queue, count, few = gpu.queue(), 1 << 12, []
    for dtype, redop in reductions(DTYPE_NAMES, OPS):
        index, op = DTYPE_NAMES.index(dtype), RedOp[redop.upper()]
        given = operands(dtype, count)
        sources = [on_device(gpu, each) for each in given]
        for used in (2, 3):
            for divisor in (1, 3) if redop == "avg" else (1,):
                out = gpu.allocate(given[0].nbytes)
                gpu.fold(queue, whole(out), index, op, [whole(source) for source in sources[:used]], divisor)
                gpu.synchronize(queue)
                wanted = fold(index, op, given[:used], divisor)
                if without_nans(dtype, gpu.read(whole(out))).tobytes() != without_nans(dtype, wanted).tobytes():
                    few.append((dtype, redop, used, divisor))
    assert few == []


@pytest.mark.parametrize(("dtype", "tolerance"), [("f32", 1e-4), ("f64", 1e-12), ("f16", 2e-3), ("bf16", 2e-2)])
def test_products_are_those_of_numpy_but_for_rounding(gpu: Any, dtype: str, tolerance: float) -> None:
    m, n, k = 70, 50, 90
    rng, queue = np.random.default_rng(5), gpu.queue()
    a, b = (rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in ((m, k), (k, n)))
    left, right = (on_device(gpu, each.view(np.uint8).reshape(-1)) for each in (a, b))
    out = gpu.allocate(m * n * a.itemsize)
    gpu.multiply(queue, whole(out), TileProduct(dtype, m, n, k, k, n, n), whole(left), whole(right))
    gpu.synchronize(queue)
    got = gpu.read(whole(out)).view(a.dtype).reshape(m, n).astype(np.float64)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(got - wanted).max() <= tolerance * np.abs(wanted).max()


def kernels() -> list[tuple[str, str, list[str]]]:
    """Every kernel of ours: its name, its source and its options."""
    folds = [
        ("fold", fold_kernel.KERNEL, fold_kernel.kernel_options(dtype, RedOp[op.upper()]))
        for dtype, op in reductions(DTYPE_NAMES, OPS)
    ]
    side = f"-DCXL_SIDE={cuda_products.SIDE}"
    sums = [
        ("multiply", cuda_products.KERNEL, [*fold_kernel.kernel_options(dtype, RedOp.SUM), side])
        for dtype in GEMM_DTYPES
    ]
    return folds + sums


def test_what_is_defined_for_kernels_is_no_word_of_nvrtcs_own_headers() -> None:
    for _, _, options in kernels():
        assert all(option.startswith("-DCXL_") for option in options)


@pytest.mark.deep
def test_nvrtc_compiles_every_kernel() -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        pytest.skip(str(error))
    for name, source, options in kernels():
        _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
        flags = [option.encode() for option in (*options, "--fmad=false", "--gpu-architecture=sm_90")]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        assert int(status) == 0, f"{name} {options}: {log.decode()[:2000]}"


@pytest.mark.deep
def test_nvidias_package_makes_the_calls_that_the_file_asks_for(tmp_path: Path) -> None:
    """The real cuda-bindings, whose driver is a stub that does everything on the CPU: they convert every argument."""
    pytest.importorskip("cuda.bindings.driver")
    source = Path(__file__).parents[1] / "helpers" / "stub_driver.c"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o", str(tmp_path / "libcuda.so.1"), "-ldl"]
    subprocess.run(["cc", str(source), *flags], check=True, timeout=60)
    names = [
        "test_every_verb_has_the_bits_of_the_host[a GPU]",
        "test_what_is_contiguous_on_a_card_and_strided_here_comes_and_goes[a GPU]",
        "test_folds_have_the_bits_of_the_reference[a GPU]",
        *(f"test_products_are_those_of_numpy_but_for_rounding[a GPU-{its}]" for its in ("f32-0.0001", "bf16-0.02")),
    ]
    paths = ":".join(filter(None, [str(tmp_path), os.environ.get("LD_LIBRARY_PATH")]))
    done = python(
        "-m",
        "pytest",
        "-q",
        "--deep",
        "-p",
        "no:cacheprovider",
        *(f"{__file__}::{n}" for n in names),
        timeout_s=240,
        env={**os.environ, ON_STUB: "1", "LD_LIBRARY_PATH": paths},
    )
    assert f"{len(names)} passed" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
