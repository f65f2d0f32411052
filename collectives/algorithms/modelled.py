"""What `auto` takes on a modelled fabric: which variant, and in how many chunks, by the cost of copies there.

A copy of this machine's memory starts at once, so that there a call is cut into chunks from 16 KiB on (choose.py). A
modelled fabric's copies take microseconds to start, in which as much moves as `Copies.start_bytes` says: a chunk has to
be worth that. The figures come from ``python -m studies.benchmarks.textbook``, which shows where they are wrong; those
of batches, also crosswise, from all shipped topologies, for 2 to 64 ranks and 4 KiB to 64 MiB.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from collectives.builder import ALL, STAGED, VariantSpec
from cxlemu.units import counted, format_bytes

if TYPE_CHECKING:
    from cxlemu.topology import Space, Topology

LINES_MAX = 3  # doorbells that carry a block at once: with more of them one copy is faster
LINES_MAX_OF = {"all_to_all": 2, "reduce_scatter": 2}  # where in pairs one copy is faster still
TREE_MIN_RANKS = 4
BATCHED_MIN_RANKS = 4
MANY_RANKS = 8  # from which on copies in batches save enough starts that other costs hardly matter
LINES_MAX_BESIDE_BATCHES = {4: 2, **dict.fromkeys(range(5, 10), 1)}  # by ranks: of more than nine, batches are faster
CROWDED_LITTLE = 0.03  # on a fabric that carries many times what ranks copy, as NVLink does
HALVED_STARTS = 1 << 14  # of a vector on all ranks, above which direct reads, in more copies, are as fast


@dataclass(frozen=True, slots=True)
class Copies:
    """What copies of one rank to and from a modelled memory cost."""

    # as many as move while a copy starts and its end is said; where both are free, while a byte is on its way to a card
    start_bytes: float
    crowding: float  # what all ranks copy at once, by what the cards carry; above 1 a copy takes as much longer

    @property
    def cards_keep_up(self) -> bool:
        """Whether the cards carry what all ranks can move at once."""
        return self.crowding <= 1

    @classmethod
    def of(cls, topology: Topology, ranks: int, space: Space) -> Copies:
        """Derive the costs from the slowest link or copy rate on the way from host 0 to a space's last card."""
        costs, cards = space.costs or topology.costs, topology.cards_of(space)
        route = topology.fabric().route(0, cards[-1])
        rates = [] if route is None else [link.payload_gbytes_per_s for link in route.links]
        rates += [rate for rate in (costs.to_pool_gbytes_per_s, costs.from_pool_gbytes_per_s) if rate is not None]
        total = topology.carried_gbytes_per_s(cards)
        rate = min(rates, default=total)
        start_ns = (costs.copy_ns or 0) + (costs.doorbell_ring_ns or 0) or (route.latency_ns if route else 0)
        return cls(start_ns * rate, ranks * rate / total)

    def chunks(self, nbytes: float, in_turn: float, most: int = ALL.chunks) -> int:
        """Into how many chunks, ``most`` at most, to cut a piece of which a rank copies ``in_turn`` one after another.

        C chunks cost in_turn * C starts, and hide all but 1 / C of the piece: least where C is the square root of how
        many starts the piece is worth, shared by those in turn.
        """
        if not self.start_bytes:
            return most
        return max(1, min(most, round(math.sqrt(nbytes / (self.start_bytes * in_turn)))))


