"""What ``cxlemu explore`` searches, and which calls it is asked for."""

from collections.abc import Callable
from dataclasses import dataclass

from faults.explore.result import Exploration
from faults.machine.steps import Machine


@dataclass(frozen=True)
class Searchable:
    """A program to search."""

    name: str
    ranks: int
    machine: Machine
    # gives the result of a search, with findings that the search alone does not make
    judge: Callable[[Exploration], Exploration]
    known: Exploration | None = None  # the result, if no search is needed
    note: str = ""


@dataclass(frozen=True)
class Calls:
    """Consecutive calls of a collective; None where the command line does not say."""

    total_bytes: int | None = None  # size, as nccl-tests counts it
    variant: str | None = None
    number: int | None = None  # how many calls
    cluster: int | None = None  # ranks on each host
    dtype: str | None = None
    op: str | None = None
    root: int | None = None
    in_place: bool = False  # whether the result replaces the input
