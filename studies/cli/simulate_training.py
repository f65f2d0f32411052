"""``cxlemu simulate training``: what a language model's training step would take on a modelled fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam, option
from studies.choices import OFFLOAD_PLACES
from studies.training.parallelism import RECOMPUTE

DEFAULT_TOPOLOGY = "titan2-6xcz120"


@click.command()
@click.option("--model", default="llama3-8b", show_default=True, help="A shipped model's name, or a file.")
@click.option(
    "--parallel",
    default="fsdp",
    show_default=True,
    metavar="WORDS",
    help="fsdp, sp, serial, dp=N, tp=N, pp=N, with commas between.",
)
@option("config", default=DEFAULT_TOPOLOGY, show_default=True, help="The fabric: a topology file or name.")
@click.option("--against", metavar="CONFIG", help="Another fabric to compare with.")
@click.option("--inside", metavar="CONFIG", help="The fabric inside a cluster, which tensor parallelism uses.")
@option("ranks", type=RanksParam(1, 1 << 20), help="[default: one for each place of -c]")
@click.option("--accelerator", default="h100-sxm", show_default=True, help="A shipped accelerator's name, or a file.")
@click.option(
    "--batch",
    type=click.IntRange(1, 1 << 24),
    metavar="SEQUENCES",
    help="Of a step, all ranks.  [default: the model's]",
)
@click.option("--microbatch", type=click.IntRange(1, 4096), metavar="SEQUENCES", default=1, show_default=True)
@click.option("--recompute", type=click.Choice(RECOMPUTE), default="none", show_default=True)
@click.option(
    "--offload", type=click.Choice(OFFLOAD_PLACES), help="Where the optimizer's state is, if not with the accelerator."
)
@click.option(
    "--fail",
    "fails",
    multiple=True,
    metavar="WHAT:NAME@US",
    help="link:NAME@US or switch:NAME@US of -c fails US microseconds after the step began.",
)
@option("json")
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), help="Write what happened when, for Perfetto.")
@for_each_ranks("trace_file")
def command(**flags: Any) -> None:
    """Simulate a training step of a language model.

    Computing takes what the accelerator makes of the model's matrix products; every collective takes what our plans
    take in virtual time. A step's time is billed to what the accelerators do, and while they do nothing, to what they
    wait for: that is the communication that shows.

    \b
    Examples:
      cxlemu simulate training --model llama3-8b --against infiniband-3xh100
      cxlemu simulate training -c racks-2x72 -n 3 --fail switch:cxl-spine0@500000
      cxlemu simulate training --batch 12 --microbatch 4 --trace step.json
      cxlemu simulate training --model my-model.yaml --offload pool
      cxlemu simulate training -n 36 -c pod-1024 --inside nvl72 --parallel tp=12
    """
    from studies.cli.simulate_training_run import run

    run(**flags)
