"""How the timing of a litmus test is varied on hardware: where its lines lie, when ranks meet, and where they pause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cxlemu.memory.protocol import LINE_BYTES
from faults.litmus.lowering import Numbers
from faults.protocols.places import WORDS_MAX

BATCH = 512  # trials, each on lines of its own, between two looks at what they ended with
STRIDES = (1, 1, 2, 4)  # lines from one to the next
STRIDE_MAX = max(STRIDES)
MEET_RATES = (1.0, 1.0, 0.1, 0.0)  # of trials before which all ranks meet; the others follow at once
PAUSES = (0, 0, 10, 40, 150)  # looks at most before a step, each some ten nanoseconds
PAUSE_RATE = 0.3  # of the steps behind the first


@dataclass(frozen=True)
class TrialBatch:
    """Trials that are made in one go, as all ranks draw them from one seed."""

    # int64, for each trial the address of each line, counted through all cards; then for each trial by how many words
    # the words of its lines are moved round
    addresses: Numbers
    meets: NDArray[np.uint8]  # uint8, for each trial whether all ranks meet before it
    pinned: int  # whether each rank keeps to one core, the number of which is counted from this one; -1: it does not
    evicts: bool  # whether all caches are emptied before the memory is looked at, or afterwards
    pauses: int  # the most looks for which a rank pauses before a step

    @classmethod
    def draw(
        cls, seed: tuple[int, ...], trials: int, lines: int, cards: int, card_bytes: int, offset: int
    ) -> TrialBatch:
        rng = np.random.default_rng(seed)
        places = rng.permutation(trials * lines) if rng.random() < 0.5 else np.arange(trials * lines)
        stride, first = int(rng.choice(STRIDES)), int(rng.integers(cards))
        where = (places + first) % cards * card_bytes + offset + places // cards * stride * LINE_BYTES
        meets = rng.random(trials) < rng.choice(MEET_RATES)
        if trials:
            meets[0] = True
        return cls(
            addresses=np.concatenate([where, rng.integers(WORDS_MAX, size=trials)]).astype(np.int64),
            meets=meets.astype(np.uint8),
            pinned=int(rng.integers(64)) if rng.random() < 0.5 else -1,
            evicts=bool(rng.random() < 0.5),
            pauses=int(rng.choice(PAUSES)),
        )

    def pauses_of(self, seed: tuple[int, ...], steps: int) -> NDArray[np.uint16]:
        """Draw one rank's pauses, uint16 of shape (trials, steps); ``seed`` has the rank's number as well."""
        rng = np.random.default_rng(seed)
        drawn = rng.integers(self.pauses + 1, size=(self.meets.size, steps))
        drawn[:, 1:] *= rng.random((self.meets.size, max(0, steps - 1))) < PAUSE_RATE
        return drawn.astype(np.uint16)


def batch_bytes(trials: int, lines: int, cards: int) -> int:
    """Return how many bytes of every card `TrialBatch.draw` may use."""
    return (-(-trials * lines // cards) + 1) * STRIDE_MAX * LINE_BYTES
