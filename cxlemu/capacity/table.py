"""The table of a pool whose capacity is lent: every process may read it, and its manager writes it.

A tenant's process has it read-only, but for the pages in which its ranks say that they are in their grant.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Sequence
from typing import NamedTuple, Self

from cxlemu.capacity.lines import (
    HEADER_BOUNDS,
    HEADER_OFFSET,
    SLOTS,
    AccountLine,
    GrantLine,
    GrantState,
    Header,
    Lines,
    UseLine,
    table_end,
    tenant_name,
    uses_range,
)
from cxlemu.capacity.manager import Grant
from cxlemu.errors import AccessError, PoolError
from cxlemu.memory.protocol import LINE_BYTES, HostMemory
from cxlemu.pool.pool import Pool
from cxlemu.pool.session_area import within
from cxlemu.pool.superblock import PAGE_BYTES

LOOKS = 100  # at a line that is torn because it is just being written


class TableEntry(NamedTuple):
    grant: Grant
    state: GrantState


class Table:
    """The capacity table at ``data_offset`` of card 0, with its header in the superblock's page."""

    def __init__(
        self,
        memory: HostMemory,
        uuid: uuids.UUID,
        data_offset: int,
        card_bytes: int,
        ranks: int,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        """Use `of`."""
        self._lines = self._uses = Lines(memory, uuid)
        self._uses_at = 0  # of the uses' memory, on card 0
        self._tenant: int | None = None  # a tenant's slot; None for the manager, who may write everything
        self._at, self._card_bytes, self.ranks, self._page_bytes = data_offset, card_bytes, ranks, page_bytes

    @classmethod
    def of(cls, pool: Pool, memory: HostMemory) -> Self:
        """Find the table of a pool, the whole of whose card 0 ``memory`` shows."""
        for _ in range(LOOKS):
            if (header := header_of(pool, memory)) is not None:
                return cls(memory, pool.uuid, pool.data_offset, pool.card_bytes, header.ranks, header.page_bytes)
        raise PoolError(
            "this pool's capacity is not lent: `cxlemu pool format --lend SIZE` makes a pool of cards whose capacity "
            "is lent, `cxlemu pool capacity hold` one in shared memory"
        )

    def shown_by(self, memory: HostMemory) -> Table:
        return Table(memory, self._lines.uuid, self._at, self._card_bytes, self.ranks, self._page_bytes)

    def for_tenant(self, slot: int, memory: HostMemory, uses: HostMemory, uses_at: int) -> Table:
        """Return the table for a tenant's process, which writes only its slot's uses, from ``uses_at`` on card 0 on."""
        table = self.shown_by(memory)
        table._tenant, table._uses, table._uses_at = slot, Lines(uses, self._lines.uuid), uses_at
        return table

    def uses_of(self, slot: int) -> tuple[int, int]:
        return uses_range(self._at, self.ranks, self._page_bytes, slot)

    @property
    def end(self) -> int:
        return table_end(self._at, self.ranks, self._page_bytes)

    def header(self) -> Header:
        """Read the header as it is now. Raises PoolError where it is damaged."""
        for _ in range(LOOKS):
            if (header := self._lines.load(HEADER_OFFSET, Header)) is not None:
                return _checked(header, self._at, self._card_bytes)
        raise PoolError("the header of the pool's capacity table is damaged")

    def store_header(self, header: Header) -> None:
        """Push the header. Raises AccessError in a tenant's process."""
        self._require_manager()
        self._lines.store(HEADER_OFFSET, header)

    def entry(self, slot: int) -> TableEntry | None:
        """Read what a slot holds; return None where that is nothing, or nothing that could be."""
        line = self._line(slot)
        return None if line is None or line.state == GrantState.FREE else _entry(line)

    def entries(self) -> dict[int, TableEntry]:
        """Read all entries; return them by slot, in order of their grants' numbers."""
        slots = ((slot, self.entry(slot)) for slot in range(SLOTS))
        return dict(sorted(((s, e) for s, e in slots if e is not None), key=lambda pair: pair[1].grant.number))

    def check(self) -> None:
        """Check that every line is free or held, for a manager that lends what is free by this table."""
        for slot in range(SLOTS):
            if self._line(slot) is None:
                raise PoolError(
                    f"line {slot} of the pool's capacity table is damaged, so owners are unknown: when "
                    "all tenants have left, make the pool again"
                )

    def _line(self, slot: int) -> GrantLine | None:
        """Read a grant's line; return None for one that is damaged, or that no manager writes."""
        line = self._lines.load(self._grant_offset(slot), GrantLine, slot)
        if line is None or line.state == GrantState.FREE:
            return line
        possible = (
            line.number > 0
            and line.tenant.rstrip(b"\0")
            and self.end <= line.at < line.at + line.nbytes <= self._card_bytes
        )
        return line if possible and not (line.at % LINE_BYTES or line.nbytes % LINE_BYTES) else None

    def store_grant(self, slot: int, line: GrantLine) -> None:
        """Push the grant's line of ``slot``. Raises AccessError in a tenant's process."""
        self._require_manager()
        self._lines.store(self._grant_offset(slot), line, slot)

    def accounts(self) -> dict[int, AccountLine]:
        """Read the accounts; return those of tenants, by slot."""
        lines = {}
        for slot in range(SLOTS):
            line = self._lines.load(self._account_offset(slot), AccountLine, SLOTS + slot)
            if line is not None and line.tenant.rstrip(b"\0"):
                lines[slot] = line
        return lines

    def store_account(self, slot: int, line: AccountLine) -> None:
        """Push the account's line of ``slot``. Raises AccessError in a tenant's process."""
        self._require_manager()
        self._lines.store(self._account_offset(slot), line, SLOTS + slot)

    def use(self, slot: int, rank: int) -> UseLine | None:
        """Read the line in which ``rank`` says whether it is in the grant of ``slot``; return None without one."""
        return self._lines.load(self._use_offset(slot, rank), UseLine, self._use_index(slot, rank))

    def store_use(self, slot: int, rank: int, line: UseLine) -> None:
        """Push the line in which ``rank`` says whether it is in the grant of ``slot``.

        Raises AccessError in the process of a tenant that holds another slot.
        """
        if self._tenant not in (None, slot):
            self._require_manager()
        self._uses.store(self._use_offset(slot, rank) - self._uses_at, line, self._use_index(slot, rank))

    def _require_manager(self) -> None:
        if self._tenant is not None:
            raise AccessError("only the manager of a pool writes its table: tenants write their own lines only")

    def life_at(self, slot: int, rank: int) -> int:
        """Return the byte of the pool's lock file that ``rank`` locks while it is in the grant of ``slot``."""
        return self._use_offset(slot, rank)

    def whose(self, card: int, offset: int, cards: int, entries: Sequence[TableEntry]) -> str:
        """Return the end of a sentence that says whose a byte is, such as "tenant red's"."""
        if card >= cards or not self.end <= offset < self._card_bytes:
            return "not there"
        for grant, state in entries:
            if grant.at <= offset < grant.end:
                return (
                    f"being taken away from {grant.tenant}"
                    if state == GrantState.FORCED
                    else f"tenant {grant.tenant}'s"
                )
        return "nobody's"

    def _grant_offset(self, slot: int) -> int:
        return self._at + slot * LINE_BYTES

    def _account_offset(self, slot: int) -> int:
        return self._at + (SLOTS + slot) * LINE_BYTES

    def _use_index(self, slot: int, rank: int) -> int:
        return 2 * SLOTS + slot * self.ranks + rank

    def _use_offset(self, slot: int, rank: int) -> int:
        return self.uses_of(slot)[0] + rank * LINE_BYTES


def header_of(pool: Pool, memory: HostMemory) -> Header | None:
    header = Lines(memory, pool.uuid).load(HEADER_OFFSET, Header)
    return None if header is None else _checked(header, pool.data_offset, pool.card_bytes)


def _checked(header: Header, data_offset: int, card_bytes: int) -> Header:
    """Return a header that was read. Raises PoolError where it makes no sense."""
    if not (
        within(header, HEADER_BOUNDS)
        and header.page_bytes.bit_count() == 1
        and table_end(data_offset, header.ranks, header.page_bytes) <= header.first_byte < header.end_byte <= card_bytes
        and header.first_byte % header.block_bytes == header.end_byte % header.block_bytes == 0
        and header.block_bytes % LINE_BYTES == 0
    ):
        raise PoolError(f"the pool's capacity table is damaged: {header} is impossible")
    return header


def _entry(line: GrantLine) -> TableEntry:
    return TableEntry(Grant(line.number, tenant_name(line.tenant), line.at, line.nbytes), GrantState(line.state))
