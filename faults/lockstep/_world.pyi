from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cxlemu.engines.native import ToldPlaces
from cxlemu.memory.protocol import Bytes
from cxlemu.plan.instructions import Records

CONSTANTS: dict[str, int]  # as C was compiled with them
Move = TypeVar("Move")

class Script:
    """A plan's records and tables, checked. ``parts``: by rank, its events, the bytes of its buffers, its records, and
    where its arrays lie (engines.native.told_places) or None.

    ValueError where an instruction could not be executed.
    """

    def __init__(
        self,
        layout: Records,  # of plan.layout.layout_record
        base: int,
        regions: Records,
        groups: Records,
        parts: list[tuple[int, NDArray[np.int64], list[Records], ToldPlaces | None]],
        /,
    ) -> None: ...

class World:
    """``hosts``: the number of each rank's host, from 0 on."""

    def __init__(self, layout: Records, base: int, hosts: NDArray[np.int32], /) -> None: ...
    def run(
        self,
        calls: list[tuple[Script, int, int]],  # each with its epoch and tag
        arena: Bytes,  # where the buffers are
        offsets: NDArray[np.int64],  # by call, rank and buffer: where in it
        image: Bytes,  # what is in the arena at first
        right: Bytes,  # what ranks must get
        right_at: NDArray[np.int64],  # by call and rank: where in it; UNKNOWN: `ended` says; UNCHECKED
        priority: NDArray[np.int32],  # by rank and stream: the least comes first
        blows: NDArray[np.int64],  # of nature: action, host, card, line from the beginning of the card
        end_s: float,  # of this thread's processor time
        ended: Callable[[int, int], object],  # a rank has ended a call, and got other bytes than the right ones
        kernel: Callable[[int, int, int, int], object],  # call, rank, stream, instruction: a COMPUTE is due
        /,
    ) -> tuple[int, list[tuple[int, int, int, int, int, int, int]]]:
        """Run calls to their end or the first thing that is wrong.

        Returns how it ended, and where: call, rank, stream, instruction, doorbell, wanted, shows; of all stuck streams
        where all are.
        """

    def moves(self, steps: Sequence[Move], blows: Sequence[Move], /) -> tuple[Move, ...]: ...
    def spans(self, call: int, /) -> list[tuple[int, int]]: ...
