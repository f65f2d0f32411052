"""The work of ``cxlemu fused --engine virtual``: it tunes, simulates every style, and compares."""

from dataclasses import asdict
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from collectives.cli.fused import VirtualFlags
from collectives.cli.fused_report import NAMES
from collectives.cli.fused_tuning import is_searched, kept, tiling_of
from collectives.fused import STYLES
from collectives.fused.choice import Operator, Tiling
from collectives.sweep.fused.metrics import Metrics
from collectives.sweep.fused.tuned import TunedFile, modelled
from collectives.sweep.fused.tuner import Tuned, tune
from collectives.sweep.fused.virtual import Simulator
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.output import write_json, write_output
from cxlemu.cli.progress import spinning
from cxlemu.engines.trace import events, perfetto
from cxlemu.errors import ArgumentError
from cxlemu.plan import Plan
from cxlemu.topology import Topology
from cxlemu.topology.provenance import kinds_of
from cxlemu.version import __version__

TRACED_INSTRUCTIONS_MAX = 300_000
COLUMNS = "  {:<32} {:>10} {:>10} {:>8}"


def run(ctx: click.Context, asked: VirtualFlags) -> None:
    tunes = is_searched(asked)
    topology = Topology.load(asked.config)
    simulator = Simulator(topology, asked.ranks or topology.place_count)
    m, n, k = asked.shape
    operator = Operator(asked.kind, m, n, k, asked.datatype)
    out = console()
    tuned, how = None, "as given, or by default"
    choice = simulator.resolved(operator, tiling_of(asked))
    if tunes:
        path = asked.tuned_file
        file = None if path is None else TunedFile(path, modelled(topology), simulator.ranks)
        fused_ns, least_ns = partial(simulator.fused_ns, operator), partial(simulator.least_ns, operator)
        with spinning("tuning", out):
            tuned, how = kept(file, operator, lambda: tune(operator, simulator.ranks, fused_ns, least_ns))
        choice = tuned.choice
    with spinning("simulating", out):
        metrics = simulator.metrics(operator, choice)
    _show(out, simulator, operator, choice, how, metrics)
    write_json(asked.json_file, _document(simulator, operator, choice, tuned, metrics))
    if asked.trace_file is not None:
        write_output("--trace", asked.trace_file, _trace(simulator, operator, choice))


def _show(out: Console, simulator: Simulator, operator: Operator, choice: Tiling, how: str, metrics: Metrics) -> None:
    topology, accelerator = simulator.topology, simulator.model.accelerator
    assert accelerator is not None
    for line in (
        f"cxlemu    {__version__}, engine virtual: modelled times, the same on every machine",
        f"operator  {operator}",
        f"tiles     {choice} (rows, tile, order, transport): {how}",
        f"ranks     {topology.describe_placement(simulator.ranks)}, an {accelerator.name} each",
        f"config    {topology.title}",
        f"figures   {kinds_of(topology.provenance, accelerator.provenance)}",
    ):
        print_wrapped(out, f"# {line}", indent="#           ")
    out.print(Text("#"))
    out.print(Text("#" + COLUMNS.format("", "time (us)", "ECT (us)", "overlap")[1:]))
    for name, title in NAMES.items():
        ect, overlap = "", ""
        if name in STYLES:
            ect = f"{metrics.ect_ns(name) / 1e3:.0f}"
            efficiency = metrics.overlap_efficiency(name)
            overlap = "n/a" if efficiency is None else f"{100 * efficiency:.0f}%"
        out.print(Text(COLUMNS.format(title, f"{getattr(metrics, f'{name}_ns') / 1e3:.0f}", ect, overlap).rstrip()))
    out.print(Text("#"))
    print_wrapped(
        out,
        f"# max(T_gemm, T_comm) / T_fused {metrics.sol:.2f}, tiles slow the product down {metrics.gemm_slowdown:.2f} "
        f"times, a doorbell is waited for {metrics.wait_ns / 1e3:.1f} us on average",
        indent="#   ",
    )


def _document(
    simulator: Simulator, operator: Operator, choice: Tiling, tuned: Tuned | None, metrics: Metrics
) -> dict[str, Any]:
    accelerator, plan = simulator.model.accelerator, simulator.plan(operator, "fused", choice)
    assert accelerator is not None
    return {
        "version": __version__,
        "engine": "virtual",
        "operator": asdict(operator),
        "choice": asdict(choice),
        "tried": None if tuned is None else tuned.tried,
        "ranks": simulator.ranks,
        "config": simulator.topology.document(),
        "accelerator": accelerator.model_dump(exclude_none=True),
        "metrics": metrics.document(),
        "waits": None if _is_long(plan) else [wait.document() for wait in simulator.waits(plan)],
    }


def _is_long(plan: Plan) -> bool:
    return sum(part.instruction_count for part in plan.parts) > TRACED_INSTRUCTIONS_MAX


def _trace(simulator: Simulator, operator: Operator, choice: Tiling) -> bytes:
    plan = simulator.plan(operator, "fused", choice)
    if _is_long(plan):
        raise ArgumentError(
            f"{operator}: more than {TRACED_INSTRUCTIONS_MAX} instructions are too many for a trace: take larger tiles"
        )
    return perfetto(events(simulator.run(plan, log=True)))
