"""``auto``: which variant a call takes, and why. The choice depends on nothing that could differ between ranks."""

from collections.abc import Callable
from typing import NamedTuple

from collectives.algorithms import catalog, modelled
from collectives.algorithms.hierarchical.estimate import CHUNKED_MIN_BYTES, TWO_SHOT_MIN_BYTES, TwoLevelEstimate
from collectives.algorithms.hierarchical.levels import HIERARCHICAL
from collectives.builder import PUSH
from collectives.contracts import COLLECTIVES, Collective
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan import DTYPES
from cxlemu.units import counted, format_bytes

LINE_MAX_BYTES = 8 * PAYLOAD_BYTES
INTEGERS = frozenset(name for name, dtype in DTYPES.items() if dtype.kind in "iub")
ZERO_COPY_MIN_BYTES = 64 << 10
PUSH_MIN_BYTES = 1 << 20  # below, two waits for a peer cost more than the copy that is saved
PROCESS_MIN_BYTES = (
    8 << 20
)  # of an array: NumPy has smaller ones in pages of 4 KiB, which the kernel looks up one by one
TWO_SHOT_OF_PAIRS_MIN_BYTES = 1 << 20  # above what caches hold, where passes over memory are what a call costs
TREE_MIN_RANKS = 4  # from which on a root that folds everything by itself is what all wait for
DOUBLING_BYTES = range(CHUNKED_MIN_BYTES, 512 << 10)  # smaller vectors take one shot, larger ones are worth two


class Choice(NamedTuple):
    """The variant that a call takes, and why, for people."""

    variant: str
    reason: str


def choose(
    collective: str,
    nbytes: int,
    ranks: int,
    *,
    in_pool: bool = False,
    in_process: bool = False,
    out_in_pool: bool = False,
    ways: TwoLevelEstimate | None = None,
    dtype: str = "",
    copies: modelled.Copies | None = None,
) -> Choice:
    """Choose the variant of a call with blocks of ``nbytes``.

    Args:
        in_pool: Whether x is a whole array that comm.heap made. It does not count for scatter, as its root alone has x:
            there zero copy has to be asked for.
        in_process: Whether peers may read x in the rank's process.
        out_in_pool: Whether out is a whole array that comm.heap made, and x is none. It does not count where there is a
            root: whoever writes to results cannot know where they lie before it chooses.
        ways: The estimate for ranks in clusters, which take two levels where those are faster by the cost model.
        dtype: Integers may take a tree, as their results have the same bits in whatever order they are folded; floats
            are folded in rank order.
        copies: What copies cost on a modelled fabric (default: this machine's own memory).
    """
    call = _Asked(
        collective,
        nbytes,
        ranks,
        dtype in INTEGERS,
        in_pool,
        in_process,
        out_in_pool,
        ways,
        copies,
        format_bytes(nbytes),
    )
    return next(choice for rule in RULES if (choice := rule(call)) is not None)


class _Asked(NamedTuple):
    collective: str
    nbytes: int
    ranks: int
    integers: bool
    in_pool: bool
    in_process: bool
    out_in_pool: bool
    ways: TwoLevelEstimate | None
    copies: modelled.Copies | None
    size: str  # nbytes, for people

    @property
    def contract(self) -> Collective:
        return COLLECTIVES[self.collective]

    @property
    def on_fabric(self) -> modelled.Asked | None:
        """The call on a modelled fabric; None on this machine's own memory."""
        return None if self.copies is None else modelled.Asked(self.nbytes, self.ranks, self.integers, self.copies)


def _read_in_pool(c: _Asked) -> bool:
    root_alone_has_it = c.contract.rooted_input and c.contract.input_blocks == "ranks"
    return c.in_pool and c.nbytes >= ZERO_COPY_MIN_BYTES and c.contract.among_all and not root_alone_has_it


def _written_by_peers(c: _Asked) -> bool:
    is_large = c.nbytes >= PUSH_MIN_BYTES and c.nbytes % LINE_BYTES == 0
    return c.out_in_pool and is_large and PUSH.name in catalog.pushing(c.collective) and not c.contract.rooted


