"""The memory that the flags of ``cxlemu run`` ask for."""

from __future__ import annotations

from uuid import UUID

from collectives.sweep.defaults import DEFAULT_SEED
from cxlemu.errors import ArgumentError
from cxlemu.memory import BACKENDS, MemorySpec


def adversary_seed(adversary: str | None, backend: str) -> int | None:
    """Of ``--adversary SEED|off``; None: there is no adversary. Raises ArgumentError for what is neither."""
    if adversary == "off" or (adversary is None and not BACKENDS[backend].emulates_caches):
        return None
    return DEFAULT_SEED if adversary is None else number(adversary, "--adversary", "off")


def memory_of(
    backend: str, seed: int | None, devices: tuple[str, ...], pool: str | None, tenant: str | None
) -> tuple[MemorySpec, str | None]:
    """The memory, and the name of the tenant's pool in shared memory. Raises ArgumentError for a wrong ``--pool``."""
    uuid, pool_name = (_uuid(pool), None) if BACKENDS[backend].on_devices or tenant is None else (None, pool)
    return MemorySpec(backend, seed, devices=devices, pool=uuid), pool_name


def real_cards(memory: MemorySpec) -> str:
    """What they are; nothing where they are emulated."""
    return memory.backend.describe_cards(memory)


def number(text: str, flag: str, word: str) -> int:
    """Raises ArgumentError for what is none. ``word`` is what the flag takes besides."""
    if not text.isdecimal() or not text.isascii():
        raise ArgumentError(f"{flag} takes a number that is not negative, or {word!r}, not {text!r}")
    return int(text)


def _uuid(text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        raise ArgumentError(f"--pool: {text!r} is not a valid UUID.") from None
