"""Programs with CUDA's and HIP's copies, streams and events, on a machine without a device."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faults.test_exec_devices import EVERY, ONE, execute
from tests.faults.test_exec_every import EXAMPLES
from tests.helpers.pool_programs import build

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="runs programs that cxlemu cc has built, on x86-64"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles programs with gcc, which is not here"),
]
HIP = {"<cuda_runtime.h>": "<hip/hip_runtime.h>", "cuda": "hip"}


@pytest.fixture(scope="module")
def streams() -> Path:
    return build("streams.c", f"-I{EXAMPLES}", "-lcudart")


MISTAKES = [("EARLY", "copy-not-ended"), ("UNFLUSHED", "not-flushed"), ("STALE", "no-invalidate")]
IN_EVERY = (*EVERY, "--preemptions", "0")  # of the right one it does not end: streams are threads of their host


@pytest.mark.parametrize(
    ("mistake", "kind", "flags"),
    [(None, None, ONE)]
    + [(*row, ONE) for row in MISTAKES]
    + [pytest.param(*row, IN_EVERY, marks=pytest.mark.deep) for row in MISTAKES],
)
@pytest.mark.parametrize("names", ["cuda", "hip"])
def test_a_mistake_of_the_example_is_its_finding(
    tmp_path: Path, names: str, mistake: str | None, kind: str | None, flags: tuple[str, ...]
) -> None:
    text = (EXAMPLES / "stream_copy.c").read_text()
    for name, its in HIP.items() if names == "hip" else ():
        text = text.replace(name, its)
    source = tmp_path / "stream_copy.c"
    source.write_text(text)
    library = "-lcudart" if names == "cuda" else "-lamdhip64"
    program = build(source, f"-I{EXAMPLES}", "-Wall", "-Werror", *([f"-D{mistake}"] if mistake else []), library)
    code, found, _ = execute(program, "/dev/shm/message", flags, "P send : P receive")
    assert (code, [one["kind"] for one in found]) == ((1, [kind]) if kind else (0, []))
    if kind:
        lines = {step["role"]: text.split("\n")[step["line"] - 1].strip() for step in found[0]["steps"]}  # type: ignore[attr-defined]
        assert lines["store"].startswith(f"{names}MemcpyAsync(m->words") and lines["access"].startswith(
            f"{names}Memcpy(words"
        )


ORDERS = {
    "in-order": [],
    "one-to-the-other": [],
    "two-streams": ["copy-not-ended"],
    "other-stream-waited": ["copy-not-ended"],
    "stream-waits": [],
    "event-between": [],
    "behind-the-event": ["copy-not-ended"],
    "default-stream": [],
    "beside-the-default": ["copy-not-ended"],
    "behind-the-default": [],
    "filled": [],
    "many": [],
    "freed": [],
}


@pytest.mark.parametrize("what", ORDERS)
def test_copies_come_in_the_order_of_their_streams(streams: Path, what: str) -> None:
    flags = ("--seeds", "5", "--keep-going", "--no-shrink")
    code, found, _ = execute(streams, "/dev/shm/streams", flags, f"P {what}")
    assert (code, [one["kind"] for one in found]) == (int(bool(ORDERS[what])), ORDERS[what])


@pytest.mark.parametrize("what", ["in-order", "one-to-the-other", "stream-waits", "two-streams"])
def test_every_interleaving_keeps_that_order(streams: Path, what: str) -> None:
    """Without preemptions, as all steps of one host come in any order: there are hundreds with one."""
    code, found, _ = execute(streams, "/dev/shm/streams", (*EVERY, "--preemptions", "0"), f"P {what}")
    assert (code, [one["kind"] for one in found]) == (int(bool(ORDERS[what])), ORDERS[what])


def test_outside_of_a_run_copies_are_made_at_once(tmp_path: Path) -> None:
    """Also in C++, where memory of any type may be asked for."""
    source = tmp_path / "plain.cc"
    source.write_text(
        """#include <cuda_runtime.h>
#include <cstdio>
int main() {
    double *at, value = 7, back = 0;
    int devices = 0;
    cudaEvent_t event;
    if (cudaGetDeviceCount(&devices) || devices != 1 || cudaSetDevice(1) != cudaErrorInvalidDevice) return 1;
    if (cudaGetLastError() != cudaErrorInvalidDevice || cudaGetLastError() != cudaSuccess) return 2;
    if (cudaMalloc(&at, sizeof *at) || cudaEventCreate(&event)) return 3;
    cudaMemcpyAsync(at, &value, sizeof value, cudaMemcpyHostToDevice);
    cudaEventRecord(event);
    if (cudaEventQuery(event) || cudaEventSynchronize(event) || cudaStreamSynchronize(0)) return 4;
    cudaMemcpy(&back, at, sizeof back, cudaMemcpyDeviceToHost);
    cudaFree(at);
    std::printf("%g %s\\n", back, cudaGetErrorString(cudaErrorNotReady));
}"""
    )
    program = build(source, "-lcudart", language="c++")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "7 device not ready\n")


def test_what_is_not_supported_is_named_by_the_linker(tmp_path: Path) -> None:
    source = tmp_path / "more.c"
    source.write_text(
        "#include <cuda_runtime.h>\n"
        "int cudaGraphLaunch(void *, cudaStream_t);\n"
        "int main(void) { return cudaGraphLaunch(0, 0); }\n"
    )
    with pytest.raises(AssertionError, match="cudaGraphLaunch"):
        build(source, "-lcudart")
