from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cxlemu.memory.protocol import Bytes

class Straight:
    """One rank's part of programs without branches, executed many times on ``cards`` with machine instructions."""

    progress: int  # changes when any rank has come further, and not while all wait
    def __init__(
        self,
        cards: Sequence[Bytes],
        control: int,  # where the ranks' lines begin on card 0, two for each
        rank: int,
        ranks: int,
        look: Callable[[], None],  # called while nothing progresses; raises to give up
        spins: int,
    ) -> None: ...
    def meet(self) -> None: ...
    def run(
        self,
        steps: NDArray[np.int64],
        addresses: NDArray[np.int64],
        slots: NDArray[np.int64],
        pauses: NDArray[np.uint16],
        meets: NDArray[np.uint8],
        seen: NDArray[np.int64],
        hung: NDArray[np.uint8],
        lines: int,
        registers: int,
        drain: bool,
        initial: NDArray[np.int64],
        /,
    ) -> int: ...
    def memory(
        self,
        addresses: NDArray[np.int64],
        slots: NDArray[np.int64],
        meets: NDArray[np.uint8],
        lines: int,
        values: NDArray[np.int64] | None,
        /,
    ) -> None: ...
