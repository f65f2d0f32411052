"""Operations that a protocol makes and drops: without ``yield``, a call of `Store` or of a generator does nothing."""

import ast
from functools import lru_cache
from inspect import CO_GENERATOR, isgeneratorfunction
from pathlib import Path
from threading import Lock
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakSet

from cxlemu.asserts import SOURCE_BYTES_MAX, users_codes
from cxlemu.errors import ArgumentError
from cxlemu.files import read_file
from faults.explore import operations

_YIELDED: WeakSet[FunctionType] = WeakSet()  # functions that are checked: each of a protocol's runs asks again
_PARSING = Lock()  # ranks may be threads, and some Pythons parse in one thread at a time: SystemError
_OPERATIONS = tuple(value for value in vars(operations).values() if isinstance(value, FunctionType))


def check_yielded(function: Any, name: str) -> None:
    """Raises ArgumentError for a statement that is a bare call of an operation or of a generator function."""
    with _PARSING:
        if isinstance(function, FunctionType) and function not in _YIELDED:
            _check(function, name)
            _YIELDED.add(function)


def _check(function: FunctionType, name: str) -> None:
    for globals_of, code in users_codes(function):
        lines = {line for *_, line in code.co_lines()}
        for call in _bare_calls(code.co_filename):
            if call.lineno in lines and (word := _missing(call.func, globals_of, code)):
                text, file = f"{ast.unparse(call):.60}", Path(code.co_filename).name
                raise ArgumentError(f"{name}: {file}:{call.lineno}: {text} does nothing alone: write {word} {text}")


@lru_cache(maxsize=64)
def _bare_calls(path: str) -> tuple[ast.Call, ...]:
    """The calls of a file that are statements of their own; none where there is no source."""
    try:
        tree = ast.parse(read_file(Path(path), SOURCE_BYTES_MAX))
    except (OSError, SyntaxError, ValueError):  # no file, or it has changed since it was imported
        return ()
    statements = (each.value for each in ast.walk(tree) if isinstance(each, ast.Expr))
    return tuple(value for value in statements if isinstance(value, ast.Call))


def _missing(what: ast.expr, function: FunctionType, code: CodeType) -> str:
    """The word that is missing before a bare call of this; empty where none is, or nobody knows before the call."""
    if isinstance(what, ast.Name) and what.id in code.co_varnames + code.co_cellvars:
        inner = [each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == what.id]
        return "yield from" if any(each.co_flags & CO_GENERATOR for each in inner) else ""
    called = _called(what, function)
    return "yield" if called in _OPERATIONS else "yield from" if isgeneratorfunction(called) else ""


def _called(what: ast.expr, function: FunctionType) -> object:
    """What a name, or an attribute of one, stands for in a function; None where neither says so."""
    if isinstance(what, ast.Attribute):
        return getattr(_called(what.value, function), what.attr, None)
    if not isinstance(what, ast.Name):
        return None
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return next((cell.cell_contents for name, cell in cells if name == what.id), function.__globals__.get(what.id))
