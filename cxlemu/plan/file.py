"""Plans on disk: magic, version, header length, JSON header, records of all streams, CRC-32, little-endian.

Nothing in a file is trusted: sizes are bounded before anything is allocated, the header is validated field by
field, and the records must obey every rule that a plan obeys.
"""

import struct
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cxlemu.errors import InputError, PlanFileError
from cxlemu.files import read_file, write_atomically
from cxlemu.plan import rules
from cxlemu.plan.instructions import RECORD_DTYPE
from cxlemu.plan.layout import Layout
from cxlemu.plan.plan import Buffer, Call, DoorbellGroup, Frame, Gemm, InHeap, Kernel, Plan, RankPart, Region, Stream

MAGIC = b"CXLEMUPL"
VERSION = 2
MAX_FILE_BYTES = 1 << 30
_PREFIX = struct.Struct("<8sIQ")
_CRC = struct.Struct("<I")

_Number = Annotated[int, Field(ge=0, le=2**53)]  # what every JSON reader keeps exactly
_Id = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Few = Annotated[int, Field(ge=1, le=1 << 16)]
_Name = Annotated[str, Field(pattern=r"^[\w.-]{1,100}$")]  # printed on terminals


class _Model(BaseModel):
    # Built at first use: most commands read no plan from a file, and schemas take a while.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)


class _InHeap(_Model):
    input: _Number | None
    step: _Number
    output: _Number | None
    in_process: Literal[False] = False  # addresses in processes mean nothing to another run
    told: bool = False


class _Gemm(_Model):
    m: _Id
    n: _Id
    k: _Id
    comm_tile_rows: _Id
    tile_rows: _Id
    tile_cols: _Id
    order: _Name
    transport: _Name


class _Call(_Model):
    collective: _Name
    algorithm: _Name
    ranks: _Few
    nbytes: _Number
    dtype: _Name
    redop: _Name
    root: _Id
    in_place: bool
    heap: _InHeap | None
    cluster: _Few = 1
    gemm: _Gemm | None = None
    fold_order: Literal["rank", "uniform"] = "rank"
    counts: Annotated[tuple[_Number, ...], Field(max_length=1 << 20)] = ()


class _Layout(_Model):
    ranks: _Few
    cards: _Few
    slots: _Few
    slot_card_bytes: _Number
    doorbells_per_rank: _Few
    interleave_bytes: _Number
    heap_card_bytes: _Number
    owned: bool = False
    own_doorbells: _Id = 0


class _Region(_Model):
    first_card: _Id
    cards: _Id
    granularity_bytes: _Number
    base: _Number
    start: _Number
    nbytes: _Number
    heap: bool
    writer_bytes: _Number = 0
    first_writer: _Id = 0


class _Group(_Model):
    first: _Id
    count: _Id
    stride: _Id


class _Kernel(_Model):
    name: _Name
    parameters: tuple[Annotated[int, Field(ge=-(2**53), le=2**53)], ...]


class _Buffer(_Model):
    name: _Name
    nbytes: _Number
    inside: _Name | Annotated[str, Field(max_length=0)]
    at: _Number


class _Stream(_Model):
    name: _Name
    records: _Id  # how many


class _Part(_Model):
    buffers: tuple[_Buffer, ...]
    streams: tuple[_Stream, ...]
    events: _Id


class _Header(_Model):
    call: _Call
    layout: _Layout
    rounds: _Id
    regions: tuple[_Region, ...]
    groups: tuple[_Group, ...]
    kernels: tuple[_Kernel, ...]
    parts: tuple[_Part, ...]  # of rank 0, 1, ...


def save(plan: Plan, path: str | Path) -> None:
    """Write a plan with all ranks' parts to a file, which is complete or not there."""
    path = Path(path)
    frame, parts = plan.frame, plan.parts
    try:
        header = _Header.model_validate(
            {
                "call": asdict(plan.call),
                "layout": asdict(plan.layout),
                "rounds": frame.rounds,
                "regions": tuple(map(asdict, frame.regions)),
                "groups": tuple(map(asdict, frame.groups)),
                "kernels": tuple(map(asdict, frame.kernels)),
                "parts": tuple(_described(part) for part in parts),
            }
        ).model_dump_json()
    except ValidationError as error:
        raise PlanFileError(f"{path}: the plan cannot be saved: {_first(error)}") from error
    records = [stream.records.tobytes() for part in parts for stream in part.streams]
    content = b"".join([_PREFIX.pack(MAGIC, VERSION, len(header.encode())), header.encode(), *records])
    if len(content) + _CRC.size > MAX_FILE_BYTES:
        raise PlanFileError(f"{path}: the plan has {len(content)} bytes, but a file holds at most {MAX_FILE_BYTES}")
    try:
        write_atomically(path, content + _CRC.pack(zlib.crc32(content)))
    except OSError as error:
        raise PlanFileError(f"{path} cannot be written: {error.strerror}") from error


