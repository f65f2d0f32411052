"""What the machine could do at best: for every collective, which bytes each rank must move, and nothing else.

The bound is the time of the slowest rank when all ranks move, and reduce, their bytes at the same time in local memory:
no staging, no synchronization but at start and end. A rank that is to have bytes fetches them itself, directly from
where the rank that has them wrote them (sources are shared memory, every one written by its own rank's core); only for
the root of a gather each rank copies what it has, so that the cores share the work:

| collective     | a rank                                                        | because |
|----------------|---------------------------------------------------------------|---------|
| broadcast      | copies 1 block from the root; the root itself nothing         | its block is there already |
| scatter        | copies its 1 block from the root                              | |
| all_gather     | copies 1 block from each of N ranks                           | |
| gather         | copies its 1 block                                            | the root alone would copy N |
| all_to_all     | copies 1 block from each of N ranks                           | |
| reduce_scatter | sums its block of N ranks in one pass                         | |
| all_reduce     | sums 1/N of the vector of N ranks, copies N-1 shares          | reads 2-1/N vectors, not N |
| reduce         | the same at the root, the others only sum                     | the cores share the additions |

Below some KB bytes cost nothing beside the news that they are there, which takes a cache line from one core to another:
half a round trip, once for every collective, between two cores also where more ranks share them. So a limit is the
larger of both, `limit_us`. Calls that follow each other may overlap where a rank waits for no other, as the root of a
broadcast: there a call can take less than that.
"""

from itertools import pairwise
from typing import NamedTuple

from collectives.contracts import COLLECTIVES, buffers, postcondition
from cxlemu.plan import DTYPES, Call


class SourceMove(NamedTuple):
    """Output bytes [at, at + nbytes): a copy of one source, or the sum of several: (rank, offset in its input)."""

    at: int
    nbytes: int
    sources: tuple[tuple[int, int], ...]


def moves(call: Call, rank: int) -> list[SourceMove]:
    """List what one rank copies and sums, as in the table above. A reduction's share is whole elements."""
    contract = COLLECTIVES[call.collective]
    if contract.reduces and contract.replaces:
        return _shared_sum(call, rank)
    if contract.one_buffer and rank == call.root:
        return []
    if contract.rooted_output:
        return [SourceMove(0, buffers(call, rank)[0].nbytes, ((rank, 0),))]
    return [SourceMove(piece.at, piece.nbytes, piece.contributions) for piece in postcondition(call, rank)]


def _shared_sum(call: Call, rank: int) -> list[SourceMove]:
    item = DTYPES[call.dtype].itemsize
    cuts = [call.nbytes // item * number // call.ranks * item for number in range(call.ranks + 1)]
    shares = [
        SourceMove(begin, end - begin, tuple((source, begin) for source in range(call.ranks)))
        for begin, end in pairwise(cuts)
    ]
    needs_all = COLLECTIVES[call.collective].shared_result or rank == call.root
    # Another rank's sum is read from its input: as many bytes, from the same core.
    fetched = [SourceMove(m.at, m.nbytes, ((other, m.at),)) for other, m in enumerate(shares) if other != rank]
    return [move for move in [shares[rank], *(fetched if needs_all else [])] if move.nbytes]


def limit_us(moves_us: float, round_trip_us: float) -> float:
    """Return the limit of a call, in us: its moves, or half a round trip where that is longer."""
    return max(moves_us, round_trip_us / 2)


def source_bytes(call: Call) -> int:
    """Return the size of the largest input that any rank has."""
    blocks = call.ranks if COLLECTIVES[call.collective].input_blocks == "ranks" else 1
    return blocks * call.nbytes
