"""``cxlemu fused``: matrix products fused with communication, run on this machine, beside those that are not."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from collectives.cli.fused_options import RANKS_MAX, Dimensions
from collectives.cli.fused_report import Result, Setup, show
from collectives.cli.fused_tuning import Search, machine_of, refuse_given, tuned
from collectives.fused import ORDERS, STYLES
from collectives.fused.choice import Operator, Tiling, call_of
from collectives.fused.halves import communicating, computing
from collectives.fused.plans import build
from collectives.layouts import world_layout
from collectives.sweep.defaults import DEFAULT_SEED, REGION_BYTES
from collectives.sweep.fused.measure import Job, Seen, cut, measure
from collectives.sweep.fused.seen import events, median_ns
from collectives.sweep.fused.tuned import TunedFile
from cxlemu.choices import TIME_SCALE_MAX, TIME_SCALE_MIN
from cxlemu.cli.console import console
from cxlemu.cli.forms import engines
from cxlemu.cli.output import check_output, write_json, write_output
from cxlemu.cost import CostModel
from cxlemu.engines.pace import Clocks, Pace, TimeScale
from cxlemu.engines.trace import perfetto
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError
from cxlemu.memory import BACKENDS, MemorySpec
from cxlemu.plan import Layout, Plan
from cxlemu.plan.kernels import GEMM_DTYPES
from cxlemu.units import BytesParam, format_bytes
from cxlemu.world import RankContext, launch
from cxlemu.world.topology_of import machine

T = TypeVar("T")
SHARE = 0.5  # of communication, where its time scale is chosen: half as long as the product
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "BLIS_NUM_THREADS")


@click.command(cls=engines(virtual="collectives.cli.fused_virtual"))
@click.argument("kind", metavar="OPERATOR")
@click.option(
    "--engine",
    type=click.Choice(["native", "virtual"]),
    default="native",
    show_default=True,
    help="virtual: on modelled accelerators; see --engine virtual --help.",
)
@click.option("-n", "--ranks", type=click.IntRange(1, RANKS_MAX), default=2, show_default=True)
@click.option(
    "-s",
    "--shape",
    type=Dimensions("MxNxK"),
    default="2048x1024x1024",
    show_default=True,
    metavar="MxNxK",
    help="Of the whole product: A is M x K, B is K x N.",
)
@click.option("-d", "--datatype", type=click.Choice(GEMM_DTYPES), default="f32", show_default=True)
@click.option("--style", type=click.Choice(["every", *STYLES]), default="every", show_default=True)
@click.option("--comm-rows", type=click.IntRange(1), metavar="N", help="Rows of a communication tile.")
@click.option("--tile", type=Dimensions("ROWSxCOLS"), metavar="ROWSxCOLS", help="A compute tile.")
@click.option("--order", type=click.Choice(ORDERS), help=f"Who turns to whom.  [default: {ORDERS[0]}]")
@click.option("--transport", help="pull, or push: a copy for every reader.")
@click.option("--tune", "tunes", is_flag=True, help="Search tiles, order and transport for this shape first.")
@click.option(
    "--tuned",
    "tuned_file",
    type=click.Path(path_type=Path),
    help="As --tune, and keep what is found in this file, for this machine.",
)
@click.option(
    "--budget-s", type=click.FloatRange(0), default=60.0, show_default=True, help="How long --tune searches, about."
)
@click.option("--iters", type=click.IntRange(1), default=5, metavar="N", show_default=True, help="Timed calls.")
@click.option("-w", "--warmup", type=click.IntRange(0), default=1, show_default=True, help="Calls before them.")
@click.option(
    "-C", "--check", type=click.Choice(["0", "1"]), default="1", show_default=True, help="0: not the results."
)
@click.option("-c", "--config", help="A topology: a file or a name.  [default: six-cards]")
@click.option("--backend", type=click.Choice(list(BACKENDS)), default="emulated", show_default=True)
@click.option("--pace", is_flag=True, help="Communication takes the time of the modelled pool, times a scale.")
@click.option("--time-scale", type=float, metavar="X", help="[default: what --share makes it]")
@click.option(
    "--share",
    type=click.FloatRange(0.01, 100),
    metavar="X",
    help="Communication takes so many times what the product does; or the product, what the topology's accelerator "
    f"is to take.  [default: {SHARE:g}]",
)
@click.option(
    "--region-bytes",
    type=BytesParam(),
    default=format_bytes(REGION_BYTES).replace(" ", ""),
    show_default=True,
    help="The communicator's ring in the pool.",
)
@click.option("--deadline-s", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), help="Write when what happened, for Perfetto.")
@click.pass_context
def command(
    ctx: click.Context,
    kind: str,
    engine: str,
    ranks: int,
    shape: tuple[int, ...],
    datatype: str,
    style: str,
    comm_rows: int | None,
    tile: tuple[int, int] | None,
    order: str | None,
    transport: str | None,
    tunes: bool,
    tuned_file: Path | None,
    budget_s: float,
    iters: int,
    warmup: int,
    check: str,
    config: str | None,
    backend: str,
    pace: bool,
    time_scale: float | None,
    share: float | None,
    region_bytes: int,
    deadline_s: float,
    json_file: Path | None,
    trace_file: Path | None,
) -> None:
    """Run a matrix product that is fused with communication, tile by tile, beside those that are not.

    OPERATOR is all_gather_gemm, gemm_reduce_scatter or gemm_all_reduce. Styles: fused; medium, in which a shard is
    multiplied while the next one is on its way; unfused, the collective and then the product, or the other way round.
    Columns are FLUX's (arXiv 2406.06858): effective communication time ECT = T - T of the product alone, not split;
    overlap = 1 - ECT / ECT unfused, negative where fusing costs more than it hides. Ranks are processes.

    \b
    Examples:
      cxlemu fused all_gather_gemm --pace --tune
      cxlemu fused gemm_reduce_scatter -s 1024x1024x2048 --comm-rows 64 --tile 128x512 --pace --trace fused.json
      cxlemu fused gemm_all_reduce -n 4 -s 256x256x256 --json fused.json
      cxlemu fused all_gather_gemm --engine virtual -c nvlink-8xa100 --tune
    """
    for flag, file in (("--json", json_file), ("--trace", trace_file), ("--tuned", tuned_file)):
        check_output(flag, file)
    tunes = tunes or tuned_file is not None
    refuse_given(tunes, {"--comm-rows": comm_rows, "--tile": tile, "--order": order, "--transport": transport})
    if time_scale is not None and not pace:
        raise ArgumentError("--time-scale is for --pace: give both, or neither")
    if share is not None and (time_scale is not None or not pace):
        raise ArgumentError("--share is for --pace without --time-scale: it chooses that")
    m, n, k = shape
    job = Job(
        Operator(kind, m, n, k, datatype),
        Tiling(comm_rows, tile, order or ORDERS[0], transport),
        styles=STYLES if style == "every" else (style,),
        iterations=iters,
        warmup=warmup,
        check=check == "1",
        traced=True,
        region_bytes=region_bytes,
    )
    if BACKENDS[backend].on_devices:
        raise ArgumentError(f"fused runs make a pool of their own, which --backend {backend} does not: it uses devices")
    memory = MemorySpec(backend, DEFAULT_SEED if BACKENDS[backend].emulates_caches else None)
    topology = machine(config, memory)
    layout = world_layout(topology, ranks, region_bytes=region_bytes)
    for each in STYLES:  # refuses what cannot work before anything is made
        build(layout, call_of(job.operator, each, ranks, cut(job, each))).part(0)
    if pace:
        Clocks.of(topology, ranks)  # the same, for its fabric
    for name in BLAS_THREADS:
        os.environ.setdefault(name, "1")
    setup = Setup(job, topology, ranks, memory, blas_threads=os.environ[BLAS_THREADS[0]])
    known = None
    if tuned_file is not None:
        scaled = f"share {share or SHARE:g}" if time_scale is None else f"scale {time_scale:g}"
        known = TunedFile(tuned_file, machine_of(setup, scaled if pace else "none"), ranks)
    run = partial(_measured, setup, deadline_s)
    out = console()
    how = "as given, or by default"
    with out.status("measuring", spinner="line") as status:
        scale, modelled_ns = None, 0.0
        if pace:
            modelled_ns = _modelled_ns(setup, layout, communicating)
            given = None if time_scale is None else TimeScale(time_scale, "given")
            scale = given or _suitable(run, setup, layout, share or SHARE)
        paced = None if scale is None else Pace(scale.value)
        if tunes:
            found, how = tuned(
                Search(job, ranks, known, budget_s),
                lambda main: _launched(setup, deadline_s, main, paced),
                lambda what: status.update(f"tuning: {what}"),
            )
            job = replace(job, choice=found.choice)
            status.update("measuring")
        seen = run(job, paced)
    setup = replace(setup, job=job, pace=scale, how=how)
    result = Result(setup, seen, None if scale is None else modelled_ns * scale.value)
    show(result, out)
    write_json(json_file, result.document())
    if trace_file is not None:
        write_output("--trace", trace_file, perfetto(events(seen, job)))
    ctx.exit(1 if result.wrong else 0)


def _measured(setup: Setup, deadline_s: float, job: Job, pace: Pace | None = None) -> list[Seen]:
    return _launched(setup, deadline_s, partial(measure, job=job), pace)


def _launched(setup: Setup, deadline_s: float, main: Callable[[RankContext], T], pace: Pace | None) -> list[T]:
    return launch(
        main,
        ranks=setup.ranks,
        topology=setup.topology,
        memory=setup.memory,
        how="processes",
        deadline_s=deadline_s,
        pace=pace,
    )


def _modelled_ns(setup: Setup, layout: Layout, half: Callable[[Plan], Plan]) -> float:
    """Communication alone, or the product alone."""
    call = call_of(setup.job.operator, "unfused", setup.ranks, cut(setup.job, "unfused"))
    plan = half(build(layout, call))
    return max(simulate(CostModel.of(setup.topology, setup.ranks), [VirtualCall(plan)], warm=True).time_ns, 1)


def _suitable(run: Callable[[Job], list[Seen]], setup: Setup, layout: Layout, share: float) -> TimeScale:
    """With which communication takes a share of what the product takes here or, where the topology's accelerator is to
    compute, with which this machine's product takes a share of what that takes.
    """
    product_ns = median_ns(run(replace(setup.job, styles=(), check=False, traced=False)), "gemm")
    if setup.topology.accelerator is None:
        value = share * product_ns / _modelled_ns(setup, layout, communicating)
        reason = f"communication is to take {share:g} of what the product takes here"
    else:
        value = product_ns / (share * _modelled_ns(setup, layout, computing))
        reason = f"the product takes {share:g} of what an {setup.topology.accelerator} is to take"
    return TimeScale(min(max(value, TIME_SCALE_MIN), TIME_SCALE_MAX), f"chosen: {reason}")
