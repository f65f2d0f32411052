"""What a rank program gets, and how one rank enters and leaves its world, whoever started it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from cxlemu import __version__
from cxlemu.errors import ArgumentError, PoolError
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.protocol import HostMemory
from cxlemu.pool.arena import Arena
from cxlemu.pool.segments import Segment
from cxlemu.pool.session import Session, backoff
from cxlemu.pool.session_lines import FINGERPRINT_BYTES
from cxlemu.pool.shm import ShmPool
from cxlemu.topology import Topology

OnMessage = Callable[[object], None]

DEFAULT_TOPOLOGY = "six-cards"


def as_topology(topology: Topology | str) -> Topology:
    return topology if isinstance(topology, Topology) else Topology.load(topology)


def ignore_message(message: object) -> None:
    pass


@dataclass(frozen=True)
class RankContext:
    """One rank's place in its world.

    ``check()`` raises CancelledError once the world was told to stop: every wait loop calls it.
    ``emit(message)`` hands a picklable message to ``on_message`` where the world was launched; under mpirun,
    torchrun or srun there is no such place, and only rank 0's messages arrive, in its own process.
    """

    rank: int
    ranks: int
    host: int
    hosts: tuple[int, ...]  # of each rank
    topology: Topology
    pool: ShmPool
    memory: HostMemory
    session: Session
    arena: Arena  # of the pool's bytes, what nobody has taken yet
    deadline_s: float  # for any one wait
    launch: str  # "threads", "processes" or the name of the launcher
    emit: OnMessage
    check: Callable[[], None]


@dataclass(frozen=True)
class World:
    """What all ranks agree on, before there is a pool."""

    ranks: int
    topology: Topology
    memory: MemorySpec
    deadline_s: float
    launch: str

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ArgumentError(f"a world has at least 1 rank, not {self.ranks}")
        if not self.deadline_s > 0:
            raise ArgumentError(f"a deadline is a positive number of seconds, not {self.deadline_s}")

    @cached_property
    def hosts(self) -> tuple[int, ...]:
        return self.topology.place(self.ranks)

    def create_pool(self, name: str | None) -> ShmPool:
        return ShmPool.create(
            name,
            cards=self.topology.card_count,
            card_bytes=self.topology.card_bytes,
            interleave_bytes=self.topology.interleave_bytes,
            hosts=max(self.hosts) + 1,
            numa_node=self.topology.pool_numa_node,
            max_ranks=self.ranks,
        )

    def shared_host_cache(self, pool: ShmPool, rank: int) -> HostCache:
        """The cache that the processes of the rank's host share; its segment is their lock file, too."""
        segment = Segment(pool.name, "host", self.hosts[rank])
        try:
            return HostCache.shared(pool.cards, pool.host_segment(segment.index), segment.path)
        except FileNotFoundError:
            raise PoolError(f"{segment} is gone: pool {pool.name} was removed while this rank came") from None

    def fingerprint(self, pool: ShmPool) -> bytes:
        topology = self.topology.model_dump(mode="json")
        agreed = json.dumps([__version__, self.ranks, topology, repr(self.memory), pool.uuid.hex])
        return hashlib.blake2b(agreed.encode(), digest_size=FINGERPRINT_BYTES).digest()


@contextmanager
def entered(
    world: World,
    rank: int,
    pool: ShmPool,
    cache: HostCache,
    *,
    emit: OnMessage,
    check: Callable[[], None],
) -> Iterator[RankContext]:
    """Meet the other ranks in ``pool``; tell them at the end that this rank left, or that it failed."""

    def wait(attempt: int) -> None:
        check()
        backoff(attempt)

    host = world.hosts[rank]
    # The session has a memory of its own: how often it looks and beats depends on time, and must neither
    # consume the adversary's random numbers nor fence what the rank's program wrote.
    undisturbed = replace(world.memory, seed=None)
    session = Session.open(
        undisturbed.open(pool.cards, host_cache=cache, host=host, rank=rank),
        rank=rank,
        ranks=world.ranks,
        host=host,
        session_offset=pool.session_offset,
        max_ranks=pool.max_ranks,
        fingerprint=world.fingerprint(pool),
        deadline_s=world.deadline_s,
        wait=wait,
    )
    try:
        yield RankContext(
            rank=rank,
            ranks=world.ranks,
            host=host,
            hosts=world.hosts,
            topology=world.topology,
            pool=pool,
            memory=world.memory.open(pool.cards, host_cache=cache, host=host, rank=rank),
            session=session,
            arena=Arena(pool.data_offset, pool.card_bytes),
            deadline_s=world.deadline_s,
            launch=world.launch,
            emit=emit,
            check=check,
        )
    except BaseException:
        session.leave(failed=True)
        raise
    session.leave()
