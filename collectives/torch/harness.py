"""Where a test harness takes hold of process groups: see faults/torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from collectives.communicator.communicator import Communicator
from cxlemu.engines import Engine
from cxlemu.world import RankContext

if TYPE_CHECKING:
    from torch.distributed import Store


class Harness(Protocol):
    """What a harness does with every group that this process makes from then on."""

    def engine(self, context: RankContext, group: str) -> str | Engine:
        """Choose the engine of a group's communicator.

        Args:
            context: This rank in the group.
            group: The group's name.
        """

    def around(self, comm: Communicator, group: str, store: Store) -> Any:
        """Return what the group calls instead of its communicator: an object with the same verbs.

        Args:
            comm: The communicator.
            group: The group's name.
            store: The group's part of torch's store.
        """

    def call(self, group: str, number: int, run: Callable[[], None]) -> None:
        """Make a call of a group.

        Args:
            group: The group's name.
            number: The call's number in the group, as errors name it.
            run: Makes the call.
        """

    def message(self, group: str, number: int) -> None:
        """Take note that a message is posted next.

        Args:
            group: The group's name.
            number: The number of the message among those that this rank sent and received in the group.
        """

    def leaving(self, comm: Any, calls: int) -> None:
        """Take note that a group whose calls went well is left, before its communicator is closed.

        Args:
            comm: What `around` returned.
            calls: How many calls this rank made of the group, messages too.
        """


class Installed:
    harness: Harness | None = None
