"""What a rank of a protocol may do to memory: the instructions of plans, one word or line at a time."""

from collections.abc import Generator, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from cxlemu.errors import ArgumentError
from faults.machine.program import Do, Step

VALUE_MAX = 2**31 - 1


class ProtocolOperation(NamedTuple):
    """One operation that a rank yields. `as_step` checks the word and the value when the rank yields it."""

    do: Do
    place: str = ""  # a word; flushes and invalidates take the whole line that it lies in. Empty for Fence and Crash
    value: int = 0  # the value that is stored, signalled or waited for, from 0 to VALUE_MAX


T = TypeVar("T")
Steps: TypeAlias = Generator[ProtocolOperation, int, T]


def Store(word: str, value: int) -> ProtocolOperation:
    """Store a value in the host's cache. An eviction, or a flush, takes the line to the pool.

    Args:
        word: Name of the word.
        value: From 0 to VALUE_MAX.
    """
    return ProtocolOperation(Do.STORE, word, value)


def StoreNT(word: str, value: int) -> ProtocolOperation:
    """Store a value past the cache. It is private to the rank until it has arrived in the pool."""
    return ProtocolOperation(Do.STORE_NT, word, value)


def Load(word: str) -> ProtocolOperation:
    """Load a word from the host's cache, which fetches the line if it is absent; ``yield`` returns the value."""
    return ProtocolOperation(Do.LOAD, word)


def Flush(word: str, *, keep: bool = False) -> ProtocolOperation:
    """Post the write-back of a word's line if the line is dirty; a later Fence of the same rank waits for it.

    Args:
        word: Name of a word of the line.
        keep: Leave the clean line in the cache; else it has left the cache after that fence.
    """
    return ProtocolOperation(Do.FLUSH_KEEP if keep else Do.FLUSH, word)


def Fence() -> ProtocolOperation:
    """Wait until all lines that this rank posted are in the pool, and all that it flushed have left the cache.

    A write-back that was under way when this rank flushed its line is waited for, no matter which rank posted it.
    """
    return ProtocolOperation(Do.FENCE)


def Invalidate(word: str) -> ProtocolOperation:
    """Flush a word's line and wait, as a fence of this line alone, until it is in the pool and gone from the cache."""
    return ProtocolOperation(Do.INVALIDATE, word)


def Signal(word: str, value: int) -> ProtocolOperation:
    """Store a value in a doorbell's word and flush its line, in one step.

    Earlier writes need a Fence of their own before it.

    Args:
        word: Name of the word.
        value: From 0 to VALUE_MAX.
    """
    return ProtocolOperation(Do.SIGNAL, word, value)


def Wait(word: str, value: int) -> ProtocolOperation:
    """Wait until a word is at least ``value``: every look flushes the word's line, waits for that, and loads.

    Args:
        word: Name of the word.
        value: From 0 to VALUE_MAX.
    """
    return ProtocolOperation(Do.WAIT, word, value)


def Crash() -> ProtocolOperation:
    """Crash the rank's host here: its cache is lost, what it posted may arrive or not, and the host's ranks end."""
    return ProtocolOperation(Do.CRASH)


def is_value(value: object) -> bool:
    return type(value) is int and 0 <= value <= VALUE_MAX


def as_step(operation: object, places: Mapping[str, int], who: str) -> Step:
    """Turn what a rank yielded into a step, whose place is a line for flushes and invalidates, else a word."""
    if not isinstance(operation, ProtocolOperation):
        raise ArgumentError(f"{who} yields {operation!r:.60}: yield operations such as Load('x')")
    do, place, value = operation
    if do in {Do.FENCE, Do.CRASH}:
        return Step(do)
    if place not in places:
        raise ArgumentError(f"{who}: there is no word {place!r:.60}, only {', '.join(places)}")
    if not is_value(value):
        raise ArgumentError(f"{who}: {place} can hold 0 to {VALUE_MAX}, not {value!r:.60}")
    by_line = do in {Do.FLUSH, Do.FLUSH_KEEP, Do.INVALIDATE}
    return Step(do, places[place] if by_line else list(places).index(place), value)
