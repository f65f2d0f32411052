"""What was asked for by name and not done: a sentence for each reason, and the names with which nothing was done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

from collectives import fused
from collectives.algorithms import catalog
from collectives.contracts import COLLECTIVES
from cxlemu.errors import ArgumentError
from cxlemu.topology.clusters import cluster_sizes
from cxlemu.units import format_numbers

Name = str | int  # an int is a number of ranks
NO_CLUSTERS = "these ranks do not make two clusters of two or more"


class NotDone(NamedTuple):
    """What of a product of names was not done."""

    sentences: Sequence[str] = ()
    nowhere: str = ""  # that nothing was judged with some of the names; empty: something was with each

    @property
    def lines(self) -> list[str]:
        """All sentences."""
        return [*self.sentences, *[self.nowhere] * bool(self.nowhere)]

    @property
    def data(self) -> dict[str, Any]:
        """What JSON says of it: nothing where nothing was left out."""
        return {"left_out": [*self.sentences]} if self.sentences else {}


NOTHING = NotDone()


def together(*its: NotDone) -> NotDone:
    """Add up what several products of names leave out."""
    sentences = [sentence for one in its for sentence in one.sentences]
    return NotDone(sentences, "; ".join(one.nowhere for one in its if one.nowhere))


def left_out(
    named: Sequence[Sequence[Name] | None], done: Iterable[Sequence[Name]], why: Callable[..., str]
) -> NotDone:
    """Compare the product of the names with what was done; ``why`` gets one of each that is not.

    Each of ``done`` has a name for each list of ``named``; None in place of a list: nobody named these.
    """
    lists = [names for names in named if names is not None]
    there = {tuple(name for name, names in zip(one, named, strict=True) if names is not None) for one in done}
    reasons: dict[str, list[tuple[Name, ...]]] = {}
    for combination in product(*lists) if lists else ():
        if combination not in there:
            its = iter(combination)
            reasons.setdefault(why(*(None if names is None else next(its) for names in named)), []).append(combination)
    nowhere = [name for at, names in enumerate(lists) for name in names if all(one[at] != name for one in there)]
    sentences = [f"left out: {_words(combinations)}: {reason}" for reason, combinations in reasons.items()]
    return NotDone(sentences, f"nothing was judged with {_words([(n,) for n in nowhere])}" if nowhere else "")


def _words(combinations: Collection[tuple[Name, ...]]) -> str:
    """Write combinations, each text with all of its numbers: ``all line at n = 2-4; naive at n = 3``."""
    numbers: dict[str, list[int]] = {}
    for one in combinations:
        text = " ".join(name for name in one if isinstance(name, str))
        numbers.setdefault(text, []).extend(name for name in one if isinstance(name, int))
    each = (" at ".join([text] * bool(text) + [f"n = {format_numbers(of)}"] * bool(of)) for text, of in numbers.items())
    return "; ".join(each)


def of_plans(collective: str | None, variant: str | None, ranks: int | None, *, checked: bool = False) -> str:
    """Say why there is no plan of a collective in a variant with a number of ranks; None: whichever there are.

    ``checked``: with checksums.
    """
    names = COLLECTIVES if collective is None else (collective,)
    having = [name for name in names if variant is None or has(name, variant)]
    if not having:
        return "there is no such variant of it"
    if ranks is not None and variant is not None and not cluster_sizes(ranks) and on_levels(having[0], variant):
        return NO_CLUSTERS
    return "it carries no checksums" if checked else "there is nothing to do"


def has(collective: str, variant: str) -> bool:
    """Whether a collective has a variant, or a product a style."""
    if collective in fused.KINDS:
        return variant in fused.STYLES
    try:
        catalog.recipe(collective, variant)
    except ArgumentError:
        return False
    return True


def on_levels(collective: str, variant: str) -> bool:
    """Whether a variant is of ranks in clusters."""
    return collective not in fused.KINDS and catalog.recipe(collective, variant).builder.takes_clusters


def without_clusters(collectives: Iterable[str], ranks: Iterable[int]) -> list[str]:
    """Count the variants, of which nobody named one, that numbers of ranks leave out: a sentence, or none."""
    alone = [count for count in ranks if not cluster_sizes(count)]
    plain = [name for name in collectives if name in COLLECTIVES]
    why = f"n = {format_numbers(alone)}: no two clusters of two or more"
    return catalog.on_levels_left_out(plain, why) if alone else []
