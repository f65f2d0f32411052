"""What ``cxlemu reproduce scalepool`` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cxlemu.cli.output import check_json_file, write_json
from cxlemu.topology.provenance import KINDS
from cxlemu.version import __version__
from studies.cli.picture import save
from studies.cli.reproduce_scalepool_plot import PICTURES
from studies.cli.reproduce_table import check_directory, table_of
from studies.published.rows import MISS, Row
from studies.published.scalepool import Pair, Reproduction
from studies.published.tiers import TierStudy, told
from studies.training.durations import LEVELS

CHECKED_RANKS, CHECKED_SLICE_BYTES = 64, 4 << 20


def run(json_file: Path | None, plot_dir: Path | None, verbose: bool) -> None:
    """As the command's flags say. Raises ArgumentError."""
    check_json_file(json_file)
    check_directory(plot_dir, PICTURES)
    work = Reproduction()
    study = TierStudy()
    rows = [*work.rows(), *study.rows()]
    out = Console(highlight=False, soft_wrap=True)
    for line in _header(work):
        out.print(Text(f"# {line}"))
    out.print(table_of(rows))
    out.print()
    out.print(_steps(work.pairs))
    for line in _footer(work, rows):
        out.print(Text(line))
    if verbose:
        for line in ["", *_otherwise(work), *told(study)]:
            out.print(Text(line))
    write_json(json_file, _document(work, rows, verbose))
    if plot_dir is not None:
        for name, draw in PICTURES.items():
            save(draw(work, study), "--plot", plot_dir / name)


def _header(work: Reproduction) -> list[str]:
    setup = work.setup
    kinds = [standing.kind for standing in setup.standings.values()]
    standing = ", ".join(f"{kinds.count(kind)} {kind}" for kind in KINDS if kind in kinds)
    return [
        f"cxlemu     {__version__}: what a model says, the same on every machine",
        f"scalepool  {setup.accelerator}, {setup.cluster_ranks} a cluster ({setup.inside}), {setup.scalepool} between",
        f"baseline   the same clusters, {setup.baseline} between, optimizer's state with the hosts",
        f"figures    of scalepool.yaml {standing}; none fitted",
    ]


def _steps(pairs: Sequence[Pair]) -> Table:
    """Seconds of a step, on the baseline and on ScalePool."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("a step, s", no_wrap=True)
    table.add_column("ranks", justify="right", no_wrap=True)
    levels = list(dict.fromkeys(LEVELS.values()))
    for name in (*levels, "all"):
        table.add_column(name.replace(" clusters", ""), justify="right", no_wrap=True)
    for pair in pairs:
        for words, step in ((pair.case.model, pair.baseline), ("  ScalePool", pair.scalepool)):
            spent = [sum(step.billed_ns.get(kind, 0) for kind in LEVELS if LEVELS[kind] == level) for level in levels]
            cells = [f"{ns / 1e9:.2f}" for ns in (*spent, step.time_ns)]
            table.add_row(words, str(step.parallelism.ranks) if step is pair.baseline else "", *cells)
    return table


def _footer(work: Reproduction, rows: Sequence[Row]) -> list[str]:
    by_name = {pair.case.model: pair for pair in work.pairs}
    missed = [row for row in rows if row.missed]
    width = max((len(row.figure) for row in missed), default=0)
    lines = ["", f"{len(rows) - len(missed)} of {len(rows)} figures within {MISS:.0%}, all predicted."]
    lines += [f"  {row.figure:<{width}}  {100 * row.relative_error:+4.0f}%  {row.shows}" for row in missed]
    return [
        *lines,
        "",
        _told(by_name["palm-540b"]),
        _told(by_name["megatron-1t"]),
    ]


def _otherwise(work: Reproduction) -> list[str]:
    """What it would be with data parallelism in two levels, and how far off the evaluation of many ranks is."""
    error = max(
        abs(fabric.error(collective, CHECKED_SLICE_BYTES, CHECKED_RANKS))
        for fabric in (work.baseline, work.scalepool)
        for collective in ("all_gather", "reduce_scatter")
    )
    return [
        "As Calculon does, all of data parallelism is billed to what is between clusters. If only what must cross did: "
        + ", ".join(f"{name} {value:.2f}" for name, value in work.crossing_once.items())
        + ".",
        f"Collectives of more than {work.baseline.points[1]} ranks follow a line; at {CHECKED_RANKS}, where all were "
        f"simulated, too, it is off by {error:.1%}.",
    ]


def _told(pair: Pair) -> str:
    """What a step of one accelerator computes and sends."""
    step = pair.baseline
    tflop = step.tflop_a_rank
    gbytes = step.between_bytes / 1e9
    how = step.parallelism
    return (
        f"{pair.case.model} ({how}): {tflop:,.0f} TFLOP and {gbytes:,.1f} GB between clusters for each accelerator and "
        f"step, {1e3 * gbytes / tflop:.1f} MB a TFLOP: {pair.speedup:.2f} times as fast."
    )


def _document(work: Reproduction, rows: Sequence[Row], verbose: bool) -> dict[str, Any]:
    return {
        "version": __version__,
        "system": "scalepool",
        "setup": work.setup.document(),
        "fitted": None,
        "rows": [asdict(row) for row in rows],
        "steps": [
            {
                "model": pair.case.model,
                "parallelism": str(step.parallelism),
                "ranks": step.parallelism.ranks,
                "fabric": step.machine.between.name,
                "time_ns": step.time_ns,
                "utilization": step.utilization,
                "memory_bytes": step.memory_bytes,
                "tflop_a_rank": step.tflop_a_rank,
                "between_bytes": step.between_bytes,
                "billed_ns": {kind: step.billed_ns.get(kind, 0.0) for kind in LEVELS},
            }
            for pair in work.pairs
            for step in (pair.baseline, pair.scalepool)
        ],
        "two_levels": work.crossing_once if verbose else None,
    }
