"""What turns a function into an algorithm: a collective it computes, and the variants it comes in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from collectives.builder import ALL, STYLES, Builder, Style
from collectives.contracts import contract_of

Algorithm = Callable[[Builder], None]

_ATTRIBUTE = "cxlemu_recipes"
CHECKED = "+crc32c"  # ends the name of an algorithm whose doorbells carry checksums


@dataclass(frozen=True, slots=True)
class Recipe:
    """An algorithm in one style: what ``--variant`` names."""

    collective: str
    name: str
    algorithm: Algorithm
    style: Style
    source: str = ""  # FILE.py:function, for an algorithm that we do not ship


def algorithm(
    collective: str, *, variants: tuple[str, ...] | None = None, name: str = ""
) -> Callable[[Algorithm], Algorithm]:
    """Decorate a function that builds one rank's part with a Builder's words.

    By default it gives CCCL's variants naive, aggregate and all, and line and zero_copy. With ``name`` it is a variant
    of that name, interleaved, chunked and overlapped, and besides the ``variants`` that are asked for. Raises
    ArgumentError for a collective that does not exist.
    """
    contract_of(collective)
    named = (replace(ALL, name=name),) if name else ()
    asked = variants if variants is not None else () if name else tuple(STYLES)
    styles = (*named, *(STYLES[variant] for variant in asked))

    def decorate(function: Algorithm) -> Algorithm:
        recipes = tuple(Recipe(collective, style.name, function, style) for style in styles)
        setattr(function, _ATTRIBUTE, recipes)
        return function

    return decorate


def with_checksums(recipe: Recipe) -> Recipe:
    """The same algorithm, on links that may lose what is written. Payload in a doorbell's line needs no checksum."""
    if recipe.style.line:
        return recipe
    return replace(recipe, name=recipe.name + CHECKED, style=replace(recipe.style, checked=True))


def recipes_of(function: object) -> tuple[Recipe, ...]:
    """The recipes of a decorated function; none for any other object."""
    found: tuple[Recipe, ...] = getattr(function, _ATTRIBUTE, ())
    return found
