"""The work of ``cxlemu simulate``: rows of modelled times, and the files that they are written to."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

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


class SimulateSetting(NamedTuple):
    """What is simulated: calls on a fabric of which parts may fail, and the same calls on other fabrics."""

    what: Target
    topology: Topology
    others: Sequence[Topology]
    failures: Sequence[Failure]
    ranks: int


def run(ctx: click.Context, asked: SimulateFlags) -> None:
    """Exit with 1 where a result was wrong, with 3 where no failure came or mattered, or nothing was checked."""
    if asked.beside is not None:
        brought("cxlemu.jobs", "beside", "--with")(ctx, "collective", asked)
        return
    check_output("--trace", asked.trace_file)
    what = target(asked.collectives, asked.algorithm, variant=asked.variant != AUTO)
    check_options(ctx, what, _fixed(what))
    check_applies(ctx, what.collectives)
    setting = _setting(asked, what)
    cases, left_out = _cases(asked, setting)
    out, notes = console(), _notes(asked, setting)
    for line in _header(asked, setting):
        print_wrapped(out, f"# {line}", indent="#          ")
    for note in (*notes, *left_out):
        print_wrapped(out, f"# note     {note}", "yellow", indent="#          ")
    interruption, rows = Interruption(), SimulatedRows(asked, setting, out)
    with interruption, bar(out) as progress:
        for case in progress.track(cases, description="simulating"):
            rows.add(case)
    rows.print_sum()
    if asked.json_file is not None:
        document = rows.document() | {"interrupted": interruption.happened}
        write_json(asked.json_file, document | ({"notes": notes} if notes else {}))
    if asked.trace_file is not None:
        write_output("--trace", asked.trace_file, perfetto(rows.traced))
    undone = rows.undone()
    for sentence in undone:
        print_wrapped(out, sentence, "yellow")
    code = 1 if rows.wrong else 3 if undone else 0
    interruption.exit(ctx, code, f"{counted(len(cases) - len(rows.rows), 'case')} not finished")


def _setting(asked: SimulateFlags, what: Target) -> SimulateSetting:
    topology = Topology.load(asked.config)
    # there, calls run in the pool, in the variant that is best, and nothing fails
    alike = asked.variant == AUTO and (what.source, asked.space, asked.split) == (None,) * 3 and not asked.fails
    others = against(topology if alike else None, asked.against)
    if asked.graph:
        streamed = [topology, *others]
        topology, *others = [fabric.in_graph() for fabric in streamed]
        if streamed == [topology, *others]:
            raise ArgumentError(
                f"--graph does nothing: no call costs a launch on {topology.name} (call_ns of its costs)"
            )
    failures = [Failure.parse(text, topology) for text in asked.fails]
    if asked.intervals:
        check_ranges([topology, *others])
    ranks = (asked.ranks if what.plan is None else what.plan.ranks) or (
        topology.host_count * topology.hosts.ranks_per_host
    )
    check_called(what, ranks)
    return SimulateSetting(what, topology, others, failures, ranks)


def _cases(asked: SimulateFlags, setting: SimulateSetting) -> tuple[list[Case], list[str]]:
    """Return the calls of all rows, and sentences that say which are left out."""
    what, topology, ranks = setting.what, setting.topology, setting.ranks
    minbytes, maxbytes, stepfactor = asked.minbytes, asked.maxbytes, asked.stepfactor
    if maxbytes is None:
        maxbytes = SIMULATED_MAX_BYTES if minbytes is None else minbytes
    if minbytes is None:
        minbytes = min(SIMULATED_MIN_BYTES, maxbytes)
    if stepfactor is None and asked.stepbytes is None and minbytes < maxbytes:
        stepfactor = SIMULATED_STEP_FACTOR
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
    elif asked.check:
        check_cases(topology, cases, algorithm=what.source, space=asked.space)
    return cases, left_out


class SimulatedRows:
    """Simulates and prints rows one by one, and keeps what files and the last lines say of them."""

    def __init__(self, asked: SimulateFlags, setting: SimulateSetting, out: Console) -> None:
        self._asked, self._setting, self._out = asked, setting, out
        self._table = RowTable(out, verbose=asked.verbose, check=asked.check)
        self.rows: list[Simulated] = []
        self.traced: list[TraceEvent] = []
        self._beside: list[list[Simulated]] = [[] for _ in setting.others]
        self._intervals: list[dict[str, Any]] = []
        self._unfailed_us: list[float] = []
        self._traced_max, self._traced_ns = TRACED_INSTRUCTIONS_MAX, 0

    @property
    def wrong(self) -> int:
        return sum(row.wrong or 0 for row in self.rows)

    def add(self, case: Case) -> None:
        asked, (what, topology, others, failures, _) = self._asked, self._setting
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
        unfailed_us = ours(topology, failures=())[0].time_us if failures else 0.0
        log_max = self._traced_max if asked.trace_file is not None else 0
        row, run = ours(topology, check=asked.check, seed=DEFAULT_SEED, log_max=log_max)
        beside = [theirs(other)[0] for other in others]
        self.rows.append(row)
        self._table.add(row)
        if asked.intervals:
            intervals = row_intervals(topology, others, ours, theirs)
            self._intervals.append({name: ratio._asdict() for name, ratio in intervals.items()})
            for line in told(intervals):
                self._more(line)
        if failures:
            self._unfailed_us.append(unfailed_us)
            self._more(cost_of(failures, row.time_us, unfailed_us, asked.iters))
        for other, rows, its in zip(others, self._beside, beside, strict=True):
            rows.append(its)
            self._more(_beside(other, its, row, asked.verbose))
        if len(beside) > 1 and row.time_us:
            self._more(spread([other.name for other in others], [its.time_us / row.time_us for its in beside]))
        if asked.trace_file is not None:
            self._traced_max = max(self._traced_max - run.instructions, 1)
            self.traced += events(run, start_ns=self._traced_ns)
            self._traced_ns += run.time_ns

    def _more(self, line: str) -> None:
        print_wrapped(self._out, f"#   {line}", indent="#     ")

    def print_sum(self) -> None:
        if len(self._setting.others) > 1:
            self._out.print(Text("#\n# These fabrics differ in:"))
            for line in differences(self._setting.others):
                self._more(line)
        self._out.print(Text("#"))
        checked = f"{self.wrong} wrong" if self._asked.check else "not checked"
        self._out.print(
            Text(f"# {counted(len(self.rows), 'result')}, {checked}", "bold red" if self.wrong else "green")
        )

    def undone(self) -> list[str]:
        """Say which failures did not come or cost nothing, and whether nothing was judged."""
        fails, failures, unfailed_us = self._asked.fails, self._setting.failures, self._unfailed_us
        times_us = [row.time_us for row in self.rows]
        longest_us = max([0.0, *unfailed_us, *times_us]) * self._asked.iters
        never = [text for text, its in zip(fails, failures, strict=True) if too_late([its], longest_us)]
        sentences = []
        if never:
            sentences.append(f"--fail: nothing failed before the end of any row: {', '.join(never)}")
        elif failures and times_us == unfailed_us:
            sentences.append(f"--fail: no row takes longer: none needs {', '.join(fails)}")
        if empty := nothing_compared(self.rows) or _nothing_done(self.rows, self._setting.ranks):
            sentences.append(empty)
        return sentences

    def document(self) -> dict[str, Any]:
        _, topology, others, failures, ranks = self._setting
        document: dict[str, Any] = {
            "version": __version__,
            "engine": "virtual",
            "config": topology.document(),
            "ranks": ranks,
            "hosts": list(topology.place(ranks)),
            "calls": self._asked.iters,
            "rows": [asdict(row) for row in self.rows],
        }
        document |= document_of(topology, ranks, failures, self._unfailed_us)
        if self._asked.intervals:
            document["intervals"] = self._intervals
        if others:
            document["against"] = [
                {"config": other.document(), "rows": [asdict(row) for row in rows]}
                for other, rows in zip(others, self._beside, strict=True)
            ]
        return document


def _in_lines(case: Case) -> bool:
    return catalog.recipe(case.call.collective, case.call.algorithm).spec.in_lines


def _notes(asked: SimulateFlags, setting: SimulateSetting) -> list[str]:
    ranks, others = setting.ranks, setting.others
    notes = _notes_of(setting.topology, ranks, flat=asked.variant == AUTO) if asked.space is None else []
    notes += [note for other in others for note in _notes_of(other, ranks)]
    if others and (source := setting.what.source) is not None:
        name = setting.topology.name
        notes.append(f"--against: {source} is simulated on {name} alone, others take their best variant")
    return notes


def _notes_of(topology: Topology, ranks: int, *, flat: bool = True) -> list[str]:
    flat = flat and topology.pool_space.protocols is not None  # NCCL's plans, which are not on two levels here
    return [*free_notes(topology), *placement_notes(topology, ranks), *(flat_notes(topology, ranks) if flat else ())]


def _fixed(what: Target) -> dict[str, object]:
    """The flags that a plan file determines, with their values."""
    if what.plan is None:
        return {}
    call, size = what.plan.call, what.size_bytes
    said = {"ranks": call.ranks, "minbytes": size, "maxbytes": size, "datatype": (call.dtype,), "op": (call.redop,)}
    return said | {"root": call.root, "stepfactor": NEVER, "stepbytes": NEVER, "split": NEVER}


def _header(asked: SimulateFlags, setting: SimulateSetting) -> list[str]:
    topology, ranks = setting.topology, setting.ranks
    standing = kinds_of(topology.provenance) or "none states its origin (optional: source, fitted or assumed)"
    how = "each on real bytes, too, and compared bit by bit" if asked.check else "no data"
    return [
        f"cxlemu   {__version__}, engine virtual: modelled times, the same on every machine",
        f"config   {topology.title}",
        f"figures  {standing}",
        *([f"space    {asked.space}"] if asked.space is not None else []),
        f"ranks    {topology.describe_placement(ranks)}",
        f"calls    {asked.iters} in a row, {how}",
        *failed_ways(topology, ranks, setting.failures),
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
