"""The native engine: the same records, executed in C with the GIL released, at the speed of this machine's memory."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from cxlemu import _native
from cxlemu.compiled import check_compiled
from cxlemu.engines.call_hooks import Obstacles
from cxlemu.engines.peer_memory import unreadable
from cxlemu.engines.streams import NO_BREAKPOINTS, Blocked, Breakpoints, Running, Watch
from cxlemu.errors import ArgumentError, DeadlineError, PlanError
from cxlemu.memory.backend import EVERYTHING, CoherenceStep
from cxlemu.memory.lock import held
from cxlemu.memory.native import CARD_LOST, LINK_DOWN, POISONED, NativeShadowMemory
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES, Bytes
from cxlemu.plan import DTYPES, Flag, Kind, Layout, Op, RankPart, RedOp
from cxlemu.plan.features import declared
from cxlemu.plan.instructions import decode
from cxlemu.plan.kernels import KERNELS, ChecksumError
from cxlemu.plan.layout import TAG_BITS, layout_record
from cxlemu.plan.plan import Ints, group_table, region_table

if TYPE_CHECKING:
    from cxlemu.engines.pace import Pacer

check_compiled(
    "cxlemu._native",
    _native.CONSTANTS,
    {
        **{op.name: op for op in Op},
        **{redop.name: redop for redop in RedOp if redop},
        **{f"ELIDE_{step.name}": step.value for step in CoherenceStep},
        "NOTHING": Kind.NONE,
        "BUFFER": Kind.BUFFER,
        "REGION": Kind.REGION,
        "FLAG_DIVIDE": Flag.DIVIDE,
        "FLAG_PLACES": Flag.PLACES,
        "LINE_BYTES": LINE_BYTES,
        "PAYLOAD_BYTES": PAYLOAD_BYTES,
        "TAG_BITS": TAG_BITS,
        "DTYPES": len(DTYPES),
    },
)
# How a run ends: enum status in native/core.h. An obstacle has MODELLED_TIME instead of a doorbell where a stream's
# modelled time has not come.
_FIRST = "DONE", "IDLE", "MISMATCH", "KERNEL", "LOCK_TIMEOUT", "OUT_OF_MEMORY"
_OTHERS = "STOPPED", "DAMAGED", "CLOCKS_TIMEOUT", "UNREADABLE", "MISPLACED", "MODELLED_TIME"
DONE, IDLE, MISMATCH, KERNEL, LOCK_TIMEOUT, OUT_OF_MEMORY = map(_native.CONSTANTS.__getitem__, _FIRST)
STOPPED, DAMAGED, CLOCKS_TIMEOUT, UNREADABLE, MISPLACED, MODELLED_TIME = map(_native.CONSTANTS.__getitem__, _OTHERS)
ProgramKey: TypeAlias = tuple[int, int, tuple[int, int] | None]  # a part's id, and of a Binding the base and the places
ToldPlaces: TypeAlias = tuple[int, int, int, int, Ints, Ints]  # as told_take of native/told_module.h takes it
LOOK_NS = 50_000_000  # how long C waits before Python checks on the peers
SPINS = 2000  # polls before a rank gives its core away, where every rank has a core
PROGRAMS_KEPT = 256
MODELS = declared(
    "CHECKSUMS EVENTS FOLDS HEAP MATRIX_PRODUCTS NON_TEMPORAL OWN_MEMORIES PAYLOADS PEER_WRITES PROCESS_ARRAYS "
    "TOLD_PLACES UNEVEN_BLOCKS UNIFORM_ORDER"
)


@dataclass
class NativeEngine:
    """Runs the parts of one rank, either in place on the cards or through an emulated host's cache of them.

    Attributes:
        cards: Each card's bytes, 1-D uint8.
        elides: The steps that need not be executed on the cards (see cxlemu/memory/backend.py).
        through: The rank's memory on an emulated host's cache; None to execute on the cards.
        spins: How often the rank polls a doorbell before it gives its core away (see cores.py).
        pacer: Makes records take their modelled time; None for this machine's.
    """

    cards: Sequence[Bytes]
    elides: CoherenceStep = EVERYTHING
    through: NativeShadowMemory | None = None
    spins: int = 0
    pacer: Pacer | None = None
    _programs: OrderedDict[ProgramKey, tuple[RankPart, _native.Program]] = field(default_factory=OrderedDict)

    def on(self, through: NativeShadowMemory | None) -> NativeEngine:
        """Make an engine of this kind on another memory of the rank, or on the cards, with programs of its own."""
        return replace(self, through=through, spins=0, _programs=OrderedDict())

    def run(
        self,
        running: Running,
        buffers: list[Bytes],
        *,
        deadline_s: float,
        watch: Watch | None = None,
        stops: Breakpoints = NO_BREAKPOINTS,
    ) -> None:
        """Run one rank's part of a call to its end: see `Engine.run`.

        Raises:
            PlanError: A record would touch memory outside of buffers and slots.
            ArgumentError: A buffer is too small, or read-only though the part writes to it.
            MemoryError: There is no memory for the non-temporal stores of an emulated host.
        """
        program = self.program(running)
        try:
            program.start(running.binding.epoch, running.binding.tag, *buffers)
        except ValueError as error:
            raise ArgumentError(f"rank {running.part.rank} cannot begin [{running.name}]: {error}") from error
        for stream in {stream for stream, _ in stops}:
            program.stop(stream, min(index for other, index in stops if other == stream))
        status, obstacles = program.advance(LOOK_NS, self.spins)
        self.finish(
            running, program, status, obstacles, buffers=buffers, deadline_s=deadline_s, watch=watch, stops=stops
        )

    def finish(
        self,
        running: Running,
        program: _native.Program,
        status: int,
        found: Obstacles,
        *,
        buffers: Sequence[Bytes],
        deadline_s: float,
        watch: Watch | None = None,
        stops: Breakpoints = NO_BREAKPOINTS,
    ) -> None:
        """Go on with a call whose program stopped, to its end; ``status`` is an ``enum status`` of native/core.h."""
        before: Obstacles = []
        since, overdue = 0.0, False
        ordered: dict[int, list[int]] = {}
        for stream, index in sorted(stops):
            ordered.setdefault(stream, []).append(index)
        while status != DONE:
            if status == STOPPED:
                stream, index = found[0][:2]
                left_out = stops[stream, index]()
                stops_of = ordered[stream]
                following = bisect_right(stops_of, index)
                program.stop(stream, stops_of[following] if following < len(stops_of) else _length(running, stream))
                if left_out:
                    program.skip(stream)
            elif status != IDLE:
                self.settle(running, program, status, found, buffers)
            else:
                if [o[:2] for o in found] != [o[:2] for o in before]:
                    since, overdue = time.monotonic() - LOOK_NS / 1e9, False
                before = found
                blocked = [blocked_at(running, *obstacle) for obstacle in found if _length(running, obstacle[0])]
                paced = any(doorbell == MODELLED_TIME for _, _, doorbell, _, _ in found)  # then it waits for no peer
                waited_s = 0.0 if paced else time.monotonic() - since
                if watch is not None:
                    watch(running, blocked, waited_s)
                if overdue and waited_s > deadline_s:
                    raise running.deadline(blocked, waited_s)
                overdue = waited_s > deadline_s  # one more look: this rank may have stalled since the last one
            status, found = program.advance(LOOK_NS, self.spins)

    def settle(
        self, running: Running, program: _native.Program, status: int, found: Obstacles, buffers: Sequence[Bytes]
    ) -> None:
        """Run the kernel for which a program stopped, so that it can go on; or raise the error that stopped it.

        ``status`` says how it stopped, neither ``DONE`` nor ``IDLE`` nor ``STOPPED``.
        """
        if status == MISMATCH:
            raise running.mismatch(found[0][2])
        if status == DAMAGED:
            raise running.damaged_doorbell(found[0][2])
        if status == LOCK_TIMEOUT:
            raise held()
        if status == CLOCKS_TIMEOUT:
            raise DeadlineError(f"rank {running.part.rank}: another rank holds the pool's clocks; it may be stopped")
        if status in (LINK_DOWN, CARD_LOST, POISONED):
            assert self.through is not None  # only an emulated pool says so
            raise self.through.failure(status)
        if status == MISPLACED:
            doorbell, owner = found[0][2:4]
            raise running.misplaced(doorbell) if doorbell >= 0 else running.untold(owner)
        if status == UNREADABLE:
            raise unreadable(rank=found[0][3], number=found[0][4])
        if status == OUT_OF_MEMORY:
            raise MemoryError("no memory for the non-temporal stores of an emulated host")
        assert status == KERNEL, status
        compute(running, buffers, stream=found[0][0], at=found[0][1])
        program.skip(found[0][0])

    def program(self, running: Running) -> _native.Program:
        """Bind the part to the pool, in C. The engine keeps the PROGRAMS_KEPT programs that were used last."""
        key = (id(running.part), running.binding.base, running.binding.places)
        if key in self._programs:
            self._programs.move_to_end(key)
            return self._programs[key][1]
        part, frame, layout, peers, places = running.part, running.frame, running.binding.layout, None, None
        if running.call.heap is not None and (berths := running.berths) is not None:
            if running.call.heap.in_process:  # no heap of the pool then
                assert running.binding.peers is not None
                layout, peers = replace(layout, heap_card_bytes=0), running.binding.peers.bound(berths)
            else:
                places = told_places(layout, part.rank, running.places, berths)
        try:
            program = _native.Program(
                cards=self.cards,
                base=running.binding.base,
                layout=layout_record(layout),
                regions=region_table(frame.regions),
                groups=group_table(frame.groups),
                streams=[stream.records for stream in part.streams],
                buffer_bytes=[buffer.nbytes for buffer in part.buffers],
                events=part.events,
                elides=self.elides.value,
                memory=None if self.through is None else self.through.shadow,
                pacer=None if self.pacer is None else self.pacer.native,
                kernels=None if self.pacer is None else self.pacer.kernels(frame, part),
                peers=peers,
                told=places,
            )
        except ValueError as error:
            raise PlanError(f"rank {part.rank} of [{running.name}]: {error}") from error
        self._programs[key] = (part, program)  # holding the part keeps its id its own
        if len(self._programs) > PROGRAMS_KEPT:
            self._programs.popitem(last=False)
        return program


def told_places(layout: Layout, rank: int, places: tuple[int, int], berths: Ints) -> ToldPlaces:
    """Describe for C where arrays in the heap lie whose ranks tell it."""
    strips = np.array([layout.heap_strip(each).offset for each in range(layout.ranks)], np.int64)
    return rank, layout.heap_rank_bytes, *places, strips, berths


def blocked_at(running: Running, stream: int, at: int, doorbell: int, wanted: int, shows: int) -> Blocked:
    """Say in Python's words what a stream waits for."""
    named = running.part.streams[stream]
    owner = running.binding.layout.owner(doorbell) if doorbell >= 0 else -1
    at = min(at, len(named.records) - 1)
    (instruction,) = decode(named.records[at : at + 1])  # this one only: every look comes here
    return Blocked(named.name, at, instruction, doorbell, owner, wanted, shows)


def _length(running: Running, stream: int) -> int:
    return len(running.part.streams[stream].records)


def compute(running: Running, buffers: Sequence[Bytes], *, stream: int, at: int) -> None:
    """Run the kernel of a COMPUTE, at which a program stopped with KERNEL; the program skips it afterwards."""
    i = running.part.streams[stream].instructions[at]
    kernel = running.frame.kernels[i.arg]
    out, *sizes = KERNELS[kernel.name].sizes(kernel.parameters)
    inputs = [buffers[o.id][o.offset : o.offset + size] for o, size in zip((i.a, i.b, i.c), sizes, strict=False)]
    try:
        KERNELS[kernel.name].run(kernel.parameters, buffers[i.dst.id][i.dst.offset : i.dst.offset + out], inputs)
    except ChecksumError:
        raise running.damaged(stream, at) from None
