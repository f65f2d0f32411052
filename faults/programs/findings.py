"""What the checker of programs finds: as it lies in the memory of a run, and in the prover's words."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

# enum check_role in native/check.h: the places that a finding names.
ROLES = ("store", "flush", "fence", "published", "told", "access", "drop", "drop_fence", "arrives")
_LAYOUT = struct.Struct("<HHBBBBHHIqqQ10I10Q64s64s4q")  # program_finding in native/program.h
_ROLES_MAX = 10


class MistakeKind(NamedTuple):
    """A kind of mistake."""

    name: str  # its name in reports and suppressions
    rule: str  # the rule that is broken: one of the prover's, or the checker's own
    title: str  # the mistake in three to eight words
    sentence: str  # what is wrong; ``{host}`` goes wrong at ``{line}``, ``{by}`` is the other host
    missing: str = ""  # the instruction that would repair it; empty: no single one would
    repaired_at: str = "access"  # the role at whose place that instruction belongs, right behind it or before it
    warns: bool = False  # it does not fail a run: processors hardly do what the manual lets them do


# enum check_kind in native/check.h.
KINDS: dict[int, MistakeKind] = {
    1: MistakeKind(
        "not-flushed",
        "landed",
        "a store that is not flushed",
        "{host} reads {line}, which {by} did not flush after its store",
        "flush the line after the store (cxl_flush), and fence (cxl_fence), before it is published",
        "store",
    ),
    2: MistakeKind(
        "not-fenced",
        "landed",
        "a flush without a fence",
        "{host} reads {line}, which {by} did not fence before its signal",
        "fence (cxl_fence) between the flush and the store that publishes it",
        "flush",
    ),
    3: MistakeKind(
        "fence-too-late",
        "landed",
        "a fence after the store that publishes",
        "{host} reads {line}, which {by} fenced only after it had published it",
        "fence (cxl_fence) between the flush and the store that publishes it, not after that",
        "flush",
    ),
    4: MistakeKind(
        "no-invalidate",
        "fresh",
        "a load without an invalidate",
        "{host} reads {line} but did not invalidate it after the wait",
        "invalidate the line (cxl_invalidate) before the load, after learning of the store",
    ),
    5: MistakeKind(
        "invalidated-early",
        "fresh",
        "an invalidate before the wait",
        "{host} reads {line} but invalidated it before the wait, not after it",
        "invalidate the line (cxl_invalidate) after learning of the store, not before",
    ),
    6: MistakeKind(
        "invalidate-unfenced",
        "fresh",
        "an invalidate that no mfence orders",
        "{host} reads {line}, which it flushed but did not fence: it may still be in the cache",
        "a full fence (mfence, or cxl_invalidate as a whole) between the flush and the load",
        "drop",
    ),
    7: MistakeKind(
        "two-writers",
        "false_sharing",
        "two hosts write one line in no order",
        "{host} stores to {line}, to which {by} stores in another order or at the same time: one of them is lost",
        "a line of its own for each writer, or a chain that orders the two stores",
    ),
    8: MistakeKind(
        "residue",
        "residue",
        "a store beside a dirty word of another host",
        "{host} stores to {line}, over which the line that {by} left dirty may still be written",
        "flush and fence the line there (cxl_flush, cxl_fence) before the other host stores to it",
        "store",
    ),
    9: MistakeKind(
        "older-write",
        "older_write",
        "a store over one that has not arrived",
        "{host} stores to {line}, over which an older store of {by} may still arrive: it had not landed",
        "flush and fence the older store (cxl_flush, cxl_fence) before it is published",
        "store",
    ),
    10: MistakeKind(
        "stale-allocate",
        "stale_allocate",
        "a write-back with old words of another host",
        "{host} stores to {line} in part while holding an older copy of the rest, which {by} wrote",
        "invalidate the line (cxl_invalidate) before the store, or a line of its own for each writer",
    ),
    11: MistakeKind(
        "locked-across-hosts",
        "atomic",
        "a locked instruction on a word of two hosts",
        "{host} changes {line} by a locked instruction, and {by} writes it as well: no lock reaches across hosts",
        "a protocol of plain stores, each word with one writer; or hardware that keeps caches coherent (--coherent)",
    ),
    12: MistakeKind(
        "flush-outside",
        "outside",
        "a flush of an address outside of the pool",
        "{host} flushes {line}, which is in no pool: perhaps a pointer's own address instead of its target",
        "flush the address that was stored to",
    ),
    13: MistakeKind(
        "msync",
        "msync",
        "msync in place of a flush",
        "{host} calls msync on {line}, which it did not flush: on a DAX device msync leaves caches alone",
        "flush and fence the stores (cxl_flush, cxl_fence)",
        "store",
    ),
    14: MistakeKind(
        "dirty-at-exit",
        "exit",
        "a store that is never flushed",
        "{by}'s store to {line} was not flushed when the last process had ended: it may never arrive",
        "flush and fence (cxl_flush, cxl_fence) before the process ends",
        "store",
    ),
    15: MistakeKind(
        "lost-update",
        "order",
        "a store that another host's write-back undid",
        "{host} reads {line}, where {by}'s store is gone: another host wrote the whole line back over it",
        "a line of its own for each writer; or a chain that orders the stores, with an invalidate before each",
    ),
    16: MistakeKind(
        "out-of-room",
        "room",
        "the checker has no more room",
        "the checker has used up its memory: from there on nothing was judged",
        "a run that touches fewer lines of the pool, or --no-check",
    ),
    17: MistakeKind(
        "invalidate-overtakes",
        "fresh",
        "an invalidate that no lfence orders",
        "{host} invalidates {line} by a clflushopt that may overtake the load that learned of {by}'s store",
        "lfence (or cxl_invalidate as a whole) between the load that learned of the store and the clflushopt",
        "drop",
        warns=True,
    ),
    18: MistakeKind(
        "lost-in-crash",
        "crash",
        "a store that a crash loses",
        "{host} reads {line}, where a store of {by} did not arrive before its crash",
        "flush and fence the store (cxl_flush, cxl_fence) before the store that makes recovery depend on it",
    ),
    19: MistakeKind(
        "assertion",
        "assertion",
        "an assertion that does not hold",
        "{host}: the condition of cxl_assert is false",
    ),
    20: MistakeKind(
        "invariant",
        "invariant",
        "an invariant that does not hold",
        "the pool's own bytes break an invariant of {host}, with {line} as {by} has left it",
    ),
    21: MistakeKind(
        "not-linearizable",
        "linearizable",
        "a history that no order explains",
        "no order of these operations, each at once between its begin and its end, gives {host} this result",
    ),
    22: MistakeKind(
        "copy-not-ended",
        "landed",
        "a device's copy that has not ended",
        "{host} uses {line}, to which a device of {by} copies: nothing shows that the copy has ended",
        "wait for the copy's event (cxl_device_wait) before its bytes are published, read or stored over",
        "store",
    ),
    23: MistakeKind(
        "torn-in-crash",
        "crash",
        "a store that a crash tears",
        "{host} reads {line}, where only some words of a store of {by} had arrived before its crash",
        "let recovery depend on a later store of one word (a flag, a length), behind a flush and a fence of this one",
    ),
    24: MistakeKind(
        "torn",
        "torn",
        "a copy that arrives in parts",
        "{host} reads {line}, where only some words of a store of {by} had arrived",
        "let readers wait for a later store of one word (a flag, a sequence number), which is no part of this one",
        "store",
    ),
    25: MistakeKind(
        "torn-load",
        "torn",
        "a copy that is loaded in parts",
        "{host} copies {line}: some words as they were before a store of {by}, and others as they were behind it",
        "load the flag by itself, and copy the rest when it is set: both are words of this copy",
    ),
}
LOST_IN_CRASH, INVARIANT, NOT_LINEARIZABLE, TORN_IN_CRASH, TORN, TORN_LOAD = 18, 20, 21, 23, 24, 25
UNKNOWN_THREAD = 65535
OF_FAILURES = (LOST_IN_CRASH, TORN_IN_CRASH, TORN, TORN_LOAD)  # they only show why a run has failed
STATED = ("assertion", "invariant", "linearizable")  # rules that programs state of themselves


_NOT_FENCED, _FENCED_LATE = 2, 3
_SO_FAR = 2  # enum stuck in native/check.h


@dataclass(frozen=True)
class ProgramFinding:
    """A finding, with numbers in place of positions."""

    kind: int  # a key of KINDS
    manifest: bool  # whether wrong bytes were returned in this very run; else they would be in another execution
    host: int  # the host that goes wrong
    other_host: int  # the other host that is involved; 255: none
    pool: int  # the pool; 255: none
    thread: int  # the thread that goes wrong
    other_thread: int  # the other host's thread; 65535: none
    times: int  # how often it was found
    offset: int  # where in the pool; of a flush outside of every pool, the address
    nbytes: int  # size of the range that the finding is about
    number: int  # the step at which it was found; 0 where the run got stuck
    sites: tuple[int, ...]  # for each of ROLES the number of a position; 0: unknown, or there is none
    numbers: tuple[int, ...]  # for each of ROLES the number of the step; 0: unknown, or there is none
    stuck: bool = False  # found because the run made no progress: this load is repeated for ever
    so_far: bool = False  # or because the run was given up: perhaps not for ever
    sfence: bool = False  # the only fence after the reader's flush was an sfence
    by_start: bool = False  # the reader knew because the writer had ended before it started
    flush_late: bool = False  # the flush came when the reader already knew of the store
    seen: bytes = b""  # of an invariant, the bytes that break it

    SIZE = _LAYOUT.size

    def site(self, role: str) -> int:
        """Return the number of a role's position; 0: there is none."""
        return self.sites[ROLES.index(role)]

    @property
    def warns(self) -> bool:
        """Whether it fails no run."""
        return self.so_far or (self.kind in KINDS and KINDS[self.kind].warns)

    @property
    def publishes_itself(self) -> bool:
        """Whether the host learned of a store by no other one than this very store: it saw another line of it first."""
        published = self.numbers[ROLES.index("published")]
        return KINDS[self.kind].rule == "landed" and published == self.numbers[ROLES.index("store")] > 0

    @classmethod
    def one(cls, data: bytes) -> ProgramFinding:
        """Read one ``program_finding``; unknown kinds are left for `many` to refuse."""
        kind, rule, host, other, pool, _, thread, other_thread, times, offset, nbytes, number, *rest = _LAYOUT.unpack(
            data
        )
        sites, numbers, (seen, _, *extra) = rest[:_ROLES_MAX], rest[_ROLES_MAX : 2 * _ROLES_MAX], rest[2 * _ROLES_MAX :]
        sfence, by_start, late = map(bool, extra[1:])
        return cls(
            kind,
            bool(rule),
            *(host, other, pool, thread, other_thread, times, offset, nbytes, number),
            tuple(sites[: len(ROLES)]),
            tuple(numbers[: len(ROLES)]),
            *(extra[0] > 0, extra[0] == _SO_FAR, sfence, by_start, late),
            seen=seen[:nbytes] if kind == INVARIANT else b"",
        )

    @classmethod
    def many(cls, data: bytes) -> list[ProgramFinding]:
        """Read findings that lie one after another."""
        if len(data) % cls.SIZE:
            raise ValueError(f"{len(data)} bytes are not whole findings of {cls.SIZE}")
        findings = [cls.one(data[begin : begin + cls.SIZE]) for begin in range(0, len(data), cls.SIZE)]
        for each in findings:
            if each.kind not in KINDS:
                raise ValueError(f"there is no kind {each.kind} of findings")
        return findings


def merged(findings: Iterator[ProgramFinding] | list[ProgramFinding]) -> list[ProgramFinding]:
    """Join findings of one mistake, summing ``times``; a manifest one comes before a predicted one."""
    joined: dict[tuple[int, int, int], ProgramFinding] = {}
    for each in sorted(findings, key=lambda each: (not each.manifest, each.kind != one_mistake(each.kind))):
        key = (one_mistake(each.kind), each.site("store"), each.site("access"))
        first = joined.setdefault(key, each)
        if first is not each:
            joined[key] = replace(first, times=first.times + each.times)
    return list(joined.values())


def one_mistake(kind: int) -> int:
    """Return the kind under which findings are joined.

    A fence that comes too late is a missing fence in a run that ends before it comes, so both are one mistake.
    """
    return _FENCED_LATE if kind == _NOT_FENCED else kind
