"""Fused operators on this machine: what every rank measures of each style, and of its halves.

Styles take turns, so that what else the machine does meets all of them. Ranks meet before every call, on a communicator
that takes no modelled time. Results are compared bit by bit with NumPy's product.
"""

import os
import time
from binascii import crc_hqx
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from collectives.checking import fused_oracle as oracle
from collectives.choices import STYLES
from collectives.communicator.arrays import as_bytes
from collectives.communicator.calls.operations import Operation
from collectives.communicator.communicator import Communicator
from collectives.fused.choice import Operator, Tiling, call_of
from collectives.fused.halves import communicating, computing
from collectives.fused.plans import build
from collectives.fused.shapes import shapes
from cxlemu import _native
from cxlemu.engines import Engine, engine_for
from cxlemu.engines.cores import cores_here, have_a_core_each
from cxlemu.engines.native import SPINS, NativeEngine
from cxlemu.engines.streams import NO_BREAKPOINTS, RELEASES, Breakpoints, Running, Watch
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPES, Layout, Plan
from cxlemu.world import RankContext

CONTROL_BYTES_PER_RANK = 16 << 10
HALVES = ("gemm", "tiled", "comm")  # the product not split; the fused call's tiles alone; the collective alone
SEED = 1


@dataclass(frozen=True, slots=True)
class Job:
    """The styles of an operator that are measured, beside its halves. ``choice``: how it is cut where it is fused."""

    operator: Operator
    choice: Tiling
    styles: tuple[str, ...] = STYLES
    iterations: int = 5
    warmup: int = 1
    check: bool = True
    traced: bool = False
    region_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class TimedStep:
    """An instruction of a traced call: from when to when its stream was at it, in ns of the machine's clock."""

    stream: int
    at: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Seen:
    """One rank's measurements: when it entered and left each timed call, and how many elements were wrong in any.

    Times and wrong elements are listed by name of a style or, for times, of one of `HALVES`; ``steps`` by style.
    """

    rank: int
    cores: int
    a_core_each: bool
    layout: Layout
    entered_ns: dict[str, list[int]]
    left_ns: dict[str, list[int]]
    wrong: dict[str, int]
    steps: dict[str, list[TimedStep]]


@dataclass
class Recorder:
    """An engine that notes, while ``steps`` is a list, when streams are where: with a pace in modelled time."""

    inner: NativeEngine
    steps: list[TimedStep] | None = field(default=None)

    def run(
        self,
        running: Running,
        buffers: list[Bytes],
        *,
        deadline_s: float,
        watch: Watch | None = None,
        stops: Breakpoints = NO_BREAKPOINTS,
    ) -> None:
        """Run a rank's part as `Engine.run` does; while ``steps`` is a list, every instruction is noted in it."""
        if self.steps is None:
            self.inner.run(running, buffers, deadline_s=deadline_s, watch=watch, stops=stops)
            return
        program = self.inner.program(running)
        came: dict[tuple[int, int], int] = {}

        def note(stream: int, offset: int) -> bool:
            came[stream, offset] = _clock_ns(program, stream)
            return False

        stops = {
            (number, index): partial(note, number, index)
            for number, stream in enumerate(running.part.streams)
            for index in range(len(stream.records))
        }
        self.inner.run(running, buffers, deadline_s=deadline_s, watch=watch, stops=stops)
        for number, stream in enumerate(running.part.streams):
            ends_ns = _clock_ns(program, number)
            for index, instruction in enumerate(stream.instructions):
                begin_ns = came[number, index]
                last_ns = begin_ns if instruction.op in RELEASES else ends_ns  # these are over at once
                self.steps.append(TimedStep(number, index, begin_ns, came.get((number, index + 1), last_ns)))


def _clock_ns(program: _native.Program, stream: int) -> int:
    modelled_ns = program.modelled_ns(stream)
    return time.monotonic_ns() if modelled_ns is None else modelled_ns


@dataclass(frozen=True, slots=True)
class MeasuringWorld:
    """What a rank measures with. ``control``: a communicator on which ranks meet, which takes no modelled time."""

    comm: Communicator
    control: Communicator
    recorder: Recorder
    a_core_each: bool


