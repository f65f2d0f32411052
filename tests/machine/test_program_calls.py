"""cxl.h and cxlemu.program: the instructions that they are, and the calls that they become under the emulator."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cxlemu import program
from cxlemu.memory.protocol import LINE_BYTES
from tests.helpers.commands import python

USER = r"""
#include <cxl.h>
#include <stdio.h>
static unsigned char pool[4096] __attribute__((aligned(64)));
static int holds(const void *bytes) { return bytes != NULL; }
int main(void) {
    unsigned char data[300];
    long sum = 0;
    memset(data, 5, sizeof data);
    cxl_store_nt(pool + 3, data, sizeof data);
    cxl_fence();
    cxl_flush(pool, 100), cxl_writeback(pool, 1), cxl_invalidate(pool, 0), cxl_invalidate(pool, sizeof pool);
    cxl_expect_stale(pool, 3);
    cxl_invariant(pool, sizeof pool, holds), cxl_linearizable(CXL_QUEUE | CXL_MAP);
    cxl_op_begin(CXL_OP_PUT, 1, 2), cxl_op_end(CXL_NONE);
    cxl_assert(sum++ == 1); /* not evaluated */
    for (size_t k = 0; k < sizeof pool; k++) sum += pool[k];
    printf("%ld\n", sum);
    return 0;
}
"""
STRICT = ("-Wall", "-Wextra", "-Werror", "-Wpedantic", f"-I{program.include_dir()}")
COMPILERS = [
    ("gcc", "-std=c11"),
    ("g++", "-std=c++11", "-x", "c++", "-O2"),
    ("clang", "-std=c11", "-O2"),
    ("clang++", "-std=c++17", "-x", "c++"),
]
CALLS = ("expect_stale", "fence", "flush", "invalidate", "store_nt", "writeback")
CALLS += ("fails", "invariant", "linearizable", "op_begin", "op_end")


def compiled(folder: Path, *command: str) -> Path:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    source, into = folder / "user.c", folder / "user"
    source.write_text(USER)
    done = subprocess.run([*command, *STRICT, str(source), "-o", str(into)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return into


def disassembly(file: Path, tool: str = "objdump") -> str:
    return subprocess.run([tool, "-d", str(file)], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="cxl.h has no instructions for it")
@pytest.mark.parametrize("command", COMPILERS, ids=lambda command: command[0])
def test_the_header_compiles_without_a_warning_and_stores_what_it_should(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    program_file = compiled(tmp_path, *command)
    assert subprocess.run([program_file], capture_output=True, text=True, check=True).stdout == "1500\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instructions of x86-64")
def test_the_header_is_the_instructions_of_the_memory_model(tmp_path: Path) -> None:
    listing = disassembly(compiled(tmp_path, "gcc", "-std=c11", "-O2"))
    for instruction in ("clflushopt", "clflush ", "clwb", "sfence", "mfence", "lfence", "movntps|movntdq"):
        assert any(name in listing for name in instruction.split("|")), instruction


def test_the_header_is_the_instructions_of_arm64(tmp_path: Path) -> None:
    listing = disassembly(
        compiled(tmp_path, "aarch64-linux-gnu-gcc", "-std=c11", "-O2", "-c"), "aarch64-linux-gnu-objdump"
    )
    for instruction in ("civac", "cvac", "dsb\tsy", "dmb\tsy", "stnp"):
        assert instruction in listing, instruction


def test_under_the_emulator_every_function_is_a_call_of_it(tmp_path: Path) -> None:
    names = subprocess.run(
        ["nm", str(compiled(tmp_path, "gcc", "-DCXLEMU_PROGRAM", "-std=c11", "-c"))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for call in CALLS:
        assert f"U cxlemu_cxl_{call}\n" in names
    assert "clflush" not in disassembly(tmp_path / "user")


ARRAYS = [
    np.arange(300, dtype=np.uint8),
    np.arange(64, dtype=np.float32).reshape(8, 8)[1:5, ::2],
    np.zeros(5, ml_dtypes.bfloat16),
    np.zeros(3, [("sequence", "<u8"), ("data", "u1", 40)])["sequence"],
    np.zeros(3, [("sequence", "<u8"), ("data", "u1", 40)]),
    np.float64(3.0).reshape(()),
    np.zeros((0, 4)),
    memoryview(b"read only"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=[str(k) for k in range(len(ARRAYS))])
def test_python_flushes_any_array_and_leaves_its_bytes(array: np.ndarray) -> None:
    before = bytes(array.tobytes())
    for call in (program.flush, program.writeback, program.invalidate, program.expect_stale):
        call(array)
    program.fence()
    assert array.tobytes() == before


def test_python_stores_past_the_cache() -> None:
    pool = np.zeros(4 * LINE_BYTES, np.uint8)
    program.store_nt(pool[3:250], bytes([7]) * 247)
    program.fence()
    assert pool.tobytes() == bytes(3) + bytes([7]) * 247 + bytes(6)
    with pytest.raises(ValueError, match="has 256 bytes, but 1 are to be stored"):
        program.store_nt(pool, b"1")
    with pytest.raises(TypeError):
        program.flush(3)  # no buffer


EMULATOR = r"""
#include <stddef.h>
#include <stdio.h>
#define TOLD(name) void cxlemu_cxl_##name(const void *at, size_t n) { fprintf(stderr, #name " %zu\n", n); (void)at; }
TOLD(flush) TOLD(writeback) TOLD(invalidate) TOLD(expect_stale)
void cxlemu_cxl_fence(void) { fprintf(stderr, "fence\n"); }
void cxlemu_cxl_store_nt(void *to, const void *from, size_t n) {
    (void)to, (void)from;
    fprintf(stderr, "store_nt %zu\n", n);
}
"""
SCRIPT = """
import numpy as np
from cxlemu import program
table = np.zeros(2, [("sequence", "<u8"), ("data", "u1", 56)])
program.flush(table); program.flush(table["sequence"]); program.writeback(table["data"][0])
program.invalidate(table[1:]); program.expect_stale(memoryview(b"abc")); program.fence()
program.store_nt(np.zeros(3, np.uint8), b"abc")
"""


def test_python_calls_the_emulator_where_there_is_one(tmp_path: Path) -> None:
    source, library = tmp_path / "emulator.c", tmp_path / "emulator.so"
    source.write_text(EMULATOR)
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    done = python("-c", SCRIPT, code=0, env=os.environ | {"LD_PRELOAD": str(library)})
    assert done.stderr.split("\n") == [
        *(
            "flush 128",
            "flush 8",
            "flush 8",
            "writeback 56",
            "invalidate 64",
            "expect_stale 3",
            "fence",
            "store_nt 3",
            "",
        )
    ]
