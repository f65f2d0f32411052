"""What a rank program gets, and how one rank enters and leaves its world, no matter how the world was started."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from cxlemu.capacity.lease import lease_for
from cxlemu.capacity.tenancy import Tenancy, tenancy_in
from cxlemu.capacity.tenant_pool import TenantPool
from cxlemu.clock import SYSTEM_CLOCK, Clock
from cxlemu.errors import ArgumentError
from cxlemu.memory import HostCache
from cxlemu.memory.backend import Backend, CoherenceStep
from cxlemu.memory.protocol import HostMemory
from cxlemu.pool.arena import Arena
from cxlemu.pool.ledger import FIRST_HOLD, Identity, Ledger, ledger_bytes, ledger_lines
from cxlemu.pool.liveness import LOST_S, Liveness
from cxlemu.pool.owner import machine_digest
from cxlemu.pool.pool import Pool
from cxlemu.pool.rooms import Rooms
from cxlemu.pool.session import Session
from cxlemu.pool.session_area import Wait, backoff
from cxlemu.unshared import Unshared
from cxlemu.world.outline import Outline
from cxlemu.world.topology_of import machine
from cxlemu.world.world import World

if TYPE_CHECKING:
    from cxlemu.engines.pace import Pacer
    from cxlemu.topology import Topology

OnMessage = Callable[[object], None]


def ignore_message(message: object) -> None:
    """Do nothing with ``message``: the handler of a world that was launched without one."""


@dataclass(frozen=True)
class RankContext(Unshared):
    """One rank's place in its world.

    ``check()`` raises CancelledError once the world was stopped, and AccessError once its capacity was taken away:
    every wait loop calls it.

    ``emit(message)`` hands a picklable message to ``on_message`` where the world was launched; under mpirun, torchrun
    or srun there is no such place, and only rank 0's messages arrive, in its own process.
    """

    rank: int
    ranks: int
    host: int
    hosts: tuple[int, ...]  # the host of each rank; only the emulated backend gives them a meaning
    world: World
    pool: Pool
    backend: Backend
    memory: HostMemory
    session: Session
    pacer: Pacer | None  # in a world with a pace
    arena: Arena  # the bytes of every card in which communicators find room
    rooms: Rooms  # which of these bytes are taken, and by which ranks
    lanes: Iterator[int]  # numbers that communicators take: the first one is on ``memory`` itself
    deadline_s: float  # bound on any one wait, in seconds
    launch: str  # "threads", "processes" or the name of the launcher
    emit: OnMessage
    check: Callable[[], None]
    lost_after_s: float = LOST_S  # a rank of another machine that is silent for so long is lost
    # a process of this machine that is stopped for so long is lost; None: it is alive, however long it is stopped
    stopped_after_s: float | None = None
    tenancy: Tenancy | None = None  # in a tenant's world: this rank's place in the grant
    another_memory: Callable[[], HostMemory] | None = None
    at_end: list[Callable[[], None]] = field(default_factory=list)  # called when the rank leaves or fails

    def __repr__(self) -> str:
        return f"<RankContext rank {self.rank} of {self.ranks}, {self.launch}>"

    @property
    def topology(self) -> Topology:
        """The machine that the world runs on."""
        return self.world.topology

    @property
    def outline(self) -> Outline:
        """The answers of ``topology`` that every rank needs."""
        return self.world.outline

    def open_memory(self) -> HostMemory:
        """Open another memory of this rank, with fences and posted stores of its own, as for one more rank."""
        assert self.another_memory is not None
        return self.another_memory()

    def unlink(self) -> None:
        """Remove the names of the world's pool, when all ranks have attached. Collective over the world.

        From then on the pool lives as long as the processes that mapped it, and even SIGKILL leaves nothing behind; but
        no other process can attach it. Does no more than a barrier unless a rank made the pool.

        Raises:
            PeerLostError: A rank left, died or did not arrive.
        """
        self.session.barrier(self.deadline_s)
        self.pool.unlink()

    @contextmanager
    def in_grant(self, number: int) -> Iterator[RankContext]:
        """Open the same ranks' context in a later grant of their tenant.

        All ranks call this. The present context stays as it is.

        Args:
            number: The grant's number.

        Yields:
            This rank's context whose pool is that grant.

        Raises:
            AccessError: The tenant does not hold the grant within a deadline.
            ArgumentError: The world has no tenant, or emulated hosts, each with a cache of one grant.
        """
        world = self.world
        if world.lease is None or world.memory.backend.emulates_caches:
            raise ArgumentError("only a tenant on the backend shm or dax can take another grant")
        text = f"{world.lease.grant.tenant}:{number}"
        lease = lease_for(text, world.memory, world.lease.pool, wait_s=world.deadline_s)
        larger = replace(world, lease=lease, topology=machine(world.topology, world.memory, lease))
        with (
            TenantPool.attach(lease, world.memory, world.deadline_s) as pool,
            entered(larger, self.rank, pool, None, emit=self.emit, check=self.check) as context,
        ):
            yield context


@contextmanager
def entered(
    world: World,
    rank: int,
    pool: Pool,
    cache: HostCache | None,
    *,
    emit: OnMessage,
    check: Callable[[], None],
    pause: Wait = backoff,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[RankContext]:
    """Meet the other ranks, and yield the rank's context; tell them at the end that this rank left, or failed."""
    backend, host = world.memory.backend, world.hosts[rank]
    opened = partial(world.memory.open, pool.cards, host_cache=cache, host=host)
    bootstrap = partial(backend.bootstrap, world.memory, pool.cards, host_cache=cache, host=host, rank=rank)
    ranks_there = itertools.count(rank + world.ranks, world.ranks)  # each has random numbers of its own
    memory = opened(rank=rank)
    with tenancy_in(pool, rank, memory) as tenancy:

        def check_all() -> None:
            check()
            if tenancy is not None:
                tenancy.look()

        def wait(attempt: int) -> None:
            check_all()
            pause(attempt)

        session = Session.open(
            bootstrap(),
            rank=rank,
            ranks=world.ranks,
            host=host,
            session_offset=pool.session_offset,
            max_ranks=pool.max_ranks,
            fingerprint=world.fingerprint(pool),
            deadline_s=world.deadline_s,
            wait=wait,
            clock=clock,
        )
        ledgers = pool.card_bytes - ledger_bytes(world.ranks, pool.card_bytes)
        identity = Identity(FIRST_HOLD, os.getpid(), machine_digest())
        lines = ledger_lines(world.ranks, pool.card_bytes)
        ledger = Ledger(session.memory, ledgers, lines, session.id, rank)
        rooms, life = Rooms(ledger, world.ranks, session.id, identity), Liveness(ledger, identity)
        try:
            if clock is SYSTEM_CLOCK:  # in time of its own, a world has no threads beside its ranks
                _beat(life, pool, backend, bootstrap)
                session.life = life
            context = RankContext(
                rank=rank,
                ranks=world.ranks,
                host=host,
                hosts=world.hosts,
                pool=pool,
                backend=backend,
                memory=memory,
                session=session,
                pacer=world.pacer(pool, rank),
                arena=Arena(pool.data_offset, ledgers),
                rooms=rooms,
                lanes=itertools.count(),
                deadline_s=world.deadline_s,
                launch=world.launch,
                emit=emit,
                check=check_all,
                tenancy=tenancy,
                world=world,
                another_memory=lambda: opened(rank=next(ranks_there)),
            )
            try:
                yield context
            finally:
                for each in context.at_end:
                    each()
        except BaseException:
            life.stop()
            session.leave(failed=True)
            raise
        finally:
            life.close()
        session.leave()


def _beat(life: Liveness, pool: Pool, backend: Backend, bootstrap: Callable[[], HostMemory]) -> None:
    """Let the rank's pulse beat, unless C cannot reach its memory."""
    with suppress(ArgumentError):
        beats, reader = (backend.native_memory(bootstrap()) for _ in range(2))
        life.beat(pool.cards[0], beats, push=CoherenceStep.PUSH not in backend.elides, reader=reader)
