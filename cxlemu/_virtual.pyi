from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

Table = NDArray[Any]  # rows of the dtype that engines/virtual.py and cxlemu/cost say

CONSTANTS: dict[str, int]  # as C was compiled with them

def repacked(records: Table, /) -> tuple[int, bytes]: ...

class Simulation:
    def __init__(self, model: dict[str, Any]) -> None: ...  # CostModel.tables()
    def communicator(self, layout: Table, cards: Table, epochs: int, used: int, /) -> int: ...
    def call(
        self,
        comm: int,
        epoch: int,
        rounds: int,
        regions: Table,
        groups: Table,
        kernels: Table,
        members: Iterable[tuple[Sequence[Table], int]] | int,  # (streams, events) of each, or a call that has the same
        /,
    ) -> int: ...
    def run(self, turns: Table, first_turn: Table, logs: bool, /) -> tuple[int, int, int, int, int]: ...
    def begin(self, call: int, ranks: Table, now: int, /) -> None: ...
    def advance(self, until: int, /) -> tuple[tuple[int, int, int, int, int], int, int]: ...
    def transfer(
        self, rank: int, cards: Table, granularity: int, offset: int, nbytes: int, to_pool: bool, now: int, /
    ) -> tuple[int, int, int]: ...
    def blocked(self) -> list[tuple[int, int, int, int]]: ...
    def seen(self) -> dict[str, Any]: ...
