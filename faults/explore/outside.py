"""Variables that a protocol's code reaches outside its generators: globals, closures, defaults, and attributes of
users' modules, classes and functions.

Real ranks are processes, but a search runs all ranks in one, again and again: a variable outside would carry values
from one rank to another, and from one execution to the next.
"""

import random
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from sys import modules
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from cxlemu.asserts import is_users
from faults.explore.frames import AS_THEY_ARE, PLAIN, NotComparableError, freeze

_NOTHING = object()  # no variable, or one that holds nothing
_DRAWING = random.random.__self__  # type: ignore[attr-defined]  # draws for all functions of the module
_CONSTANT = ("cxlemu", "collectives", "faults", "typing")  # packages whose objects carry no values of users


class Outside:
    """The variables outside a function's generators, as they are when this is made."""

    def __init__(self, function: Any) -> None:
        self._home: object = getattr(function, "__globals__", {}).get("__name__")
        self._variables: list[tuple[str, Callable[[], object], object]] = []  # name, how to read it, what it held
        self._contents: list[tuple[str, object, Hashable]] = []  # name of an object that may change, and its content
        self._drawn: object = None  # the state of the generator that `random` shares, where code reaches it
        self._seen: dict[Hashable, object] = {}
        self._functions: set[FunctionType] = set()
        self._follow("", function, frozenset())

    def changed(self) -> str:
        """Return the name of a variable that is no longer as it was; empty if all are."""
        for name, read, before in self._variables:
            if read() is not before:
                return name
        if self._drawn is not None and self._drawn != random.getstate():
            return "the state of random"
        return next((name for name, value, before in self._contents if _content(value) != before), "")

    def _follow(self, name: str, value: Any, names: frozenset[str]) -> None:
        """Follow what code can reach through a value, by the ``names`` that the code has."""
        has_names = isinstance(value, FunctionType | ModuleType | type)
        if isinstance(value, PLAIN) or (key := (id(value), names if has_names else None)) in self._seen:
            return
        self._seen[key] = value
        if value is random or getattr(value, "__self__", None) is _DRAWING:
            self._drawn = random.getstate()
        elif isinstance(value, FunctionType):
            if self._is_users(value.__globals__.get("__name__")):
                self._keep_all(f"{value.__name__}.", vars(value), names)
                self._follow_function(value)
        elif isinstance(value, ModuleType):
            if self._is_users(value.__name__):
                self._keep_all(f"{name}.", vars(value), names)
        elif isinstance(value, type):
            for kind in value.__mro__:
                if self._is_users(kind.__module__):
                    own = {attribute for attribute in vars(kind) if not attribute.startswith("__")}
                    self._keep_all(f"{kind.__name__}.", vars(kind), names | own)
        elif isinstance(value, staticmethod | classmethod):
            self._follow(name, value.__func__, names)
        elif not isinstance(value, AS_THEY_ARE) and type(value).__module__.partition(".")[0] not in _CONSTANT:
            self._follow(name, type(value), names)
            if (content := _content(value)) is not _NOTHING:
                self._contents.append((name, value, content))

    def _follow_function(self, function: FunctionType) -> None:
        if function in self._functions:
            return
        self._functions.add(function)
        names = frozenset(_names(function.__code__))
        self._keep_all("", function.__globals__, names)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._keep(variable, partial(_in_cell, cell), names)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._follow(f"a default of {function.__name__}", default, names)

    def _keep_all(self, prefix: str, space: Any, names: frozenset[str]) -> None:
        for name in names:
            self._keep(prefix + name, partial(space.get, name, _NOTHING), names)

    def _keep(self, name: str, read: Callable[[], object], names: frozenset[str]) -> None:
        value = read()
        self._variables.append((name, read, value))
        if value is not _NOTHING:
            self._follow(name, value, names)

    def _is_users(self, module: object) -> bool:
        return module == self._home or is_users(str(module), getattr(modules.get(str(module)), "__file__", None))


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes that code has, and the functions in it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _in_cell(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _NOTHING


def _content(value: object) -> Hashable:
    try:
        return freeze(value)
    except NotComparableError:
        return _NOTHING
