"""Which pool a process group gets: chosen in the program, or by the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal
from uuid import UUID

from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.memory.backend import BACKENDS
from cxlemu.units import parse_bytes, parse_whole, shortened

PREFIX = "CXLEMU_"
SEED_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class Options:
    """Options of a process group, for ``pg_options``; a group without them takes the environment's.

    Each field is also an environment variable, such as CXLEMU_BACKEND, CXLEMU_SEED or CXLEMU_CARD_BYTES=64MiB.
    """

    backend: str = "emulated"  # the memory, one of `cxlemu.memory.BACKENDS`
    # seed of the adversary that disturbs emulated caches; None: the worst case, in which nothing leaves a cache by
    # itself
    seed: int | None = None
    devices: tuple[str, ...] = ()  # the cards of ``dax``; the environment separates them by colons
    pool: str | None = None  # the UUID of the pool on these cards
    topology: str | None = None  # a topology's name or file; None: "six-cards", or what the devices are
    # the memory that this machine spends on each emulated card; None: as much as communicators come to take, in a pool
    # with a heap of model size
    card_bytes: int | None = None
    # each rank's part of the world's heap; None: a share of this machine's memory, which arrays take as they are made,
    # or where ``card_bytes`` or devices say the pool's size, a quarter of a communicator's room
    heap_bytes: int | None = None
    integrity: str | None = None  # "crc32c" sends checksums with every doorbell
    # scale of the modelled time that calls take; "auto": one with which this machine keeps up; None: real time
    time_scale: float | Literal["auto"] | None = None
    # a rank of this machine that is stopped for so long, as by SIGSTOP, is lost; infinity: after the group's timeout
    stopped_after_s: float = 6.0

    def __post_init__(self) -> None:
        if not self.stopped_after_s > 0:
            raise ArgumentError(f"stopped_after_s is {self.stopped_after_s:g}: give seconds above 0, or inf")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options:
        """Read the options of a process."""
        given: dict[str, Any] = {}
        for field in fields(cls):
            text = environment.get(PREFIX + field.name.upper())
            if text:
                given[field.name] = _parsed(field.name, text)
        return cls(**given)

    def memory(self) -> MemorySpec:
        """Describe the memory. Raises ArgumentError where backend, seed and devices do not fit each other."""
        pool = None if self.pool is None else UUID(self.pool)
        return MemorySpec(self.backend, seed=self.seed, devices=self.devices, pool=pool)


def _parsed(name: str, text: str) -> Any:
    variable = PREFIX + name.upper()
    if name == "seed":
        return parse_whole(variable, text, SEED_MAX)
    try:
        match name:
            case "time_scale":
                return "auto" if text == "auto" else float(text)
            case "stopped_after_s":
                return float(text)
            case "card_bytes" | "heap_bytes":
                return parse_bytes(text)
            case "devices":
                return tuple(text.split(":"))
            case "backend" if text not in BACKENDS:
                raise ValueError(f"a backend is one of {', '.join(BACKENDS)}")
            case _:
                return text
    except ValueError as error:
        raise ArgumentError(f"{variable} is {shortened(text)}: {str(error)[:80]}") from None
