"""Where the words of a program lie in a pool: each of its lines is a real line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from faults.machine.program import Word

WORD_BYTES = 8
WORDS_MAX = LINE_BYTES // WORD_BYTES


class PoolAddress(NamedTuple):
    """Where a line or a word begins."""

    card: int
    offset: int  # bytes from the start of the card

    @property
    def line(self) -> PoolAddress:
        """Where the line begins that the word lies in."""
        return PoolAddress(self.card, self.offset - self.offset % LINE_BYTES)

    @property
    def slot(self) -> int:
        return self.offset % LINE_BYTES // WORD_BYTES


@dataclass(frozen=True)
class WordAddresses:
    lines: tuple[PoolAddress, ...]  # the address of each line
    words: tuple[PoolAddress, ...]  # the address of each word

    @classmethod
    def of(cls, words: Sequence[Word], lines: Sequence[PoolAddress]) -> WordAddresses:
        taken = [0] * len(lines)
        places = []
        for word in words:
            card, offset = lines[word.line]
            if taken[word.line] == WORDS_MAX:
                names = " ".join(other.name for other in words if other.line == word.line)
                raise ArgumentError(f"a line has room for {WORDS_MAX} words of {WORD_BYTES} bytes, not for {names}")
            places.append(PoolAddress(card, offset + taken[word.line] * WORD_BYTES))
            taken[word.line] += 1
        return cls(tuple(lines), tuple(places))


def lines_per_card(lines: int, cards: int) -> int:
    """Return how many lines the fullest card gets, if ``cards`` cards share ``lines`` lines evenly."""
    return -(-lines // cards)


def over_cards(lines: int, cards: int, offset: int) -> tuple[PoolAddress, ...]:
    """Place lines on cards in turn: lines of different cards arrive in any order."""
    return tuple(PoolAddress(line % cards, offset + line // cards * LINE_BYTES) for line in range(lines))
