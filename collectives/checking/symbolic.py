"""Contracts, checked on symbols: what every byte of a result is made of, whatever the data.

A plan is executed on a coherent pool whose bytes are not numbers but the contributions they were folded from, each a
(rank, offset in that rank's input). At the end every rank's output must be what its contract promises. One execution
suffices for *what* is computed; that it is computed in every interleaving is for the prover.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.checking.names import WEIGHTS_SHIFT, ComputedNames
from collectives.checking.symbols import (
    Fold,
    Symbol,
    SymbolicBytes,
    Term,
    aligned,
    first,
    flat,
    folded,
    joined,
    same_bits,
    text,
)
from collectives.contracts import Piece, postcondition
from collectives.fused.shapes import WEIGHTS
from cxlemu.engines.streams import Binding, Blocked, Streams, run_in_turn
from cxlemu.errors import ContractError
from cxlemu.plan import (
    DTYPE_NAMES,
    DTYPES,
    UNIFORM_ORDER,
    Call,
    Flag,
    Instruction,
    Kind,
    Op,
    Operand,
    Plan,
    RedOp,
    accesses,
)
from cxlemu.plan.kernels import KERNELS
from cxlemu.plan.reduction import commutes


class SymbolicDoorbell(NamedTuple):
    """What a doorbell's line shows: an epoch, and behind it a payload.

    ``told`` is the epoch with which the payload's places of arrays came, 0 if it has none.
    """

    epoch: int = 0
    payload: Sequence[Symbol] = ()
    told: int = 0


@dataclass
class SymbolicPool:
    """A coherent pool: an array of symbols for each card, and what doorbells show, by (card, offset)."""

    cards: list[SymbolicBytes]
    doorbells: dict[tuple[int, int], SymbolicDoorbell] = field(default_factory=lambda: defaultdict(SymbolicDoorbell))
    names: ComputedNames = field(default_factory=ComputedNames)  # of what all ranks compute


@dataclass
class SymbolicRank(Streams):
    """Executes one rank's part of a plan on symbols."""

    pool: SymbolicPool = field(kw_only=True)
    memory: list[SymbolicBytes] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory = [SymbolicBytes(buffer.nbytes) for buffer in self.part.buffers]

    def begin(self, shift: int = 0) -> None:
        """Fill this rank's inputs with its own contributions, whose offsets count from ``shift`` on."""
        inputs = {0: shift} | ({} if self.call.gemm is None else {WEIGHTS: shift + WEIGHTS_SHIFT})
        for buffer, offset in inputs.items():
            if size := self.part.buffers[buffer].nbytes:
                self.put(Operand(Kind.BUFFER, buffer), [Symbol(size, Fold(((self.part.rank, offset),)))])

    def promised(self, shift: int = 0) -> Iterator[Piece]:
        """Yield what this rank's output must be, for inputs whose offsets count from ``shift`` on."""
        if self.call.gemm is not None:
            yield from self.pool.names.postcondition(self.call, self.part.rank, shift)
            return
        for piece in postcondition(self.call, self.part.rank):
            yield piece._replace(contributions=tuple((rank, offset + shift) for rank, offset in piece.contributions))

    def local(self, operand: Operand) -> tuple[SymbolicBytes, int]:
        """Return the memory in which an operand really is, as buffers may lie inside others, and its first byte."""
        buffer, offset, index = self.part.buffers[operand.id], operand.offset, operand.id
        if buffer.inside:
            index = [b.name for b in self.part.buffers].index(buffer.inside)
            offset += buffer.at
        return self.memory[index], offset

    def fetch(self, operand: Operand, nbytes: int) -> list[Symbol]:
        """Read the symbols of an operand, in a buffer of this rank or in the pool."""
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
        base = accesses.region_base(self.frame, self.binding.layout, self.binding.epoch, operand)
        for run in self.frame.regions[operand.id].map.runs(operand.offset, nbytes):
            for block in range(run.blocks):
                offset = base + run.card_offset + block * run.block_bytes
                yield run.local_offset + block * run.stride_bytes, run.block_bytes, run.card, offset

    def execute(self, instruction: Instruction) -> Blocked | None:
        """Execute one instruction, or return what blocks it; then execute it again later."""
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
                offset, places = layout.doorbell_address(i.arg, epoch), epoch if i.flags & Flag.PLACES else 0
                shows = self.pool.doorbells[offset]._replace(epoch=epoch)
                if i.op == Op.SIGNAL_DATA or places:
                    payload = self.fetch(i.a, i.nbytes) if i.op == Op.SIGNAL_DATA else ()
                    shows = SymbolicDoorbell(epoch, payload, places)
                self.pool.doorbells[offset] = shows
            case Op.WAIT | Op.WAIT_DATA | Op.WAIT_ALL:
                for doorbell in accesses.doorbells(self.frame, i):
                    shows = self.pool.doorbells[layout.doorbell_address(doorbell, epoch)]
                    if shows.epoch < epoch:
                        return Blocked("", 0, i, doorbell, layout.owner(doorbell), epoch, shows.epoch)
                    if i.op == Op.WAIT_DATA:
                        self.put(i.dst, first(shows.payload, i.nbytes))
                    if i.op != Op.WAIT_ALL and i.flags & Flag.PLACES:
                        self._learn(doorbell, shows)
            case Op.RECORD:
                self.events.add(i.arg)
            case Op.AWAIT:
                return None if i.arg in self.events else Blocked("", 0, i)
            case Op.COMPUTE if KERNELS[self.frame.kernels[i.arg].name].checks:
                self._checksum(i)
            case Op.COMPUTE:
                self._multiply(i)
            case Op.FLUSH | Op.FENCE | Op.INVALIDATE:
                pass  # the symbolic pool is coherent
        return None

    def _learn(self, doorbell: int, shows: SymbolicDoorbell) -> None:
        heap, owner = self.call.heap, self.binding.layout.owner(doorbell)
        if heap is not None and heap.is_told and owner != self.part.rank and shows.told < self.binding.epoch:
            raise ContractError(
                f"[{self.call}] rank {self.part.rank} takes places of arrays from "
                f"{self.binding.layout.doorbell_name(doorbell)}, where no signal of the call stored any"
            )

    def _checksum(self, i: Instruction) -> None:
        kernel = self.frame.kernels[i.arg]
        _, nbytes, *came = KERNELS[kernel.name].sizes(kernel.parameters)
        checksum = self.pool.names.checksum(self.fetch(i.a, nbytes), i.nbytes)
        if came and (checksum.fold is None or joined(self.fetch(i.b, came[0])) != (checksum,)):
            raise ContractError(
                f"[{self.call}] rank {self.part.rank} compares bytes with a checksum of other bytes or of none"
            )
        self.put(i.dst, [checksum])

    def _multiply(self, i: Instruction) -> None:
        kernel = self.frame.kernels[i.arg]
        kind = KERNELS[kernel.name]
        if not kind.product:
            raise ContractError(f"[{self.call}] computes: its result is not a fold of contributions")
        size, (c, a, b) = DTYPES[kind.product].itemsize, kind.touches(kernel.parameters)
        columns = [
            [symbol for k in range(b.rows) for symbol in self.fetch(i.b.at(k * b.stride_bytes + at), size)]
            for at in range(0, b.row_bytes, size)
        ]
        for r in range(c.rows):
            row = self.fetch(i.a.at(r * a.stride_bytes), a.row_bytes)
            made = [self.pool.names.element(kind.product, row, column) for column in columns]
            self.put(i.dst.at(r * c.stride_bytes), made)

    def _folded(self, i: Instruction) -> list[Symbol]:
        sources = [self.fetch(operand, i.nbytes) for operand in (i.a, i.b, i.c) if operand.kind]
        if i.op in (Op.REDUCE, Op.REDUCE_LOCAL) and self.call.redop != "none":
            self._check_elements(i, sources)
        divisor = i.arg if i.flags & Flag.DIVIDE else 1
        return [Symbol(size, folded(folds, divisor)) for size, folds in aligned(sources)]

    def _check_elements(self, i: Instruction, sources: list[list[Symbol]]) -> None:
        """Check that a fold is one of the call's elements, with the call's operation."""
        dtype, redop = DTYPE_NAMES[i.dtype], RedOp(i.redop).name.lower()
        if (dtype, redop) != (self.call.dtype, self.call.redop):
            raise ContractError(f"[{self.call}] rank {self.part.rank} folds {dtype} with {redop}")
        for symbols in sources:
            offset = 0
            for symbol in symbols:
                if symbol.fold is not None and (begin := _begin(symbol.fold) - offset) % DTYPES[dtype].itemsize:
                    raise ContractError(
                        f"[{self.call}] rank {self.part.rank} folds parts of two elements as one: its first byte is "
                        f"byte {begin} of a contribution, and an element has {DTYPES[dtype].itemsize}"
                    )
                offset += symbol.nbytes


