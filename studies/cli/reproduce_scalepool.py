"""``cxlemu reproduce scalepool``: its training speedups beside ours, and what a step is made of on both systems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
@click.option("--plot", "plot_dir", type=click.Path(path_type=Path), help="Draw it, as PNG files in this directory.")
@click.option("-v", "--verbose", is_flag=True, help="What other assumptions would give, too; takes twice as long.")
def command(**flags: Any) -> None:
    """Compare ScalePool's published figures (arXiv 2510.14580) with our steps on the modelled hardware.

    Five language models train on clusters of 72 accelerators with NVLink inside, and between them switched CXL or, as
    the baseline, InfiniBand. Nothing is fitted: hardware is that of configs/, parallelism that of the models' papers.
    The figures of tier 2 are of the workloads of cxlemu simulate memory.
    --plot also draws how the speedups move with switches, links and RDMA's overhead, which takes longer.

    \b
    Examples:
      cxlemu reproduce scalepool -v
      cxlemu reproduce scalepool --plot out --json scalepool.json
    """
    from studies.cli.reproduce_scalepool_run import run

    run(**flags)
