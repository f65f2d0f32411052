"""The process that a rank lives in: a forked child inherits the rank's objects, and is another process.

The pool is shared memory, so whatever the child did with them would happen to its parent and the parent's peers.
"""

import os

from cxlemu.errors import ForkedError


class Home:
    """The process that made this object."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def left(self) -> bool:
        """Whether this is another process: a forked child."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Check that this is still the process of the rank. Raises ForkedError in a forked child."""
        if self.left:
            raise ForkedError(
                f"this process was forked by process {self._pid}, which is the rank: a forked child can use nothing of "
                "its parent's world; start workers by 'spawn' or 'forkserver', or before the world"
            )
