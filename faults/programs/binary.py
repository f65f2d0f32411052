"""What kind of file a command runs: whether its flushes and fences can be followed, and how."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

from cxlemu.errors import ArgumentError
from cxlemu.files import open_file

ELF, CLASS_64, LITTLE = b"\x7fELF", 2, 1
X86_64, EXECUTABLE, SHARED = 62, 2, 3
MACHINES = {3: "32-bit x86", 40: "32-bit Arm", 183: "arm64", 243: "RISC-V"}
INTERPRETER, DYNAMIC = 3, 2
HEADER_BYTES, PROGRAM_HEADER_BYTES, PROGRAM_HEADERS = 64, 56, 512
SCRIPT_BYTES, INTERPRETER_BYTES, INTERPRETERS = 256, 4096, 4
SEARCHED_BYTES = 1 << 28  # in which symbols and notes are looked for
SETUID = 0o6000
SANITIZER = b"\0libtsan.so"
C_LIBRARY = ("libc.so.", "libm.so.", "libdl.so.", "libpthread.so.", "librt.so.", "libgcc_s.so.", "ld-linux")


def preloaded(words: Iterable[str]) -> list[str]:
    """Return the names of the programs that were not compiled with ``cxlemu cc``, each once, in order."""
    names: dict[str, None] = {}
    for word in words:
        path = shutil.which(word)
        if path is None or is_recompiled(Path(path)):
            continue
        check_binary(Path(path))
        names[Path(path).name] = None
    return list(names)


def check_binary(program: Path) -> None:
    """Refuse a program (for a script, its ``#!``) that does not load our library, or whose flushes would go unseen."""
    image = _whole(_behind_scripts(program))
    name = program.name
    if image[:4] != ELF or len(image) < HEADER_BYTES:
        raise ArgumentError(f"{name}: neither a program nor a script with '#!'")
    kind, machine = struct.unpack_from("<HH", image, 16)
    if image[4] != CLASS_64 or image[5] != LITTLE or machine != X86_64:
        what = MACHINES.get(machine, f"machine {machine}")
        raise ArgumentError(
            f"{name}: a program for {what}; unchanged programs are followed on x86-64 only: compile it with cxlemu cc"
        )
    if program.stat().st_mode & SETUID:
        raise ArgumentError(f"{name}: it changes its user or group (setuid), so the kernel forbids following it")
    interpreter = _interpreter(image)
    if kind not in (EXECUTABLE, SHARED) or interpreter is None:
        raise ArgumentError(f"{name}: statically linked, so no library can be preloaded: link it dynamically")
    if b"ld-linux" not in interpreter:
        raise ArgumentError(
            f"{name}: made for {interpreter.decode(errors='replace')}; only the GNU C library is supported"
        )
    if SANITIZER in image:
        raise ArgumentError(f"{name}: built with -fsanitize=thread: build it without that, or with cxlemu cc")
    if b"\xff Go buildinf:" in image:
        raise ArgumentError(
            f"{name}: a Go program: its system calls and signals bypass the C library, and are not seen"
        )


def is_recompiled(program: Path) -> bool:
    """Tell whether a program was compiled with ``cxlemu cc``: it calls our runtime."""
    image = _whole(program)
    return image[:4] == ELF and b"\0__tsan_init\0" in image and SANITIZER not in image


def not_rebuilt(words: Iterable[str]) -> list[str]:
    """Name the libraries of programs that were not compiled with ``cxlemu cc``, each once, without the C library."""
    names: dict[str, None] = {}
    for path in filter(None, map(shutil.which, words)):
        try:
            said = subprocess.run(["ldd", path], capture_output=True, text=True, timeout=60).stdout
        except OSError:
            return []  # not every system has it
        for file in map(Path, re.findall(r"(/\S+) \(0x", said)):
            if not file.name.startswith(C_LIBRARY) and b"\0__tsan_init\0" not in _whole(file):
                names[file.name] = None
    return list(names)


def _whole(file: Path) -> bytes:
    try:
        with open_file(file) as binary:
            return binary.read(SEARCHED_BYTES)
    except OSError as error:
        raise ArgumentError(f"{file}: {error.strerror}") from error


def _behind_scripts(program: Path) -> Path:
    for _ in range(INTERPRETERS):
        try:
            with open_file(program) as file:
                first = file.read(SCRIPT_BYTES).partition(b"\n")[0]
        except OSError as error:
            raise ArgumentError(f"{program}: {error.strerror}") from error
        if not first.startswith(b"#!"):
            return program
        words = first[2:].decode(errors="replace").split()
        if not words:
            raise ArgumentError(f"{program.name}: '#!' names no program")
        named = words[1] if Path(words[0]).name == "env" and len(words) > 1 else words[0]
        path = shutil.which(named)
        if path is None:
            raise ArgumentError(f"{program.name}: '#!' names {named}, which does not exist")
        program = Path(path)
    raise ArgumentError(f"{program.name}: a chain of more than {INTERPRETERS} scripts")


def _interpreter(image: bytes) -> bytes | None:
    """Return the path of the dynamic linker that a program names; None for a static program.

    The sizes that the file states are checked, not trusted.
    """
    at, size, count = struct.unpack_from("<Q", image, 32)[0], *struct.unpack_from("<HH", image, 54)
    if size != PROGRAM_HEADER_BYTES or count > PROGRAM_HEADERS:
        return None
    for k in range(count):
        header = image[at + k * size : at + (k + 1) * size]
        if len(header) < size:
            return None
        kind, offset, nbytes = struct.unpack_from("<I4xQ16xQ", header)
        if kind == INTERPRETER and nbytes <= INTERPRETER_BYTES:
            return image[offset : offset + nbytes].rstrip(b"\0")
    return None
