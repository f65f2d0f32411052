"""Conditions on how an execution ended, such as ``B.r1 == 1 and x == 0``: parsed, never evaluated as Python."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice, product

CHARS_MAX = 500
TRIES_MAX = 2_000  # values with which a condition is tried, to see whether it has only one truth
COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(frozen=True)
class Condition:
    """A truth about how an execution ended."""

    # comparisons, ``and``, ``or`` and ``not`` over registers (``B.r1``: that of host B), words of the pool (``x``) and
    # whole numbers
    text: str
    _tree: ast.expr

    @classmethod
    def parse(cls, text: str, names: Collection[str]) -> Condition:
        """Read a condition of at most CHARS_MAX characters on these registers and words."""
        if len(text) > CHARS_MAX:
            raise ValueError(f"is longer than {CHARS_MAX} characters")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
            _check_truth(tree, names)
            if not any(isinstance(part, ast.Name) for part in ast.walk(tree)):
                raise ValueError("it names no register and no word, so its value is always the same")
            if (truth := _only_truth(tree, names)) is not None:
                raise ValueError(f"it is {str(truth).lower()} at every end, whatever the values are")
        except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
            what = str(error) if type(error) is ValueError else "it does not parse"
            raise ValueError(f"is not a condition such as B.r1 == 1 and x == 0: {what}") from None
        return cls(text.strip(), tree)

    def holds(self, values: Mapping[str, int]) -> bool:
        return _truth(self._tree, values)


def _check_truth(tree: ast.expr, names: Collection[str]) -> None:
    match tree:
        case ast.BoolOp(values=parts):
            for part in parts:
                _check_truth(part, names)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            _check_truth(part, names)
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(op) in COMPARE for op in ops):
            for number in (left, *rest):
                _check_number(number, names)
        case _:
            raise ValueError("it takes comparisons, and, or, not")


def _check_number(tree: ast.expr, names: Collection[str]) -> None:
    match tree:
        case ast.Constant(value=value) if type(value) is int:
            return
        case ast.Name() | ast.Attribute(value=ast.Name()) if _name(tree) in names:
            return
        case ast.Name() | ast.Attribute(value=ast.Name()):
            raise ValueError(f"there is no {_name(tree)}; there are {', '.join(sorted(names)) or 'no words'}")
    raise ValueError("it compares registers, words and whole numbers")


def _truth(tree: ast.expr, values: Mapping[str, int]) -> bool:
    match tree:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_truth(part, values) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_truth(part, values) for part in parts)
        case ast.UnaryOp(operand=part):
            return not _truth(part, values)
        case ast.Compare(left=left, ops=ops, comparators=rest):
            numbers = [_number(tree, values) for tree in (left, *rest)]
            pairs = zip(ops, numbers, numbers[1:], strict=False)
            return all(COMPARE[type(op)](before, after) for op, before, after in pairs)
    raise AssertionError("checked when it was parsed")


def _only_truth(tree: ast.expr, names: Collection[str]) -> bool | None:
    """Return the truth of a condition that has only one; None if it has both, or too many names to tell.

    Only the order of values and constants matters, so each value need be no more than the count of names above one.
    """
    names_used = {_name(part) for part in ast.walk(tree) if isinstance(part, ast.Name | ast.Attribute)} & {*names}
    constants = {0, *(_number(part, {}) for part in ast.walk(tree) if isinstance(part, ast.Constant))}
    near = sorted({constant + more for constant in constants for more in range(len(names_used) + 1)})
    truths = set()
    for values in islice(product(near, repeat=len(names_used)), TRIES_MAX):
        truths.add(_truth(tree, dict(zip(names_used, values, strict=True))))
        if len(truths) == 2:
            return None
    return truths.pop() if len(near) ** len(names_used) <= TRIES_MAX else None


def _number(tree: ast.expr, values: Mapping[str, int]) -> int:
    return tree.value if isinstance(tree, ast.Constant) and isinstance(tree.value, int) else values[_name(tree)]


def _name(tree: ast.expr) -> str:
    return ast.unparse(tree)
