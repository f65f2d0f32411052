"""Contracts, checked on symbols: what every byte of a result is made of, whatever the data.

A plan is executed on a coherent pool whose bytes are not numbers but the contributions they were folded from, each a
(rank, offset in that rank's input). At the end every rank's output must be what its contract promises. One execution
suffices for *what* is computed; that it is computed in every interleaving is for the prover.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from collectives.contracts import Piece, postcondition
from cxlemu.engines.streams import Binding, Blocked, Streams, run_in_turn
from cxlemu.errors import ContractError
from cxlemu.kernels import KERNELS
from cxlemu.plan import Flag, Instruction, Kind, Op, Operand, Plan, RankPart

# One contribution, or a fold that was made apart before it was folded in (another order of rounding).
Term: TypeAlias = "tuple[int, int] | Fold"


class Fold(NamedTuple):
    terms: tuple[Term, ...]
    divisor: int = 1


class Symbol(NamedTuple):
    """``nbytes`` bytes; byte k is the fold of its contributions, each k bytes on. None: nobody wrote them."""

    nbytes: int
    fold: Fold | None


def _shift(fold: Fold | None, by: int) -> Fold | None:
    if fold is None or by == 0:
        return fold
    terms = (_shift(t, by) if isinstance(t, Fold) else (t[0], t[1] + by) for t in fold.terms)
    return Fold(tuple(t for t in terms if t is not None), fold.divisor)


class SymbolicBytes:
    """A byte array as runs of symbols."""

    def __init__(self, nbytes: int) -> None:
        self._starts = [0]
        self._folds: list[Fold | None] = [None]
        self._nbytes = nbytes

    def read(self, at: int, nbytes: int) -> list[Symbol]:
        end, found = at + nbytes, []
        index = bisect_right(self._starts, at) - 1
        while at < end:
            start = self._starts[index]
            stop = self._starts[index + 1] if index + 1 < len(self._starts) else self._nbytes
            size = min(stop, end) - at
            found.append(Symbol(size, _shift(self._folds[index], at - start)))
            at, index = at + size, index + 1
        return found

    def write(self, at: int, symbols: Sequence[Symbol]) -> None:
        end = at + sum(s.nbytes for s in symbols)
        first, last = bisect_right(self._starts, at) - 1, bisect_right(self._starts, end - 1) - 1
        before = self.read(self._starts[first], at - self._starts[first])
        stop = self._starts[last + 1] if last + 1 < len(self._starts) else self._nbytes
        after = self.read(end, stop - end)
        start = self._starts[first]
        starts: list[int] = []
        folds: list[Fold | None] = []
        for symbol in (*before, *symbols, *after):
            if not starts or symbol.fold != _shift(folds[-1], start - starts[-1]):  # otherwise the run goes on
                starts.append(start)
                folds.append(symbol.fold)
            start += symbol.nbytes
        self._starts[first : last + 1] = starts
        self._folds[first : last + 1] = folds


def _aligned(columns: Sequence[list[Symbol]]) -> Iterator[tuple[int, list[Fold | None]]]:
    """Cut equally long rows of symbols at each other's boundaries."""
    position = [0] * len(columns)
    consumed = [0] * len(columns)
    while position[0] < len(columns[0]):
        size = min(c[p].nbytes - d for c, p, d in zip(columns, position, consumed, strict=True))
        yield size, [_shift(c[p].fold, d) for c, p, d in zip(columns, position, consumed, strict=True)]
        for k, column in enumerate(columns):
            consumed[k] += size
            if consumed[k] == column[position[k]].nbytes:
                position[k], consumed[k] = position[k] + 1, 0


@dataclass
class SymbolicPool:
    """A coherent pool: one array of symbols a card, and the doorbells with their payloads."""

    cards: list[SymbolicBytes]
    doorbells: dict[tuple[int, int], tuple[int, list[Symbol]]] = field(default_factory=dict)

    def doorbell(self, at: tuple[int, int]) -> tuple[int, list[Symbol]]:
        return self.doorbells.get(at, (0, []))


