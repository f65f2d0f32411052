"""What ``cxlemu reproduce flux`` does."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from cxlemu.cli.output import check_json_file, write_json
from cxlemu.version import __version__
from studies.cli.picture import save
from studies.cli.reproduce_flux_plot import PICTURES
from studies.cli.reproduce_table import check_directory, table_of
from studies.published.flux import (
    CLUSTERS,
    MODEL,
    RANGE_FROM,
    RANKS,
    REPORTED,
    ROWS,
    SHAPES,
    SLOWED,
    SPEEDUPS,
    Reproduction,
)
from studies.published.rows import MISS

COLUMNS = "{:>5} {:>6} {:>6} {:>7} {:>6} {:>6} {:>5} {:>5} {:>4}  {}"
HEADS = ("# m", "GEMM", "comm", "unfused", "medium", "fused", "E med", "E", "SOL", "rows, tile, order, transport")


def run(rows: tuple[int, ...], json_file: Path | None, plot_dir: Path | None) -> None:
    """As the command's flags say. Raises ArgumentError."""
    check_json_file(json_file)
    check_directory(plot_dir, PICTURES)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        work = Reproduction(rows or ROWS, seen=lambda what: progress.update(task, description=what, advance=1))
        blocks = len(CLUSTERS) * sum(len(tokens) for _, tokens in SPEEDUPS.values()) if work.is_whole else 0
        progress.update(task, total=len(CLUSTERS) * len(SHAPES) * len(work.m) + len(REPORTED) + blocks)
        shapes, found = work.shapes, work.rows
    out = Console(highlight=False, soft_wrap=True)
    for line in _header(work):
        out.print(Text(f"# {line}"))
    _print_shapes(out, work)
    if work.is_whole:
        _print_blocks(out, work)
    out.print()
    out.print(table_of(found))
    for line in _footer(work):
        out.print(Text(line))
    write_json(json_file, _document(work))
    if plot_dir is not None:
        for name, draw in PICTURES.items():
            save(draw(shapes), "--plot", plot_dir / name)


def _header(work: Reproduction) -> list[str]:
    return [
        f"cxlemu   {__version__}: what a model says, the same on every machine",
        f"ranks    {RANKS}, bf16, layers of GPT-3; times in us",
        "GEMM     a rank's product, the fastest, not split; comm is the collective alone",
        "unfused  one after the other; medium: shard by shard; of each the fastest order and transport",
        "fused    in the tiles that the tuner found fastest for the shape, as they stand at the end of the line",
        "E        overlap efficiency, 1 - ECT / ECT of unfused, where ECT is what a call takes beside GEMM",
        "fitted   nothing: what each chip's GEMMs reach was measured by others, on other shapes",
    ]


def _print_shapes(out: Console, work: Reproduction) -> None:
    before = ""
    for shape in work.shapes:
        its, choice = shape.metrics, shape.tuned.choice
        if (title := f"{shape.cluster} {shape.operator.kind}") != before:
            out.print(Text(f"#\n# {title}", "bold"))
            out.print(Text(COLUMNS.format(*HEADS)))
        before = title
        efficiencies = [its.overlap_efficiency(style) or 0.0 for style in ("medium", "fused")]
        line = COLUMNS.format(
            shape.operator.m,
            *(f"{ns / 1e3:.0f}" for ns in (its.gemm_ns, its.comm_ns, its.unfused_ns, its.medium_ns, its.fused_ns)),
            *(f"{100 * efficiency:.0f}%" for efficiency in efficiencies),
            f"{its.sol:.2f}",
            choice,
        )
        out.print(Text(line, "yellow" if efficiencies[1] < 0 else ""))


def _print_blocks(out: Console, work: Reproduction) -> None:
    """A block's speedup on each cluster."""
    out.print(Text(f"#\n# a block of {MODEL}: unfused / fused, whole; only its GEMMs with their collectives", "bold"))
    for phase, (_, tokens) in SPEEDUPS.items():
        for its in tokens:
            blocks = {cluster: work.blocks[cluster, phase, its] for cluster in CLUSTERS}
            words = [f"{name} {b.speedup:.2f} ({b.unfused_ns / b.fused_ns:.2f})" for name, b in blocks.items()]
            out.print(Text(f"{f'{phase}, {its} tokens':<22} {', '.join(words)}"))


def _footer(work: Reproduction) -> list[str]:
    predicted = [row for row in work.rows if row.kind == "predicted"]
    far = [row for row in work.rows if row.missed]
    width = max((len(row.figure) for row in far), default=0)
    return [
        "",
        f"{len(predicted) - len(far)} of {len(predicted)} predicted figures within {MISS:.0%}. Off by more:",
        *(f"  {row.figure:<{width}}  {100 * row.relative_error:+4.0f}%  {row.shows}" for row in far),
        "",
        f"Assumed: published ranges are of m = {RANGE_FROM} and more; and the blocks' tokens.",
        "Published speedups are of whole models, with pipelines and data parallelism; none is of the CXL pool.",
        "Not modelled: kernels that share multiprocessors with a collective's, and clocks that fall under load.",
        *_slowed(work),
    ]


def _slowed(work: Reproduction) -> list[str]:
    """What the overlap would be if kernels slowed each other as others saw it."""
    if not work.is_whole:
        return []
    ranges = [f"{cluster} {100 * low:.0f}-{100 * best:.0f}%" for cluster, (low, best) in work.slowed().items()]
    return [
        f"Were tiles {SLOWED:.1%} slower while anything moves, as beside NCCL's kernels (arXiv 2507.03114), overlap",
        f"would be {', '.join(ranges)}.",
    ]


def _document(work: Reproduction) -> dict[str, Any]:
    return {
        "version": __version__,
        "system": "flux",
        "configs": {name: work.clusters.simulator(name).topology.document() for name in CLUSTERS},
        "fitted": None,
        "rows": [asdict(row) for row in work.rows],
        "slowed": {"by": SLOWED, "overlap": work.slowed()} if work.is_whole else None,
        "blocks": [
            {"cluster": cluster, **asdict(block), "speedup": block.speedup}
            for (cluster, _, _), block in (work.blocks.items() if work.is_whole else ())
        ],
        "shapes": [
            {
                "cluster": shape.cluster,
                **asdict(shape.operator),
                **asdict(shape.tuned.choice),
                "tried": shape.tuned.tried,
                **shape.metrics.document(),
            }
            for shape in work.shapes
        ],
    }
