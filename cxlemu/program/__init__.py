"""Flush, fence and invalidate for Python programs that keep arrays in a mapping of a CXL pool.

    pool = np.memmap("/dev/dax0.0", mode="r+")       # or any other mapping
    data, flag = pool[64:128], pool[:64]

    data[:] = message;  program.flush(data);  program.fence()          # the writer
    flag[0] = 1;        program.flush(flag);  program.fence()

    program.invalidate(flag)                                           # the reader, until flag[0] is 1
    program.invalidate(data);  message = data.copy()

The functions execute the processor's own instructions, those of docs/memory-model.md. Where an emulator is preloaded
that defines ``cxlemu_cxl_flush`` and its companions, they call it instead. C and C++ programs include ``cxl.h``
from `include_dir`.
"""

from pathlib import Path
from typing import Any

import numpy as np

from cxlemu import _native

__all__ = ["expect_stale", "fence", "flush", "include_dir", "invalidate", "store_nt", "writeback"]


def flush(array: Any) -> None:
    """Write lines back that this host has stored to, and drop them from its cache.

    Their bytes are in the pool after this thread's next `fence`. As with all functions here, ``array`` is a NumPy
    array, a memoryview or another buffer, also one with gaps: then the lines of its elements. Lines that it touches in
    part are taken whole.
    """
    _native.program_flush(_bytes(array))


def writeback(array: Any) -> None:
    """Write lines back as `flush` does, but keep them in the cache where the processor can. It does not invalidate."""
    _native.program_writeback(_bytes(array))


def fence() -> None:
    """Wait until all that this thread flushed or stored by `store_nt` is in the pool before it stores anything more."""
    _native.program_fence()


def invalidate(array: Any) -> None:
    """Drop lines, so that later loads see what is in the pool now; call it after the load that sees the flag.

    A line that this host has stored to is written back: never store to a line that another host writes.
    """
    _native.program_invalidate(_bytes(array))


def store_nt(array: Any, data: Any) -> None:
    """Store past the cache; complete at this thread's next `fence`.

    Args:
        array: Where, a writable buffer without gaps.
        data: As many bytes, in a buffer without gaps.

    Raises:
        ValueError: the sizes differ.
    """
    _native.program_store_nt(_bytes(array), _bytes(data))


def expect_stale(array: Any) -> None:
    """Tell the emulator's checker that this host's loads of these bytes may be stale from now on.

    Optimistic readers find out themselves, by a checksum or a sequence number. On hardware this does nothing.
    """
    _native.program_expect_stale(_bytes(array))


def include_dir() -> Path:
    """Return the folder of ``cxl.h``, for ``cc -I``."""
    return Path(__file__).parent / "include"


def _bytes(array: Any) -> Any:
    """Show an array as elements of bytes where its dtype cannot be said in a buffer, such as bfloat16."""
    if isinstance(array, np.ndarray) and array.dtype.isbuiltin != 1 and not array.dtype.hasobject:
        return array.view(np.dtype((np.void, array.dtype.itemsize)))
    return array
