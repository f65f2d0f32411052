"""The manager of a pool's capacity: it adds, releases and takes away grants while others run, and counts bytes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cxlemu.capacity.first_fit import FirstFit
from cxlemu.capacity.touches import outside, touches
from cxlemu.errors import AccessError, ArgumentError, CapacityError
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.plan import Call, Frame, Layout, Plan, rules
from cxlemu.rounding import round_down, round_up
from cxlemu.units import format_bytes

if TYPE_CHECKING:
    from cxlemu.topology import Topology


@dataclass(frozen=True, slots=True)
class Grant:
    """Bytes [at, end) of every card, lent to ``tenant``. ``number`` is never given twice."""

    number: int
    tenant: str
    at: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first byte behind the grant."""
        return self.at + self.nbytes


@dataclass(frozen=True, slots=True)
class Account:
    """A tenant's bytes of each card: what it holds, what plans under way still hold up, and all that it ever had.

    ``added_bytes`` is always ``held_bytes + released_bytes + forced_bytes``.
    """

    tenant: str
    held_bytes: int = 0
    leaving_bytes: int = 0
    peak_bytes: int = 0
    added_bytes: int = 0
    released_bytes: int = 0
    forced_bytes: int = 0


@dataclass
class Totals:
    """What one tenant ever got and gave back, in bytes of each card."""

    peak: int = 0
    added: int = 0
    released: int = 0
    forced: int = 0


