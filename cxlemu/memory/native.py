"""What one rank sees of a pool that its host caches without coherence, in C: step for step ShadowMemory.

It works on the same cache, its adversary makes the same moves for the same seed and operations, and it is some fifty
times as fast.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple

import numpy as np

from cxlemu import _native
from cxlemu.compiled import check_compiled
from cxlemu.errors import CardLostError, FaultError, LinkDownError, PoisonError
from cxlemu.memory import lock
from cxlemu.memory.adversary import Adversary, AdversaryStats
from cxlemu.memory.cache import DIRTY, FLUSHED, PRESENT, HostCache
from cxlemu.memory.damage import DAMAGE_BYTES, KIND_SHIFT, WHERE_SHIFT, Broken
from cxlemu.memory.protocol import LINE_BYTES, Bytes, DoorbellLine
from cxlemu.memory.ranges import WORD, check_bytes, check_doorbell, check_range

check_compiled(
    "cxlemu._native",
    _native.CONSTANTS,
    {
        "PRESENT": PRESENT,
        "DIRTY": DIRTY,
        "FLUSHED": FLUSHED,
        **{f"{kind.name}_ENTRY": kind for kind in Broken},
        "DAMAGE_BYTES": DAMAGE_BYTES,
        "KIND_SHIFT": KIND_SHIFT,
        "WHERE_SHIFT": WHERE_SHIFT,
    },
)
LINK_DOWN, CARD_LOST, POISONED = (_native.CONSTANTS[name] for name in ("LINK_DOWN", "CARD_LOST", "POISONED"))


class NativeShadowMemory:
    """One rank of a host whose ranks share a cache, in C: a `HostMemory`.

    Addresses outside the cards raise ArgumentError; a host lock that is not released, DeadlineError; loads where
    hardware is broken, its FaultError.
    """

    def __init__(self, cache: HostCache, adversary: Adversary | None = None) -> None:
        """Join a host's cache; the adversary's present state is copied (None: only programs move lines)."""
        self._cards = cache.memory
        nature = None if adversary is None else (adversary.state, *astuple(adversary.rates))
        self._host = cache.host
        self.shadow = _native.Shadow(
            cache.memory, cache.storage, cache.lock.native, lock.DEADLINE_S, nature, cache.host, cache.damage.page
        )

    @property
    def stats(self) -> AdversaryStats:
        """What this rank's adversary has done so far."""
        return AdversaryStats(*self.shadow.moved())

    def write(self, card: int, offset: int, data: Bytes) -> None:
        with self._checked(card, offset, data):
            self.shadow.write(card, offset, np.ascontiguousarray(data), 0)

    def write_nt(self, card: int, offset: int, data: Bytes) -> None:
        with self._checked(card, offset, data):
            self.shadow.write_nt(card, offset, np.ascontiguousarray(data))

    def read(self, card: int, offset: int, out: Bytes) -> None:
        with self._checked(card, offset, out):
            if out.flags.c_contiguous:
                self.shadow.read(card, offset, out)
            else:
                piece = np.empty(out.size, np.uint8)
                self.shadow.read(card, offset, piece)
                out[...] = piece.reshape(out.shape)

    def flush(self, card: int, offset: int, nbytes: int, *, keep: bool = False) -> None:
        check_range(self._cards, card, offset, nbytes)
        with self._working():
            self.shadow.flush(card, offset, nbytes, keep)

    def fence(self) -> None:
        with self._working():
            self.shadow.fence()

    def invalidate(self, card: int, offset: int, nbytes: int) -> None:
        check_range(self._cards, card, offset, nbytes)
        with self._working():
            self.shadow.invalidate(card, offset, nbytes)

    def signal(self, card: int, offset: int, word: int, payload: bytes = b"") -> None:
        check_doorbell(self._cards, card, offset, word, payload)
        with self._working():
            self.shadow.signal(card, offset, word, payload)

    def poll(self, card: int, offset: int) -> DoorbellLine:
        check_doorbell(self._cards, card, offset, 0, b"")
        with self._working():
            line = self.shadow.poll(card, offset)
        assert len(line) == LINE_BYTES
        return DoorbellLine(int.from_bytes(line[: WORD.itemsize], "little"), line[WORD.itemsize :])

    @contextmanager
    def _checked(self, card: int, offset: int, data: Bytes) -> Iterator[None]:
        check_bytes(data)
        check_range(self._cards, card, offset, data.size)
        with self._working():
            yield

    @contextmanager
    def _working(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise lock.held() from None
        except OSError as error:
            raise self.failure(*error.args) from None

    def failure(self, status: int) -> FaultError:
        """Make the error of the load that failed last."""
        card, offset = self.shadow.broken()
        if status == LINK_DOWN:
            return LinkDownError(self._host)
        return CardLostError(card) if status == CARD_LOST else PoisonError(card, offset)
