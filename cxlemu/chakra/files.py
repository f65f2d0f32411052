"""Trace files: one for each endpoint, ``PREFIX.ENDPOINT.et``: a GlobalMetadata, then Nodes, each after its length.

A file is untrusted: every length is bounded by what is left of it, and nothing in it is ever executed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cxlemu.chakra.schema import ATTRIBUTES, NodeType, messages
from cxlemu.errors import PlanFileError
from cxlemu.files import read_file, write_atomically

VERSION = "0.0.4"  # of the schema
FILE_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class Node:
    """One step of an endpoint.

    Attributes:
        id: A number of its own in its file.
        name: For people.
        type: A `NodeType`, or another number of Chakra's.
        deps: Ids of the nodes of the same endpoint that must have ended before: Chakra's data_deps.
        duration_us: How long it took when it was recorded, in microseconds.
        attributes: Values by name; `schema.ATTRIBUTES` has the names.
        ctrl_deps: Ids of nodes of the same endpoint, which PyTorch's traces have for the operator that called it.
    """

    id: int
    name: str
    type: int
    deps: tuple[int, ...] = ()
    duration_us: int = 0
    attributes: dict[str, int | str | bool] = field(default_factory=dict)
    ctrl_deps: tuple[int, ...] = ()


def encode(nodes: Sequence[Node]) -> bytes:
    """Return the content of a trace file. The same nodes give the same bytes. Raises ArgumentError without protobuf."""
    kinds = messages()
    parts = [_delimited(kinds.metadata(version=VERSION))]
    for node in nodes:
        message = kinds.node(id=node.id, name=node.name, type=node.type, duration_micros=node.duration_us)
        message.data_deps.extend(node.deps)
        message.ctrl_deps.extend(node.ctrl_deps)
        for name, value in node.attributes.items():
            message.attr.add(name=name, **{ATTRIBUTES[name]: value})
        parts.append(_delimited(message))
    return b"".join(parts)


def decode(raw: bytes, file: str) -> list[Node]:
    """Read the content of a trace file; attributes that `schema.ATTRIBUTES` lacks are left out."""
    kinds = messages()
    index, nodes = 0, []
    while index < len(raw):
        size, begin = _length(raw, index, file)
        message = (kinds.node if index else kinds.metadata)()
        try:
            message.ParseFromString(raw[begin : begin + size])
        except Exception as error:  # protobuf's own, and UnicodeDecodeError
            raise PlanFileError(f"{file}: message at byte {index} is damaged: {error}") from None
        if index:
            nodes.append(_node(message, file))
        index = begin + size
    if not raw:
        raise PlanFileError(f"{file} is empty: it should begin with a Chakra GlobalMetadata")
    ids = [node.id for node in nodes]
    if len(set(ids)) != len(ids):
        raise PlanFileError(f"{file} has two nodes with one id")
    return nodes


def write(prefix: Path, endpoints: Sequence[Sequence[Node]]) -> list[Path]:
    """Write one file per endpoint, ``PREFIX.0.et``, ``PREFIX.1.et``, ..., and return their paths."""
    paths = [prefix.with_name(f"{prefix.name}.{number}.et") for number in range(len(endpoints))]
    for path, nodes in zip(paths, endpoints, strict=True):
        write_atomically(path, encode(nodes))
    return paths


def read(path: Path) -> list[Node]:
    try:
        return decode(read_file(path, FILE_BYTES_MAX), str(path))
    except OSError as error:
        raise PlanFileError(f"{path} cannot be read: {error.strerror}") from error


def _node(message: Any, file: str) -> Node:
    attributes: dict[str, int | str | bool] = {}
    for attribute in message.attr:
        kind = attribute.WhichOneof("value")
        if attribute.name in ATTRIBUTES and kind is not None:
            if not isinstance(value := getattr(attribute, kind), int | str):
                raise PlanFileError(f"{file}: node {message.id} has {attribute.name} as {kind}")
            attributes[attribute.name] = value
    data, ctrl = (tuple(dict.fromkeys(deps)) for deps in (message.data_deps, message.ctrl_deps))
    return Node(message.id, message.name, message.type, data, message.duration_micros, attributes, ctrl)


def _delimited(message: Any) -> bytes:
    body = message.SerializeToString(deterministic=True)
    size, prefix = len(body), bytearray()
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*prefix, size]) + bytes(body)


def _length(raw: bytes, index: int, file: str) -> tuple[int, int]:
    """Read a varint of at most 32 bits: the length of the message that follows, and where that begins."""
    size = 0
    for digit in range(5):
        if index + digit >= len(raw):
            break
        byte = raw[index + digit]
        size |= (byte & 0x7F) << 7 * digit
        if byte < 0x80:
            begin = index + digit + 1
            if size > len(raw) - begin:
                raise PlanFileError(
                    f"{file}: message at byte {index} has {size} bytes, but {len(raw) - begin} are left"
                )
            return size, begin
    raise PlanFileError(f"{file}: there is no message length at byte {index}")


__all__ = ["Node", "NodeType", "decode", "encode", "read", "write"]
