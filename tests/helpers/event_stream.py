"""Streams of events for the checker of programs: hosts with caches around a pool, driven step by step by a test.

It does to its caches what `cxlemu exec` does to those of a program, and tells the checker the same.
"""

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from ctypes import POINTER, byref, c_bool, c_int64, c_uint8, c_uint16, c_uint32, c_uint64
from functools import cache
from pathlib import Path
from typing import NamedTuple

from faults.programs.findings import KINDS, ROLES, ProgramFinding

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "faults/programs/native"
LINE, POOL_BYTES = 64, 64 * 256
STEPS = (
    *("LOAD", "STORE", "RMW", "NT_STORE", "FLUSH", "FENCE", "MSYNC", "YIELD", "MAP", "UNMAP", "THREAD_START"),
    *("THREAD_END", "THREAD_JOIN", "PROCESS_START", "PROCESS_END", "HOST_CRASH", "EXPECT_STALE"),
)
MOVES = ("FETCH", "FETCH_POSTED", "POST", "LAND", "WRITE_BACK", "DROP", "NT", "LOST")
DROP, DROP_ORDERED, KEEP = 1, 2, 3
SFENCE, LFENCE, MFENCE, LOCKED = 1, 2, 3, 4
GIVEN_UP = 2


class Step(ctypes.Structure):
    _fields_ = [
        ("number", c_uint64),
        ("kind", c_uint8),
        ("what", c_uint8),
        ("locked", c_bool),
        ("system", c_bool),
        ("host", c_uint8),
        ("pool", c_uint8),
        ("thread", c_uint16),
        ("other", c_uint16),
        ("process", c_uint16),
        ("stage", c_uint16),
        ("site", c_uint32),
        ("offset", c_int64),
        ("nbytes", c_int64),
    ]


class Move(ctypes.Structure):
    _fields_ = [
        ("number", c_uint64),
        ("kind", c_uint8),
        ("cause", c_uint8),
        ("host", c_uint8),
        ("pool", c_uint8),
        ("thread", c_uint16),
        ("first", c_uint8),
        ("count", c_uint8),
        ("line", c_int64),
        ("lines", c_int64),
        ("store", c_uint64),
    ]


@cache
def library() -> ctypes.CDLL:
    """The checker with the storage of tests/helpers/checker.c, compiled once, with traps where C has no meaning."""
    sources = [*sorted(NATIVE.glob("check*.c")), Path(__file__).with_name("checker.c")]
    flags = ["-std=c11", "-O1", "-g", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}"]
    traps = ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    with tempfile.TemporaryDirectory(prefix="cxlemu-checker-") as folder:  # goes, too, if a mutant does not compile
        into = f"{folder}/checker.so"
        subprocess.run(["gcc", *flags, *traps, *map(str, sources), "-o", into], check=True)
        loaded = ctypes.CDLL(into)
    loaded.test_findings.restype = c_uint32
    return loaded


class Found(NamedTuple):
    """A finding in a test's words: ``stale`` if the load returned wrong bytes in this very stream."""

    kind: str
    stale: bool
    store: str
    access: str


class _Cache:
    def __init__(self) -> None:
        self.lines: dict[int, bytearray] = {}
        self.dirty: set[int] = set()
        self.posted: dict[int, bytes] = {}


