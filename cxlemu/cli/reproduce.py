"""``cxlemu reproduce``: a published system's figures, ours beside each, and how far off we are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from collectives.reproduce.cccl import AVERAGES, FITTED_ON, MISS, VARIANTS, Reproduction, Row
from collectives.reproduce.nccl import GROUPED
from cxlemu import __version__
from cxlemu.cli.forms import forms
from cxlemu.cli.output import check_json_file, write_json, write_output
from cxlemu.cli.reproduce_plot import PICTURES, pictures
from cxlemu.cli.reproduce_table import check_directory, table_of
from cxlemu.topology.document import dotted
from cxlemu.units import format_bytes

CHUNK_BYTES = 128 << 10  # of NCCL's sends and receives between hosts: NCCL_P2P_NET_CHUNKSIZE
NOT_MODELLED = "training a Llama-3-8B (1.11x) and the cost of hardware (2.75x)"


@click.command(cls=forms(scalepool="cxlemu.cli.reproduce_scalepool"))
@click.argument("system", type=click.Choice(["cccl", "scalepool"]))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
@click.option("--plot", "plot_dir", type=click.Path(path_type=Path), help="Draw it, as PNG files in this directory.")
def command(system: str, json_file: Path | None, plot_dir: Path | None) -> None:
    """Compare published measurements with our plans on the modelled hardware.

    scalepool: training of large models on clusters joined by CXL against RDMA (arXiv 2510.14580); see its own --help.

    cccl: collectives over a CXL pool (arXiv 2602.22457), three hosts and six cards against NCCL over InfiniBand. Each
    figure says what it is: config (put in), fitted (one figure, on AllGather alone) or predicted. Exit code 0, also
    where the model is far off: those are listed, with what it shows.

    \b
    Examples:
      cxlemu reproduce cccl
      cxlemu reproduce cccl --plot out --json cccl.json
    """
    check_json_file(json_file)
    check_directory(plot_dir, PICTURES)
    work = Reproduction()
    rows = work.rows()
    out = Console(highlight=False, soft_wrap=True)
    for line in _header(work):
        out.print(Text(f"# {line}"))
    out.print(table_of(rows))
    for line in _footer(work, rows):
        out.print(Text(line))
    write_json(json_file, _document(system, work, rows))
    if plot_dir is not None:
        for name, data in pictures(work).items():
            write_output("--plot", plot_dir / name, data)


def _header(work: Reproduction) -> list[str]:
    first, last = (format_bytes(size) for size in (work.sizes[0], work.sizes[-1]))
    rate = work.nccl.receive_gbytes_per_s(FITTED_ON, work.slice_ns)
    return [
        f"cxlemu    {__version__}: what a model says, the same on every machine",
        f"ours      plans in virtual time on {work.ours.topology.name}, growth on {work.grown.topology.name}",
        "baseline  NCCL over 200 Gb/s InfiniBand: a cost model after NCCL's own, not a simulation of its plans",
        f"sizes     {first} - {last}, powers of two; averages are means of speedups",
        f"fitted    on {FITTED_ON} alone: receiving a slice costs NCCL {work.slice_ns / 1e3:.1f} us beside its time on "
        f"the wire, so that it receives at {rate:.1f} GB/s there",
    ]


def _footer(work: Reproduction, rows: Sequence[Row]) -> list[str]:
    missed = [row for row in rows if row.missed]
    predicted = [row for row in rows if row.kind == "predicted"]
    width = max((len(row.figure) for row in missed), default=0)
    nbytes = work.nccl.ring_slice_bytes
    equal = work.beside(replace(work.nccl, chain_slice_bytes=nbytes, grouped_slice_bytes=nbytes))
    alone = work.beside(replace(work.nccl, grouped_slice_bytes=CHUNK_BYTES))
    others = [f"{name} {statistics.fmean(alone.speedups(name)):.2f}" for name in GROUPED]
    return [
        "",
        f"{len(predicted) - len(missed)} of {len(predicted)} predicted figures within {MISS:.0%}. Off by more:",
        *(f"  {row.figure:<{width}}  {100 * row.relative_error:+4.0f}%  {row.shows}" for row in missed),
        "",
        f"Averages: {_hits(work)} of those predicted are within {MISS:.0%}; would NCCL receive at one rate in all "
        f"collectives, fitted likewise, {_hits(equal)}.",
        f"Assumed: grouped sends and receives come in slices of {format_bytes(work.nccl.grouped_slice_bytes)}; with "
        f"{format_bytes(CHUNK_BYTES)}, a chunk of theirs, averages would be {', '.join(others)}.",
        f"Not modelled here: {NOT_MODELLED}.",
    ]


def _hits(work: Reproduction) -> int:
    return sum(not row.missed for row in work.averages() if row.kind == "predicted")


def _document(system: str, work: Reproduction, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "version": __version__,
        "system": system,
        "config": work.ours.topology.document(),
        "baseline": {
            "what": "a cost model after NCCL's own, not a simulation of its plans",
            "standings": {dotted(key): str(standing) for key, standing in work.nccl.standings.items()},
        },
        "fitted": {"name": "slice_ns", "value": work.slice_ns, "on": FITTED_ON},
        "rows": [asdict(row) for row in rows],
        "sizes_bytes": list(work.sizes),
        "speedups": {name: {variant: work.speedups(name, variant) for variant in VARIANTS} for name in AVERAGES},
    }
