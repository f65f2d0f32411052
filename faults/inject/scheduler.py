"""A world in which one rank runs at a time, on a virtual clock: real ranks on a real pool, and no rank ever sleeps.

Ranks are threads; one that waits hands its turn to the next, in the order of their numbers. Virtual time advances only
when a rank waits, a little each time, so that deadlines expire as on a real clock but without delay, and every run is
the same. Nothing is in /dev/shm.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from cxlemu.errors import CancelledError
from cxlemu.memory import HostCache
from cxlemu.memory.damage import Damage
from cxlemu.pool.owner import Owner
from cxlemu.pool.pool import Pool
from cxlemu.pool.superblock import Geometry, Superblock
from cxlemu.topology.clusters import memories_behind_pool
from cxlemu.world.context import OnMessage, RankContext, entered
from cxlemu.world.outcome import Outcome
from cxlemu.world.world import World

T = TypeVar("T")

TURN_S = 0.01  # of virtual time that a wait takes, at least
PATIENCE = 100  # deadlines after which a world is taken to hang


class CooperativeScheduler:
    """The virtual clock of such a world, which hands the turn from rank to rank, until ``limit_s`` of virtual time."""

    def __init__(self, ranks: int, limit_s: float) -> None:
        self._turn = [threading.Lock() for _ in range(ranks)]
        for lock in self._turn:
            lock.acquire()
        self._here = threading.local()
        self._running = list(range(ranks))
        self._now_s, self._limit_s = 0.0, limit_s
        self.shortest_sleep_s = ranks * TURN_S  # a turn of each
        self._over = threading.Lock()
        self._over.acquire()

    def now(self) -> float:
        """Tell the virtual time, in seconds since the world began."""
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """Let all other ranks have at least one turn, of TURN_S or more of virtual time."""
        end = self._now_s + seconds
        while True:
            self._now_s += TURN_S
            if self._now_s > self._limit_s:
                raise CancelledError(f"hangs: no end after {self._limit_s:g} s")
            self._hand_on()
            if self._now_s >= end:
                return

    def begin(self, rank: int) -> None:
        """Wait for the first turn of ``rank``, whose thread this is from now on."""
        self._here.rank = rank
        self._turn[rank].acquire()

    def end(self) -> None:
        """End the rank that has the turn: the next rank gets the turn or, after the last rank, `run` returns."""
        following = self._following()
        self._running.remove(self._here.rank)
        if self._running:
            self._turn[following].release()
        else:
            self._over.release()

    def run(self) -> None:
        """Let the first rank begin; returns when all have ended."""
        self._turn[self._running[0]].release()
        self._over.acquire()

    def _following(self) -> int:
        return self._running[(self._running.index(self._here.rank) + 1) % len(self._running)]

    def _hand_on(self) -> None:
        following = self._following()
        if following != self._here.rank:
            self._turn[following].release()
            self._turn[self._here.rank].acquire()


def private_pool(world: World) -> Pool:
    """Make a pool whose cards are memory of this process only."""
    topology = world.topology
    count = topology.pool_card_count + memories_behind_pool(topology, world.ranks)
    geometry = Geometry(count, max(world.hosts) + 1, world.ranks, topology.card_bytes, topology.interleave_bytes)
    cards = [np.zeros(topology.card_bytes, np.uint8) for _ in range(count)]
    return Pool("turns", Superblock.new(geometry, Owner.current()), cards)


def run_in_turns(main: Callable[[RankContext], T], world: World, pool: Pool, on_message: OnMessage) -> Outcome[T]:
    """Run ``main`` on one rank at a time, in a pool that `private_pool` made."""
    damage = Damage.none()
    caches = {host: HostCache.private(pool.cards, host=host, damage=damage) for host in set(world.hosts)}
    outcome: Outcome[T] = Outcome(world.ranks, world.deadline_s)
    scheduler = CooperativeScheduler(world.ranks, PATIENCE * world.deadline_s)

    def live(rank: int) -> None:
        scheduler.begin(rank)
        try:
            with entered(
                world,
                rank,
                pool,
                caches[world.hosts[rank]],
                emit=on_message,
                check=lambda: None,
                pause=lambda attempt: scheduler.sleep(0),
                clock=scheduler,
            ) as context:
                outcome.succeeded(rank, main(context))
        except BaseException as error:
            outcome.results.pop(rank, None)
            outcome.failed(rank, error)
        finally:
            scheduler.end()

    threads = [
        threading.Thread(target=live, args=[rank], name=f"rank {rank}", daemon=True) for rank in range(world.ranks)
    ]
    for thread in threads:
        thread.start()
    scheduler.run()
    for thread in threads:
        thread.join()
    return outcome
