"""``cxlemu run``: collectives on a pool, every result checked, in a table as nccl-tests prints it."""

from pathlib import Path
from typing import Literal

import click

from collectives.defaults import AUTO, DEFAULT_SEED, MIN_BYTES, REGION_BYTES, STEP_FACTOR
from cxlemu.choices import (
    DEFAULT_TOPOLOGY,
    DTYPE_NAMES,
    ENGINES,
    INTEGRITIES,
    REDOPS,
    TIME_SCALE_MAX,
    TIME_SCALE_MIN,
    TRANSPORTS,
)
from cxlemu.cli.backends import backends
from cxlemu.cli.options import Flags, argument, choice, concept, flag, switch, taking, tenant_option
from cxlemu.cli.params import Names, NumberParam
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam
from cxlemu.units import format_bytes

RANKS = 4


class RunFlags(Flags):
    collectives: tuple[str, ...] = argument(nargs=-1, metavar="[COLLECTIVE]...|FILE.plan")
    minbytes: int | None = concept("minbytes", default_text=MIN_BYTES)
    maxbytes: int | None = concept("maxbytes", default_text="1M, or -b if larger")
    stepfactor: int | None = concept("stepfactor", default_text=STEP_FACTOR)
    stepbytes: int | None = concept("stepbytes")
    datatype: tuple[str, ...] = concept(
        "datatype", type=Names(DTYPE_NAMES), default="f32", help=f"{', '.join(DTYPE_NAMES)}; a comma list or all."
    )
    op: tuple[str, ...] = concept(
        "op", type=Names(REDOPS), default="sum", help=f"{', '.join(REDOPS)}; a comma list or all."
    )
    root: str = concept("root", default="0", metavar="RANK|all")
    variant: str = flag(
        "--variant",
        default=AUTO,
        help="auto, every, or a name that cxlemu plan list prints; NAME-K for at most K chunks.",
    )
    algorithm: str | None = concept("algorithm")
    protocol: str | None = flag(
        "--protocol", metavar="FILE.py:NAME", help="Run a protocol of your own instead; executes the file."
    )
    seeds: int | None = flag(
        "--seeds",
        type=click.IntRange(1),
        metavar="N",
        help="With --protocol: run it under N adversaries.  [default: 10]",
    )
    repeat: int | None = flag(
        "--repeat",
        type=click.IntRange(1),
        metavar="N",
        help="With --protocol: run each seed N times.  [default: 1; 10 without an adversary]",
    )
    exitfirst: bool = switch("-x", "--exitfirst", help="With --protocol: stop after the first wrong run.")
    in_place: bool = switch("--in-place", help="Make the smaller buffer part of the larger one, as in NCCL.")
    iters: int = flag("--iters", type=click.IntRange(1), metavar="N", default=5, help="Timed calls per row.")
    warmup: int = flag(
        "-w", "--warmup", type=click.IntRange(0), default=1, help="Untimed calls before the timed ones, checked too."
    )
    check: str = choice("-C", "--check", of=["0", "1"], default="1", help="0 skips checking results.")
    ranks: int | None = concept("ranks", type=RanksParam(1, 4096), default_text=f"{RANKS}, or as many as were launched")
    config: str | None = concept("config", default_text=f"{DEFAULT_TOPOLOGY}, or as many cards as devices")
    backend: str = choice(
        "--backend", of=backends().names, default="emulated", help=f"Where the pool's bytes live. {backends().help}"
    )
    devices: tuple[str, ...] = flag(
        "--device", multiple=True, metavar="PATH", help="Device of a DAX pool; repeat it for each card, in any order."
    )
    pool: str | None = flag(
        "--pool", metavar="UUID|NAME", help="Use only devices of this pool; with --tenant, the shared-memory pool."
    )
    tenant: str | None = tenant_option()
    adversary: str | None = flag(
        "--adversary",
        metavar="SEED|off",
        help=f"Seed for evicting, prefetching and delaying lines; off leaves caches alone.  [default: {DEFAULT_SEED}]",
    )
    script_file: Path | None = concept(
        "faults", type=click.Path(path_type=Path), help="Inject the faults of this script."
    )
    engine: str = flag("--engine", type=click.Choice(ENGINES), default="native", help="Engine that executes plans.")
    integrity: str | None = choice(
        "--integrity",
        of=INTEGRITIES,
        help="Send a checksum with each doorbell, and compare it with what is read.  [default: none]",
    )
    transport: str = choice(
        "--transport",
        of=TRANSPORTS,
        default="pool",
        help="process: copy large arrays from process to process, as MPI does; needs --backend shm and one host.",
    )
    how: Literal["processes", "threads", "env"] = concept(
        "launch",
        type=click.Choice(["processes", "threads", "env"]),
        default="processes",
        help="Start ranks as processes or threads; env: mpirun, torchrun or srun started them.",
    )
    pace: bool = switch("--pace", help="Slow ranks down to the times of the config's cost model, times --time-scale.")
    time_scale: float | None = flag(
        "--time-scale",
        type=NumberParam(TIME_SCALE_MIN, TIME_SCALE_MAX),
        metavar="X",
        help="Real nanoseconds per modelled nanosecond, with --pace.  [default: measured on this machine]",
    )
    region_bytes: int = concept("region", default=format_bytes(REGION_BYTES).replace(" ", ""))
    deadline_s: float = concept("deadline", default=30.0, help="Limit for each wait, not for the run.")
    json_file: Path | None = concept("json")
    verbose: bool = concept("verbose", help="Show why each variant was chosen, the layout and the placement.")


@click.command()
@for_each_ranks()
@taking(RunFlags, work="run_work:run")
def command() -> None:
    """Run collectives on a pool, emulated or real, and check every byte.

    Without arguments, runs all eight collectives with 4 ranks in 4 processes on six cards. Sizes, columns and options
    are those of nccl-tests with two exceptions: -n is the number of ranks, as for mpirun (--iters replaces -n of
    nccl-tests), and -c is the topology (-C replaces -c of nccl-tests).

    A plan file from `cxlemu plan save` sets ranks, size, type, operation, root and ring; -c must name the topology that
    the plan was made for.

    \b
    Examples:
      cxlemu run
      cxlemu run all_reduce -n 3 -b 8 -e 4M -f 2 -d f32,bf16 -o all
      cxlemu run broadcast --variant every --root all --adversary 7 -v
      cxlemu run --algorithm examples/my_all_reduce.py:my_all_reduce
      cxlemu run all_reduce.plan
      cxlemu run --protocol examples/protocols/ring_queue.py:fixed --seeds 20
      cxlemu run all_gather --launch threads --json result.json
      cxlemu run all_reduce -n 3 -e 4K --faults examples/disturbed.yaml
      cxlemu run all_gather -n 2 -b 64K -e 4M -f 8 -c laptop --pace
      mpirun -np 3 cxlemu run --launch env
      cxlemu run -e 16M -c one-host-four-ranks --backend shm --transport process
      cxlemu run --backend dax --device /dev/dax0.0 --device /dev/dax1.0
      cxlemu run --tenant red --pool shared --backend shm
    """
