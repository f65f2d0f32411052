"""``cxlemu prove``: plans are right in every interleaving and under all that caches may do, or why not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from collectives.defaults import EVERY, REGION_BYTES, STEP_FACTOR
from cxlemu.choices import DEFAULT_TOPOLOGY, DTYPE_NAMES, INTEGRITIES, REDOPS
from cxlemu.cli.options import Flags, argument, choice, concept, flag, taking
from cxlemu.cli.params import Names, each_once
from cxlemu.cli.vocabulary import RanksParam
from cxlemu.units import format_bytes, format_numbers
from faults.choices import (
    MATRIX_DTYPES,
    MATRIX_MOVED_DTYPES,
    MATRIX_ODD_DTYPE,
    MATRIX_RANKS,
    MATRIX_REDOPS,
    PROVED_RANKS,
    PROVED_RANKS_MAX,
)


class ProveFlags(Flags):
    """Which plans are proved, and for how long."""

    collectives: tuple[str, ...] = argument(nargs=-1, metavar="[COLLECTIVE|FILE.plan]...")
    ranks: Sequence[int] | None = concept(
        "ranks",
        type=RanksParam(1, PROVED_RANKS_MAX),
        default_text=f"{format_numbers(PROVED_RANKS)}; with --algorithm {format_numbers(MATRIX_RANKS)}",
    )
    minbytes: int | None = concept("minbytes", default_text="4K; with --algorithm many")
    maxbytes: int | None = concept("maxbytes", default_text="-b")
    stepfactor: int | None = concept("stepfactor", default_text=STEP_FACTOR)
    datatype: tuple[str, ...] | None = concept(
        "datatype",
        type=Names(DTYPE_NAMES),
        help=f"{', '.join(DTYPE_NAMES)}; a comma list or all.",
        default_text=f"f32; with --algorithm {','.join(MATRIX_DTYPES)},{MATRIX_ODD_DTYPE}, "
        f"or {','.join(MATRIX_MOVED_DTYPES)} where nothing is folded",
    )
    op: tuple[str, ...] | None = concept(
        "op",
        type=Names(REDOPS),
        help=f"{', '.join(REDOPS)}; a comma list or all.",
        default_text=f"sum; with --algorithm {','.join(MATRIX_REDOPS)}",
    )
    root: str = concept("root", default="all", metavar="RANK|all")
    variant: str = flag(
        "--variant",
        default=EVERY,
        callback=each_once,
        help="every, or a comma list of names that cxlemu plan list prints.",
    )
    algorithm: str | None = concept("algorithm", help="Prove an algorithm of your own; executes the file.")
    cluster: int | None = flag(
        "--cluster",
        type=click.IntRange(1, 64),
        help="Number of ranks on each host, with --algorithm or FILE.plan.  [default: 1]",
    )
    in_place: bool | None = flag(
        "--in-place/--out-of-place",
        default=None,
        help="Make the smaller buffer part of the larger one, as in NCCL.  [default: only of a broadcast; with "
        "--algorithm both]",
    )
    integrity: str | None = choice("--integrity", of=INTEGRITIES, help="Prove plans whose doorbells carry checksums.")
    config: str = concept("config", default=DEFAULT_TOPOLOGY)
    region_bytes: int | None = concept(
        "region", default_text=f"{format_bytes(REGION_BYTES)}; a small one with --algorithm without -b"
    )
    budget_s: float | None = concept(
        "budget", help="Time limit; plans that are not proved by then are unknown.", default_text="none"
    )
    jobs: int | None = concept("jobs")
    json_file: Path | None = concept("json")


@click.command()
@taking(ProveFlags, work="prove_run:run")
def command() -> None:
    """Prove that plans are right in every interleaving, whatever caches evict, prefetch and hold back.

    Each plan is proved as a call among any other calls, for every root, on a ring that wraps. A violation names the
    rank, the instruction and the missing link of the chain, and shows a schedule if one was found. The last line states
    what was covered and what was not.

    Without arguments, proves all collectives and barrier in every variant, two-level variants with clusters of every
    possible size, and all matrix products fused with a collective, on small matrices that stand for all.

    With --algorithm, proves a matrix of calls: no bytes, one element, odd sizes, one round, two, three and many; in
    place and not; sum, avg, max, min and prod of f16, f64 and i32, and sum of u8, or u8 and f64 where nothing is
    folded; every root; 2-8 and 17 ranks. Options narrow or widen the matrix. A call that the algorithm declines with
    b.decline(reason) counts neither as a mistake nor as a proof. Misusing the builder, or building a different plan the
    second time, is a violation.

    \b
    Examples:
      cxlemu prove
      cxlemu prove all_gather broadcast -n 2-16 -b 8 -e 1M --variant all,line
      cxlemu prove --variant hierarchical -n 4,6,8
      cxlemu prove -n 64 --json proofs.json
      cxlemu prove all_gather_gemm gemm_reduce_scatter gemm_all_reduce -n 2-16
      cxlemu prove all_reduce --integrity crc32c
      cxlemu prove --algorithm examples/my_all_reduce.py:my_all_reduce
      cxlemu prove --algorithm examples/my_all_reduce.py:my_all_reduce -n 2,16
      cxlemu prove --algorithm examples/my_all_reduce.py:my_all_reduce --cluster 2
      cxlemu prove all_reduce.plan
      cxlemu prove all_reduce.plan --cluster 2

    A plan file does not say which ranks share a host. A plan of clusters that is wrong only where each rank has a host
    of its own is unknown until --cluster says so.

    Exit codes: 0 all plans are right, 1 a plan is wrong, 2 bad input, 3 the prover cannot tell, the budget is spent, or
    an algorithm declines every call.
    """
