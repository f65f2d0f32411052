"""Worlds for tests: ranks as threads around a pool of their own, an adversary of the test's own seed, and deadlines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from collectives.communicator import Communicator
from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch
from cxlemu.world.machine import DEFAULT_TOPOLOGY

T = TypeVar("T")

DEADLINE_S = 10.0  # of a wait: long for ranks that are threads, short for who waits for a test
OWN_SEED: Literal["seeded"] = "seeded"

Adversary = int | Literal["seeded"] | None


@dataclass(frozen=True)
class TestWorld:
    """``ranks`` ranks, each on the host that the config gives it. Every `run` has a pool of its own."""

    __test__ = False  # pytest collects nothing here

    ranks: int
    config: Topology | str
    memory: MemorySpec
    engine: str
    how: Literal["threads", "processes"]
    deadline_s: float

    def run(self, main: Callable[[Communicator], T]) -> list[T]:
        """``main(comm)`` on every rank; what it returns, in rank order.

        Raises what `cxlemu.world.launch` raises: RankFailures with the root cause first when a rank failed, and
        DeadlineError or PeerLostError among them where one waited for another in vain.
        """
        return launch(
            _Rank(main, self.engine),
            ranks=self.ranks,
            topology=self.config,
            memory=self.memory,
            how=self.how,
            deadline_s=self.deadline_s,
        )

    def __str__(self) -> str:
        config = self.config if isinstance(self.config, str) else self.config.name
        return f"{self.ranks} ranks on {config} as {self.how}, {self.engine} engine, {self.memory.describe()}"


@dataclass(frozen=True)
class _Rank:
    """Picklable where ``main`` is: for processes that means a function of a module."""

    main: Callable[[Communicator], Any]
    engine: str

    def __call__(self, context: RankContext) -> Any:
        with Communicator.world(context, engine=self.engine) as comm:
            return self.main(comm)


class Worlds:
    """What a test makes its worlds with; ``seed`` is the test's own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: list[TestWorld] = []

    def __call__(
        self,
        ranks: int = 4,
        config: Topology | str = DEFAULT_TOPOLOGY,
        adversary: Adversary = OWN_SEED,
        *,
        engine: str = "native",
        how: Literal["threads", "processes"] = "threads",
        deadline_s: float = DEADLINE_S,
    ) -> TestWorld:
        """``adversary`` is "seeded" (evicts, prefetches and delays lines as the test's seed says, another way in each
        of its worlds), a seed that does not change, or None: the never-evict worst case for staleness.

        Raises ArgumentError for what no world can be.
        """
        if adversary == OWN_SEED:
            seed: int | None = self._seed + len(self._made)
        elif adversary is None or (isinstance(adversary, int) and not isinstance(adversary, bool)):
            seed = adversary
        else:
            raise ArgumentError(f'an adversary is "seeded", a seed or None, not {adversary!r}')
        world = TestWorld(ranks, config, MemorySpec("emulated", seed), engine, how, deadline_s)
        self._made.append(world)
        return world

    def history(self) -> list[str]:
        """The worlds so far, a line each."""
        return [f"world {number}: {world}" for number, world in enumerate(self._made)]
