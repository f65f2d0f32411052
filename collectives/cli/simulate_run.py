"""The work of ``cxlemu simulate``: rows of modelled times, and the files that they are written to."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from collectives.algorithms import catalog
from collectives.choices import SIMULATED_MAX_BYTES, SIMULATED_MIN_BYTES, SIMULATED_STEP_FACTOR
from collectives.cli.simulate_failures import cost_of, document_of, failed_ways
from collectives.cli.simulate_table import RowTable
from collectives.cli.targets import NEVER, Target, check_options, target
from collectives.contracts import COLLECTIVES
from collectives.sweep.defaults import AUTO, DEFAULT_SEED, EVERY
from collectives.sweep.sweep import Case, Sweep, size_steps
from collectives.sweep.virtual.simulated import Simulated, simulate_case
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.output import check_output, write_json, write_output
from cxlemu.cli.progress import bar
from cxlemu.engines.trace import TraceEvent, events, perfetto
from cxlemu.topology import Topology
from cxlemu.topology.clusters import ranks_per_cluster
from cxlemu.topology.failures import Failure
from cxlemu.topology.provenance import KINDS
from cxlemu.units import counted
from cxlemu.version import __version__

TRACED_INSTRUCTIONS_MAX = 300_000
LINE_MAX_BYTES = 64 << 10  # larger blocks take thousands of doorbells: of "every" variant, this one is left out


def run(
    ctx: click.Context,
    collectives: tuple[str, ...],
    config: str,
    ranks: int | None,
    minbytes: int | None,
    maxbytes: int | None,
    stepfactor: int | None,
    stepbytes: int | None,
    datatype: tuple[str, ...],
    op: tuple[str, ...],
    root: int,
    variant: str,
    algorithm: str | None,
    iters: int,
    space: str | None,
    against: str | None,
    split: int | None,
    fails: tuple[str, ...],
    check: bool,
    json_file: Path | None,
    trace_file: Path | None,
    verbose: bool,
) -> None:
    """Run the command with its flags, whose names the parameters have.

    The process exits with 1 where a checked result was wrong.

    Raises:
        ArgumentError: A flag is wrong, or flags do not go with each other.
        ConfigError: A topology is wrong.
    """
    check_output("--trace", trace_file)
    asked = target(collectives, algorithm, variant=variant != AUTO)
    check_options(ctx, asked, _fixed(asked))
    topology = Topology.load(config)
    other = None if against is None else Topology.load(against)
    failures = [Failure.parse(text, topology) for text in fails]
    if maxbytes is None:
        maxbytes = SIMULATED_MAX_BYTES if minbytes is None else minbytes
    if minbytes is None:
        minbytes = min(SIMULATED_MIN_BYTES, maxbytes)
    if stepfactor is None and stepbytes is None:
        stepfactor = SIMULATED_STEP_FACTOR
    if asked.plan is not None:
        ranks = asked.plan.ranks
    ranks = ranks or topology.host_count * topology.hosts.ranks_per_host
    sweep = Sweep(
        collectives=asked.collectives or tuple(name for name, its in COLLECTIVES.items() if its.among_all),
        sizes=size_steps(minbytes, maxbytes, stepfactor, stepbytes),
        dtypes=datatype,
        redops=op,
        roots=(root,),
        variant=variant,
        algorithm=asked.source,
        check=check,
        cluster=ranks_per_cluster(topology, ranks),
    )
    cases = sweep.cases(ranks)
    if variant == EVERY and asked.source is None:
        cases = [case for case in cases if case.call.nbytes <= LINE_MAX_BYTES or not _in_lines(case)]
    out = console()
    for line in (*_header(topology, ranks, iters, check, space), *failed_ways(topology, ranks, failures)):
        print_wrapped(out, f"# {line}", indent="#          ")
    rows: list[Simulated] = []
    unfailed_us: list[float] = []
    others: list[Simulated] = []
    traced: list[TraceEvent] = []
    interruption, table = Interruption(), RowTable(out, verbose=verbose, check=check)
    room, start_ns = TRACED_INSTRUCTIONS_MAX, 0
    with interruption, bar(out) as progress:
        for case in progress.track(cases, description="simulating"):
            usual_us = 0.0
            if failures:
                usual, _ = simulate_case(topology, case, algorithm=asked.source, space=space, split=split, calls=iters)
                usual_us = usual.time_us
            row, run = simulate_case(
                topology,
                case,
                algorithm=asked.source,
                space=space,
                split=split,
                failures=failures,
                calls=iters,
                check=check,
                seed=DEFAULT_SEED,
                log_max=room if trace_file is not None else 0,
            )
            elsewhere = None
            if other is not None:
                elsewhere = simulate_case(other, replace(case, call=replace(case.call, algorithm=AUTO)), calls=iters)[0]
            rows.append(row)
            table.add(row)
            if failures:
                unfailed_us.append(usual_us)
                print_wrapped(out, f"#   {cost_of(failures, row.time_us, usual_us, iters)}", indent="#     ")
            if other is not None and elsewhere is not None:
                others.append(elsewhere)
                print_wrapped(out, f"#   {_beside(other, elsewhere, row, verbose)}", indent="#     ")
            if trace_file is not None:
                room = max(room - run.instructions, 1)
                traced += events(run, start_ns=start_ns)
                start_ns += run.time_ns
    wrong = sum(row.wrong or 0 for row in rows)
    _print_sum(out, len(rows), wrong if check else None)
    if json_file is not None:
        document = _document(topology, ranks, iters, rows) | {"interrupted": interruption.happened}
        document |= document_of(topology, ranks, failures, unfailed_us)
        if other is not None:
            document["against"] = {"config": other.document(), "rows": [asdict(its) for its in others]}
        write_json(json_file, document)
    if trace_file is not None:
        write_output("--trace", trace_file, perfetto(traced))
    interruption.exit(ctx, 1 if wrong else 0, f"{counted(len(cases) - len(rows), 'case')} not finished")


def _in_lines(case: Case) -> bool:
    return catalog.recipe(case.call.collective, case.call.algorithm).spec.in_lines


def _fixed(asked: Target) -> dict[str, object]:
    """The flags that a plan file determines, with their values."""
    if asked.plan is None:
        return {}
    call, size = asked.plan.call, asked.size_bytes
    said = {"ranks": call.ranks, "minbytes": size, "maxbytes": size, "datatype": (call.dtype,), "op": (call.redop,)}
    return said | {"root": call.root, "stepfactor": NEVER, "stepbytes": NEVER, "split": NEVER}


def _header(topology: Topology, ranks: int, calls: int, checked: bool, space: str | None) -> list[str]:
    kinds = [standing.kind for standing in topology.provenance.values()]
    standing = ", ".join(f"{kinds.count(kind)} {kind}" for kind in KINDS if kind in kinds) or "of unknown standing"
    how = "each on real bytes, too, and compared bit by bit" if checked else "no data"
    return [
        f"cxlemu   {__version__}, engine virtual: modelled times, the same on every machine",
        f"config   {topology.name}: {topology.description}",
        f"figures  {standing}",
        *([f"space    {space}"] if space is not None else []),
        f"ranks    {topology.describe_placement(ranks)}",
        f"calls    {calls} in a row, {how}",
    ]


def _beside(topology: Topology, its: Simulated, row: Simulated, verbose: bool) -> str:
    """Describe the same call on another fabric, with its own choice of a variant."""
    ratio = f"{its.time_us / row.time_us:.2f} times as long" if row.time_us else "no time here"
    why = f" ({its.reason})" if verbose and its.reason else ""
    return f"{topology.name}: {its.time_us:.1f} us, {ratio}, {its.variant}{why}"


def _print_sum(out: Console, rows: int, wrong: int | None) -> None:
    out.print(Text("#"))
    checked = "not checked" if wrong is None else f"{wrong} wrong"
    out.print(Text(f"# {counted(rows, 'result')}, {checked}", "bold red" if wrong else "green"))


def _document(topology: Topology, ranks: int, calls: int, rows: list[Simulated]) -> dict[str, Any]:
    return {
        "version": __version__,
        "engine": "virtual",
        "config": topology.document(),
        "ranks": ranks,
        "hosts": list(topology.place(ranks)),
        "calls": calls,
        "rows": [asdict(row) for row in rows],
    }
