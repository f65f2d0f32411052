"""`cxlemu cc` where a build system wants a compiler: make, CMake, setuptools, Cargo. What they build runs on a pool."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from faults.programs.commands import parse_commands, parse_pools
from faults.programs.result import ExecSetting, RunChoice, RunEnding
from faults.programs.run import run

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
SOURCE = Path(__file__).parent / "programs" / "handed.c"
pytestmark = pytest.mark.deep


def one_word(folder: Path) -> dict[str, str]:
    """The variables that name the compilers, and where they are then found."""
    words = {}
    for variable, name in (("CC", "cxlemu-cc"), ("CXX", "cxlemu-c++")):
        module, _, function = tomllib.loads(PROJECT.read_text())["project"]["scripts"][name].partition(":")
        command = folder / "bin" / name  # as pip writes it
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
        command.chmod(0o755)
        words[variable] = name
    return {**words, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def build(folder: Path, *words: str | Path, tool: str | None = None) -> None:
    tool = tool or str(words[0])
    if not shutil.which(tool):
        pytest.skip(f"there is no {tool}")
    environment = {**os.environ, **one_word(folder)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode and "there is no compiler" in done.stderr:
        pytest.skip("there is no compiler")
    assert done.returncode == 0, done.stdout + done.stderr


def handed_on(pool: Path, store: str, look: str) -> None:
    """What ``store`` has published, ``look`` prints on the other host."""
    words = f"{store} :: @1 {look}".split()
    result = run(ExecSetting(parse_commands(words, 2), parse_pools([f"{pool}=64K"])), RunChoice(None, 0))
    assert [one.code for one in result.exits] == [0, 0] and result.exits[1].output == "7\n"
    assert result.ending is RunEnding.ENDED and result.unannounced == 0 and result.findings == []


def is_instrumented(binary: Path) -> bool:
    return b"__tsan_" in binary.read_bytes()


def test_make(tmp_path: Path) -> None:
    shutil.copy(SOURCE, tmp_path)
    build(tmp_path, "make", "handed", "CFLAGS=-O2 -Wall")
    binary = tmp_path / "handed"
    assert is_instrumented(binary)
    handed_on(tmp_path / "pool", f"{binary} {tmp_path / 'pool'} store", f"{binary} {tmp_path / 'pool'} value")


def test_cmake(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.10)\nproject(handed C CXX)\nadd_executable(handed {SOURCE})\n"
    )
    build(tmp_path, "cmake", "-B", "build", "-DCMAKE_BUILD_TYPE=Release", ".")
    build(tmp_path, "cmake", "--build", "build")
    binary = tmp_path / "build" / "handed"
    assert is_instrumented(binary)
    handed_on(tmp_path / "pool", f"{binary} {tmp_path / 'pool'} store", f"{binary} {tmp_path / 'pool'} value")


# As handwritten ones do: a compiler is one word, and where there is no such program, another one is taken.
CONFIGURE = """
command -v "$CC" >/dev/null || CC=gcc
printf 'handed: handed.c\\n\\t%s -O2 -o $@ handed.c\\n' "$CC" >Makefile
"""


@pytest.mark.parametrize("name", ["cxlemu-cc", "cxlemu-c++"])
def test_a_configure_that_takes_one_word_for_a_compiler(tmp_path: Path, name: str) -> None:
    shutil.copy(SOURCE, tmp_path)
    build(tmp_path, "sh", "-c", f"CC={name}\n{CONFIGURE}\nmake")
    binary = tmp_path / "handed"
    assert is_instrumented(binary)
    handed_on(tmp_path / "pool", f"{binary} {tmp_path / 'pool'} store", f"{binary} {tmp_path / 'pool'} value")


EXTENSION = r"""
#include <Python.h>
#include <cxl.h>

static PyObject *store(PyObject *module, PyObject *words) {
    Py_buffer view;
    unsigned long long value;
    (void)module;
    if (!PyArg_ParseTuple(words, "w*K", &view, &value)) return NULL;
    *(volatile unsigned long long *)view.buf = value;
    cxl_flush(view.buf, 8);
    cxl_fence();
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"store", store, METH_VARARGS, NULL}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "storing", NULL, -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_storing(void) { return PyModule_Create(&definition); }
"""
SCRIPT = """
import mmap, os, sys
sys.path.insert(0, {folder!r})
import storing
file = os.open({pool!r}, os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 4096)
mapped = mmap.mmap(file, 4096)
if sys.argv[1] == "store":
    storing.store(memoryview(mapped)[:64], 7)
