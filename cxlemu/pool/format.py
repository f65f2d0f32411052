"""Formatting cards: what lies on them now, and the superblocks that make them one pool."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from cxlemu.errors import ArgumentError, PoolError
from cxlemu.memory.dax import DaxMemory
from cxlemu.pool.dax import superblock_bytes
from cxlemu.pool.device import Mapped, reserve
from cxlemu.pool.owner import NOBODY
from cxlemu.pool.superblock import MAGIC, SUPERBLOCK_BYTES, UNFINISHED, Geometry, Superblock, parse

_CHUNK_BYTES = 16 << 20
_SHOWN_BYTES = 16


class Content(NamedTuple):
    """What lies on a card, for a person who has to decide whether it may go."""

    kind: Literal["empty", "card", "foreign"]  # all zeros, a card of a pool, or anything else
    text: str
    superblock: Superblock | None = None  # the card's, if it has one that can be read


def content_of(card: Mapped) -> Content:
    """Find out what lies on a card. Every byte is read, until one is not zero."""
    data = superblock_bytes(card)
    if data.startswith((MAGIC, UNFINISHED)) and any(data):
        with suppress(PoolError):
            block = parse(MAGIC + data[len(MAGIC) :], card.device.path)
            which = f"card {block.card} of {block.geometry.cards} of cxlemu pool {block.uuid}"
            return Content("card", which, block) if data.startswith(MAGIC) else Content("card", f"unfinished {which}")
    memory = DaxMemory([card.pages])
    for begin in range(0, card.pages.nbytes, _CHUNK_BYTES):
        chunk = card.pages[begin : begin + _CHUNK_BYTES]
        memory.invalidate(0, begin, chunk.nbytes)
        if chunk.view(np.uint64).max():  # whole pages, therefore whole words
            first = int(np.flatnonzero(chunk)[0])
            shown = chunk[first : first + _SHOWN_BYTES].tobytes()
            return Content("foreign", f"foreign data: {shown.hex(' ')} ({_readable(shown)}) at byte {begin + first}")
    return Content("empty", "empty")


def _readable(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)


def geometry_for(sizes: Sequence[int], *, interleave_bytes: int, max_ranks: int) -> Geometry:
    """Choose the geometry of a pool of cards from their usable bytes, of which the smallest counts."""
    geometry = Geometry(len(sizes), 0, max_ranks, min(sizes), interleave_bytes)
    if flaw := geometry.flaw():
        raise ArgumentError(f"these cards cannot become a pool: {flaw}")
    return geometry


def format_cards(mapped: Sequence[Mapped], geometry: Geometry) -> Superblock:
    """Sign cards as a new pool.

    First no card is complete, then all bodies are written, then the magics, card 0 last: a process that attaches
    meanwhile, or after an interruption, finds an incomplete card and never a mixture.
    """
    superblock = Superblock.new(geometry, NOBODY)
    memory = DaxMemory([card.pages[: geometry.card_bytes] for card in mapped])
    cards = range(geometry.cards)
    for card in cards:
        _put(memory, card, 0, UNFINISHED)
    for card in cards:
        body = superblock.for_card(card).pack()[len(MAGIC) :]
        _put(memory, card, len(MAGIC), body.ljust(SUPERBLOCK_BYTES - len(MAGIC), b"\0"))
    for card in reversed(cards):
        _put(memory, card, 0, MAGIC)
    return superblock


def _put(memory: DaxMemory, card: int, offset: int, data: bytes) -> None:
    memory.write(card, offset, np.frombuffer(data, np.uint8))
    memory.flush(card, offset, len(data))
    memory.fence()


def make_file(path: str, nbytes: int) -> None:
    """Make a file of zeros that can stand in for a card; nothing may be at the path, and all its bytes are reserved."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PoolError(f"{path} cannot be made: {error.strerror}") from error
    try:
        reserve(fd, path, nbytes)
    except BaseException:
        Path(path).unlink()
        raise
    finally:
        os.close(fd)
