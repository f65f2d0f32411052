"""``cxlemu cc`` and ``cxlemu c++``: a compiler's command line, with flags that make a program announce its accesses.

The compiler's own thread sanitizer puts a call before each load and store. The runtime that these calls reach is ours,
not the sanitizer's: nothing else of it is used.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cxlemu import program
from cxlemu.errors import ArgumentError
from faults.programs.area import library_path

NATIVE = Path(__file__).with_name("native")
DEFAULTS = {"c": ("cc", "gcc", "clang"), "c++": ("c++", "g++", "clang++")}
CHOSEN_BY = {"c": "CXLEMU_CC", "c++": "CXLEMU_CXX"}

_OTHERS = {"address", "hwaddress", "leak", "memory"}  # sanitizers beside which a compiler takes no thread sanitizer
_LISTS = ("-fsanitize-blacklist=", "-fsanitize-ignorelist=")  # of functions that clang is to leave as they are
_RUNTIMES = ("-lcudart", "-lcudart_static", "-lamdhip64")  # native/device_runtime.c stands in for them
_NO_LINK = ("-c", "-S", "-E", "-M", "-MM", "-fsyntax-only", "-r")


def compiler(language: str) -> list[str]:
    """Return the compiler's command: CXLEMU_CC or CXLEMU_CXX, else the first of cc, gcc and clang that is installed."""
    if chosen := shlex.split(os.environ.get(CHOSEN_BY[language], "")):
        return chosen
    for name in DEFAULTS[language]:
        if path := shutil.which(name):
            return [path]
    raise ArgumentError(f"there is no compiler: install gcc or clang, or name one in {CHOSEN_BY[language]}")


@cache
def is_clang(command: str) -> bool:
    """Ask a compiler whether it is clang."""
    try:
        said = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60).stdout
    except OSError as error:
        raise ArgumentError(f"{command}: {error.strerror}") from error
    return "clang" in said


def compiler_arguments(language: str, words: Sequence[str], *, clang: bool) -> list[str]:
    """Add to a compiler's arguments the flags that announce loads and stores, and the library that follows them."""
    if "-static" in words or "-static-pie" in words:
        raise ArgumentError("cxlemu cc: a static program cannot be run on the emulated pool; leave out -static")
    for word in words:
        if word.startswith("-fsanitize=") and _OTHERS & set(word.partition("=")[2].split(",")):
            raise ArgumentError(
                f"cxlemu cc: a compiler takes no {word} beside the instrumentation of cxlemu cc; build the program "
                "with the compiler itself: cxlemu exec runs it as it is"
            )
    if clang and "-masm=intel" in words:
        raise ArgumentError(
            "cxlemu cc: no assembler reads what clang writes for -masm=intel: leave it out, or compile with gcc"
        )
    left_out = ("-flto", "-fsanitize=thread", "-fno-sanitize=thread", "-fno-sanitize=all", *_LISTS)
    kept = [word for word in words if not word.startswith(left_out) and word not in _RUNTIMES]
    names = [word for word in kept if not word.startswith("-")]
    if not names and "-" not in kept:  # a question, such as --version
        return list(words)
    links = [] if any(word in _NO_LINK for word in kept) else ["-Xlinker", "--no-as-needed", "-Xlinker"]
    links += [str(library_path())] if links else []  # which may have a comma
    return [*_includes(), *kept, *_instruments(clang), *links]


def _includes() -> list[str]:
    flags = ["-DCXLEMU_PROGRAM", "-isystem", str(program.include_dir())]
    flags.append(f"-I{NATIVE / 'stand-ins'}")  # before a CUDA or HIP that is installed, and libstdc++'s configuration
    flags.append("-D_LIBCPP_DISABLE_EXTERN_TEMPLATE")  # a program has libc++'s templates itself, instrumented
    return [*flags, "-include", str(NATIVE / "calls.h"), "-include", str(NATIVE / "announce.h")]


def _instruments(clang: bool) -> list[str]:
    """The flags that must come last: a compiler takes the last of two that contradict, and -O2 switches vectors on."""
    # gcc's flag reaches the compiler proper only: given to its driver, it would link the sanitizer's runtime.
    flags = ["-fsanitize=thread", "-fno-sanitize-link-runtime"] if clang else ["-Wp,-fsanitize=thread", "-Wno-tsan"]
    flags += ["-fno-plt", "-fno-builtin", "-fno-lto"]  # each load and store is a call
    flags += ["-mllvm", "-tsan-distinguish-volatile"] if clang else ["--param=tsan-distinguish-volatile=1"]
    flags.append("-gdwarf-4")  # addr2line misses inlined functions in clang's version 5, and mistakes a file in gcc's
    if clang:  # which announces no load or store of more than 16 bytes
        flags += ["-fno-integrated-as", "-mprefer-vector-width=128", "-fno-vectorize", "-fno-slp-vectorize"]
        flags.append("-Wa,--no-warn")  # of sections that clang means for an assembler of its own
        flags += ["-mllvm", "-enable-interleaved-mem-accesses=false"]  # where a pragma has a loop vectorized
        flags += ["-mllvm", "-tsan-instrument-read-before-write"]  # also the load of an increment
        flags += ["-Wno-unused-command-line-argument", "-Wno-builtin-macro-redefined"]
    return flags


def main(language: str, words: Sequence[str]) -> int:
    """Run the compiler with the arguments of `compiler_arguments`, and return its exit code."""
    command = compiler(language)
    if not words:
        return subprocess.call(command)
    return subprocess.call([*command, *compiler_arguments(language, words, clang=is_clang(command[-1]))])
