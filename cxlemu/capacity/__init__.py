"""A composable pool: capacity of cards, lent to tenants while they run, and what keeps tenants apart.

    manager = FabricManager(card_bytes=64 << 20, cards=6, block_bytes=1 << 20)
    grant = manager.add("red", 8 << 20)             # 8 MiB of each card, in one piece
    manager.check("red", plan, base=grant.at)       # AccessError where the plan would touch anything else
    manager.release(grant)                          # or manager.force("red")

As with CXL's dynamic capacity (CXL 3.1, 9.13.3): a fabric manager adds extents, hosts release them or have them taken
away, and what is given back is wiped. `GuardedEngine` executes plans inside one grant.
"""

from cxlemu.capacity.guard import GuardedEngine
from cxlemu.capacity.manager import Account, FabricManager, Grant

__all__ = ["Account", "FabricManager", "Grant", "GuardedEngine"]
