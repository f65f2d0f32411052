"""The fabric manager of a pool that several processes share, or several hosts: what it lends lies in the pool.

    manager = PoolManager.open(pool)      # from now on, or from its first change on, the one writer of the table
    grant = manager.add("red", 8 << 20)
    manager.force("red")                # running ranks find out while they wait, and before their next call

Every change is published line by line: a grant before its account, and before both what is being changed, so that the
next manager can complete a change in whose middle this one died. On one machine managers take turns by locking card 0;
a pool that several hosts share is managed on one of them, because no lock and no atomic reaches further.

No rank enters while something is taken away: the manager publishes that first and then looks which ranks are in, and a
rank says that it is in first and then looks whether it still may (tenancy.py). What is given back is wiped before it is
free.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np

from cxlemu.capacity.lines import (
    SLOTS,
    TENANT_BYTES,
    AccountLine,
    GrantLine,
    GrantState,
    Header,
    TableChange,
    page_bytes_for,
    table_end,
    tenant_bytes,
    tenant_name,
)
from cxlemu.capacity.manager import FabricManager, Grant, Totals
from cxlemu.capacity.table import Table, TableEntry
from cxlemu.errors import ArgumentError, CapacityError, PoolError
from cxlemu.memory.protocol import HostMemory
from cxlemu.pool.life import is_held_at
from cxlemu.pool.owner import NOBODY, Owner
from cxlemu.pool.pool import Pool
from cxlemu.pool.session_area import COUNT_MAX
from cxlemu.rounding import round_down, round_up
from cxlemu.units import format_bytes

RANKS = 64
LOCK_PATIENCE_S = 60.0  # large grants take a while to wipe
LOOK_S = 0.05
_WIPE_BYTES = 4 << 20


class PoolManager(FabricManager):
    """A FabricManager whose grants lie in the pool. Offsets count on whole cards; users are ranks of any process."""

    users = ("rank is", "ranks are")

    def __init__(self, pool: Pool, memory: HostMemory, lock_path: Path) -> None:
        """Use `open` or `begin`."""
        self.pool, self.memory = pool, memory
        self.table = Table.of(pool, memory)
        self._lock_path = lock_path
        self._header = self.table.header()
        self._slots: dict[int, int] = {}  # slot of each grant, by its number
        self._published: dict[int, GrantLine] = {}  # by slot
        self._accounts: dict[int, AccountLine] = {}
        self._gone = False  # for one change: no rank is in any grant
        super().__init__(
            card_bytes=self._header.end_byte,
            cards=len(pool.cards),
            block_bytes=self._header.block_bytes,
            first_byte=self._header.first_byte,
        )
        self.refresh()

    @classmethod
    def open(cls, pool: Pool) -> Self:
        """Open the manager of a pool whose capacity is lent; complete a change that its last manager left."""
        manager = cls(pool, pool.line_memory(), pool.lock_path)
        if manager._header.change != TableChange.NOTHING:
            manager.reclaim()  # its last manager died in the middle of that
        return manager

    @classmethod
    def begin(cls, pool: Pool, block_bytes: int, *, ranks: int = RANKS) -> Self:
        """Lend the pool's capacity from now on, in blocks of whole pages; what earlier runs left there is wiped."""
        memory = pool.line_memory()
        first, room = lendable(pool.data_offset, pool.card_bytes, block_bytes, pool.align_bytes, ranks)
        page_bytes = page_bytes_for(pool.align_bytes, pool.card_bytes)
        table = Table(memory, pool.uuid, pool.data_offset, pool.card_bytes, ranks, page_bytes)
        for slot in range(SLOTS):
            table.store_grant(slot, _FREE)
            table.store_account(slot, _NOBODY)
        uses = table.uses_of(0)[0]
        _zero(memory, 0, uses, table.end - uses)
        for card in range(len(pool.cards)):
            _zero(memory, card, first, room)
        table.store_header(Header(TableChange.NOTHING, 0, block_bytes, first, first + room, 0, ranks, page_bytes))
        return cls.open(pool)

    # --- lending -----------------------------------------------------------------------------------------------

    def add(self, tenant: str, nbytes: int) -> Grant:
        """Lend ``nbytes`` of every card, rounded up to blocks, in one piece, and publish the grant."""
        if len(tenant.encode()) > TENANT_BYTES or ":" in tenant:
            raise ArgumentError(f"a tenant's name has up to {TENANT_BYTES} bytes and no ':', not {tenant!r}")
        with self._changing(TableChange.ADD):
            if self._given >= COUNT_MAX:
                raise CapacityError("the pool's table has used all grant numbers: make the pool again")
            if len(self._slots) == SLOTS:
                raise CapacityError(f"all {SLOTS} lines of the pool's table hold grants: release one first")
            return super().add(tenant, nbytes)

    def release(self, grant: Grant) -> None:
        """Give a grant back; its bytes are wiped, and free at once."""
        with self._changing(TableChange.RELEASE):
            self._require_held(grant)
            self._publish(grant, GrantState.RELEASING)
            super().release(grant)  # where it refuses, the grant is held as before

    def force(self, tenant: str, *, wait_s: float = 0.0, gone: bool = False) -> tuple[Grant, ...]:
        """Take away all that a tenant holds.

        Ranks that are in a grant get an AccessError, in a call or before the next one; until the last has left, its
        bytes are not lent again. ``gone``: the caller's word that no rank of the tenant runs any more.
        """
        with self._changing(TableChange.FORCE, gone=gone):
            grants = [grant for grant in self._leaving.values() if grant.tenant == tenant]
            for grant in self.grants(tenant):
                self._publish(grant, GrantState.FORCED)
            taken = super().force(tenant)
            self._reclaim()
        until, numbers = time.monotonic() + wait_s, {grant.number for grant in (*grants, *taken)}
        while numbers & self._leaving.keys() and time.monotonic() < until:
            time.sleep(LOOK_S)
            self.reclaim()
        return (*grants, *taken)

    def reclaim(self) -> None:
        """Make free what was taken away and has no users any more."""
        with self._changing(TableChange.RECLAIM):
            self._reclaim()

    def refresh(self) -> None:
        """Read the table again, which other managers and tenants that left may have changed."""
        with self._lock, _locked(self._lock_path):
            self._load()

    def users_of(self, grant: Grant) -> list[Owner]:
        """Return the process of each rank that is in a grant, unless that process is known to be dead.

        A rank of this machine is in it as long as its lock is held, whatever its line says: a rank that came too late,
        or another world's in the same grant, may have stored over it. NOBODY stands for the process then.
        """
        if (slot := self._slots.get(grant.number)) is None:
            return []
        owners = []
        for rank in range(self.table.ranks):
            line, held = self.table.use(slot, rank), is_held_at(self._lock_path, self.table.life_at(slot, rank))
            if line is not None and line.number == grant.number and line.inside and (held or self._may_run(line.owner)):
                owners.append(line.owner)
            elif held:
                owners.append(NOBODY)
        return owners

    def _may_run(self, owner: Owner) -> bool:
        """Return whether an owner that holds no lock may still run, as one on another host or in a container may."""
        elsewhere = self.pool.spans_machines and owner.boot_id != Owner.current().boot_id
        return elsewhere or owner.state() != "dead"

    def entries(self) -> list[TableEntry]:
        """Return all that is held or being taken away, oldest first."""
        with self._lock:
            states = dict.fromkeys(self._leaving, GrantState.FORCED) | dict.fromkeys(self._held, GrantState.HELD)
            grants = self._held | self._leaving
            return [TableEntry(grants[number], states[number]) for number in sorted(grants)]

    # --- how ---------------------------------------------------------------------------------------------------

    def _in_use(self, grant: Grant) -> int:
        return 0 if self._gone else len(self.users_of(grant))

    def _wipe(self, grant: Grant) -> None:
        for card in range(self.cards):
            _zero(self.memory, card, grant.at, grant.nbytes)

    def _reclaim(self) -> None:
        for grant in [grant for grant in self._leaving.values() if not self._in_use(grant)]:
            del self._leaving[grant.number]
            self._free_again(grant)

    @contextmanager
    def _changing(self, change: TableChange, *, gone: bool = False) -> Iterator[None]:
        """Read the table, change what it says, and publish that. An error changes nothing and publishes so."""
        with self._lock, _locked(self._lock_path):
            self._load()
            self._gone = gone
            self._header = self._header._replace(change=change, epoch=(self._header.epoch + 1) % COUNT_MAX)
            self.table.store_header(self._header)
            try:
                yield
            finally:
                self._gone = False
                self._store()

    def _load(self) -> None:
        """Read the table into the state of a FabricManager, and complete what a manager began and did not end."""
        self._header = self.table.header()
        self.table.check()
        self._restart(self._header.given)
        self._slots, self._published = {}, {}
        for slot, (grant, state) in self.table.entries().items():
            if grant.number in self._slots:
                raise PoolError(f"the pool's capacity table is damaged: it has a grant {grant.number} twice")
            if not self._restore(grant, leaving=state == GrantState.FORCED):
                raise PoolError(f"the pool's capacity table is damaged: its grant {grant.number} overlaps an older one")
            self._slots[grant.number] = slot
            self._published[slot] = _line(grant, state)
        self._accounts = self.table.accounts()
        for line in self._accounts.values():
            _, peak, added, released, forced = line
            self._totals[tenant_name(line.tenant)] = Totals(peak, added, released, forced)
        self._settle()

    def _settle(self) -> None:
        """Make accounts follow the grants: those are right, because they are published first.

        Accounts of an unfinished change, or lost ones, may lag behind.
        """
        for tenant in {entry.grant.tenant for entry in self.entries()} | self._totals.keys():
            totals = self._totals.setdefault(tenant, Totals())
            held = sum(grant.nbytes for grant in self.grants(tenant))
            missing = totals.added - totals.released - totals.forced - held
            if missing < 0:
                totals.added -= missing
            elif self._header.change == TableChange.RELEASE:
                totals.released += missing
            else:
                totals.forced += missing
            totals.peak = max(totals.peak, held)

    def _store(self) -> None:
        now = {entry.grant.number: entry for entry in self.entries()}
        for number in self._slots.keys() - now.keys():
            slot = self._slots.pop(number)
            self._published.pop(slot)
            self.table.store_grant(slot, _FREE)
        for number, (grant, state) in now.items():
            if number not in self._slots:
                taken = set(self._slots.values())  # one that was last used long ago: its old users no longer know it
                self._slots[number] = next(n % SLOTS for n in range(number, number + SLOTS) if n % SLOTS not in taken)
            self._publish(grant, state)
        self._store_accounts()
        self._header = self._header._replace(change=TableChange.NOTHING, given=self._given)
        self.table.store_header(self._header)

    def _publish(self, grant: Grant, state: GrantState) -> None:
        slot, line = self._slots[grant.number], _line(grant, state)
        if self._published.get(slot) != line:
            self._published[slot] = line
            self.table.store_grant(slot, line)

    def _store_accounts(self) -> None:
        """Store changed accounts. Where no line is left, the account of a tenant that holds nothing gives way."""
        slots = {tenant_name(line.tenant): slot for slot, line in self._accounts.items()}
        having = {entry.grant.tenant for entry in self.entries()}
        for tenant, totals in self._totals.items():
            line = AccountLine(tenant_bytes(tenant), totals.peak, totals.added, totals.released, totals.forced)
            slot = slots.get(tenant)
            if slot is None:
                unused = set(range(SLOTS)) - self._accounts.keys()
                unused = unused or {offset for name, offset in slots.items() if name not in having}
                slot = min(unused)
            if self._accounts.get(slot) != line:
                self._accounts[slot] = line
                self.table.store_account(slot, line)


