"""The work of ``cxlemu fused`` on this machine: it chooses a time scale, tunes and measures."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import click

from collectives.choices import FUSED_SHARE
from collectives.cli.fused import FusedFlags
from collectives.cli.fused_report import FusedSetup, Result, show
from collectives.cli.fused_tuning import Search, is_searched, kept, machine_of, searched, tiling_of
from collectives.defaults import DEFAULT_SEED
from collectives.fused import STYLES
from collectives.fused.choice import Operator, call_of
from collectives.fused.halves import communicating, computing
from collectives.fused.plans import build
from collectives.layouts import world_layout
from collectives.sweep.fused.measure import Job, Seen, cut, measure
from collectives.sweep.fused.seen import events, median_ns
from collectives.sweep.fused.tuned import TunedFile
from cxlemu.choices import TIME_SCALE_MAX, TIME_SCALE_MIN
from cxlemu.cli.console import console
from cxlemu.cli.output import write_json, write_output
from cxlemu.cli.params import given_flags
from cxlemu.cli.progress import spinning
from cxlemu.cost import CostModel
from cxlemu.engines.pace import Clocks, Pace, TimeScale
from cxlemu.engines.trace import perfetto
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError
from cxlemu.memory import BACKENDS, MemorySpec
from cxlemu.plan import Layout, Plan
from cxlemu.world import RankContext, launch
from cxlemu.world.topology_of import machine

T = TypeVar("T")
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "BLIS_NUM_THREADS")


def run(ctx: click.Context, asked: FusedFlags) -> None:
    tunes = is_searched(asked)
    for flag, wanted in (("--time-scale", asked.time_scale), ("--share", asked.share)):
        if wanted is not None and not asked.pace:
            raise ArgumentError(f"{flag} is for --pace: give both, or neither")
    if asked.share is not None and asked.time_scale is not None:
        raise ArgumentError("--share sets the time scale: leave out --time-scale")
    if not tunes and "budget_s" in given_flags(ctx):
        raise ArgumentError("--budget does nothing here: it is for --tune")
    for flag, value in (("--comm-rows", asked.comm_rows), ("--tile", asked.tile)):
        if value is not None and asked.style not in ("every", "fused"):
            raise ArgumentError(f"{flag} does nothing here: it cuts the style fused, not {asked.style}")
    m, n, k = asked.shape
    job = Job(
        Operator(asked.kind, m, n, k, asked.datatype),
        tiling_of(asked),
        styles=STYLES if asked.style == "every" else (asked.style,),
        iterations=asked.iters,
        warmup=asked.warmup,
        check=asked.check == "1",
        traced=True,
        region_bytes=asked.region_bytes,
    )
    if BACKENDS[asked.backend].on_devices:
        raise ArgumentError(
            f"fused runs make a pool of their own, which --backend {asked.backend} does not: it uses devices"
        )
    memory = MemorySpec(asked.backend, DEFAULT_SEED if BACKENDS[asked.backend].emulates_caches else None)
    topology = machine(asked.config, memory)
    layout = world_layout(topology, asked.ranks, region_bytes=asked.region_bytes)
    for each in STYLES:  # refuses what cannot work before anything is made
        build(layout, call_of(job.operator, each, asked.ranks, cut(job, each))).part(0)
    if asked.pace:
        Clocks.of(topology, asked.ranks)  # the same, for its fabric
    for name in BLAS_THREADS:
        os.environ.setdefault(name, "1")
    setup = FusedSetup(job, topology, asked.ranks, memory, blas_threads=os.environ[BLAS_THREADS[0]])
    known = None
    if asked.tuned_file is not None:
        scaled = f"share {asked.share or FUSED_SHARE:g}" if asked.time_scale is None else f"scale {asked.time_scale:g}"
        known = TunedFile(asked.tuned_file, machine_of(setup, scaled if asked.pace else "none"), asked.ranks)
    run = partial(_measured, setup, asked.deadline_s)
    out = console()
    how = "as given, or by default"
    with spinning("measuring", out) as now:
        scale, modelled_ns = None, 0.0
        if asked.pace:
            modelled_ns = _modelled_ns(setup, layout, communicating)
            given = None if asked.time_scale is None else TimeScale(asked.time_scale, "given")
            scale = given or _suitable(run, setup, layout, asked.share or FUSED_SHARE)
        paced = None if scale is None else Pace(scale.value)
        if tunes:
            search = partial(
                searched,
                Search(job, asked.ranks, asked.budget_s),
                lambda main: _launched(setup, asked.deadline_s, main, paced),
                lambda what: now(f"tuning: {what}"),
            )
            tuning, how = kept(known, job.operator, search)
            job = replace(job, choice=tuning.choice)
            now("measuring")
        seen = run(job, paced)
    setup = replace(setup, job=job, pace=scale, how=how)
    result = Result(setup, seen, None if scale is None else modelled_ns * scale.value)
    show(result, out)
    write_json(asked.json_file, result.document())
    if asked.trace_file is not None:
        write_output("--trace", asked.trace_file, perfetto(events(seen, job)))
    ctx.exit(1 if result.wrong else 0)


def _measured(setup: FusedSetup, deadline_s: float, job: Job, pace: Pace | None = None) -> list[Seen]:
    return _launched(setup, deadline_s, partial(measure, job=job), pace)


def _launched(setup: FusedSetup, deadline_s: float, main: Callable[[RankContext], T], pace: Pace | None) -> list[T]:
    return launch(
        main,
        ranks=setup.ranks,
        topology=setup.topology,
        memory=setup.memory,
        how="processes",
        deadline_s=deadline_s,
        pace=pace,
        heap_bytes="cards",
    )


def _modelled_ns(setup: FusedSetup, layout: Layout, half: Callable[[Plan], Plan]) -> float:
    """What one half of the unfused call takes by the model, in ns: communication alone, or the product alone."""
    call = call_of(setup.job.operator, "unfused", setup.ranks, cut(setup.job, "unfused"))
    plan = half(build(layout, call))
    return max(simulate(CostModel.of(setup.topology, setup.ranks), [VirtualCall(plan)], warm=True).time_ns, 1)


def _suitable(run: Callable[[Job], list[Seen]], setup: FusedSetup, layout: Layout, share: float) -> TimeScale:
    """Choose a time scale: that with which communication takes a share of what the product takes here.

    Where the topology's accelerator is to compute, it is that with which this machine's product takes a share of what
    the accelerator's takes.
    """
    product_ns = median_ns(run(replace(setup.job, styles=(), check=False, traced=False)), "gemm")
    if setup.topology.accelerator is None:
        value = share * product_ns / _modelled_ns(setup, layout, communicating)
        reason = f"communication takes {share:g} of the product's time here"
    else:
        value = product_ns / (share * _modelled_ns(setup, layout, computing))
        reason = f"the product takes {share:g} of the modelled time of an {setup.topology.accelerator}"
    return TimeScale(min(max(value, TIME_SCALE_MIN), TIME_SCALE_MAX), f"chosen: {reason}")
