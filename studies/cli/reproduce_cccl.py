"""``cxlemu reproduce cccl``: collectives over a CXL pool, published figures and ours beside each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
@click.option("--plot", "plot_dir", type=click.Path(path_type=Path), help="Draw it, as PNG files in this directory.")
def command(**flags: Any) -> None:
    """Compare CCCL's published figures (arXiv 2602.22457) with our plans on the modelled hardware.

    Collectives over a CXL pool, three hosts and six cards against NCCL over InfiniBand. Each
    figure says what it is: config (put in), fitted (one figure, on AllGather alone) or predicted. Exit code 0, also
    where the model is far off: those are listed, with what it shows.

    \b
    Examples:
      cxlemu reproduce cccl
      cxlemu reproduce cccl --plot out --json cccl.json
    """
    from studies.cli.reproduce_cccl_run import run

    run(**flags)
