"""``cxlemu reproduce``: published figures of other systems, ours beside each."""

from pathlib import Path

import click

from cxlemu.cli.commands import group_of
from cxlemu.cli.options import JsonFlags, concept, flag, switch, taking


class IntervalsFlags(JsonFlags):
    intervals: bool = switch(
        "--intervals", help="Also print each figure low, middle and high, within the ranges of the configs' figures."
    )


class ReproduceFlags(IntervalsFlags):
    plot_dir: Path | None = concept("plot", help="Draw the figures to PNG files in this directory.")


class CcclFlags(ReproduceFlags):
    verbose: bool = concept("verbose", help="Also vary every assumed figure by 25% in both directions; takes minutes.")


class FluxFlags(CcclFlags):
    rows: tuple[int, ...] = flag(
        "-m",
        type=click.IntRange(8, 1 << 16),
        multiple=True,
        metavar="N",
        help="Compare only shapes of N rows, without ranges and blocks; may be repeated.",
    )


class ScalePoolFlags(ReproduceFlags):
    verbose: bool = concept("verbose", help="Also show the results of other assumptions; takes twice as long.")


@click.group(cls=group_of("cxlemu.reproduce"))
def command() -> None:
    """Compare published measurements with our plans on the modelled hardware.

    Other packages add systems: entry points of the group cxlemu.reproduce.

    \b
    Examples:
      cxlemu reproduce cccl
      cxlemu reproduce flux
      cxlemu reproduce scalepool
      cxlemu reproduce serving
      cxlemu reproduce validation
    """


@click.command()
@taking(CcclFlags, work="reproduce_cccl:run")
def cccl() -> None:
    """Compare CCCL's published figures (arXiv 2602.22457) with our plans on the modelled hardware.

    Collectives over a CXL pool with three hosts and six cards are compared with NCCL over InfiniBand. Each figure is
    marked as input (config), fitted (one figure, on AllGather alone) or predicted. Exit code 0 also where the model is
    far off: such figures are listed with what they show.

    \b
    Examples:
      cxlemu reproduce cccl
      cxlemu reproduce cccl -v
      cxlemu reproduce cccl --plot out --json cccl.json
    """


@click.command()
@taking(FluxFlags, work="reproduce_flux:run")
def flux() -> None:
    """Compare FLUX's published figures (arXiv 2406.06858) with our fused plans on the modelled hardware.

    Layers of GPT-3 run on eight accelerators over NVLink, PCIe and a CXL pool: every shape with its fastest tiles,
    beside the same products medium-grained and unfused. Nothing is fitted to the figures. Exit code 0 also where the
    model is far off: such figures are listed.

    \b
    Examples:
      cxlemu reproduce flux
      cxlemu reproduce flux -v
      cxlemu reproduce flux -m 512 -m 4096
      cxlemu reproduce flux --plot out --json flux.json
    """


@click.command()
@taking(ScalePoolFlags, work="reproduce_scalepool:run")
def scalepool() -> None:
    """Compare ScalePool's published figures (arXiv 2510.14580) with our steps on the modelled hardware.

    Five language models train on clusters of 72 accelerators. NVLink joins accelerators inside a cluster; switched CXL
    or, as the baseline, InfiniBand joins clusters. Nothing is fitted: configs/ describes the hardware, the models'
    papers the parallelism. The workloads of cxlemu simulate memory give the figures of tier 2.
    --plot also draws how the speedups change with switches, links and RDMA's overhead, which takes longer.

    \b
    Examples:
      cxlemu reproduce scalepool -v
      cxlemu reproduce scalepool --plot out --json scalepool.json
    """


@click.command()
@taking(ReproduceFlags, work="reproduce_validation:run")
def validation() -> None:
    """Compare published measurements of real switches and networks with the model.

    The measurements are of ports of a CXL switch, concurrent reads of two sizes, processors, RDMA, NVLink, and NCCL's
    small collectives, each with its source and date. No config is changed for them, and nothing is fitted to them.
    Exit code 0 also where the model is far off: such figures are listed with the reason.

    \b
    Examples:
      cxlemu reproduce validation
      cxlemu reproduce validation --intervals
      cxlemu reproduce validation --plot out --json validation.json
    """


@click.command()
@taking(IntervalsFlags, work="reproduce_serving:run")
def serving() -> None:
    """Compare measured servers of language models with cxlemu simulate serving.

    The measurements are times to the first token, times per output token and throughputs of vLLM on H100, H200, A100
    and H800, keys and values handed over by Mooncake, and what Beluga (arXiv 2511.20172) publishes of a CXL pool
    against RDMA. Nothing is fitted to them. Exit code 0 also where the model is far off: such figures are listed with
    the reason.

    \b
    Examples:
      cxlemu reproduce serving
      cxlemu reproduce serving --intervals --json serving.json
    """
