"""Bytes as what they were folded from: contributions, each a (rank, offset in that rank's input)."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

# One contribution, or a fold that was made apart before it was folded in (another order of rounding).
Term: TypeAlias = "tuple[int, int] | Fold"

CHECKSUM = 10**13  # the offset of a contribution that stands for a checksum's first byte


class Fold(NamedTuple):
    """What a byte was folded from: ``terms`` from the left, then divided by ``divisor``."""

    terms: tuple[Term, ...]
    divisor: int = 1


class Symbol(NamedTuple):
    """``nbytes`` bytes; byte k is the fold of its contributions, each k bytes on. None: no rank wrote them."""

    nbytes: int
    fold: Fold | None


def _shift(fold: Fold | None, by: int) -> Fold | None:
    if fold is None or by == 0:
        return fold
    terms = (_shift(t, by) if isinstance(t, Fold) else (t[0], t[1] + by) for t in fold.terms)
    return Fold(tuple(t for t in terms if t is not None), fold.divisor)


def joined(symbols: Sequence[Symbol]) -> tuple[Symbol, ...]:
    """Describe the same bytes in as few symbols as possible."""
    whole: list[Symbol] = []
    for symbol in symbols:
        if whole and symbol.fold == _shift(whole[-1].fold, whole[-1].nbytes):
            whole[-1] = Symbol(whole[-1].nbytes + symbol.nbytes, whole[-1].fold)
        else:
            whole.append(symbol)
    return tuple(whole)


def first(symbols: Sequence[Symbol], nbytes: int) -> list[Symbol]:
    """Describe the first ``nbytes`` of some bytes, or all if there are fewer."""
    head = []
    for symbol in symbols:
        if nbytes > 0:
            head.append(symbol._replace(nbytes=min(symbol.nbytes, nbytes)))
        nbytes -= symbol.nbytes
    return head


class SymbolicBytes:
    """A byte array as runs of symbols. It begins as ``nbytes`` bytes that were never written."""

    def __init__(self, nbytes: int) -> None:
        self._starts = [0]
        self._folds: list[Fold | None] = [None]
        self._nbytes = nbytes

    def read(self, at: int, nbytes: int) -> list[Symbol]:
        """Read ``nbytes`` bytes from byte ``at`` on, as symbols in the order of memory."""
        end, symbols = at + nbytes, []
        index = bisect_right(self._starts, at) - 1
        while at < end:
            start = self._starts[index]
            stop = self._starts[index + 1] if index + 1 < len(self._starts) else self._nbytes
            size = min(stop, end) - at
            symbols.append(Symbol(size, _shift(self._folds[index], at - start)))
            at, index = at + size, index + 1
        return symbols

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


def aligned(columns: Sequence[list[Symbol]]) -> Iterator[tuple[int, list[Fold | None]]]:
    """Cut rows of symbols at each other's boundaries; yield each piece's bytes, and its fold in each row."""
    position = [0] * len(columns)
    consumed = [0] * len(columns)
    while position[0] < len(columns[0]):
        size = min(c[p].nbytes - d for c, p, d in zip(columns, position, consumed, strict=True))
        yield size, [_shift(c[p].fold, d) for c, p, d in zip(columns, position, consumed, strict=True)]
        for k, column in enumerate(columns):
            consumed[k] += size
            if consumed[k] == column[position[k]].nbytes:
                position[k], consumed[k] = position[k] + 1, 0


def folded(folds: list[Fold | None], divisor: int) -> Fold | None:
    """Combine operands from the left, and divide (1: not at all); None where an operand was never written.

    The first operand's fold continues; each further operand is a contribution or a fold made apart.
    """
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


def flat(fold: Fold) -> Fold:
    """Put a fold's contributions into one order, without structure. A division made apart stays apart."""
    terms: list[Term] = []
    for term in fold.terms:
        inner = flat(term) if isinstance(term, Fold) else None
        terms += [term] if inner is None else inner.terms if inner.divisor == 1 else [inner]
    return Fold(tuple(sorted(terms, key=repr)), fold.divisor)


def same_bits(one: Fold | None, other: Fold | None, *, commutes: bool) -> bool:
    """Whether two folds of equal contributions round alike."""
    if one == other or one is None or other is None or not commutes:
        return one == other
    numbers: dict[object, int] = {}
    return _number(one, numbers) == _number(other, numbers)


def _number(term: Term, numbers: dict[object, int]) -> int:
    """Equal for terms that differ in nothing but which operand is the left one."""
    key: object = term
    if isinstance(term, Fold):
        total, *others = (_number(each, numbers) for each in term.terms)
        for other in others:
            total = numbers.setdefault(("op", *sorted((total, other))), len(numbers))
        if term.divisor == 1:
            return total
        key = ("divided", total, term.divisor)
    return numbers.setdefault(key, len(numbers))


_SIGNS = {"prod": " * ", "band": " & ", "bor": " | ", "bxor": " ^ "}  # of what is not added, nor min or max


def text(fold: Fold | None, op: str = "sum") -> str:
    """Describe a fold for messages, such as "(rank 0[0] + rank 1[0]) / 2", or "max(rank 0[0], rank 1[0])"."""
    if fold is None:
        return "never written"
    called = op in ("min", "max") and len(fold.terms) > 1
    terms = [_term(each, op, apart=not called) for each in fold.terms]
    folded = f"{op}({', '.join(terms)})" if called else _SIGNS.get(op, " + ").join(terms)
    if fold.divisor == 1:
        return folded
    return (f"({folded})" if len(terms) > 1 and not called else folded) + f" / {fold.divisor}"


def _term(term: Term, op: str, *, apart: bool) -> str:
    if not isinstance(term, Fold):
        return _source(*term)
    return f"({text(term, op)})" if apart else text(term, op)


def _source(rank: int, offset: int) -> str:
    """A rank below 0 stands for what was computed (checking/names.py)."""
    return f"rank {rank}[{offset}]" if rank >= 0 else f"{'checksum' if offset >= CHECKSUM else 'product'} {-1 - rank}"
