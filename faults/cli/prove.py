"""``cxlemu prove``: plans are right in every interleaving and under all that caches may do, or why not."""

from __future__ import annotations

from typing import Any

import click

from collectives.sweep.defaults import EVERY, REGION_BYTES, STEP_FACTOR
from cxlemu.choices import DEFAULT_TOPOLOGY, DTYPE_NAMES, INTEGRITIES, REDOPS
from cxlemu.cli.params import BytesParam, Names
from cxlemu.cli.vocabulary import RanksParam, option
from cxlemu.units import format_bytes, format_numbers
from faults.choices import MATRIX_DTYPES, MATRIX_RANKS, MATRIX_REDOPS, PROVED_RANKS, PROVED_RANKS_MAX


@click.command()
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE|FILE.plan]...")
@option(
    "ranks",
    type=RanksParam(1, PROVED_RANKS_MAX),
    help=f"[default: {format_numbers(PROVED_RANKS)}; with --algorithm {format_numbers(MATRIX_RANKS)}]",
)
@option("minbytes", help="Smallest size.  [default: 4K; with --algorithm many]")
@option("maxbytes", help="Largest size.  [default: -b]")
@click.option(
    "-f",
    "--stepfactor",
    type=click.IntRange(2),
    metavar="N",
    help=f"From size to size, times.  [default: {STEP_FACTOR}]",
)
@option(
    "datatype",
    type=Names(DTYPE_NAMES),
    help=f"{', '.join(DTYPE_NAMES)}; a comma list or all.  [default: f32; with --algorithm {','.join(MATRIX_DTYPES)}]",
)
@option(
    "op",
    type=Names(REDOPS),
    help=f"{', '.join(REDOPS)}; a comma list or all.  [default: sum; with --algorithm {','.join(MATRIX_REDOPS)}]",
)
@option("root", default="all", metavar="RANK|all", show_default=True, help="Root of collectives that have one.")
@click.option("--variant", default=EVERY, show_default=True, help="every; or naive, aggregate, all, line, ...")
@click.option("--algorithm", metavar="FILE.py:FUNCTION", help="Prove an algorithm of your own; executes the file.")
@click.option(
    "--in-place/--out-of-place",
    default=None,
    help="Make the smaller buffer part of the larger one, as NCCL does.  [default: no; with --algorithm both]",
)
@click.option("--integrity", type=click.Choice(INTEGRITIES), help="Prove plans whose doorbells carry checksums.")
@option("config", default=DEFAULT_TOPOLOGY, show_default=True, help="A topology: a file or a name.")
@click.option(
    "--region-bytes",
    type=BytesParam(),
    help=f"The communicator's ring.  [default: {format_bytes(REGION_BYTES)}; a small one with --algorithm without -b]",
)
@option("budget", help="Stop proving after this many seconds; what is not proved by then is unknown.  [default: none]")
@click.option("-j", "--jobs", type=click.IntRange(1, 256), help="How many workers.  [default: one per core]")
@option("json")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Prove plans: right in every interleaving, whatever caches evict, prefetch and hold back, or why not.

    Each plan is proved as a call among any others, of every root, on a ring that wraps. A violation names the rank,
    the instruction and the link of the chain that is missing, with a schedule that shows it where one was found. The
    last line says what was covered, and what not.

    Without arguments: all collectives and barrier, in every variant, on two levels with clusters of every size that
    the ranks can come in, and all matrix products that are fused with one, on small matrices that stand for all.

    An algorithm of your own is asked for a matrix of calls: no bytes, one element, odd sizes, one round and many; in
    place and not; sum, avg and max; f16 and f64; every root; 2-5, 7 and 8 ranks. Flags narrow it, or widen it. What it
    refuses with an ArgumentError is no mistake, and no proof.

    \b
    Examples:
      cxlemu prove
      cxlemu prove all_gather broadcast -n 2-16 -b 8 -e 1M --variant all,line
      cxlemu prove --variant hierarchical -n 4-8
      cxlemu prove -n 64 --json proofs.json
      cxlemu prove all_gather_gemm gemm_reduce_scatter gemm_all_reduce -n 2-16
      cxlemu prove all_reduce --integrity crc32c
      cxlemu prove --algorithm examples/my_all_reduce.py:my_all_reduce
      cxlemu prove --algorithm examples/my_all_reduce.py:my_all_reduce -n 2,16
      cxlemu prove all_reduce.plan

    \b
    Exit codes: 0 all is right, 1 something is not, 2 bad input, 3 the prover cannot tell, or the budget is spent.
    """
    from faults.cli.prove_run import run

    run(ctx, **flags)
