"""Worlds for tests: ranks around a pool of their own, with deadlines and an adversary that draws from the test's seed.

A test may declare faults, and what it requires of its ranks when these happen.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from collectives.communicator.communicator import Communicator
from cxlemu.choices import DEFAULT_TOPOLOGY
from cxlemu.errors import ArgumentError, RankFailures
from cxlemu.memory import MemorySpec
from cxlemu.topology import Topology
from cxlemu.userfile import foreign, is_unrun
from cxlemu.world import launch, launch_survivors
from cxlemu.world.context import RankContext
from cxlemu.world.outcome import Outcome
from cxlemu.world.topology_of import machine
from faults.inject.fault import FAULTS, Fault, Requirement
from faults.inject.fault_engine import injected
from faults.inject.injection import Happened
from faults.inject.judge import became, judge
from faults.inject.script import Script
from faults.inject.unfired import unfired

T = TypeVar("T")

# Deadlines of any one wait. Threads need far less; where a rank is lost on purpose, its peers wait for it that long.
DEADLINE_S, DEADLINE_OF_FAULTS_S = 10.0, 3.0
OWN_SEED: Literal["seeded"] = "seeded"

Adversary = int | Literal["seeded"] | None
Required = Literal["survive", "detect"]
How = Literal["threads", "processes"]


class NotHandled(AssertionError):
    """Ranks neither survived a fault nor noticed it as they should, or the fault never came."""


@dataclass(frozen=True)
class TestWorld:
    """A world of ranks, each on the host that the config gives it. Every `run` has a pool of its own.

    Attributes:
        ranks: how many there are.
        config: the topology, or the name of one.
        memory: what emulates the caches, and the adversary that disturbs them.
        engine: name of the engine that executes the plans, ``native`` or ``reference``.
        how: whether ranks are threads or processes.
        deadline_s: how long any one wait may take, in seconds.
        script: the faults that happen in every run.
        requires: whether ranks must survive these faults, or only detect them.
        happened: the faults that happened in runs in which none was missing.
    """

    __test__ = False  # pytest collects nothing here

    ranks: int
    config: Topology | str
    memory: MemorySpec
    engine: str
    how: How
    deadline_s: float
    script: Script
    requires: Required
    happened: list[Happened] = field(default_factory=list, compare=False, repr=False)

    def run(self, main: Callable[[Communicator], T]) -> list[T]:
        """Run ``main(comm)`` on every rank.

        Args:
            main: gets the rank's communicator; where ranks are processes, a function of a module.

        Returns:
            What each rank returned, in rank order. Where ranks are to detect faults, the error of a rank that failed
            stands in its place.

        Raises:
            RankFailures: a rank failed, the root cause first, as `cxlemu.world.launch` raises it; with DeadlineError or
                PeerLostError among the failures where a rank waited for another in vain.
            NotHandled: a survivor had neither a result nor a right error within its deadline, or a fault never came.
        """
        rank = _Rank(main, self.engine, self.script)
        where: dict[str, Any] = {"ranks": self.ranks, "topology": self.config, "memory": self.memory}
        where |= {"how": self.how, "deadline_s": self.deadline_s, "heap_bytes": "cards"}
        messages: list[object] = []
        with foreign():  # what ranks return is unpickled here
            if not self.script.faults:
                return launch(rank, **where)
            ended = launch_survivors(rank, **where, on_message=messages.append)
        return self._judged(ended, messages)

    def _judged(self, ended: Outcome[T], messages: Sequence[object]) -> list[T]:
        for sentence in unfired(self.script.faults, messages).values():
            raise NotHandled(sentence)
        happened = [each for each in messages if isinstance(each, Happened)]
        self.happened.extend(happened)
        if self.requires == "survive" and ended.failures:
            failures = RankFailures(ended.failures)
            raise failures from next(iter(failures.failures.values()))
        hosts = machine(self.config, self.memory).place(self.ranks)
        ends: Outcome[int] = Outcome(self.ranks, self.deadline_s)
        ends.results, ends.failures = dict.fromkeys(ended.results, 0), ended.failures
        report = judge(self.script, hosts, [became(ends)], happened, self.deadline_s)
        if not report.ok:
            raise NotHandled(f"{report.verdict.value}: {report.why}")
        everyone: dict[int, Any] = ended.failures | ended.results
        return [everyone[rank] for rank in range(self.ranks)]

    def __str__(self) -> str:
        config = self.config if isinstance(self.config, str) else self.config.name
        faults = "".join(f"; {fault}" for fault in self.script.faults)
        return f"{self.ranks} ranks on {config} as {self.how}, {self.engine} engine, {self.memory.describe()}{faults}"


@dataclass(frozen=True)
class _Rank:
    """Picklable where ``main`` is: for processes that means a function of a module."""

    main: Callable[[Communicator], Any]
    engine: str
    script: Script

    def __call__(self, context: RankContext) -> Any:
        if not self.script.faults:
            with Communicator.world(context, engine=self.engine) as comm:
                return self._called(comm)
        engine = injected(context, self.engine, self.script)
        with Communicator.world(context, engine=engine) as comm:
            engine.arm()
            return self._called(comm)

    def _called(self, comm: Communicator) -> Any:
        with foreign():  # or os._exit would end the tests, as if all were passed
            result = self.main(comm)
        if is_unrun(result):
            raise ArgumentError("main is a generator or async, so nothing of it ran: leave out yield and async")
        return result


class Worlds:
    """Makes the worlds of one test: what the fixture ``cxl_world`` gives.

    Args:
        seed: the test's own, from which its adversaries draw.
        script: the faults that happen in each of its worlds.
        requires: whether ranks must survive the faults or only detect them; None: what the kinds of faults require.
    """

    def __init__(self, seed: int, script: Script, requires: Required | None = None) -> None:
        self._seed, self._script = seed, script
        survives = all(FAULTS[fault.kind].requirement is Requirement.SURVIVE for fault in script.faults)
        self._requires: Required = requires or ("survive" if survives else "detect")
        self._made: list[TestWorld] = []

    def __call__(
        self,
        ranks: int = 4,
        config: Topology | str = DEFAULT_TOPOLOGY,
        adversary: Adversary = OWN_SEED,
        *,
        engine: str = "native",
        how: How = "threads",
        deadline_s: float | None = None,
    ) -> TestWorld:
        """Make a world; nothing runs yet.

        Args:
            ranks: how many there are.
            config: a topology, or the name of one.
            adversary: ``"seeded"`` evicts, prefetches and delays lines as the test's seed says, another way in each of
                the test's worlds; a number is a seed that does not change; None is the worst case for staleness, in
                which nothing is ever evicted.
            engine: ``native`` or ``reference``.
            how: ``threads`` or ``processes``.
            deadline_s: how long any one wait may take, in seconds; None: 10, or 3 where faults happen.

        Raises:
            ArgumentError, ConfigError: there can be no such world.
        """
        if adversary == OWN_SEED:
            seed: int | None = self._seed + len(self._made)
        elif adversary is None or (isinstance(adversary, int) and not isinstance(adversary, bool)):
            seed = adversary
        else:
            raise ArgumentError(f'an adversary is "seeded", a seed or None, not {adversary!r}')
        self._script.check(ranks=ranks, backend="emulated")
        if deadline_s is None:
            deadline_s = DEADLINE_OF_FAULTS_S if self._script.faults else DEADLINE_S
        memory = MemorySpec("emulated", seed)
        world = TestWorld(ranks, config, memory, engine, how, deadline_s, self._script, self._requires)
        self._made.append(world)
        return world

    def check(
        self,
        collective: str,
        variant: str = "every",
        *,
        ranks: int = 3,
        nbytes: int = 600,
        seeds: int = 20,
        config: str = "",
    ) -> None:
        """Run shipped algorithms in random interleavings while nature disturbs every cache.

        Args:
            collective: its name.
            variant: one of its variants, or ``every``.
            ranks: how many there are.
            nbytes: the size of a call, as of `cxlemu run`.
            seeds: how many random interleavings of each variant to try.
            config: a topology, by its name or file; without one, every rank has a host of its own.

        Raises:
            CheckFailed: (of `faults.campaign.run`) a call went wrong; the message has the smallest failure's token.
            ArgumentError, ConfigError: there is no such collective, variant or topology.
        """
        self._check({"collectives": (collective,), "variants": (variant,)}, ranks, nbytes, seeds, config)

    def check_algorithm(
        self, algorithm: str, *, ranks: int = 3, nbytes: int = 600, seeds: int = 20, config: str = ""
    ) -> None:
        """Run your own algorithm as `check` does: ``FILE.py:function``, a file that this executes."""
        self._check({"algorithms": (algorithm,)}, ranks, nbytes, seeds, config)

    def _check(self, what: dict[str, Any], ranks: int, nbytes: int, seeds: int, config: str) -> None:
        from faults.campaign import run, spec  # only here: most tests have no use for them

        where = {"ranks": (ranks,), "sizes": (nbytes,), "config": config}
        shape = where | {"launches": ("lockstep",), "kinds": (spec.NATURE,)}
        run.check(spec.Spec.of(what | shape), seeds=seeds, seed=self._seed)

    def faults_happened(self) -> bool:
        """Return whether in one of the test's worlds all its faults happened."""
        return any(world.happened for world in self._made)

    def history(self) -> list[str]:
        """Describe the worlds that the test has made so far, in a line each."""
        return [f"world {number}: {world}" for number, world in enumerate(self._made)]


