"""What ``cxlemu simulate serving`` does: serves the requests with each place of the store, and prints the times."""

from collections.abc import Callable, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from cxlemu.cli.console import console, figure_table, print_wrapped
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.output import check_output, write_json, write_output
from cxlemu.cli.params import given_flags
from cxlemu.cli.progress import spinning
from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology
from cxlemu.topology.intervals import Interval
from cxlemu.topology.provenance import kinds_of
from cxlemu.units import counted, format_bytes
from cxlemu.version import __version__
from studies.cli.picture import check_picture, save
from studies.cli.serving_setups import requests_of, setups_of
from studies.cli.simulate_beside import run_beside
from studies.cli.simulate_serving import ServingFlags
from studies.cli.simulate_serving_plot import draw
from studies.serving.events import Incident
from studies.serving.outcome import PERCENTILES, SATURATED, ServingOutcome, Spread
from studies.serving.requests import ServingRequest, described, dumped, multiplied, reusable_tokens
from studies.serving.simulation import ServingSetup, simulate, with_hosts
from studies.serving.varied import answer_intervals, figures_of

BUSIEST = 5


def run(ctx: click.Context, asked: ServingFlags) -> None:
    if asked.beside is not None:
        run_beside(ctx, "serving", asked)
        return
    if asked.plot_file is not None:
        check_picture("--plot", asked.plot_file)
    check_output("--write-trace", asked.written)
    topology = Topology.load(asked.config)
    if asked.sweep is not None and asked.hosts is not None:
        raise ArgumentError("--hosts does not go with --sweep, which sets the numbers of hosts")
    if asked.sweep is not None and asked.intervals:
        raise ArgumentError("--intervals does not go with --sweep: take --hosts")
    if asked.hosts is not None:
        topology = with_hosts(topology, asked.hosts)
    if asked.trace is not None:
        for name in ("rate", "seed", "workload"):
            if name in given_flags(ctx):
                raise ArgumentError(f"--{name} only applies to generated requests: a trace has its own")
    requests = requests_of(asked, 1 if asked.sweep else topology.host_count)
    setups = setups_of(asked, topology)
    out = console()
    for line in _header(setups[0], requests, asked):
        print_wrapped(out, f"# {line}", indent="#              ")
    for setup in setups if asked.intervals else ():
        figures_of(setup)
    outcomes: list[ServingOutcome] = []
    ranges: list[dict[str, Interval]] = []
    interruption = Interruption()
    with interruption, spinning("serving", out) as saying:
        for setup in setups:
            what = f"{setup.place}, {counted(setup.topology.host_count, 'host')}"
            mine = multiplied(requests, setup.topology.host_count) if asked.sweep else requests
            done = simulate(setup, mine, lambda through, what=what: saying(f"{what}: {through} served"))  # type: ignore[misc]
            outcomes.append(ServingOutcome.of(done))
            if asked.intervals:
                report = lambda number, of, what=what: saying(f"{what}: variation {number} of {of}")  # noqa: E731
                ranges.append(answer_intervals(setup, mine, report))
    if not outcomes:
        write_json(asked.json_file, _document([], setups[0], requests) | {"interrupted": True})
        raise KeyboardInterrupt
    out.print(_swept(outcomes) if asked.sweep else _table(outcomes), soft_wrap=False)
    if asked.sweep:
        print_wrapped(
            out, "TTFT: time to first token; TPOT: time per output token; busiest: of the time, a link or card"
        )
    if asked.verbose:
        for outcome in outcomes:
            print_wrapped(out, f"{_named(outcome)}: {_links(outcome)}", indent="  ")
    for outcome, spans in zip(outcomes, ranges, strict=False):  # after Ctrl-C the last one has none
        for name, spread in spans.items():
            what, _, unit = name.rpartition(", ")
            print_wrapped(out, f"{outcome.run.setup.place}, {what}: {spread.describe(unit)}", indent="  ")
    complaints = _complaints(outcomes, requests, setups[0].incidents, asked.places or ())
    if asked.sweep is not None:
        complaints += _saturation(out, outcomes, asked)
    for line in complaints:
        print_wrapped(out, line, "yellow")
    document = _document(outcomes, setups[0], requests) | {"interrupted": interruption.happened}
    for run_document, spans in zip(document["runs"], ranges, strict=False):
        run_document["intervals"] = {name: spread._asdict() for name, spread in spans.items()}
    write_json(asked.json_file, document)
    if asked.written is not None:
        write_output("--write-trace", asked.written, dumped(requests))
    if asked.plot_file is not None:
        save(draw(outcomes), "--plot", asked.plot_file)
    left = len(setups) - len(outcomes)
    interruption.exit(ctx, 3 if complaints else 0, f"{counted(left, 'run')} not finished")


