"""Rounds: blocks are cut into what fits a slot, and a slot is used again only when all ranks are done with it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from collectives.builder.alike import APART, LEAST, AlikeRounds
from collectives.builder.part import DONE_GROUP, INPUT, OUTPUT, Event, Ints, PartBuilder
from collectives.builder.slots import Areas, Chunk, Loop, RegionIds, SlotCarrier
from collectives.contracts import COLLECTIVES, block_sizes, buffers
from cxlemu.errors import BuilderError, DeclinedError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import DoorbellGroup, Frame, Instruction, Kind, Op, Operand, RankPart
from cxlemu.rounding import round_up

ROUNDS_MAX = 1 << 16
SPREADS = ("cards", "ranges")


@dataclass
class Rounds(PartBuilder):
    """Loops over rounds: cuts blocks into chunks, and waits for slots before it uses them again."""

    carrier: SlotCarrier = field(init=False)
    _entered: str = field(init=False, default="")  # the stream that waited for the round's slot
    _rang: bool = field(init=False, default=False)  # a doorbell for which perhaps no rank waits
    is_open: bool = field(init=False, default=False)  # a round is under way

    def __post_init__(self) -> None:
        super().__post_init__()
        self.carrier = self._new_carrier()

    def _new_carrier(self) -> SlotCarrier:
        raise NotImplementedError

    @property
    def areas(self) -> Areas:
        """Where blocks lie in the loop that is under way, or in the last one."""
        return self.carrier.areas

    @property
    def grain(self) -> int:
        """How many bytes travel as one: separately published parts of a chunk begin at multiples of it."""
        return self.carrier.grain

    def _plan_areas(
        self, nbytes: int, writers: list[int], blocks: int, spread: str, chunk_bytes: int = 0, bells: int = 0
    ) -> tuple[int, int, Areas]:
        """Place the loop's blocks; arguments as in `rounds`, results as in `SlotCarrier.plan`."""
        return self.carrier.plan(Loop(nbytes, writers, blocks, spread, chunk_bytes, bells))

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
        """Cut blocks into rounds that fit a slot, and each round into chunks; no rounds where ``nbytes`` is 0.

        Args:
            nbytes: The size of each block in bytes.
            writers: The ranks that publish (default: all).
            blocks: How many blocks each writer publishes.
            spread: Always give it: "cards" where one rank writes or reads everything (1-to-N, N-to-1), "ranges" where
                all write and read (N-to-N).
            answered: Every rank that reads a rank's blocks sends it what they became, and so need not say that they
                were read.
            chunk_bytes: Chunks of this size, or smaller ones where a slot has no room; 0: as many as the variant says.
            bells: This many doorbells per rank and chunk, instead of one for each block; 0: one for each block.
            alike: In this many bytes from the start of each block, all whole rounds do the same with what they find
                there. Only the first of them are yielded, and the others follow from these: see alike.py.

        Yields:
            The chunks of each round, in order; a chunk holds the same part of every block.

        Raises:
            DeclinedError: A slot or the doorbells do not suffice.
        """
        if self.foreign:
            check_loop(self, nbytes, writers, blocks, bells, spread)
        if nbytes == 0:
            return
        writers = list(range(self.ranks)) if writers is None else writers
        piece, chunk_bytes, areas = self._plan_areas(nbytes, writers, blocks, spread, chunk_bytes, bells)
        self.carrier.areas, self.carrier.answered = areas, answered
        if nbytes > ROUNDS_MAX * piece:
            raise DeclinedError(
                f"{self.call}: takes more than {ROUNDS_MAX} rounds of {piece} bytes a block; give the communicator a "
                f"larger region, or choose a variant that moves more in a round"
            )
        done = self.layout.done(self.rank)
        many = alike // piece >= self.layout.slots + APART + LEAST and not (self.foreign or self.spec.checked)
        start, repeats = 0, AlikeRounds(self.written, self.layout.slots, done) if many else None
        while start < nbytes:
            seq, size = self.written.rounds, min(piece, nbytes - start)
            step = chunk_bytes or round_up(-(-size // areas.doorbells_per_block), LINE_BYTES)
            self._begin()
            chunks = [
                Chunk(seq, number, start + index, nbytes, number * round_up(step, LINE_BYTES), nbytes)
                for number, index in enumerate(range(0, size, step))
                for nbytes in (min(step, size - index),)
            ]
            for chunk in chunks:
                self.part(chunk, chunk.nbytes)
            if self.carrier.tells:
                self._enter(seq, "publish")
            self.carrier.begin(chunks)
            yield chunks
            self._end(seq)
            start += piece
            if repeats:
                start += piece * repeats.repeat((alike - start) // piece)
        if self.carrier.awaits_readers:  # the user may change it as soon as the call returns
            self._emit("retrieve", Op.WAIT_ALL, arg=DONE_GROUP, value=self.written.rounds - 1)
            self.carrier.awaits_readers = False

    @contextmanager
    def bells(self, count: int) -> Iterator[Chunk]:
        """Open a round in which no bytes travel: every rank has ``count`` doorbells to `signal` and `wait` for.

        Args:
            count: How many bells each rank has, 1 or more.

        Raises:
            BuilderError: A round is under way.
            DeclinedError: The layout has fewer doorbells.
        """
        if self.foreign:
            check_loop(self, 0, None, count, 0, "ranges")
        self.carrier.doorbells_of(count, "bells")
        self.carrier.areas = Areas(RegionIds(), 0, 1, bells=count)
        self._begin()
        yield Chunk(self.written.rounds, 0, 0, 0, 0)
        self._end(self.written.rounds)

    @property
    def round_number(self) -> int:
        """The number of the round that is under way, or else of the next one."""
        return self.written.rounds

    def part(self, chunk: Chunk, nbytes: int, at: int = 0) -> Chunk:
        """Take part of a chunk, to publish or retrieve it by itself.

        With checksums all ranks ask for all ranks' parts, as the table of checksums has them all.

        Args:
            nbytes: How many bytes; those beyond the chunk's end are left out.
            at: Where in the chunk they begin, a multiple of `grain`.
        """
        if self.foreign:
            check_chunk(self, "part", chunk)
            check_part(self, nbytes, at)
        at = min(at, chunk.nbytes)
        nbytes = min(nbytes, chunk.nbytes - at)
        if at:
            chunk = chunk._replace(offset=chunk.offset + at, slot_offset=chunk.slot_offset + at)
        if nbytes:
            self.carrier.prepare(nbytes)
        return chunk._replace(nbytes=nbytes)

    def cut(self, chunk: Chunk, sizes: Ints) -> list[Chunk]:
        """Take what uneven blocks have of a chunk, each of which may be empty: by `within`, as chunks.

        Args:
            sizes: The blocks' whole sizes in bytes, shape (n,).
        """
        if self.spec.checked:  # all ranks have checksums of all sizes in their tables
            for nbytes in np.unique(self.within(block_sizes(self.call), chunk)).tolist():
                self.part(chunk, nbytes)
        return [self.part(chunk, nbytes) for nbytes in self.within(sizes, chunk).tolist()]

    @staticmethod
    def within(sizes: Ints, chunk: Chunk) -> Ints:
        """Compute how many bytes of blocks of these sizes lie in a chunk, shape as ``sizes``."""
        return np.clip(sizes - chunk.offset, 0, chunk.nbytes)

    def meet(self) -> None:
        """Hold every rank until all have arrived; takes a round of its own."""
        self.written.groups.append(DoorbellGroup(0, self.ranks, self.layout.doorbells_per_rank))
        self._emit("publish", Op.SIGNAL, arg=self.layout.published(self.rank, 0), value=self.written.rounds)
        self._emit("retrieve", Op.WAIT_ALL, arg=len(self.written.groups) - 1, value=self.written.rounds)
        self._say_done(self.written.rounds)
        self.written.rounds += 1

    def _begin(self) -> None:
        self._entered, self._rang, self.is_open = "", False, True

    def _end(self, seq: int) -> None:
        self._leave(seq)
        self.written.rounds += 1
        self.is_open = False

    def _enter(self, seq: int, stream: str, after: Event | None = None) -> None:
        """Wait, before the first store of a round, until all ranks are done with the round that used this slot before.

        A stream that retrieved what a peer had stored in this round, or comes after that, knows as much from that peer.
        """
        if not self._entered:
            name = self._stream_name(stream)
            if max(self.written.free.get(name, -1), after.free if after else -1) < seq:
                self._emit(stream, Op.WAIT_ALL, arg=DONE_GROUP, value=seq - self.layout.slots)
                self.written.free[name] = seq
            self._entered = stream

    def _leave(self, seq: int) -> None:
        """Say "done" after a round's last access: all is read, and all writes have landed (every SIGNAL is fenced).

        For what this rank publishes in another stream, it need not wait where a peer retrieves it before the peer's own
        "done", because a slot is used again only when all ranks are done.
        """
        if self.foreign and (self._entered == "publish" or self._rang):
            self._order(self._record())
        self._say_done(seq)

    def finish(self) -> tuple[Frame, RankPart]:
        """Finish the part as `PartBuilder.finish` does. Raises BuilderError where a loop was left before its end."""
        if self.is_open:
            raise BuilderError(
                f"{self.call}: rank {self.rank} leaves round {self.round_number} by break: let it run to its end"
            )
        return super().finish()

    def _say_done(self, seq: int) -> None:
        """Signal "done"; where nothing was accessed since the round before, one signal stands for both."""
        before, done = self._instructions("retrieve"), self.layout.done(self.rank)
        last = before[-1] if before else None
        if isinstance(last, Instruction) and (last.op, last.arg) == (Op.SIGNAL, done):
            before.pop()
        self._emit("retrieve", Op.SIGNAL, arg=done, value=seq)


# --- sentences about mistakes in users' own algorithms: ours are held to plans' rules and proofs instead ------------


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
    if not isinstance(chunk, Chunk):
        raise BuilderError(f"{b.call}: {word} takes a chunk of a round, not {chunk!r}")
    if not b.is_open or chunk.seq != b.round_number:
        raise BuilderError(f"{b.call}: {word} of a chunk of round {chunk.seq}, which is over")


def check_part(b: Rounds, nbytes: object, offset: object) -> None:
    """Check that a part has 0 bytes or more, and begins at a multiple of the builder's grain."""
    if not _is_number(nbytes, 0) or not _is_number(offset, 0) or offset % b.grain:  # type: ignore[operator]
        which = f"{nbytes!r} at {offset!r}"
        raise BuilderError(f"{b.call}: part starts at a multiple of b.grain ({b.grain}), not {which}")


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
        raise BuilderError(f"{b.call}: {word} of {chunk.nbytes} bytes exceeds the room of its block in this round")
    check_bell(b, word, bell)


def check_bell(b: Rounds, word: str, bell: int | None) -> None:
    areas = b.areas
    if bell is not None and not (_is_number(bell, 0) and bell < areas.bells):
        raise BuilderError(f"{b.call}: {word} under bell {bell!r}, the loop has {areas.bells}: rounds(..., bells=)")


def check_rank(b: Rounds, word: str, rank: object) -> None:
    if not (_is_number(rank, 0) and rank < b.ranks):  # type: ignore[operator]
        raise BuilderError(f"{b.call}: {word} names rank {rank!r}, there are ranks 0..{b.ranks - 1}")


def check_peer(b: Rounds, word: str, peer: object) -> None:
    check_rank(b, word, peer)
    if peer == b.rank:
        raise BuilderError(f"{b.call}: {word} from rank {peer} itself: a rank has its own blocks, or copies them")


def check_local(b: Rounds, word: str, nbytes: int, *operands: object) -> None:
    """Check that operands are local memory, as b.input(), b.output() and b.scratch() return it, and that this rank has
    it where bytes are taken from there or put there."""
    for operand in operands:
        if not isinstance(operand, Operand) or operand.kind != Kind.BUFFER:
            raise BuilderError(f"{b.call}: {word} takes b.input(), b.output() or b.scratch(), not {operand!r}")
        rooted = nbytes and b.rank != b.root and COLLECTIVES[b.call.collective].rooted
        if rooted and operand.id in (INPUT, OUTPUT) and not buffers(b.call, b.rank)[operand.id].nbytes:
            what = "input" if operand.id == INPUT else "output"
            raise BuilderError(f"{b.call}: {word} of rank {b.rank}, which is not the root and has no {what}")


def check_event(b: Rounds, word: str, event: object) -> None:
    if event is not None and not isinstance(event, Event):
        raise BuilderError(f"{b.call}: {word} follows an event that the builder returned, not {event!r}")


def check_folds(b: Rounds, word: str) -> None:
    """Check that the call's collective reduces."""
    if not COLLECTIVES[b.call.collective].reduces:
        raise BuilderError(f"{b.call}: {b.call.collective} folds nothing, so it has no use for {word}")


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
