"""The pool of a process group, and the group's communicator there.

Members meet through torch's Store. A group whose members have a pool in common gets room in it; else they open one. A
pool is left with the last of its groups.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import PrefixStore

from collectives.communicator.communicator import Communicator
from collectives.torch.harness import Installed
from collectives.torch.options import Options
from cxlemu.engines import Engine
from cxlemu.engines.pace import Pace
from cxlemu.errors import ArgumentError, CxlemuError, PoolError
from cxlemu.pool.ledger import FIRST_HOLD
from cxlemu.pool.pool import Pool
from cxlemu.world.context import RankContext, entered, ignore_message
from cxlemu.world.topology_of import machine, with_card_bytes
from cxlemu.world.world import World

if TYPE_CHECKING:
    from torch.distributed import Store

RESTARTS = "TORCHELASTIC_RESTART_COUNT"  # the agent's store outlives a restart, with the old pool's name in it


@dataclass
class SharedPool:
    ranks: tuple[int, ...]  # the ranks in torch's world that are in it, in its order
    options: Options  # what its first group asked for
    context: RankContext
    open: ExitStack
    groups: int = 0  # how many groups of this process are in it now

    @property
    def uuid(self) -> str:
        return self.context.pool.uuid.hex

    def takes(self, rank: int, ranks: Sequence[int], options: Options) -> bool:
        """Whether a group of these ranks and options finds a place here; ``rank`` is this process's in the group.

        Ranks of a group that a library made are numbers of another world, unless each is its process's here.
        In a world with a pace communicators share a queue, so that calls of two groups in other orders would deadlock.
        """
        rooms, same = self.context.rooms, replace(options, integrity=self.options.integrity) == self.options
        has_line = len(rooms.held) < rooms.ledger.lines - FIRST_HOLD
        if self.ranks[self.context.rank] != ranks[rank]:
            return False
        return set(ranks) <= set(self.ranks) and same and options.time_scale is None and has_line


_pools: list[SharedPool] = []  # the first is the oldest
_changed = threading.Lock()


@atexit.register
def say_good_bye() -> None:
    """Tell the others that this rank leaves: Python needs seconds to end a process that has imported torch."""
    for pool in list(_pools):
        pool.context.session.leave(failed=True)


@dataclass
class GroupPool:
    """A process group's communicator, and its place in a pool."""

    comm: Communicator  # the communicator of the group's members
    pool: SharedPool
    _left: list[None] = field(default_factory=list)

    @property
    def context(self) -> RankContext:
        return self.pool.context

    def close(self) -> None:
        """Leave the group, and the pool if this is its last group here. Others may be in calls still; twice is fine."""
        with _changed:
            if self._left:
                return
            self._left.append(None)
            self.pool.groups -= 1
            last = not self.pool.groups
            if last:
                _pools.remove(self.pool)
        if last:
            self.pool.open.close()
        else:
            self.comm.close()


def open_pool(
    store: Store, rank: int, ranks: Sequence[int], options: Options, timeout: timedelta, name: str
) -> GroupPool:
    """Meet the group's other members, and make the group's communicator.

    The names of a new pool are removed as soon as all members have attached it: afterwards no end of any process leaves
    anything in /dev/shm.
    """
    shared = _in_common(store, rank, ranks, options, timeout)
    if shared is not None:
        try:
            return _with_room(shared, ranks, options, timeout, name)
        except ArgumentError as error:  # all members get it: rank 0 found no room
            if options.devices:
                raise
            if rank == 0:
                warnings.warn(f"cxl: group {name} gets a pool of its own: {error}", RuntimeWarning, stacklevel=2)
    return _with_pool(store, rank, ranks, options, timeout, name)


