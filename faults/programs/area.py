"""The library that programs load, as the driver calls it.

``native/area.h`` says what lies where. The structs here are those of C, whose sizes are compared when a run is made.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cxlemu.errors import ArgumentError, PoolError
from cxlemu.files import read_file
from cxlemu.memory.line import LINE_BYTES
from cxlemu.units import format_bytes

POOLS, HOSTS, THREADS, PATH_BYTES, TURNS, COHERENT = 8, 16, 256, 256, 1 << 20, 16
POINTS_MOST, ARRIVALS_MOST, LINES_MOST, USES_MOST = 1 << 16, 4096, 4096, 1 << 16  # as in native/crash.h
RECORD_MOST, RECORD_BYTES = 1 << 21, 40  # as in native/record.h
OPERATIONS_MOST = 1 << 16  # as in native/area.h
OPENED_BYTES_MAX = 1 << 20
SHARED = Path("/dev/shm")
STARTING, WAITING, INSIDE, RUNNING, OUTSIDE, CRASHED, ENDED = range(1, 8)  # enum thread_state
GOING_ON, NO_PROGRESS, _, REPEATS = range(4)  # enum outcome, which has further ones


class RunOptions(ctypes.Structure):
    """The options of a run: ``program_options`` of native/area.h."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("hosts", "pools", "nature", "free_running", "check", "every")),
        *((name, ctypes.c_int32) for name in ("crash_host", "crashes", "link_host", "poison_pool", "lost_pool")),
        *((name, ctypes.c_int32) for name in ("dma_to_memory", "script_length")),
        *((name, ctypes.c_uint64) for name in ("seed", "schedule", "idle_budget")),
        *((name, ctypes.c_uint64) for name in ("crash_step", "link_step", "poison_step", "lost_step")),
        ("poison_offset", ctypes.c_int64),
        ("rates", ctypes.c_double * 3),
        ("capacity", ctypes.c_int64 * POOLS),
        ("dax", ctypes.c_int32 * POOLS),
        ("path", (ctypes.c_char * PATH_BYTES) * POOLS),
        ("coherent", (ctypes.c_int64 * 3) * COHERENT),
    )


class RunStatus(ctypes.Structure):
    """How far a run has come: ``run_status`` of native/driver.c."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in ("steps", "hash", "idle", "unannounced", "expected", "watched_lines", "watched_bytes")
        ),
        *((name, ctypes.c_int32) for name in ("outcome", "threads", "turns", "findings", "sites", "modules")),
        *((name, ctypes.c_int32) for name in ("link_met", "card_met", "line_met")),
        ("coherent_met", ctypes.c_uint64),
        ("absent", ctypes.c_uint64),
        ("touched", ctypes.c_int32),
        *((name, ctypes.c_uint32) for name in ("kinds_asked", "operations", "invariants", "unexamined")),
        *((name, ctypes.c_uint32) for name in ("device_copies", "flushed", "past_left_out", "past_early")),
    )


class ProgramOperation(ctypes.Structure):
    """An operation that a program has logged: ``program_operation`` of native/area.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("begin", "end", "key", "value", "result")),
        ("site", ctypes.c_uint32),
        ("thread", ctypes.c_uint16),
        ("host", ctypes.c_uint8),
        ("operation", ctypes.c_uint8),
    )


class _Invariant(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("pool", "offset", "nbytes")),
        ("site", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )


class _Thread(ctypes.Structure):
    _fields_ = (
        ("state", ctypes.c_uint32),
        ("process", ctypes.c_uint16),
        ("command", ctypes.c_uint16),
        ("host", ctypes.c_uint8),
        ("main", ctypes.c_bool),
        ("pid", ctypes.c_int32),
        ("tid", ctypes.c_int32),
        *((name, ctypes.c_uint64) for name in ("priority", "steps", "idle_steps")),
        ("apart", ctypes.c_uint8 * 80),
    )


class _Doing(ctypes.Structure):
    _fields_ = (
        ("offset", ctypes.c_int64),
        ("site", ctypes.c_uint32),
        ("kind", ctypes.c_uint8),
        ("pool", ctypes.c_uint8),
    )


class _Turn(ctypes.Structure):
    _fields_ = (("thread", ctypes.c_uint32), ("steps", ctypes.c_uint32))


