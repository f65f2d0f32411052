"""Where a pool's bytes live and what that place guarantees; and so which steps of a plan need not be executed there.

The plan never changes: what a backend guarantees anyway is elided when the plan runs, by this one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto


class Step(Flag):
    """What keeps caches right. The bits are those of native/core.h."""

    FLUSH = auto()
    FENCE = auto()
    INVALIDATE = auto()
    PUSH = auto()  # the flush of its line within SIGNAL
    FETCH = auto()  # the invalidate of its line within WAIT


NOTHING, EVERYTHING = Step(0), ~Step(0)


@dataclass(frozen=True, slots=True)
class Backend:
    name: str
    pool: str  # where the bytes live
    guarantees: str
    elides: Step
    instead: str  # what orders memory in place of the steps elided
    emulates_caches: bool = False  # every host is emulated, and has a cache of its own in front of the pool
    on_devices: bool = False  # the pool is real cards, which are there before a run and stay after it

    def describe(self) -> str:
        """What it guarantees, what is elided for that, and what orders memory then: the end of a sentence."""
        if not self.elides:
            return f"{self.guarantees}; nothing is elided"
        names = ", ".join(str(step.name) for step in Step if step in self.elides)
        return f"{self.guarantees}; elided: {names}; in their place: {self.instead}"


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(
            name="emulated",
            pool="POSIX shared memory, behind a cache of each emulated host",
            guarantees="nothing: another host's stores arrive when they were flushed and the line is fetched again",
            elides=NOTHING,
            instead="",
            emulates_caches=True,
        ),
        Backend(
            name="shm",
            pool="POSIX shared memory",
            guarantees="coherence: a store is in the pool at once, a load is never stale",
            elides=EVERYTHING,
            instead="the release of SIGNAL and the acquire of WAIT",
        ),
        Backend(
            name="dax",
            pool="device-DAX, or files that stand in for cards",
            guarantees="coherence within a host only",
            elides=NOTHING,
            instead="",
            on_devices=True,
        ),
    )
}
