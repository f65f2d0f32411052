"""A backend: where a pool's bytes live, what that place guarantees, and how ranks open it.

Each backend is one file. The shipped ones are the modules of ``cxlemu/backends/``, found by their names. Another
package brings its own by an entry point, whose name is the backend's:

    [project.entry-points."cxlemu.backends"]
    toy = "my_package.toy:BACKEND"

The plan never changes: which steps need not be executed, because the backend guarantees their effect anyway, its
``elides`` says, and they are left out when the plan runs.
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
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from cxlemu import _native
from cxlemu.errors import ArgumentError
from cxlemu.memory.adversary import DEFAULT_RATES, AdversaryRates
from cxlemu.memory.cache import HostCache
from cxlemu.memory.native import NativeShadowMemory
from cxlemu.memory.protocol import Bytes, HostMemory

if TYPE_CHECKING:
    from cxlemu.pool.pool import NewPool, Pool

GROUP = "cxlemu.backends"  # of entry points, and the package whose modules are the shipped backends


class CoherenceStep(Flag):
    """What keeps caches right. The bits are those of native/core.h."""

    FLUSH = auto()
    FENCE = auto()
    INVALIDATE = auto()
    PUSH = auto()  # the flush of its line within SIGNAL
    FETCH = auto()  # the invalidate of its line within WAIT


NOTHING, EVERYTHING = CoherenceStep(0), ~CoherenceStep(0)


class FoundCards(NamedTuple):
    """The cards of a pool that is there before a run. ``name`` begins a sentence about them."""

    cards: int
    card_bytes: int
    interleave_bytes: int
    name: str


class Backend(ABC):
    """What a world asks of the place where its pool's bytes live. Stateless: one object serves all worlds.

    Attributes:
        summary: what ``--help`` says of it, without a full stop.
        where: where the bytes live.
        guarantees: what a rank may rely on there without any instruction.
        elides: the steps that this makes needless.
        instead: what orders memory in place of the steps elided.
        emulates_caches: every host is emulated, and has a cache of its own in front of the pool. Faults that break
            caches and adversaries that disturb them are for such backends.
        on_devices: the pool is hardware: ``MemorySpec.devices`` name its cards, it is there before a run and stays
            after it, ranks on other machines can join it, and it takes the time that it takes.
        maps_cards: what a rank stores to ``pool.cards`` with NumPy is a store of its host.
        passes: how often this machine moves a byte that a rank writes and another one reads.
    """

    summary: str
    where: str
    guarantees: str
    elides: CoherenceStep = NOTHING
    instead: str = ""
    emulates_caches: bool = False
    on_devices: bool = False
    maps_cards: bool = True
    passes: int = 2

    # --- describe ----------------------------------------------------------------------------------------------

    @abstractmethod
    def describe(self, spec: MemorySpec) -> str:
        """What the ranks' memory is like, in a few words for a report's header."""

    def describe_cards(self, spec: MemorySpec) -> str:
        """The cards that a run will use, where they are hardware; otherwise nothing."""
        return ""

    def elisions(self) -> str:
        """What the backend guarantees, what is elided for that, and what orders memory then: the end of a sentence."""
        if not self.elides:
            return f"{self.guarantees}; nothing is elided"
        names = ", ".join(str(step.name) for step in CoherenceStep if step in self.elides)
        return f"{self.guarantees}; elided: {names}; in their place: {self.instead}"

    def check(self, spec: MemorySpec) -> None:
        """Raises ArgumentError for a specification that does not fit this backend. Looks at nothing but ``spec``."""
        if spec.seed is not None and (not self.emulates_caches or spec.seed < 0):
            raise ArgumentError(
                f"an adversary's seed must be a non-negative number for an emulated memory, "
                f"not {spec.seed} for {spec.kind!r}"
            )
        if not self.on_devices and (spec.devices or spec.pool):
            theirs = " or ".join(repr(name) for name in BACKENDS if BACKENDS[name].on_devices)
            raise ArgumentError(f"devices and their pool are for the backend {theirs}, not for {spec.kind!r}")

    # --- open --------------------------------------------------------------------------------------------------

    @abstractmethod
    def open(
        self, spec: MemorySpec, cards: Sequence[Bytes], *, host_cache: HostCache | None, host: int, rank: int
    ) -> HostMemory:
        """One rank's view of the pool.

        Args:
            spec: the specification that the rank's world agreed on.
            cards: one writable uint8 array per card.
            host_cache: the cache of the rank's host, where the backend emulates caches; else None.
            host: the rank's host.
            rank: the rank.
        """

    def native_memory(self, memory: HostMemory) -> NativeShadowMemory | None:
        """What the native engine needs of ``memory``, which ``open`` made; None: it executes on the cards themselves.

        Raises ArgumentError where it cannot: by default on a machine whose cache-line instructions are not known.
        """
        if not self.elides and not _native.lines_instructions():
            raise ArgumentError(f"the native engine does not know the cache-line instructions of {platform.machine()}")
        return None

    # --- bootstrap: how ranks come to one pool and meet there ----------------------------------------------------

    @abstractmethod
    def create_pool(self, spec: MemorySpec, new: NewPool) -> Pool:
        """A fresh pool that this process owns; on devices, the pool that is there.

        Its cards are writable, contiguous uint8 arrays of whole 64-byte lines, of which each begins at one;
        a new card is all zeros.

        Raises ArgumentError for impossible values, PoolError where there is no room, or no pool.
        """

    @abstractmethod
    def attach_pool(self, spec: MemorySpec, name: str | None, *, deadline_s: float) -> Pool:
        """The pool that another process made, by the ``name`` that it has there.

        Waits up to ``deadline_s`` seconds until the pool is complete. ``None`` is the pool that ``spec`` itself names.
        Raises PoolError where it is not there, ArgumentError for a name that cannot be one.
        """

    def found_cards(self, spec: MemorySpec) -> FoundCards | None:
        """The cards that are there before a run, which no topology chooses; None where a run makes them."""
        return None

    def bootstrap(self, spec: MemorySpec, cards: Sequence[Bytes], **place: Any) -> HostMemory:
        """The memory through which ranks meet and say that they live; arguments as for ``open``.

        How often a session looks and beats depends on time, so its memory must neither consume the adversary's random
        numbers nor fence what the rank's program wrote.
        """
        return replace(spec, seed=None).open(cards, **place)

    def private_caches(self, pool: Pool, hosts: set[int]) -> dict[int, HostCache | None]:
        """The cache of each host, for ranks that are threads of this process."""
        return dict.fromkeys(hosts)

    def shared_cache(self, pool: Pool, host: int) -> AbstractContextManager[HostCache | None]:
        """The cache that the processes of one host share. Raises PoolError where the pool's owner removed it."""
        return nullcontext()


