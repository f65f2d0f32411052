from collections.abc import Sequence

from cxlemu.memory.protocol import Bytes
from cxlemu.plan.instructions import Records

class Program:
    def __init__(
        self,
        cards: Sequence[Bytes],
        base: int,
        extent_bytes: int,
        ranks: int,
        slots: int,
        doorbells_per_rank: int,
        slot_card_bytes: int,
        doorbells_offset: int,
        slot_doorbell_bytes: int,
        data_offset: int,
        regions: Records,
        groups: Records,
        streams: Sequence[Records],
        buffer_bytes: Sequence[int],
        events: int,
        heap_offset: int = ...,  # default: extent_bytes, no heap
    ) -> None: ...
    def start(self, epoch: int, tag: int, *buffers: Bytes) -> None: ...
    def advance(self, idle_ns: int, spins: int) -> tuple[int, list[tuple[int, int, int, int, int]]]: ...
    def skip(self, stream: int) -> None: ...

def fold(dtype: int, redop: int, dst: Bytes, a: Bytes, b: Bytes, c: Bytes | None, divisor: int) -> None: ...
