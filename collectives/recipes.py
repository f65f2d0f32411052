"""What turns a function into an algorithm: a collective it computes, and the variants it comes in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from collectives.builder import ALL, HIERARCHICAL, STYLES, Builder, Style
from collectives.contracts import contract_of
from cxlemu.errors import ArgumentError

Algorithm = Callable[[Builder], None]
AnyBuilder = TypeVar("AnyBuilder", bound=Builder)

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
    collective: str, *, variants: tuple[str, ...] | None = None, name: str = "", levels: bool = False
) -> Callable[[Callable[[AnyBuilder], None]], Callable[[AnyBuilder], None]]:
    """Decorate a function that builds one rank's part with a Builder's words.

    By default it gives CCCL's variants naive, aggregate and all, and line and zero_copy. With ``name`` it is a variant
    of that name, interleaved, chunked and overlapped, and besides the ``variants`` that are asked for. With ``levels``
    it is the variant "hierarchical" alone, and written for a builder of two levels. Raises ArgumentError for a
    collective that does not exist.
    """
    contract_of(collective)
    named = (HIERARCHICAL,) if levels else (replace(ALL, name=name),) if name else ()
    asked = variants if variants is not None else () if named else tuple(STYLES)
    styles = (*named, *(STYLES[variant] for variant in asked))

    def decorate(function: Callable[[AnyBuilder], None]) -> Callable[[AnyBuilder], None]:
        recipes = tuple(Recipe(collective, style.name, cast(Algorithm, function), style) for style in styles)
        setattr(function, _ATTRIBUTE, recipes)
        return function

    return decorate


def with_checksums(recipe: Recipe) -> Recipe:
    """The same algorithm, on links that may lose what is written. Payload in a doorbell's line needs no checksum.

    Raises ArgumentError for algorithms on two levels, which pass on what they have not compared.
    """
    if recipe.style.line:
        return recipe
    if recipe.style.levels:
        raise ArgumentError(f"{recipe.name} carries no checksums: take another variant where links may lose writes")
    return replace(recipe, name=recipe.name + CHECKED, style=replace(recipe.style, checked=True))


def recipes_of(function: object) -> tuple[Recipe, ...]:
    """The recipes of a decorated function; none for any other object."""
    found: tuple[Recipe, ...] = getattr(function, _ATTRIBUTE, ())
    return found