class FabricManager:
    """Capacity of equal cards, lent in blocks. Threads may share the manager.

    A grant is the same bytes of every card, as interleaving and communicators need it.
    """

    users = ("plan runs", "plans run")  # one, and several

    def __init__(
        self, *, card_bytes: int, cards: int, block_bytes: int, memory: Sequence[Bytes] = (), first_byte: int = 0
    ) -> None:
        """Begin with nothing lent.

        Args:
            card_bytes: Size of each card; what is left behind the last whole block is never lent.
            block_bytes: The unit of lending on each card, a multiple of 64.
            memory: The cards' bytes, one uint8 array per card, if they are at hand; what is given back is wiped there
                before it is lent again.
            first_byte: Bytes before this offset of every card are never lent.
        """
        if block_bytes < LINE_BYTES or block_bytes % LINE_BYTES:
            raise ArgumentError(f"capacity is lent in blocks of whole lines, not of {block_bytes} bytes")
        room = round_down(card_bytes - first_byte, block_bytes)
        if cards < 1 or room < block_bytes:
            raise ArgumentError(f"{cards} cards of {card_bytes} bytes are too small for a block of {block_bytes} bytes")
        if memory and (len(memory) != cards or min(card.size for card in memory) < card_bytes):
            raise ArgumentError(f"the memory given is not that of {cards} cards of {card_bytes} bytes")
        self.cards, self.block_bytes = cards, block_bytes
        self.first_byte, self.card_bytes = first_byte, first_byte + room  # capacity lies between them
        self._memory = memory
        self._lock = threading.RLock()
        self._users: Counter[int] = Counter()  # by a grant's number: plans under way
        self._restart(0)

    def _restart(self, given: int) -> None:
        """Begin again with nothing lent, after ``given`` grants."""
        self._free = FirstFit(self.card_bytes, self.first_byte)
        self._held: dict[int, Grant] = {}
        self._leaving: dict[int, Grant] = {}  # taken away from tenants whose plans still run there
        self._totals: dict[str, Totals] = {}
        self._given = given

    def _restore(self, grant: Grant, *, leaving: bool) -> bool:
        """Lend again what was lent before; return False where that is not free."""
        if not self._free.take_at(grant.at, grant.nbytes):
            return False
        (self._leaving if leaving else self._held)[grant.number] = grant
        self._given = max(self._given, grant.number)
        return True

    @classmethod
    def of(cls, topology: Topology, space: str, *, block_bytes: int) -> FabricManager:
        """Make the manager of the capacity of a topology's space on cards, lent in blocks: a multiple of 64 bytes."""
        chosen = topology.space(space)
        cards = topology.cards_of(chosen)
        room = min(topology.card(card).capacity_bytes for card in cards)
        most = chosen.capacity_bytes
        room = room if most is None else min(room, most // len(cards))
        return cls(card_bytes=room, cards=len(cards), block_bytes=block_bytes)

    # --- lending -----------------------------------------------------------------------------------------------

    def add(self, tenant: str, nbytes: int) -> Grant:
        """Lend ``nbytes`` of every card, rounded up to blocks, in one piece: the lowest that is free.

        Raises CapacityError where there is not so much free, or no piece as large; nothing has changed.
        """
        if not tenant or not tenant.isprintable() or nbytes < 1:
            raise ArgumentError(
                f"tenant {tenant!r} cannot ask for {nbytes} bytes: a tenant has a printable name and asks for 1 or more"
            )
        wanted = round_up(nbytes, self.block_bytes)
        with self._lock:
            offset = self._free.take(wanted)
            if offset is None:
                raise CapacityError(self._why_not(tenant, wanted))
            self._given += 1
            grant = Grant(self._given, tenant, offset, wanted)
            self._held[grant.number] = grant
            totals = self._totals.setdefault(tenant, Totals())
            totals.added += wanted
            totals.peak = max(totals.peak, sum(grant.nbytes for grant in self.grants(tenant)))
            return grant

    def release(self, grant: Grant) -> None:
        """Give a grant back; its bytes are wiped, where they are at hand, and free at once.

        Raises CapacityError where a plan runs in it; the grant stays held.
        """
        with self._lock:
            self._require_held(grant)
            if users := self._in_use(grant):
                raise CapacityError(
                    f"grant {grant.number} of tenant {grant.tenant} cannot be released: "
                    f"{users} {self.users[users > 1]} in it; wait until it is unused, or force it"
                )
            del self._held[grant.number]
            self._totals[grant.tenant].released += grant.nbytes
            self._free_again(grant)

    def force(self, tenant: str) -> tuple[Grant, ...]:
        """Take away all that a tenant holds, and return these grants, oldest first.

        From now on the tenant's plans are refused; a plan that runs already goes on to its end, and until then its
        bytes are not lent again.
        """
        with self._lock:
            taken = self.grants(tenant)
            for grant in taken:
                del self._held[grant.number]
                self._totals[tenant].forced += grant.nbytes
                if self._in_use(grant):
                    self._leaving[grant.number] = grant
                else:
                    self._free_again(grant)
            return taken

    def _in_use(self, grant: Grant) -> int:
        """Return how many ``users`` are in a grant now."""
        return self._users[grant.number]

    def _free_again(self, grant: Grant) -> None:
        self._wipe(grant)
        self._free.give_back(grant.at, grant.nbytes)

    def _wipe(self, grant: Grant) -> None:
        for card in self._memory:
            card[grant.at : grant.end] = 0

    # --- rights ------------------------------------------------------------------------------------------------

    def check(self, tenant: str, plan: Plan, base: int) -> None:
        """Check whether a tenant may run a plan whose communicator begins at ``base`` of every card, in all its grants.

        Raises AccessError where the plan could touch a byte that the tenant does not hold, and says which, and whose.
        """
        rules.check(plan)
        with self._lock:
            self._require_rights(tenant, self.grants(tenant), plan.call, plan.layout, plan.frame, base)

    @contextmanager
    def using(self, grant: Grant, call: Call, layout: Layout, frame: Frame, base: int) -> Iterator[None]:
        """Keep a grant from being given to others while a plan runs in it; AccessError: the plan could leave it."""
        with self._lock:
            self._require_held(grant)
            self._require_rights(grant.tenant, (grant,), call, layout, frame, base)
            self._users[grant.number] += 1
        try:
            yield
        finally:
            with self._lock:
                self._users[grant.number] -= 1
                if not self._users[grant.number]:
                    del self._users[grant.number]
                    if (left := self._leaving.pop(grant.number, None)) is not None:
                        self._free_again(left)

    def window(self, grant: Grant) -> list[Bytes]:
        """Return a grant's bytes, one uint8 array per card, which shows the memory at hand."""
        if not self._memory:
            raise ArgumentError("this manager only counts capacity: it has no memory")
        with self._lock:
            self._require_held(grant)
        return [card[grant.at : grant.end] for card in self._memory]

    def _require_held(self, grant: Grant) -> None:
        if self._held.get(grant.number) != grant:
            raise AccessError(f"tenant {grant.tenant} no longer holds grant {grant.number}")

    def _require_rights(
        self, tenant: str, grants: Sequence[Grant], call: Call, layout: Layout, frame: Frame, base: int
    ) -> None:
        spans = sorted((grant.at, grant.end) for grant in grants)
        stray = outside(touches(layout, frame, base), spans, self.cards)
        if stray is not None:
            raise AccessError(
                f"tenant {tenant} may not run [{call}]: bytes {stray.begin} to {stray.end - 1} of card {stray.card}, "
                f"where its {stray.what} would be, are {self._whose(stray.card, stray.begin)}"
            )

    def _whose(self, card: int, offset: int) -> str:
        if card >= self.cards or not self.first_byte <= offset < self.card_bytes:
            return "not there"
        for grants, words in ((self._held, "tenant {}'s"), (self._leaving, "being taken away from {}")):
            for grant in grants.values():
                if grant.at <= offset < grant.end:
                    return words.format(grant.tenant)
        return "nobody's"

    # --- counting ----------------------------------------------------------------------------------------------

    @property
    def free_bytes(self) -> int:
        """Bytes of each card that are free."""
        with self._lock:
            return self._free.free_bytes

    @property
    def largest_bytes(self) -> int:
        """The largest piece that can be added, in bytes of each card."""
        with self._lock:
            return self._free.largest_bytes

    def grants(self, tenant: str) -> tuple[Grant, ...]:
        """Return the grants that a tenant holds, oldest first."""
        with self._lock:
            return tuple(grant for grant in self._held.values() if grant.tenant == tenant)

    def account(self, tenant: str) -> Account:
        """Return a tenant's account; all zeros for one that never had anything."""
        with self._lock:
            totals = self._totals.get(tenant, Totals())
            held = sum(grant.nbytes for grant in self.grants(tenant))
            leaving = sum(grant.nbytes for grant in self._leaving.values() if grant.tenant == tenant)
            return Account(tenant, held, leaving, totals.peak, totals.added, totals.released, totals.forced)

    def accounts(self) -> list[Account]:
        """Return the account of every tenant that ever had anything."""
        with self._lock:
            return [self.account(tenant) for tenant in self._totals]

    def _why_not(self, tenant: str, wanted: int) -> str:
        what = f"tenant {tenant} asks for {format_bytes(wanted)} of each of {self.cards} cards, but "
        lent = self.card_bytes - self.first_byte
        holders = ", ".join(
            f"{account.tenant} {format_bytes(account.held_bytes)}" for account in self.accounts() if account.held_bytes
        )
        if wanted > self.free_bytes:
            return f"{what}{format_bytes(self.free_bytes)} are free of {format_bytes(lent)}: " + (
                f"the rest is lent: {holders}" if holders else "that is all there is"
            )
        return (
            f"{what}the free {format_bytes(self.free_bytes)} lie in {len(self._free.holes)} pieces, the largest of "
            f"{format_bytes(self.largest_bytes)}: ask for less, or release the grants between them ({holders})"
        )
