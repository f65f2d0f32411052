"""The tests, in the rooms of what they test.

A rank that is a process imports its program's module, and with it would pytest, which loads longer than all the rest:
there marks and fixtures are nothing, `raises` is of a few lines, and pytest is imported for what else a program calls.
"""

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any


class _Nothing:
    """A mark, a fixture or a type, and what is made of it; a decorator that leaves a function as it is."""

    def __getattr__(self, name: str) -> "_Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *given: Any, **named: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) else self

    def __or__(self, other: object) -> "_Nothing":
        return self

    __ror__ = __getitem__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _Raises:
    value: BaseException

    def __init__(self, kinds: type[BaseException] | tuple[type[BaseException], ...], match: str = "") -> None:
        self._kinds, self._match = kinds, match

    def __enter__(self) -> "_Raises":
        return self

    def __exit__(self, _kind: object, value: BaseException | None, _trace: object) -> bool:
        assert value is not None, f"did not raise {self._kinds}"
        if not isinstance(value, self._kinds):
            return False
        assert re.search(self._match, str(value)), f"{value} does not match {self._match}"
        self.value = value
        return True


class _Pytest(ModuleType):
    """Stands in for pytest where no test is collected."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "raises":
            return _Raises
        if name in ("mark", "param", "fixture") or name[0].isupper():
            return _Nothing()
        if sys.modules["pytest"] is self:
            del sys.modules["pytest"]
        return getattr(import_module("pytest"), name)


if "--multiprocessing-fork" in sys.orig_argv and "pytest" not in sys.modules:
    sys.modules["pytest"] = _Pytest("pytest")