class Asked(NamedTuple):
    """A call that `auto` chooses for. ``nbytes`` is the size of one block."""

    nbytes: int
    ranks: int
    integers: bool  # which may be folded in any order
    copies: Copies

    @property
    def starts(self) -> float:
        return self.nbytes / max(self.copies.start_bytes, 1.0)

    @property
    def tree(self) -> bool:
        """Whether a tree may fold the vectors, and is worth it."""
        return self.integers and self.ranks >= TREE_MIN_RANKS

    @property
    def batches(self) -> bool:
        """Whether blocks of many ranks in one copy may be worth it: copies take time to start."""
        return self.ranks >= BATCHED_MIN_RANKS and self.copies.start_bytes > 0

    @property
    def doubles(self) -> bool:
        """Whether recursive doubling is worth it: small vectors only."""
        return self.tree and self.starts < (4 if self.copies.cards_keep_up else 2)

    @property
    def halves(self) -> bool:
        """Whether recursive halving is worth it, for integers on a power of two of ranks.

        Large vectors are halved only on cards that no rank waits for.
        """
        most, least = (4.0, 2.0)
        if self.copies.cards_keep_up:
            most, least = HALVED_STARTS / self.ranks, 4 if self.ranks >= TREE_MIN_RANKS else 128
        return self.integers and self.ranks & (self.ranks - 1) == 0 and least <= self.starts < most


def _one(ranks: int) -> float:
    return 1.0


class VariantRule(NamedTuple):
    """A variant, when it is the fastest, and how many pieces of which size a rank copies in turn."""

    variant: str
    when: Callable[[Asked], bool]
    why: str
    in_turn: Callable[[int], float] = _one
    pieces: Callable[[int], int] = lambda ranks: 1  # of a block
    most: int = ALL.chunks  # chunks that the variant is cut into unless fewer are asked for
    parts: tuple[str, str] = ("chunk", "chunks")  # what it is cut into


def _all_others(ranks: int) -> float:
    return max(1.0, ranks - 1.0)


def _batched(when: Callable[[Asked], bool], why: str, variant: str = "batched", most: int = ALL.chunks) -> VariantRule:
    """Blocks of many ranks in one copy, never cut into chunks: that would be as many copies again."""
    return VariantRule(
        variant, lambda case: case.batches and when(case), why, in_turn=lambda ranks: math.inf, most=most
    )


def _two_shot_batched(when: Callable[[Asked], bool], why: str) -> VariantRule:
    return _batched(when, why, "two_shot_batched", STAGED.chunks)


def _two_shot_staged(when: Callable[[Asked], bool], why: str) -> VariantRule:
    return VariantRule("two_shot_staged", when, why, _all_others, pieces=lambda ranks: ranks, most=STAGED.chunks)


def _crosswise(when: Callable[[Asked], bool], why: str, variant: str, in_turn: Callable[[int], float]) -> VariantRule:
    """Blocks of many ranks in one copy, on the writer's side as well; cut into batches of ranks, of two starts each."""
    return VariantRule(
        variant,
        lambda case: case.batches and when(case),
        why,
        in_turn,
        most=STAGED.chunks,
        parts=("batch", "batches of ranks"),
    )


def _two_batches(ranks: int) -> float:
    return 2.0


def _two_batches_of_blocks(ranks: int) -> float:
    return 2.0 / max(1, ranks - 1)


def _exchanged_crosswise(case: Asked) -> bool:
    """Up to where a copy for each peer is worth its start.

    Reads of a few peers, in the order in which they publish, wait for less than pairs of batches do.
    """
    most, shared = (2.8, 48.0) if case.copies.cards_keep_up else (0.6, 20.0)
    crowded = case.copies.crowding > 0.5
    if case.ranks < MANY_RANKS:
        most = min(most, 0.45 if crowded else {4: 2.0, 5: 1.5}.get(case.ranks, 1.25))
    return case.starts < min(most, shared / case.ranks, 1.3 if crowded else most)


def _folded_crosswise(case: Asked) -> bool:
    """Nearly always: two shots in so few copies that neither one shot nor a tree has fewer, on six ranks and more."""
    least = 1.0 if case.ranks < 6 else 0.25 if case.tree and case.ranks <= MANY_RANKS else 0.0
    most = case.ranks / 2 if not case.copies.cards_keep_up else max(16, case.ranks) if case.ranks >= MANY_RANKS else 6
    return case.ranks > BATCHED_MIN_RANKS and least <= case.starts < most