def _header(setup: ServingSetup, requests: Sequence[ServingRequest], asked: ServingFlags) -> list[str]:
    iterations, topology = setup.iterations, setup.topology
    instances = topology.host_count * topology.hosts.ranks_per_host // iterations.ranks
    apart = f", {setup.prefill} of them for prompts alone" if setup.prefill else ""
    held = format_bytes(iterations.blocks * iterations.block_bytes)
    return [
        f"cxlemu       {__version__}: modelled figures, the same on every machine",
        f"config       {topology.title}",
        f"model        {iterations.model.name}, {iterations.model.parameters / 1e9:.4g} billion parameters, "
        f"{format_bytes(iterations.model.kv_bytes)} of keys and values for each token",
        f"instances    {'on each host 1 of ' if asked.sweep else f'{instances} of '}{iterations.ranks} x "
        f"{iterations.accelerator.name}, each with room for {held} of keys and values{apart}",
        f"requests     {described(requests)}" + " on each host" * bool(asked.sweep),
        f"figures      {kinds_of(iterations.model.provenance, iterations.accelerator.provenance, topology.provenance)}",
    ]


def _named(outcome: ServingOutcome) -> str:
    return f"{outcome.run.setup.place}, {counted(outcome.run.setup.topology.host_count, 'host')}"


def _table(outcomes: Sequence[ServingOutcome]) -> Table:
    """Put runs beside each other, a figure in each row."""
    table = figure_table("store", *(outcome.run.setup.place for outcome in outcomes))
    for index, p in enumerate(PERCENTILES):
        table.add_row(f"time to first token, ms, p{p}", *(_ms(outcome.first_token, index) for outcome in outcomes))
    for index, p in enumerate(PERCENTILES):
        table.add_row(f"time per output token, ms, p{p}", *(_ms(its.next_token, index) for its in outcomes))
    rows: dict[str, Callable[[ServingOutcome], str]] = {
        "output tokens/s": lambda outcome: f"{outcome.per_s(outcome.output_tokens):,.0f}",
        "input reused, %": lambda outcome: _percent(outcome.hit_rate),
        "  from the store, %": lambda outcome: _percent(outcome.from_store / max(outcome.input_tokens, 1)),
        "read from the store, GB": lambda outcome: _gb(outcome, to_store=False),
        "written to the store, GB": lambda outcome: _gb(outcome, to_store=True),
        "blocks given up by the store": lambda outcome: f"{outcome.run.place.evicted:,}",
        "transfers, times as long as alone": lambda outcome: (
            "" if outcome.slowdown is None else f"{outcome.slowdown:.2f}"
        ),
        "busiest link or card, % of time": lambda outcome: (
            "" if outcome.busiest is None else _percent(outcome.busiest[1])
        ),
        "accelerators computing, % of time": lambda outcome: _percent(outcome.computing),
    }
    for name, cell in rows.items():
        table.add_row(name, *map(cell, outcomes))
    return table


def _swept(outcomes: Sequence[ServingOutcome]) -> Table:
    table = figure_table(
        "store",
        "hosts",
        "TTFT\nms, p50",
        "TTFT\nms, p99",
        "TPOT\nms, p50",
        "tokens/s",
        "reused\n%",
        "read\nGB",
        "busiest\n%",
    )
    for outcome in outcomes:
        table.add_row(
            outcome.run.setup.place,
            str(outcome.run.setup.topology.host_count),
            _ms(outcome.first_token, 0),
            _ms(outcome.first_token, -1),
            _ms(outcome.next_token, 0),
            f"{outcome.per_s(outcome.output_tokens):,.0f}",
            _percent(outcome.hit_rate),
            _gb(outcome, to_store=False),
            "" if outcome.busiest is None else _percent(outcome.busiest[1]),
        )
    return table


