"""What ``cxlemu simulate trace`` does: replays a trace, and prints what its calls took."""

from collections import defaultdict
from typing import Any

import click
from rich import box
from rich.table import Table
from rich.text import Text

from cxlemu.chakra.workload import ChakraCollective, Computing, load
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.output import check_output, read_json, write_json, write_output
from cxlemu.cli.progress import spinning
from cxlemu.engines.trace import perfetto
from cxlemu.errors import ArgumentError
from cxlemu.topology import Accelerator, Topology
from cxlemu.units import counted, format_bytes
from cxlemu.version import __version__
from studies.cli.simulate_trace import TraceFlags
from studies.traces import Called, Replay, replay

EVENTS_MAX = 300_000


def run(ctx: click.Context, asked: TraceFlags) -> None:
    check_output("--trace", asked.trace_file)
    topology = Topology.load(asked.config)
    computer = None if asked.accelerator is None else Accelerator.load(asked.accelerator)
    groups = None if asked.groups_file is None else read_json(asked.groups_file, "--groups")
    workload = load(
        asked.prefix, groups, str(asked.groups_file), without_missing=asked.skip_missing, ctrl_deps=asked.ctrl_deps
    )
    if asked.skip_missing and "without_missing" not in workload.changed_by:
        raise ArgumentError("--skip-missing does nothing here, because no node is missing")
    if asked.ctrl_deps and "ctrl_deps" not in workload.changed_by:
        raise ArgumentError("--ctrl-deps does nothing here, because no node has such dependencies")
    called = {step.what.group for steps in workload.ranks for step in steps if isinstance(step.what, ChakraCollective)}
    if groups is not None and called.isdisjoint(groups):
        raise ArgumentError("--groups does nothing here, because no node is called in one of its groups: leave it out")
    if computer is not None and not any(
        isinstance(step.what, Computing) and step.what.operations + step.what.moved_bytes and not step.what.on_cpu
        for steps in workload.ranks
        for step in steps
    ):
        raise ArgumentError("--accelerator does nothing here, because no node has operations for one: leave it out")
    with spinning(f"replaying {counted(workload.steps, 'node')}"):
        outcome = replay(workload, topology, computer)
    out = console()
    recorded = "computing as recorded" if computer is None else f"computing on {computer.name}"
    size = f"{counted(workload.steps, 'node')} of {counted(len(workload.ranks), 'rank')}"
    for line in (
        f"cxlemu   {__version__}: modelled figures, the same on every machine",
        f"config   {topology.name}: {topology.description}",
        f"trace    {asked.prefix.name}: {size}, {recorded}",
    ):
        print_wrapped(out, f"# {line}", indent="#          ")
    out.print(_each(outcome) if asked.verbose else _summary(outcome), soft_wrap=False)
    for line in _totals(outcome):
        print_wrapped(out, line)
    write_json(asked.json_file, _document(outcome, topology, asked.accelerator))
    if asked.trace_file is not None:
        if len(outcome.computed) + sum(len(call.members) for call in outcome.calls) > EVENTS_MAX:
            raise ArgumentError(f"--trace takes {EVENTS_MAX} events at most: replay a smaller workload")
        write_output("--trace", asked.trace_file, perfetto(outcome.events()))
    if not outcome.time_ns:
        print_wrapped(
            out, "Nothing was replayed: no node of this trace computes, or has anything to communicate.", "yellow"
        )
        ctx.exit(3)


def _summary(outcome: Replay) -> Table:
    """List collectives, with those that are alike in one row."""
    alike: defaultdict[tuple[str, int, int, str], list[Called]] = defaultdict(list)
    for call in outcome.calls:
        alike[call.what.name, call.what.nbytes, len(call.members), call.variant].append(call)
    table = _table("collective", "bytes\nper rank", "ranks", "variant", "calls", "each\nus", "all\nus", "waited\nus")
    for (name, nbytes, ranks, variant), calls in alike.items():
        took_ns = [call.end_ns - call.begin_ns for call in calls]
        waited_ns = sum(call.begin_ns - call.ready_ns for call in calls)
        each = f"{sum(took_ns) / len(took_ns) / 1e3:.1f}"
        all_of = f"{sum(took_ns) / 1e3:.1f}"
        table.add_row(name, format_bytes(nbytes), str(ranks), variant, str(len(calls)), each, all_of, _us(waited_ns))
    return table


def _each(outcome: Replay) -> Table:
    table = _table("collective", "bytes\nper rank", "ranks", "variant", "node", "begins\nus", "takes\nus", "waited\nus")
    for call in outcome.calls:
        size, ranks = format_bytes(call.what.nbytes), str(len(call.members))
        times = _us(call.begin_ns), _us(call.end_ns - call.begin_ns), _us(call.begin_ns - call.ready_ns)
        table.add_row(call.what.name, size, ranks, call.variant, Text(call.name), *times)
    return table


def _table(*heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in heads:
        left = head in ("collective", "variant", "node")
        table.add_column(head, justify="left" if left else "right", no_wrap=head != "node", overflow="fold")
    return table


def _us(ns: int) -> str:
    return f"{ns / 1e3:.1f}"


def _totals(outcome: Replay) -> list[str]:
    ranks = range(len(outcome.workload.ranks))
    slowest = max(ranks, key=outcome.exposed_ns)
    accesses_ns = outcome.accessing_ns(slowest)
    return [
        "",
        f"All together {_us(outcome.time_ns)} us.",
        f"Rank {slowest} has the most exposed communication: it computes {_us(outcome.computing_ns(slowest))} us "
        f"and communicates {_us(outcome.communicating_ns(slowest))} us, "
        f"{_us(outcome.exposed_ns(slowest))} us of it exposed."
        + f" It accesses the pool for {_us(accesses_ns)} us."
        * bool(accesses_ns),
    ]


def _document(outcome: Replay, topology: Topology, accelerator: str | None) -> dict[str, Any]:
    ranks = range(len(outcome.workload.ranks))
    return {
        "version": __version__,
        "config": topology.name,
        "accelerator": accelerator,
        "time_ns": outcome.time_ns,
        "ranks": [
            {
                "computing_ns": outcome.computing_ns(rank),
                "accessing_ns": outcome.accessing_ns(rank),
                "communicating_ns": outcome.communicating_ns(rank),
                "exposed_ns": outcome.exposed_ns(rank),
            }
            for rank in ranks
        ],
        "calls": [
            {
                "collective": call.what.name,
                "nbytes": call.what.nbytes,
                "group": call.what.group,
                "name": call.name,
                "ranks": list(call.members),
                "variant": call.variant,
                "ready_ns": call.ready_ns,
                "begin_ns": call.begin_ns,
                "end_ns": call.end_ns,
            }
            for call in outcome.calls
        ],
    }
