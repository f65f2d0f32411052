"""Folding: combines the blocks of all ranks in rank order, and may publish the result again."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collectives.builder.part import Event, Ints, repeated
from collectives.builder.rounds import Rounds, check_event, check_folds, check_local, check_peer, check_place
from collectives.builder.slots import Chunk
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import DTYPE_NAMES, NOTHING, Flag, Instruction, Kind, Op, Operand, RedOp, encode
from cxlemu.plan.instructions import OPERAND_DTYPE, OPERAND_FIELDS, RECORD_DTYPE, WHOLE, Records
from cxlemu.rounding import round_up

FOLDED_AT_ONCE = 16  # ranks from which on a fold's records are made as columns

# Whole operands are copied as what they are, bytes.
_OPERAND = np.dtype((np.void, OPERAND_DTYPE.itemsize))
_FLAT = np.dtype(
    [(name, _OPERAND if name in OPERAND_FIELDS else RECORD_DTYPE[name]) for name in RECORD_DTYPE.names or ()]
)


@dataclass
class Folds(Rounds):
    """Folds all peers' blocks, or one peer's: in chains, halving and doubling, trees. `Builder` describes arguments."""

    def fold(
        self,
        dst: Operand,
        chunk: Chunk,
        own: Operand,
        *,
        block: int = 0,
        republish: int | None = None,
        ranks: range | None = None,
        after: Event | None = None,
    ) -> Event:
        """Combine a chunk of all ranks' blocks in rank order, and publish the result where that is asked for.

        Args:
            dst: The local memory for the result.
            own: This rank's contribution, in local memory.
            republish: Publish the result as this block of this rank; None: do not.
            ranks: The ranks whose blocks are combined, two or more, without gaps (default: all).
        """
        if self.foreign:
            check_folds(self, "fold")
            check_place(self, "fold", chunk, self.peers[0], block, 1, None)
            if republish is not None:
                check_place(self, "fold", chunk, self.rank, republish, 1, None)
            check_local(self, "fold", chunk.nbytes, dst, own)
            check_event(self, "fold", after)
        self._order(after)
        later = self.spec.staged and republish is not None  # while the next chunk is read
        everyone = range(self.ranks) if ranks is None else ranks
        fetches_some = ranks is not None and self.carrier.fetches
        at_once = len(everyone) >= FOLDED_AT_ONCE and self.carrier.in_columns and not fetches_some
        fold = self._fold_at_once if at_once else self._fold_one_by_one
        fold(dst, chunk, own, block, None if later else republish, everyone)
        folded = self._record("retrieve")
        return folded if not later else self._published(chunk, dst, republish, folded)

    def _published(self, chunk: Chunk, src: Operand, block: int | None, after: Event) -> Event:
        """Publish a fold's result in the stream that publishes."""
        assert block is not None
        self._order(after, "publish")
        self.carrier.push("publish", chunk, [src], block)
        return self._record("publish")

    def combine(
        self,
        dst: Operand,
        chunk: Chunk,
        peer: int,
        own: Operand,
        *,
        block: int = 0,
        bell: int | None = None,
        peer_left: bool = True,
        last: bool = False,
        after: Event | None = None,
    ) -> Event:
        """Fold a chunk of a peer's block with local memory.

        For an empty chunk only the signal is waited for; in doorbells' lines nothing is.

        Args:
            dst: The local memory for the result, which may be that of ``own``.
            own: This rank's operand, in local memory.
            peer_left: The peer's is the left operand, as where the fold goes on from lower ranks to higher ones.
            last: Nothing is folded in after this, so that avg divides.
        """
        if self.foreign:
            check_folds(self, "combine")
            check_peer(self, "combine", peer)
            check_place(self, "combine", chunk, peer, block, 1, bell)
            check_local(self, "combine", chunk.nbytes, dst, own)
            check_event(self, "combine", after)
        self._order(after)
        theirs = self._theirs(chunk, peer, block, bell, row=1, fetched=self.carrier.fetches or not chunk.nbytes)
        if chunk.nbytes:
            self._combine(
                dst,
                NOTHING,
                chunk.nbytes,
                [theirs, own] if peer_left else [own, theirs],
                arrive=lambda _: self.carrier.await_chunk(chunk, peer, block, bell),
                divide=last and self.call.redop == "avg",
                stream="retrieve",
                accumulator=NOTHING,
            )
        return self._record("retrieve")

    def _fold_one_by_one(
        self, dst: Operand, chunk: Chunk, own: Operand, block: int, republish: int | None, ranks: range
    ) -> None:
        fetched = self.carrier.fetches
        order = self.peers[::-1] if self.spec.staged else list(ranks)
        theirs = {
            peer: self._theirs(chunk, peer, block, None, row=peer + 1, fetched=fetched)
            for peer in order
            if peer in ranks and peer != self.rank
        }
        sources = [own if peer == self.rank else theirs[peer] for peer in ranks]
        stored = republish is not None and self.carrier.in_slot(republish)
        if stored and self.carrier.reads_in_place and chunk.seq >= self.layout.slots:
            self._enter(chunk.seq, "retrieve")  # not for rounds before the call: all peers have begun it
        self._reduce(dst, chunk, sources, block, republish, ranks)
        if republish is not None:
            self.carrier.push("retrieve", chunk, [dst], republish, written=self.carrier.folds_into(republish))

    def _reduce(
        self, dst: Operand, chunk: Chunk, sources: list[Operand], block: int, republish: int | None, ranks: range
    ) -> None:
        self._combine(
            dst,
            self._republished(chunk, republish),
            chunk.nbytes,
            sources,
            arrive=lambda number: self.carrier.await_chunk(chunk, ranks[number], block),
            divide=self.call.redop == "avg",
            stream="retrieve",
            accumulator=self._scratch(chunk.nbytes) if len(sources) > 3 else NOTHING,
        )

    def _combine(
        self,
        dst: Operand,
        dst2: Operand,
        nbytes: int,
        sources: list[Operand],
        *,
        arrive: Callable[[int], object],
        divide: bool,
        stream: str,
        accumulator: Operand,
    ) -> None:
        """Fold from the left, accumulating in scratch: in place, ``dst`` may be an operand of a later step.

        ``arrive`` emits what makes source number k readable, where it lies in the pool.
        """
        op = Op.REDUCE_LOCAL if self.carrier.fetches else Op.REDUCE
        todo = list(enumerate(sources))
        sum_so_far: list[Operand] = []
        while todo:
            now, todo = todo[: 3 - len(sum_so_far)], todo[3 - len(sum_so_far) :]
            for number, operand in now:
                if operand.kind == Kind.REGION:
                    arrive(number)
            last = not todo
            target = dst if last else accumulator
            self._emit(
                stream,
                op,
                arg=self.ranks if last and divide else 0,
                flags=Flag.DIVIDE if last and divide else 0,
                nbytes=nbytes,
                dst=target,
                dst2=dst2 if last else NOTHING,
                sources=sum_so_far + [operand for _, operand in now],
            )
            sum_so_far = [target]

    def _fold_at_once(
        self, dst: Operand, chunk: Chunk, own: Operand, block: int, republish: int | None, ranks: range
    ) -> None:
        """Fold as `fold` and `_reduce` do, for sources in slots, as columns."""
        if self.carrier.fetches:
            self._fetch_at_once(chunk, block)
            self._fold_fetched(dst, chunk, own)
            return
        everyone = np.array(ranks)
        offset = np.full(len(ranks), block * self.areas.block_bytes + chunk.slot_offset)
        sources = operands(Kind.REGION, self.carrier.regions_of(everyone), chunk.seq, offset)
        sources[everyone == self.rank] = own
        doorbells = everyone * self.layout.doorbells_per_rank + self.carrier.doorbell(chunk, 0, block)
        self._combine_rows(
            dst,
            self._republished(chunk, republish),
            chunk,
            sources,
            doorbells,
            own=self.rank - ranks.start,
            divide=self.call.redop == "avg",
            stream="retrieve",
            accumulator=self._scratch(chunk.nbytes),
        )
        if republish is not None:
            self.carrier.push("retrieve", chunk, [dst], republish, written=True)

    def _fetch_at_once(self, chunk: Chunk, block: int) -> None:
        """Bring every peer's block to its row of scratch memory, in the order of `_fold_one_by_one`."""
        peers = self.each_peer[::-1]
        last, first = self._scratch(chunk.nbytes, row=self.ranks), int(peers[0])
        stride = round_up(chunk.nbytes, LINE_BYTES)
        rows = self._rows("retrieve", len(peers), lambda: self.carrier.take([last], chunk, first, block))
        wait, drop, read = (rows[:, column] for column in range(3))
        wait["arg"] += ((peers - first) * self.layout.doorbells_per_rank).astype(np.int32)
        drop["a"]["id"] = read["a"]["id"] = self.carrier.regions_of(peers)
        read["dst"]["offset"] = last.offset + (peers + 1 - self.ranks) * stride

    def _fold_fetched(self, dst: Operand, chunk: Chunk, own: Operand, stride: int = 0) -> None:
        """Fold the rows of scratch memory, ``stride`` bytes apart, and what this rank contributes, in rank order."""
        stride = stride or round_up(chunk.nbytes, LINE_BYTES)
        row = self._scratch(stride, row=self.ranks)
        ids = np.full(self.ranks, row.id)
        sources = operands(Kind(row.kind), ids, 0, row.offset + (np.arange(self.ranks) + 1 - self.ranks) * stride)
        sources[self.rank] = own
        last = self._last_reduce(Op.REDUCE_LOCAL, dst, NOTHING, chunk.nbytes, self.call.redop == "avg")
        self._instructions("retrieve").append(chain(sources, last, self._scratch(stride))[0])

    def _last_reduce(self, op: Op, dst: Operand, dst2: Operand, nbytes: int, divide: bool) -> Instruction:
        """The REDUCE that ends a fold of all ranks' blocks."""
        return Instruction(
            op,
            DTYPE_NAMES.index(self.call.dtype),
            RedOp[self.call.redop.upper()],
            Flag.DIVIDE if divide else 0,
            self.ranks if divide else 0,
            nbytes=nbytes,
            dst=dst,
            dst2=dst2,
        )

    def _combine_rows(
        self,
        dst: Operand,
        dst2: Operand,
        chunk: Chunk,
        sources: Records,
        doorbells: Ints,
        *,
        own: int,
        divide: bool,
        stream: str,
        accumulator: Operand,
    ) -> None:
        """Combine as `_combine` does: sources in slots, each under its doorbell, except number ``own``, this rank's."""
        last = self._last_reduce(Op.REDUCE, dst, dst2, chunk.nbytes, divide)
        wait = Instruction(Op.WAIT, value=chunk.seq, nbytes=chunk.nbytes)
        self._instructions(stream).append(folded(sources, wait, doorbells, last, accumulator, own))

    def _republished(self, chunk: Chunk, block: int | None) -> Operand:
        into = block is not None and self.carrier.folds_into(block)
        return self.carrier.area(chunk, self.rank, block) if block is not None and into else NOTHING

    def _theirs(self, chunk: Chunk, peer: int, block: int, bell: int | None, *, row: int, fetched: bool) -> Operand:
        """Return where a peer's block is folded from: the pool or, once it was fetched, a row of scratch memory."""
        if not fetched:
            return self.carrier.area(chunk, peer, block)
        place = self._scratch(chunk.nbytes, row=row)
        self.carrier.take([place], chunk, peer, block, bell)
        return place


