"""What ``cxlemu explore`` searches, and which calls it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from faults.explore.result import Exploration
from faults.machine.steps import Machine


@dataclass(frozen=True)
class Searchable:
    """A program to search.

    Attributes:
        name: Its name, for people.
        ranks: Number of ranks.
        machine: Its machine.
        judge: Gives the result of a search, with findings that the search alone does not make.
        known: The result, if no search is needed.
        note: A note beside the verdict.
    """

    name: str
    ranks: int
    machine: Machine
    judge: Callable[[Exploration], Exploration]
    known: Exploration | None = None
    note: str = ""


@dataclass(frozen=True)
class Calls:
    """Consecutive calls of a collective; None where the command line does not say.

    Attributes:
        total_bytes: Size, as nccl-tests counts it.
        variant: Name of the variant.
        number: How many calls.
        cluster: Ranks on each host.
        dtype: Name of the dtype.
        op: Name of the operation.
        root: The root.
        in_place: Whether the result replaces the input.
        among: Whether other calls come before, between and after them.
    """

    total_bytes: int | None = None
    variant: str | None = None
    number: int | None = None
    cluster: int | None = None
    dtype: str | None = None
    op: str | None = None
    root: int | None = None
    in_place: bool = False
    among: bool = False
