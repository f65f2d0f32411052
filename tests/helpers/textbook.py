"""The textbook algorithms, in examples/algorithms or shipped, and what their docstrings say of steps and bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path

from collectives.algorithms.catalog import build, load_algorithm
from collectives.algorithms.catalog import recipe as shipped
from collectives.builder import VARIANTS
from collectives.builder.recipes import Recipe
from collectives.contracts import COLLECTIVES
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Call, Layout, Op, Plan

ROOT = Path(__file__).parents[2]
SHIPPED = {  # page -> (collective, variant)
    "all_reduce_doubling": ("all_reduce", "doubling"),
    "all_reduce_rabenseifner": ("all_reduce", "rabenseifner"),
    "all_to_all_pairwise": ("all_to_all", "pairwise"),
    "reduce_binomial": ("reduce", "binomial"),
}
EXAMPLES = {file.stem: file for file in sorted((ROOT / "examples/algorithms").glob("*.py"))}
PAGES = EXAMPLES | {name: ROOT / "collectives/algorithms" / f"{name}.py" for name in SHIPPED}
NAMES = tuple(PAGES)


@cache
def textbook(name: str, style: str = "") -> Recipe:
    """Chunked and overlapped as users' algorithms run, or in another style."""
    recipe = shipped(*SHIPPED[name]) if name in SHIPPED else load_algorithm(f"{PAGES[name]}:{name}")
    return replace(recipe, spec=replace(VARIANTS[style], name=recipe.name)) if style else recipe


def asked(name: str) -> list[str]:
    """How a command is asked for a page's algorithm."""
    if name in SHIPPED:
        collective, variant = SHIPPED[name]
        return [collective, "--variant", variant]
    return [textbook(name).collective, "--algorithm", f"{PAGES[name]}:{name}"]


@cache
def small_ring(recipe: Recipe, ranks: int, slots: int = 2) -> Layout:
    """One whose slots have room for a line or two of each block: a few hundred bytes take many rounds."""
    lines = 1
    while True:
        layout = Layout(ranks, 2, slots, lines * ranks * LINE_BYTES, max(64, 2 * ranks), LINE_BYTES)
        try:
            its = COLLECTIVES[recipe.collective]
            redop = "sum" if its.reduces else "none"
            assert build(recipe, layout, Call(recipe.collective, recipe.name, ranks, 8 * its.moves_data, "u8", redop))
            assert all(build(recipe, layout, call(recipe, ranks, 8, "u8")).parts)
        except ArgumentError as error:
            assert "too small" in str(error)
            lines *= 2
            continue
        return layout


def call(
    recipe: Recipe, ranks: int, nbytes: int, dtype: str = "f32", op: str = "sum", root: int = 0, in_place: bool = False
) -> Call:
    its = COLLECTIVES[recipe.collective]
    redop = op if its.reduces else "none"
    return Call(recipe.collective, recipe.name, ranks, nbytes * its.moves_data, dtype, redop, root, in_place)


def made(recipe: Recipe, ranks: int, nbytes: int, *, rounds: int = 1, slots: int = 2, in_place: bool = False) -> Plan:
    """A plan of so many rounds, or more; blocks get larger where it takes fewer."""
    layout, wanted = small_ring(recipe, ranks, slots), call(recipe, ranks, nbytes, "u8", in_place=in_place)
    plan = build(recipe, layout, wanted)
    while wanted.nbytes and plan.rounds < rounds:
        wanted = replace(wanted, nbytes=wanted.nbytes + nbytes)
        plan = build(recipe, layout, wanted)
    return plan


# --- what docstrings say ------------------------------------------------------------------------------------------


def steps_of(plan: Plan) -> int:
    """On the longest way through a plan in one stream and one chunk: how often a rank waits for another's block."""
    at = [0] * plan.ranks  # where each rank is
    taken = [0] * plan.ranks  # and after how many steps
    rung: dict[int, int] = {}
    programs = [part.streams[0].instructions for part in plan.parts]
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while at[rank] < len(program):
                i = program[at[rank]]
                if i.op in (Op.SIGNAL, Op.SIGNAL_DATA):
                    rung[i.arg] = taken[rank]
                elif i.op in (Op.WAIT, Op.WAIT_DATA):
                    if i.arg not in rung:
                        break
                    taken[rank] = max(taken[rank], rung[i.arg]) + 1
                at[rank] += 1
                moved = True
    assert at == [len(program) for program in programs]
    return max(taken)


@dataclass(frozen=True)
class Claim:
    """``steps`` of N; bytes that a rank writes and reads, in blocks, of (N, its place from the root on)."""

    steps_text: str
    steps: Callable[[int], int]
    texts: Sequence[str]
    written: Callable[[int, int], Fraction | int]
    read: Callable[[int, int], Fraction | int]


