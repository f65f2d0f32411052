"""The fault model: what may break, what a run must survive, and what it must only detect.

May break, at any instruction of any rank: caches and posted writes (nature does as the memory model lets it),
doorbells, ranks and hosts, cards and links, single bits. Nothing lies: no rank sends wrong bytes on purpose.

- SURVIVE   every rank ends with the right result. Nature's moves and delays shorter than the deadline are no failures.
- DETECT    every survivor ends with the right result or with a right error, within its deadline, in this call or in one
            after it. No rank waits for ever or returns wrong bytes.
- CHECKSUM  DETECT where payloads travel with a checksum (integrity="crc32c"). Without one no order of instructions can
            tell such bytes from right ones, so nothing is required.

What a fault does to a cache, a card or a link needs the emulated backend; what it does to a rank or a doorbell needs
none. Each kind is one declaration here; its effect is a function in faults/inject/effects.py.
"""

from cxlemu.errors import (
    CardLostError,
    DeadlineError,
    IntegrityError,
    LinkDownError,
    MismatchError,
    PeerLostError,
    PoisonError,
)
from faults.inject import effects
from faults.inject.fault import FaultKind, Requirement, next_ring, register
from faults.inject.places import has_bell, has_data

_LINES = ("card", "line", "lines")
_LOST = (PeerLostError,)  # raised by the other survivors when the rank that saw the fault leaves
_SILENT = (DeadlineError, PeerLostError)

NATURE = (  # moves that a program can neither prevent nor rely on
    FaultKind(
        "evict",
        "lines leave the rank's host, dirty ones to the pool",
        Requirement.SURVIVE,
        effects.nature,
        may=_LINES,
        emulated=True,
    ),
    FaultKind(
        "prefetch",
        "lines are fetched into the rank's host",
        Requirement.SURVIVE,
        effects.nature,
        may=_LINES,
        emulated=True,
    ),
    FaultKind(
        "land",
        "posted write-backs of the rank's host arrive",
        Requirement.SURVIVE,
        effects.nature,
        may=_LINES,
        emulated=True,
    ),
    FaultKind(
        "tear",
        "half of the posted write-backs arrive, which half is random",
        Requirement.SURVIVE,
        effects.tear,
        emulated=True,
    ),
)

DOORBELLS = (  # the next one that the rank rings in the stream, from the instruction on
    FaultKind(
        "skip_doorbell", "a doorbell is never rung", Requirement.DETECT, effects.skip_doorbell, _SILENT, where=next_ring
    ),
    FaultKind(
        "repeat_doorbell", "a doorbell is rung twice", Requirement.SURVIVE, effects.repeat_doorbell, where=next_ring
    ),
    FaultKind(
        "late_doorbell",
        "a doorbell arrives when its rank can do nothing else, or has ended its call",
        Requirement.SURVIVE,
        effects.late_doorbell,
        where=next_ring,
    ),
)

RANKS = (  # and their hosts
    FaultKind(
        "stall",
        "the rank stops for some seconds",
        Requirement.SURVIVE,
        effects.stall,
        _SILENT,
        needs={"seconds": 0.05},
    ),
    FaultKind(
        "slow",
        "each instruction takes that much longer, until the call ends",
        Requirement.SURVIVE,
        effects.slow,
        needs={"seconds": 0.001},
    ),
    FaultKind(
        "kill",
        "the rank dies silently (a process: SIGKILL)",
        Requirement.DETECT,
        effects.kill,
        _LOST,
        kills="rank",
    ),
    FaultKind(
        "crash",
        "the rank's host and its cache are lost",
        Requirement.DETECT,
        effects.crash,
        _LOST,
        emulated=True,
        kills="host",
    ),
    FaultKind(
        "restart",
        "the rank is killed, and all ranks start again in the same pool",
        Requirement.DETECT,
        effects.kill,
        _LOST,
        kills="rank",
        restarts=True,
    ),
)

CARDS_AND_LINKS = (
    FaultKind(
        "poison",
        "a line reads as an error until it is overwritten",
        Requirement.DETECT,
        effects.poison,
        (PoisonError, *_LOST),
        may=("card", "line"),
        emulated=True,
        met=True,
    ),
    FaultKind(
        "lose_card",
        "a card is lost: loads fail, stores vanish",
        Requirement.DETECT,
        effects.lose_card,
        (CardLostError, *_LOST),
        may=("card",),
        emulated=True,
        met=True,
    ),
    FaultKind(
        "stall_link",
        "the host's next access takes some seconds",
        Requirement.SURVIVE,
        effects.stall,
        _SILENT,
        needs={"seconds": 0.05},
    ),
    FaultKind(
        "slow_link",
        "bytes move no faster than this, until the call ends",
        Requirement.SURVIVE,
        effects.slow,
        needs={"gbytes_per_s": 1.0},
    ),
    FaultKind(
        "link_down",
        "the host's loads fail and its stores vanish silently",
        Requirement.DETECT,
        effects.link_down,
        (LinkDownError, IntegrityError, *_SILENT),
        may=("instructions",),
        emulated=True,
        loses_data_with="instructions",  # once the link is up again, only a checksum can find the lost lines
        met=True,
    ),
)

BITS = (
    FaultKind(
        "flip_payload",
        "a bit flips in the instruction's data in the pool",
        Requirement.CHECKSUM,
        effects.flip_payload,
        (IntegrityError, *_LOST),
        fits=has_data,
        may=("bit",),
        emulated=True,
    ),
    FaultKind(
        "flip_doorbell",
        "a bit flips in the word of the instruction's doorbell in the pool",
        Requirement.DETECT,
        effects.flip_doorbell,
        (IntegrityError, MismatchError, *_SILENT),
        fits=has_bell,
        may=("bit",),
        emulated=True,
        bits=64,
    ),
    FaultKind(
        "flip_superblock",
        "a bit of a superblock flips; a rank that attaches later gets an error",
        Requirement.SURVIVE,
        effects.flip_superblock,
        may=("bit", "card"),
    ),
)

for _kind in (*NATURE, *DOORBELLS, *RANKS, *CARDS_AND_LINKS, *BITS):
    register(_kind)
