"""What is broken in an emulated pool's hardware: poisoned lines, lost cards, links of hosts that are down.

One page that all hosts of a pool share; every load from the pool and every write-back to it asks here, in Python and,
by native/damage.c, in C. It costs one look as long as nothing was ever armed. Each fault has an entry of its own, a
word that its owner stores whole, so that nobody needs a lock:

    word 0        not 0 once anything may break
    word 1..63    a fault: its kind << 56 | card or host << 40 | line; 0 where there is none
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import CardLostError, FaultError, LinkDownError, PoisonError
from cxlemu.memory.protocol import LINE_BYTES, Bytes

DAMAGE_BYTES = 512
_KIND, _WHERE = 56, 40
_LINE_MASK = (1 << _WHERE) - 1
_WHERE_MASK = (1 << _KIND - _WHERE) - 1


class Broken(IntEnum):
    """Kinds of entries; of several that make a load fail, the first here is told."""

    LINK = 1
    CARD = 2
    LINE = 3


class Damage:
    """The page. Entry k belongs to fault k of the script that breaks things."""

    def __init__(self, page: Bytes) -> None:
        self.page = page[:DAMAGE_BYTES]
        self._words = self.page.view("<u8")

    @classmethod
    def none(cls) -> Damage:
        """A page of one's own, on which nothing is broken."""
        return cls(np.zeros(DAMAGE_BYTES, np.uint8))

    @property
    def armed(self) -> bool:
        return bool(self._words[0])

    def arm(self) -> None:
        """From now on things may break."""
        self._words[0] = 1

    def poison(self, entry: int, card: int, line: int) -> None:
        self._set(entry, Broken.LINE, card, line)

    def lose_card(self, entry: int, card: int) -> None:
        self._set(entry, Broken.CARD, card)

    def cut_link(self, entry: int, host: int) -> None:
        self._set(entry, Broken.LINK, host)

    def mend(self, entry: int) -> None:
        self._words[1 + entry] = 0

    def _set(self, entry: int, kind: Broken, where: int, line: int = 0) -> None:
        self.arm()
        self._words[1 + entry] = kind << _KIND | where << _WHERE | line

    def entries(self) -> list[tuple[int, Broken, int, int]]:
        """(entry, kind, card or host, line) of all that is broken."""
        found = [(entry, int(word)) for entry, word in enumerate(self._words[1:]) if word]
        return [(e, Broken(w >> _KIND), w >> _WHERE & _WHERE_MASK, w & _LINE_MASK) for e, w in found]

    # --- what memories ask, once armed -------------------------------------------------------------------------

    def cut_off(self, host: int, card: int) -> FaultError | None:
        """Why nothing moves between this host and this card."""
        broken = {(kind, where) for _, kind, where, _ in self.entries()}
        if (Broken.LINK, host) in broken:
            return LinkDownError(host)
        return CardLostError(card) if (Broken.CARD, card) in broken else None

    def poisoned(self, card: int, first: int, last: int) -> NDArray[np.bool_]:
        """Which lines of the window are."""
        lines = np.zeros(last - first, np.bool_)
        for _, kind, where, line in self.entries():
            if (kind, where) == (Broken.LINE, card) and first <= line < last:
                lines[line - first] = True
        return lines

    def check_load(self, host: int, card: int, first: int, fetched: NDArray[np.bool_]) -> None:
        """Raises the FaultError of a load that fetches these lines, from ``first`` on, from the pool."""
        if not fetched.any():
            return
        if (error := self.cut_off(host, card)) is not None:
            raise error
        poisoned = np.flatnonzero(self.poisoned(card, first, first + fetched.size) & fetched)
        if poisoned.size:
            raise PoisonError(card, (first + int(poisoned[0])) * LINE_BYTES)

    def overwritten(self, card: int, first: int, whole: NDArray[np.bool_]) -> None:
        """These lines, from ``first`` on, got new bytes: they are not poisoned any more."""
        for entry, kind, where, line in self.entries():
            if (kind, where) == (Broken.LINE, card) and first <= line < first + whole.size and whole[line - first]:
                self.mend(entry)
