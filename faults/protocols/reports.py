"""How each rank ended, told to all others through the pool: room for each, written before a barrier and read after."""

import json
from dataclasses import asdict

import numpy as np

from cxlemu.errors import RunError
from cxlemu.memory.protocol import HostMemory
from cxlemu.pool.arena import Arena
from faults.protocols.rank import TEXT_CHARS, Ending, How

LENGTH_BYTES = 8
REPORT_BYTES = 24 << 10  # three texts of at most six bytes per character, and their names
CARD = 0


class Reports:
    """A page in the pool for each rank, on which it tells all others how it ended."""

    def __init__(self, memory: HostMemory, arena: Arena, ranks: int) -> None:
        self._memory = memory
        self._offset = arena.take(ranks * REPORT_BYTES).at
        self._ranks = ranks

    def publish(self, rank: int, ending: Ending) -> None:
        """Write a rank's report, so that it is in the pool when this returns."""
        text = json.dumps(asdict(ending)).encode()
        assert len(text) <= REPORT_BYTES - LENGTH_BYTES
        page = np.frombuffer(len(text).to_bytes(LENGTH_BYTES, "little") + text, np.uint8)
        offset = self._offset + rank * REPORT_BYTES
        self._memory.write(CARD, offset, page)
        self._memory.flush(CARD, offset, page.nbytes)
        self._memory.fence()

    def read(self) -> tuple[Ending, ...]:
        """Read the reports of all ranks, in rank order; a barrier must lie between `publish` and this."""
        nbytes = self._ranks * REPORT_BYTES
        self._memory.invalidate(CARD, self._offset, nbytes)
        pages = np.empty(nbytes, np.uint8)
        self._memory.read(CARD, self._offset, pages)
        return tuple(_parse(rank, page.tobytes()) for rank, page in enumerate(pages.reshape(-1, REPORT_BYTES)))


def _parse(rank: int, page: bytes) -> Ending:
    """Read a report; it comes from the pool, so nothing in it is trusted."""
    length = int.from_bytes(page[:LENGTH_BYTES], "little")
    try:
        said: dict[str, object] = json.loads(page[LENGTH_BYTES:][:length])  # no longer than the page
        result, text, where = (said[name] for name in ("result", "text", "where"))
        if not (isinstance(result, str) and isinstance(text, str) and isinstance(where, str)):
            raise TypeError
        if max(map(len, (result, text, where))) > TEXT_CHARS:
            raise ValueError
        return Ending(How(str(said["how"])), result, text, where)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RunError(f"the report of rank {rank} in the pool is damaged") from None
