"""The algorithms we ship, one page each: a module with a function of its name. They are found by their names."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from collectives.builder.recipes import recipes_of

__all__ = ["PUSHING", "SHIPPED"]

_NO_PAGES = {"catalog", "choose", "modelled", "slices"}
_NAMES = sorted(module.name for module in iter_modules(__path__) if not module.ispkg and module.name not in _NO_PAGES)
_PAGES: list[Any] = [getattr(import_module(f"{__name__}.{name}"), name) for name in _NAMES]

# Pushed are blocks of whole lines, of results that lie in the heap.
PUSHING = tuple(page for page in _PAGES if all(recipe.spec.pushes for recipe in recipes_of(page)))
SHIPPED = tuple(page for page in _PAGES if page not in PUSHING)
