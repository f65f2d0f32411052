"""Whether all instructions obey the rules of single instructions, decided in one pass in C.

`fields` and `references` define these rules, and say what is wrong. C knows them from the same tables, and only says
that nothing is: most plans that are checked are right, and a first call waits for it.
"""

import numpy as np

from cxlemu import _native
from cxlemu.plan.instructions import OPERAND_FIELDS, SIGNATURES, Op
from cxlemu.plan.plan import group_table, region_table
from cxlemu.plan.rules.fields import FOLDS, ITEM_BYTES, KINDS
from cxlemu.plan.rules.program import PlanTable
from cxlemu.plan.rules.references import kernel_bytes, ranges_max
from cxlemu.plan.rules.tables import INT32_MAX

STAGES = ("fields", "references", "ranges")  # whose rules C knows
OPCODE_DTYPE = np.dtype([("is", "u1"), ("names", "u1"), ("kinds", "u1", len(OPERAND_FIELDS))])

# As in native/rows.c.
_KNOWN, _TYPED, _SIZED, _RINGS, _LOOKS, _CARRIES, _COMPUTES, _TELLS = (1 << bit for bit in range(8))
_NAMES = ("", "doorbell", "group", "event", "kernel")
_ALSO = {
    Op.SIGNAL: _RINGS | _TELLS,
    Op.SIGNAL_DATA: _RINGS | _CARRIES | _TELLS,
    Op.WAIT: _LOOKS | _TELLS,
    Op.WAIT_DATA: _LOOKS | _CARRIES | _TELLS,
    Op.COMPUTE: _COMPUTES,
}
_OPCODES = np.zeros(256, OPCODE_DTYPE)
for _op, _signature in SIGNATURES.items():
    _bits = _KNOWN | _TYPED * _signature.typed | _SIZED * _signature.sized | _ALSO.get(_op, 0)
    _OPCODES[_op] = (_bits, _NAMES.index(_signature.arg), KINDS[:, _op])
_OPCODE_BYTES = _OPCODES.view(np.uint8)  # NumPy describes a structure anew, field by field, for each buffer of it


def right(p: PlanTable) -> bool:
    """Say whether no rule of the STAGES is broken. The plan's tables obey theirs."""
    frame, layout = p.frame, p.layout
    if layout.cards > INT32_MAX:
        return False
    ranks, buffers = list[tuple[int, ...]](), list[int]()
    for rank, part in p.parts.items():
        ranks.append((rank, part.instruction_count, len(buffers), len(part.buffers), part.events))
        buffers += [buffer.nbytes for buffer in part.buffers]
    ranges = _native.rows_right(
        p.records.view(np.uint8),
        np.array(ranks, np.int64),
        _OPCODE_BYTES,
        FOLDS,
        ITEM_BYTES,
        np.array(buffers, np.int64),
        region_table(frame.regions).view(np.uint8),
        group_table(frame.groups).view(np.uint8),
        kernel_bytes(p),
        np.array([layout.ranks, layout.doorbells_per_rank, layout.slots, frame.rounds, len(frame.kernels)], np.int64),
    )
    return 0 <= ranges <= ranges_max(len(p.records))
