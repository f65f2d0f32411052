"""Rounds that differ in nothing but their number and their offsets: a few are written, and the others follow from them.

A large array takes thousands of rounds, and to write one takes Python a hundred microseconds. Where an algorithm says
that its rounds are `alike`, the first ones are written as ever. As soon as three in a row are apart by the same
numbers, all others are made as columns.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.builder.part import Written, concatenated
from cxlemu.plan import Instruction, Op
from cxlemu.plan.instructions import RECORD_DTYPE, Records, decode

LEAST = 8  # rounds for which it is worth while
APART = 3  # rounds in a row that are compared, once slots are used again
TRIES = 3

_WORDS = RECORD_DTYPE.itemsize // 8
# Words of several fields. In rounds that are alike only the upper halves differ: arg or seq.
_MIXED = [int(RECORD_DTYPE.fields[name][1]) // 8 for name in ("op", "dst", "dst2", "a", "b", "c")]  # type: ignore[index]
_NBYTES = int(RECORD_DTYPE.fields["nbytes"][1]) // 8  # type: ignore[index]


class Mark(NamedTuple):
    """How much is written when a round ends."""

    lengths: dict[str, int]  # the entries of each stream
    events: int  # the number of events that are waited for
    free: dict[str, int]  # up to which round each stream knows that slots are free
    # by (waiting stream, other stream): how many entries the other has after the awaited one
    behind: dict[tuple[str, str], int]
    tables: tuple[int, ...]  # the sizes of the tables to which rounds that are alike add nothing


class AlikeRounds:
    """Repeats the rounds of a rank's part."""

    def __init__(self, written: Written, slots: int, done: int) -> None:
        self._its, self._slots, self._done = written, slots, done
        self._marks = [self._mark()]
        self._tries = TRIES

    def repeat(self, rounds: int) -> int:
        """Write all ``rounds`` that follow if the last ones are equally far apart; return how many: all or none."""
        self._marks.append(self._mark())
        written = len(self._marks) - 1
        if rounds < LEAST or written < self._slots + APART or not self._tries:
            return 0
        self._tries -= 1
        before, last = self._marks[-2:]
        words = {name: self._apart(name) for name in last.lengths}
        growth = {name: last.free[name] - before.free.get(name, -1) for name in last.free}
        if None in words.values() or not set(growth.values()) <= {0, 1}:
            return 0
        if (
            last.tables != before.tables
            or last.behind != before.behind
            or last.events - before.events != self._events()
        ):
            return 0
        for name, word in words.items():
            assert word is not None
            self._write(name, *word, rounds)
        self._count(rounds, growth)
        return rounds

    def _events(self) -> int:
        return self._marks[-2].events - self._marks[-3].events

    def _mark(self) -> Mark:
        stretch = self._its
        lengths = {name: len(items) for name, items in stretch.streams.items()}
        behind = {names: lengths[names[1]] - offset for names, offset in stretch.follows.items()}
        tables = (
            len(stretch.regions),
            len(stretch.groups),
            len(stretch.kernels),
            stretch.scratch_bytes,
            *stretch.rows_at,
        )
        return Mark(lengths, len(stretch.awaited), dict(stretch.free), behind, tables)

    def _apart(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return the last round's words in a stream, and how far from those before; None: not steadily."""
        offset = len(self._marks) - 1 - APART
        first, second, third = (self._words(name, *self._marks[k : k + 2]) for k in range(offset, offset + APART))
        if first is None or second is None or third is None or not first.shape == second.shape == third.shape:
            return None
        apart = third - second
        steady = np.array_equal(apart, second - first) and not apart[:, _NBYTES].any()
        return (third, apart) if steady and not (apart[:, _MIXED] & 0xFFFFFFFF).any() else None

    def _words(self, name: str, begin: Mark, end: Mark) -> NDArray[np.int64] | None:
        """Encode what a round wrote to a stream, events of its own included; None for what cannot be repeated."""
        at = begin.lengths[name]
        items = self._its.streams[name][at : end.lengths[name]]
        events = [
            (where - at, number)
            for (stream, where), number in self._its.awaited.items()
            if stream == name and begin.events <= number < end.events
        ]
        for where, number in sorted(events, reverse=True):
            # Two events cannot be repeated: one of an earlier round, and one right behind a "done" that ends the round,
            # because a following round without any access takes that "done" back.
            if where < 0 or (where == len(items) and self._ends_in_done(items)):
                return None
            items.insert(where, Instruction(Op.RECORD, arg=number))
        records = concatenated(items)
        if (records["op"] == Op.COMPUTE).any():
            return None
        return records.view(np.int64).reshape(-1, _WORDS)

    def _write(self, name: str, last: NDArray[np.int64], apart: NDArray[np.int64], rounds: int) -> None:
        items = self._its.streams[name]
        done = self._ends_in_done(items)
        if not len(last):
            said = items[-1] if done else None
            if isinstance(said, Instruction):  # one stands for all rounds in which nothing is accessed
                items[-1] = said._replace(value=said.value + rounds)
            return
        words = last + apart * np.arange(1, rounds + 1)[:, None, None]
        records = words.reshape(-1, _WORDS).view(RECORD_DTYPE)[:, 0]
        items.append(records[:-1] if done else records)
        if done:  # as the builder looks whether "done" is the last
            items += decode(records[-1:])

    def _count(self, rounds: int, growth: dict[str, int]) -> None:
        stretch, events = self._its, self._events() * rounds
        for name, rise in growth.items():
            stretch.free[name] += rise * rounds
        for names, behind in self._marks[-1].behind.items():
            stretch.follows[names] = len(stretch.streams[names[1]]) - behind
        for number in range(len(stretch.awaited), len(stretch.awaited) + events):
            stretch.awaited["", number] = number  # their RECORDs are written
        stretch.rounds += rounds

    def _ends_in_done(self, items: list[Instruction | Records]) -> bool:
        last = items[-1] if items else None
        return isinstance(last, Instruction) and (last.op, last.arg) == (Op.SIGNAL, self._done)
