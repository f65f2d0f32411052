"""Where arrays that peers read or write lie in the heap: anywhere in their ranks' strips, as doorbells tell."""

from collectives.contracts import COLLECTIVES, buffers
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Call, InHeap, Layout
from cxlemu.rounding import round_up


def lends(call: Call, rank: int) -> bool:
    """Say whether peers read a rank's input where it lies: not that of a root which alone gets the result."""
    contract = COLLECTIVES[call.collective]
    return contract.brings(rank, call.root) and not (contract.rooted_output and rank == call.root and call.ranks > 1)


def gives_up(call: Call, rank: int) -> bool:
    """Whether peers write a rank's result in place, if they write results: not that of a root which sends all."""
    contract = COLLECTIVES[call.collective]
    return contract.gets(rank, call.root, call.ranks) and not (contract.rooted_input and rank == call.root)


def results_in_heap() -> InHeap:
    """Return where a plan places results that peers write, whose ranks tell where they really lie."""
    return InHeap(None, output=0, told=True)


def told_in_heap(call: Call, layout: Layout, *, output: bool) -> InHeap:
    """Return where a plan places arrays whose ranks tell where they really lie; the same on every rank."""
    if not (output and COLLECTIVES[call.collective].shared_result):
        return InHeap(0, told=True)
    nbytes = buffers(call, 0)[1].nbytes
    # Behind the input. Where one array fills the strip, it is both.
    return InHeap(0, output=max(min(round_up(nbytes, LINE_BYTES), layout.heap_rank_bytes - nbytes), 0), told=True)
