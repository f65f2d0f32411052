"""What ``cxlemu exec`` is told to run, and the pools that programs open: from words to what a run needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from cxlemu.errors import ArgumentError
from cxlemu.units import format_bytes, parse_bytes, typed_bytes
from faults.programs.area import COHERENT, HOSTS, POOLS

DEFAULT_BYTES = 1 << 30  # of a pool whose size its program decides: only pages that are touched take memory
CAPACITY_MAX = 1 << 36
CONTENT_MAX = 1 << 32
ALIGNMENT = 1 << 21
PAGE_BYTES = 4096
HOSTS_ASKED = 1 << 20  # more than @HOST names, or a command line has commands


@dataclass(frozen=True)
class Command:
    """One command of a stage."""

    words: tuple[str, ...]  # the program and its arguments
    host: int
    stage: int  # 0 for those before the first ``::``
    pinned: bool = False  # to its host, by ``@HOST``


@dataclass(frozen=True)
class PoolFile:
    """A pool as programs know it."""

    path: str  # the absolute path that they open
    capacity: int  # bytes that can be mapped, a multiple of 2 MiB
    size: int | None  # bytes that the file has at first; None: it is not there before a program makes it
    content: Path | None  # the file whose bytes the pool begins with; None: zeros
    dax: bool  # whether programs see a character device instead of a file

    def __str__(self) -> str:
        """Write it as --pool takes it."""
        begins = self.content if self.content != Path(self.path) else None
        given = self.content is None and (self.dax or self.capacity != DEFAULT_BYTES)
        size = typed_bytes(self.size or self.capacity)
        return self.path + (f"={begins}" if begins else f"={size}" if given else "")

    @property
    def begins(self) -> str:
        """Say that the pool begins with what a file at its own path has; nothing where it does not."""
        own = self.size and self.content == Path(self.path)
        return f"The pool begins with the {format_bytes(self.size or 0)} of {self.path}" if own else ""


@dataclass(frozen=True)
class CoherentRange:
    """Bytes of a pool on which the caches of all hosts are coherent."""

    text: str  # as --coherent takes it
    pool: int
    begin: int  # in bytes, a multiple of PAGE_BYTES
    end: int


def parse_commands(words: Sequence[str], hosts: int) -> list[Command]:
    """Cut the words at ``:`` and ``::``; a command runs on the host of its position in its stage, or of ``@HOST``."""
    commands: list[Command] = []
    stage, position, these = 0, 0, list[str]()
    for word in [*words, "::"]:
        if word not in (":", "::"):
            these.append(word)
            continue
        host = position % hosts
        pinned = re.fullmatch(r"@(\d{1,4})", these[0]) if these else None
        if pinned is not None:
            host = int(pinned[1])
            del these[0]
            if host >= hosts:
                raise ArgumentError(f"@{host}: there are hosts 0 to {hosts - 1}; --hosts makes more")
        if not these or not these[0]:
            raise ArgumentError("a command is missing: ':' and '::' stand between commands, as in -- ./a : ./b :: ./c")
        commands.append(Command(tuple(these), host, stage, pinned is not None))
        position, these = position + 1, []
        if word == "::":
            stage, position = stage + 1, 0
    return commands


def hosts_of(words: Sequence[str]) -> int:
    """Count the hosts on which every command of a stage has its own: two at least. Raises ArgumentError above 16."""
    hosts = max(2, *(command.host + 1 for command in parse_commands(words, HOSTS_ASKED)))
    if hosts > HOSTS:
        raise ArgumentError(f"these commands need {hosts} hosts, and {HOSTS} is the limit: give --hosts or write @HOST")
    return hosts


def parse_pool(text: str) -> PoolFile:
    """Read ``PATH``, ``PATH=SIZE`` or ``PATH=FILE``."""
    path, _, value = text.partition("=")
    if not path or any(c in text for c in ":\n\0"):
        raise ArgumentError(f"--pool {text!r}: PATH, PATH=SIZE or PATH=FILE is expected, without ':'")
    absolute = str(Path(path).absolute())
    dax = re.fullmatch(r"/dev/dax\d+\.\d+", absolute) is not None
    source = Path(value) if value else Path(absolute)
    size = None if source.is_file() else _size(text, value)
    if size is None and value and not source.is_file():
        raise ArgumentError(f"--pool {text}: {value!r} is neither a size, such as 64M, nor a file")
    if size == 0 and value:
        raise ArgumentError(f"--pool {text}: a pool has at least a byte: write a size such as 64M")
    if source.is_file():
        size = source.stat().st_size
    if dax and size is None:
        if not Path(absolute).exists():
            raise ArgumentError(
                f"--pool {text}: there is no such device; give a size or a file: --pool {path}=64M, or {path}=FILE"
            )
        from cxlemu.pool.device import examine_device  # only here: it needs NumPy

        size = examine_device(absolute).nbytes
    if size is not None and source.is_file() and size > CONTENT_MAX:
        most = format_bytes(CONTENT_MAX)
        raise ArgumentError(f"--pool {text}: the file has {format_bytes(size)}, which exceeds the limit of {most}")
    least = max(size or 0, 1) if value or dax else max(size or 0, DEFAULT_BYTES)
    capacity = -(-least // ALIGNMENT) * ALIGNMENT
    if capacity > CAPACITY_MAX:
        asked = value if value and not source.is_file() else typed_bytes(least)
        most = format_bytes(CAPACITY_MAX)
        raise ArgumentError(f"--pool {text}: size {asked} exceeds the limit of {most}; write {path}=64M")
    content = source if source.is_file() else None
    return PoolFile(absolute, capacity, size if dax or content else None, content, dax)


def parse_coherent(texts: Sequence[str], pools: Sequence[PoolFile]) -> tuple[CoherentRange, ...]:
    """Read ``OFFSET+SIZE`` or ``all``, for another pool than the first one with its number and ``:`` before it."""
    ranges: list[CoherentRange] = []
    for text in texts:
        match = re.fullmatch(r"(?:(\d{1,2}):)?(?:all|([^+:]+)\+([^+:]+))", text)
        if match is None:
            raise ArgumentError(f"--coherent {text!r}: OFFSET+SIZE, such as 0+64K, or 'all' is expected")
        number, offset, size = match.groups()
        if number and int(number) >= len(pools):
            raise ArgumentError(f"--coherent {text}: there are pools 0 to {len(pools) - 1}")
        which = [int(number or 0)] if number or offset else range(len(pools))
        ranges += (_coherent(text, pool, pools[pool].capacity, offset, size) for pool in which)
    for one, other in combinations(ranges, 2):
        if one.pool == other.pool and one.begin < other.end and other.begin < one.end:
            raise ArgumentError(f"--coherent {other.text}: it overlaps --coherent {one.text}")
    if len(ranges) > COHERENT:
        raise ArgumentError(f"--coherent: {COHERENT} ranges at most, not {len(ranges)}")
    return tuple(ranges)


def _coherent(text: str, pool: int, capacity: int, offset: str | None, size: str | None) -> CoherentRange:
    begin = _bytes(text, offset) if offset else 0
    end = begin + _bytes(text, size) if size else capacity
    if begin % PAGE_BYTES or end % PAGE_BYTES or begin == end:
        raise ArgumentError(
            f"--coherent {text}: offset and size are multiples of 4 KiB, because coherence covers whole pages"
        )
    if end > capacity:
        raise ArgumentError(f"--coherent {text}: it ends after the pool, which has {format_bytes(capacity)}")
    return CoherentRange(text, pool, begin, end)


def _bytes(text: str, value: str) -> int:
    try:
        return int(value, 16) if re.fullmatch("0x[0-9a-fA-F]{1,12}", value) else parse_bytes(value)
    except ArgumentError as error:
        raise ArgumentError(f"--coherent {text}: {error}") from None


def _size(text: str, value: str) -> int | None:
    if not value:
        return None
    try:
        return parse_bytes(value)
    except ArgumentError:
        return None


def parse_pools(texts: Sequence[str]) -> list[PoolFile]:
    pools = [parse_pool(text) for text in texts]
    if not pools:
        raise ArgumentError("--pool is missing: the path that the commands open, such as --pool /dev/dax0.0=64M")
    if len(pools) > POOLS:
        raise ArgumentError(f"--pool: {POOLS} pools at most, not {len(pools)}")
    if len({pool.path for pool in pools}) < len(pools):
        raise ArgumentError("--pool: two pools have the same path")
    return pools
