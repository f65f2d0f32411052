"""The pool of a process group: the members meet through torch's Store, and open the pool and its communicator."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from collectives.communicator.communicator import Communicator
from collectives.torch.harness import Installed
from collectives.torch.options import Options
from cxlemu.engines.pace import Pace
from cxlemu.errors import CxlemuError, PoolError
from cxlemu.pool.pool import Pool
from cxlemu.topology import Topology
from cxlemu.world.context import RankContext, World, entered, ignore_message
from cxlemu.world.topology_of import machine

if TYPE_CHECKING:
    from torch.distributed import Store

RESTARTS = "TORCHELASTIC_RESTART_COUNT"  # the agent's store outlives a restart, with the old pool's name in it


@dataclass
class GroupPool:
    """A process group's communicator, and what is open for it.

    Attributes:
        comm: The communicator of the group's members.
        context: This rank's context.
    """

    comm: Communicator
    context: RankContext
    _open: ExitStack

    def close(self) -> None:
        """Leave the pool, and let go of it. The others may be in calls still."""
        self._open.close()


def open_pool(store: Store, rank: int, size: int, options: Options, timeout: timedelta, name: str) -> GroupPool:
    """Meet the group's other members, and make the group's communicator.

    The pool's names are removed as soon as all members have attached it: afterwards no end of any process leaves
    anything in /dev/shm.

    Args:
        store: The group's own part of torch's store.
        rank: This rank in the group.
        size: The number of members.
        options: Which pool.
        timeout: How long to wait for the others, and how long a call waits for its peers.
        name: The group's name.

    Raises:
        InputError: The options do not fit, or there is no room.
        RunError: Some members did not come.
        RuntimeError: The store failed, or the members did not come to it (torch's DistStoreError).
    """
    memory = options.memory()
    scale = options.time_scale
    pace = None if scale is None else Pace(None if scale == "auto" else scale)
    topology = machine(options.topology, memory)
    if options.card_bytes is not None and not memory.backend.on_devices:
        emulation = topology.emulation.model_copy(update={"card_bytes": options.card_bytes})
        topology = Topology.model_validate(topology.model_copy(update={"emulation": emulation}))
    world = World(size, topology, memory, timeout.total_seconds(), "torch", pace)
    with ExitStack() as stack:
        pool = stack.enter_context(_meet(store, world, rank, timeout))
        cache = stack.enter_context(world.shared_host_cache(pool, rank))
        context = stack.enter_context(entered(world, rank, pool, cache, emit=ignore_message, check=_go_on))
        harness = Installed.harness
        engine = "native" if harness is None else harness.engine(context, name)
        comm = Communicator.world(context, integrity=options.integrity, engine=engine)
        if rank == 0:
            pool.unlink()
        return GroupPool(comm, context, stack.pop_all())
    raise AssertionError


def _meet(store: Store, world: World, rank: int, timeout: timedelta) -> Pool:
    """Rank 0 makes the pool and tells its name, or why there is none; the others attach it."""
    if world.memory.backend.on_devices:
        return world.create_pool(None)
    key = f"cxlemu/{os.environ.get(RESTARTS, '0')}/pool"
    if rank == 0:
        try:
            pool = world.create_pool(None)
        except CxlemuError as error:
            store.set(key, f"!{error}")
            raise
        store.set(key, pool.name)
        return pool
    store.wait([key], timeout)
    name = store.get(key).decode()
    if name.startswith("!"):
        raise PoolError(f"rank 0 made no pool: {name[1:]}")
    return world.attach_pool(name)


def _go_on() -> None:
    """Let the rank go on: torch's launcher stops ranks, by signals that this package leaves alone."""
