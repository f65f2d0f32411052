"""What C asks of Python while a communicator's calls run: the hooks of a Sequencer (see native/sequencer.c)."""

from typing import Any, Protocol, TypeAlias

# For each stream that waits (stream, at, doorbell, wanted, shows): struct obstacle in native/core.h.
Obstacles: TypeAlias = "list[tuple[int, int, int, int, int]]"


class CallHooks(Protocol):
    """The three things that C leaves to Python; C calls them with the GIL held, in the thread that makes the call."""

    def slow_path(self, collective: str, x: Any, out: Any, op: str, root: int, variant: Any, async_op: bool, /) -> Any:
        """Make a call that is like none before it, or whose turn may not have come.

        Arguments, result and errors are those of every verb of a communicator (`collectives.communicator.verbs.verbs`).
        """

    def resume(self, cookie: Any, epoch: int, tag: int, program: Any, status: int, obstacles: Obstacles, /) -> None:
        """Bring a call to its end that began in C and did not end at once.

        ``cookie`` is what the operation was made with, ``program`` the `_native.Program` that stopped, and ``status``
        how: one of ``enum status`` in native/core.h but ``DONE``. Where this raises, the communicator is revoked.
        """

    def run_in_turn(self, operation: Any, /) -> Any:
        """Run an operation after this rank's calls that are under way, by its ``run()``; return its result."""