def script_of(marks: Sequence[tuple[Sequence[object], Mapping[str, Any]]], folder: Path, seed: int) -> Script:
    """Collect the faults that a test's markers declare: files of fault scripts beside the test, and mappings."""
    faults: list[Fault] = []
    for arguments, keywords in marks:
        if not arguments or keywords.keys() - {"requires", "owes"}:
            wanted = "fault scripts, files or mappings such as {'kind': ...}, and requires="
            raise ArgumentError(f"cxl_faults takes {wanted}")
        for given in arguments:
            if isinstance(given, str | Path):
                faults += Script.load(folder / given).faults
            elif isinstance(given, Mapping):
                faults += Script.parse(_as_yaml({"faults": [dict(given)]}), "cxl_faults").faults
            else:
                raise ArgumentError(f"cxl_faults takes files and mappings, not {given!r}")
    return Script(seed=seed, faults=tuple(faults))


def _as_yaml(value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"a fault of cxl_faults is made of words and numbers: {error}") from None


def requires_of(marks: Sequence[tuple[Sequence[object], Mapping[str, Any]]]) -> Required | None:
    """Find what the nearest marker with ``requires`` requires of ranks; ``owes`` is its old name, and warns."""
    for _, keywords in marks:
        if "owes" in keywords:
            if "requires" in keywords:
                raise ArgumentError("cxl_faults takes requires=, or its old name owes=, but not both")
            warnings.warn("owes= of cxl_faults is requires= now: 0.3.0 removes it", DeprecationWarning, stacklevel=2)
        required = keywords.get("requires", keywords.get("owes"))
        if required is not None:
            if required not in ("survive", "detect"):
                raise ArgumentError(f'cxl_faults requires "survive" or "detect", not {required!r}')
            return required  # type: ignore[no-any-return]
    return None