class _Place(ctypes.Structure):
    _fields_ = (
        ("module", ctypes.c_uint16),
        ("caller_module", ctypes.c_uint16),
        ("offset", ctypes.c_uint32),
        ("caller_offset", ctypes.c_uint32),
    )


class _Module(ctypes.Structure):
    _fields_ = (("path", ctypes.c_char * PATH_BYTES),)


class RawFinding(ctypes.Structure):
    """``program_finding`` of native/program.h."""

    _fields_ = (
        ("kind", ctypes.c_uint16),
        ("rule", ctypes.c_uint16),
        *((name, ctypes.c_uint8) for name in ("host", "other_host", "pool", "bytes")),
        ("thread", ctypes.c_uint16),
        ("other_thread", ctypes.c_uint16),
        ("times", ctypes.c_uint32),
        ("offset", ctypes.c_int64),
        ("nbytes", ctypes.c_int64),
        ("number", ctypes.c_uint64),
        ("sites", ctypes.c_uint32 * 10),
        ("numbers", ctypes.c_uint64 * 10),
        ("seen", ctypes.c_uint8 * 64),
        ("meant", ctypes.c_uint8 * 64),
        ("extra", ctypes.c_int64 * 4),
    )


class CrashPoint(ctypes.Structure):
    """A step at whose beginning a host may crash: ``crash_point`` of native/crash.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("step", "trace", "future", "others")),
        ("line", ctypes.c_int64),
        ("site", ctypes.c_uint32),
        *((name, ctypes.c_uint8) for name in ("host", "pool", "stage", "images")),
    )


class CrashArrival(ctypes.Structure):
    """A line that was fetched after a crash: ``crash_arrival`` of native/crash.h."""

    _fields_ = (
        ("line", ctypes.c_int64),
        *((name, ctypes.c_uint64) for name in ("step", "lost_step")),
        *((name, ctypes.c_uint32) for name in ("site", "lost_site")),
        *((name, ctypes.c_int32) for name in ("stores", "lost")),
        ("thread", ctypes.c_uint16),
        *((name, ctypes.c_uint8) for name in ("host", "pool")),
        ("number", ctypes.c_uint16),
        ("torn", ctypes.c_uint16),
    )


class PoolUse(ctypes.Structure):
    """A step in which a line was fetched from the pool or arrived there: ``pool_use`` of native/crash.h."""

    _fields_ = (
        ("line", ctypes.c_int64),
        ("step", ctypes.c_uint64),
        ("pool", ctypes.c_uint8),
        ("stage", ctypes.c_uint8),
        ("unused", ctypes.c_uint8 * 6),
    )


class _Changed(ctypes.Structure):
    _fields_ = (
        ("line", ctypes.c_int64),
        ("site", ctypes.c_uint32),
        *((name, ctypes.c_uint8) for name in ("pool", "any", "images")),
    )


class _Crashes(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("line_count", "host")),
        *((name, ctypes.c_uint32) for name in ("point_count", "arrival_count", "left_out", "use_count")),
        *((name, ctypes.c_uint64) for name in ("trace", "pools")),
        ("changed", _Changed * HOSTS),
        ("lose", ctypes.c_uint8 * LINES_MOST),
        ("arrivals", CrashArrival * ARRIVALS_MOST),
        ("points", CrashPoint * POINTS_MOST),
        ("uses", PoolUse * USES_MOST),
    )


class CrashRecord(NamedTuple):
    """What a run of a search for crashes has come to."""

    points: list[CrashPoint]  # until the crash
    arrivals: list[CrashArrival]  # lines that were fetched after it, in their order
    uses: list[PoolUse]  # of the pools, by the whole run
    trace: int  # the hash of all steps before the crash
    complete: bool  # whether there was room for all of it


class PoolThread(NamedTuple):
    """A thread that takes part."""

    number: int  # its index, which schedules name
    state: int  # STARTING, WAITING, ..., ENDED
    command: int  # the command it belongs to, counted over all stages
    host: int
    pid: int  # its process; 0 as long as no process has taken it up
    tid: int  # its thread in that process


class LastStep(NamedTuple):
    """The last step that a thread made."""

    kind: int  # enum step_kind
    pool: int  # the number of its pool; 255: none
    offset: int  # in the pool, in bytes
    site: int  # the index of its place in `Area.places`


class CodePlace(NamedTuple):
    """Where an access stands in a program, and the call that led there."""

    module: str  # the file, empty where it is unknown
    offset: int  # the instruction's address in the file's address space
    caller_module: str  # the caller's file, empty where it is unknown
    caller_offset: int  # the call's address in the caller's file


@cache
def library_path() -> Path:
    """Find the library that programs load."""
    spec = importlib.util.find_spec("faults.programs._runtime")
    if spec is None or spec.origin is None:
        raise ArgumentError("faults/programs/native was not built: install the package again")
    return Path(spec.origin)


_SIZED = {
    RunOptions: "options",
    _Thread: "threads",
    RawFinding: "findings",
    _Crashes: "crashes",
    ProgramOperation: "operations",
}


@cache
def library() -> ctypes.CDLL:
    """Load it, and compare its sizes with those of the structs here."""
    loaded = ctypes.CDLL(str(library_path()))
    for name in _SIZED.values():
        getattr(loaded, f"program_{name}_bytes").restype = ctypes.c_size_t
    for name in ("program_make", "program_outside", "program_full"):
        getattr(loaded, name).restype = ctypes.c_bool
    for name, kind in (
        ("program_threads", _Thread),
        ("program_findings", RawFinding),
        ("program_doing", _Doing),
        ("program_places", _Place),
        ("program_modules", _Module),
        ("program_turns", _Turn),
        ("program_script", _Turn),
        ("program_pool", ctypes.c_uint8),
        ("program_record", ctypes.c_uint32),
        ("program_crashes", _Crashes),
        ("program_operations", ProgramOperation),
        ("program_invariants", _Invariant),
    ):
        getattr(loaded, name).restype = ctypes.POINTER(kind)
    sizes = {kind: getattr(loaded, f"program_{name}_bytes")() for kind, name in _SIZED.items()}
    if any(ctypes.sizeof(kind) != size for kind, size in sizes.items()):
        raise ArgumentError(f"{library_path()} was compiled from other sources: install the package again")
    return loaded


class Area:
    """The memory that the processes of one run share, as the driver sees it.

    A process has one area at a time; `making` makes it.
    """

    def __init__(self, folder: Path, options: RunOptions) -> None:
        """Make the files of a run, and its first state."""
        self.folder = folder
        self._library = library()
        if not self._library.program_make(os.fsencode(folder), ctypes.byref(options)):
            self.close()
            raise PoolError(f"{SHARED} has no room for a run: free some, or make it larger (docker run --shm-size)")

    def check_room(self, *, failed: bool = False) -> None:
        """Raise PoolError if a page of the run's files could not be had, or a program ``failed`` and there is none."""
        if self._library.program_full() or (failed and os.statvfs(SHARED).f_bavail == 0):
            free = os.statvfs(SHARED)
            size = format_bytes(free.f_blocks * free.f_frsize)
            raise PoolError(
                f"{SHARED} is full: it has {size}, too little for a run with these pools. Free some of it, make it "
                "larger (docker run --shm-size), or give pools less content"
            )

    def script(self, turns: Sequence[tuple[int, int]]) -> None:
        """Say which schedule the run follows; its length is in the options."""
        into = self._library.program_script()
        for k, (thread, steps) in enumerate(turns):
            into[k] = _Turn(thread, steps)

    def pool(self, pool: int, content: bytes) -> None:
        """Put bytes at the beginning of a pool."""
        ctypes.memmove(self._library.program_pool(pool), content, len(content))
        self.check_room()
        self._library.program_filled(pool, ctypes.c_int64(len(content)))

    def expect(self, host: int, command: int, stage: int) -> int:
        """Announce a command; returns the number of its first thread."""
        thread: int = self._library.program_expect(host, command, stage)
        if thread < 0:
            raise ArgumentError(f"more than {THREADS} threads take part")
        return thread

    def gone(self, pid: int) -> None:
        """Record that process ``pid`` has ended."""
        self._library.program_gone(pid)

    def not_taken(self, thread: int) -> None:
        """Record that the command of a thread has ended before any of its processes took the thread up."""
        self._library.program_not_taken(thread)

    def outside(self, thread: PoolThread) -> bool:
        """Let the others go on without a thread; returns whether it is still in the state in which it was seen."""
        return bool(self._library.program_outside(thread.number, thread.state))

    def part(self) -> None:
        """Let threads that alternate side by side run on any processor again, until they next wait for each other."""
        self._library.program_part()

    def stop(self, *, given_up: bool = False) -> None:
        """End every process at its next step; ``given_up`` says that the run is at its deadline."""
        self._library.program_stop(given_up)

    def judge(self) -> None:
        """Let the checker examine what is left, when all processes have ended."""
        self._library.program_judge()

    def status(self) -> RunStatus:
        """Tell how far the run has come."""
        status = RunStatus()
        self._library.program_status(ctypes.byref(status))
        return status

    def threads(self) -> list[PoolThread]:
        """List all threads that took part so far."""
        raw = self._library.program_threads()
        return [
            PoolThread(k, t.state, t.command, t.host, t.pid, t.tid)
            for k, t in ((k, raw[k]) for k in range(self.status().threads))
        ]

    def last_step(self, thread: PoolThread) -> LastStep:
        """Tell what a thread did last."""
        doing = self._library.program_doing()[thread.number]
        return LastStep(doing.kind, doing.pool, doing.offset, doing.site)

    def turns(self) -> list[tuple[int, int]]:
        """List the turns that were taken: a thread, and how many steps it made."""
        raw = self._library.program_turns()
        return [(raw[k].thread, raw[k].steps) for k in range(self.status().turns)]

    def opened(self) -> list[str]:
        """List the first other files that each process opened to read and write."""
        path = self.folder / "opened"
        try:
            return os.fsdecode(read_file(path, OPENED_BYTES_MAX)).splitlines() if path.exists() else []
        except OSError:
            return []  # none did, or too many

    def findings(self) -> list[RawFinding]:
        """Copy what the checker has found."""
        raw = self._library.program_findings()
        return [RawFinding.from_buffer_copy(raw[k]) for k in range(self.status().findings)]

    def places(self) -> list[CodePlace]:
        """List places in programs; findings name them by their index, 0 being unknown."""
        status, raw, modules = self.status(), self._library.program_places(), self._library.program_modules()
        names = [os.fsdecode(modules[k].path) if k else "" for k in range(max(status.modules, 1))]
        return [
            CodePlace(names[p.module], p.offset, names[p.caller_module], p.caller_offset)
            for p in (raw[k] for k in range(max(status.sites, 1)))
        ]

    def record(self) -> tuple[int, bytes]:
        """Copy the record of a search's run: how many entries were made, and those that there was room for."""
        raw = self._library.program_record()
        count = raw[0]
        return count, ctypes.string_at(ctypes.addressof(raw.contents) + 16, min(count, RECORD_MOST) * RECORD_BYTES)

    def operations(self) -> list[ProgramOperation]:
        """Copy the operations that programs have logged."""
        raw = self._library.program_operations()
        count = min(self.status().operations, OPERATIONS_MOST)
        return [ProgramOperation.from_buffer_copy(raw[k]) for k in range(count)]

    def invariants(self) -> list[frozenset[tuple[int, int]]]:
        """List for each invariant that programs have declared its lines, each with its pool."""
        raw = self._library.program_invariants()
        all_of_them = (raw[k] for k in range(self.status().invariants))
        return [
            frozenset((i.pool, k) for k in range(i.offset // LINE_BYTES, (i.offset + i.nbytes - 1) // LINE_BYTES + 1))
            for i in all_of_them
        ]

    def lose(self, losses: Sequence[int]) -> None:
        """Say of each line, by its number, how many of the last stores to it are lost in the crash."""
        contents = self._library.program_crashes().contents
        for k, lost in enumerate(losses):
            contents.lose[k] = lost

    def crashes(self) -> CrashRecord:
        """Copy what a run of a search for crashes has come to."""
        contents = self._library.program_crashes().contents
        points, arrivals = min(contents.point_count, POINTS_MOST), min(contents.arrival_count, ARRIVALS_MOST)
        uses = min(contents.use_count, USES_MOST)
        return CrashRecord(
            [CrashPoint.from_buffer_copy(contents.points[k]) for k in range(points)],
            [CrashArrival.from_buffer_copy(contents.arrivals[k]) for k in range(arrivals)],
            [PoolUse.from_buffer_copy(contents.uses[k]) for k in range(uses)],
            contents.trace,
            points == contents.point_count
            and arrivals == contents.arrival_count
            and uses == contents.use_count
            and not contents.left_out,
        )

    def close(self) -> None:
        """End the run; its files stay."""
        self._library.program_end()