class Stream:
    """A pool, and the events that a test makes. Threads are named ``A``, ``B`` or ``A.1``, by their hosts."""

    def __init__(self, *threads: str, start: bool = True) -> None:
        self.checker = library()
        self.checker.test_begin()
        self.pool = bytearray(POOL_BYTES)
        self.number, self.stage = 0, 0
        self.sites: list[str] = [""]
        self.caches: dict[int, _Cache] = {}
        self.threads: dict[str, int] = {}
        self.flushed: dict[str, set[int]] = {}
        self.private: dict[str, list[tuple[int, bytes, int]]] = {}
        for name in threads if start else ():
            self.start(name)

    # --- what programs do ---

    def start(self, name: str) -> None:
        self.threads.setdefault(name, len(self.threads))
        self.flushed.setdefault(name, set())
        self.private.setdefault(name, [])
        self.caches.setdefault(self.host(name), _Cache())
        self._step(name, "PROCESS_START")

    def end(self, name: str, what: int = 0) -> None:
        self._step(name, "PROCESS_END", what)

    def next_stage(self) -> None:
        self.stage += 1

    def host(self, name: str) -> int:
        return ord(name[0]) - ord("A")

    def load(self, name: str, at: int, nbytes: int = 8, site: str = "") -> bytes:
        cache = self.caches[self.host(name)]
        for line in lines(at, nbytes):
            self.fetch(name, line)
        got = bytearray(b"".join(bytes(cache.lines[line]) for line in lines(at, nbytes)))
        step, base = self._made(name, "LOAD", at, nbytes, site), at % LINE
        self.checker.test_load(byref(step), _at(got, base))
        return bytes(got[base : base + nbytes])

    def store(self, name: str, at: int, value: int | bytes, site: str = "", kind: str = "STORE") -> None:
        data = value.to_bytes(8, "little") if isinstance(value, int) else value
        cache = self.caches[self.host(name)]
        touched = list(lines(at, len(data)))
        self._land_private(name, touched)
        for line in touched:
            self.fetch(name, line)
        before = bytearray(b"".join(bytes(cache.lines[line]) for line in touched))
        after = bytearray(before)
        after[at % LINE : at % LINE + len(data)] = data
        for k, line in enumerate(touched):
            cache.lines[line] = after[k * LINE : (k + 1) * LINE]
            cache.dirty.add(line)
        step = self._made(name, kind, at, len(data), site)
        step.locked = kind == "RMW"
        self.checker.test_store(byref(step), _at(before, at % LINE), _at(after, at % LINE))
        if kind == "RMW":
            self._complete(name)

    def add(self, name: str, at: int, site: str = "") -> None:
        """A locked increment."""
        self.fetch(name, at // LINE)
        word = self.caches[self.host(name)].lines[at // LINE][at % LINE : at % LINE + 8]
        self.store(name, at, int.from_bytes(word, "little") + 1, site, "RMW")

    def store_nt(self, name: str, at: int, value: int | bytes, site: str = "") -> None:
        data = value.to_bytes(8, "little") if isinstance(value, int) else value
        step = self._made(name, "NT_STORE", at, len(data), site)
        self.private[name].append((at, data, step.number))
        held = bytearray(data)
        self.checker.test_store(byref(step), None, _at(held, 0))

    def flush(self, name: str, at: int, nbytes: int = 8, site: str = "", what: int = DROP) -> None:
        cache = self.caches[self.host(name)]
        for line in lines(at, nbytes):
            step = self._made(name, "FLUSH", line * LINE, LINE, site, what)
            dirty = line in cache.dirty
            self.checker.test_flush(byref(step), dirty)
            if dirty:
                self.land(name, line)
                cache.posted[line] = bytes(cache.lines[line])
                cache.dirty.discard(line)
                self._move(name, "POST", line)
            if what != KEEP:
                self.flushed[name].add(line)
            else:
                self.flushed[name].add(-1 - line)

    def fence(self, name: str, what: int = SFENCE, site: str = "") -> None:
        step = self._made(name, "FENCE", site=site, what=what)
        self.checker.test_fence(byref(step))
        if what != LFENCE:
            self._complete(name)

    def invalidate(self, name: str, at: int, nbytes: int = 8, site: str = "") -> None:
        """As cxl_invalidate does."""
        self.fence(name, LFENCE)
        self.flush(name, at, nbytes, site)
        self.fence(name, MFENCE, site)

    def publish(self, name: str, at: int, nbytes: int = 8) -> None:
        self.flush(name, at, nbytes)
        self.fence(name)

    def msync(self, name: str, at: int, nbytes: int, site: str = "") -> None:
        self.checker.test_other(byref(self._made(name, "MSYNC", at, nbytes, site)))

    def expect_stale(self, name: str, at: int, nbytes: int) -> None:
        self.checker.test_other(byref(self._made(name, "EXPECT_STALE", at, nbytes)))

    def flush_outside(self, name: str, address: int, site: str = "") -> None:
        step = self._made(name, "FLUSH", address, 1, site, DROP)
        step.pool = 255
        self.checker.test_flush(byref(step), False)

    def crash(self, name: str) -> None:
        self._step(name, "HOST_CRASH")

    # --- what nature does ---

    def fetch(self, name: str, line: int) -> None:
        cache = self.caches[self.host(name)]
        if line in cache.lines:
            return
        own = cache.posted.get(line)
        cache.lines[line] = bytearray(own if own is not None else self.pool[line * LINE : (line + 1) * LINE])
        self._move(name, "FETCH_POSTED" if own is not None else "FETCH", line)

    def prefetch(self, name: str, at: int) -> None:
        self.fetch(name, at // LINE)

    def evict(self, name: str, at: int) -> None:
        line, cache = at // LINE, self.caches[self.host(name)]
        if line not in cache.lines or (line in cache.dirty and line in cache.posted):
            return
        if line in cache.dirty:
            self.pool[line * LINE : (line + 1) * LINE] = cache.lines[line]
            self._move(name, "WRITE_BACK", line)
        self._drop(name, line)

    def land(self, name: str, line: int) -> None:
        cache = self.caches[self.host(name)]
        if line in cache.posted:
            self.pool[line * LINE : (line + 1) * LINE] = cache.posted.pop(line)
            self._move(name, "LAND", line)

    # --- what the checker says ---

    def raw(self) -> list[ProgramFinding]:
        self.checker.test_tell()
        first = ctypes.c_void_p()
        count = self.checker.test_findings(byref(first))
        return ProgramFinding.many(ctypes.string_at(first.value, count * ProgramFinding.SIZE)) if count else []  # type: ignore[arg-type]

    def found(self) -> set[Found]:
        return {
            Found(KINDS[f.kind].name, f.manifest, self._place(f, "store"), self._place(f, "access")) for f in self.raw()
        }

    def places(self) -> list[dict[str, str]]:
        return [{role: self._place(f, role) for role in ROLES if f.site(role)} for f in self.raw()]

    def finish(self, *, given_up: bool = False) -> set[Found]:
        """All processes end, at their deadline if the run is ``given_up``, and nothing more happens."""
        for name in self.threads:
            self.end(name, GIVEN_UP if given_up else 0)
        self.checker.test_end()
        return self.found()

    def stuck(self) -> set[Found]:
        self.checker.test_stuck()
        return self.found()

    def bytes_per_line(self, touched: int) -> float:
        return 128 + int(self.checker.test_bytes_more()) / touched

    # --- below ---

    def _place(self, finding: ProgramFinding, role: str) -> str:
        return self.sites[finding.site(role)]

    def _site(self, name: str) -> int:
        if name not in self.sites:
            self.sites.append(name)
        return self.sites.index(name)

    def _made(self, name: str, kind: str, at: int = 0, nbytes: int = 0, site: str = "", what: int = 0) -> Step:
        self.number += 1
        return Step(
            number=self.number,
            kind=STEPS.index(kind) + 1,
            what=what,
            host=self.host(name),
            thread=self.threads[name],
            process=self.threads[name] + 1,
            stage=self.stage,
            site=self._site(site),
            offset=at,
            nbytes=nbytes,
        )

    def _step(self, name: str, kind: str, what: int = 0) -> None:
        self.checker.test_other(byref(self._made(name, kind, what=what)))

    def _move(self, name: str, kind: str, line: int, **more: int) -> None:
        its_kind = MOVES.index(kind) + 1
        move = Move(self.number, its_kind, 1, self.host(name), 0, self.threads[name], line=line, lines=1, **more)
        self.checker.test_move(byref(move))

    def _drop(self, name: str, line: int) -> None:
        cache = self.caches[self.host(name)]
        cache.lines.pop(line, None)
        cache.dirty.discard(line)
        self._move(name, "DROP", line)

    def _land_private(self, name: str, only: Sequence[int] | None = None) -> None:
        """Non-temporal stores arrive: all of a thread's, or those whose lines are among some."""
        kept = []
        for at, data, number in self.private[name]:
            if only is not None and not set(only) & set(lines(at, len(data))):
                kept.append((at, data, number))
                continue
            for line in lines(at, len(data)):
                self.land(name, line)
                self.evict(name, line * LINE)
                begin, end = max(at, line * LINE), min(at + len(data), (line + 1) * LINE)
                self.pool[begin:end] = data[begin - at : end - at]
                self._move(name, "NT", line, first=begin % LINE, count=end - begin, store=number)
        self.private[name] = kept

    def _complete(self, name: str) -> None:
        self._land_private(name)
        for flushed in self.flushed[name]:
            line = flushed if flushed >= 0 else -1 - flushed
            self.land(name, line)
            cache = self.caches[self.host(name)]
            if flushed >= 0 and line in cache.lines and line not in cache.dirty:
                self._drop(name, line)
        self.flushed[name].clear()


def lines(at: int, nbytes: int) -> range:
    return range(at // LINE, (at + nbytes + LINE - 1) // LINE)


def _at(data: bytearray, offset: int) -> object:
    held = (c_uint8 * len(data)).from_buffer(data)
    return ctypes.cast(ctypes.addressof(held) + offset, POINTER(c_uint8))