@dataclass
class SymbolicRank(Streams):
    """Executes one rank's part on symbols."""

    pool: SymbolicPool = field(kw_only=True)
    memory: list[SymbolicBytes] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory = [SymbolicBytes(buffer.nbytes) for buffer in self.part.buffers]

    def local(self, operand: Operand) -> tuple[SymbolicBytes, int]:
        """The memory that an operand really is: a buffer may lie inside another."""
        buffer, at, index = self.part.buffers[operand.id], operand.offset, operand.id
        if buffer.inside:
            index = [b.name for b in self.part.buffers].index(buffer.inside)
            at += buffer.at
        return self.memory[index], at

    def fetch(self, operand: Operand, nbytes: int) -> list[Symbol]:
        if operand.kind == Kind.BUFFER:
            memory, at = self.local(operand)
            return memory.read(at, nbytes)
        symbols: dict[int, list[Symbol]] = {}
        for local, size, card, offset in self._pieces(operand, nbytes):
            symbols[local] = self.pool.cards[card].read(offset, size)
        return [symbol for local in sorted(symbols) for symbol in symbols[local]]

    def put(self, operand: Operand, symbols: list[Symbol]) -> None:
        if operand.kind == Kind.BUFFER:
            memory, at = self.local(operand)
            memory.write(at, symbols)
            return
        whole = SymbolicBytes(nbytes := sum(s.nbytes for s in symbols))
        whole.write(0, symbols)
        for local, size, card, offset in self._pieces(operand, nbytes):
            self.pool.cards[card].write(offset, whole.read(local, size))

    def _pieces(self, operand: Operand, nbytes: int) -> Iterator[tuple[int, int, int, int]]:
        """(offset in the operand, bytes, card, offset on the card) of every granule."""
        layout, region = self.binding.layout, self.frame.regions[operand.id]
        base = layout.heap_offset if region.heap else layout.slot_offset(self.binding.epoch + operand.seq)
        for run in region.map.runs(operand.offset, nbytes):
            for block in range(run.blocks):
                at = base + run.card_offset + block * run.block_bytes
                yield run.local_offset + block * run.stride_bytes, run.block_bytes, run.card, at

    def execute(self, instruction: Instruction) -> Blocked | None:
        i, layout, epoch = instruction, self.binding.layout, self.binding.epoch + instruction.value
        match i.op:
            case Op.WRITE | Op.WRITE_NT | Op.COPY:
                self.put(i.dst, self.fetch(i.a, i.nbytes))
            case Op.READ | Op.REDUCE | Op.REDUCE_LOCAL:
                result = self._folded(i)
                for target in (i.dst, i.dst2):
                    if target.kind:
                        self.put(target, result)
            case Op.SIGNAL | Op.SIGNAL_DATA:
                payload = self.fetch(i.a, i.nbytes) if i.op == Op.SIGNAL_DATA else []
                self.pool.doorbells[layout.doorbell_address(i.arg, epoch)] = (epoch, payload)
            case Op.WAIT | Op.WAIT_DATA | Op.WAIT_ALL:
                group = self.frame.groups[i.arg].doorbells if i.op == Op.WAIT_ALL else [i.arg]
                for doorbell in group:
                    shows, payload = self.pool.doorbell(layout.doorbell_address(doorbell, epoch))
                    if shows < epoch:
                        return Blocked("", 0, i, doorbell, layout.owner(doorbell), epoch, shows)
                    if i.op == Op.WAIT_DATA:
                        self.put(i.dst, payload)
            case Op.RECORD:
                self.events.add(i.arg)
            case Op.AWAIT:
                return None if i.arg in self.events else Blocked("", 0, i)
            case Op.COMPUTE if KERNELS[self.frame.kernels[i.arg].name].checks:
                self.put(i.dst, [Symbol(i.nbytes, None)])
            case Op.COMPUTE:
                raise ContractError(f"[{self.call}] computes: its result is no fold of contributions")
            case Op.FLUSH | Op.FENCE | Op.INVALIDATE:
                pass  # the symbolic pool is coherent
        return None

    def _folded(self, i: Instruction) -> list[Symbol]:
        sources = [self.fetch(operand, i.nbytes) for operand in (i.a, i.b, i.c) if operand.kind]
        divisor = i.arg if i.flags & Flag.DIVIDE else 1
        return [Symbol(size, _fold(folds, divisor)) for size, folds in _aligned(sources)]


