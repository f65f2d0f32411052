"""Where a program's instructions stand in its source: by addr2line, else by symbol or by offset."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

_TIMEOUT_S = 60.0
_SYSTEM = ("/usr/", "/lib/", "/build/", "/opt/gcc")
_OURS = "cxl.h"  # its functions are inlined: the position to report is their caller's


class AccessPlace(Protocol):
    """What a run notes of an access: `faults.programs.area.CodePlace`.

    Attributes:
        module: The file, empty where it is unknown.
        offset: The instruction's address in the file's address space.
        caller_module: The caller's file, empty where it is unknown.
        caller_offset: The call's address in the caller's file.
    """

    @property
    def module(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def caller_module(self) -> str: ...
    @property
    def caller_offset(self) -> int: ...


class Position(NamedTuple):
    """A position in a source file.

    Attributes:
        file: The file; where its source is unknown, the program or library.
        line: The line, from 1; 0: unknown.
        function: The function; empty: unknown.
        offset: The instruction's address in the program or library.
    """

    file: str
    line: int
    function: str
    offset: int

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else f"{self.file}+0x{self.offset:x}"
        return f"{where} in {self.function}" if self.function else where


@dataclass(frozen=True)
class SourcePlace:
    """An access, and the call that led there.

    Attributes:
        at: The access.
        caller: The call; None: unknown.
    """

    at: Position
    caller: Position | None = None

    def __str__(self) -> str:
        return f"{self.at}, called from {self.caller}" if self.caller else str(self.at)


def located(places: Sequence[AccessPlace]) -> list[SourcePlace | None]:
    """Find the source of places.

    Args:
        places: Places that a run noted; those without a module are unknown.

    Returns:
        One for each place, None where nothing is known.
    """
    wanted: dict[str, set[int]] = {}
    for place in places:
        for module, offset in _ends(place):
            wanted.setdefault(module, set()).add(offset)
    found = {module: dict(_lines(module, sorted(offsets))) for module, offsets in wanted.items()}
    return [_source(place, found) for place in places]


def _ends(place: AccessPlace) -> Iterator[tuple[str, int]]:
    if place.module:
        yield place.module, place.offset
    if place.caller_module:
        yield place.caller_module, place.caller_offset


def _source(place: AccessPlace, found: dict[str, dict[int, tuple[Position, Position | None]]]) -> SourcePlace | None:
    if not place.module:
        return None
    at, caller = found[place.module][place.offset]
    if caller is None and place.caller_module:
        caller, _ = found[place.caller_module][place.caller_offset]
    return SourcePlace(at, caller if caller and (caller.line or caller.function) else None)


def _lines(module: str, offsets: list[int]) -> Iterator[tuple[int, tuple[Position, Position | None]]]:
    frames = _addr2line(module, offsets)
    for offset in offsets:
        yield offset, _best(module, offset, frames.get(offset, []))


def _addr2line(module: str, offsets: list[int]) -> dict[int, list[tuple[str, str]]]:
    """For each offset its frames, the innermost first: a function and ``file:line``."""
    command = ["addr2line", "-e", module, "-a", "-f", "-i", "-C", *(f"0x{offset:x}" for offset in offsets)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found: dict[int, list[tuple[str, str]]] = {}
    lines = iter(done.stdout.splitlines())
    at: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith("0x") and " " not in line:
            at = found.setdefault(int(line, 16), [])
        else:
            at.append((line, next(lines, "??:0")))
    return found


def _best(module: str, offset: int, frames: list[tuple[str, str]]) -> tuple[Position, Position | None]:
    """Choose the innermost frame of the program's own code, else the innermost known one; and the next frame of that
    kind, into which it is inlined."""
    known = [_frame(function, where, offset) for function, where in frames]
    own = [its for its in known if its.line and not its.file.startswith(_SYSTEM) and Path(its.file).name != _OURS]
    for those in (own, [its for its in known if its.line]):
        if those:
            return those[0], those[1] if len(those) > 1 else None
    function = next((its.function for its in known if its.function), "")
    return Position(Path(module).name, 0, function, offset), None


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
        with Path(position.file).open(errors="replace") as file:
            return next((text.strip() for number, text in enumerate(file, 1) if number == position.line), "")
    except OSError:
        return ""