@contextmanager
def world_of(context: RankContext, region_bytes: int) -> Iterator[MeasuringWorld]:
    """Open what a rank measures with; ranks spin where each has a core."""
    engine: Engine = engine_for("native", context.backend, context.memory, context.pool.cards, context.pacer)
    assert isinstance(engine, NativeEngine)
    recorder = Recorder(engine)
    with (
        Communicator.world(context, region_bytes=region_bytes, engine=recorder) as comm,
        Communicator.world(context, region_bytes=context.ranks * CONTROL_BYTES_PER_RANK, paced=False) as control,
    ):
        a_core_each = have_a_core_each(control.all_gather(cores_here()), control.rank)
        if a_core_each:
            engine.spins = SPINS
        yield MeasuringWorld(comm, control, recorder, a_core_each)


def measure(context: RankContext, job: Job) -> Seen:
    with world_of(context, job.region_bytes) as world:
        return Measuring(world, job).seen()


class Measuring:
    """This rank's matrices, and operations on them."""

    def __init__(self, world: MeasuringWorld, job: Job) -> None:
        self._world, self._job = world, job
        self._comm, self._control, self._recorder = world.comm, world.control, world.recorder
        call = call_of(job.operator, "fused", self._comm.size, job.choice)
        a, b = oracle.inputs(call, self._comm.rank, SEED, 0)
        self._a, self._b = as_bytes(a, "a"), as_bytes(b, "b")
        self._out = np.empty(shapes(call).c, DTYPES[call.dtype])
        self._right = oracle.expected(call, self._comm.rank, SEED, 0) if job.check else None

    def fused(self, choice: Tiling) -> Operation:
        """The fused call, cut as ``choice`` says, as an operation on this rank's matrices."""
        plan = build(self._comm.layout, call_of(self._job.operator, "fused", self._comm.size, choice))
        return self._operation("fused", plan)

    def _plans(self) -> dict[str, Plan]:
        job, layout = self._job, self._comm.layout
        plans = {style: build(layout, call_of(job.operator, style, layout.ranks, cut(job, style))) for style in STYLES}
        halves = computing(plans["unfused"]), computing(plans["fused"]), communicating(plans["unfused"])
        return dict(zip(HALVES, halves, strict=True)) | {style: plans[style] for style in job.styles}

    def _operation(self, name: str, plan: Plan) -> Operation:
        digest = crc_hqx(name.encode(), plan.call.tag())
        return self._comm.product_of(plan, digest, (self._a, as_bytes(self._out, "out"), self._b), self._out)

    def seen(self) -> Seen:
        """Run all styles and halves in turns, and then a traced call of each style if the job asks for it."""
        job = self._job
        operations = {name: self._operation(name, plan) for name, plan in self._plans().items()}
        names = list(operations)
        entered: dict[str, list[int]] = {name: [] for name in names}
        left: dict[str, list[int]] = {name: [] for name in names}
        wrong = dict.fromkeys(job.styles, 0)
        for number in range(job.warmup + job.iterations):
            for name in names:
                before_ns, after_ns = self.timed(operations[name])
                if name in wrong:
                    wrong[name] += self._wrong()
                if number >= job.warmup:
                    entered[name].append(before_ns)
                    left[name].append(after_ns)
        steps = {style: self._traced(operations[style]) for style in job.styles} if job.traced else {}
        cores, a_core_each = len(os.sched_getaffinity(0)), self._world.a_core_each
        return Seen(self._comm.rank, cores, a_core_each, self._comm.layout, entered, left, wrong, steps)

    def timed(self, call: Callable[[], object]) -> tuple[int, int]:
        """Make a call that all ranks begin together; return this rank's begin and end in ns of CLOCK_MONOTONIC."""
        self._out.fill(np.nan)
        self._control.barrier()
        before_ns = time.monotonic_ns()
        call()
        return before_ns, time.monotonic_ns()

    def _wrong(self) -> int:
        return 0 if self._right is None else int((self._out != self._right).sum())

    def _traced(self, call: Callable[[], object]) -> list[TimedStep]:
        steps: list[TimedStep] = []
        self._recorder.steps = steps
        try:
            self.timed(call)
        finally:
            self._recorder.steps = None
        return steps


def cut(job: Job, style: str) -> Tiling:
    """How a style of a job's operator is cut: as the job chose where it is fused, else by order and transport alone."""
    return job.choice if style == "fused" else Tiling(order=job.choice.order, transport=job.choice.transport)
