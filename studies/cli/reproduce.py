"""``cxlemu reproduce``: published systems' figures, ours beside each."""

from __future__ import annotations

from typing import Any

import click

from cxlemu.cli.commands import group_of
from cxlemu.cli.vocabulary import option

_verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="With every assumed figure 25% lower and higher; takes minutes."
)
_plot_option = option("plot", dest="plot_dir", help="Draw it, as PNG files in this directory: there are several.")


@click.group(cls=group_of("cxlemu.reproduce"))
def command() -> None:
    """Compare published measurements with our plans on the modelled hardware.

    Other packages add systems: entry points of the group cxlemu.reproduce.

    \b
    Examples:
      cxlemu reproduce cccl
      cxlemu reproduce flux
      cxlemu reproduce scalepool
      cxlemu reproduce validation
    """


@click.command()
@option("json")
@_plot_option
@_verbose_option
def cccl(**flags: Any) -> None:
    """Compare CCCL's published figures (arXiv 2602.22457) with our plans on the modelled hardware.

    Collectives over a CXL pool, three hosts and six cards against NCCL over InfiniBand. Each
    figure says what it is: config (put in), fitted (one figure, on AllGather alone) or predicted. Exit code 0, also
    where the model is far off: those are listed, with what it shows.

    \b
    Examples:
      cxlemu reproduce cccl
      cxlemu reproduce cccl -v
      cxlemu reproduce cccl --plot out --json cccl.json
    """
    from studies.cli.reproduce_cccl import run

    run(**flags)


@click.command()
@click.option(
    "-m",
    "rows",
    type=click.IntRange(8, 1 << 16),
    multiple=True,
    metavar="N",
    help="Only shapes of N rows; no ranges, no blocks.",
)
@option("json")
@_plot_option
@_verbose_option
def flux(**flags: Any) -> None:
    """Compare FLUX's published figures (arXiv 2406.06858) with our fused plans on the modelled hardware.

    Layers of GPT-3 on eight accelerators, over NVLink, PCIe and a CXL pool: every shape in the tiles that are fastest
    there, beside the same products medium-grained and unfused. Nothing is fitted to them. Exit code 0, also where the
    model is far off: that is listed.

    \b
    Examples:
      cxlemu reproduce flux
      cxlemu reproduce flux -v
      cxlemu reproduce flux -m 512 -m 4096
      cxlemu reproduce flux --plot out --json flux.json
    """
    from studies.cli.reproduce_flux import run

    run(**flags)


@click.command()
@option("json")
@_plot_option
@click.option("-v", "--verbose", is_flag=True, help="What other assumptions would give, too; takes twice as long.")
def scalepool(**flags: Any) -> None:
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
    from studies.cli.reproduce_scalepool import run

    run(**flags)


@click.command()
@option("json")
@_plot_option
def validation(**flags: Any) -> None:
    """Compare what others measured on real switches and networks with the model.

    Ports of a CXL switch, reads of two sizes beside each other, processors, RDMA, NVLink, and NCCL's small
    collectives, each with its source and date. No config is changed for it, and nothing
    fitted to it. Exit code 0, also where the model is far off: those are listed, with the reason.

    \b
    Examples:
      cxlemu reproduce validation
      cxlemu reproduce validation --plot out --json validation.json
    """
    from studies.cli.reproduce_validation import run

    run(**flags)
