"""``cxlemu reproduce flux``: every shape on every cluster, then the published figures beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.option(
    "-m",
    "rows",
    type=click.IntRange(8, 1 << 16),
    multiple=True,
    metavar="N",
    help="Only shapes of so many rows; no ranges, no blocks.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
@click.option("--plot", "plot_dir", type=click.Path(path_type=Path), help="Draw it, as PNG files in this directory.")
def command(**flags: Any) -> None:
    """Compare FLUX's published figures (arXiv 2406.06858) with our fused plans on the modelled hardware.

    Layers of GPT-3 on eight accelerators, over NVLink, PCIe and a CXL pool: every shape in the tiles that are fastest
    there, beside the same products medium-grained and unfused. Nothing is fitted to them. Exit code 0, also where the
    model is far off: that is listed.

    \b
    Examples:
      cxlemu reproduce flux
      cxlemu reproduce flux -m 512 -m 4096
      cxlemu reproduce flux --plot out --json flux.json
    """
    from studies.cli.reproduce_flux_run import run

    run(**flags)
