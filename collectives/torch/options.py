"""Which pool a process group gets: chosen in the program, or by the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal
from uuid import UUID

from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.units import parse_bytes

PREFIX = "CXLEMU_"


@dataclass(frozen=True)
class Options:
    """What ``pg_options`` of ``init_process_group`` and ``new_group`` says; a group without any has the environment's.

    Each field is also an environment variable, such as CXLEMU_BACKEND, CXLEMU_SEED or CXLEMU_CARD_BYTES=64MiB.

    Attributes:
        backend: The memory, one of `cxlemu.memory.BACKENDS`.
        seed: Of the adversary that disturbs emulated caches; None: the worst case, in which nothing leaves a cache by
            itself.
        devices: The cards of ``dax``; the environment separates them by colons.
        pool: The UUID of the pool on these cards.
        topology: A topology's name or file; None: "six-cards", or what the devices are.
        card_bytes: The memory that this machine spends on each emulated card; None: as much as communicators come to
            take, in a pool with a heap of model size.
        heap_bytes: Each rank's part of the world's heap; None: a share of this machine's memory, which arrays take as
            they are made, or where ``card_bytes`` or devices say the pool's size, a quarter of a communicator's room.
        integrity: "crc32c" sends checksums with every doorbell.
        time_scale: Calls take the time of the topology's cost model, this many times, or with "auto" as many times as
            this machine keeps up with; None: this machine's.
    """

    backend: str = "emulated"
    seed: int | None = None
    devices: tuple[str, ...] = ()
    pool: str | None = None
    topology: str | None = None
    card_bytes: int | None = None
    heap_bytes: int | None = None
    integrity: str | None = None
    time_scale: float | Literal["auto"] | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options:
        """Read the options of a process.

        Raises:
            ArgumentError: A variable is not what its field takes; names it.
        """
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
    try:
        match name:
            case "seed":
                return int(text)
            case "time_scale":
                return "auto" if text == "auto" else float(text)
            case "card_bytes" | "heap_bytes":
                return parse_bytes(text)
            case "devices":
                return tuple(text.split(":"))
            case _:
                return text
    except ValueError as error:
        raise ArgumentError(f"{PREFIX}{name.upper()} is {text!r}: {error}") from None
