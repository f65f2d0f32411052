"""Calls of too many rounds to prove them all: fewer of the same rounds tell as much.

A block is cut into rounds, each of which does what the one before did, a slot further. Rounds share nothing but slots,
and those only with rounds a whole number of laps away. What a round finds there is what the round a lap before left,
whatever came earlier: a rank that stores has waited until all ranks were done with that one (rule reuse), and then it
was over and in the pool (rule exit). So a call of rounds that repeat is right if one of more than two laps of them is.
That they repeat is checked on that call: with one round more, every stream of every rank has one round more, equal to
its neighbour but for the round's number, and is otherwise the same. That this goes on however many rounds there are
follows from the builder's loop, and therefore holds only for algorithms that cxlemu ships.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from collectives.algorithms.catalog import build
from collectives.builder import DONE_GROUP, Batches, Builder, Chunk
from collectives.builder.alike import APART, LEAST
from collectives.builder.recipes import Recipe
from collectives.builder.slots import Loop
from cxlemu.plan import Call, Kind, Layout, Op, Plan
from cxlemu.plan.instructions import OPERAND_FIELDS, Records

_NUMBERED = (Op.SIGNAL, Op.WAIT, Op.WAIT_ALL, Op.SIGNAL_DATA, Op.WAIT_DATA)


@dataclass
class Asking(Builder):
    """Builds nothing: notes the loops over rounds that an algorithm asks for."""

    loops: list[Loop] = field(default_factory=list)

    def rounds(
        self,
        nbytes: int,
        *,
        writers: list[int] | None = None,
        blocks: int = 1,
        spread: str = "",
        answered: bool = False,
        chunk_bytes: int = 0,
        bells: int = 0,
        alike: int = 0,
    ) -> Iterator[list[Chunk]]:
        if nbytes:
            writers = list(range(self.ranks)) if writers is None else writers
            self.loops.append(Loop(nbytes, writers, blocks, spread, chunk_bytes, bells))
        return iter(())


@dataclass
class AskingInBatches(Asking, Batches):
    """The same with words for batches."""


ASKING: dict[type[Builder], type[Asking]] = {Builder: Asking, Batches: AskingInBatches}


def loops_of(recipe: Recipe, layout: Layout, call: Call) -> list[tuple[int, int]]:
    """Return the bytes of each loop, and of a round of it. Raises DeclinedError where a slot has no room for them."""
    builder = ASKING[recipe.builder](call, layout, recipe.spec, call.root)
    recipe.algorithm(builder)
    return [(loop.nbytes, builder._plan_areas(*loop)[0]) for loop in builder.loops]


def shortened(recipe: Recipe, layout: Layout, call: Call) -> tuple[Plan, int]:
    """Build a call of fewer rounds that tell as much; return how many fewer, 0 if it cannot be shortened."""
    whole = build(recipe, layout, call), 0
    if recipe.source or recipe.builder not in ASKING or recipe.spec.takes_heap or call.ranks == 1:
        return whole
    loops = loops_of(recipe, layout, call)
    # Two laps, and as many rounds as it takes until the builder repeats them as columns, the last one being a part.
    enough = max(2 * layout.slots + 3, layout.slots + APART + LEAST + 1)
    if len(loops) != 1 or -(-loops[0][0] // loops[0][1]) <= 2 * enough:
        return whole
    [(nbytes, piece)] = loops
    less = -(-nbytes // piece) - enough
    for share in (piece, piece * call.ranks):  # a loop goes over a block, or over each rank's slice of it
        fewer = replace(call, nbytes=call.nbytes - less * share)
        if fewer.nbytes > 0 and loops_of(recipe, layout, fewer) == [(nbytes - less * piece, piece)]:
            longer, shorter = (build(recipe, layout, replace(fewer, nbytes=fewer.nbytes + more)) for more in (share, 0))
            if _one_round_more(longer, shorter, enough // 2):
                return shorter, less
    return whole


# --- rounds that repeat -------------------------------------------------------------------------------------------


def _one_round_more(longer: Plan, shorter: Plan, after: int) -> bool:
    """Whether the longer plan differs only by one more round, after round ``after`` and equal to it."""
    if longer.frame.regions != shorter.frame.regions or longer.frame.kernels != shorter.frame.kernels:
        return False
    if longer.rounds != shorter.rounds + 1:
        return False
    for more, fewer in zip(longer.each_part(), shorter.parts, strict=True):
        events = more.events - fewer.events
        for long, short in zip(more.streams, fewer.streams, strict=True):
            if not _repeats(long.records, short.records, after, events, shorter.layout.slots):
                return False
    return True


def _repeats(long: Records, short: Records, after: int, events: int, slots: int) -> bool:
    cut, size = int(np.searchsorted(rounds_of(short, slots), after, side="right")), len(long) - len(short)
    if size < 0 or size > cut:
        return False
    head, added, tail = np.split(long, [cut, cut + size])
    return (
        _plain(head, 0, 0) == _plain(short[:cut], 0, 0)
        and _plain(added, 1, events) == _plain(long[cut - size : cut], 0, 0)
        and _plain(tail, 1, events) == _plain(short[cut:], 0, 0)
    )


def rounds_of(records: Records, slots: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Find the round of each record of a stream, the last one named so far, int64; -1 before any."""
    named = np.where(np.isin(records["op"], _NUMBERED), records["value"], -1)
    done = (records["op"] == Op.WAIT_ALL) & (records["arg"] == DONE_GROUP)
    named += np.where(done, slots, 0)  # it names the round that used the slot before
    for name in OPERAND_FIELDS:
        operand = records[name]
        named = np.maximum(named, np.where(operand["kind"] == Kind.REGION, operand["seq"], -1))
    rounds: np.ndarray[tuple[int], np.dtype[np.int64]] = np.maximum.accumulate(named)
    return rounds


def _plain(records: Records, earlier: int, events: int) -> bytes:
    """Encode the records as if they came ``earlier`` rounds and ``events`` events before, wherever they lie in local
    memory."""
    plain = records.copy()
    plain["value"] -= np.where(np.isin(plain["op"], _NUMBERED), earlier, 0)
    plain["arg"] -= np.where(np.isin(plain["op"], (Op.RECORD, Op.AWAIT)), events, 0).astype(np.int32)
    for name in OPERAND_FIELDS:
        operand = plain[name]
        operand["seq"] -= np.where(operand["kind"] == Kind.REGION, earlier, 0).astype(np.int32)
        operand["offset"] = np.where(operand["kind"] == Kind.BUFFER, 0, operand["offset"])
    plain["nbytes"] = np.where(plain["op"] == Op.COPY, 0, plain["nbytes"])  # a rank's own block, all at once
    return plain.tobytes()