def log2_up(n: int) -> int:
    return (n - 1).bit_length()


def log2_down(n: int) -> int:
    return n.bit_length() - 1


def subtree(place: int, n: int) -> int:
    return min((place & -place) or n, n - place)


def children(place: int, n: int) -> int:
    return log2_up(subtree(place, n))


def _in_pairs(n: int) -> int:
    return n - (1 << log2_down(n))


def _even_of_pair(n: int, rank: int) -> bool:
    return rank < 2 * _in_pairs(n) and rank % 2 == 0


def _odd_of_pair(n: int, rank: int) -> bool:
    return rank < 2 * _in_pairs(n) and rank % 2 == 1


def _doubling(n: int, rank: int) -> int:
    return 1 if _even_of_pair(n, rank) else log2_down(n) + _odd_of_pair(n, rank)


def _halving_written(n: int, rank: int) -> Fraction | int:
    p = 1 << log2_down(n)
    return 1 if _even_of_pair(n, rank) else Fraction(p - 1, p) + Fraction(1 + _odd_of_pair(n, rank), 2)


def _halving_read(n: int, rank: int) -> Fraction | int:
    p = 1 << log2_down(n)
    return 1 if _even_of_pair(n, rank) else 2 * Fraction(p - 1, p) + _odd_of_pair(n, rank)


def _bits(n: int) -> int:
    return sum(way.bit_count() for way in range(n))


def _two_more(n: int) -> int:
    return 2 * (_in_pairs(n) > 0)


CLAIMS = {
    "ring_all_gather": Claim(
        "Steps: N - 1.",
        lambda n: n - 1,
        ("Written per rank: (N - 1) m. Read per rank: (N - 1) m",),
        lambda n, _: n - 1,
        lambda n, _: n - 1,
    ),
    "bruck_all_gather": Claim(
        "Steps: ceil(log2 N)",
        log2_up,
        ("Read per rank: (N - 1) m", "the most of min(2^k, N - 2^k)"),
        lambda n, _: max(min(1 << k, n - (1 << k)) for k in range(log2_up(n))),
        lambda n, _: n - 1,
    ),
    "bruck_all_to_all": Claim(
        "Steps: ceil(log2 N).",
        log2_up,
        ("Written and read per rank: m for every bit that is set in 1 .. N - 1",),
        lambda n, _: _bits(n),
        lambda n, _: _bits(n),
    ),
    "all_reduce_doubling": Claim(
        "Steps: log2 P, and 2 where N is no power of two.",
        lambda n: log2_down(n) + _two_more(n),
        ("Written and read by a rank that takes part: m log2 P, and m more for",),
        _doubling,
        _doubling,
    ),
    "all_reduce_rabenseifner": Claim(
        "Steps: 2 log2 P, and 2 where N is no power of two.",
        lambda n: 2 * log2_down(n) + _two_more(n),
        ("Read by a rank that takes part: 2 m (P - 1) / P", "Written: m (P - 1) / P and, of the result, m / 2"),
        _halving_written,
        _halving_read,
    ),
    "binomial_broadcast": Claim(
        "Steps: floor(log2 N)",
        log2_down,
        ("Written: m by every rank that has children", "Read: m by every rank but the"),
        lambda n, place: children(place, n) > 0,
        lambda _, place: place > 0,
    ),
    "reduce_binomial": Claim(
        "Steps: ceil(log2 N).",
        log2_up,
        ("Written: m by every rank but the root. Read: m for each child",),
        lambda _, place: place > 0,
        lambda n, place: children(place, n),
    ),
    "binomial_gather": Claim(
        "Steps: ceil(log2 N).",
        log2_up,
        ("Written by a rank but the root: s m", "(s - 1) m"),
        lambda n, place: subtree(place, n) * (place > 0),
        lambda n, place: subtree(place, n) - 1,
    ),
    "binomial_scatter": Claim(
        "Steps: floor(log2 N)",
        log2_down,
        ("Read by a rank but the root: s m", "(s - 1) m"),
        lambda n, place: subtree(place, n) - 1,
        lambda n, place: subtree(place, n) * (place > 0),
    ),
    "dissemination_barrier": Claim(
        "Steps: ceil(log2 N).", log2_up, ("ceil(log2 N) doorbells, no data",), lambda *_: 0, lambda *_: 0
    ),
    "all_to_all_pairwise": Claim(
        "Steps: N,",
        lambda n: n if n > 2 else 1,
        ("Written and read per rank: (N - 1) m",),
        lambda n, _: n - 1,
        lambda n, _: n - 1,
    ),
    "ring_reduce_scatter": Claim(
        "Steps: N - 1.",
        lambda n: n - 1,
        ("Written and read per rank: (N - 1) m",),
        lambda n, _: n - 1,
        lambda n, _: n - 1,
    ),
}
