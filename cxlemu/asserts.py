"""Assertions decide whether a protocol is right, so they stay where Python removes them: ``-O`` and PYTHONOPTIMIZE."""

import ast
import dis
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from cxlemu.errors import ArgumentError
from cxlemu.files import read_file

SOURCE_BYTES_MAX = 1 << 24
_OURS = ("cxlemu", "collectives", "faults", "studies")
_STANDARD = Path(os.__file__).parent
_REWRITTEN = "@pytest_ar"  # a name in modules whose assertions pytest has turned into other statements


class AssertingLoader(SourceFileLoader):
    """Compiles a module with its assertions, without a cache: that may hold code without them."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the module's code."""
        path = self.get_filename(fullname)
        code: CodeType = compile(self.get_data(path), path, "exec", dont_inherit=True, optimize=0)
        return code


def is_users(name: str, path: str | None) -> bool:
    """Decide whether a module is a user's: neither ours, nor Python's, nor installed."""
    if path is None or name.partition(".")[0] in _OURS:
        return False
    file = Path(path)
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(file.parts)
    return not (is_installed or file.is_relative_to(_STANDARD))


class _Finder:
    """Finds our modules and those of users, not those that were installed: as they are many, they keep their caches."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return spec
        if name.partition(".")[0] in _OURS or is_users(name, spec.loader.path):
            spec.loader = AssertingLoader(spec.loader.name, spec.loader.path)
        return spec


def keep_asserts() -> None:
    """Keep the assertions of all modules of ours and of users that are imported from here on."""
    sys.meta_path.insert(0, _Finder)


def check_asserts(function: Any, name: str) -> None:
    """Check that Python has not removed the assertions of a user's function."""
    names: dict[str, Any] = getattr(function, "__globals__", {})
    if sys.flags.optimize and not isinstance(names.get("__loader__"), AssertingLoader) and _REWRITTEN not in names:
        raise ArgumentError(
            f"{name} cannot be judged: Python was started with -O or PYTHONOPTIMIZE, which removes its assertions; "
            "start it without these"
        )


def asserts(function: Any) -> bool:
    """Whether a user's function, or one of the user's that it names, asserts or raises anything."""
    if not isinstance(function, FunctionType):
        return True  # an object that is called: who knows
    raising = (
        each.opname == "RAISE_VARARGS" for _, code in users_codes(function) for each in dis.get_instructions(code)
    )
    return any(raising)


def judging_lines(function: Any) -> set[tuple[str, int]] | None:
    """Return file and number of each line of an assert, and of a function that has a raise; None: they are not known.

    They are those of the files of a user's function and of those that it names.
    """
    if not isinstance(function, FunctionType):
        return None
    judging = set()
    for file in {code.co_filename for _, code in users_codes(function)}:
        try:
            tree = ast.parse(read_file(Path(file), SOURCE_BYTES_MAX))
        except (OSError, SyntaxError):  # no file, or another one by now
            return None
        for node in ast.walk(tree):
            raises = isinstance(node, ast.FunctionDef) and any(isinstance(each, ast.Raise) for each in ast.walk(node))
            if isinstance(node, ast.stmt) and (raises or isinstance(node, ast.Assert)):
                judging |= {(file, line) for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return judging


def users_codes(function: FunctionType) -> Iterator[tuple[FunctionType, CodeType]]:
    """Yield a user's function with its code and each code in that, and so those of the user's that it names."""
    todo, seen = [function], list[FunctionType]()
    while todo:
        current = todo.pop()
        if current in seen or current.__module__.partition(".")[0] in _OURS:
            continue
        seen.append(current)
        for code in _codes(current.__code__):
            yield current, code
            todo += _named(current, code)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and that of the functions within it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _named(function: FunctionType, code: CodeType) -> Iterator[FunctionType]:
    """Yield the functions that a code names: global ones, those of modules, and those around it."""
    values = [function.__globals__.get(name) for name in code.co_names]
    values += [
        getattr(value, name, None) for value in values if isinstance(value, ModuleType) for name in code.co_names
    ]
    values += [cell.cell_contents for cell in function.__closure__ or ()]
    for value in values:
        if isinstance(value, type) and value.__module__.partition(".")[0] not in _OURS:
            values += vars(value).values()
    yield from (value for value in values if isinstance(value, FunctionType))