def _read_in_process(c: _Asked) -> bool:
    x_bytes = c.nbytes * (c.ranks if c.contract.input_blocks == "ranks" else 1)
    copied_once = c.contract.among_all and not c.contract.reduces  # a fold would copy twice
    return c.in_process and copied_once and x_bytes >= PROCESS_MIN_BYTES


def _fits_lines(c: _Asked) -> bool:
    fabric = c.on_fabric
    return c.nbytes <= (LINE_MAX_BYTES if fabric is None else modelled.lines_max(c.collective, fabric) * PAYLOAD_BYTES)


def _lines(c: _Asked) -> str:
    return f"{c.size} fit in {counted(-(-c.nbytes // PAYLOAD_BYTES), 'doorbell line')}: no data lines, no fence"


def _on_two_levels(c: _Asked) -> Choice | None:
    if c.ways is None or not c.contract.basic:
        return None
    levels_ns, flat_ns = c.ways.times_ns(c.collective, c.nbytes, c.ranks)
    reason = (
        f"{c.size} on clusters of {c.ways.cluster}: about {levels_ns / 1e3:,.0f} us on two levels, "
        f"{flat_ns / 1e3:,.0f} us on one, by the cost model's figures"
    )
    return Choice(HIERARCHICAL, reason) if levels_ns < flat_ns else None


def _on_fabric(c: _Asked) -> Choice | None:
    return None if (fabric := c.on_fabric) is None else Choice(*modelled.modelled(c.collective, fabric))


def _folds_for_root(c: _Asked) -> bool:
    return c.contract.rooted_output and c.contract.reduces


def _tree(c: _Asked) -> bool:
    return c.integers and c.ranks >= TREE_MIN_RANKS


Rule = Callable[[_Asked], Choice | None]


def _rule(holds: Callable[[_Asked], bool], variant: str, reason: Callable[[_Asked], str]) -> Rule:
    return lambda c: Choice(variant, reason(c)) if holds(c) else None


# In order: the first rule that gives a choice holds.
RULES: tuple[Rule, ...] = (
    _rule(lambda c: not c.contract.moves_data, "line", lambda c: "no data: doorbells only"),
    _rule(lambda c: c.nbytes == 0, "line", lambda c: "nothing to move"),
    _rule(
        _read_in_pool,
        "zero_copy",
        lambda c: f"{c.size} that lie in the pool: peers read them there, nothing is copied to be published",
    ),
    _rule(
        _written_by_peers,
        PUSH.name,
        lambda c: f"{c.size} for results that lie in the pool: peers write them there, with one copy",
    ),
    _rule(
        _read_in_process,
        "zero_copy",
        lambda c: f"{c.size} in the ranks' processes: peers read them there, with one copy",
    ),
    _rule(_fits_lines, "line", _lines),
    _on_two_levels,
    _on_fabric,
    _rule(
        lambda c: _tree(c) and _folds_for_root(c) and c.nbytes >= CHUNKED_MIN_BYTES,
        "binomial",
        lambda c: f"{c.size} of integers on {c.ranks} ranks: a tree folds them, not the root alone",
    ),
    _rule(
        lambda c: _tree(c) and c.contract.shared_result and c.nbytes in DOUBLING_BYTES,
        "doubling",
        lambda c: f"{c.size} of integers on {c.ranks} ranks: log2(N) vectors are read, not N - 1",
    ),
    _rule(
        lambda c: c.contract.shared_result and c.ranks > 2 and c.nbytes >= TWO_SHOT_MIN_BYTES,
        "two_shot",
        lambda c: f"{c.size} on {c.ranks} ranks: reading 2(N-1)/N instead of N-1 vectors pays for a second step",
    ),
    _rule(
        lambda c: c.contract.shared_result and c.ranks == 2 and c.nbytes >= TWO_SHOT_OF_PAIRS_MIN_BYTES,
        "two_shot",
        lambda c: f"{c.size} on 2 ranks: each folds one half, so that a vector is read once, not twice",
    ),
    _rule(
        lambda c: c.nbytes >= CHUNKED_MIN_BYTES,
        "all",
        lambda c: f"{c.size} are worth chunks: peers retrieve while the rest is published",
    ),
    _rule(lambda c: True, "aggregate", lambda c: f"{c.size} are too small for chunks"),
)
