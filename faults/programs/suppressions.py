"""Findings that a project lives with: a file of them, each line with its reason.

    # kind            where                 reason
    no-invalidate     ring.c:120            # an optimistic read: the checksum below finds out
    flush-outside     libpmem*              # flushes whatever it is given
    *                 tests/stress.c:*      # provokes all of them

A kind may be ``*``. A place is ``FILE:LINE``, a file or a function, with ``*`` and ``?``; it matches where any step of
the finding stands, or a caller. A path matches from any of its folders on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from cxlemu.errors import ConfigError
from cxlemu.files import read_file
from faults.programs.findings import KINDS
from faults.programs.positions import Position, SourcePlace

BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Suppression:
    """A line of the file."""

    kind: str  # name of a kind of findings, or ``*``
    where: str
    reason: str  # why the finding is left out
    line: int

    def matches(self, kind: str, places: Iterable[SourcePlace]) -> bool:
        """Say whether this is a finding's kind, and one of its places."""
        if self.kind not in ("*", kind):
            return False
        positions = (position for place in places for position in (place.at, *place.callers))
        return any(_at(self.where, position) for position in positions)


def _at(where: str, position: Position) -> bool:
    names = [position.file, f"{position.file}:{position.line}"]
    names += [name for full in names for name in _from_each_folder(full)]
    return any(fnmatchcase(name, where) for name in (*names, position.function) if name)


def _from_each_folder(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[k:]) for k in range(1, len(parts))]


def read(path: Path) -> list[Suppression]:
    try:
        text = read_file(path, BYTES_MAX).decode()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give a file of suppressions") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; give a file of suppressions") from None
    return [_parsed(f"{path}:{k}", k, line) for k, line in enumerate(text.splitlines(), 1) if _says(line)]


def _says(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _parsed(source: str, number: int, line: str) -> Suppression:
    rule, _, reason = line.partition("#")
    words = rule.split()
    if len(words) != 2:
        raise ConfigError(
            f"{source}: write a kind, a place and a reason: no-invalidate ring.c:120  # the checksum finds out"
        )
    names = sorted(kind.name for kind in KINDS.values())
    if words[0] != "*" and words[0] not in names:
        raise ConfigError(f"{source}: there is no kind {words[0]!r} of findings: it is * or one of {', '.join(names)}")
    if not reason.strip():
        raise ConfigError(f"{source}: the reason is missing: {words[0]} {words[1]}  # why this may stay")
    return Suppression(words[0], words[1], reason.strip(), number)
