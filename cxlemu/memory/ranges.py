"""What every memory checks before it touches a byte: NumPy would silently clip or wrap a wrong range."""

from collections.abc import Sequence

import numpy as np

from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES, Bytes
from cxlemu.units import counted

WORD = np.dtype("<u8")  # a doorbell's word


def check_cards(cards: Sequence[Bytes], *, writable: bool = True) -> int:
    sizes = {card.nbytes for card in cards}
    if len(sizes) != 1:
        raise ArgumentError(f"cards must be of one size, at least one of them; got sizes {sorted(sizes)}")
    for card in cards:
        plain = card.dtype == np.uint8 and card.ndim == 1 and card.flags.c_contiguous
        plain = plain and (card.flags.writeable or not writable)
        if not plain or card.nbytes % LINE_BYTES or card.nbytes == 0 or card.ctypes.data % WORD.itemsize:
            raise ArgumentError(
                "a card must be a writable, contiguous, 8-byte aligned uint8 array of whole 64-byte lines"
            )
    return sizes.pop()


def check_range(cards: Sequence[Bytes], card: int, offset: int, nbytes: int) -> None:
    if not (0 <= card < len(cards) and offset >= 0 and 0 <= nbytes <= cards[card].nbytes - offset):
        raise ArgumentError(
            f"bytes {offset} to {offset + nbytes} of card {card} are outside the pool: "
            f"it has {counted(len(cards), 'card')} of {cards[0].nbytes} bytes"
        )


def check_doorbell(cards: Sequence[Bytes], card: int, offset: int, word: int, payload: bytes) -> None:
    check_range(cards, card, offset, LINE_BYTES)
    if offset % LINE_BYTES:
        raise ArgumentError(f"a doorbell begins a {LINE_BYTES}-byte line, but offset {offset} does not")
    if not 0 <= word < 1 << 64:
        raise ArgumentError(f"a doorbell's word is an unsigned 64-bit number, not {word}")
    if len(payload) > PAYLOAD_BYTES:
        raise ArgumentError(f"a doorbell carries at most {PAYLOAD_BYTES} payload bytes, not {len(payload)}")


def check_bytes(data: Bytes) -> None:
    if data.dtype != np.uint8:
        raise ArgumentError(f"memories move uint8 arrays, not {data.dtype}: view the array as np.uint8")
