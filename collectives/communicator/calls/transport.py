"""How ordinary arrays travel: through the pool, or from process to process on one machine, where that is asked for.

With ``transport="process"`` peers read a rank's array in its process, with one copy by the kernel, as MPI does on one
machine. The plan is that of zero copy (`cxlemu.engines.peer_memory`). Hosts have no such way to each other, so ranks on
one host alone may ask for it, on memory that this machine keeps coherent.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from errno import EPERM

import numpy as np

from collectives.communicator.arrays import Array
from collectives.contracts import NO_ZERO_COPY_IN_PLACE
from cxlemu import _native
from cxlemu.choices import TRANSPORTS
from cxlemu.engines.peer_memory import PeerMemory
from cxlemu.errors import ArgumentError
from cxlemu.memory.backend import Backend
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Call, InHeap, Layout
from cxlemu.rounding import round_up
from cxlemu.suggest import unknown

PROCESS = "process"


def check_transport(
    transport: str, backend: Backend, hosts: Sequence[int], *, integrity: str | None, tenant: bool, paced: bool
) -> None:
    """Check that ranks can have a transport, before anything is made."""
    if transport not in TRANSPORTS:
        raise ArgumentError(unknown("transport", transport, TRANSPORTS))
    if transport != PROCESS:
        return
    other = next((rank for rank, host in enumerate(hosts) if host != hosts[0]), None)
    why = None
    if not backend.shares_processes:
        why = "it needs coherent shared memory, the backend shm"
    elif other is not None:
        why = (
            f"rank 0 is on host {hosts[0]} and rank {other} on host {hosts[other]}, and hosts have nothing but the "
            f"pool: take a topology with ranks_per_host of {len(hosts)} or more"
        )
    elif integrity is not None:
        why = "its doorbells carry addresses, and no checksums: leave out integrity"
    elif tenant:
        why = "a tenant's ranks may use only its grants in the pool"
    elif paced:
        why = "the model has no times for it: leave out the pace, or pass paced=False"
    if why is not None:
        raise ArgumentError(f"transport {PROCESS!r} copies from process to process: {why}")


def reach(rank: int, all_gather: Callable[[Array], Array]) -> PeerMemory:
    """Find the peers' processes, and read a word of each. Collective."""
    word = np.frombuffer(secrets.token_bytes(8), np.int64)
    told = all_gather(np.array([os.getpid(), word.ctypes.data, word[0]], np.int64))
    failure = np.array([-1, 0], np.int64)  # a peer whose memory this rank cannot read, and why
    seen = np.zeros(8, np.uint8)
    for peer, (pid, address, right) in enumerate(told.tolist()):
        try:
            _native.read_process(pid, address, seen)
            error = 0 if seen.view(np.int64)[0] == right else EPERM  # a process of another namespace has that number
        except OSError as failed:
            error = failed.errno or EPERM
        if error:
            failure[:] = peer, error
    everyone = all_gather(failure)  # after which `word` is not read any more
    for reader, (peer, error) in enumerate(everyone.tolist()):
        if peer >= 0:
            raise ArgumentError(
                f"transport {PROCESS!r} copies from process to process, and rank {reader} may not read the memory of "
                f"rank {peer} ({os.strerror(error)}): leave it out, or let a user's processes trace each other "
                f"(kernel.yama.ptrace_scope 0, in containers SYS_PTRACE)"
            )
    return PeerMemory(rank, tuple(told[:, 0].tolist()))


def refusal(collective: str, *, in_place: bool) -> str | None:
    """Say why a collective's arrays cannot be read where they lie; None where they can."""
    return NO_ZERO_COPY_IN_PLACE.get(collective) if in_place else None


def in_processes(call: Call) -> InHeap:
    """Place a call's arrays in the ranks' processes, the same on all ranks: an input, and an output behind it.

    In place they are the same memory, which each rank finds by the addresses that it is told.
    """
    return InHeap(0, output=_most_bytes(call), in_process=True)


def layout_in_processes(call: Call, layout: Layout) -> Layout:
    """Return the layout with strips of the heap as large as such a call's arrays; they take no memory."""
    sharers = -(-layout.ranks // layout.pool_cards)
    return replace(layout, heap_card_bytes=2 * _most_bytes(call) * sharers)


def _most_bytes(call: Call) -> int:
    return round_up(call.nbytes * call.ranks, LINE_BYTES)
