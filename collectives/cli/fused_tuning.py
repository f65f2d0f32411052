"""``cxlemu fused --tune`` on this machine: the search, and the file that keeps its results."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from collectives.choices import ORDERS
from collectives.cli.fused import TilingFlags
from collectives.cli.fused_report import FusedSetup
from collectives.fused.choice import Operator, Tiling
from collectives.sweep.fused.halving import candidates, halve
from collectives.sweep.fused.measure import Job
from collectives.sweep.fused.race import Heat, race
from collectives.sweep.fused.tuned import TunedFile, TunedMachine, this_one
from collectives.sweep.fused.tuner import Tuned
from cxlemu.cli.output import check_kept, check_output, writing
from cxlemu.errors import ArgumentError
from cxlemu.world import RankContext

Run = Callable[[Callable[[RankContext], list[list[int]]]], list[list[list[int]]]]  # what every rank returns


class Search(NamedTuple):
    """A search for the fastest choice of a job's operator by ``ranks`` ranks."""

    job: Job
    ranks: int
    budget_s: float


def kept(file: TunedFile | None, operator: Operator, search: Callable[[], Tuned]) -> tuple[Tuned, str]:
    """Look a choice up in a file, or search for it and keep it there; return it, and how it was found."""
    if file is not None and (known := file.get(operator)) is not None:
        return known, f"the fastest of {known.tried} tried, from {file.path}"
    tuned = search()
    if file is None:
        return tuned, f"the fastest of {tuned.tried} tried"
    with writing("--tuned", file.path):
        file.put(operator, tuned)
    return tuned, f"the fastest of {tuned.tried} tried, kept in {file.path}"


def searched(search: Search, run: Run, seen: Callable[[str], None]) -> Tuned:
    job = replace(search.job, check=False, traced=False)

    def heat(choices: tuple[Tiling, ...], rounds: int, limit_s: float) -> list[list[int]]:
        return run(partial(race, heat=Heat(job, choices, rounds, limit_s)))[0]  # all ranks say the same

    return halve(candidates(job.operator, search.ranks), heat, search.budget_s, seen)


def is_searched(asked: TilingFlags) -> bool:
    """Whether a tuner is to choose; before anything begins, refuse what it would choose, and files that cannot be."""
    if asked.tuned_file is not None:
        check_kept("--tuned", asked.tuned_file)
    for flag, file in (("--trace", asked.trace_file), ("--tuned", asked.tuned_file)):
        check_output(flag, file)
    tunes = asked.tunes or asked.tuned_file is not None
    for name in ("comm_rows", "tile", "order", "transport"):
        if tunes and getattr(asked, name):
            raise ArgumentError(f"--{name.replace('_', '-')} does not go with --tune, which chooses it")
    return tunes


def tiling_of(asked: TilingFlags) -> Tiling:
    return Tiling(asked.comm_rows, asked.tile, asked.order or ORDERS[0], asked.transport)


def machine_of(setup: FusedSetup, pace: str) -> TunedMachine:
    memory, ring = setup.memory.describe(), str(setup.job.region_bytes)
    return this_one(setup.topology, {"memory": memory, "ring": ring, "threads": setup.blas_threads, "pace": pace})
