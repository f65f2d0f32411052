from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cxlemu.engines.call_hooks import CallHooks, Obstacles
from cxlemu.memory.protocol import Bytes
from cxlemu.plan.instructions import Records
from cxlemu.plan.plan import Ints

_T = TypeVar("_T")

CONSTANTS: dict[str, int]  # as C was compiled with them

class Program:
    work_bytes: int
    @property
    def executed(self) -> int: ...
    def __init__(
        self,
        cards: Sequence[Bytes],
        base: int,
        layout: Records,  # of plan.layout.layout_record
        regions: Records,
        groups: Records,
        streams: Sequence[Records],
        buffer_bytes: Sequence[int],
        events: int,
        elides: int,
        memory: Shadow | None,
        pacer: Pacer | None = None,
        kernels: Records | None = None,
        peers: tuple[int, NDArray[np.int32], Ints] | None = None,  # this rank, all processes, berths
        told: tuple[int, int, int, int, Ints, Ints] | None = None,  # as engines.native.told_places says
    ) -> None: ...
    def start(self, epoch: int, tag: int, *buffers: Bytes) -> None: ...
    def advance(self, idle_ns: int, spins: int) -> tuple[int, Obstacles]: ...
    def go_on_with(self, *buffers: Bytes) -> None: ...
    def skip(self, stream: int) -> None: ...
    def stop(self, stream: int, at: int) -> None: ...
    def modelled_ns(self, stream: int) -> int | None: ...

def advance_any(programs: list[Program], idle_ns: int, spins: int, wake: bytearray, /) -> tuple[int, int, Obstacles]:
    """Go on with all of them until one does more than wait, nothing progressed for ``idle_ns``, or ``wake`` is not 0.

    Returns the index of the one that ended the run, or -1, its status and its obstacles.
    """

def unlocked(lock: Lock, function: Callable[..., _T], /, *args: Any) -> _T:
    """Call a function without the lock, which is held again afterwards, whatever handlers of signals raised."""

class Courier:
    """``gate``: wake, closed, advancing, at work; ``status``: what a receive makes, None where messages are sent."""

    epoch: int
    spins: int
    last: Any  # what the last call returned; None where it raised
    def __init__(
        self,
        program: Program,
        epoch: int,
        tag: int,
        rounds: int,
        peer: int,
        gate: bytearray,
        handed: list[list[Any]],
        idle_ns: int,
        spins: int,
        status: type[tuple[Any, Any, int]] | None,
        any: object = ...,  # what stands for any tag
    ) -> None: ...
    def __call__(self, array: Any, tag: object, /) -> Any: ...
    def teach(self, program: Program, nbytes: int, rounds: int, tag: int, /) -> None: ...

class Sequencer:
    epoch: int
    calls: int
    tag: int
    spins: int
    revoked: int
    def __init__(
        self,
        ranks: int,
        epoch: int,
        tag: int,
        idle_ns: int,
        spins: int,
        pending: bytearray,  # one byte: not 0 while an asynchronous call may be ahead
        hooks: CallHooks,
    ) -> None: ...
    def begin(self, rounds: int, digest: int) -> tuple[int, int]: ...

class Operation:
    """``input`` and ``output`` are None where calls bring them: see `DispatchCache.remember`."""

    cookie: Any
    program: Program
    def __init__(
        self,
        sequencer: Sequencer,
        program: Program,
        rounds: int,
        digest: int,
        cookie: Any,
        result: Any,
        input: Bytes | None,
        output: Bytes | None,
        scratch: Bytes,
    ) -> None: ...
    def __call__(self) -> Any: ...
    def run(self) -> Any: ...

class DispatchCache:
    def __init__(self, sequencer: Sequencer, heap: Bytes, changes: NDArray[np.int64]) -> None: ...
    def __call__(
        self, collective: str, x: Any, out: Any, op: str, root: int, variant: Any, async_op: bool, /
    ) -> Any: ...
    def remember(
        self, operation: Operation, collective: str, x: Any, out: Any, op: str, root: int, variant: Any, /
    ) -> bool: ...
    def find(self, collective: str, x: Any, out: Any, op: str, root: int, variant: Any, /) -> Operation | None: ...

