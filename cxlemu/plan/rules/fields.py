"""Rules of one record by itself: is it an instruction at all?"""

from collections.abc import Iterator

import numpy as np

from cxlemu.choices import DTYPE_NAMES
from cxlemu.memory.protocol import PAYLOAD_BYTES
from cxlemu.plan.instructions import DTYPES, OPERAND_FIELDS, SIGNATURES, TELLING, Flag, Kind, Op, RedOp
from cxlemu.plan.layout import PLACES_AT
from cxlemu.plan.reduction import folds, why_not
from cxlemu.plan.rules.program import Defect, Mask, PlanTable, one_of

# Tables by opcode. For opcodes that do not exist all is allowed, so that only the rule "opcode" speaks up.
_KNOWN = np.isin(np.arange(256), list(Op))
_TYPED, _SIZED, _NAMED, _TIMED = (
    np.isin(np.arange(256), [op for op, signature in SIGNATURES.items() if uses(signature)])
    for uses in (
        lambda signature: signature.typed,
        lambda signature: signature.sized,
        lambda signature: signature.arg != "",
        lambda signature: signature.arg in ("doorbell", "group"),
    )
)
_ALL_KINDS = (1 << len(Kind)) - 1
KINDS = np.full((len(OPERAND_FIELDS), 256), _ALL_KINDS, np.uint8)  # a bit for each kind that an operand may have
for _op, _signature in SIGNATURES.items():
    for _at, _field in enumerate(OPERAND_FIELDS):
        KINDS[_at, _op] = sum(1 << kind for kind in _signature.operands.get(_field, frozenset({Kind.NONE})))
_FREE: dict[str, Mask] = {  # by opcode: whether it leaves the field unused
    **dict.fromkeys(("dtype", "redop"), _KNOWN & ~_TYPED),
    "flags": _KNOWN & ~_TYPED & ~one_of(TELLING),
    "arg": _KNOWN & ~_NAMED,
    "value": _KNOWN & ~_TIMED,
    "nbytes": _KNOWN & ~_SIZED,
}
_FREE_FIELDS, _FREE_TABLE = list(_FREE), np.array(list(_FREE.values()))
_CARRIES, _TELLS = one_of((Op.SIGNAL_DATA, Op.WAIT_DATA)), one_of(TELLING)

ITEM_BYTES = np.array([DTYPES[name].itemsize for name in DTYPE_NAMES], np.int64)
FOLDS = np.array([[folds(name, redop.name.lower()) for redop in RedOp] for name in DTYPE_NAMES])


def typed(p: PlanTable) -> Mask:
    """Return which rows have opcodes that use dtype and redop."""
    mask: Mask = _TYPED[p.op]
    return mask


def opcode(p: PlanTable) -> Iterator[Defect]:
    """Yield opcodes that do not exist."""
    yield from p.defects(~_KNOWN[p.op], lambda row: f"there is no opcode {p.op[row]}")


def operands(p: PlanTable) -> Iterator[Defect]:
    """Yield operands that are missing, or of a kind that the instruction does not take."""
    kind = p.operands.kind
    wrong = KINDS[:, p.op] >> np.minimum(kind, len(Kind)) & 1 == 0
    yield from p.defects_at(wrong, lambda index, row: _operand(OPERAND_FIELDS[index], int(kind[index, row])))


def _operand(name: str, kind: int) -> str:
    if kind >= len(Kind):
        return f"operand {name} is of kind {kind}, which does not exist"
    return (
        f"operand {name} is missing" if kind == Kind.NONE else f"operand {name} may not be a {Kind(kind).name.lower()}"
    )


def unused(p: PlanTable) -> Iterator[Defect]:
    """Yield fields that are set though the instruction does not use them."""
    free = _FREE_TABLE[:, p.op]
    free[_FREE_FIELDS.index("arg")] &= ~(typed(p) & (p.records["flags"] & Flag.DIVIDE != 0))
    is_set = np.array([p.records[name] != 0 for name in _FREE_FIELDS])
    yield from p.defects_at(free & is_set, lambda index, row: f"{_FREE_FIELDS[index]} is set, and not used")
    o = p.operands
    absent = (o.kind == Kind.NONE) & ((o.id != 0) | (o.offset != 0))
    roundless = (o.kind != Kind.REGION) & (o.seq != 0)
    yield from p.defects_at(
        _KNOWN[p.op] & (absent | roundless),
        lambda index, row: f"operand {OPERAND_FIELDS[index]} has fields that are set, and not used",
    )


def reduction(p: PlanTable) -> Iterator[Defect]:
    """Yield reductions without a dtype, an operation that it has, or a divisor above 0, and those with other flags."""
    if not typed(p).any():
        return
    dtype, redop, flags = (p.records[name] for name in ("dtype", "redop", "flags"))
    yield from p.defects(typed(p) & (dtype >= len(DTYPE_NAMES)), lambda row: f"there is no dtype {dtype[row]}")
    none = (redop == RedOp.NONE) | (redop >= len(RedOp))
    yield from p.defects(typed(p) & none, lambda row: f"there is no operation {redop[row]}")
    yield from p.defects(
        typed(p) & (flags & ~np.uint8(Flag.DIVIDE) != 0), lambda row: f"there are no flags {flags[row]}"
    )
    both = typed(p) & (dtype < len(DTYPE_NAMES)) & ~none
    nonsense = both & ~FOLDS[np.where(both, dtype, 0), np.where(both, redop, 0)]
    yield from p.defects(nonsense, lambda row: why_not(DTYPE_NAMES[dtype[row]], RedOp(redop[row]).name.lower()))
    divides = typed(p) & (flags & Flag.DIVIDE != 0)
    yield from p.defects(divides & (p.arg < 1), lambda row: f"it divides by {p.arg[row]}")


def size(p: PlanTable) -> Iterator[Defect]:
    """Yield negative sizes, and sizes of reductions that are not whole elements."""
    nbytes, dtype = p.records["nbytes"], p.records["dtype"]
    sized = _SIZED[p.op]
    yield from p.defects(sized & (nbytes < 0), lambda row: f"{nbytes[row]} bytes")
    item_bytes = ITEM_BYTES[np.minimum(dtype, len(DTYPE_NAMES) - 1)]
    broken = typed(p) & (nbytes > 0) & (nbytes % item_bytes != 0)
    yield from p.defects(broken, lambda row: f"{nbytes[row]} bytes are not a whole number of elements")


def payload(p: PlanTable) -> Iterator[Defect]:
    """Yield payloads that do not fit in a doorbell's line, and flags of doorbells that do not exist."""
    nbytes, flags = p.records["nbytes"], p.records["flags"]
    tells = _TELLS[p.op] & (flags & Flag.PLACES != 0)
    most = np.where(tells, PLACES_AT, PAYLOAD_BYTES)
    yield from p.defects(_CARRIES[p.op] & (nbytes > most), lambda row: f"{nbytes[row]} bytes")
    unknown = _TELLS[p.op] & (flags & ~np.uint8(Flag.PLACES) != 0)
    yield from p.defects(unknown, lambda row: f"there are no flags {flags[row]}")
