"""Single transfers in virtual time, for models that decide what to move next by what has arrived.

Each is a READ or a WRITE of a plan, with the cost that the virtual engine charges (cxlemu/cost), and queues at the
same engines, links and cards. Requests are made in the order of their times.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cxlemu import _virtual
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import RESOURCE_DTYPE, Use
from cxlemu.memory.protocol import LINE_BYTES


class Moved(NamedTuple):
    end_ns: int  # its rank goes on
    landed_ns: int  # all bytes are where they go
    queue_ns: int  # how much longer it took than alone


class Transfers:
    def __init__(self, model: CostModel) -> None:
        self.model = model
        self.core = _virtual.Simulation(model.tables())
        self._latest_ns = 0

    def move(
        self, rank: int, cards: Sequence[int], nbytes: int, *, to_pool: bool, now_ns: int, granule_bytes: int = 0
    ) -> Moved:
        """Move bytes between a rank and cards (indices of the model), over which they lie in granules (0: equally).

        A rank's requests come in the order of ``now_ns``.
        """
        assert now_ns >= self._latest_ns, "requests are made in the order of their times"
        self._latest_ns = now_ns
        granule = granule_bytes or max(-(-nbytes // len(cards)), LINE_BYTES)
        return Moved(*self.core.transfer(rank, np.array(cards, np.int32), granule, 0, nbytes, to_pool, now_ns))

    @property
    def uses(self) -> list[Use]:
        """What every resource did that was used, in the model's order."""
        rows = np.frombuffer(self.core.seen()["resources"], RESOURCE_DTYPE)
        columns = rows[["uses", "bytes", "busy_ns", "queue_ns"]].tolist()
        return [Use(resource, *row) for resource, row in zip(self.model.resources, columns, strict=True) if row[0]]
