"""A job: what it is to do on some ranks of a fabric that others use as well."""

from typing import NamedTuple, Protocol

from cxlemu.engines.shared import SharedFabric


class Figure(NamedTuple):
    """Something about a job that is compared."""

    name: str
    value: float
    is_rate: bool = False  # more of it is better


class Played(Protocol):
    """A job that goes on, or went on."""

    repeats: bool  # whether it goes on while another job does, when it has done what it was to do

    @property
    def over_ns(self) -> int | None: ...

    def figures(self) -> list[Figure]: ...


class FabricJob(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> int: ...

    def begin(self, fabric: SharedFabric, ranks: range) -> Played: ...
