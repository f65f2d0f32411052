"""Which ranks are alive, apart from what they call: a process that ends is seen at once, a silent host after a while.

A peer process of this machine is watched through its pidfd, which says that it ended, and nothing else: a process that
computes for hours, or is stopped by SIGSTOP, is alive. On other machines, and among threads of one process, a rank is
alive as long as its pulse beats: a number in its line of the ledger, which a thread in C counts up without the GIL.
"""

import os
import select
import threading
from collections.abc import Iterable
from contextlib import suppress

from cxlemu._native import Pulse
from cxlemu.memory.native import NativeShadowMemory
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.pool.home import Home
from cxlemu.pool.ledger import PULSE, Identity, Ledger

PULSE_S = 0.1  # between two beats
LOST_S = 2.0  # a rank of another machine whose pulse stands still for so long is lost


class Liveness:
    """What one rank knows of the processes of all ranks. Any of its threads may ask."""

    def __init__(self, ledger: Ledger, identity: Identity) -> None:
        """Begin to watch; processes are found as they are asked for."""
        self._ledger, self._mine = ledger, identity
        self._reader: HostMemory = ledger.memory
        self._pulse: Pulse | None = None
        self._processes: dict[int, tuple[int, int]] = {}  # rank: its pid on this machine, and its pidfd
        self._ended: dict[int, int] = {}  # rank: the pid that it had
        self._poll = select.poll()
        self._lock = threading.Lock()
        self._home = Home()

    def beat(
        self, card: Bytes, memory: NativeShadowMemory | None, *, push: bool, reader: NativeShadowMemory | None
    ) -> None:
        """Begin this rank's pulse, through a memory of its own (None: stores to the card), and watch others' pulses."""
        self._reader = reader or self._reader
        offset = self._ledger.place(self._ledger.rank, PULSE)
        with suppress(OSError):  # no more threads: peers see this rank's signs of life in its waits, as they did before
            self._pulse = Pulse(card, offset, push, memory.shadow if memory else None, int(PULSE_S * 1e9))

    def pulse(self, rank: int) -> int:
        """Return the number that the rank's pulse shows; 0 before its first beat."""
        return self._reader.poll(0, self._ledger.place(rank, PULSE)).word

    def ended(self, ranks: Iterable[int]) -> dict[int, int]:
        """Return the pids of those of ``ranks`` that were processes of this machine and have ended."""
        asked = list(ranks)
        with self._lock:
            for rank in asked:
                if not self.watched(rank):
                    self._find(rank)
            readable = {fd for fd, _ in self._poll.poll(0)} if self._processes else set()
            for rank, (pid, fd) in list(self._processes.items()):
                if fd in readable:
                    self._forget(rank)
                    self._ended[rank] = pid
            return {rank: self._ended[rank] for rank in asked if rank in self._ended}

    def watched(self, rank: int) -> bool:
        """Whether the rank is another process of this machine, of which `ended` knows whether it is alive."""
        return rank in self._processes or rank in self._ended

    def _find(self, rank: int) -> None:
        """Open the rank's process. While the rank lives, no other process has its pid; a pid without one tells all."""
        identity = self._ledger.identity(rank)
        if identity is None or identity.machine != self._mine.machine or identity.pid == self._mine.pid:
            return
        try:
            fd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            self._ended[rank] = identity.pid
            return
        except (OSError, AttributeError):  # no file descriptors left, or no pidfds here: its pulse has to tell
            return
        self._processes[rank] = identity.pid, fd
        self._poll.register(fd, select.POLLIN)

    def _forget(self, rank: int) -> None:
        _, fd = self._processes.pop(rank)
        self._poll.unregister(fd)
        os.close(fd)

    def stop(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()

    def close(self) -> None:
        """Stop this rank's pulse, and let go of the peers' processes; a forked child has none of both."""
        if self._home.left:
            return
        self.stop()
        with self._lock:
            for rank in list(self._processes):
                self._forget(rank)
