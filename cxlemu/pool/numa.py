"""The NUMA nodes of pages: mbind(2) and get_mempolicy(2) by number, because neither libc nor Python wraps them."""

import ctypes
import os
import platform
from pathlib import Path

from cxlemu.errors import PoolError
from cxlemu.memory.protocol import Bytes

_NUMBERS = {"x86_64": (237, 239), "aarch64": (235, 236)}  # machine -> (mbind, get_mempolicy)
_MPOL_BIND = 2
_MPOL_F_NODE_AT_ADDR = 1 | 2
_SYSFS = Path("/sys/devices/system/node")
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def nodes_with_memory() -> list[int]:
    """List NUMA nodes that have memory, CPU-less ones (CXL expanders) included; empty on a kernel without NUMA."""
    try:
        text = (_SYSFS / "has_memory").read_text().strip()
    except FileNotFoundError:
        return []
    spans = [span.split("-") for span in text.split(",") if span]
    return [node for span in spans for node in range(int(span[0]), int(span[-1]) + 1)]


def check_node(node: int) -> None:
    """Check that ``node`` has memory. Raises PoolError that names the nodes that have."""
    nodes = nodes_with_memory()
    if node not in nodes:
        exist = ", ".join(map(str, nodes)) or "none: this kernel has no NUMA"
        raise PoolError(f"NUMA node {node} has no memory here; nodes with memory: {exist}")


def bind(pages: Bytes, node: int) -> None:
    """Take every page of a shared mapping from one node from now on, whichever process touches it first.

    On a shared-memory segment the policy belongs to the segment, so it holds for posix_fallocate and for other
    processes as well.
    """
    mask = (ctypes.c_ulong * (node // _WORD_BITS + 1))()
    mask[node // _WORD_BITS] = 1 << node % _WORD_BITS
    bits = len(mask) * _WORD_BITS + 1  # the kernel reads one bit less than it is told
    _call(0, "mbind", pages.ctypes.data, pages.nbytes, _MPOL_BIND, ctypes.addressof(mask), bits, 0)


def node_of(pages: Bytes) -> int:
    """Return the node that really holds the first page. Raises PoolError when the kernel does not tell."""
    node = ctypes.c_int(-1)
    _call(1, "get_mempolicy", ctypes.addressof(node), 0, 0, pages.ctypes.data, _MPOL_F_NODE_AT_ADDR)
    return node.value


def _call(index: int, name: str, *arguments: int) -> None:
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise PoolError(f"{name}(2) is not known on {machine}, only on {' and '.join(_NUMBERS)}")
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    if syscall(ctypes.c_long(_NUMBERS[machine][index]), *map(ctypes.c_ulong, arguments)) < 0:
        raise PoolError(f"the kernel refuses {name}(2): {os.strerror(ctypes.get_errno())}")
