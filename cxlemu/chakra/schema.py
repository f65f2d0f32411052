"""The part of Chakra's schema that we write and read, built at run time: no generated code, no protoc.

Numbers and names are those of schema/protobuf/et_def.proto of github.com/mlcommons/chakra. Fields that are not here
(list values, storage nodes) are kept by protobuf as unknown fields.
"""

from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

from cxlemu.errors import ArgumentError


class NodeType(IntEnum):
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


COLLECTIVES = {  # CollectiveCommType
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
    "barrier": 9,
}

REDUCE_SCATTER_BLOCK = 8  # with blocks of one size, as every reduce_scatter here

# Attribute name -> the field of AttributeProto that feeders look for it in.
ATTRIBUTES = {
    "is_cpu_op": "bool_val",
    "num_ops": "int64_val",
    "tensor_size": "uint64_val",
    "comm_type": "int64_val",
    "comm_size": "int64_val",
    "comm_src": "int32_val",
    "comm_dst": "int32_val",
    "comm_tag": "int32_val",
    "pg_name": "string_val",
}


class Messages(NamedTuple):
    """The protobuf classes of the messages that a file holds."""

    metadata: Any
    node: Any


_MESSAGES: dict[str, list[tuple[str, int, str, bool]]] = {  # name -> (field, number, type, repeated)
    "AttributeProto": [
        ("name", 1, "string", False),
        ("doc_string", 2, "string", False),
        ("double_val", 3, "double", False),
        ("float_val", 5, "float", False),
        ("int32_val", 7, "int32", False),
        ("int64_val", 9, "int64", False),
        ("uint32_val", 11, "uint32", False),
        ("uint64_val", 13, "uint64", False),
        ("bool_val", 27, "bool", False),
        ("string_val", 29, "string", False),
    ],
    "GlobalMetadata": [("version", 1, "string", False), ("attr", 2, "AttributeProto", True)],
    "Node": [
        ("id", 1, "uint64", False),
        ("name", 2, "string", False),
        ("type", 3, "int32", False),  # an enumeration: the same on the wire
        ("ctrl_deps", 4, "uint64", True),
        ("data_deps", 5, "uint64", True),
        ("start_time_micros", 6, "uint64", False),
        ("duration_micros", 7, "uint64", False),
        ("attr", 10, "AttributeProto", True),
    ],
}
_VALUES = "value"  # AttributeProto's oneof


@cache
def messages() -> Messages:
    """Return the message classes. Raises ArgumentError where protobuf is not installed."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise ArgumentError(f"Chakra traces need protobuf ({error}): pip install 'cxlemu[chakra]'") from None
    file = descriptor_pb2.FileDescriptorProto(name="cxlemu/et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        if message == "AttributeProto":
            described.oneof_decl.add(name=_VALUES)
        for name, number, kind, repeated in fields:
            field = described.field.add(name=name, number=number, label=3 if repeated else 1)
            if kind in _MESSAGES:
                field.type, field.type_name = 11, f".ChakraProtoMsg.{kind}"
            else:
                field.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind.upper()}")
            if name.endswith("_val"):
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    named = (pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}") for name in ("GlobalMetadata", "Node"))
    return Messages(*map(message_factory.GetMessageClass, named))
