"""The decoder of instructions beside objdump's, and the scan of loaded libraries."""

import ctypes
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "faults/programs/native"
SOURCES = [
    *(NATIVE / f"{name}.c" for name in ("x86", "x86_access", "functions", "scan")),
    ROOT / "tests/helpers/native/x86_probe.c",
]
KINDS = (
    "other",
    "clflush",
    "clflushopt",
    "clwb",
    "sfence",
    "mfence",
    "lfence",
    "locked",
    "nt store",
    "system call",
)  # enum x86_kind


class FunctionCount(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("functions", "bytes", "unknown")] + [("has_table", ctypes.c_bool)]


class ScanCount(ctypes.Structure):
    _fields_ = [
        ("table", FunctionCount),
        ("decoded", ctypes.c_int64),
        ("undecoded", ctypes.c_int64),
        ("sites", ctypes.c_int64 * len(KINDS)),
    ]


class Decoded(NamedTuple):
    length: int
    kind: str
    stored: int


def loaded_files() -> dict[Path, int]:
    """The programs and libraries in this process, each with an address of its code."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    code = {Path(line[5]): int(line[0].split("-")[0], 16) for line in lines if "x" in line[1] and len(line) == 6}
    return {file: code[file] for file in sorted(code) if file.is_file()}


class Probe:
    """tests/helpers/native/x86_probe.c, compiled into ``folder``."""

    def __init__(self, folder: Path) -> None:
        target = folder / "x86_probe.so"
        flags = ["-std=c11", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}"]
        subprocess.run(["gcc", *flags, *SOURCES, "-o", target], check=True)
        self._native = ctypes.CDLL(str(target))
        self._native.probe_scan.restype = self._native.probe_functions.restype = ctypes.c_int64

    def decode(self, code: bytes) -> Decoded:
        """The instruction at the beginning; length 0 where there is none."""
        lengths, kinds, stored = self.decode_all(np.frombuffer(code, np.uint8), np.zeros(1, np.int64))
        return Decoded(int(lengths[0]), KINDS[kinds[0]], int(stored[0]))

    def decode_all(self, code: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lengths, kinds and stored bytes of the instructions at ``starts``, each an array of uint8."""
        found = tuple(np.zeros(len(starts), np.uint8) for _ in range(3))
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (code, starts, *found)]
        sizes = ctypes.c_int64(len(code)), ctypes.c_int64(len(starts))
        self._native.probe_decode(pointers[0], sizes[0], pointers[1], sizes[1], *pointers[2:])
        return found

    def operands(self, code: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """How many bytes the memory operands of the instructions at ``starts`` have, 0 without one: uint8."""
        found = np.zeros(len(starts), np.uint8)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (code, starts, found)]
        sizes = ctypes.c_int64(len(code)), ctypes.c_int64(len(starts))
        self._native.probe_access(pointers[0], sizes[0], pointers[1], sizes[1], pointers[2])
        return found

    def scan(self, file: Path, locked: bool = True, room: int = 1 << 16) -> tuple[dict[int, str], ScanCount]:
        """The sites of a library that this process has loaded: address in the file -> kind."""
        addresses, kinds, count = np.zeros(room, np.uint64), np.zeros(room, np.uint8), ScanCount()
        found = self._native.probe_scan(
            ctypes.c_uint64(loaded_files()[file]),
            ctypes.c_bool(locked),
            addresses.ctypes.data_as(ctypes.c_void_p),
            kinds.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(room),
            ctypes.byref(count),
        )
        return {int(addresses[k]): KINDS[kinds[k]] for k in range(found)}, count

    def functions(self, image: bytearray, table_at: int, table_bytes: int) -> FunctionCount:
        count = FunctionCount()
        pinned = (ctypes.c_uint8 * len(image)).from_buffer(image)
        sizes = [ctypes.c_int64(value) for value in (len(image), table_at, table_bytes)]
        self._native.probe_functions(pinned, *sizes, ctypes.byref(count))
        return count


# --- objdump ----------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    address: int
    code: bytes
    text: str


LINE = re.compile(r"\s*([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*\t?(.*)")


def disassembly(file: Path, *options: str) -> Iterator[Line]:
    """All that objdump takes for instructions, in all sections of code."""
    command = ["objdump", "-d", "-w", *options, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as objdump:
        for text in objdump.stdout:
            if match := LINE.match(text):
                line = Line(int(match[1], 16), bytes.fromhex(match[2]), match[3].split("#")[0].strip())
                if (
                    line.code[0] == 0x9B and len(line.code) > 1
                ):  # shown as one instruction, such as fstcw; two are executed
                    yield Line(line.address, line.code[:1], "fwait")
                    line = Line(line.address + 1, line.code[1:], line.text)
                yield line
    assert objdump.returncode == 0


OPERANDS = {"BYTE": 1, "WORD": 2, "DWORD": 4, "QWORD": 8, "TBYTE": 10, "XMMWORD": 16, "YMMWORD": 32, "ZMMWORD": 64}
OPERAND = re.compile(r"\b(\w+) (?:PTR|BCST) ")


def operand_bytes(text: str) -> int:
    """Of the memory operand, from objdump's words in Intel's syntax; 0: it has none, or objdump names no size."""
    match = OPERAND.search(text)
    return OPERANDS.get(match[1], 0) if match else 0


PREFIXES = r"(?:(?:rex[.\w]*|data16|addr32|cs|ds|es|ss|fs|gs|repz?|repnz|bnd|notrack|xacquire|xrelease) )*"
FLUSHES = re.compile(rf"{PREFIXES}(clflush|clflushopt|clwb|sfence|mfence|lfence)\b")
STORES = re.compile(rf"{PREFIXES}(v?movnt(?!dqa)\w+|v?maskmov(?:dqu|q)|movdiri|movdir64b)\b")
EXCHANGE = re.compile(rf"{PREFIXES}xchg[bwlq]?\s.*\(")
EXCHANGE_FAR = re.compile(rf"{PREFIXES}xchg[bwlq]?\s.*(?:0x[0-9a-f]+$|0x[0-9a-f]+,)")


def kind_of(text: str) -> str:
    """What the decoder should say, from objdump's words."""
    if match := FLUSHES.match(text):
        return match[1]
    if STORES.match(text):
        return "nt store"
    if re.match(rf"{PREFIXES}lock ", text) or EXCHANGE.match(text) or EXCHANGE_FAR.match(text):
        return "locked"
    return "other"
