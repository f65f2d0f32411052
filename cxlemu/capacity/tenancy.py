"""One rank in a grant: it says that it is in, looks whether it still may, and holds its plans to what it was lent.

A grant that is taken away is noticed while the rank waits, in a call or for its peers, and otherwise by a thread that
looks every LOOK_S seconds: its ``on_loss`` stops calls that no wait would ever end. Then everything raises AccessError.
The manager believes that a rank has left when the rank says so, after all its lines have left this host's cache, or
when its process is gone.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from cxlemu.capacity.lines import GrantState, UseLine
from cxlemu.capacity.table import LOOKS
from cxlemu.capacity.tenant_pool import TenantPool
from cxlemu.capacity.touches import Touch, outside, touches
from cxlemu.errors import AccessError, ArgumentError, RunError
from cxlemu.memory.protocol import HostMemory
from cxlemu.plan import Call, Frame, Layout
from cxlemu.pool.home import Home
from cxlemu.pool.life import LifeLock
from cxlemu.pool.owner import Owner
from cxlemu.pool.pool import Pool

LOOK_S = 0.05


class Tenancy:
    """One rank's place in a grant, from entering to leaving."""

    def __init__(self, pool: TenantPool, rank: int) -> None:
        if rank >= pool.max_ranks:
            raise ArgumentError(
                f"there is no rank {rank} in a tenant's world: the limit here is {pool.max_ranks} ranks"
            )
        self.lease, self._pool, self._rank = pool.lease, pool, rank
        self._told: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._lost = False
        self._home = Home()
        self._ended = threading.Event()
        self._life: LifeLock | None = None
        self._watch = threading.Thread(target=self._keep_watch, name=f"tenancy of rank {rank}", daemon=True)

    def enter(self) -> None:
        """Enter the grant, and begin to watch it.

        The rank says first that it is in, and then looks: a manager that takes the grant away does both the other way
        round. A rank that finds it came too late has touched nothing but its line in the table.
        """
        self.look(coming=True)
        self._life = LifeLock(self._pool.lock_path, self._pool.table.life_at(self.lease.slot, self._rank))
        self._say(inside=True)
        try:
            self.look(coming=True)
        except AccessError:
            self._say(inside=False)
            self._life.release()
            raise
        self._watch.start()

    def leave(self, memory: HostMemory) -> None:
        """Leave the grant, after all its lines have left this host's cache. A forked child is not in it."""
        if self._home.left:
            return
        self._ended.set()
        with suppress(RunError):  # what fails here arrives nowhere either
            memory.fence()
            for card in range(len(self._pool.cards)):
                memory.invalidate(card, 0, self._pool.card_bytes)
        self._say(inside=False)
        if self._life is not None:
            self._life.release()

    def look(self, *, coming: bool = False) -> None:
        """Raise if the grant is lost or, for a rank that is ``coming``, is being given back; for any thread."""
        for _ in range(LOOKS):
            entry = self._pool.table.entry(self.lease.slot)
            if entry is not None and entry.grant == self.lease.grant:
                if entry.state == GrantState.HELD or (entry.state == GrantState.RELEASING and not coming):
                    return
                break
            if entry is not None:
                break
        raise AccessError(f"{self.lease.describe()}, was taken away or given back")

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Call a bound method, kept as a weak reference, in another thread once the grant is lost; at once if it is."""
        self._told = [*(method for method in self._told if method() is not None), weakref.WeakMethod(callback)]
        if self._lost:
            callback()

    def require(self, call: Call, layout: Layout, frame: Frame, base: int) -> None:
        """Require that a plan stays inside the grant."""
        self._require_all(f"run [{call}]", touches(layout, frame, base, told=call.heap is not None and call.heap.told))

    def require_room(self, cards: int, begin: int, end: int) -> None:
        """Require that the room of a communicator, bytes [``begin``, ``end``) of every card, lies inside the grant."""
        rooms = (Touch("room", card, begin, end) for card in range(cards))
        self._require_all("open a communicator", rooms)

    def _require_all(self, what: str, touched: Iterator[Touch]) -> None:
        grant, cards = self.lease.grant, self.lease.cards
        moved = (touch._replace(begin=touch.begin + grant.at, end=touch.end + grant.at) for touch in touched)
        first = outside(moved, [(grant.at, grant.end)], cards)
        if first is not None:
            whose = self._pool.table.whose(first.card, first.begin, cards, list(self._pool.table.entries().values()))
            raise AccessError(
                f"tenant {grant.tenant} may not {what}: bytes {first.begin} to {first.end - 1} of card {first.card}, "
                f"where its {first.what} would be, are {whose}"
            )

    def _say(self, *, inside: bool) -> None:
        line = UseLine.of(self.lease.grant.number, Owner.current(), inside=inside)
        self._pool.table.store_use(self.lease.slot, self._rank, line)

    def _keep_watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self.look()
            except AccessError:
                self._lost = True
                for method in list(self._told):
                    if (callback := method()) is not None:
                        callback()
                return


@contextmanager
def tenancy_in(pool: Pool, rank: int, program: HostMemory) -> Iterator[Tenancy | None]:
    """Hold a rank's place in its tenant's grant; yield None in a pool that is not a tenant's."""
    if not isinstance(pool, TenantPool):
        yield None
        return
    tenancy = Tenancy(pool, rank)
    tenancy.enter()
    try:
        yield tenancy
    finally:
        tenancy.leave(program)
