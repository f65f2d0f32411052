"""Recipes turn a function into an algorithm: the collective that it computes, and the variants that it comes in."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar, cast

from collectives.builder.part import ALL, VARIANTS, VariantSpec
from collectives.builder.words import Builder
from collectives.contracts import contract_of
from cxlemu.errors import ArgumentError, BuilderError
from cxlemu.plan import FOLD_ORDERS, RANK_ORDER, Call, Plan
from cxlemu.suggest import unknown
from cxlemu.userfile import LOAD_S, limited, told

Algorithm = Callable[[Builder], None]
AnyBuilder = TypeVar("AnyBuilder", bound=Builder)

_ATTRIBUTE = "cxlemu_recipes"
CHECKED = "+crc32c"  # ends the name of an algorithm whose doorbells carry checksums
IN_LINES = "--integrity: the line variant carries its payload where a checksum would be, and needs none"


class Publishes(NamedTuple):
    blocks: int  # how many blocks of the call's size
    bells: int = 0  # how many bells they are published under; 0: a doorbell for each block
    # how many slices a chunk of a block has, each of whole lines; those beyond a short chunk's end are empty
    slices: int = 1

    @property
    def doorbells(self) -> int:
        return self.bells or self.blocks


@dataclass(frozen=True, slots=True)
class Recipe:
    """An algorithm in one style, which ``--variant`` names; or a saved plan, which serves one call only."""

    collective: str
    name: str
    algorithm: Algorithm  # the function, which takes a builder
    spec: VariantSpec  # how the builder makes instructions of its words
    fold_order: str = RANK_ORDER  # how a reduction combines contributions, "rank" or "uniform"
    named: bool = False  # by @algorithm(name=...), not after its style or its function
    source: str = ""  # FILE.py:function or FILE.plan for an algorithm that we do not ship, else ""
    plan: Plan | None = None  # the saved one, of a file
    builder: type[Builder] = Builder  # the class of builder whose words the algorithm is written in
    # of the number of ranks: what a rank publishes in a round; None: as many blocks as its collective's input has
    publishes: Callable[[int], Publishes] | None = None

    @property
    def carries_checksums(self) -> bool:
        """Whether every doorbell stands for one block that a checksum can cover.

        Bells stand for several parts, and one doorbell of those who write to peers' results for none.
        """
        published = self.published(2)
        bells = published is not None and published.bells > 0
        return self.builder.carries_checksums and not bells and not self.spec.pushes

    def published(self, ranks: int) -> Publishes | None:
        """What a rank publishes in a round, None where it is not declared. Raises BuilderError where a user's says no
        such thing."""
        if self.publishes is None or not self.source:
            return self.publishes and self.publishes(ranks)
        try:
            with limited(LOAD_S):
                numbers = Publishes(*self.publishes(ranks))
            if all(type(number) is int and number >= least for number, least in zip(numbers, (1, 0, 1), strict=True)):
                return numbers
            what = f"is {numbers}: a count of blocks is 1 or more, of bells 0 or more, of slices 1 or more"
        except Exception as error:
            what = f"fails with {told(error)}"
        raise BuilderError(f"{self.source}: publishes({ranks}) {what}")

    def makes(self, call: Call) -> bool:
        """Whether the call names this recipe; a saved plan serves only the call that it was made for."""
        if self.plan is not None:
            return replace(call, fold_order=self.fold_order) == self.plan.call
        return (self.collective, self.name) == (call.collective, call.algorithm)


def algorithm(
    collective: str,
    *,
    variants: tuple[str | VariantSpec, ...] | None = None,
    name: str = "",
    builder: type[Builder] | None = None,
    fold_order: str = RANK_ORDER,
    publishes: Callable[[int], Publishes] | None = None,
) -> Callable[[Callable[[AnyBuilder], None]], Callable[[AnyBuilder], None]]:
    """Decorate a function that builds one rank's part of a plan with a Builder's words.

    By default the function has CCCL's variants naive, aggregate and all, line and zero_copy and, if it folds, staged.
    With ``name`` it is one variant of that name, interleaved, chunked and overlapped, and also has the ``variants``
    given. ``builder`` is the class whose words the function uses, by default Builder; a builder with words of its own
    needs a ``name``, or named ``variants``.

    ``fold_order`` declares how a reduction combines contributions: "rank", from the left in rank order, so that the
    result has the same bits as with every other algorithm; or "uniform", in an order or tree of its own that is the
    same on every rank that holds the result. Provers and checkers hold the algorithm to it.

    ``publishes`` declares what a rank publishes, given the number of ranks, if that is more than its input or is
    announced by bells: modelled rings make room for it.

    Args:
        collective: The collective that the function computes.
        variants: Its variants: names in `collectives.builder.VARIANTS`, or specs with names of their own.
        name: The name of its own variant.
        builder: The class of builder that the function takes.
        fold_order: "rank" or "uniform".
        publishes: Takes the number of ranks, and returns the blocks that a rank publishes in a round.

    Returns:
        A decorator that returns the function itself, which is then an algorithm.

    Raises:
        ArgumentError: Unknown collective or order.
    """
    reduces = contract_of(collective).reduces
    if fold_order not in FOLD_ORDERS:
        raise ArgumentError(unknown("fold order", fold_order, FOLD_ORDERS))
    named = (replace(ALL, name=name),) if name else (ALL,) if builder is not None and variants is None else ()
    everything = tuple(spec for spec in VARIANTS.values() if reduces or not spec.staged)
    asked = variants if variants is not None else () if named else everything
    specs = (*named, *(VARIANTS[variant] if isinstance(variant, str) else variant for variant in asked))

    def decorate(function: Callable[[AnyBuilder], None]) -> Callable[[AnyBuilder], None]:
        recipes = tuple(
            Recipe(
                collective,
                spec.name,
                cast(Algorithm, function),
                spec,
                fold_order,
                named=spec.name == name,
                builder=builder or Builder,
                publishes=publishes,
            )
            for spec in specs
        )
        setattr(function, _ATTRIBUTE, recipes)
        return function

    return decorate


def with_checksums(recipe: Recipe) -> Recipe:
    """Make the recipe of the same algorithm with checksums, for links that may drop writes.

    Payload in a doorbell's line needs no checksum: such a recipe is returned as it is.
    """
    if recipe.plan is not None:
        raise ArgumentError(f"{recipe.source} is a saved plan, which cannot get checksums")
    if recipe.spec.in_lines:
        return recipe
    if not recipe.carries_checksums:
        raise ArgumentError(f"{recipe.name} carries no checksums: take another variant where links may lose writes")
    return replace(recipe, name=recipe.name + CHECKED, spec=replace(recipe.spec, checked=True))


def recipes_of(function: object) -> tuple[Recipe, ...]:
    recipes: tuple[Recipe, ...] = getattr(function, _ATTRIBUTE, ())
    return recipes
