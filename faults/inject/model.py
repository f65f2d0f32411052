"""The fault model: what may break, what must be survived, what must only be detected.

May break, at any instruction of any rank: caches and posted writes (nature does as the memory model lets it),
doorbells, ranks and hosts, cards and links, single bits. Nothing lies: no rank sends wrong bytes on purpose.

- SURVIVE   every rank ends with the right result. Nature's moves and delays shorter than the deadline are no failures.
- DETECT    every survivor ends with the right result or with a right error, within its deadline, in this call or in one
            after it. Nobody waits for ever, nobody returns wrong bytes.
- CHECKSUM  DETECT where payloads travel with a checksum (integrity="crc32c"). Without one no order of instructions can
            tell such bytes from right ones, so nothing is owed.

What a fault does to a cache, a card or a link needs the emulated backend; what it does to a rank or a doorbell, none.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from cxlemu.errors import (
    CardLostError,
    DeadlineError,
    IntegrityError,
    LinkDownError,
    MismatchError,
    PeerLostError,
    PoisonError,
    RunError,
)


class Requirement(Enum):
    SURVIVE = "survive"
    DETECT = "detect"
    CHECKSUM = "detect with a checksum"


class FaultKind(NamedTuple):
    """What it is, what is owed and, where it may be detected, by which errors of survivors.

    ``needs`` and ``may`` are fields of a script's fault beside kind, rank and when. ``emulated``: on that backend only.
    """

    what: str
    duty: Requirement
    errors: tuple[type[RunError], ...] = ()
    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    emulated: bool = False


_LINES = ("card", "line", "lines")
_LOST = (PeerLostError,)  # the other survivors', when the one who saw the fault leaves
_SILENT = (DeadlineError, PeerLostError)

FAULTS: dict[str, FaultKind] = {
    # nature, which no program may rely on to behave
    "evict": FaultKind(
        "lines leave the rank's host, dirty ones to the pool", Requirement.SURVIVE, may=_LINES, emulated=True
    ),
    "prefetch": FaultKind("lines are fetched into the rank's host", Requirement.SURVIVE, may=_LINES, emulated=True),
    "land": FaultKind("posted write-backs of the rank's host arrive", Requirement.SURVIVE, may=_LINES, emulated=True),
    "tear": FaultKind(
        "half of the posted write-backs arrive, which half is random", Requirement.SURVIVE, emulated=True
    ),
    # doorbells: the next one that the rank rings in the stream, from the instruction on
    "skip_doorbell": FaultKind("it is never rung", Requirement.DETECT, _SILENT),
    "repeat_doorbell": FaultKind("it is rung twice", Requirement.SURVIVE),
    "late_doorbell": FaultKind(
        "it arrives when its rank can do nothing else, or has ended its call", Requirement.SURVIVE
    ),
    # ranks and their hosts
    "stall": FaultKind("the rank stops for some seconds", Requirement.SURVIVE, _SILENT, needs=("seconds",)),
    "slow": FaultKind(
        "each instruction takes so much longer, to the call's end", Requirement.SURVIVE, needs=("seconds",)
    ),
    "kill": FaultKind("the rank is gone without a word (a process: SIGKILL)", Requirement.DETECT, _LOST),
    "crash": FaultKind("its host is gone, and the host's cache with it", Requirement.DETECT, _LOST, emulated=True),
    "restart": FaultKind("the rank is killed, and all begin again in the same pool", Requirement.DETECT, _LOST),
    # cards and links
    "poison": FaultKind(
        "a line reads as an error until it is overwritten",
        Requirement.DETECT,
        (PoisonError, *_LOST),
        may=("card", "line"),
        emulated=True,
    ),
    "lose_card": FaultKind(
        "a card is gone: loads fail, stores vanish",
        Requirement.DETECT,
        (CardLostError, *_LOST),
        may=("card",),
        emulated=True,
    ),
    "stall_link": FaultKind(
        "the host's next access takes some seconds", Requirement.SURVIVE, _SILENT, needs=("seconds",)
    ),
    "slow_link": FaultKind(
        "bytes move no faster than this, to the call's end", Requirement.SURVIVE, needs=("gbytes_per_s",)
    ),
    "link_down": FaultKind(
        "the host's loads fail and its stores vanish silently",
        Requirement.DETECT,
        (LinkDownError, IntegrityError, *_SILENT),
        may=("instructions",),  # up again after so many; then lost lines are for a checksum to find
        emulated=True,
    ),
    # single bits
    "flip_payload": FaultKind(
        "a bit of the data that the instruction is about, in the pool",
        Requirement.CHECKSUM,
        (IntegrityError, *_LOST),
        may=("bit",),
        emulated=True,
    ),
    "flip_doorbell": FaultKind(
        "a bit of the word of the doorbell that the instruction is about, in the pool",
        Requirement.DETECT,
        (IntegrityError, MismatchError, *_SILENT),
        may=("bit",),
        emulated=True,
    ),
    "flip_superblock": FaultKind(
        "a bit of a superblock; who attaches later is told", Requirement.SURVIVE, may=("bit", "card")
    ),
}
