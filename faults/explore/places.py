"""Bytes become words: a line's bytes that every instruction touches together are one word of the abstract machine."""

from collections import defaultdict
from collections.abc import Hashable, Iterator
from itertools import pairwise

from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from faults.machine.program import Word

WORDS_MAX = 8  # words of a line, as in native/line.h


class Pieces:
    """Memories, each cut wherever a range of it begins or ends."""

    def __init__(self) -> None:
        self._cuts: defaultdict[Hashable, set[int]] = defaultdict(set)

    def cut(self, memory: Hashable, begin: int, end: int) -> None:
        self._cuts[memory] |= {begin, end}

    def of(self, memory: Hashable, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """List the pieces [begin, end) of a range whose ends were given to `cut`, when all cuts are made."""
        cuts = sorted(cut for cut in self._cuts[memory] if begin <= cut <= end)
        yield from pairwise(cuts)


def by_line(card: int, begin: int, end: int) -> Iterator[tuple[tuple[int, int], int, int]]:
    """Cut a range of a card at its lines; yield ``((card, line), begin, end)`` of each, in bytes on the card."""
    for line in range(begin // LINE_BYTES, -(-end // LINE_BYTES)):
        yield (card, line), max(begin, line * LINE_BYTES), min(end, (line + 1) * LINE_BYTES)


class WordNumbers:
    """Words and lines, which get numbers in the order in which they are first named."""

    def __init__(self) -> None:
        self.words: list[Word] = []
        self.lines: list[str] = []
        self._word: dict[Hashable, int] = {}
        self._line: dict[Hashable, int] = {}

    def line(self, key: Hashable, name: str) -> int:
        if key not in self._line:
            self._line[key] = len(self.lines)
            self.lines.append(name)
        return self._line[key]

    def word(self, key: Hashable, name: str, line: int) -> int:
        if key not in self._word:
            if sum(word.line == line for word in self.words) == WORDS_MAX:
                raise ArgumentError(
                    f"the plan touches more than {WORDS_MAX} separate parts of {self.lines[line]}: too many to explore"
                )
            self._word[key] = len(self.words)
            self.words.append(Word(name, line))
        return self._word[key]