def verify(plan: Plan) -> None:
    """Check that a plan keeps its contract, whatever the data.

    Reductions must fold in the order that the call declares: then all ranks get the same bits. Which operand comes
    first does not matter where a op b has the bits of b op a.
    """
    call, layout = plan.call, plan.layout
    pool = SymbolicPool([SymbolicBytes(layout.extent_bytes) for _ in range(layout.cards)])
    binding = Binding(layout, base=0, epoch=layout.slots + 1, tag=plan.call.tag())
    for peer in range(plan.ranks):  # as a call in the middle of a run finds them
        pool.doorbells[layout.doorbell_address(layout.done(peer), 0)] = SymbolicDoorbell(layout.slots)
    ranks = [SymbolicRank(call, plan.frame, part, binding, pool=pool) for part in plan.parts]
    for rank in ranks:
        rank.begin()
    run_in_turn(ranks)
    check_results(ranks)


class _Held(NamedTuple):
    """A piece of a result, as its first holder has it."""

    rank: int
    at: int
    symbols: list[Symbol]


def check_results(ranks: Sequence[SymbolicRank], shift: int = 0) -> None:
    """Check the outputs of ranks that have executed a call, as `verify` does."""
    held: dict[tuple[tuple[int, int], ...], _Held] = {}
    for rank in ranks:
        for piece in rank.promised(shift):
            symbols = rank.fetch(Operand(Kind.BUFFER, 1, 0, piece.at), piece.nbytes)
            holder = _Held(rank.part.rank, piece.at, symbols)
            _compare(rank.call, holder, piece)
            if rank.call.fold_order == UNIFORM_ORDER:
                _compare_holders(rank.call, held.setdefault(piece.contributions, holder), holder)


