"""A composable pool: capacity of cards, lent to tenants while they run, and what keeps tenants apart.

    manager = FabricManager(card_bytes=64 << 20, cards=6, block_bytes=1 << 20)
    grant = manager.add("red", 8 << 20)             # 8 MiB of each card, in one piece
    manager.check("red", plan, base=grant.at)       # AccessError where the plan would touch anything else
    manager.release(grant)                          # or manager.force("red")

As with CXL's dynamic capacity (CXL 3.1, 9.13.3): a fabric manager adds extents, hosts release them or have them taken
away, and what is given back is wiped. `GuardedEngine` executes plans inside one grant, in one process.

Between processes and hosts what is lent lies in the pool: a `PoolManager` writes it, and a world that was launched for
a tenant has its grant as its pool, and nothing else of the cards:

    manager = PoolManager.begin(pool, block_bytes=1 << 20)
    manager.add("red", 8 << 20)
    launch(main, ranks=2, tenant="red", pool_name=pool.name)
"""

from typing import TYPE_CHECKING

from cxlemu.lazy import imported_when_asked_for

if TYPE_CHECKING:
    from cxlemu.capacity.guard import GuardedEngine
    from cxlemu.capacity.manager import Account, FabricManager, Grant
    from cxlemu.capacity.pool_manager import PoolManager

__all__ = ["Account", "FabricManager", "Grant", "GuardedEngine", "PoolManager"]

__getattr__ = imported_when_asked_for(
    __name__, guard=["GuardedEngine"], manager=["Account", "FabricManager", "Grant"], pool_manager=["PoolManager"]
)
