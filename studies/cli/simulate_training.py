"""``cxlemu simulate training``: what a language model's training step would take on a modelled fabric."""

from pathlib import Path

import click

from collectives.choices import WITH
from cxlemu.cli.options import Flags, choice, concept, flag, path, taking
from cxlemu.cli.params import NumberParam
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam
from studies.choices import OFFLOAD_PLACES
from studies.training.parallelism import RECOMPUTE

DEFAULT_TOPOLOGY = "titan2-6xcz120"


class TrainingFlags(Flags):
    model: str = flag("--model", default="llama3-8b", help="Model: a shipped name or a file.")
    parallel: str = flag(
        "--parallel",
        default="fsdp",
        metavar="WORDS",
        help="Comma list of fsdp, sp, serial, ring, dp=N, tp=N, pp=N, ep=N and cp=N.",
    )
    config: str = concept("config", default=DEFAULT_TOPOLOGY, help="Topology of the modelled fabric: a file or a name.")
    against: tuple[str, ...] = flag(
        "--against",
        multiple=True,
        metavar="CONFIG",
        help="Topology of another fabric to compare with. Several give a range.",
    )
    inside: str | None = flag(
        "--inside", metavar="CONFIG", help="Topology of the fabric inside a cluster, which tensor parallelism uses."
    )
    ranks: int | None = concept("ranks", type=RanksParam(1, 1 << 20), default_text="one for each place of -c")
    accelerator: str = flag("--accelerator", default="h100-sxm", help="Accelerator: a shipped name or a file.")
    batch: int | None = flag(
        "--batch",
        type=click.IntRange(1, 1 << 24),
        metavar="SEQUENCES",
        help="Number of sequences of a step, on all ranks together.  [default: the model's]",
    )
    microbatch: int = flag(
        "--microbatch",
        type=click.IntRange(1, 4096),
        metavar="SEQUENCES",
        default=1,
        help="Number of sequences of a microbatch.",
    )
    recompute: str = choice(
        "--recompute", of=RECOMPUTE, default="none", help="Activations that the backward pass computes again."
    )
    capacity_factor: float | None = flag(
        "--capacity-factor",
        type=NumberParam(0, min_open=True),
        metavar="X",
        help="Drop the tokens of an expert beyond X times the mean.  [default: none]",
    )
    skew: float | None = flag(
        "--skew",
        type=NumberParam(0, 10),
        metavar="X",
        help="Spread of the experts' popularity, whose logarithm is normal.  [default: 0]",
    )
    seed: int | None = flag(
        "--seed", type=click.IntRange(0), metavar="N", help="Seed of the experts that tokens go to.  [default: 1]"
    )
    histogram: str | None = flag(
        "--histogram",
        metavar="NUMBERS|FILE",
        help="Tokens of each expert, between commas or in a file, instead of a draw.",
    )
    offload: str | None = choice(
        "--offload", of=OFFLOAD_PLACES, help="Memory that holds the optimizer's state.  [default: the accelerator's]"
    )
    fails: tuple[str, ...] = flag(
        "--fail",
        multiple=True,
        metavar="WHAT:NAME@US",
        help="Fail link:NAME or switch:NAME of -c, US microseconds after the step began.",
    )
    beside: Path | None = path("--with", metavar="FILE", help=WITH)
    json_file: Path | None = concept("json")
    trace_file: Path | None = concept("trace")


@click.command()
@for_each_ranks("trace_file")
@taking(TrainingFlags, work="simulate_training_run:run")
def command() -> None:
    """Simulate a training step of a language model.

    The accelerator's model gives the time of matrix products, and our plans in virtual time that of collectives. The
    report divides the time of a step into computing and, while accelerators are idle, the communication that they
    wait for: the exposed communication.

    \b
    Examples:
      cxlemu simulate training --model llama3-8b --against infiniband-3xh100
      cxlemu simulate training -c racks-2x72 -n 3 --fail switch:cxl-spine0@500000
      cxlemu simulate training --batch 12 --microbatch 4 --trace step.json
      cxlemu simulate training --model my-model.yaml --offload pool
      cxlemu simulate training -n 36 -c pod-1024 --inside nvl72 --parallel tp=12
      cxlemu simulate training -n 8 -c cxl-8xh100 --batch 8 --parallel fsdp,cp=2
    """
