"""What `auto` takes on a modelled fabric: which variant, and in how many chunks, by the cost of copies there.

A copy of this machine's memory starts at once, so that there a call is cut into chunks from 16 KiB on (choose.py). A
modelled fabric's copies take microseconds to start, in which as much moves as `Copies.start_bytes` says: a chunk has to
be worth that. Every figure here comes from ``python -m studies.benchmarks.textbook``, which shows where it is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from collectives.builder import ALL
from cxlemu.topology import Space, Topology
from cxlemu.units import format_bytes

LINES_MAX = 3  # doorbells that carry a block at once: with more of them one copy is faster
LINES_MAX_OF = {"all_to_all": 2}  # where in pairs one copy is faster still
TREE_MIN_RANKS = 4


@dataclass(frozen=True, slots=True)
class Copies:
    """What copies of one rank to and from a modelled memory cost."""

    start_bytes: float  # as many as move in the time that starting a copy, and saying that it is there, takes
    cards_keep_up: bool  # the cards carry what all ranks can move at once

    @classmethod
    def of(cls, topology: Topology, ranks: int, space: Space) -> Copies:
        """Derive the costs from the slowest link or copy rate on the way from host 0 to a space's last card.

        Args:
            topology: The fabric.
            ranks: The number of ranks that copy at once.
            space: The memory.
        """
        costs, cards = space.costs or topology.costs, topology.cards_of(space)
        route = topology.fabric().route(0, cards[-1])
        rates = [] if route is None else [link.gbytes_per_s for link in route.links]
        rates += [rate for rate in (costs.to_pool_gbytes_per_s, costs.from_pool_gbytes_per_s) if rate is not None]
        total = sum(topology.card(card).total_gbytes_per_s for card in cards)
        rate = min(rates, default=total)
        start_ns = (costs.copy_ns or 0) + (costs.doorbell_ring_ns or 0)
        return cls(start_ns * rate, total >= ranks * rate)

    def chunks(self, nbytes: float, in_turn: float) -> int:
        """Into how many chunks to cut a piece.

        C chunks cost in_turn * C starts, and hide all but 1 / C of the piece: least where C is the square root of how
        many starts the piece is worth, shared by those in turn.

        Args:
            nbytes: The size of the piece.
            in_turn: How many such pieces a rank copies one after another.

        Returns:
            From 1 to the chunks of `collectives.builder.ALL`.
        """
        if not self.start_bytes:
            return ALL.chunks
        return max(1, min(ALL.chunks, round(math.sqrt(nbytes / (self.start_bytes * in_turn)))))


class Asked(NamedTuple):
    """A call that `auto` chooses for. ``nbytes`` is the size of one block."""

    nbytes: int
    ranks: int
    integers: bool  # which may be folded in any order
    copies: Copies

    @property
    def starts(self) -> float:
        """What a block is worth, in starts of copies."""
        return self.nbytes / max(self.copies.start_bytes, 1.0)

    @property
    def tree(self) -> bool:
        """Whether a tree may fold the vectors, and is worth it."""
        return self.integers and self.ranks >= TREE_MIN_RANKS

    @property
    def doubles(self) -> bool:
        """Whether recursive doubling is worth it: small vectors only."""
        return self.tree and self.starts < (4 if self.copies.cards_keep_up else 2)

    @property
    def halves(self) -> bool:
        """Whether recursive halving is worth it, for integers on a power of two of ranks.

        Large vectors are halved only on cards that no rank waits for.
        """
        most, least = (math.inf, 4 if self.ranks >= TREE_MIN_RANKS else 128) if self.copies.cards_keep_up else (4, 2)
        return self.integers and self.ranks & (self.ranks - 1) == 0 and least <= self.starts < most


class VariantRule(NamedTuple):
    """A variant, when it is the fastest, and how many pieces of which size a rank copies in turn."""

    variant: str
    when: Callable[[Asked], bool]
    why: str
    in_turn: Callable[[int], float] = lambda ranks: 1.0
    pieces: Callable[[int], int] = lambda ranks: 1  # of a block


# The first one whose time has come; what no line takes is cut as PLAIN says.
TAKEN: dict[str, tuple[VariantRule, ...]] = {
    "all_reduce": (
        VariantRule(
            "doubling",
            lambda its: its.doubles,
            "log2(N) vectors are read, not N - 1",
            in_turn=lambda ranks: 0.5,
        ),
        VariantRule(
            "rabenseifner",
            lambda its: its.halves,
            "halves are folded and exchanged, in 2 log2(N) copies",
            in_turn=lambda ranks: 4.0,
        ),
        VariantRule(
            "two_shot",
            lambda its: its.starts * (its.ranks - 2) > its.ranks - 1,
            "reading 2(N-1)/N instead of N-1 vectors pays for a second step",
            pieces=lambda ranks: ranks,
        ),
    ),
    "reduce": (
        VariantRule(
            "binomial",
            lambda its: its.tree,
            "a tree folds them, not the root alone",
        ),
    ),
    "all_to_all": (
        VariantRule(
            "pairwise",
            lambda its: its.ranks >= 4 and its.starts * (3 if its.copies.cards_keep_up else 16) <= its.ranks**2,
            "a block's reader waits for no other block",
            in_turn=lambda ranks: math.inf,  # never cut
        ),
    ),
    "reduce_scatter": (
        VariantRule(
            "pool_ring",
            lambda its: its.tree and its.starts >= 1,
            "every rank reads from one neighbour alone",
        ),
    ),
}


def _all_others(ranks: int) -> float:
    return max(1.0, ranks - 1.0)


def _one(ranks: int) -> float:
    return 1.0


# How many blocks a rank of the plain algorithm copies in turn; one where it is not said.
PLAIN: dict[str, Callable[[int], float]] = dict.fromkeys(
    ("all_gather", "all_reduce", "gather", "reduce", "scatter"), _all_others
)


def lines_max(collective: str, asked: Asked) -> int:
    """How many doorbell lines a block may take at most, for `auto` to send it in them.

    In doorbell lines every rank, or the root, looks at N - 1 others: a tree of copies soon has fewer looks.

    Args:
        collective: The collective's name.
        asked: The call.
    """
    if asked.tree and collective in ("all_reduce", "reduce") and asked.ranks >= 8:
        return 2 if asked.ranks < 16 else 0
    return LINES_MAX_OF.get(collective, LINES_MAX)


def modelled(collective: str, asked: Asked) -> tuple[str, str]:
    """Choose the variant for blocks that fit no doorbell lines.

    Args:
        collective: The collective's name.
        asked: The call.

    Returns:
        The variant, and why.
    """
    what = f"{format_bytes(asked.nbytes)} on {asked.ranks} ranks"
    for its in TAKEN.get(collective, ()):
        if its.when(asked):
            chunks = asked.copies.chunks(asked.nbytes / its.pieces(asked.ranks), its.in_turn(asked.ranks))
            return _cut(its.variant, chunks), f"{what}: {its.why}; {_worth(chunks)}"
    chunks = asked.copies.chunks(asked.nbytes, PLAIN.get(collective, _one)(asked.ranks))
    return _cut(ALL.name, chunks), f"{what}: {_worth(chunks)}"


def _cut(variant: str, chunks: int) -> str:
    return variant if chunks == ALL.chunks else f"{variant}-{chunks}"


def _worth(chunks: int) -> str:
    return "one chunk, as starting a copy costs more" if chunks == 1 else f"worth {chunks} chunks"
