"""What a rank of a protocol may do to memory: the instructions of plans, one word or line at a time."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from cxlemu.errors import ArgumentError
from faults.machine.program import Do, Step

VALUE_MAX = 2**31 - 1


class ProtocolOperation(NamedTuple):
    """``place`` is a word; flushes and invalidates take the whole line that it lies in."""

    do: Do
    place: str = ""
    value: int = 0


T = TypeVar("T")
Steps: TypeAlias = Generator[ProtocolOperation, int, T]


def Store(word: str, value: int) -> ProtocolOperation:
    return ProtocolOperation(Do.STORE, word, value)


def StoreNT(word: str, value: int) -> ProtocolOperation:
    return ProtocolOperation(Do.STORE_NT, word, value)


def Load(word: str) -> ProtocolOperation:
    return ProtocolOperation(Do.LOAD, word)


def Flush(word: str, *, keep: bool = False) -> ProtocolOperation:
    return ProtocolOperation(Do.FLUSH_KEEP if keep else Do.FLUSH, word)


def Fence() -> ProtocolOperation:
    return ProtocolOperation(Do.FENCE)


def Invalidate(word: str) -> ProtocolOperation:
    return ProtocolOperation(Do.INVALIDATE, word)


def Signal(word: str, value: int) -> ProtocolOperation:
    return ProtocolOperation(Do.SIGNAL, word, value)


def Wait(word: str, value: int) -> ProtocolOperation:
    """Until the word is at least ``value``."""
    return ProtocolOperation(Do.WAIT, word, value)


def Crash() -> ProtocolOperation:
    """The rank's host crashes here."""
    return ProtocolOperation(Do.CRASH)


def is_value(value: object) -> bool:
    """Whether a word can hold it."""
    return type(value) is int and 0 <= value <= VALUE_MAX


def as_step(operation: object, places: Mapping[str, int], who: str) -> Step:
    """What a rank yielded, on the words of a program: ``places`` maps each of them, in order, to its line.

    Raises ArgumentError that begins with ``who`` for what is no operation, no word, or no value that fits.
    """
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
