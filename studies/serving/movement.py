"""Blocks on their way: each group of tensor ranks moves one after another in each direction, on the fabric's queues."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cxlemu.engines.transfers import Transfers
from studies.serving.places import StoreHome

Schedule = Callable[[int, Callable[[int], None]], None]


class Carried(NamedTuple):
    """One block that has moved."""

    end_ns: int
    nbytes: int
    to_store: bool


@dataclass(eq=False)
class BlockMove:
    """Some blocks that an instance, or a group of its ranks, moves one after another."""

    ranks: Sequence[int]
    steps: deque[tuple[StoreHome, int]]  # where to or from, and how many bytes
    to_store: bool
    done: Callable[[int], None]
    undo: Callable[[], None]  # gives back what it holds, where it ends early
    failed: Callable[[int], None] | None = None  # what its instance does then, if it lives
    over: bool = False
    landed_ns: int = 0


@dataclass
class Movement:
    transfers: Transfers
    schedule: Schedule
    carried: list[Carried] = field(default_factory=list)
    taken_ns: int = 0  # by all transfers together
    queued_ns: int = 0  # how much longer they took than alone
    _open: dict[BlockMove, None] = field(default_factory=dict)  # in the order in which they began
    _lanes: defaultdict[tuple[int, bool], deque[BlockMove]] = field(default_factory=lambda: defaultdict(deque))

    def add(self, move: BlockMove, now_ns: int) -> None:
        """Begin a move, or queue it behind those of its ranks in its direction."""
        lane = self._lanes[move.ranks[0], move.to_store]
        lane.append(move)
        self._open[move] = None
        if len(lane) == 1:
            self._step(lane, now_ns)

    def of(self, ranks: Sequence[int]) -> list[BlockMove]:
        """List the moves of an instance that are not over."""
        return [move for move in self._open if move.ranks[0] in ranks]

    def through(self, home: StoreHome) -> list[BlockMove]:
        """List the moves that still have to read from a home, or to write there."""
        return [move for move in self._open if any(link is home for link, _ in move.steps)]

    def end_early(self, move: BlockMove) -> None:
        """End a move that has not moved everything."""
        move.over = True
        del self._open[move]
        move.undo()

    def _step(self, lane: deque[BlockMove], now_ns: int) -> None:
        while lane and lane[0].over:
            lane.popleft()
        if not lane:
            return
        move = lane[0]
        home, nbytes = move.steps[0]
        end_ns = now_ns
        for rank in move.ranks:
            moved = self.transfers.move(
                rank,
                home.cards,
                -(-nbytes // len(move.ranks)),
                to_pool=move.to_store,
                now_ns=now_ns,
                granule_bytes=home.granule_bytes,
            )
            end_ns = max(end_ns, moved.end_ns)
            move.landed_ns = max(move.landed_ns, moved.landed_ns)
            self.queued_ns += moved.queue_ns
            self.taken_ns += moved.landed_ns - now_ns
        self.schedule(end_ns, lambda at_ns: self._stepped(lane, move, nbytes, at_ns))

    def _stepped(self, lane: deque[BlockMove], move: BlockMove, nbytes: int, now_ns: int) -> None:
        self.carried.append(Carried(now_ns, nbytes, move.to_store))
        if not move.over:
            move.steps.popleft()
            if not move.steps:
                lane.popleft()
                self.schedule(move.landed_ns, lambda at_ns: self._finish(move, at_ns))
        self._step(lane, now_ns)

    def _finish(self, move: BlockMove, now_ns: int) -> None:
        if not move.over:
            move.over = True
            del self._open[move]
            move.done(now_ns)
