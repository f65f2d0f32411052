"""Where a message goes to and comes from: a rank and a tag, of any kind of integer, become ints here."""

from __future__ import annotations

from typing import Any

from collectives.communicator.messages.envelopes import TAG_MAX
from collectives.communicator.messages.requests import ANY, PROC_NULL, Rank, Special, Tag
from cxlemu.errors import ArgumentError
from cxlemu.numbers import as_int


def destination(dest: Any, tag: Any, ranks: int) -> tuple[Rank, int]:
    """Return the rank and the tag of a send. Raises ArgumentError for others."""
    to, number = _rank("send", "dest", dest, ranks, PROC_NULL), _tag("send", tag)
    assert isinstance(number, int)
    return to, number


def pattern(verb: str, source: Any, tag: Any, ranks: int) -> tuple[Rank, Tag]:
    """Return the rank and the tag that a message is asked for by; either may be `ANY`. Raises ArgumentError."""
    return _rank(verb, "source", source, ranks, PROC_NULL, ANY), _tag(verb, tag, ANY)


def _rank(verb: str, role: str, rank: Any, ranks: int, *specials: Special) -> Rank:
    if isinstance(rank, Special) and rank in specials:
        return rank
    number = as_int(rank)
    if number is None or not 0 <= number < ranks:
        others = " or ".join(special.name for special in reversed(specials))
        raise ArgumentError(f"{verb}: {role} {rank!r} is not one of the ranks 0..{ranks - 1}, {others}")
    return number


def _tag(verb: str, tag: Any, *specials: Special) -> Tag:
    if isinstance(tag, Special) and tag in specials:
        return tag
    number = as_int(tag)
    if number is None or not 0 <= number <= TAG_MAX:
        which = ", or ANY" if specials else ""
        raise ArgumentError(f"{verb}: a tag is a whole number from 0 to {TAG_MAX}{which}, not {tag!r}")
    return number