def _compare(call: Call, held: _Held, piece: Piece) -> None:
    offset = 0
    for symbol in held.symbols:
        expected, got = _promised(piece, offset), symbol.fold
        is_whole = got is not None and flat(got) == flat(expected)
        is_right = same_bits(got, expected, commutes=commutes(call.dtype, call.redop))
        if not is_right and not (is_whole and call.fold_order == UNIFORM_ORDER):
            raise ContractError(
                f"[{call}] {_bytes(held, offset, symbol.nbytes)} are {text(got, call.redop)}, "
                f"the contract says {text(expected, call.redop)}" + (": folded in another order" if is_whole else "")
            )
        offset += symbol.nbytes


def _compare_holders(call: Call, first: _Held, held: _Held) -> None:
    """Check that ranks that hold the same result have folded it alike."""
    offset = 0
    for nbytes, (one, other) in aligned([first.symbols, held.symbols]):
        if not same_bits(one, other, commutes=commutes(call.dtype, call.redop)):
            raise ContractError(
                f"[{call}] {_bytes(held, offset, nbytes)} are {text(other, call.redop)}, "
                f"but rank {first.rank} has folded them as {text(one, call.redop)}"
            )
        offset += nbytes


def _bytes(held: _Held, at: int, nbytes: int) -> str:
    return f"bytes {held.at + at}..{held.at + at + nbytes - 1} of rank {held.rank}'s output"


def _begin(fold: Fold) -> int:
    """Where in its contribution the first term of a fold begins."""
    first = fold.terms[0]
    return _begin(first) if isinstance(first, Fold) else first[1]


def _promised(piece: Piece, at: int) -> Fold:
    """The fold of byte ``at`` of a piece. The fold from the left begins with the first group of those folded apart."""
    terms: tuple[Term, ...] = tuple((source, offset + at) for source, offset in piece.contributions)
    if piece.apart > 1:
        groups = [Fold(terms[k : k + piece.apart]) for k in range(0, len(terms), piece.apart)]
        terms = (*groups[0].terms, *groups[1:])
    return Fold(terms, piece.divisor)
