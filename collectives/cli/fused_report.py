"""The report of ``cxlemu fused``: a line for each style, what follows from them, and JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from rich.console import Console
from rich.text import Text

from collectives.fused.choice import call_of
from collectives.sweep.fused.measure import Job, Seen
from collectives.sweep.fused.metrics import Metrics, Wait
from collectives.sweep.fused.seen import median_ns, metrics, refusal, times_ns, waits
from cxlemu.cli.console import print_wrapped
from cxlemu.engines.pace import TimeScale
from cxlemu.memory import MemorySpec
from cxlemu.topology import Topology
from cxlemu.units import counted
from cxlemu.version import __version__

COLUMNS = "  {:<32} {:>10} {:>10} {:>8} {:>7}"
NAMES = {
    "gemm": "product alone, not split",
    "tiled": "product alone, in tiles",
    "comm": "communication alone",
    "unfused": "unfused",
    "medium": "medium",
    "fused": "fused",
}


@dataclass(frozen=True)
class FusedSetup:
    """The world of a run. ``how`` says how the cut of the fused call was chosen."""

    job: Job
    topology: Topology
    ranks: int
    memory: MemorySpec
    blas_threads: str
    pace: TimeScale | None = None
    how: str = ""  # the fused call was cut so


@dataclass(frozen=True)
class Result:
    """What ranks measured in a run.

    ``comm_ns`` is communication alone as modelled, on this machine's clock; None without a pace.
    """

    setup: FusedSetup
    seen: Sequence[Seen]
    comm_ns: float | None

    @cached_property
    def metrics(self) -> Metrics | None:
        """The metrics, or None unless all styles were run."""
        return metrics(self.seen, self.setup.job)

    @cached_property
    def refusal(self) -> str:
        """Why nothing is claimed about overlap, or ""."""
        return refusal(self.seen, self.comm_ns)

    @property
    def wrong(self) -> int:
        """How many elements were wrong in all calls on all ranks."""
        return sum(sum(one.wrong.values()) for one in self.seen)

    @property
    def _waits(self) -> list[Wait]:
        return waits(self.seen, self.setup.job) if "fused" in self.setup.job.styles else []

    def document(self) -> dict[str, Any]:
        """The run for ``--json``; overlap is None where it cannot be claimed."""
        setup, figures = self.setup, None if self.metrics is None else self.metrics.document()
        if figures is not None and self.refusal:
            figures = {name: None if "overlap" in name else value for name, value in figures.items()}
        return {
            "version": __version__,
            "engine": "native",
            "operator": asdict(setup.job.operator),
            "choice": asdict(setup.job.choice),
            "chosen": setup.how,
            "ranks": setup.ranks,
            "cores": self.seen[0].cores,
            "blas_threads": setup.blas_threads,
            "config": setup.topology.document(),
            "memory": setup.memory.describe(),
            "pace": None if setup.pace is None else asdict(setup.pace),
            "modelled_comm_us": None if self.comm_ns is None else self.comm_ns / 1e3,
            "times_us": {name: [ns / 1e3 for ns in times_ns(self.seen, name)] for name in self.seen[0].left_ns},
            "metrics": figures,
            "waits": [wait.document() for wait in self._waits],
            "no_overlap_because": self.refusal or None,
            "wrong": {style: sum(one.wrong[style] for one in self.seen) for style in setup.job.styles},
            "checked": setup.job.check,
        }


def show(result: Result, out: Console) -> None:
    """Print a result as a table, with what it was measured on above and metrics below."""
    for line in _header(result):
        print_wrapped(out, f"# {line}", indent="#           ")
    out.print(Text("#"))
    out.print(Text("#" + COLUMNS.format("", "time (us)", "ECT (us)", "overlap", "#wrong")[1:]))
    for name, title in NAMES.items():
        if name in result.seen[0].left_ns:
            _print_row(result, name, title, out)
    out.print(Text("#"))
    for line in _footer(result):
        print_wrapped(out, f"# {line}", indent="#   ")
    if result.wrong:
        out.print(Text(f"# {counted(result.wrong, 'element')} wrong", "bold red"))


def _header(result: Result) -> list[str]:
    setup, job = result.setup, result.setup.job
    pace = "none: this machine's own times, which say nothing about a fabric"
    if setup.pace is not None:
        pace = f"1 ns of the model is {setup.pace.value:.3g} ns here ({setup.pace.reason})"
    threads = f"{'1 BLAS thread' if setup.blas_threads == '1' else f'{setup.blas_threads} BLAS threads'} each"
    processes = counted(setup.ranks, "process", "processes")
    return [
        f"cxlemu    {__version__}, engine native",
        f"operator  {job.operator}",
        f"fused     {_cut(result)}",
        f"ranks     {processes} on {counted(result.seen[0].cores, 'core')}, {threads}",
        f"pool      {setup.memory.describe()}, as {setup.topology.title}",
        f"pace      {pace}",
        f"calls     {job.iterations} of each, in turns: medians from the first rank's begin to the last one's end",
    ]


def _cut(result: Result) -> str:
    setup = result.setup
    gemm = call_of(setup.job.operator, "fused", setup.ranks, setup.job.choice).gemm
    assert gemm is not None
    tiles = f"tiles of {gemm.tile_rows}x{gemm.tile_cols}, {counted(gemm.comm_tile_rows, 'row')} at once"
    return f"{tiles}, {gemm.order}, {gemm.transport}: {setup.how}"


def _print_row(result: Result, name: str, title: str, out: Console) -> None:
    job, figures = result.setup.job, result.metrics
    ect, overlap = "", ""
    if figures is not None and name in job.styles:
        ect = f"{figures.ect_ns(name) / 1e3:.0f}"
        efficiency = figures.overlap_efficiency(name)
        overlap = "n/a" if result.refusal or efficiency is None else f"{100 * efficiency:.0f}%"
    wrong = sum(one.wrong[name] for one in result.seen) if name in job.styles and job.check else ""
    line = COLUMNS.format(title, f"{median_ns(result.seen, name) / 1e3:.0f}", ect, overlap, wrong)
    out.print(Text(line.rstrip(), "bold red" if wrong else ""))


def _footer(result: Result) -> list[str]:
    lines = [] if result.comm_ns is None else [f"communication alone as modelled: {result.comm_ns / 1e3:.0f} us"]
    if (figures := result.metrics) is not None:
        lines += [
            f"max(T_gemm, T_comm) / T_fused {figures.sol:.2f}, tiles slow the product down {figures.gemm_slowdown:.2f} "
            f"times, a doorbell is waited for {figures.wait_ns / 1e3:.0f} us on average"
        ]
    return lines + ([f"no overlap is claimed: {result.refusal}"] if result.refusal else [])
