"""A tenant's lease: what a world needs to know of the capacity lent to its tenant, and where it asks for that."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from cxlemu.capacity.lines import GrantState
from cxlemu.capacity.manager import Grant
from cxlemu.capacity.pool_manager import LOOK_S
from cxlemu.capacity.table import Table, TableEntry
from cxlemu.errors import AccessError, ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.units import format_bytes


class Tenant(NamedTuple):
    """A tenant, and perhaps one of its grants: ``red``, or ``red:3`` for its grant 3."""

    name: str
    number: int | None = None

    @classmethod
    def parse(cls, text: str) -> Tenant:
        """Read a tenant as users write it: ``red`` or ``red:3``. Raises ArgumentError for anything else."""
        name, colon, number = text.partition(":")
        if not name or (colon and not (number.isascii() and number.isdecimal())):
            raise ArgumentError(
                f"invalid tenant {text!r}: write a name, or a name and the number of a grant such as red:3"
            )
        return cls(name, int(number) if colon else None)


@dataclass(frozen=True)
class Lease:
    """A grant, and the pool that it is part of. Picklable: every process of a world opens the same."""

    pool: str  # its name in shared memory, or its UUID on devices
    slot: int  # its line in the pool's table
    grant: Grant
    cards: int
    interleave_bytes: int

    def describe(self) -> str:
        """Name the grant, its tenant, its size and its pool, for messages."""
        grant = self.grant
        size = format_bytes(grant.nbytes)
        return (
            f"grant {grant.number} of tenant {grant.tenant}, {size} of each of {self.cards} cards of pool {self.pool}"
        )


def lease_for(text: str, memory: MemorySpec, pool_name: str | None, *, wait_s: float) -> Lease:
    """Return the lease of a tenant's oldest grant, or of grant 3 (``red:3``); wait for the pool, then for the grant."""
    tenant = Tenant.parse(text)
    with memory.backend.attach_pool(memory, pool_name, deadline_s=wait_s) as pool:
        table = Table.of(pool, pool.line_memory())
        until = time.monotonic() + wait_s
        while True:
            over = time.monotonic() > until  # before the last look: this process may be stopped at any moment
            entries = table.entries()
            if lines := _held_by(tenant, entries):
                break
            if over:
                raise AccessError(f"{_nothing(tenant, pool.name)}; {_holders(entries)}")
            time.sleep(LOOK_S)
        slot = min(lines, key=lambda slot: lines[slot].grant.number)
        return Lease(pool.name, slot, lines[slot].grant, len(pool.cards), pool.interleave_bytes)


def _held_by(tenant: Tenant, entries: dict[int, TableEntry]) -> dict[int, TableEntry]:
    return {
        slot: entry
        for slot, entry in entries.items()
        if entry.state == GrantState.HELD
        and entry.grant.tenant == tenant.name
        and tenant.number in (None, entry.grant.number)
    }


def _nothing(tenant: Tenant, pool: str) -> str:
    what = "nothing" if tenant.number is None else f"no grant {tenant.number}"
    return f"tenant {tenant.name} holds {what} of pool {pool}"


def _holders(entries: dict[int, TableEntry]) -> str:
    names = sorted({entry.grant.tenant for entry in entries.values() if entry.state == GrantState.HELD})
    return f"its tenants: {', '.join(names)}" if names else "no tenant holds any"
