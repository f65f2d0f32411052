"""A backend: where a pool's bytes live, what that place guarantees, and how ranks open it.

Each backend is one file. The shipped ones are the modules of ``cxlemu/backends/``, found by their names. Another
package brings its own by an entry point, whose name is the backend's:

    [project.entry-points."cxlemu.backends"]
    toy = "my_package.toy:BACKEND"

A plan is the same on every backend. A backend's ``elides`` names the steps whose effect it guarantees anyway; they are
left out when the plan runs.
"""

from __future__ import annotations

import importlib
import pkgutil
import platform
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from cxlemu import _native
from cxlemu.errors import ArgumentError
from cxlemu.memory.cache import HostCache
from cxlemu.memory.native import NativeShadowMemory
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.memory.rates import DEFAULT_RATES, AdversaryRates

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from cxlemu.pool.pool import NewPool, Pool

GROUP = "cxlemu.backends"  # the group of entry points, and the package whose modules are the shipped backends


class CoherenceStep(Flag):
    """The steps of a plan that keep caches right. The bits are those of native/core.h."""

    FLUSH = auto()
    FENCE = auto()
    INVALIDATE = auto()
    PUSH = auto()  # the flush of its line within SIGNAL
    FETCH = auto()  # the invalidate of its line within WAIT


NOTHING, EVERYTHING = CoherenceStep(0), ~CoherenceStep(0)


class FoundCards(NamedTuple):
    cards: int
    card_bytes: int
    interleave_bytes: int  # the granule by which regions go round the cards
    name: str  # the pool's name, which begins a sentence about its cards


class Backend(ABC):
    """The place where a pool's bytes live, as a world uses it. A backend is stateless: one object serves all worlds.

    ``spec`` is the specification that the ranks of a world agreed on.

    Attributes:
        summary: The text of ``--help`` about the backend, without a full stop.
        where: Where the bytes live.
        guarantees: The order that a rank may rely on there without any instruction.
        elides: The steps that this makes needless.
        instead: What orders memory in place of the steps elided.
        emulates_caches: Every host is emulated, and has a cache of its own in front of the pool. Faults that break
            caches and adversaries that disturb them are for such backends.
        on_devices: The pool is hardware: ``MemorySpec.devices`` name its cards, it exists before a run and after it,
            ranks on other machines can join it, and a world on it has no pace.
        maps_cards: A rank's store to ``pool.cards`` with NumPy is a store of its host.
        shares_processes: Ranks of one host may read memory of each other's processes, where a communicator asks for it.
        passes: How often this machine moves a byte that a rank writes and another one reads.
    """

    summary: str
    where: str
    guarantees: str
    elides: CoherenceStep = NOTHING
    instead: str = ""
    emulates_caches: bool = False
    on_devices: bool = False
    maps_cards: bool = True
    shares_processes: bool = False
    passes: int = 2

    # --- describe ----------------------------------------------------------------------------------------------

    @abstractmethod
    def describe(self, spec: MemorySpec) -> str:
        """Describe the ranks' memory in a few words, for a report's header."""

    def describe_cards(self, spec: MemorySpec) -> str:
        """Describe the cards that a run will use, where they are hardware; otherwise the text is empty."""
        return ""

    def elisions(self) -> str:
        """Say what the backend guarantees, which steps it elides, and what orders memory instead: a sentence's end."""
        if not self.elides:
            return f"{self.guarantees}; nothing is elided"
        names = ", ".join(str(step.name) for step in CoherenceStep if step in self.elides)
        return f"{self.guarantees}; elided: {names}; in their place: {self.instead}"

    def check(self, spec: MemorySpec) -> None:
        """Check that a specification fits this backend. The check looks at nothing but ``spec``.

        Raises:
            ArgumentError: The seed is negative or for a backend that emulates no caches; or devices or their pool are
                given to a backend that is not on devices.
        """
        if spec.seed is not None and not self.emulates_caches:
            raise ArgumentError(f"an adversary needs emulated caches, which the backend {spec.kind!r} does not have")
        if spec.seed is not None and spec.seed < 0:
            raise ArgumentError(f"an adversary's seed must be a non-negative number, not {spec.seed}")
        if not self.on_devices and (spec.devices or spec.pool):
            theirs = " or ".join(repr(name) for name in BACKENDS if BACKENDS[name].on_devices)
            raise ArgumentError(f"devices and their pool are for the backend {theirs}, not for {spec.kind!r}")

    # --- open --------------------------------------------------------------------------------------------------

    @abstractmethod
    def open(
        self, spec: MemorySpec, cards: Sequence[Bytes], *, host_cache: HostCache | None, host: int, rank: int
    ) -> HostMemory:
        """Open one rank's view of the pool.

        Args:
            cards: One writable uint8 array per card, each of whole 64-byte lines and all of one size.
            host_cache: The cache of the rank's host, where the backend emulates caches; else None.

        Returns:
            The rank's memory; no other rank may use it.

        Raises:
            ArgumentError: The cards or the host's cache do not fit, or this machine cannot run the backend.
        """

    def native_memory(self, memory: HostMemory) -> NativeShadowMemory | None:
        """Give the memory that ``open`` made in C, through which the native engine executes plans.

        Returns:
            That memory; None where the engine executes on the cards themselves.

        Raises:
            ArgumentError: The native engine cannot use ``memory``; by default, where it would have to execute steps on
                a machine whose cache-line instructions are not known.
        """
        if not self.elides and not _native.lines_instructions():
            raise ArgumentError(f"the native engine does not know the cache-line instructions of {platform.machine()}")
        return None

    # --- bootstrap: how ranks come to one pool and meet there ----------------------------------------------------

    @abstractmethod
    def create_pool(self, spec: MemorySpec, new: NewPool) -> Pool:
        """Create a fresh pool that this process owns; on devices, open the pool that is there.

        Returns:
            The pool. Its cards are writable, contiguous uint8 arrays of whole 64-byte lines, and each array begins at
            a line. A new card is all zeros.

        Raises:
            ArgumentError: A value is impossible.
            PoolError: There is no room; on devices, there is no pool.
        """

    @abstractmethod
    def attach_pool(self, spec: MemorySpec, name: str | None, *, deadline_s: float) -> Pool:
        """Open the pool that another process made.

        Args:
            name: The name that the pool has in that process; None for the pool that ``spec`` itself names.
            deadline_s: How long to wait until the pool is complete, in seconds.

        Raises:
            PoolError: The pool is not there.
            ArgumentError: No pool of this backend can have that name.
        """

    def found_cards(self, spec: MemorySpec) -> FoundCards | None:
        """Find the cards that are there before a run, which no topology chooses; None where a run makes them."""
        return None

    def bootstrap(self, spec: MemorySpec, cards: Sequence[Bytes], **place: Any) -> HostMemory:
        """Open the memory through which ranks meet and say that they live.

        How often a session looks and beats depends on time, so its memory must neither consume the adversary's random
        numbers nor fence what the rank's program wrote. Arguments are those of ``open``.
        """
        return replace(spec, seed=None).open(cards, **place)

    def private_caches(self, pool: Pool, hosts: set[int]) -> dict[int, HostCache | None]:
        """Make the cache of each host, for ranks that are threads of this process.

        It is None for each where the backend emulates no caches.
        """
        return dict.fromkeys(hosts)

    def shared_cache(self, pool: Pool, host: int) -> AbstractContextManager[HostCache | None]:
        """Open the cache that the processes of one host share, as a context that closes it.

        It gives None where the backend emulates no caches. Raises PoolError where the pool's owner removed the cache.
        """
        return nullcontext()


