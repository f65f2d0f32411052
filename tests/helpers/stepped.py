"""Which cache-line instructions a call executes, seen by stepping through it: x86-64 only."""

import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CARD = 0x200000000
CONT, SINGLESTEP, PEEK, GETREGS = 7, 9, 1, 12
_REGISTERS = (  # struct user_regs_struct
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
    *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
)
_BY_NUMBER = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{number}" for number in range(8, 16)))


class Executed(NamedTuple):
    """An instruction, and from where in the card it is; -1 for fences."""

    name: str
    at: int = -1


class _Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in _REGISTERS]


def executed(program: Path, *arguments: object) -> list[Executed]:
    """The cache-line instructions and non-temporal stores between the program's two breakpoints."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes, libc.ptrace.restype = [ctypes.c_long, *[ctypes.c_void_p] * 3], ctypes.c_long
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        try:
            os.execv(program, [str(program), *map(str, arguments)])
        finally:
            os._exit(127)
    try:
        _stopped(pid)  # at the exec or at the first breakpoint
        found = list(_steps(libc, pid))
        libc.ptrace(CONT, pid, None, None)
        _stopped(pid)  # at the second breakpoint
        libc.ptrace(CONT, pid, None, None)
        _, status = os.waitpid(pid, 0)
        assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, hex(status)
        return found
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _stopped(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGTRAP, hex(status)


def _steps(libc: ctypes.CDLL, pid: int) -> Iterator[Executed]:
    registers = _Registers()
    while True:
        libc.ptrace(GETREGS, pid, None, ctypes.byref(registers))
        here = registers.rip
        words = [libc.ptrace(PEEK, pid, here + 8 * k, None) & (1 << 64) - 1 for k in range(2)]
        code = b"".join(word.to_bytes(8, "little") for word in words)
        if code[0] == 0xCC:
            return
        if (one := _decoded(code, registers)) is not None:
            yield one
        libc.ptrace(SINGLESTEP, pid, None, None)
        _stopped(pid)


def _decoded(code: bytes, registers: _Registers) -> Executed | None:
    at, narrow, base_high, scaled = 0, False, 0, 1
    if code[0] in (0xC5, 0xC4, 0x62):  # VEX of two and three bytes, EVEX
        length = {0xC5: 2, 0xC4: 3, 0x62: 4}[code[0]]
        if code[length] != 0xE7:
            return None
        base_high = 0 if code[0] == 0xC5 else 8 * (code[1] >> 5 & 1 ^ 1)
        wide = code[0] == 0x62
        return Executed("nt64" if wide else "nt32", _address(code, length + 1, base_high, registers, 64 if wide else 1))
    if code[at] == 0x66:
        narrow, at = True, at + 1
    if code[at] & 0xF0 == 0x40:
        base_high, at = 8 * (code[at] & 1), at + 1
    if code[at] != 0x0F:
        return None
    opcode, modrm = code[at + 1], code[at + 2]
    kind = modrm >> 3 & 7
    if opcode == 0xC3 or opcode == 0xE7:
        return Executed("nt8" if opcode == 0xC3 else "nt16", _address(code, at + 2, base_high, registers, scaled))
    if opcode != 0xAE or kind < 5 or (kind == 5 and modrm < 0xC0):
        return None
    if modrm >= 0xC0:
        return Executed({5: "lfence", 6: "mfence", 7: "sfence"}[kind])
    name = {(6, True): "clwb", (7, True): "clflushopt", (7, False): "clflush"}.get((kind, narrow))
    return None if name is None else Executed(name, _address(code, at + 2, base_high, registers, scaled))


def _address(code: bytes, at: int, base_high: int, registers: _Registers, scaled: int) -> int:
    """Of a memory operand whose ModRM byte is at ``at``: a base, maybe an index, maybe a displacement."""
    modrm = code[at]
    base, offset, at = modrm & 7, 0, at + 1
    assert modrm >> 6 != 0 or base != 5, "relative to the instruction"
    if base == 4:
        sib, at = code[at], at + 1
        base = sib & 7
        if (index := sib >> 3 & 7) != 4:
            offset = getattr(registers, _BY_NUMBER[index]) << (sib >> 6)
    if modrm >> 6 == 1:
        offset += int.from_bytes(code[at : at + 1], "little", signed=True) * scaled
    elif modrm >> 6 == 2:
        offset += int.from_bytes(code[at : at + 4], "little", signed=True)
    return (getattr(registers, _BY_NUMBER[base + base_high]) + offset & (1 << 64) - 1) - CARD
