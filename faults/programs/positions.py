"""Where a program's instructions stand in its source: by addr2line, else by symbol or by offset."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from cxlemu.files import read_file

SOURCE_BYTES_MAX = 1 << 24
_TIMEOUT_S = 60.0
_SYSTEM = ("/usr/", "/lib/", "/build/", "/opt/gcc", "/rustc/")
_OURS = "cxl.h"  # its functions are inlined: the position to report is their caller's


class AccessPlace(Protocol):
    """What a run notes of an access and its caller: files, empty where unknown, and addresses in them (`CodePlace`)."""

    @property
    def module(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def caller_module(self) -> str: ...
    @property
    def caller_offset(self) -> int: ...


class Position(NamedTuple):
    """A position in a source file."""

    file: str  # the file; where its source is unknown, the program or library
    line: int  # the line, from 1; 0: unknown
    function: str  # the function; empty: unknown
    offset: int  # the instruction's address in the program or library; -1: unknown

    def __str__(self) -> str:
        if self.offset < 0:
            return self.file
        where = f"{self.file}:{self.line}" if self.line else f"{self.file}+0x{self.offset:x}"
        return f"{where} in {self.function}" if self.function else where


@dataclass(frozen=True)
class SourcePlace:
    """An access, and the calls that led there."""

    at: Position  # the access
    callers: tuple[Position, ...] = ()  # the calls, innermost first, as far as they are known

    @property
    def caller(self) -> Position | None:
        """The innermost call; None: unknown."""
        return self.callers[0] if self.callers else None

    def __str__(self) -> str:
        return ", called from ".join(map(str, (self.at, *self.callers)))


NOWHERE = SourcePlace(Position("an unknown place: a library that was not recompiled, or the kernel", 0, "", -1))


def located(places: Sequence[AccessPlace]) -> list[SourcePlace | None]:
    """Find the source of places, one for each; None where nothing is known."""
    wanted: dict[str, set[int]] = {}
    for place in places:
        for module, offset in _ends(place):
            wanted.setdefault(module, set()).add(offset)
    lines = {module: dict(_lines(module, sorted(offsets))) for module, offsets in wanted.items()}
    return [_source(place, lines) for place in places]


def _ends(place: AccessPlace) -> Iterator[tuple[str, int]]:
    if place.module:
        yield place.module, place.offset
    if place.caller_module:
        yield place.caller_module, place.caller_offset


def _source(place: AccessPlace, lines: dict[str, dict[int, tuple[Position, ...]]]) -> SourcePlace | None:
    if not place.module:
        return None
    frames = lines[place.module][place.offset]
    if place.caller_module:
        calls = lines[place.caller_module][place.caller_offset]
        far = place.caller_module.startswith(_SYSTEM)  # there the nearest symbol is hardly the function
        frames = (*frames, *(call for call in calls if call.line or (call.function and not far)))
    own = [frame for frame in frames if _is_own(frame)]
    if frames[0].line and own:  # a library's lines are no one's: the program's line that calls it
        frames = (*own,)
    return SourcePlace(frames[0], frames[1:])


def _is_own(its: Position) -> bool:
    return its.line > 0 and not its.file.startswith(_SYSTEM) and Path(its.file).name != _OURS


def _lines(module: str, offsets: list[int]) -> Iterator[tuple[int, tuple[Position, ...]]]:
    script, _, function = module.partition("\n")
    if function:  # of a script the runtime notes the function, and lines in place of addresses
        yield from ((line, (Position(_short(script), line, function, 0),)) for line in offsets)
        return
    frames = _addr2line("addr2line", module, offsets)
    if far := [offset for offset in offsets if _is_far(_frames(frames.get(offset, []), offset))]:
        frames |= _addr2line("llvm-addr2line", module, far)  # knows more of clang's inlined functions
    for offset in offsets:
        yield offset, _best(module, offset, frames.get(offset, []))


def _is_far(frames: list[Position]) -> bool:
    """Tell whether lines are known, and none of the program's own."""
    return any(frame.line for frame in frames) and not any(map(_is_own, frames))


def _addr2line(tool: str, module: str, offsets: list[int]) -> dict[int, list[tuple[str, str]]]:
    """For each offset its frames, the innermost first: a function and ``file:line``."""
    command = [tool, "-e", module, "-a", "-f", "-i", "-C", *(f"0x{offset:x}" for offset in offsets)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return {}
    frames: dict[int, list[tuple[str, str]]] = {}
    lines = iter(done.stdout.splitlines())
    at: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith("0x") and " " not in line:
            at = frames.setdefault(int(line, 16), [])
        else:
            at.append((line, next(lines, "??:0")))
    return frames


def _best(module: str, offset: int, frames: list[tuple[str, str]]) -> tuple[Position, ...]:
    """Choose the frames of the program's own code, innermost first, else those that are known, else a symbol."""
    known = _frames(frames, offset)
    for those in (
        [position for position in known if _is_own(position)],
        [position for position in known if position.line],
    ):
        if those:
            return tuple(those)
    function = next((position.function for position in known if position.function), "")
    return (Position(Path(module).name, 0, function, offset),)


def _frames(frames: list[tuple[str, str]], offset: int) -> list[Position]:
    return [_frame(function, where, offset) for function, where in frames]


def _frame(function: str, where: str, offset: int) -> Position:
    file, _, line = where.partition(" (discriminator")[0].rpartition(":")
    number = int(line) if line.isdecimal() else 0
    known = file not in ("", "??")
    return Position(_short(file) if known else "", number if known else 0, "" if function == "??" else function, offset)


@cache
def _short(file: str) -> str:
    """Return the path of a file, relative to the current directory if the file lies below it."""
    path = Path(file)
    try:
        return str(path.resolve().relative_to(Path.cwd())) if path.is_absolute() else str(path)
    except (OSError, ValueError):
        return file


def source_line(position: Position) -> str:
    """Return the text of a position's line; empty if the file cannot be read."""
    if not position.line:
        return ""
    try:
        lines = read_file(Path(position.file), SOURCE_BYTES_MAX).decode(errors="replace").split("\n")
    except OSError:
        return ""
    return lines[position.line - 1].strip() if position.line <= len(lines) else ""
