"""First fit: the lowest hole that is large enough. The same requests in the same order give the same places."""

from bisect import bisect_left


class FirstFit:
    """The free parts of [``begin``, ``end``). Holes are kept in order and never touch each other."""

    def __init__(self, end: int, begin: int = 0) -> None:
        """Begin with all of [``begin``, ``end``) free; nothing is free where that is empty."""
        self.holes: list[tuple[int, int]] = [(begin, end)] if begin < end else []  # (begin, end)

    def take(self, nbytes: int) -> int | None:
        """Take ``nbytes`` (1 or more) from the lowest hole that is large enough; return their offset, or None."""
        for index, (begin, end) in enumerate(self.holes):
            if end - begin >= nbytes:
                self.holes[index : index + 1] = [(begin + nbytes, end)] if end - begin > nbytes else []
                return begin
        return None

    def take_at(self, offset: int, nbytes: int) -> bool:
        """Take [``at``, ``at + nbytes``) and no other bytes; return whether that worked: all of it must be free."""
        for index, (begin, end) in enumerate(self.holes):
            if begin <= offset and offset + nbytes <= end:
                self.holes[index : index + 1] = [
                    hole for hole in ((begin, offset), (offset + nbytes, end)) if hole[0] < hole[1]
                ]
                return True
        return False

    def give_back(self, begin: int, nbytes: int) -> None:
        """Free a part, and merge it with the holes on either side; nothing checks that it was taken."""
        end, index = begin + nbytes, bisect_left(self.holes, (begin, 0))
        first, last = index, index
        if index and self.holes[index - 1][1] == begin:
            first, begin = index - 1, self.holes[index - 1][0]
        if index < len(self.holes) and self.holes[index][0] == end:
            last, end = index + 1, self.holes[index][1]
        self.holes[first:last] = [(begin, end)]

    @property
    def free_bytes(self) -> int:
        return sum(end - begin for begin, end in self.holes)

    @property
    def largest_bytes(self) -> int:
        """The size of the largest hole; 0 if nothing is free."""
        return max((end - begin for begin, end in self.holes), default=0)
