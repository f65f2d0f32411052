"""Plans: the instruction set, the rules every plan obeys, printing, and plans on disk."""

from cxlemu.choices import DTYPE_NAMES
from cxlemu.plan.instructions import DTYPES, NOTHING, Flag, Instruction, Kind, Op, Operand, RedOp, encode
from cxlemu.plan.layout import Layout
from cxlemu.plan.plan import (
    FOLD_ORDERS,
    RANK_ORDER,
    UNIFORM_ORDER,
    Buffer,
    Call,
    DoorbellGroup,
    Frame,
    Gemm,
    InHeap,
    Kernel,
    Plan,
    RankPart,
    Region,
    Stream,
)

__all__ = [
    "DTYPES",
    "DTYPE_NAMES",
    "FOLD_ORDERS",
    "NOTHING",
    "RANK_ORDER",
    "UNIFORM_ORDER",
    "Buffer",
    "Call",
    "DoorbellGroup",
    "Flag",
    "Frame",
    "Gemm",
    "InHeap",
    "Instruction",
    "Kernel",
    "Kind",
    "Layout",
    "Op",
    "Operand",
    "Plan",
    "RankPart",
    "RedOp",
    "Region",
    "Stream",
    "encode",
]
