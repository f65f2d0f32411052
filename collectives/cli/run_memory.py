"""The memory that the flags of ``cxlemu run`` ask for."""

import os
import warnings
from uuid import UUID

import click

from collectives.defaults import DEFAULT_SEED
from cxlemu.capacity.lease import Lease
from cxlemu.errors import ArgumentError
from cxlemu.memory import BACKENDS, MemorySpec
from cxlemu.pool import catalog
from cxlemu.topology import Topology
from cxlemu.world.topology_of import machine


def adversary_seed(adversary: str | None, backend: str) -> int | None:
    """Read ``--adversary SEED|off``; None: no adversary, the default where a backend emulates no caches."""
    if adversary == "off" or (adversary is None and not BACKENDS[backend].emulates_caches):
        return None
    return DEFAULT_SEED if adversary is None else number(adversary, "--adversary", "off")


def memory_of(
    backend: str, seed: int | None, devices: tuple[str, ...], pool: str | None, tenant: str | None
) -> tuple[MemorySpec, str | None]:
    """Make the memory that the flags ask for; return it, and the name of the tenant's pool in shared memory or None."""
    uuid, pool_name = (_uuid(pool), None) if BACKENDS[backend].on_devices or tenant is None else (None, pool)
    return MemorySpec(backend, seed, devices=devices, pool=uuid), pool_name


def real_cards(memory: MemorySpec) -> str:
    return memory.backend.describe_cards(memory)


def number(text: str, flag: str, word: str) -> int:
    if not text.isdecimal() or not text.isascii():
        raise ArgumentError(f"{flag} takes a number that is not negative, or {word!r}, not {text!r}")
    return int(text)


def _uuid(text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        raise ArgumentError(f"--pool: {text!r} is not a valid UUID.") from None


def remove_dead_pools() -> None:
    """Remove what killed runs of this user left in /dev/shm, and say so; ``CXLEMU_KEEP_DEAD_POOLS`` keeps it."""
    if catalog.KEEP_DEAD_POOLS not in os.environ and (gone := catalog.remove_dead()):
        click.echo(f"note: removed {catalog.said(gone)}", err=True)


def topology_for(config: str | None, memory: MemorySpec, lease: Lease | None, *, may_be_smaller: bool) -> Topology:
    """Load the topology of a run, and say in a line where it is a smaller one than the default."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        topology = machine(config, memory, lease, may_be_smaller=may_be_smaller)
    for warning in said:
        click.echo(f"note: {warning.message}", err=True)
    return topology
