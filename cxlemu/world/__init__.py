"""A world: ranks, each on an emulated host, around one pool. Ranks are threads, processes, or started by a launcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from cxlemu.capacity.lease import lease_for
from cxlemu.errors import ArgumentError
from cxlemu.memory import WORST_CASE, MemorySpec
from cxlemu.numbers import seconds
from cxlemu.pool.catalog import warn_of_dead
from cxlemu.signals import stops_exit
from cxlemu.world.context import OnMessage, RankContext, ignore_message
from cxlemu.world.environment import from_environment
from cxlemu.world.outcome import Outcome
from cxlemu.world.threads import run_threads
from cxlemu.world.topology_of import machine
from cxlemu.world.world import World

if TYPE_CHECKING:
    from cxlemu.engines.pace import Pace
    from cxlemu.topology import Topology

__all__ = ["RankContext", "from_environment", "launch", "launch_survivors"]

T = TypeVar("T")


def launch(
    main: Callable[[RankContext], T],
    *,
    ranks: int,
    topology: Topology | str | None = None,
    memory: MemorySpec | str = WORST_CASE,
    how: Literal["threads", "processes"] = "threads",
    deadline_s: float = 30.0,
    on_message: OnMessage | None = None,
    pool_name: str | None = None,
    pace: Pace | None = None,
    tenant: str | None = None,
    hosts: tuple[int, ...] | None = None,
    heap_bytes: int | Literal["cards"] | None = None,
) -> list[T]:
    """Run ``main`` on every rank of a fresh pool, or of the pool on ``memory.devices``.

    When a rank fails, the others have one deadline to notice, then they are stopped. Ctrl-C, SIGTERM, SIGHUP and
    SIGQUIT stop all ranks; an emulated pool is removed in every case. The first launch of a process warns of pools
    that killed runs left.

    Args:
        main: The function that every rank runs with its `RankContext`. For processes, ``main``, its result and its
            messages must be picklable.
        ranks: Number of ranks, at least 1.
        topology: A topology, or the name or path of a config; by default "six-cards", or the devices' own.
        memory: The backend and its options, or its name; by default a pool without coherence in its worst case, in
            which nothing leaves a cache by itself. ``cxlemu.memory.BACKENDS`` names the backends.
        how: Whether ranks are threads of this process or processes.
        deadline_s: Bound on every single wait of a rank, in seconds; it does not bound the whole run.
        on_message: Called in the calling thread with each message that a rank emits.
        pool_name: The pool's name in shared memory, under which other processes find it for as long as it runs. By
            default it has a name of its own only until all ranks have entered: then not even SIGKILL leaves it behind.
        pace: Makes ranks take the time that the topology's cost model gives them (see cxlemu/engines/pace.py). Only for
            emulated pools.
        tenant: The tenant that runs, in a pool whose capacity is lent: the pool called ``pool_name``, or the one on
            ``memory.devices``. The ranks' pool is then the tenant's oldest grant, or with "red:3" grant 3, and nothing
            else. The launch waits for a grant up to one deadline.
        hosts: The host of each rank; by default as the topology places the ranks.
        heap_bytes: Each rank's room for arrays in the pool (``comm.heap``); by default a share of the memory that is
            left. It takes memory as arrays need it, and the emulated cards are larger by it. "cards": the cards have
            the topology's ``card_bytes``, all taken at once, and the heap is a part of that.

    Returns:
        The values that ``main`` returned, in rank order.

    Raises:
        InputError: The first one of any rank, unchanged; or an argument is invalid.
        RankFailures: Anything else that made ranks fail, with the root cause first.
    """
    world = _world(main, ranks, topology, memory, how, deadline_s, pool_name, pace, tenant, hosts, heap_bytes)
    return _run(main, world, on_message, pool_name, survivors=False).in_rank_order()


def launch_survivors(
    main: Callable[[RankContext], T],
    *,
    ranks: int,
    topology: Topology | str | None = None,
    memory: MemorySpec | str = WORST_CASE,
    how: Literal["threads", "processes"] = "threads",
    deadline_s: float = 30.0,
    on_message: OnMessage | None = None,
    pool_name: str | None = None,
    pace: Pace | None = None,
    tenant: str | None = None,
    heap_bytes: int | Literal["cards"] | None = None,
) -> Outcome[T]:
    """Run ``main`` on every rank as `launch` does, for ranks that continue when another one dies.

    When some ranks have failed and the first of the others has finished, the rest have one deadline. The arguments are
    those of `launch`; the topology places the ranks on hosts.

    Returns:
        The ``results`` of the ranks that finished, by rank, and the ``failures`` of the others.

    Raises:
        InputError: An argument does not fit. A rank's exception is among the ``failures``.
    """
    world = _world(main, ranks, topology, memory, how, deadline_s, pool_name, pace, tenant, None, heap_bytes)
    return _run(main, world, on_message, pool_name, survivors=True)


def _world(
    main: Callable[[RankContext], Any],
    ranks: int,
    topology: Topology | str | None,
    memory: MemorySpec | str,
    how: str,
    deadline_s: float,
    pool_name: str | None,
    pace: Pace | None,
    tenant: str | None,
    hosts: tuple[int, ...] | None,
    heap_bytes: int | Literal["cards"] | None,
) -> World:
    if not callable(main):
        raise ArgumentError(f"main is a function that every rank runs, not {main!r}")
    memory = MemorySpec(memory) if isinstance(memory, str) else memory
    if not isinstance(memory, MemorySpec):
        raise ArgumentError(f"memory is a MemorySpec or the name of a backend, not {memory!r}")
    if how == "processes":
        from cxlemu.world.processes import refuse_unguarded  # only here: threads need no multiprocessing

        refuse_unguarded()  # before a pool is made
    elif how != "threads":
        raise ArgumentError(f"ranks run as 'threads' or 'processes', not as {how!r}")
    deadline_s = seconds(deadline_s, "deadline_s", above_0=True)
    lease = None if tenant is None else lease_for(tenant, memory, pool_name, wait_s=deadline_s)
    if not memory.backend.on_devices:
        warn_of_dead()
    topology = machine(topology, memory, lease, may_be_smaller=True)
    world = World(ranks, topology, memory, deadline_s, how, pace, lease, hosts)
    return world if heap_bytes == "cards" else world.with_heaps(heap_bytes)


def _run(
    main: Callable[[RankContext], T],
    world: World,
    on_message: OnMessage | None,
    pool_name: str | None,
    *,
    survivors: bool,
) -> Outcome[T]:
    run = run_threads
    if world.launch == "processes":
        from cxlemu.world.processes import run_processes

        run = run_processes
    with stops_exit(), world.create_pool(pool_name) as pool:
        keep = pool_name is not None  # somebody else may want to attach it
        return run(main, world.sharing(pool), pool, on_message or ignore_message, survivors=survivors, keep_names=keep)