else:
    print(int.from_bytes(mapped[:8], "little"))
"""


def test_setuptools_and_an_extension_that_stores_into_a_memoryview(tmp_path: Path) -> None:
    (tmp_path / "storing.c").write_text(EXTENSION)
    (tmp_path / "setup.py").write_text(
        "from setuptools import Extension, setup\n"
        "setup(name='storing', ext_modules=[Extension('storing', ['storing.c'])])\n"
    )
    pytest.importorskip("setuptools")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("there is no Python.h")
    build(tmp_path, sys.executable, "setup.py", "-q", "build_ext", "--inplace")
    (binary,) = tmp_path.glob("storing.*.so")
    assert is_instrumented(binary)
    script, pool = tmp_path / "script.py", tmp_path / "pool"
    script.write_text(SCRIPT.format(folder=str(tmp_path), pool=str(pool)))
    handed_on(pool, f"{sys.executable} {script} store", f"{sys.executable} {script} value")


BUILD_RS = r"""
use std::{env, process::Command};
fn main() {
    let (out, cc) = (env::var("OUT_DIR").unwrap(), env::var("CC").unwrap());
    let mut words = cc.split_whitespace(); // as the cc crate takes it
    let object = format!("{out}/part.o");
    let done = Command::new(words.next().unwrap()).args(words)
        .args(["-O2", "-fPIC", "-c", "part.c", "-o", &object]).status().unwrap();
    assert!(done.success());
    assert!(Command::new("ar").args(["crs", &format!("{out}/libpart.a"), &object]).status().unwrap().success());
    println!("cargo:rustc-link-search=native={out}");
    println!("cargo:rustc-link-lib=static=part");
    println!("cargo:rustc-link-arg={}", env::var("CXLEMU_LIBRARY").unwrap());
}
"""
MAIN_RS = """
use std::{env, ffi::{c_char, c_int, CString}};
extern "C" { fn part(count: c_int, words: *const *const c_char) -> c_int; }
fn main() {
    let words: Vec<CString> = env::args().map(|word| CString::new(word).unwrap()).collect();
    let raw: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
    std::process::exit(unsafe { part(raw.len() as c_int, raw.as_ptr()) });
}
"""


CC_CRATES = sorted(Path("/usr/share/cargo/registry").glob("cc-1.*"))  # of Debian's librust-cc-dev
CRATE_TOML = '[package]\nname = "cc"\nversion = "1.0.0"\nedition = "2018"\n'
CRATE_RS = r"""
fn main() {
    cc::Build::new().file("part.c").opt_level(2).compile("part");
    println!("cargo:rustc-link-arg={}", std::env::var("CXLEMU_LIBRARY").unwrap());
}
"""


@pytest.mark.parametrize("by", ["a build script", "the cc crate"])
def test_cargo_with_a_part_in_c(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a build script that calls $CC as the cc crate does, since crates may be out of reach, and by that crate.

    Rust's own part is not compiled by it: the program is preloaded, and its part in C announces what it does.
    """
    from faults.programs.area import library_path

    monkeypatch.setenv("CXLEMU_LIBRARY", str(library_path()))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.rs").write_text(MAIN_RS)
    (tmp_path / "build.rs").write_text(BUILD_RS)
    (tmp_path / "part.c").write_text(SOURCE.read_text().replace("int main(", "int part("))
    told = '[package]\nname = "handed"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n'
    if by == "the cc crate":
        if not CC_CRATES:
            pytest.skip("the cc crate is not installed: apt-get install librust-cc-dev")
        shutil.copytree(CC_CRATES[-1] / "src", tmp_path / "cc" / "src")
        (tmp_path / "cc" / "Cargo.toml").write_text(CRATE_TOML)  # without what is optional, which may be out of reach
        (tmp_path / "build.rs").write_text(CRATE_RS)
        told += '[build-dependencies]\ncc = { path = "cc" }\n'
    (tmp_path / "Cargo.toml").write_text(told)
    build(tmp_path, "cargo", "build", "--offline", "-q")
    binary = tmp_path / "target" / "debug" / "handed"
    assert is_instrumented(binary)
    handed_on(tmp_path / "pool", f"{binary} {tmp_path / 'pool'} store", f"{binary} {tmp_path / 'pool'} value")