def _ms(spread: Spread | None, index: int) -> str:
    return "" if spread is None else f"{spread.percentiles[index] / 1e6:,.1f}"


def _percent(part: float) -> str:
    return f"{100 * part:.1f}"


def _gb(outcome: ServingOutcome, *, to_store: bool) -> str:
    return f"{sum(one.nbytes for one in outcome.run.movement.carried if one.to_store == to_store) / 1e9:,.1f}"


def _links(outcome: ServingOutcome) -> str:
    there = sorted(outcome.uses, key=lambda use: -use.busy_ns)[:BUSIEST]
    if not there:
        return "nothing was moved"
    each = [f"{use.resource.name} {format_bytes(use.bytes)}, {use.busy_ns / outcome.span_ns:.1%} busy" for use in there]
    slower = "" if outcome.slowdown is None else f"; transfers take {outcome.slowdown:.2f} times as long as alone"
    return "; ".join(each) + slower


def _complaints(
    outcomes: Sequence[ServingOutcome],
    requests: Sequence[ServingRequest],
    incidents: Sequence[Incident],
    places: Sequence[str],
) -> list[str]:
    complaints = []
    for outcome in outcomes:
        left = len(outcome.run.served) - len(outcome.done)
        refused = sum(one.refused for one in outcome.run.served)
        if refused:
            complaints.append(
                f"{_named(outcome)}: {counted(refused, 'request')} too long for the memory of an instance."
            )
        if left > refused:
            complaints.append(
                f"{_named(outcome)}: {counted(left - refused, 'request')} never served: no instance was left."
            )
    if not any(outcome.done for outcome in outcomes):
        return [*complaints, "Nothing was served."]
    if not any(outcome.hit_rate for outcome in outcomes):
        places = ()
        known = reusable_tokens(requests)
        why = (
            f"{counted(known, 'token')} came again, but not while they were kept"
            if known
            else "no request begins with blocks of one before it"
        )
        complaints.append(f"Nothing was reused: {why}.")
    for place in places:
        runs = [outcome for outcome in outcomes if outcome.run.setup.place == place and place != "accelerator"]
        if runs and not any(its.from_store or its.run.setup.prefill for its in runs):
            complaints.append(
                f"{place}: nothing was read from the store: the accelerators' memory held all reused blocks."
            )
    for incident in incidents:
        if not any(incident in its.run.happened for its in outcomes):
            complaints.append(f"{incident} never happened: its target was gone, or everything had been served.")
    return complaints


def _saturation(out: Console, outcomes: Sequence[ServingOutcome], asked: ServingFlags) -> list[str]:
    """Print from how many hosts on the fabric is saturated, for each place; return the places where it never is."""
    saturation = []
    for place in dict.fromkeys(outcome.run.setup.place for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.run.setup.place == place]
        full = next(
            (outcome for outcome in mine if outcome.busiest is not None and outcome.busiest[1] >= SATURATED), None
        )
        if full is not None and full.busiest is not None:
            use, part = full.busiest
            hosts = counted(full.run.setup.topology.host_count, "host")
            print_wrapped(out, f"{place}: saturated from {hosts} on, where {use.resource.name} is busy {part:.0%}.")
        else:
            busiest = max((outcome.busiest[1] for outcome in mine if outcome.busiest is not None), default=0.0)
            last = counted(mine[-1].run.setup.topology.host_count, "host")
            saturation.append(
                f"{place}: not saturated up to {last}: no link or card is busy for more than {busiest:.0%}."
            )
    return saturation


def _document(
    outcomes: Sequence[ServingOutcome], setup: ServingSetup, requests: Sequence[ServingRequest]
) -> dict[str, Any]:
    iterations = setup.iterations
    return {
        "version": __version__,
        "config": setup.topology.document(),
        "model": iterations.model.document(),
        "accelerator": iterations.accelerator.name,
        "tensor": iterations.tensor,
        "expert": iterations.expert,
        "prefill": setup.prefill,
        "block_bytes": iterations.block_bytes,
        "accelerator_blocks": iterations.blocks,
        "requests": len(requests),
        "reusable_tokens": reusable_tokens(requests),
        "runs": [outcome.document() for outcome in outcomes],
    }