def _two_shots_pay(case: Asked) -> bool:
    return case.starts * max(1.0, case.copies.crowding / 2) * (case.ranks - 2) > case.ranks - 1


def _all_reduced_in_batches(case: Asked) -> bool:
    """Above a start; below, one shot has fewer. Large slices are worth chunks, which batches are not cut into."""
    enough = case.starts >= 1 if case.ranks >= MANY_RANKS else _two_shots_pay(case)
    few, many = (12, min(8 * case.ranks, max(128, 4 * case.ranks))) if case.copies.cards_keep_up else (4, 16)
    most = few if case.ranks < MANY_RANKS else many
    in_tree = case.doubles or (case.halves and not 1.25 * case.ranks <= case.starts < 64)
    return enough and case.starts < most and not in_tree


def _reduced_in_batches(case: Asked) -> bool:
    """The same, but that a tree's root folds log2(N) whole vectors, and so the root's copies are fewer for longer."""
    least = max(4, case.ranks / 4) if case.tree else 1 if case.ranks >= MANY_RANKS else 2
    return least <= case.starts < (32 if case.ranks < MANY_RANKS else 16 * case.ranks)


def _reduced_apart(case: Asked) -> bool:
    """Large vectors, in chunks that are worth a start for each rank: the root reads one of them, not nearly two.

    Of three ranks the root does not read much more than the others when it folds, too.
    """
    least = max(300 if case.copies.crowding < CROWDED_LITTLE else 120, 16 * case.ranks)
    most = 1500 if case.ranks == 3 else math.inf
    return case.ranks > 2 and case.copies.start_bytes > 0 and least <= case.starts < most


FOLDED = _crosswise(
    _folded_crosswise,
    "every rank folds a slice, and slices of many ranks are written and read in one copy",
    "two_shot_crosswise",
    _two_batches,
)
EXCHANGED = _crosswise(
    _exchanged_crosswise,
    "blocks of many ranks are written and read in one copy",
    "crosswise",
    _two_batches_of_blocks,
)

# The first one whose time has come; what no line takes is cut as PLAIN says.
TAKEN: dict[str, tuple[VariantRule, ...]] = {
    "all_gather": (
        _batched(
            lambda case: case.starts < (2.6 if case.copies.cards_keep_up else 1),
            "every rank reads blocks of many ranks in one copy",
        ),
    ),
    "gather": (
        _batched(
            lambda case: case.starts < (16 if case.ranks < MANY_RANKS else 40),
            "the root reads blocks of many ranks in one copy",
        ),
    ),
    "all_reduce": (
        FOLDED,
        _two_shot_batched(_all_reduced_in_batches, "every rank folds a slice, and reads those of many in one copy"),
        VariantRule(
            "doubling",
            lambda case: case.doubles,
            "log2(N) vectors are read, not N - 1",
            in_turn=lambda ranks: 0.5,
        ),
        VariantRule(
            "rabenseifner",
            lambda case: case.halves,
            "halves are folded and exchanged, in 2 log2(N) copies",
            in_turn=lambda ranks: 3.0,
        ),
        _two_shot_staged(
            _two_shots_pay,
            "reading 2(N-1)/N instead of N-1 vectors pays for a second step",
        ),
    ),
    "reduce": (
        VariantRule(
            "two_shot_apart",
            _reduced_apart,
            "every rank but the root folds a slice, and the root reads them meanwhile",
            in_turn=lambda ranks: (ranks - 1) / 2,
            most=STAGED.chunks,
        ),
        FOLDED,
        _two_shot_batched(
            _reduced_in_batches, "every rank folds a slice, and the root reads those of many in one copy"
        ),
        VariantRule(
            "binomial",
            lambda its: its.tree and its.starts < 1.5 * its.ranks,
            "a tree folds them, not the root alone",
        ),
        _two_shot_staged(
            lambda case: (
                case.starts * (case.ranks - 2) > 1.35 * (case.ranks - 1)
                and (case.ranks > 3 or case.copies.cards_keep_up)
            ),
            "every rank folds a slice, not the root alone",
        ),
    ),
    "reduce_scatter": (EXCHANGED,),
    "all_to_all": (
        EXCHANGED,
        VariantRule(
            "staggered",
            lambda case: case.ranks > 2 and case.copies.start_bytes > 0,
            "blocks are read in the order in which they are published",
            in_turn=_all_others,
        ),
        VariantRule(
            "pairwise",
            lambda its: its.ranks >= 4 and its.starts * (3 if its.copies.cards_keep_up else 16) <= its.ranks**2,
            "a block's reader waits for no other block",
            in_turn=lambda ranks: math.inf,  # never cut
        ),
    ),
    "scatter": (
        _batched(
            lambda case: case.starts < (12 if case.ranks >= 24 else 2.6),
            "the root writes blocks of many ranks in one copy",
        ),
    ),
}

