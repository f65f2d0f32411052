"""Which peers to ask before a line of coherent memory is given away: the bounded directory at the memory's home.

The home keeps, in a snoop filter, which lines others may have in their caches (CXL 3.1, 3.3: HDM-DB, back-invalidate).
A filter with room for fewer lines makes room for the next one by back-invalidating the line that was used longest ago,
and waits for the answer, because it cannot know whether the line's holder dropped it long before.
"""

from collections import OrderedDict
from collections.abc import Iterable


class SnoopFilter:
    """A directory with room for ``lines``, of which the least recently used one leaves first."""

    def __init__(self, lines: int) -> None:
        self._room = lines
        self._held: OrderedDict[int, None] = OrderedDict()

    def read(self, lines: Iterable[int]) -> int:
        held, before = self._held, 0
        for line in lines:
            if line in held:
                held.move_to_end(line)
            else:
                held[line] = None
                if len(held) > self._room:
                    held.popitem(last=False)
                    before += 1
        return before