def _in_common(
    store: Store, rank: int, ranks: Sequence[int], options: Options, timeout: timedelta
) -> SharedPool | None:
    """Choose a pool that all members have open: rank 0's newest, as older ones may be full. None: there is none."""
    with _changed:
        mine = {pool.uuid: pool for pool in _pools if pool.takes(rank, ranks, options)}
    key = "common"
    if rank:
        store.set(f"{key}/{rank}", " ".join(mine))
        store.wait([key], timeout)
        return mine.get(store.get(key).decode())
    uuids = list(reversed(mine))
    for peer in range(1, len(ranks)) if uuids else ():
        store.wait([f"{key}/{peer}"], timeout)
        theirs = store.get(f"{key}/{peer}").decode().split()
        uuids = [uuid for uuid in uuids if uuid in theirs]
    store.set(key, uuids[0] if uuids else "none")
    return mine[uuids[0]] if uuids else None


def _with_room(shared: SharedPool, ranks: Sequence[int], options: Options, timeout: timedelta, name: str) -> GroupPool:
    context, harness = shared.context, Installed.harness
    with _changed:
        shared.groups += 1  # so that no other thread leaves it meanwhile
    try:
        engine: str | Engine = "native"
        if harness is not None:
            context = replace(context, memory=context.open_memory())
            engine = harness.engine(context, name)
        comm = Communicator.of(
            context,
            [shared.ranks.index(rank) for rank in ranks],
            key=name,
            deadline_s=timeout.total_seconds(),
            engine=engine,
            integrity=options.integrity,
        )
    except BaseException:
        with _changed:
            shared.groups -= 1
        raise
    return GroupPool(comm, shared)


def _with_pool(
    store: Store, rank: int, ranks: Sequence[int], options: Options, timeout: timedelta, name: str
) -> GroupPool:
    memory = options.memory()
    scale = options.time_scale
    pace = None if scale is None else Pace(None if scale == "auto" else scale)
    topology = machine(options.topology, memory)
    if options.card_bytes is not None and not memory.backend.on_devices:
        topology = with_card_bytes(topology, options.card_bytes)
    world = World(len(ranks), topology, memory, timeout.total_seconds(), "torch", pace)
    with ExitStack() as stack:
        pool, world = _meet(store, world, rank, options, timeout)
        stack.enter_context(pool)
        cache = stack.enter_context(world.shared_host_cache(pool, rank))
        context = stack.enter_context(entered(world, rank, pool, cache, emit=ignore_message, check=_go_on))
        context = replace(context, stopped_after_s=options.stopped_after_s)
        harness = Installed.harness
        engine = "native" if harness is None else harness.engine(context, name)
        comm = Communicator.world(context, integrity=options.integrity, engine=engine)
        if rank == 0:
            pool.unlink()
        shared = SharedPool(tuple(ranks), options, context, stack.pop_all(), groups=1)
        with _changed:
            _pools.append(shared)
        return GroupPool(comm, shared)
    raise AssertionError


def _meet(store: Store, world: World, rank: int, options: Options, timeout: timedelta) -> tuple[Pool, World]:
    """Rank 0 makes the pool and publishes its name, or why there is none; the others attach it, with its heaps."""
    if world.memory.backend.on_devices:
        return world.create_pool(None), replace(world, heap_bytes=options.heap_bytes)
    as_said = options.card_bytes is not None  # all taken at once
    key = "pool"
    if rank == 0:
        try:
            world = replace(world, heap_bytes=options.heap_bytes) if as_said else world.with_heaps(options.heap_bytes)
            pool = world.create_pool(None)
        except CxlemuError as error:
            store.set(key, f"!{error}")
            raise
        store.set(key, pool.name)
        return pool, world
    store.wait([key], timeout)
    message = store.get(key).decode()
    if message.startswith("!"):
        raise PoolError(f"rank 0 could not make the pool: {message[1:]}")
    world = replace(world, heap_bytes=options.heap_bytes)
    return (world.attach_pool(message), world) if as_said else world.join_pool(message)


def part_of(store: Store, ranks: Sequence[int]) -> Store:
    """Return a part of the store for one meeting of these ranks: another has left its keys, as groups of a name may."""
    every = f"cxlemu/{os.environ.get(RESTARTS, '0')}/{'-'.join(map(str, ranks))}"
    came_before = store.add(f"{every}/came", 1) - 1
    return PrefixStore(f"{every}/{came_before // len(ranks)}", store)


def _go_on() -> None:
    """Let the rank go on: torch's launcher stops ranks, by signals that this package leaves alone."""
