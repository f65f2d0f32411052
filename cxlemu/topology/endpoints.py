"""What a link may end at: a switch, by its name; all ``hosts``, ``ranks`` or ``cards``; one of hosts or cards
(``host3``), or some (``host0-15``).
"""

import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

_SOME = re.compile(r"(host|card)(0|[1-9][0-9]{0,5})(?:-(0|[1-9][0-9]{0,5}))?")


class Members(NamedTuple):
    """The hosts, ranks or cards that an end names.

    ``kind`` is "host", "rank" or "card". All of them are a range without an end that anything reaches.
    """

    kind: str
    numbers: range

    @property
    def all_of_them(self) -> bool:
        """Whether the end is ``hosts``, ``ranks`` or ``cards``."""
        return self.numbers.stop == sys.maxsize

    def are_among(self, count: int) -> bool:
        """Return whether all of these exist, and at least one, where there are ``count`` of their kind."""
        if self.all_of_them:
            return count > 0
        return 0 < len(self.numbers) <= self.numbers.stop <= count

    def among(self, count: int) -> range:
        return range(self.numbers.start, min(self.numbers.stop, count))


def members(end: str) -> Members | None:
    """Return the hosts, ranks or cards that an end of a link means; None where it is a switch."""
    if end in {"hosts", "ranks", "cards"}:
        return Members(end[:-1], range(sys.maxsize))
    match = _SOME.fullmatch(end)
    if match is None:
        return None
    kind, first, last = match.groups()
    return Members(kind, range(int(first), int(last or first) + 1))


def named(kind: str, numbers: range) -> str:
    """Write the end that means consecutive hosts or cards: the inverse of `members`."""
    return f"{kind}{numbers[0]}" if len(numbers) == 1 else f"{kind}{numbers[0]}-{numbers[-1]}"


def dealt(numbers: range, places: int) -> Iterator[tuple[int, range]]:
    """Deal numbers to places in consecutive blocks, as even as possible; places with empty blocks are left out."""
    for place in range(places):
        block = numbers[place * len(numbers) // places : (place + 1) * len(numbers) // places]
        if block:
            yield place, block