BATCHED = frozenset(collective for collective, rules in TAKEN.items() if rules[0].variant in ("batched", "crosswise"))


class PlainRule(NamedTuple):
    """What is left: how the plain algorithm copies, and how many blocks a rank of it copies in turn."""

    spec: VariantSpec = ALL
    in_turn: Callable[[int], float] = _one


# Those that fold on every rank read staggered: in rank order all would read from the same cards at the same time.
PLAIN: dict[str, PlainRule] = {
    "all_reduce": PlainRule(STAGED, _all_others),
    "reduce_scatter": PlainRule(STAGED, _all_others),
    **dict.fromkeys(("all_gather", "gather", "reduce", "scatter"), PlainRule(in_turn=_all_others)),
}


def candidates(collective: str) -> list[str]:
    """List what the model may price for `auto`: one copy, doorbell lines, and what rules take in one or two chunks."""
    plain = PLAIN.get(collective, PlainRule()).spec.name
    names = dict.fromkeys((*(rule.variant for rule in TAKEN.get(collective, ())), plain))
    return ["line", "naive", *(f"{name}-{chunks}" for name in names for chunks in (1, 2))]


def lines_max(collective: str, asked: Asked) -> int:
    """How many doorbell lines a block may take at most, for `auto` to send it in them.

    In doorbell lines every rank, or the root, looks at N - 1 others: a tree of copies soon has fewer looks.
    """
    folds = collective in ("all_reduce", "reduce") and asked.ranks >= MANY_RANKS
    in_batches = folds and (asked.ranks > MANY_RANKS or not asked.tree)
    if asked.batches and (in_batches or collective in BATCHED):
        return LINES_MAX_BESIDE_BATCHES.get(asked.ranks, 0)
    if asked.tree and folds:
        return 2 if asked.ranks < 16 else 0
    return LINES_MAX_OF.get(collective, LINES_MAX)


def modelled(collective: str, asked: Asked) -> tuple[str, str]:
    """Choose the variant for blocks that fit no doorbell lines, and say why."""
    what = f"{format_bytes(asked.nbytes)} on {counted(asked.ranks, 'rank')}"
    for rule in TAKEN.get(collective, ()):
        if rule.when(asked):
            piece = asked.nbytes / rule.pieces(asked.ranks)
            chunks = asked.copies.chunks(piece, rule.in_turn(asked.ranks), rule.most)
            return _cut(rule.variant, chunks, rule.most), f"{what}: {rule.why}; {_worth(chunks, *rule.parts)}"
    plain = PLAIN.get(collective, PlainRule())
    chunks = asked.copies.chunks(asked.nbytes, plain.in_turn(asked.ranks), plain.spec.chunks)
    return _cut(plain.spec.name, chunks, plain.spec.chunks), f"{what}: {_worth(chunks)}"


def _cut(variant: str, chunks: int, most: int) -> str:
    return variant if chunks == most else f"{variant}-{chunks}"


def _worth(count: int, part: str = "chunk", parts: str = "chunks") -> str:
    return f"one {part}, as starting a copy costs more" if count == 1 else f"worth {count} {parts}"
