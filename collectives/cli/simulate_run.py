"""The work of ``cxlemu simulate``: rows of modelled times, and the files that they are written to."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from collectives.algorithms import catalog
from collectives.choices import SIMULATED_MAX_BYTES, SIMULATED_MIN_BYTES, SIMULATED_STEP_FACTOR
from collectives.cli.simulate import SimulateFlags
from collectives.cli.simulate_failures import cost_of, document_of, failed_ways, too_late
from collectives.cli.simulate_intervals import check_ranges, row_intervals, told
from collectives.cli.simulate_table import RowTable
from collectives.cli.targets import NEVER, Target, check_applies, check_called, check_options, target
from collectives.contracts import COLLECTIVES
from collectives.defaults import AUTO, DEFAULT_SEED, EVERY
from collectives.sweep.sweep import Case, Sweep, nothing_compared, size_steps
from collectives.sweep.virtual.notes import flat_notes, free_notes, placement_notes
from collectives.sweep.virtual.simulated import Simulated, check_cases, simulate_case
from collectives.sweep.virtual.split import check_split
from cxlemu.cli.commands import brought
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.output import check_output, write_json, write_output
from cxlemu.cli.progress import bar
from cxlemu.engines.trace import TraceEvent, events, perfetto
from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology
from cxlemu.topology.clusters import apart, ranks_per_cluster
from cxlemu.topology.differences import against, differences, spread
from cxlemu.topology.failures import Failure
from cxlemu.topology.provenance import kinds_of
from cxlemu.units import counted, format_bytes
from cxlemu.version import __version__

TRACED_INSTRUCTIONS_MAX = 300_000
LINE_MAX_BYTES = 64 << 10  # larger blocks take thousands of doorbells: of "every" variant, this one is left out


def run(ctx: click.Context, asked: SimulateFlags) -> None:
    """Exit with 1 where a result was wrong, with 3 where no failure came or mattered, or nothing was checked."""
    if asked.beside is not None:
        brought("cxlemu.jobs", "beside", "--with")(ctx, "collective", asked)
        return
    maxbytes, minbytes, ranks, stepfactor = asked.maxbytes, asked.minbytes, asked.ranks, asked.stepfactor
    check_output("--trace", asked.trace_file)
    what = target(asked.collectives, asked.algorithm, variant=asked.variant != AUTO)
    check_options(ctx, what, _fixed(what))
    check_applies(ctx, what.collectives)
    topology = Topology.load(asked.config)
    # there, calls run in the pool, in the variant that is best, and nothing fails
    alike = asked.variant == AUTO and (what.source, asked.space, asked.split) == (None,) * 3 and not asked.fails
    others = [(topology, list[Simulated]()) for topology in against(topology if alike else None, asked.against)]
    if asked.graph:
        streamed = [topology, *(other for other, _ in others)]
        topology, others = topology.in_graph(), [(other.in_graph(), rows) for other, rows in others]
        if streamed == [topology, *(other for other, _ in others)]:
            raise ArgumentError(
                f"--graph does nothing: no call costs a launch on {topology.name} (call_ns of its costs)"
            )
    failures = [Failure.parse(text, topology) for text in asked.fails]
    if asked.intervals:
        check_ranges([topology, *(other for other, _ in others)])
    if maxbytes is None:
        maxbytes = SIMULATED_MAX_BYTES if minbytes is None else minbytes
    if minbytes is None:
        minbytes = min(SIMULATED_MIN_BYTES, maxbytes)
    if stepfactor is None and asked.stepbytes is None and minbytes < maxbytes:
        stepfactor = SIMULATED_STEP_FACTOR
    if what.plan is not None:
        ranks = what.plan.ranks
    ranks = ranks or topology.host_count * topology.hosts.ranks_per_host
    check_called(what, ranks)
    sweep = Sweep(
        collectives=what.collectives or tuple(name for name, contract in COLLECTIVES.items() if contract.among_all),
        sizes=size_steps(minbytes, maxbytes, stepfactor, asked.stepbytes),
        dtypes=asked.datatype,
        redops=asked.op,
        roots=(asked.root,),
        variant=asked.variant,
        algorithm=what.source,
        check=asked.check,
        cluster=ranks_per_cluster(apart(topology), ranks),
        sends=(topology.pool_space if asked.space is None else topology.space(asked.space)).protocols is not None,
    )
    cases = sweep.cases(ranks)
    left_out = sweep.left_out(asked.maxbytes) if what.plan is None else []
    if asked.variant == EVERY and what.source is None:
        short = [case for case in cases if case.call.nbytes <= LINE_MAX_BYTES or not _in_lines(case)]
        if long := len(cases) - len(short):
            limit = format_bytes(LINE_MAX_BYTES)
            left_out.append(f"left out: {counted(long, 'row')} of variant line, with blocks above {limit}: name it")
        cases = short
    if asked.split is not None:
        for each in cases:
            check_split(topology, each.call, asked.split, asked.space, check=asked.check)
    if asked.check and asked.split is None:
        check_cases(topology, cases, algorithm=what.source, space=asked.space)
    out = console()
    for line in (
        *_header(topology, ranks, asked.iters, asked.check, asked.space),
        *failed_ways(topology, ranks, failures),
    ):
        print_wrapped(out, f"# {line}", indent="#          ")
    notes = _notes(topology, ranks, flat=asked.variant == AUTO) if asked.space is None else []
    notes += [note for other, _ in others for note in _notes(other, ranks)]
    if others and what.source is not None:
        notes.append(f"--against: {what.source} is simulated on {topology.name} alone, others take their best variant")
    for note in (*notes, *left_out):
        print_wrapped(out, f"# note     {note}", "yellow", indent="#          ")
    rows: list[Simulated] = []
    ranges: list[dict[str, Any]] = []
    unfailed_us: list[float] = []
    traced: list[TraceEvent] = []
    interruption, table = Interruption(), RowTable(out, verbose=asked.verbose, check=asked.check)
    room, start_ns = TRACED_INSTRUCTIONS_MAX, 0
    with interruption, bar(out) as progress:
        for case in progress.track(cases, description="simulating"):
            ours = partial(
                simulate_case,
                case=case,
                algorithm=what.source,
                space=asked.space,
                split=asked.split,
                failures=failures,
                calls=asked.iters,
            )
            there = replace(case, call=replace(case.call, algorithm=AUTO))
            theirs = partial(simulate_case, case=there, calls=asked.iters)
            usual_us = ours(topology, failures=())[0].time_us if failures else 0.0
            log_max = room if asked.trace_file is not None else 0
            row, run = ours(topology, check=asked.check, seed=DEFAULT_SEED, log_max=log_max)
            beside = [(other, theirs(other)[0]) for other, _ in others]
            rows.append(row)
            table.add(row)
            if asked.intervals:
                intervals = row_intervals(topology, [other for other, _ in others], ours, theirs)
                ranges.append({name: ratio._asdict() for name, ratio in intervals.items()})
                for line in told(intervals):
                    print_wrapped(out, f"#   {line}", indent="#     ")
            if failures:
                unfailed_us.append(usual_us)
                print_wrapped(out, f"#   {cost_of(failures, row.time_us, usual_us, asked.iters)}", indent="#     ")
            for (other, others_rows), (_, side_row) in zip(others, beside, strict=True):
                others_rows.append(side_row)
                print_wrapped(out, f"#   {_beside(other, side_row, row, asked.verbose)}", indent="#     ")
            if len(beside) > 1 and row.time_us:
                ratios = [its.time_us / row.time_us for _, its in beside]
                print_wrapped(out, f"#   {spread([other.name for other, _ in beside], ratios)}", indent="#     ")
            if asked.trace_file is not None:
                room = max(room - run.instructions, 1)
                traced += events(run, start_ns=start_ns)
                start_ns += run.time_ns
    wrong = sum(row.wrong or 0 for row in rows)
    if len(others) > 1:
        out.print(Text("#\n# These fabrics differ in:"))
        for line in differences([other for other, _ in others]):
            print_wrapped(out, f"#   {line}", indent="#     ")
    _print_sum(out, len(rows), wrong if asked.check else None)
    if asked.json_file is not None:
        document = _document(topology, ranks, asked.iters, rows) | {"interrupted": interruption.happened}
        document |= document_of(topology, ranks, failures, unfailed_us)
        if asked.intervals:
            document["intervals"] = ranges
        if others:
            document["against"] = [
                {"config": other.document(), "rows": [asdict(row) for row in theirs]} for other, theirs in others
            ]
        if notes:
            document["notes"] = notes
        write_json(asked.json_file, document)
    if asked.trace_file is not None:
        write_output("--trace", asked.trace_file, perfetto(traced))
    longest_us = max([0.0, *unfailed_us, *[row.time_us for row in rows]]) * asked.iters
    never = [text for text, its in zip(asked.fails, failures, strict=True) if too_late([its], longest_us)]
    unhurt = bool(failures) and not never and [row.time_us for row in rows] == unfailed_us
    if unhurt:
        print_wrapped(out, f"--fail: no row takes longer: none needs {', '.join(asked.fails)}", "yellow")
    if never:
        print_wrapped(out, f"--fail: nothing failed before the end of any row: {', '.join(never)}", "yellow")
    if empty := nothing_compared(rows) or _nothing_done(rows, ranks):
        print_wrapped(out, empty, "yellow")
    code = 1 if wrong else 3 if never or unhurt or empty else 0
    interruption.exit(ctx, code, f"{counted(len(cases) - len(rows), 'case')} not finished")


def _in_lines(case: Case) -> bool:
    return catalog.recipe(case.call.collective, case.call.algorithm).spec.in_lines


def _notes(topology: Topology, ranks: int, *, flat: bool = True) -> list[str]:
    flat = flat and topology.pool_space.protocols is not None  # NCCL's plans, which are not on two levels here
    return [*free_notes(topology), *placement_notes(topology, ranks), *(flat_notes(topology, ranks) if flat else ())]


def _fixed(what: Target) -> dict[str, object]:
    """The flags that a plan file determines, with their values."""
    if what.plan is None:
        return {}
    call, size = what.plan.call, what.size_bytes
    said = {"ranks": call.ranks, "minbytes": size, "maxbytes": size, "datatype": (call.dtype,), "op": (call.redop,)}
    return said | {"root": call.root, "stepfactor": NEVER, "stepbytes": NEVER, "split": NEVER}


def _header(topology: Topology, ranks: int, calls: int, checked: bool, space: str | None) -> list[str]:
    standing = kinds_of(topology.provenance) or "none states its origin (optional: source, fitted or assumed)"
    how = "each on real bytes, too, and compared bit by bit" if checked else "no data"
    return [
        f"cxlemu   {__version__}, engine virtual: modelled times, the same on every machine",
        f"config   {topology.title}",
        f"figures  {standing}",
        *([f"space    {space}"] if space is not None else []),
        f"ranks    {topology.describe_placement(ranks)}",
        f"calls    {calls} in a row, {how}",
    ]


def _beside(topology: Topology, simulated: Simulated, row: Simulated, verbose: bool) -> str:
    """Describe the same call on another fabric, with its own choice of a variant."""
    ratio = f"{simulated.time_us / row.time_us:.2f} times as long" if row.time_us else "no time here"
    why = f" ({simulated.reason})" if verbose and simulated.reason else ""
    return f"{topology.name}: {simulated.time_us:.1f} us, {ratio}, {simulated.variant}{why}"


def _nothing_done(rows: Sequence[Simulated], ranks: int) -> str:
    """Say so where plans have no instruction, though bytes should go from rank to rank."""
    idle = next((row for row in rows if row.count and ranks > 1 and not row.instructions), None)
    if idle is None:
        return ""
    return f"nothing was judged: the plan of {idle.variant} for {format_bytes(idle.size_bytes)} has no instruction"


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
