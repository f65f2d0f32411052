"""What ``cxlemu exec`` is told to run, and the pools that programs open: from words to what a run needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cxlemu.errors import ArgumentError
from cxlemu.pool.device import examine_device
from cxlemu.units import format_bytes, parse_bytes
from faults.programs.area import HOSTS, POOLS

DEFAULT_BYTES = 1 << 30  # of a pool whose size its program decides: only pages that are touched take memory
CAPACITY_MAX = 1 << 36
CONTENT_MAX = 1 << 32
ALIGNMENT = 1 << 21


@dataclass(frozen=True)
class Command:
    """One command of a stage.

    Attributes:
        words: The program and its arguments.
        host: The host that it runs on.
        stage: 0 for those before the first ``::``.
    """

    words: tuple[str, ...]
    host: int
    stage: int


@dataclass(frozen=True)
class PoolFile:
    """A pool as programs know it.

    Attributes:
        path: The absolute path that they open.
        capacity: Bytes that can be mapped, a multiple of 2 MiB.
        size: Bytes that the file has at first; None: it is not there before a program makes it.
        content: The file whose bytes the pool begins with; None: zeros.
        dax: Whether programs see a character device instead of a file.
    """

    path: str
    capacity: int
    size: int | None
    content: Path | None
    dax: bool


def parse_commands(words: Sequence[str], hosts: int) -> list[Command]:
    """Cut the words at ``:`` and ``::``.

    Args:
        words: All words after ``--``.
        hosts: How many hosts there are. A command runs on the host of its position in its stage, unless ``@HOST``
            before it names another.

    Raises:
        ArgumentError: A command is empty, or names a host that does not exist.
    """
    commands: list[Command] = []
    stage, position, these = 0, 0, list[str]()
    for word in [*words, "::"]:
        if word not in (":", "::"):
            these.append(word)
            continue
        host = position % hosts
        if these and (pinned := re.fullmatch(r"@(\d{1,4})", these[0])):
            host = int(pinned[1])
            del these[0]
            if host >= hosts:
                raise ArgumentError(f"@{host}: there are hosts 0 to {hosts - 1}; --hosts makes more")
        if not these:
            raise ArgumentError("a command is missing: ':' and '::' stand between commands, as in -- ./a : ./b :: ./c")
        commands.append(Command(tuple(these), host, stage))
        position, these = position + 1, []
        if word == "::":
            stage, position = stage + 1, 0
    return commands


def parse_pool(text: str) -> PoolFile:
    """Read ``PATH``, ``PATH=SIZE`` or ``PATH=FILE``.

    Args:
        text: PATH is what programs open. SIZE is such as 64M; FILE holds the bytes that the pool begins with. Without
            either, a file begins with its bytes, and a device that is there with zeros, as many as it has.

    Raises:
        ArgumentError: The text is none of these, or the file cannot be used.
        PoolError: The device does not tell its size.
    """
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
                f"--pool {text}: there is no such device here to tell its size: --pool {path}=64M, or {path}=FILE"
            )
        size = examine_device(absolute).nbytes
    if size is not None and source.is_file() and size > CONTENT_MAX:
        raise ArgumentError(f"--pool {text}: the file has {size} bytes, {CONTENT_MAX} are the most")
    least = max(size or 0, 1) if value or dax else max(size or 0, DEFAULT_BYTES)
    capacity = -(-least // ALIGNMENT) * ALIGNMENT
    if capacity > CAPACITY_MAX:
        most = f"{CAPACITY_MAX >> 30} GiB are the most"
        raise ArgumentError(f"--pool {text}: it has {format_bytes(capacity)}, {most}; {path}=64M takes less")
    content = source if source.is_file() else None
    return PoolFile(absolute, capacity, size if dax or content else None, content, dax)


def _size(text: str, value: str) -> int | None:
    if not value:
        return None
    try:
        return parse_bytes(value)
    except ArgumentError:
        return None


def parse_pools(texts: Sequence[str]) -> list[PoolFile]:
    """Read all ``--pool`` values.

    Raises:
        ArgumentError: See `parse_pool`; or there are too many, or two of one path.
    """
    pools = [parse_pool(text) for text in texts]
    if not pools:
        raise ArgumentError("--pool is missing: the path that the commands open, such as --pool /dev/dax0.0=64M")
    if len(pools) > POOLS:
        raise ArgumentError(f"--pool: {POOLS} pools at most, not {len(pools)}")
    if len({pool.path for pool in pools}) < len(pools):
        raise ArgumentError("--pool: two pools have one path")
    return pools


def check_hosts(hosts: int) -> None:
    """Refuse a number of hosts that the runtime has no room for.

    Raises:
        ArgumentError: It is not from 1 to HOSTS.
    """
    if not 1 <= hosts <= HOSTS:
        raise ArgumentError(f"--hosts: from 1 to {HOSTS}, not {hosts}")
