"""Records by the thousand: what a Builder's words become where a rank has as many peers.

Instructions are tuples, which are pleasant to write and slow to make: a world of a thousand ranks needs ten million.
Here a few of them are written once, and what differs from peer to peer is filled in as columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cxlemu.plan import NOTHING, Instruction, Kind, Op, Operand, encode
from cxlemu.plan.instructions import OPERAND_DTYPE, OPERAND_FIELDS, RECORD_DTYPE, Records

Ints: TypeAlias = NDArray[np.int64]

# NumPy copies structures field by field: whole records and whole operands are copied as what they are, bytes.
_WHOLE = np.dtype((np.void, RECORD_DTYPE.itemsize))
_OPERAND = np.dtype((np.void, OPERAND_DTYPE.itemsize))
_FLAT = np.dtype(
    [(name, _OPERAND if name in OPERAND_FIELDS else RECORD_DTYPE[name]) for name in RECORD_DTYPE.names or ()]
)


def repeated(template: list[Instruction], times: int) -> Records:
    """(times, len(template)) rows to fill in."""
    return np.tile(encode(template).view(_WHOLE), (times, 1)).view(RECORD_DTYPE)


def concatenated(items: Iterable[Instruction | Records]) -> Records:
    """Instructions, and records of any shape, in order."""
    pieces: list[Records] = []
    waiting: list[Instruction] = []
    for item in items:
        if isinstance(item, Instruction):
            waiting.append(item)
            continue
        pieces += [encode(waiting).view(_WHOLE)] if waiting else []
        pieces.append(item.reshape(-1).view(_WHOLE))
        waiting = []
    pieces += [encode(waiting).view(_WHOLE)] if waiting or not pieces else []
    records = (np.concatenate(pieces) if len(pieces) > 1 else pieces[0]).view(RECORD_DTYPE)
    records.flags.writeable = False
    return records


def operands(kind: Kind, ids: Ints, seq: int, offsets: Ints) -> Records:
    found = np.zeros(len(offsets), OPERAND_DTYPE)
    found["kind"], found["id"], found["seq"], found["offset"] = kind, ids, seq, offsets
    return found


def folded(
    sources: Records, wait: Instruction, doorbells: Ints, reduce: Instruction, accumulator: Operand, rank: int
) -> Records:
    """WAIT and INVALIDATE for each source but ``rank``'s own, and a REDUCE where the next two or first three are there.

    ``reduce`` is the last one; those before it put their result into ``accumulator``.
    """
    count, whole = len(sources), sources.view(_OPERAND)
    lasts = np.minimum(np.arange(2, count + 2, 2), count - 1)[: max(1, count // 2)]  # of each REDUCE, its last source
    others = np.flatnonzero(np.arange(count) != rank)
    waits = repeated([wait, wait._replace(op=Op.INVALIDATE, value=0)], count - 1).view(_FLAT)
    waits["arg"][:, 0], waits["nbytes"][:, 0] = doorbells[others], 0
    waits["a"][:, 1] = whole[others]
    partial = reduce._replace(dst=accumulator, dst2=NOTHING, flags=0, arg=0, a=accumulator)
    reduces = repeated([partial], len(lasts))[:, 0].view(_FLAT)
    reduces[-1:] = encode([reduce._replace(a=accumulator)]).view(_FLAT)
    reduces["a"][0], reduces["b"][0] = whole[0], whole[1]
    if count > 2:
        reduces["c"][0] = whole[2]
    reduces["b"][1:] = whole[lasts[:-1] + 1]
    pairs = np.flatnonzero(lasts[1:] - lasts[:-1] == 2) + 1
    reduces["c"][pairs] = whole[lasts[pairs]]
    keys = np.concatenate([np.column_stack([3 * others, 3 * others + 1]).reshape(-1), 3 * lasts + 2])
    rows = np.concatenate([waits.reshape(-1).view(_WHOLE), reduces.view(_WHOLE)])
    return rows[np.argsort(keys, kind="stable")].view(RECORD_DTYPE)
