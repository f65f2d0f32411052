"""What is broken in an emulated pool's hardware: poisoned lines, lost cards, links of hosts that are down.

It is one page that all hosts of a pool share; every load from the pool and every write-back to it asks here, in Python
and, by native/damage.c, in C. That costs one look as long as nothing was ever armed. Each fault has an entry of its
own, a word that its owner stores whole, so no lock is needed:

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
    """Kinds of entries; if several make a load fail, the error names the first in this order."""

    LINK = 1
    CARD = 2
    LINE = 3


_KINDS = frozenset(Broken)


class Damage:
    """The page. Entry k belongs to fault k of the script that breaks things."""

    def __init__(self, page: Bytes) -> None:
        """Use a page.

        Args:
            page: At least DAMAGE_BYTES uint8, aligned to 8 bytes, which all hosts of the pool share; zeros at first.
        """
        self.page = page[:DAMAGE_BYTES]
        self._words = self.page.view("<u8")

    @classmethod
    def none(cls) -> Damage:
        """Make a private page, on which nothing is broken."""
        return cls(np.zeros(DAMAGE_BYTES, np.uint8))

    @property
    def armed(self) -> bool:
        """Whether anything may be broken, or ever was."""
        return bool(self._words[0])

    def arm(self) -> None:
        """Announce that from now on things may break."""
        self._words[0] = 1

    def poison(self, entry: int, card: int, line: int) -> None:
        """Make a line read as an error until it is overwritten or the entry is mended.

        Args:
            entry: The fault's entry, from 0 to 62.
            card: The card's number.
            line: The line's number on its card.
        """
        self._set(entry, Broken.LINE, card, line)

    def lose_card(self, entry: int, card: int) -> None:
        """Lose a card for all hosts: loads from it fail, and what goes to it is lost.

        Args:
            entry: The fault's entry, from 0 to 62.
            card: The card's number.
        """
        self._set(entry, Broken.CARD, card)

    def cut_link(self, entry: int, host: int) -> None:
        """Cut a host off from the pool: its loads from there fail, and what it writes there is lost.

        Args:
            entry: The fault's entry, from 0 to 62.
            host: The host's number.
        """
        self._set(entry, Broken.LINK, host)

    def mend(self, entry: int) -> None:
        """Repair what the entry says is broken."""
        self._words[1 + entry] = 0

    def _set(self, entry: int, kind: Broken, where: int, line: int = 0) -> None:
        self.arm()
        self._words[1 + entry] = kind << _KIND | where << _WHERE | line

    def entries(self) -> list[tuple[int, Broken, int, int]]:
        """List what is broken: entry, kind, card or host, and line (0 where the kind has none)."""
        found = [(entry, int(word)) for entry, word in enumerate(self._words[1:]) if int(word) >> _KIND in _KINDS]
        return [(e, Broken(w >> _KIND), w >> _WHERE & _WHERE_MASK, w & _LINE_MASK) for e, w in found]

    # --- what memories ask, once armed -------------------------------------------------------------------------

    def cut_off(self, host: int, card: int) -> FaultError | None:
        """Say why nothing moves between a host and a card.

        Args:
            host: The host's number.
            card: The card's number.

        Returns:
            The error of a load there; None where bytes move.
        """
        broken = {(kind, where) for _, kind, where, _ in self.entries()}
        if (Broken.LINK, host) in broken:
            return LinkDownError(host)
        return CardLostError(card) if (Broken.CARD, card) in broken else None

    def poisoned(self, card: int, first: int, last: int) -> NDArray[np.bool_]:
        """Mark the poisoned lines of a window.

        Args:
            card: The card's number.
            first: The window's first line.
            last: The line after its last one.

        Returns:
            One flag per line.
        """
        lines = np.zeros(last - first, np.bool_)
        for _, kind, where, line in self.entries():
            if (kind, where) == (Broken.LINE, card) and first <= line < last:
                lines[line - first] = True
        return lines

    def check_load(self, host: int, card: int, first: int, fetched: NDArray[np.bool_]) -> None:
        """Check that a load succeeds.

        Args:
            host: The host that loads.
            card: The card's number.
            first: The first line of the window.
            fetched: The lines of the window that the load fetches from the pool, one flag per line.

        Raises:
            LinkDownError: The host's link is down.
            CardLostError: The card is lost.
            PoisonError: A line is poisoned; the error names the first one.
        """
        if not fetched.any():
            return
        if (error := self.cut_off(host, card)) is not None:
            raise error
        poisoned = np.flatnonzero(self.poisoned(card, first, first + fetched.size) & fetched)
        if poisoned.size:
            raise PoisonError(card, (first + int(poisoned[0])) * LINE_BYTES)

    def overwritten(self, card: int, first: int, whole: NDArray[np.bool_]) -> None:
        """Note that lines got new bytes, which ends their poison.

        Args:
            card: The card's number.
            first: The first line of the window.
            whole: The lines of the window that were overwritten whole, one flag per line.
        """
        for entry, kind, where, line in self.entries():
            if (kind, where) == (Broken.LINE, card) and first <= line < first + whole.size and whole[line - first]:
                self.mend(entry)