def lendable(
    data_offset: int, card_bytes: int, block_bytes: int, align_bytes: int, ranks: int = RANKS
) -> tuple[int, int]:
    """Compute the first byte of every card that can be lent, and how many: both multiples of ``block_bytes``."""
    if block_bytes < align_bytes or block_bytes % align_bytes:
        raise ArgumentError(f"capacity is lent in blocks of whole pages of {align_bytes} bytes, not of {block_bytes}")
    first = round_up(table_end(data_offset, ranks, page_bytes_for(align_bytes, card_bytes)), block_bytes)
    room = round_down(card_bytes - first, block_bytes)
    if room < block_bytes:
        raise ArgumentError(
            f"cards of {format_bytes(card_bytes)} have no block of {format_bytes(block_bytes)} to lend after their "
            f"first {format_bytes(first)}"
        )
    return first, room


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock against other managers on this machine; the kernel releases it for one that dies."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        until = time.monotonic() + LOCK_PATIENCE_S
        while True:
            over = time.monotonic() > until
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if over:
                    raise PoolError(
                        f"another process has held the lock of this pool's table for {LOCK_PATIENCE_S:g} s"
                    ) from None
                time.sleep(LOOK_S)
        yield
    finally:
        os.close(fd)


def _zero(memory: HostMemory, card: int, offset: int, nbytes: int) -> None:
    zeros = np.zeros(min(nbytes, _WIPE_BYTES), np.uint8)
    for begin in range(offset, offset + nbytes, _WIPE_BYTES):
        piece = zeros[: min(_WIPE_BYTES, offset + nbytes - begin)]
        memory.write(card, begin, piece)
        memory.flush(card, begin, piece.nbytes)
    memory.fence()


def _line(grant: Grant, state: GrantState) -> GrantLine:
    return GrantLine(grant.number, grant.at, grant.nbytes, state, tenant_bytes(grant.tenant))


_FREE = GrantLine(0, 0, 0, GrantState.FREE, tenant_bytes(""))
_NOBODY = AccountLine(tenant_bytes(""), 0, 0, 0, 0)
