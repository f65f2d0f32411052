"""Ranks that a launcher started: rank and size come from the environment of torchrun, mpirun or srun.

Launchers are looked for in this order, because an inner launcher's variables stand beside those of the allocation
around it: torchrun, Open MPI, MPICH, srun. Variables of two that contradict each other are refused. A pool in shared
memory is in one machine, so all ranks must be; on real cards ranks of any machine meet, and rank and size are enough.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cxlemu import _native
from cxlemu.capacity.lease import lease_for
from cxlemu.errors import ArgumentError
from cxlemu.memory import WORST_CASE, MemorySpec
from cxlemu.numbers import seconds
from cxlemu.pool.jobs import pool_of_job, refuse_second_run
from cxlemu.pool.pool import Pool
from cxlemu.pool.room import bus_error_later
from cxlemu.pool.superblock import RANKS_MAX
from cxlemu.signals import stops_exit
from cxlemu.units import parse_whole
from cxlemu.world.context import OnMessage, RankContext, entered, ignore_message
from cxlemu.world.topology_of import machine
from cxlemu.world.world import World

if TYPE_CHECKING:
    from cxlemu.engines.pace import Pace
    from cxlemu.topology import Topology


@dataclass(frozen=True)
class Launcher:
    name: str  # the launcher, as messages name it
    rank: str  # variable of the process's rank; the launcher is recognised by it
    size: str  # variable of the number of ranks
    job: tuple[tuple[str, ...], ...]  # alternatives; the first one whose variables are all set tells jobs apart
    local_size: str | None = None  # variable of the number of ranks on this machine, if there is one
    machines: str | None = None  # variable of the number of machines, if there is one


MPICH = Launcher("MPICH", rank="PMI_RANK", size="PMI_SIZE", local_size="MPI_LOCALNRANKS", job=(("PMI_JOBID",),))

TORCHRUN = Launcher(
    "torchrun",
    rank="RANK",
    size="WORLD_SIZE",
    local_size="LOCAL_WORLD_SIZE",
    job=(
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
        ("TORCHELASTIC_RUN_ID",),
        ("MASTER_ADDR", "MASTER_PORT"),
    ),
)

# torchrun's names, set by hand or by a program that starts ranks itself: nothing in them is torchrun's.
BY_HAND = replace(TORCHRUN, name="the environment", job=(("MASTER_ADDR", "MASTER_PORT"),))

SRUN = Launcher(
    "srun",
    rank="SLURM_PROCID",
    size="SLURM_NTASKS",
    machines="SLURM_STEP_NUM_NODES",
    job=(("SLURM_JOB_ID", "SLURM_STEP_ID"),),
)

LAUNCHERS = (
    TORCHRUN,
    Launcher(
        "Open MPI",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        job=(("PMIX_NAMESPACE",), ("OMPI_MCA_ess_base_jobid",)),
    ),
    MPICH,
    SRUN,
)


@dataclass(frozen=True)
class Place:
    """A process's place in the world that a launcher started."""

    launcher: str
    rank: int
    ranks: int
    pool_name: str | None  # how the names of the job's pools begin; None if the pool is there already without a name


@contextmanager
def from_environment(
    *,
    topology: Topology | str | None = None,
    memory: MemorySpec = WORST_CASE,
    deadline_s: float = 30.0,
    on_message: OnMessage | None = None,
    pace: Pace | None = None,
    tenant: str | None = None,
    pool_name: str | None = None,
    hosts: tuple[int, ...] | None = None,
    heap_bytes: int | Literal["cards"] | None = None,
) -> Iterator[RankContext]:
    """Enter the world that a launcher started, at this process's place.

    Rank 0 makes a pool in shared memory, and removes its names as soon as all ranks have entered, or on an error; the
    others remove them should rank 0 have died by then. A pool on devices is there before and after: rank 0 leaves it
    when all others have left, or after one deadline, and the others wait for that.
    """
    place = find_place(os.environ, one_machine=not memory.backend.on_devices)
    if tenant is not None and memory.backend.emulates_caches:
        raise ArgumentError(
            "a tenant's emulated caches belong to one launch: under a launcher, take the backend shm or dax"
        )
    deadline_s = seconds(deadline_s, "deadline_s", above_0=True)
    lease = None if tenant is None else lease_for(tenant, memory, pool_name, wait_s=deadline_s)
    topology = machine(topology, memory, lease)
    asked = World(place.ranks, topology, memory, deadline_s, place.launcher, pace, lease, hosts)
    first = place.rank == 0
    _native.say_on_bus_error(f"cxlemu: rank {place.rank} is killed by SIGBUS: {bus_error_later()}\n")
    with (
        stops_exit(),
        _pool(asked, place, heap_bytes) as (pool, world),
        _removed_for_a_dead_owner(pool),
        world.shared_host_cache(pool, place.rank) as cache,
    ):
        emit = on_message if on_message and first else ignore_message
        with entered(world, place.rank, pool, cache, emit=emit, check=_go_on) as context:
            if place.pool_name is not None:
                context.unlink()
            yield context
            if first:
                context.session.await_departure(range(1, place.ranks), deadline_s)
                pool.unlink()
        if not first:  # the job's next world has the same pool or the same name for it, so this one must be over
            context.session.await_departure([0], deadline_s)