# --- records by the thousand ------------------------------------------------------------------------------------


def operands(kind: Kind, ids: Ints, seq: int, offsets: Ints) -> Records:
    """Make operands of one kind and round as records of OPERAND_DTYPE; ids and offsets are of shape (n,)."""
    found = np.zeros(len(offsets), OPERAND_DTYPE)
    found["kind"], found["id"], found["seq"], found["offset"] = kind, ids, seq, offsets
    return found


def folded(
    sources: Records, wait: Instruction, doorbells: Ints, reduce: Instruction, accumulator: Operand, rank: int
) -> Records:
    """Make the records of a fold over many sources, from the left.

    A WAIT and an INVALIDATE come for each source except ``rank``'s own, if that is among them, and a REDUCE as soon as
    the first three or the next two are there.
    """
    count, whole = len(sources), sources.view(_OPERAND)
    reduces, lasts = chain(sources, reduce, accumulator)
    others = np.flatnonzero(np.arange(count) != rank)
    waits = repeated([wait, wait._replace(op=Op.INVALIDATE, value=0)], len(others)).view(_FLAT)
    waits["arg"][:, 0], waits["nbytes"][:, 0] = doorbells[others], 0
    waits["a"][:, 1] = whole[others]
    keys = np.concatenate([np.column_stack([3 * others, 3 * others + 1]).reshape(-1), 3 * lasts + 2])
    rows = np.concatenate([waits.reshape(-1).view(WHOLE), reduces.view(WHOLE)])
    return rows[np.argsort(keys, kind="stable")].view(RECORD_DTYPE)


def chain(sources: Records, reduce: Instruction, accumulator: Operand) -> tuple[Records, Ints]:
    """Make the REDUCEs of a fold, of the first three sources, then of two more each, and number each one's last
    source."""
    count, whole = len(sources), sources.view(_OPERAND)
    lasts = np.minimum(np.arange(2, count + 2, 2), count - 1)[: max(1, count // 2)]
    partial = reduce._replace(dst=accumulator, dst2=NOTHING, flags=0, arg=0, a=accumulator)
    reduces = repeated([partial], len(lasts))[:, 0].view(_FLAT)
    reduces[-1:] = encode([reduce._replace(a=accumulator)]).view(_FLAT)
    reduces["a"][0], reduces["b"][0] = whole[0], whole[1]
    if count > 2:
        reduces["c"][0] = whole[2]
    reduces["b"][1:] = whole[lasts[:-1] + 1]
    pairs = np.flatnonzero(lasts[1:] - lasts[:-1] == 2) + 1
    reduces["c"][pairs] = whole[lasts[pairs]]
    return reduces.view(RECORD_DTYPE), lasts
