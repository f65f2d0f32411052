"""Whether a rank and a tag are what a message can go to, or come from."""

from __future__ import annotations

from collectives.communicator.messages.envelopes import TAG_MAX
from collectives.communicator.messages.requests import ANY
from cxlemu.errors import ArgumentError


def check_destination(dest: int, tag: int, ranks: int) -> None:
    """Check where a message goes.

    Args:
        dest: The rank that gets it.
        tag: Its tag.
        ranks: The communicator's size.

    Raises:
        ArgumentError: There is no such rank, or the tag is no whole number from 0 to TAG_MAX.
    """
    if not (isinstance(dest, int) and 0 <= dest < ranks and isinstance(tag, int) and 0 <= tag <= TAG_MAX):
        raise _misaddressed("send", "dest", dest, tag, ranks)


def check_pattern(verb: str, source: int, tag: int, ranks: int) -> None:
    """Check where a message may come from, and with which tag; either may be `ANY`.

    Args:
        verb: The verb that was called, for the message.
        source: The rank that sends it, or `ANY`.
        tag: Its tag, or `ANY`.
        ranks: The communicator's size.

    Raises:
        ArgumentError: There is no such rank, or the tag is neither `ANY` nor a whole number from 0 to TAG_MAX.
    """
    sources, tags = range(ANY, ranks), range(ANY, TAG_MAX + 1)
    if not (isinstance(source, int) and source in sources and isinstance(tag, int) and tag in tags):
        raise _misaddressed(verb, "source", 0 if source == ANY else source, tag, ranks)


def _misaddressed(verb: str, role: str, rank: object, tag: object, ranks: int) -> ArgumentError:
    if not isinstance(rank, int) or not 0 <= rank < ranks:
        which = " or ANY" if role == "source" else ""
        return ArgumentError(f"{verb}: {role} {rank!r} is not one of the ranks 0..{ranks - 1}{which}")
    which = ", or ANY" if role == "source" else ""
    return ArgumentError(f"{verb}: a tag is a whole number from 0 to {TAG_MAX}{which}, not {tag!r}")
