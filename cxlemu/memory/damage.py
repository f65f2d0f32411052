"""What is broken in an emulated pool's hardware: poisoned lines, lost cards, links of hosts that are down.

It is one page that all hosts of a pool share; every load from the pool and every write-back to it asks here, in Python
and, by native/damage.c, in C. That costs one look as long as nothing was ever armed. Each fault has an entry of its
own, a word that its owner stores whole, so no lock is needed:

    word 0        not 0 once anything may break
    word 1..63    a fault: its kind << 56 | card or host << 40 | line; 0 where there is none
    word 65..127  not 0 once an access met the fault 64 words before: its load fails, or its bytes vanish or heal it
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import CardLostError, FaultError, LinkDownError, PoisonError
from cxlemu.memory.protocol import LINE_BYTES, Bytes

DAMAGE_BYTES = 1024
_WORDS = DAMAGE_BYTES // 16
KIND_SHIFT, WHERE_SHIFT = 56, 40
_LINE_MASK = (1 << WHERE_SHIFT) - 1
_WHERE_MASK = (1 << KIND_SHIFT - WHERE_SHIFT) - 1


class Broken(IntEnum):
    """Kinds of entries; if several make a load fail, the error names the first in this order."""

    LINK = 1
    CARD = 2
    LINE = 3


_KINDS = frozenset(Broken)


class Damage:
    """The page. Entry k belongs to fault k of the script that breaks things."""

    def __init__(self, page: Bytes) -> None:
        """Use a page of DAMAGE_BYTES, aligned to 8, zeros at first, which all hosts of the pool share."""
        self.page = page[:DAMAGE_BYTES]
        words = self.page.view("<u8")
        self._words, self._met = words[:_WORDS], words[_WORDS:]

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
        """Make a line read as an error until it is overwritten or the entry is mended."""
        self._set(entry, Broken.LINE, card, line)

    def lose_card(self, entry: int, card: int) -> None:
        """Lose a card for all hosts: loads from it fail, and what goes to it is lost."""
        self._set(entry, Broken.CARD, card)

    def cut_link(self, entry: int, host: int) -> None:
        """Cut a host off from the pool: its loads from there fail, and what it writes there is lost."""
        self._set(entry, Broken.LINK, host)

    def mend(self, entry: int) -> None:
        self._words[1 + entry] = 0

    def met(self) -> list[int]:
        """List the entries that an access met since they were set, also those that are mended."""
        return [int(word) - 1 for word in np.flatnonzero(self._met)]

    def _set(self, entry: int, kind: Broken, where: int, line: int = 0) -> None:
        self.arm()
        self._met[1 + entry] = 0
        self._words[1 + entry] = kind << KIND_SHIFT | where << WHERE_SHIFT | line

    def _meet(self, entry: int) -> bool:
        self._met[1 + entry] = 1
        return True

    def entries(self) -> list[tuple[int, Broken, int, int]]:
        """List what is broken: entry, kind, card or host, and line (0 where the kind has none)."""
        damage = [(entry, int(word)) for entry, word in enumerate(self._words[1:]) if int(word) >> KIND_SHIFT in _KINDS]
        return [(e, Broken(w >> KIND_SHIFT), w >> WHERE_SHIFT & _WHERE_MASK, w & _LINE_MASK) for e, w in damage]

    # --- what memories ask, once armed -------------------------------------------------------------------------

    def cut_off(self, host: int, card: int) -> FaultError | None:
        """Say why nothing moves between a host and a card."""
        errors: dict[tuple[int, int], FaultError] = {
            (Broken.LINK, host): LinkDownError(host),
            (Broken.CARD, card): CardLostError(card),
        }
        by_entry = [
            (kind, where) for entry, kind, where, _ in self.entries() if (kind, where) in errors and self._meet(entry)
        ]
        return errors[min(by_entry)] if by_entry else None

    def poisoned(self, card: int, first: int, last: int) -> NDArray[np.bool_]:
        """Return one flag per line of the window [first, last): whether it is poisoned."""
        lines = np.zeros(last - first, np.bool_)
        for _, kind, where, line in self.entries():
            if (kind, where) == (Broken.LINE, card) and first <= line < last:
                lines[line - first] = True
        return lines

    def check_load(self, host: int, card: int, first: int, fetched: NDArray[np.bool_]) -> None:
        """Raise if a line that the load fetches (one flag per line from ``first``) is cut off or poisoned."""
        if not fetched.any():
            return
        if (error := self.cut_off(host, card)) is not None:
            raise error
        met = [
            (line, entry)
            for entry, kind, where, line in self.entries()
            if (kind, where) == (Broken.LINE, card) and first <= line < first + fetched.size and fetched[line - first]
        ]
        for _, entry in met:
            self._meet(entry)
        if met:
            raise PoisonError(card, min(met)[0] * LINE_BYTES)

    def overwritten(self, card: int, first: int, whole: NDArray[np.bool_]) -> None:
        """Note that lines got new bytes, which ends their poison."""
        for entry, kind, where, line in self.entries():
            if (kind, where) == (Broken.LINE, card) and first <= line < first + whole.size and whole[line - first]:
                self._meet(entry)
                self.mend(entry)
