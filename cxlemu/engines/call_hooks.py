"""What C asks of Python while a communicator's calls run: the hooks of a Sequencer (see native/sequencer.c)."""

from typing import Any, Protocol, TypeAlias

# For each stream that waits (stream, at, doorbell, wanted, shows): struct obstacle in native/core.h.
Obstacles: TypeAlias = "list[tuple[int, int, int, int, int]]"


class CallHooks(Protocol):
    """The three things that C leaves to Python; C calls them with the GIL held, in the thread that makes the call."""

    def slow_path(self, collective: str, x: Any, out: Any, op: str, root: int, variant: Any, async_op: bool, /) -> Any:
        """Make a call that is like none before it, or whose turn may not have come.

        The arguments are those that every verb of a communicator fills in (`collectives.communicator.verbs.verbs`).

        Returns:
            What the verb returns: ``out``, or a handle with ``async_op``.

        Raises:
            ArgumentError: The arguments do not fit; nothing was sent.
            RevokedError: The communicator was given up.
            Exception: Whatever the call raises.
        """

    def resume(self, cookie: Any, epoch: int, tag: int, program: Any, status: int, obstacles: Obstacles, /) -> None:
        """Bring a call to its end that began in C and did not end at once.

        Args:
            cookie: What the operation was made with.
            epoch: The call's first epoch.
            tag: The call's tag, 16 bits.
            program: The `_native.Program` that stopped.
            status: How it stopped, one of ``enum status`` in native/core.h but ``DONE``.
            obstacles: What each waiting stream waits for.

        Raises:
            Exception: Whatever the call raises; the communicator is revoked then.
        """

    def run_in_turn(self, operation: Any, /) -> Any:
        """Run an operation after this rank's calls that are under way, by its ``run()``.

        Returns:
            The operation's result.

        Raises:
            RevokedError: The communicator was given up.
            Exception: Whatever the call raises.
        """
