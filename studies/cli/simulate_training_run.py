"""What ``cxlemu simulate training`` does: simulates a step on each fabric, and prints its bill."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
from rich import box
from rich.table import Table

from collectives.cli.simulate_failures import failed_ways, too_late
from collectives.sweep.virtual.notes import flat_notes, placement_notes
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.output import check_output, write_json, write_output
from cxlemu.cli.progress import counting, spinning
from cxlemu.engines.trace import perfetto
from cxlemu.errors import ArgumentError, CutOffError
from cxlemu.topology import Accelerator, Topology
from cxlemu.topology.differences import against, differences, spread
from cxlemu.topology.failures import Failure
from cxlemu.topology.provenance import kinds_of
from cxlemu.units import counted, format_bytes
from cxlemu.version import __version__
from studies.cli.simulate_beside import run_beside
from studies.cli.simulate_training import TrainingFlags
from studies.training.clusters import Clustered
from studies.training.durations import LEVELS
from studies.training.experts import Router, read_histogram
from studies.training.fabrics import TrainingFabric
from studies.training.language_model import LanguageModel
from studies.training.machine import TrainingMachine
from studies.training.offload import offload_to
from studies.training.parallelism import Parallelism
from studies.training.step import TrainingStep, train
from studies.training.symmetric import Symmetric, fabric_of
from studies.training.timeline import events

TRACED_OPERATIONS_MAX = 300_000


def run(ctx: click.Context, asked: TrainingFlags) -> None:
    if asked.beside is not None:
        run_beside(ctx, "training", asked)
        return
    ranks = asked.ranks
    check_output("--trace", asked.trace_file)
    shape = LanguageModel.load(asked.model)
    if asked.batch is not None:
        shape = shape.varied(batch_sequences=asked.batch)
    topology = Topology.load(asked.config)
    ranks = ranks or topology.host_count * topology.hosts.ranks_per_host
    how = Parallelism.parse(asked.parallel, ranks)
    if asked.inside is not None and how.tensor * how.expert * how.context == 1:
        raise ArgumentError(f"--inside does nothing here, because --parallel {how} has no tp, ep or cp: leave it out")
    router = _router(asked, shape)
    computer = Accelerator.load(asked.accelerator)
    cluster = None if asked.inside is None else Topology.load(asked.inside)
    failures = sorted((Failure.parse(text, topology) for text in asked.fails), key=lambda failure: failure.at_ns)
    fabrics = [fabric_of(topology, how.replicas, sharing=how.tensor)]
    others = against(topology, asked.against)
    fabrics += [fabric_of(other, how.replicas, sharing=how.tensor) for other in others]
    steps, interruption = [], Interruption()
    with interruption:
        for fabric in counting(fabrics, "simulating fabrics", len(fabrics)):
            machine = TrainingMachine(
                computer,
                fabric,
                None if cluster is None else fabric_of(cluster, how.tensor),
                1 if cluster is None else cluster.host_count * cluster.hosts.ranks_per_host,
                None if asked.offload is None else offload_to(asked.offload, topology, ranks),
            )
            steps.append(
                train(shape, how, machine, microbatch=asked.microbatch, recompute=asked.recompute, router=router)
            )
        if failures:
            with spinning("simulating what fails"):
                steps.insert(1, _failing(steps[0], topology, failures, asked.microbatch, asked.recompute, router))
    if not steps:
        write_json(asked.json_file, {"steps": [], "interrupted": True})
        raise KeyboardInterrupt
    out = console()
    for line in _header(steps[0], topology, asked.recompute, asked.microbatch):
        print_wrapped(out, f"# {line}", indent="#   ")
    out.print(_table(steps), soft_wrap=False)
    for line in failed_ways(topology, ranks, failures):
        print_wrapped(out, f"# {line}", indent="#   ")
    for line in _footer(steps, failing=bool(failures) and not interruption.happened):
        print_wrapped(out, line)
    machines = zip([topology, *others], fabrics, strict=True)
    notes = [note for machine, fabric in machines for note in _notes(machine, fabric, how)]
    for note in notes:
        print_wrapped(out, f"Note: {note}.", "yellow")
    if len(others) > 1:
        print_wrapped(out, "The other fabrics differ in:")
        for line in differences(others):
            print_wrapped(out, f"  {line}", indent="    ")
    document = _document(steps, asked.recompute, asked.microbatch)
    document |= {"notes": notes} if notes else {}
    write_json(asked.json_file, document | {"interrupted": interruption.happened})
    if asked.trace_file is not None:
        if len(steps[0].timeline.operations) > TRACED_OPERATIONS_MAX:
            raise ArgumentError(f"--trace takes {TRACED_OPERATIONS_MAX} operations at most: take fewer microbatches")
        write_output("--trace", asked.trace_file, perfetto(events(steps[0].timeline)))
    never = [its for its in failures if too_late([its], steps[0].time_ns / 1e3)]
    if never:
        its = ", ".join(map(str, never))
        print_wrapped(out, f"--fail: nothing failed before the end of the step: {its}", "yellow")
    unhurt = bool(failures) and not never and not interruption.happened and steps[1].time_ns == steps[0].time_ns
    if unhurt:
        print_wrapped(out, f"--fail: the step takes no longer: it needs none of {', '.join(asked.fails)}", "yellow")
    left = len(fabrics) + bool(failures) - len(steps)
    interruption.exit(
        click.get_current_context(), 3 if never or unhurt else 0, f"{counted(left, 'step')} not simulated"
    )


def _notes(topology: Topology, fabric: TrainingFabric, how: Parallelism) -> list[str]:
    notes = list(placement_notes(topology, how.ranks))
    if isinstance(fabric, Symmetric):
        notes += flat_notes(topology, how.replicas * how.tensor, how.tensor)
    if how.tensor > 1 and not isinstance(fabric, Clustered):
        notes.append(
            f"{topology.name}: of {how.tensor} tensor ranks one talks over it, as if alone; the others send as much at "
            f"the same time, which costs nothing only where each has links of its own"
        )
    return notes


def _router(asked: TrainingFlags, model: LanguageModel) -> Router:
    given = (
        ("--capacity-factor", asked.capacity_factor),
        ("--skew", asked.skew),
        ("--seed", asked.seed),
        ("--histogram", asked.histogram),
    )
    for name, value in given:
        if value is not None and not model.expert_blocks:
            raise ArgumentError(f"{name} does nothing here: {model.name} has no experts")
        if asked.histogram is not None and value is not None and name in ("--skew", "--seed"):
            raise ArgumentError(f"{name} does nothing with --histogram, which sets each expert's tokens")
    histogram = None if asked.histogram is None else read_histogram(asked.histogram)
    return Router(asked.skew or 0.0, asked.capacity_factor, 1 if asked.seed is None else asked.seed, histogram)


def _failing(
    usual: TrainingStep,
    topology: Topology,
    failures: Sequence[Failure],
    microbatch: int,
    recompute: str,
    router: Router,
) -> TrainingStep:
    """Simulate the same step, in which every collective that begins after a failure takes the ways that are left."""
    later = []
    for at_ns in sorted({failure.at_ns for failure in failures if failure.at_ns < usual.time_ns}):
        lost = [failure for failure in failures if failure.at_ns <= at_ns]
        later.append((at_ns, replace(usual.machine, between=fabric_of(topology, usual.parallelism.replicas, lost))))
    try:
        step = train(
            usual.model,
            usual.parallelism,
            usual.machine,
            microbatch=microbatch,
            recompute=recompute,
            router=router,
            later=later,
        )
    except CutOffError as error:
        why = f", which the step needs: {', '.join(map(str, failures))}"
        raise CutOffError(error.host, error.card, why) from None
    return replace(
        step, machine=replace(usual.machine, between=fabric_of(topology, usual.parallelism.replicas, failures))
    )


def _header(step: TrainingStep, topology: Topology, recompute: str, microbatch: int) -> list[str]:
    model, machine = step.model, step.machine
    batch = f"{counted(model.batch_sequences, 'sequence')} of {counted(model.sequence, 'token')}"
    sequences = f"{batch}, {step.microbatches} x {microbatch} a rank"
    room = machine.accelerator.memory_bytes
    fits = "" if _fits(step) else ": does not fit"
    return [
        f"cxlemu       {__version__}: modelled figures, the same on every machine",
        f"model        {model.name}, {model.parameters / 1e9:.4g} billion parameters; {sequences}",
        f"parallelism  {step.parallelism}, recomputing {recompute}",
        *_experts(step),
        f"accelerator  {step.parallelism.ranks} x {machine.accelerator.name}",
        f"memory       {format_bytes(step.memory_bytes)} of {format_bytes(room)} on the fullest{fits}",
        f"figures      {kinds_of(model.provenance, machine.accelerator.provenance, topology.provenance)}",
    ]


def _fits(step: TrainingStep) -> bool:
    return step.memory_bytes <= step.machine.accelerator.memory_bytes


def _experts(step: TrainingStep) -> list[str]:
    model = step.model
    if not model.expert_blocks:
        return []
    dropped = f", {step.load.dropped:.1%} of the tokens dropped" if step.load.dropped else ""
    return [
        f"experts      {model.active_experts} of {model.experts} for each token in {model.expert_blocks} of "
        f"{counted(model.blocks, 'block')}; the busiest rank gets {step.load.busiest:.2f} times the mean{dropped}"
    ]


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
    lines = ["", "Communication counts only its exposed part, which computing does not hide."]
    for step in steps:
        rate = step.tokens / (step.time_ns / 1e9)
        name = step.machine.between.name
        fits = "" if _fits(step) else ", if its memory sufficed"
        lines.append(f"{name}: {rate:,.0f} tokens/s, {100 * step.utilization:.1f}% of the peak in model FLOPs{fits}")
        for fabric in filter(None, (step.machine.between, step.machine.inside)):
            if plans := ", ".join(f"{collective} as {plan}" for collective, plan in fabric.chosen.items()):
                lines.append(f"  plans on {fabric.name}: {plans}")
        if line := step.machine.between.line(step.parallelism.replicas):
            lines.append(f"  collectives of {counted(step.parallelism.replicas, 'rank')} follow {line}")
    if failing:
        before, after = (step.time_ns / 1e6 for step in steps[:2])
        lines.append(f"What fails takes the step from {before:.1f} to {after:.1f} ms: {after / before - 1:+.1%}.")
    ours, others = steps[0], steps[1 + failing :]
    names, ratios = [step.machine.between.name for step in others], [step.time_ns / ours.time_ns for step in others]
    if len(others) == 1:
        name, times = (ours.machine.between.name, ratios[0]) if ratios[0] >= 1 else (names[0], 1 / ratios[0])
        lines.append(f"{name} takes a step {times:.2f} times as fast.")
    elif others:
        lines.append(f"Compared with {ours.machine.between.name}, a step takes {spread(names, ratios)}.")
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
        "busiest_experts": first.load.busiest,
        "dropped_tokens": first.load.dropped,
        "memory_bytes": first.memory_bytes,
        "memory_fits": _fits(first),
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
