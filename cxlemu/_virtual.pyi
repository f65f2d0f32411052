from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer

class Simulation:
    def __init__(
        self,
        rates: Buffer,
        routes: Buffer,
        route_of: Buffer,
        card_latency_ns: Buffer,
        host_of: Buffer,
        costs: Buffer,
        first_read: int,
        first_write: int,
        first_total: int,
        first_to: int,
        first_from: int,
        first_both: int,
    ) -> None: ...
    def communicator(self, ranks: int, slots: int, doorbells_per_rank: int, cards: int, epochs: int, /) -> int: ...
    def call(
        self,
        comm: int,
        epoch: int,
        rounds: int,
        regions: Buffer,
        groups: Buffer,
        streams: list[Sequence[Buffer]],
        events: list[int],
        /,
    ) -> int: ...
    def run(self, turns: Buffer, first_turn: Buffer, logs: bool, /) -> tuple[int, int, int, int]: ...
    def blocked(self) -> list[tuple[int, int, int, int]]: ...
    def seen(self) -> dict[str, Any]: ...
