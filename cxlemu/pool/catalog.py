"""All pools of this machine, and which of them are dead and may go.

A pool here is what lies in /dev/shm under one name and one user. It may go when it is this user's and

- its superblocks, complete or not, name an owner that is gone: it holds no lock on card 0 (life.py), and its pid
  is free, was reused, or is of an earlier boot; or
- no superblock can be read (its creator died at once, or it was damaged), no process has any of it open or
  mapped, and it has lain untouched for ``GRACE_S`` seconds, more than a creation needs to sign its card.

Processes that are attached to a dead pool keep their memory; only the names go.
"""

import os
import stat
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from cxlemu.errors import PoolError
from cxlemu.pool import segments
from cxlemu.pool.life import is_held
from cxlemu.pool.owner import PROC, OwnerState
from cxlemu.pool.segments import Segment
from cxlemu.pool.superblock import MAGIC, SUPERBLOCK_BYTES, UNFINISHED, Superblock, parse
from cxlemu.units import counted, format_bytes

GRACE_S = 60.0
KEEP_DEAD_POOLS = "CXLEMU_KEEP_DEAD_POOLS"

PoolState = Literal[OwnerState, "damaged", "foreign"]


class Found(NamedTuple):
    segment: Segment
    nbytes: int
    mode: int
    changed_s: float  # wall clock, seconds since 1970


@dataclass(frozen=True)
class CatalogEntry:
    """One pool: its segments, the superblocks that can be read, and what is wrong with the others."""

    name: str
    uid: int  # the user to whom the segments belong
    found: tuple[Found, ...]
    superblocks: tuple[Superblock, ...]  # those of this user's cards that can be read; another user's are not opened
    complete: bool  # whether every superblock that can be read is finished
    damage: tuple[str, ...]  # a sentence for each superblock that cannot be read
    held: bool = False  # whether a living process holds the owner's lock

    @property
    def state(self) -> PoolState:
        """The owner's state; ``damaged`` when no superblock names one, ``foreign`` when the pool is another user's."""
        if self.uid != os.geteuid():
            return "foreign"
        if self.held:
            return "alive"
        states = {block.owner.state() for block in self.superblocks}
        in_doubt_first: tuple[OwnerState, ...] = ("alive", "unknown", "dead")
        return next((state for state in in_doubt_first if state in states), "damaged")

    @property
    def created_s(self) -> float:
        """When the pool was created, in seconds since 1970; without a superblock, when it last changed."""
        return min((block.created_ns / 1e9 for block in self.superblocks), default=self.changed_s)

    @property
    def changed_s(self) -> float:
        """When any of the segments last changed, in seconds since 1970."""
        return max(file.changed_s for file in self.found)


class Cleaned(NamedTuple):
    name: str
    segments: tuple[Segment, ...]  # the pool's segments, in the order of removal
    removed: bool  # whether the pool goes; in a dry run, whether it would
    reason: str  # the end of a sentence that says why


def entries(name: str | None = None) -> list[CatalogEntry]:
    """List pools, sorted by name. Another user's are never opened, and damage never raises."""
    pools: dict[tuple[str, int], list[Found]] = defaultdict(list)
    for segment in segments.find(name):
        with suppress(FileNotFoundError):  # its owner was just leaving
            status = segment.path.lstat()
            file = Found(segment, status.st_size, stat.S_IMODE(status.st_mode), status.st_mtime)
            pools[segment.pool, status.st_uid].append(file)
    return [_entry(pool, uid, tuple(files)) for (pool, uid), files in sorted(pools.items())]


def _entry(name: str, uid: int, founds: tuple[Found, ...]) -> CatalogEntry:
    superblocks: list[Superblock] = []
    damage: list[str] = []
    complete, held = True, False
    cards = [item.segment for item in founds if item.segment.kind == "card"]
    for segment in cards if uid == os.geteuid() else []:
        try:
            held |= _is_held(segment)
            block, finished = _read(segment)
        except PoolError as error:
            damage.append(str(error))
        else:
            superblocks.append(block)
            complete &= finished
    return CatalogEntry(name, uid, founds, tuple(superblocks), complete, tuple(damage), held)


