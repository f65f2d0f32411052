"""A file of what was tuned, for each machine it was tuned on: never taken for another one.

A machine is its name, and a digest of all that is said of it (figures, provenance, accelerator) and of our version; of
this one, also of its processor and of how calls are run here.
"""

import hashlib
import json
import os
import platform
import re
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from collectives.fused.choice import Operator, Tiling
from collectives.sweep.fused.tuner import Tuned
from cxlemu.errors import ArgumentError
from cxlemu.files import read_file, write_atomically
from cxlemu.plan.kernels import DIMENSION_MAX
from cxlemu.topology import Accelerator, Topology
from cxlemu.version import __version__

FILE_BYTES_MAX = 1 << 22
FILES_ARE = "a file that --tuned wrote"

Dimension = Annotated[int, Field(ge=1, le=DIMENSION_MAX)]
WORD_MAX = 100
Word = Annotated[str, Field(max_length=WORD_MAX)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Entry(_Model):
    machine: Word
    digest: Word
    ranks: Dimension
    kind: Word
    m: Dimension
    n: Dimension
    k: Dimension
    dtype: Word
    comm_tile_rows: Dimension
    compute_tile: tuple[Dimension, Dimension] = Field(strict=False)
    order: Word
    transport: Word
    fused_ns: Annotated[int, Field(ge=0, le=1 << 60)]
    tried: Annotated[int, Field(ge=1, le=1 << 20)]


class _File(_Model):
    format: Literal[1]
    entries: Annotated[list[_Entry], Field(max_length=10_000)]


class TunedMachine(NamedTuple):
    name: str
    digest: str


def modelled(topology: Topology) -> TunedMachine:
    return TunedMachine(topology.name, _digest(topology))


def this_one(topology: Topology, run: dict[str, str]) -> TunedMachine:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    processor = match.group(1) if match else platform.machine()
    name = f"{len(os.sched_getaffinity(0))} cores of {processor}"
    return TunedMachine(f"{topology.name} on {name}"[:WORD_MAX], _digest(topology, {"on": name} | run))


def _digest(topology: Topology, more: dict[str, str] | None = None) -> str:
    said = topology.document() | {"cxlemu": __version__} | (more or {})
    if topology.accelerator is not None:
        said["accelerator"] = Accelerator.load(topology.accelerator).model_dump()
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


class TunedFile:
    """A file of choices, read for one machine and number of ranks."""

    def __init__(self, path: Path, machine: TunedMachine, ranks: int) -> None:
        self.path, self._machine, self._digest, self._ranks = path, machine.name, machine.digest, ranks
        self._entries: list[_Entry] = _read(path)

    def get(self, operator: Operator) -> Tuned | None:
        for entry in self._entries:
            if self._is_of(entry, operator):
                choice = Tiling(entry.comm_tile_rows, entry.compute_tile, entry.order, entry.transport)
                return Tuned(choice, entry.fused_ns, entry.tried)
        return None

    def put(self, operator: Operator, tuned: Tuned) -> None:
        """Keep a choice instead of the one that the machine had for this operator, and write the file."""
        choice = tuned.choice
        assert choice.comm_tile_rows and choice.compute_tile and choice.transport  # the tuner leaves nothing open
        entry = _Entry(
            machine=self._machine,
            digest=self._digest,
            ranks=self._ranks,
            kind=operator.kind,
            m=operator.m,
            n=operator.n,
            k=operator.k,
            dtype=operator.dtype,
            comm_tile_rows=choice.comm_tile_rows,
            compute_tile=choice.compute_tile,
            order=choice.order,
            transport=choice.transport,
            fused_ns=tuned.fused_ns,
            tried=tuned.tried,
        )
        kept = [old for old in self._entries if not self._is_of(old, operator)]
        self._entries = [*kept, entry]
        document = {"format": 1, "entries": [entry.model_dump() for entry in self._entries]}
        write_atomically(self.path, (json.dumps(document, indent=1) + "\n").encode())

    def _is_of(self, entry: _Entry, operator: Operator) -> bool:
        operator_there = Operator(entry.kind, entry.m, entry.n, entry.k, entry.dtype)
        return (entry.machine, entry.digest, entry.ranks, operator_there) == (
            self._machine,
            self._digest,
            self._ranks,
            operator,
        )


def _read(path: Path) -> list[_Entry]:
    try:
        return _File.model_validate_json(read_file(path, FILE_BYTES_MAX)).entries
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ArgumentError(
            f"--tuned {path} cannot be read: {error.strerror}; give {FILES_ARE}, or one that is not there yet"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ArgumentError(f"--tuned {path}: {where}: {first['msg']}; give {FILES_ARE}") from None