@contextmanager
def _pool(world: World, place: Place, heap_bytes: int | Literal["cards"] | None) -> Iterator[tuple[Pool, World]]:
    """Make the pool, or attach what rank 0 made; the world has the heaps that are there."""
    if place.rank == 0 or place.pool_name is None:
        if heap_bytes != "cards":
            world = world.with_heaps(heap_bytes)
        if place.pool_name is not None:
            refuse_second_run(place.pool_name)
        name = place.pool_name and f"{place.pool_name}-{secrets.token_hex(4)}"  # which nobody can take before
        with world.create_pool(name) as pool:
            yield pool, world
    else:
        if heap_bytes is not None and heap_bytes != "cards":
            world = replace(world, heap_bytes=heap_bytes)
        pool, world = world.join_pool(pool_of_job(place.pool_name, world.deadline_s))
        with pool:
            yield pool, world


@contextmanager
def _removed_for_a_dead_owner(pool: Pool) -> Iterator[None]:
    """Rank 0 may have been killed: then the first rank to leave removes this pool, but not a newer one of its name."""
    try:
        yield
    finally:
        pool.remove_if_owner_died()


def _go_on() -> None:
    """Let the rank go on: nothing but the launcher tells these ranks to stop, and it does so by SIGTERM."""


def find_place(environment: Mapping[str, str], *, one_machine: bool = True) -> Place:
    """Find this process's rank, the number of ranks and the job's pool in a launcher's variables."""
    launchers = [launcher for launcher in LAUNCHERS if launcher.rank in environment]
    if not launchers:
        raise ArgumentError(
            "no launcher started this process, start it for example with `mpirun -np 4 python program.py`, "
            "`torchrun --nproc-per-node 4 program.py` or `srun -n 4 python program.py`"
        )
    if launchers[0] is TORCHRUN and not any(name.startswith("TORCHELASTIC_") for name in environment):
        launchers[0] = BY_HAND
    place = _read_place(launchers[0], environment, one_machine=one_machine)
    for other in launchers[1:]:
        _refuse_contradiction(launchers[0], other, environment, one_machine=one_machine)
    return place


def _refuse_contradiction(
    inner: Launcher, outer: Launcher, environment: Mapping[str, str], *, one_machine: bool
) -> None:
    """Refuse two launchers whose ranks differ, as each process could then be a world of its own.

    The outer one may have started a single process, be srun's allocation, or have started torchrun on each of several
    machines. Variables set by hand may be left over from anything.
    """
    nests = inner is not BY_HAND and (outer is SRUN or not one_machine)
    ends = [[environment.get(name, "1") for name in (launcher.rank, launcher.size)] for launcher in (inner, outer)]
    if nests or ends[0] == ends[1] or ends[1][1] == "1":
        return
    said = [
        f"{launcher.rank} {rank} with {launcher.size} {size}"
        for launcher, (rank, size) in zip((inner, outer), ends, strict=True)
    ]
    raise ArgumentError(
        f"{said[0]} and {said[1]} contradict each other: unset the variables of the one that did not start this process"
    )


def _read_place(launcher: Launcher, environment: Mapping[str, str], *, one_machine: bool) -> Place:
    def number(variable: str) -> int:
        text = environment.get(variable)
        if text is None:
            who = "it goes with" if launcher is BY_HAND else f"{launcher.name} sets it beside"
            raise ArgumentError(f"{variable} is not set, but {who} {launcher.rank}")
        return parse_whole(variable, text, 999_999_999)

    rank, ranks = number(launcher.rank), number(launcher.size)
    if ranks > RANKS_MAX:
        raise ArgumentError(f"{launcher.size} is {ranks}, but a pool holds at most {RANKS_MAX} ranks")
    if rank >= ranks:
        raise ArgumentError(f"{launcher.rank} is {rank}, which must be less than {launcher.size}, {ranks}")
    if not one_machine:
        return Place(launcher.name, rank, ranks, pool_name=None)
    for variable, expected in ((launcher.local_size, ranks), (launcher.machines, 1)):
        if variable and variable in environment and number(variable) != expected:
            raise ArgumentError(
                f"{variable} is {number(variable)} with {launcher.size} {ranks}, expected {expected}: "
                "the pool is in the shared memory of one machine, so all ranks must run there, unless with backend dax"
            )
    job = repr((launcher.name, _job(launcher, environment), os.geteuid()))
    digest = hashlib.blake2b(job.encode(), digest_size=8).hexdigest()
    return Place(launcher.name, rank, ranks, pool_name=f"job-{os.geteuid()}-{digest}")


def _job(launcher: Launcher, environment: Mapping[str, str]) -> tuple[str, ...]:
    """What all ranks of this run have in common, and no other run on this machine has."""
    for variables in launcher.job:
        if all(variable in environment for variable in variables):
            return tuple(environment[variable] for variable in variables)
    if launcher is MPICH:
        return _nearest_ancestor_without(launcher.rank)
    if launcher is BY_HAND:
        raise ArgumentError(
            "RANK is set, but not MASTER_ADDR and MASTER_PORT: set both, to the same words on all ranks: they name "
            "this run's pool in shared memory"
        )
    wanted = " or ".join(" and ".join(variables) for variables in launcher.job)
    raise ArgumentError(f"{launcher.rank} is set, but not {wanted}, by which {launcher.name} names its runs")


def _nearest_ancestor_without(variable: str) -> tuple[str, ...]:
    """MPICH's Hydra names its runs nowhere, but all ranks descend from its one proxy, which is no rank."""
    pid = os.getppid()
    while True:
        process = Path("/proc", str(pid))
        # Behind the command name, which may hold anything: state, parent, ..., start time as the 20th.
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        if pid == 1 or f"{variable}=".encode() not in (process / "environ").read_bytes():
            return str(pid), fields[19]
        pid = int(fields[1])
