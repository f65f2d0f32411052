"""Packages whose names are imported when they are asked for, so that commands which need none of them start at once."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


def imported_when_asked_for(package: str, /, **modules: "Sequence[str]") -> "Callable[[str], Any]":
    """Make the ``__getattr__`` of a package that offers names of its modules."""
    homes = {name: f"{package}.{module.replace('__', '.')}" for module, names in modules.items() for name in names}

    def find(name: str) -> "Any":
        if name in homes:
            from importlib import import_module

            return getattr(import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