def _fold(folds: list[Fold | None], divisor: int) -> Fold | None:
    """From the left: the first operand goes on, each further one is a contribution or a fold made apart."""
    known = [f for f in folds if f is not None]
    if len(known) < len(folds):
        return None
    first, *others = known
    if not others and divisor == 1:
        return first
    terms = first.terms if first.divisor == 1 else (first,)
    for other in others:
        terms += other.terms if len(other.terms) == 1 and other.divisor == 1 else (other,)
    return Fold(terms, divisor)


def verify(plan: Plan, *, rank_order: bool = True) -> None:
    """Raises ContractError naming rank, bytes and what they are made of, when a plan breaks its contract.

    ``rank_order``: reductions must fold in rank order from the left, as all our plans do (then results are the same
    bits everywhere); otherwise any order of the same contributions is right. DeadlineError for a plan that blocks.
    """
    call, layout = plan.call, plan.layout
    pool = SymbolicPool([SymbolicBytes(layout.extent_bytes) for _ in range(layout.cards)])
    binding = Binding(layout, base=0, epoch=layout.slots + 1, tag=plan.call.tag())
    for peer in range(plan.ranks):  # as a call in the middle of a run finds them
        pool.doorbells[layout.doorbell_address(layout.done(peer), 0)] = (layout.slots, [])
    ranks = [SymbolicRank(call, plan.frame, part, binding, pool=pool) for part in plan.parts]
    for rank, part in zip(ranks, plan.parts, strict=True):
        size = part.buffers[0].nbytes
        if size:
            rank.put(Operand(Kind.BUFFER, 0), [Symbol(size, Fold(((part.rank, 0),)))])
    run_in_turn(ranks)
    for rank, part in zip(ranks, plan.parts, strict=True):
        for piece in postcondition(call, part.rank):
            compare(plan, rank, part, piece, rank_order=rank_order)


def compare(plan: Plan, rank: SymbolicRank, part: RankPart, piece: Piece, *, rank_order: bool = True) -> None:
    """Raises ContractError where a piece of the rank's output is not what it must be."""
    at = 0
    for symbol in rank.fetch(Operand(Kind.BUFFER, 1, 0, piece.at), piece.nbytes):
        expected = _promised(piece, at)
        got = symbol.fold
        if got is not None and not rank_order:
            expected, got = _sorted(expected), _sorted(got)
        if got != expected:
            first = piece.at + at
            raise ContractError(
                f"[{plan.call}] bytes {first}..{first + symbol.nbytes - 1} of rank {part.rank}'s output are "
                f"{_text(symbol.fold)}, the contract says {_text(expected)}"
            )
        at += symbol.nbytes


def _promised(piece: Piece, at: int) -> Fold:
    """The fold of byte ``at`` of a piece. With the first group of those folded apart the fold from the left begins."""
    terms: tuple[Term, ...] = tuple((source, offset + at) for source, offset in piece.contributions)
    if piece.apart > 1:
        groups = [Fold(terms[k : k + piece.apart]) for k in range(0, len(terms), piece.apart)]
        terms = (*groups[0].terms, *groups[1:])
    return Fold(terms, piece.divisor)


def _sorted(fold: Fold) -> Fold:
    """The same contributions, in one order and without structure. A division made apart stays apart."""
    flat: list[Term] = []
    for term in fold.terms:
        inner = _sorted(term) if isinstance(term, Fold) else None
        flat += [term] if inner is None else inner.terms if inner.divisor == 1 else [inner]
    return Fold(tuple(sorted(flat, key=repr)), fold.divisor)


def _text(fold: Fold | None) -> str:
    if fold is None:
        return "never written"
    terms = (f"({_text(t)})" if isinstance(t, Fold) else f"rank {t[0]}[{t[1]}]" for t in fold.terms)
    return " + ".join(terms) + (f" / {fold.divisor}" if fold.divisor != 1 else "")
