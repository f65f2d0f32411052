"""An engine that runs a tenant's plans inside one grant, and nowhere else."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cxlemu.capacity.manager import FabricManager, Grant
from cxlemu.engines import Engine
from cxlemu.engines.native import NativeEngine
from cxlemu.engines.streams import NO_BREAKPOINTS, Breakpoints, Running, Watch
from cxlemu.memory.protocol import Bytes


@dataclass
class GuardedEngine:
    """An Engine whose cards are the grant's part of the cards. Bindings give offsets on whole cards, as elsewhere.

    Two checks keep a plan inside, each without the other: before the plan runs, its regions and doorbells are compared
    with what the tenant holds at that moment; and the engine, which ``make`` makes of the grant's window, has no other
    bytes, and is the native one by default, which holds every record to its bounds.

    Attributes:
        manager: The manager that lent the grant; it needs the cards' memory at hand.
        grant: The bytes of every card that plans may touch.
        make: Makes an engine of the grant's bytes of each card.
    """

    manager: FabricManager
    grant: Grant
    make: Callable[[Sequence[Bytes]], Engine] = NativeEngine
    _engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self._engine = self.make(self.manager.window(self.grant))

    def run(
        self,
        running: Running,
        buffers: list[Bytes],
        *,
        deadline_s: float,
        watch: Watch | None = None,
        stops: Breakpoints = NO_BREAKPOINTS,
    ) -> None:
        """Run one rank's part of a call to its end, if the call stays inside the grant: else, AccessError."""
        binding = running.binding
        with self.manager.using(self.grant, running.call, binding.layout, running.frame, binding.base):
            self.unchecked(running, buffers, deadline_s=deadline_s, watch=watch, stops=stops)

    def unchecked(
        self,
        running: Running,
        buffers: list[Bytes],
        *,
        deadline_s: float,
        watch: Watch | None = None,
        stops: Breakpoints = NO_BREAKPOINTS,
    ) -> None:
        """Run one rank's part of a call without asking the manager; PlanError: it leaves the grant's bytes."""
        inside = replace(running.binding, base=running.binding.base - self.grant.at)
        moved = replace(running, binding=inside)
        self._engine.run(moved, buffers, deadline_s=deadline_s, watch=watch, stops=stops)
