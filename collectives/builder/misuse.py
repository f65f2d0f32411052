"""Checks the arguments of words in users' own algorithms; ours are held to plans' rules and proofs instead.

Each function takes the builder, ``b``, and most the name of the word that was called, ``word``, for the message. Each
raises BuilderError, with a sentence that says what is wrong, and returns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collectives.builder.part import Event
from collectives.builder.slots import Chunk
from collectives.contracts import COLLECTIVES
from cxlemu.errors import BuilderError
from cxlemu.plan import Kind, Operand

if TYPE_CHECKING:
    from collectives.builder.rounds import Rounds

SPREADS = ("cards", "ranges")


def check_loop(
    b: Rounds, nbytes: object, writers: Sequence[int] | None, blocks: object, bells: object, spread: object
) -> None:
    """Check the arguments of `Rounds.rounds` and `Rounds.bells`, and that no round is under way."""
    for name, value, least in (("nbytes", nbytes, 0), ("blocks", blocks, 1), ("bells", bells, 0)):
        if not _is_number(value, least):
            raise BuilderError(f"{b.call}: rounds takes {name}, a number from {least} on, not {value!r}")
    if spread not in SPREADS:
        raise BuilderError(f'{b.call}: rounds takes spread="cards" or "ranges", not {spread!r}')
    for writer in writers or ():
        check_rank(b, "rounds", writer)
    if b.is_open:
        raise BuilderError(f"{b.call}: a round begins inside another one: end the first loop before the next")


def check_chunk(b: Rounds, word: str, chunk: Chunk) -> None:
    """Check that ``chunk`` is a chunk, or a turn, of the round that is under way."""
    if not isinstance(chunk, Chunk):
        raise BuilderError(f"{b.call}: {word} takes a chunk that rounds gave, not {chunk!r}")
    if not b.is_open or chunk.seq != b.round_number:
        raise BuilderError(f"{b.call}: {word} of a chunk of round {chunk.seq}, which is over")


def check_part(b: Rounds, nbytes: object, at: object) -> None:
    """Check that a part has 0 bytes or more, and begins at a multiple of the builder's grain."""
    if not _is_number(nbytes, 0) or not _is_number(at, 0) or at % b.grain:  # type: ignore[operator]
        which = f"{nbytes!r} at {at!r}"
        raise BuilderError(f"{b.call}: part takes bytes from a multiple of b.grain ({b.grain}) on, not {which}")


def check_place(b: Rounds, word: str, chunk: Chunk, writer: int, first: int, count: int, bell: int | None) -> None:
    """Check a chunk of some of a writer's blocks, and the doorbell that is rung for them."""
    check_chunk(b, word, chunk)
    check_rank(b, word, writer)
    areas = b.areas
    if not _is_number(first, 0) or first + count > areas.blocks or count < 1:
        which = f"block {first!r}" if count == 1 else f"{count} blocks from {first!r} on"
        raise BuilderError(f"{b.call}: {word} of {which}, the loop has {areas.blocks} a rank: rounds(..., blocks=)")
    if areas.region_of and writer not in areas.region_of:
        raise BuilderError(f"{b.call}: {word} of a block of rank {writer}, which is not among the loop's writers")
    if chunk.nbytes < 0 or (areas.block_bytes and chunk.slot_offset + chunk.nbytes > areas.block_bytes):
        raise BuilderError(f"{b.call}: {word} of {chunk.nbytes} bytes, for which its block has no room in this round")
    check_bell(b, word, bell)


def check_bell(b: Rounds, word: str, bell: int | None) -> None:
    """Check that the loop has this bell, where one is named."""
    areas = b.areas
    if bell is not None and not (_is_number(bell, 0) and bell < areas.bells):
        raise BuilderError(f"{b.call}: {word} under bell {bell!r}, the loop has {areas.bells}: rounds(..., bells=)")


def check_rank(b: Rounds, word: str, rank: object) -> None:
    """Check that ``rank`` is the number of a rank of the call."""
    if not (_is_number(rank, 0) and rank < b.ranks):  # type: ignore[operator]
        raise BuilderError(f"{b.call}: {word} names rank {rank!r}, there are ranks 0..{b.ranks - 1}")


def check_peer(b: Rounds, word: str, peer: object) -> None:
    """Check that ``peer`` is the number of a rank other than the builder's."""
    check_rank(b, word, peer)
    if peer == b.rank:
        raise BuilderError(f"{b.call}: {word} from rank {peer} itself: a rank has its own blocks, or copies them")


def check_local(b: Rounds, word: str, *operands: object) -> None:
    """Check that operands are local memory, as b.input(), b.output() and b.scratch() return it."""
    for operand in operands:
        if not isinstance(operand, Operand) or operand.kind != Kind.BUFFER:
            raise BuilderError(f"{b.call}: {word} takes b.input(), b.output() or b.scratch(), not {operand!r}")


def check_event(b: Rounds, word: str, event: object) -> None:
    """Check that ``event`` is None or an event that a word returned."""
    if event is not None and not isinstance(event, Event):
        raise BuilderError(f"{b.call}: {word} comes after an event that a word gave, not after {event!r}")


def check_folds(b: Rounds, word: str) -> None:
    """Check that the call's collective reduces."""
    if not COLLECTIVES[b.call.collective].reduces:
        raise BuilderError(f"{b.call}: {b.call.collective} folds nothing, so it has no use for {word}")


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
