from collections.abc import Sequence
from typing import Any, TypeAlias

Step: TypeAlias = tuple[int, int, int, int]  # call, rank, stream, instruction

CONSTANTS: dict[str, int]  # as C was compiled with them

def accesses() -> list[tuple[int, int]]: ...  # (loads, stores) of each opcode: bits of OPERAND_FIELDS
def run(
    layout: Any,  # of cxlemu.plan.layout.layout_record
    hosts: Any,
    strips: Any,
    plans: list[tuple[Any, Any, Any, int, bool, int, int, bool, list[tuple[int, Any, Any, Any, list[Any]]]]],
    plan_of: Any,
    epochs: Any,
    without: int,
    obliges: bool,
) -> tuple[int, int, int, int, int, Step | None, Step | None, int, int]: ...

__all__: Sequence[str]
