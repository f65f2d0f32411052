"""What ``cxlemu simulate training`` does: simulates a step on each fabric, and prints its bill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table

from collectives.cli.simulate_failures import failed_ways
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.output import check_output, write_json, write_output
from cxlemu.cli.progress import counting, spinning
from cxlemu.engines.trace import perfetto
from cxlemu.errors import ArgumentError, CutOffError
from cxlemu.topology import Accelerator, Topology
from cxlemu.topology.failures import Failure
from cxlemu.topology.provenance import KINDS, Provenances
from cxlemu.units import counted, format_bytes
from cxlemu.version import __version__
from studies.training.durations import LEVELS
from studies.training.language_model import LanguageModel
from studies.training.machine import TrainingMachine
from studies.training.offload import offload_to
from studies.training.parallelism import Parallelism
from studies.training.step import TrainingStep, train
from studies.training.symmetric import fabric_of
from studies.training.timeline import events

TRACED_OPERATIONS_MAX = 300_000


def run(
    model: str,
    parallel: str,
    config: str,
    against: str | None,
    inside: str | None,
    ranks: int | None,
    accelerator: str,
    batch: int | None,
    microbatch: int,
    recompute: str,
    offload: str | None,
    fails: tuple[str, ...],
    json_file: Path | None,
    trace_file: Path | None,
) -> None:
    """Run ``cxlemu simulate training``; the arguments are the command's flags.

    Raises:
        ArgumentError: A flag does not fit, or a file cannot be written.
        ConfigError: A topology, model or accelerator is wrong.
        CutOffError: Failures leave no way that the step needs.
    """
    check_output("--trace", trace_file)
    shape = LanguageModel.load(model)
    if batch is not None:
        shape = shape.varied(batch_sequences=batch)
    topology = Topology.load(config)
    ranks = ranks or topology.host_count * topology.hosts.ranks_per_host
    how = Parallelism.parse(parallel, ranks)
    computer = Accelerator.load(accelerator)
    cluster = None if inside is None else Topology.load(inside)
    failures = sorted((Failure.parse(text, topology) for text in fails), key=lambda its: its.at_ns)
    fabrics = [fabric_of(topology, how.data, sharing=how.tensor)]
    if against is not None:
        fabrics.append(fabric_of(Topology.load(against), how.data, sharing=how.tensor))
    steps, interruption = [], Interruption()
    with interruption:
        for fabric in counting(fabrics, "simulating fabrics", len(fabrics)):
            machine = TrainingMachine(
                computer,
                fabric,
                None if cluster is None else fabric_of(cluster, how.tensor),
                1 if cluster is None else cluster.host_count * cluster.hosts.ranks_per_host,
                None if offload is None else offload_to(offload, topology, ranks),
            )
            steps.append(train(shape, how, machine, microbatch=microbatch, recompute=recompute))
        if failures:
            with spinning("simulating what fails"):
                steps.insert(1, _failing(steps[0], topology, failures, microbatch, recompute))
    if not steps:
        raise KeyboardInterrupt  # nothing ended that could be kept
    out = console()
    for line in _header(steps[0], topology, recompute, microbatch):
        print_wrapped(out, f"# {line}", indent="#   ")
    out.print(_table(steps), soft_wrap=False)
    for line in failed_ways(topology, ranks, failures):
        print_wrapped(out, f"# {line}", indent="#   ")
    for line in _footer(steps, failing=bool(failures) and not interruption.happened):
        print_wrapped(out, line)
    document = _document(steps, recompute, microbatch)
    write_json(json_file, document | {"interrupted": interruption.happened})
    if trace_file is not None:
        if len(steps[0].timeline.operations) > TRACED_OPERATIONS_MAX:
            raise ArgumentError(f"--trace takes {TRACED_OPERATIONS_MAX} operations at most: take fewer microbatches")
        write_output("--trace", trace_file, perfetto(events(steps[0].timeline)))
    left = len(fabrics) + bool(failures) - len(steps)
    interruption.exit(click.get_current_context(), 0, f"{counted(left, 'step')} not simulated")


def _failing(
    usual: TrainingStep, topology: Topology, failures: Sequence[Failure], microbatch: int, recompute: str
) -> TrainingStep:
    """Simulate the same step, in which every collective that begins after a failure takes the ways that are left."""
    later = []
    for at_ns in sorted({failure.at_ns for failure in failures if failure.at_ns < usual.time_ns}):
        lost = [failure for failure in failures if failure.at_ns <= at_ns]
        later.append((at_ns, replace(usual.machine, between=fabric_of(topology, usual.parallelism.data, lost))))
    try:
        its = train(
            usual.model, usual.parallelism, usual.machine, microbatch=microbatch, recompute=recompute, later=later
        )
    except CutOffError as error:
        why = f", which the step needs: {', '.join(map(str, failures))}"
        raise CutOffError(error.host, error.card, why) from None
    return replace(its, machine=replace(usual.machine, between=fabric_of(topology, usual.parallelism.data, failures)))


def _header(step: TrainingStep, topology: Topology, recompute: str, microbatch: int) -> list[str]:
    model, machine = step.model, step.machine
    batch = f"{counted(model.batch_sequences, 'sequence')} of {counted(model.sequence, 'token')}"
    sequences = f"{batch}, {step.microbatches} x {microbatch} a rank"
    room = machine.accelerator.memory_bytes
    fits = "" if step.memory_bytes <= room else ": does not fit"
    provenance = (model.provenance, machine.accelerator.provenance, topology.provenance)
    return [
        f"cxlemu       {__version__}: what a model says, the same on every machine",
        f"model        {model.name}, {model.parameters / 1e9:.4g} billion parameters; {sequences}",
        f"parallelism  {step.parallelism}, recomputing {recompute}",
        f"accelerator  {step.parallelism.ranks} x {machine.accelerator.name}",
        f"memory       {format_bytes(step.memory_bytes)} of {format_bytes(room)} on the fullest{fits}",
        f"figures      {_kinds(provenance)}",
    ]


def _kinds(all_provenance: tuple[Provenances, ...]) -> str:
    kinds = [standing.kind for provenance in all_provenance for standing in provenance.values()]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in KINDS if kind in kinds)


def _table(steps: list[TrainingStep]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("a step's time", no_wrap=True)
    table.add_column("where", no_wrap=True)
    for step in steps:
        table.add_column(f"{step.machine.between.name}\nms", justify="right", no_wrap=True)
        table.add_column("\n%", justify="right", no_wrap=True)
    for kind, where in LEVELS.items():
        if any(step.billed_ns.get(kind) for step in steps):
            cells = [_cells(step.billed_ns.get(kind, 0), step) for step in steps]
            table.add_row(kind, where, *(cell for pair in cells for cell in pair))
    table.add_section()
    table.add_row("all", "", *(cell for step in steps for cell in _cells(step.time_ns, step)), style="bold")
    return table


def _cells(ns: float, step: TrainingStep) -> tuple[str, str]:
    return f"{ns / 1e6:.1f}", f"{100 * ns / step.time_ns:.0f}"


def _footer(steps: list[TrainingStep], *, failing: bool) -> list[str]:
    lines = ["", "Communication is what shows of it: what passes behind computing is not billed."]
    for step in steps:
        rate = step.tokens / (step.time_ns / 1e9)
        name = step.machine.between.name
        lines.append(f"{name}: {rate:,.0f} tokens/s, {100 * step.utilization:.1f}% of the peak in model FLOPs")
        for fabric in filter(None, (step.machine.between, step.machine.inside)):
            if plans := ", ".join(f"{collective} as {plan}" for collective, plan in fabric.chosen.items()):
                lines.append(f"  plans on {fabric.name}: {plans}")
        if line := step.machine.between.line(step.parallelism.data):
            lines.append(f"  collectives of {counted(step.parallelism.data, 'rank')} follow {line}")
    if failing:
        before, after = (step.time_ns / 1e6 for step in steps[:2])
        lines.append(f"What fails takes the step from {before:.1f} to {after:.1f} ms: {after / before - 1:+.1%}.")
    if len(steps) > 1 + failing:
        ours, other = steps[0], steps[-1]
        lines.append(f"{ours.machine.between.name} takes a step {other.time_ns / ours.time_ns:.2f} times as fast.")
    return lines


def _document(steps: list[TrainingStep], recompute: str, microbatch: int) -> dict[str, Any]:
    first = steps[0]
    return {
        "version": __version__,
        "model": first.model.document(),
        "accelerator": first.machine.accelerator.name,
        "parallelism": str(first.parallelism),
        "ranks": first.parallelism.ranks,
        "microbatch_sequences": microbatch,
        "recompute": recompute,
        "memory_bytes": first.memory_bytes,
        "memory_fits": first.memory_bytes <= first.machine.accelerator.memory_bytes,
        "steps": [
            {
                "fabric": step.machine.between.name,
                "offload": step.machine.offload.name if step.machine.offload else None,
                "time_ns": step.time_ns,
                "tokens_per_s": step.tokens / (step.time_ns / 1e9),
                "utilization": step.utilization,
                "billed_ns": {kind: step.billed_ns.get(kind, 0.0) for kind in LEVELS},
            }
            for step in steps
        ],
    }