class Verb:
    """``places``: where each parameter is among the arguments of Calls; ``defaults``: of those, or ... for none."""

    def __init__(
        self,
        calls: DispatchCache,
        method: Callable[..., Any],
        parameters: tuple[str, ...],
        positional: int,
        places: tuple[int, ...],
        defaults: tuple[Any, ...],
        rank: int,
        replaces: bool,
        only_at_root: bool,
        makes_out: bool = False,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class HostLock:
    """In the first 64 bytes of ``word``, which are zeros at first; only one process at a time may make it."""

    def __init__(self, word: Bytes) -> None: ...
    def acquire(self, seconds: float) -> bool: ...
    def release(self) -> None: ...

class Shadow:
    """One rank's memory, as ShadowMemory; ``adversary``: the state of its random numbers, and its rates.

    ValueError for what is outside the pool, TimeoutError when the lock is not had in ``lock_s``; OSError of a status,
    such as LINK_DOWN, for a load that fails, of which `broken` says where.
    """

    def __init__(
        self,
        cards: Sequence[Bytes],
        storage: Bytes,
        lock: HostLock,
        lock_s: float,
        adversary: tuple[int, float, float, float] | None,
        host: int,
        damage: Bytes,
    ) -> None: ...
    def broken(self) -> tuple[int, int]: ...
    def write(self, card: int, offset: int, data: Bytes, follows: int) -> None: ...
    def write_nt(self, card: int, offset: int, data: Bytes) -> None: ...
    def read(self, card: int, offset: int, out: Bytes) -> None: ...
    def flush(self, card: int, offset: int, nbytes: int, keep: bool) -> None: ...
    def fence(self) -> None: ...
    def invalidate(self, card: int, offset: int, nbytes: int) -> None: ...
    def signal(self, card: int, offset: int, word: int, payload: bytes) -> None: ...
    def poll(self, card: int, offset: int) -> bytes: ...
    def moved(self) -> tuple[int, int, int]: ...

class Pacer:
    """``test_ns``: a clock of one 64-bit number, instead of the machine's."""

    ended_ns: int
    time_scale: float
    def __init__(
        self,
        clocks: Bytes,
        model: dict[str, Any],
        rank: int,
        cards: NDArray[np.int32],
        card_bytes: int,
        test_ns: NDArray[np.int64] | None = None,
    ) -> None: ...

class Pulse:
    """Counts in the line of ``card`` at ``offset``, through ``memory`` if it is not None, and pushes the line if asked.

    ValueError for what is no line of the card, OSError where the process can start no thread.
    """

    def __init__(self, card: Bytes, offset: int, push: bool, memory: Shadow | None, interval_ns: int) -> None: ...
    def stop(self) -> None: ...

def clocks_bytes(resources: int, cards: int, card_bytes: int, /) -> int: ...
def clocks_make(clocks: Bytes, resources: int, time_scale: float, /) -> None: ...
def past_caches_from(nbytes: int, /) -> int: ...  # 0 asks
def borrowed(address: int, count: int, dtype: np.dtype[Any], owner: object, /) -> NDArray[Any]: ...
def apart(pairs: list[tuple[NDArray[Any], NDArray[Any]]], /) -> bool: ...
def read_process(pid: int, address: int, out: NDArray[Any], /) -> None:
    """Read memory of a process of this machine. Raises OSError."""

def fold(dtype: int, redop: int, dst: Bytes, a: Bytes, b: Bytes, c: Bytes | None, divisor: int) -> None: ...
def rows_right(
    records: Bytes,
    ranks: NDArray[np.int64],  # of each rank: its number, records, first buffer, buffers and events
    opcodes: Bytes,  # of plan.rules.rows.OPCODE_DTYPE
    folds: NDArray[np.bool_],
    item_bytes: NDArray[np.int64],
    buffer_bytes: NDArray[np.int64],
    regions: Bytes,
    groups: Bytes,
    kernel_bytes: NDArray[np.int64],
    numbers: NDArray[np.int64],
    /,
) -> int: ...

# The machine's own cache-line instructions: see native/lines.h. ValueError for a range that leaves its card.
def flush(card: Bytes, offset: int, nbytes: int, keep: bool) -> None: ...
def clear(cards: tuple[Bytes, ...], base: int, extents: NDArray[np.int64], flushes: bool, /) -> None: ...
def fence() -> None: ...
def invalidate(card: Bytes, offset: int, nbytes: int) -> None: ...
def copy(card: Bytes, offset: int, data: Bytes, way: int) -> None: ...
def copy_nt(card: Bytes, offset: int, data: Bytes, width: int) -> None: ...
def pushes_s(card: Bytes, stores: bool) -> float: ...
def lines_instructions() -> str: ...
def program_flush(array: Any) -> None: ...
def program_writeback(array: Any) -> None: ...
def program_invalidate(array: Any) -> None: ...
def program_expect_stale(array: Any) -> None: ...
def program_fence() -> None: ...
def program_store_nt(array: Any, data: Any) -> None: ...
def say_on_bus_error(text: str, /) -> None: ...
def map_pages(fd: int, flags: int, offset: int, nbytes: int, writable: bool, by_lines: bool) -> memoryview[int]: ...
def back_pages(pages: Bytes, backed: bool, shared: bool) -> None: ...
def missing_bytes(pages: Bytes) -> int: ...
