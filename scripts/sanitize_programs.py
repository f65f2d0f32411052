"""The library that other people's programs load, under sanitizers: built with them, and its tests run with that.

A sanitizer's own library has to be in every process: in Python, which loads ours to drive a run, and in the programs,
whose preloaded libraries are ours and then whatever LD_PRELOAD names. A finding is a file of the sanitizer's, whatever
the tests think of how the process ended.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NATIVE, MACHINE = "faults/programs/native", "cxlemu/native"
SHARED = tuple(f"{MACHINE}/{name}.c" for name in ("adversary", "cache", "copy", "damage", "hostlock", "lines"))
FLAGS = [
    "-std=c11",
    "-O1",
    "-g",
    "-fPIC",
    "-fvisibility=hidden",
    "-ftls-model=initial-exec",
    "-DLOCK_WAIT=program_lock_wait",
]
FLAGS += ["-fno-omit-frame-pointer", f"-I{MACHINE}", f"-I{NATIVE}"]
LIBRARY = f"faults/programs/_runtime{sysconfig.get_config_var('EXT_SUFFIX')}"
OURS = "tsan"  # defines what code compiled for the other sanitizer calls, by names that both use
LIMIT_S = 600
# What a sanitizer calls before it is ready.
EARLY = ("preload", "paths", "bytes")


def build(where: Path, kinds: str, without: Sequence[str] = (), wrapped: Path | None = None) -> None:
    """Build the library in a copy of the checkout.

    Args:
        where: The copy.
        kinds: What ``-fsanitize`` is told.
        without: Sources that are compiled without it, by their stems.
        wrapped: Where to write linker flags by which a program's calls of what ``OURS`` defines lead to ours.
    """
    objects = where / f"objects-{kinds}"
    objects.mkdir()
    sources = [*sorted((where / NATIVE).glob("*.c")), *(where / name for name in SHARED)]

    def compiled(source: Path) -> str:
        target = str(objects / f"{source.stem}.o")
        asks = [] if source.stem in without else [f"-fsanitize={kinds}", "-fno-sanitize-recover=all", "-Wno-tsan"]
        subprocess.run(["gcc", *FLAGS, *asks, "-c", str(source), "-o", target], cwd=where, check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        parts = list(threads.map(compiled, sources))
    if wrapped:
        rename(objects, wrapped)
    subprocess.run(["gcc", f"-fsanitize={kinds}", "-shared", *parts, "-o", LIBRARY], cwd=where, check=True)


def rename(objects: Path, wrapped: Path) -> None:
    """Let both define the same names: ours become ``__wrap_NAME``, which ``--wrap`` makes of a program's calls."""
    ours = str(objects / f"{OURS}.o")
    symbols = subprocess.run(["nm", ours], capture_output=True, text=True, check=True).stdout.split()
    names = sorted({name for name in symbols if name.startswith("__tsan_")})
    renamed = [f"--redefine-sym={name}=__wrap_{name}" for name in names]
    subprocess.run(["objcopy", *renamed, ours], check=True)
    # a program that calls __tsan_init is taken for a recompiled one
    wrapped.write_text("\n".join(f"-Wl,--wrap={name}" for name in names if name != "__tsan_init"))


def test(where: Path, runtime: str, options: dict[str, str], tests: Sequence[str]) -> None:
    """Run tests with the library that was built last, and end if there is a finding.

    Args:
        where: The copy of the checkout.
        runtime: The sanitizer's library.
        options: More environment; in each value, ``{log}`` is where findings go.
        tests: pytest's arguments.
    """
    log = where / f"findings-{runtime}"
    found = subprocess.run(["gcc", f"-print-file-name={runtime}"], capture_output=True, text=True, check=True)
    environment = {
        "LD_PRELOAD": found.stdout.strip(),
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(where),
        "OPENBLAS_NUM_THREADS": "1",
        **{name: value.format(log=log) for name, value in options.items()},
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "auto", *tests]
    try:
        code = subprocess.run(command, cwd=where, env=os.environ | environment, timeout=LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        raise SystemExit(f"sanitize: {runtime} in programs: not done after {LIMIT_S} s") from None
    for file in sorted(where.glob(f"{log.name}*")):
        print(file.read_text())
        code = code or 1
    if code:
        raise SystemExit(f"sanitize: {runtime} in programs: a finding, or a test that fails")
    print(f"sanitize: {runtime} in programs: no findings in pytest {' '.join(tests)}", flush=True)


def memory_and_behaviour(where: Path) -> None:
    """Of everything that the fast tier does with programs."""
    build(where, "address,undefined")
    # Faults, traps and ends are the library's own business. It is preloaded before the sanitizer.
    quiet = "detect_leaks=0:verify_asan_link_order=0:handle_segv=0:handle_sigbus=0:handle_abort=0:handle_sigill=0"
    names = ("exec", "exec_damage", "exec_litmus", "program_findings", "program_preload", "program_threads")
    tests = [f"tests/faults/test_{name}.py" for name in names]
    options = {"ASAN_OPTIONS": f"{quiet}:log_path={{log}}", "UBSAN_OPTIONS": "print_stacktrace=1:log_path={log}"}
    # pgrep, which one test calls, does not always end with the sanitizer's library in it. The queue's mistakes make it
    # hang, and no cycle was seen to close in a program with that library: such a run ends at its deadline.
    left_out = "not ctrl_c and not a_mistake_shows_in_the_program and not a_single_mistake_of_the_queue"
    test(where, "libasan.so", options, ["-k", left_out, *tests])


def races(where: Path) -> None:
    """Of programs with threads that run side by side."""
    wrapped, compiler = where / "wrapped", where / "gcc-for-races"
    build(where, "thread", (OURS, *EARLY), wrapped)
    compiler.write_text(f'#!/bin/sh\nexec gcc "$@" -fsanitize=thread @{wrapped}\n')
    compiler.chmod(0o755)
    # The library's handlers are those of faults in a program's code, never within malloc; its own fork and open are
    # not made to be called by a sanitizer that looks for names.
    quiet = "halt_on_error=1:report_signal_unsafe=0:symbolize=0:log_path={log}"
    test(
        where,
        "libtsan.so",
        {"TSAN_OPTIONS": quiet, "CXLEMU_CC": str(compiler)},
        # Of two processes that is not: a turn that comes back through the other one orders nothing for the sanitizer.
        ["-k", "not share_one_processor", "tests/faults/test_program_threads.py"],
    )
