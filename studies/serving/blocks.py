"""A cache of blocks: some in use, others kept until their room is needed, the least recently used first."""

from collections import OrderedDict
from collections.abc import Iterable


class BlockCache:
    """Room for a number of blocks. A block in use is never given up."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.private = 0  # blocks in use that nobody else may reuse
        self.evicted = 0
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._users or block in self._idle

    @property
    def used(self) -> int:
        """How many blocks are in use."""
        return len(self._users) + self.private

    @property
    def held(self) -> int:
        """How many blocks lie here."""
        return self.used + len(self._idle)

    def prefix(self, blocks: Iterable[int]) -> int:
        """Count the blocks, from the first on, that lie here."""
        count = 0
        for block in blocks:
            if block not in self:
                break
            count += 1
        return count

    def use(self, blocks: Iterable[int]) -> None:
        """Begin to use blocks that lie here."""
        for block in blocks:
            self._idle.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1

    def leave(self, blocks: Iterable[int]) -> None:
        """End using blocks; the first of them is kept longest, as those behind it are worth nothing without it."""
        for block in reversed(list(blocks)):
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                self._idle[block] = None

    def reserve(self, count: int, using: Iterable[int] = ()) -> bool:
        """Take room for private blocks and begin to use those that lie here; False, with nothing done, without room."""
        using = list(using)
        new = sum(block not in self._users for block in using)
        if self.used + new + count > self.capacity:
            return False
        self.use(using)
        self.private += count
        while self.held > self.capacity:
            self._idle.popitem(last=False)
            self.evicted += 1
        return True

    def release(self, count: int) -> None:
        """Give up private blocks."""
        assert count <= self.private
        self.private -= count

    def share(self, blocks: Iterable[int]) -> list[int]:
        """Turn private blocks into ones that others may reuse, in use by who computed them; return those that were not
        here yet."""
        new = [block for block in blocks if block not in self]
        self.private -= len(new)
        self.use(new)
        return new

    def shrink(self, capacity: int) -> None:
        """Lose all idle blocks, and have another capacity from now on."""
        self.capacity = capacity
        self._idle.clear()
