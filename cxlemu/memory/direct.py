"""Coherent memory: every store is in the pool at once, every load comes from there.

It is the baseline that shows what non-coherence costs, and the memory on which a plan that merely forgets a flush
still works. Words and payload are ordered as x86 orders them; on arm64 the C core supplies the barriers.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cxlemu import _native
from cxlemu.memory.protocol import LINE_BYTES, Bytes, DoorbellLine
from cxlemu.memory.ranges import WORD, check_bytes, check_cards, check_doorbell, check_range


class DirectMemory:
    """One rank's view of a coherent pool, a `HostMemory`. Addresses outside the cards raise ArgumentError.

    Flushes, fences and invalidates do nothing; a non-temporal store is a store.
    """

    def __init__(self, cards: Sequence[Bytes], *, writable: bool = True) -> None:
        """Use the cards (uint8, one size, whole lines) directly; ``writable`` refuses read-only ones."""
        check_cards(cards, writable=writable)
        self._cards = tuple(cards)
        self._words = tuple(card.view(WORD) for card in cards)

    @property
    def cards(self) -> tuple[Bytes, ...]:
        """The cards as this host maps them, for devices that reach them by themselves."""
        return self._cards

    def write(self, card: int, offset: int, data: Bytes) -> None:
        check_bytes(data)
        check_range(self._cards, card, offset, data.size)
        self._cards[card][offset : offset + data.size].reshape(data.shape)[...] = data

    write_nt = write

    def read(self, card: int, offset: int, out: Bytes) -> None:
        check_bytes(out)
        check_range(self._cards, card, offset, out.size)
        out[...] = self._cards[card][offset : offset + out.size].reshape(out.shape)

    def flush(self, card: int, offset: int, nbytes: int, *, keep: bool = False) -> None:
        check_range(self._cards, card, offset, nbytes)

    def clear(self, base: int, extents: NDArray[np.int64], *, flushes: bool = False) -> None:
        """Write and flush zeros in one call; each extent is (card, offset from ``base``, bytes)."""
        _native.clear(self._cards, base, np.ascontiguousarray(extents, np.int64), flushes)

    def fence(self) -> None:
        pass

    def invalidate(self, card: int, offset: int, nbytes: int) -> None:
        check_range(self._cards, card, offset, nbytes)

    def signal(self, card: int, offset: int, word: int, payload: bytes = b"") -> None:
        check_doorbell(self._cards, card, offset, word, payload)
        start = offset + WORD.itemsize
        self._cards[card].data[start : start + len(payload)] = payload
        self._words[card][offset // WORD.itemsize] = word

    def poll(self, card: int, offset: int) -> DoorbellLine:
        check_doorbell(self._cards, card, offset, 0, b"")
        words, index = self._words[card], offset // WORD.itemsize
        word = words[index]
        while True:  # ends when the doorbell pauses, and its one writer awaits acknowledgements
            payload = self._cards[card][offset + WORD.itemsize : offset + LINE_BYTES].tobytes()
            again = words[index]
            if again == word:
                return DoorbellLine(int(word), payload)
            word = again