def _is_held(segment: Segment) -> bool:
    with segments.opened(segment) as fd:
        return is_held(fd, 0)


def _read(segment: Segment) -> tuple[Superblock, bool]:
    """Read a card's superblock, and whether the card was completed."""
    with segments.opened(segment) as fd:
        data = os.pread(fd, SUPERBLOCK_BYTES, 0)
    if data.startswith(UNFINISHED):
        return parse(MAGIC + data[len(MAGIC) :], str(segment)), False
    return parse(data, str(segment)), True


def clean(name: str | None = None, *, dry_run: bool = False) -> list[Cleaned]:
    """Remove the names of dead pools (``name`` None: of all), and return the verdict on every pool looked at."""
    verdicts = [_verdict(entry) for entry in entries(name)]
    for verdict in verdicts:
        if verdict.removed and not dry_run:
            for segment in verdict.segments:
                segments.remove(segment)
    return verdicts


def dead() -> list[CatalogEntry]:
    """Return this user's pools whose owner is certainly gone, without those in doubt."""
    return [entry for entry in entries() if entry.state == "dead"]


def said(pools: list[CatalogEntry]) -> str:
    nbytes = sum(file.nbytes for entry in pools for file in entry.found)
    return f"{counted(len(pools), 'dead pool')} of killed runs, {format_bytes(nbytes)} of /dev/shm"


def remove_dead() -> list[CatalogEntry]:
    """Remove this user's pools whose owner is certainly gone, and return them. Those in doubt stay."""
    gone = dead()
    for entry in gone:
        clean(entry.name)
    return gone


@cache
def warn_of_dead() -> None:
    """Warn, once in this process, of what killed runs left; not where ``CXLEMU_KEEP_DEAD_POOLS`` is set."""
    if KEEP_DEAD_POOLS not in os.environ and (pools := dead()):
        warnings.warn(f"{said(pools)}: `cxlemu pool clean` removes them", stacklevel=4)


def _verdict(entry: CatalogEntry) -> Cleaned:
    may_go, reason = _judge(entry)
    # Card 0 last: an interrupted clean-up leaves a superblock that names the owner.
    order = tuple(sorted((file.segment for file in entry.found), reverse=True))
    return Cleaned(entry.name, order, may_go, reason)


def _judge(entry: CatalogEntry) -> tuple[bool, str]:
    match entry.state:
        case "foreign":
            return False, f"it belongs to user {entry.uid}"
        case "alive":
            who = f", process {_owner_pids(entry)}," if entry.superblocks else ""
            return False, f"its owner{who} is alive"
        case "unknown":
            return False, f"its owner, process {_owner_pids(entry)}, is in another container"
        case "dead":
            return True, f"its owner, process {_owner_pids(entry)}, is gone"
        case "damaged":
            return _judge_unsigned(entry)


def _judge_unsigned(entry: CatalogEntry) -> tuple[bool, str]:
    untouched_s = time.time() - entry.changed_s
    if untouched_s < GRACE_S:
        return False, f"it has no readable superblock, but is younger than {GRACE_S:.0f} s"
    if users := _users({file.segment.path for file in entry.found}):
        return False, f"it has no readable superblock, but is in use by process {', '.join(map(str, users))}"
    return True, "it has no readable superblock and no process uses it"


def _owner_pids(entry: CatalogEntry) -> str:
    return " and ".join(str(pid) for pid in sorted({block.owner.pid for block in entry.superblocks}))


def _users(paths: set[Path]) -> list[int]:
    """Find processes of this user that have one of these files open or mapped; of other users only root could."""
    names = {str(path) for path in paths}
    pids = sorted(int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal())
    return [pid for pid in pids if not names.isdisjoint(_files_of(pid))]


def _files_of(pid: int) -> Iterator[str]:
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it just left, or is another user's
        # Open files before mappings: a file is opened, mapped, then closed, so this order misses none.
        for link in (PROC / str(pid) / "fd").iterdir():
            with suppress(FileNotFoundError):
                yield str(link.readlink())
        for line in (PROC / str(pid) / "maps").read_text(errors="replace").splitlines():
            yield line.split(maxsplit=5)[-1]
