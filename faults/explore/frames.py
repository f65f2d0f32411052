"""Where a suspended generator stands: two with equal keys go on alike, so that a loop that spins is a few nodes.

A key holds the place in the code, the variables, and what Python keeps on its stack besides (the position of a `for`
loop, the left half of a sum), of the generator and of those that it yields from.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

from cxlemu.userfile import foreign

DEPTH_MAX = 100
PLAIN = (int, str, bytes, float, complex, bool, type(None), type(...), range)
AS_THEY_ARE = (FunctionType, BuiltinFunctionType, ModuleType, CodeType, type)


class NotComparableError(Exception):
    """A value cannot be compared with others of its type; the text names the type."""


def key(generator: GeneratorType[Any, Any, Any]) -> Hashable:
    """Return the place in the code and the variables of a suspended generator: two with equal keys go on alike."""
    return _Freezer().frame(generator, 0)


def freeze(value: object) -> Hashable:
    """Return a hashable value that equals another one if both were made from equal data of the same types."""
    return _Freezer().value(value, 0)


class _Freezer:
    def __init__(self) -> None:
        self.met: dict[int, int] = {}  # containers: one that is met twice is the same one, and may be changed as one
        self.kept: list[object] = []  # so that no id comes twice

    def frame(self, generator: GeneratorType[Any, Any, Any], depth: int) -> Hashable:
        frame = generator.gi_frame
        assert frame is not None, "suspended, not ended"
        surroundings = {id(frame.f_globals), id(frame.f_builtins)}
        held = [
            self.value(item, depth + 1)
            for item in gc.get_referents(generator)
            if not isinstance(item, FrameType) and id(item) not in surroundings
        ]
        return ("at", frame.f_lasti, tuple(frame.f_locals), tuple(held))

    def value(self, value: object, depth: int) -> Hashable:
        kind = type(value)
        if kind in PLAIN:
            return (kind, value)
        if isinstance(value, AS_THEY_ARE):
            return value
        if depth > DEPTH_MAX:
            raise NotComparableError(f"{kind.__name__}, nested deeper than {DEPTH_MAX}")
        if kind is tuple:
            return (kind, tuple(self.value(item, depth + 1) for item in value))  # type: ignore[attr-defined]
        if id(value) in self.met:
            return ("met", self.met[id(value)])
        self.met[id(value)] = len(self.met)
        self.kept.append(value)
        return (kind, self._content(value, depth + 1))

    def _content(self, value: object, depth: int) -> Hashable:
        match value:
            case list():
                return tuple(self.value(item, depth) for item in value)
            case dict():
                return tuple((self.value(k, depth), self.value(v, depth)) for k, v in value.items())
            case set() | frozenset():
                return frozenset(freeze(item) for item in value)
            case CellType():
                try:
                    return self.value(value.cell_contents, depth)
                except ValueError:
                    return "empty"
            case GeneratorType() if value.gi_frame is not None:
                return self.frame(value, depth)
        try:  # iterators and plain objects say what they are made of, to be copied
            with foreign():
                made_of = value.__reduce_ex__(2)
        except Exception:
            raise NotComparableError(type(value).__name__) from None
        return self.value(made_of, depth)