class _Backends(Mapping[str, Backend]):
    """All backends by name: the shipped ones, then those of other packages. Each is imported when it is asked for."""

    @cached_property
    def _shipped(self) -> tuple[str, ...]:
        package = importlib.import_module(GROUP)
        return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))

    @cached_property
    def _brought(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
            other = found.get(entry.name)
            known = f"{GROUP}.{entry.name}" if entry.name in self._shipped else other.value if other else entry.value
            if known != entry.value:
                raise ArgumentError(f"{known} and {entry.value} both bring a backend {entry.name!r}: uninstall one")
            found[entry.name] = entry
        return found

    def __iter__(self) -> Iterator[str]:
        yield from self._shipped
        yield from self._brought

    def __len__(self) -> int:
        return len(self._shipped) + len(self._brought)

    def __contains__(self, name: object) -> bool:
        return name in self._shipped or name in self._brought

    def __getitem__(self, name: str) -> Backend:
        """Raises ArgumentError for a name that no backend has, and a package's backend that cannot be loaded."""
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
        except Exception as error:  # a package of somebody else's
            raise ArgumentError(f"the backend {entry.name!r} of {entry.value} cannot be loaded: {error!r}") from error
        if not isinstance(backend, Backend):
            raise ArgumentError(f"{entry.value} is to be a cxlemu.memory.backend.Backend, but is {backend!r}")
        return backend

    def help(self) -> str:
        """Every backend with its summary, for an option's help."""
        told = []
        for name in self:
            try:
                told.append(f"{name}: {self[name].summary}")
            except ArgumentError as error:
                told.append(f"{name}: not usable ({error})")
        return "; ".join(told) + "."


BACKENDS = _Backends()


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """Which memory a world's ranks get. Picklable: every process opens its own from the same specification.

    Attributes:
        kind: the backend's name, one of ``BACKENDS``.
        seed: of the adversary that disturbs an emulated cache; None is no adversary, the never-evict worst case.
        rates: how often the adversary does what.
        devices: the paths of the cards of a pool on devices, in any order. Every machine has its own names for them, so
            they are not what ranks agree on, and not in the repr.
        pool: of the cards at ``devices``, those of this pool.

    Raises ArgumentError for a backend that does not exist, or whose ``check`` refuses the rest.
    """

    kind: str = "emulated"
    seed: int | None = None
    rates: AdversaryRates = DEFAULT_RATES
    devices: tuple[str, ...] = field(default=(), repr=False)
    pool: UUID | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in BACKENDS:
            raise ArgumentError(f"a backend is one of {', '.join(BACKENDS)}, not {self.kind!r}")
        if self.seed is not None or self.devices or self.pool is not None:
            self.backend.check(self)

    @property
    def backend(self) -> Backend:
        return BACKENDS[self.kind]

    def open(self, cards: Sequence[Bytes], *, host_cache: HostCache | None, host: int, rank: int) -> HostMemory:
        """One rank's memory: see `Backend.open`.

        Where caches are emulated, ranks that are threads share the one object that HostCache.private made. Ranks that
        are processes make each its own with HostCache.shared, on their host's segment, whose file can be the lock file.
        """
        return self.backend.open(self, cards, host_cache=host_cache, host=host, rank=rank)

    def describe(self) -> str:
        """What the ranks' memory is like, in a few words."""
        return self.backend.describe(self)