def _described(part: RankPart) -> dict[str, object]:
    return {
        "buffers": tuple(map(asdict, part.buffers)),
        "streams": tuple({"name": stream.name, "records": len(stream.records)} for stream in part.streams),
        "events": part.events,
    }


def load(path: str | Path, check: Callable[[Plan], None]) -> Plan:
    """Read a plan that `save` wrote, and check all rules."""
    content = _read(Path(path))
    try:
        header, records = _opened(content)
        plan = _plan(header, records)
        rules.check(plan)
        check(plan)
    except InputError as error:
        raise PlanFileError(f"{path}: {error}") from error
    return plan


def _read(path: Path) -> bytes:
    try:
        return read_file(path, MAX_FILE_BYTES)
    except OSError as error:
        raise PlanFileError(
            f"{path} cannot be read: {error.strerror}; give a plan that `cxlemu plan save` wrote"
        ) from error


def _opened(content: bytes) -> tuple[_Header, memoryview]:
    """Header and records of a file that is whole."""
    if content[: len(MAGIC)] != MAGIC:
        raise PlanFileError(f"not a plan file: it must begin with {MAGIC.decode()}")
    if len(content) < _PREFIX.size + _CRC.size:
        raise PlanFileError(f"truncated: {len(content)} bytes, fewer than any plan file has")
    _, version, header_bytes = _PREFIX.unpack_from(content)
    if version != VERSION:
        raise PlanFileError(f"of version {version}: this cxlemu reads version {VERSION}, save the plan again")
    body = memoryview(content)[_PREFIX.size : -_CRC.size]
    if zlib.crc32(content[: -_CRC.size]) != _CRC.unpack(content[-_CRC.size :])[0]:
        raise PlanFileError("damaged or truncated: its CRC-32 does not match, save the plan again")
    if header_bytes > len(body):
        raise PlanFileError(f"its header of {header_bytes} bytes does not fit in the file")
    try:
        return _Header.model_validate_json(bytes(body[:header_bytes])), body[header_bytes:]
    except ValidationError as error:
        raise PlanFileError(f"its header is wrong: {_first(error)}") from error


def _plan(header: _Header, records: memoryview) -> Plan:
    heap = InHeap(**header.call.heap.model_dump()) if header.call.heap else None
    gemm = Gemm(**header.call.gemm.model_dump()) if header.call.gemm else None
    call = Call(**{**header.call.model_dump(), "heap": heap, "gemm": gemm})
    if len(header.parts) != call.ranks:
        raise PlanFileError(f"it has parts for {len(header.parts)} ranks, but its call has {call.ranks}")
    declared = sum(stream.records for part in header.parts for stream in part.streams) * RECORD_DTYPE.itemsize
    if declared != len(records):
        raise PlanFileError(f"its header promises {declared} bytes of records, but the file has {len(records)}")
    rows = np.frombuffer(records, RECORD_DTYPE).copy()  # C reads aligned records, files have headers of any length
    rows.flags.writeable = False
    frame = Frame(
        header.rounds,
        tuple(Region(**region.model_dump()) for region in header.regions),
        tuple(DoorbellGroup(**group.model_dump()) for group in header.groups),
        tuple(Kernel(**kernel.model_dump()) for kernel in header.kernels),
    )
    parts = []
    for rank, part in enumerate(header.parts):
        streams = []
        for stream in part.streams:
            streams.append(Stream(stream.name, rows[: stream.records]))
            rows = rows[stream.records :]
        buffers = tuple(Buffer(**buffer.model_dump()) for buffer in part.buffers)
        parts.append(RankPart(rank, buffers, tuple(streams), part.events))
    return Plan(call, Layout(**header.layout.model_dump()), lambda rank: (frame, parts[rank]))


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, in one line."""
    details = error.errors(include_url=False, include_context=False, include_input=False)[0]
    key = ".".join(map(str, details["loc"]))
    return f"{key + ': ' if key else ''}{details['msg']}"
