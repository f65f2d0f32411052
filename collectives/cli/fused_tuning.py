"""``cxlemu fused --tune`` on this machine: the search, and the file that keeps its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from collectives.cli.fused_report import FusedSetup
from collectives.fused.choice import Tiling
from collectives.sweep.fused.halving import candidates, halve
from collectives.sweep.fused.measure import Job
from collectives.sweep.fused.race import Heat, race
from collectives.sweep.fused.tuned import TunedFile, TunedMachine, this_one
from collectives.sweep.fused.tuner import Tuned
from cxlemu.cli.output import writing
from cxlemu.errors import ArgumentError
from cxlemu.world import RankContext

Run = Callable[[Callable[[RankContext], list[list[int]]]], list[list[list[int]]]]  # what every rank returns


class Search(NamedTuple):
    """A search for the fastest choice of a job's operator by ``ranks`` ranks.

    ``file`` holds what was found before, and gets what is found now.
    """

    job: Job
    ranks: int
    file: TunedFile | None
    budget_s: float


def tuned(search: Search, run: Run, seen: Callable[[str], None]) -> tuple[Tuned, str]:
    """Look a choice up in the search's file, or search for it and keep it there; return it, and how it was found."""
    operator, file = search.job.operator, search.file
    if file is not None and (known := file.get(operator)) is not None:
        return known, f"the fastest of {known.tried} tried, from {file.path}"
    job = replace(search.job, check=False, traced=False)

    def heat(choices: tuple[Tiling, ...], rounds: int, limit_s: float) -> list[list[int]]:
        return run(partial(race, heat=Heat(job, choices, rounds, limit_s)))[0]  # all ranks say the same

    found = halve(candidates(operator, search.ranks), heat, search.budget_s, seen)
    if file is None:
        return found, f"the fastest of {found.tried} tried"
    with writing("--tuned", file.path):
        file.put(operator, found)
    return found, f"the fastest of {found.tried} tried, kept in {file.path}"


def refuse_given(tunes: bool, given: Mapping[str, object]) -> None:
    """Refuse flags that a tuner is to choose."""
    if tunes and any(given.values()):
        named = next(flag for flag, value in given.items() if value)
        raise ArgumentError(f"{named} does not go with --tune, which chooses it")


def machine_of(setup: FusedSetup, pace: str) -> TunedMachine:
    """The machine that a choice holds for."""
    memory, ring = setup.memory.describe(), str(setup.job.region_bytes)
    return this_one(setup.topology, {"memory": memory, "ring": ring, "threads": setup.blas_threads, "pace": pace})