class _Backends(Mapping[str, Backend]):
    """All backends by name: the shipped ones, then those of other packages. Each is imported on first use."""

    @cached_property
    def _shipped(self) -> tuple[str, ...]:
        package = importlib.import_module(GROUP)
        return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))

    @cached_property
    def _brought(self) -> dict[str, EntryPoint]:
        from importlib.metadata import entry_points  # most runs look for none

        brought: dict[str, EntryPoint] = {}
        for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
            other = brought.get(entry.name)
            known = f"{GROUP}.{entry.name}" if entry.name in self._shipped else other.value if other else entry.value
            if known != entry.value:
                raise ArgumentError(f"{known} and {entry.value} both provide a backend {entry.name!r}: uninstall one")
            brought[entry.name] = entry
        return brought

    def __iter__(self) -> Iterator[str]:
        yield from self._shipped
        yield from self._brought

    def __len__(self) -> int:
        return len(self._shipped) + len(self._brought)

    def __contains__(self, name: object) -> bool:
        return name in self._shipped or name in self._brought

    def __getitem__(self, name: str) -> Backend:
        if name in self._shipped:
            backend = importlib.import_module(f"{GROUP}.{name}").BACKEND
        elif name in self._brought:
            backend = self._load(self._brought[name])
        else:
            raise ArgumentError(f"a backend is one of {', '.join(self)}, not {name!r}")
        assert isinstance(backend, Backend)
        return backend

    def _load(self, entry: EntryPoint) -> Backend:
        try:
            backend = entry.load()
        except Exception as error:  # another package's code may raise anything
            raise ArgumentError(f"the backend {entry.name!r} of {entry.value} cannot be loaded: {error!r}") from error
        if not isinstance(backend, Backend):
            raise ArgumentError(f"{entry.value} should be a cxlemu.memory.backend.Backend, but is {backend!r}")
        return backend

    def help(self) -> str:
        """List every backend with its summary, for an option's help."""
        lines = []
        for name in self:
            try:
                lines.append(f"{name}: {self[name].summary}")
            except ArgumentError as error:
                lines.append(f"{name}: not usable ({error})")
        return "; ".join(lines) + "."


BACKENDS = _Backends()


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """Which memory a world's ranks get. Picklable: every process opens its own from the same specification."""

    kind: str = "emulated"  # the backend's name, one of ``BACKENDS``
    # the seed of the adversary that disturbs an emulated cache, not negative; None for no adversary, the never-evict
    # worst case
    seed: int | None = None
    rates: AdversaryRates = DEFAULT_RATES  # how often the adversary makes each kind of move
    # the paths of the cards of a pool on devices, in any order. Every machine has its own names for them, so ranks do
    # not agree on them, and they are not in the repr
    devices: tuple[str, ...] = field(default=(), repr=False)
    # the UUID of the pool whose cards, among those at ``devices``, are used
    pool: UUID | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in BACKENDS:
            raise ArgumentError(f"a backend is one of {', '.join(BACKENDS)}, not {self.kind!r}")
        if self.seed is not None or self.devices or self.pool is not None:
            self.backend.check(self)

    @property
    def backend(self) -> Backend:
        """The backend that ``kind`` names."""
        return BACKENDS[self.kind]

    def open(self, cards: Sequence[Bytes], *, host_cache: HostCache | None, host: int, rank: int) -> HostMemory:
        """Open one rank's memory: see `Backend.open`.

        Where caches are emulated, ranks that are threads share the one object that HostCache.private made. Ranks that
        are processes each make their own with HostCache.shared, on their host's segment, whose file can be the lock
        file.
        """
        return self.backend.open(self, cards, host_cache=host_cache, host=host, rank=rank)

    def describe(self) -> str:
        """Describe the ranks' memory in a few words."""
        return self.backend.describe(self)


WORST_CASE = MemorySpec()
"""No coherence and no adversary: nothing leaves a cache by itself, the worst case for staleness."""
