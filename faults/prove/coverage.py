"""What proofs covered and what they did not, in words and as data: every verdict states it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from collectives.builder.recipes import CHECKED
from collectives.contracts import COLLECTIVES
from cxlemu.choices import DTYPE_NAMES, REDOPS
from cxlemu.plan import Call
from cxlemu.plan.reduction import folds
from cxlemu.units import format_numbers
from faults.prove.sequences import ALL_ROOTS_RANKS

COMBINED = "each with each"
IN_TURNS = "each number of ranks with each size and place; each {} with each number of ranks and with each size"


@dataclass(frozen=True)
class Covered:
    """One call that was proved."""

    call: Call
    size: str  # its size in words
    roots: tuple[int, ...] | None = None  # the roots that it was proved for; None: as `prove` chooses them


@dataclass(frozen=True)
class Coverage:
    """What all calls that were proved right have covered."""

    collectives: tuple[str, ...]  # names of the collectives and fused products
    variants: tuple[str, ...]  # names of the variants, and of styles of fused products
    ranks: tuple[int, ...]  # numbers of ranks, rising
    sizes: tuple[str, ...]  # sizes in words
    dtypes: tuple[str, ...]  # names of the dtypes
    ops: tuple[str, ...]  # names of the operations
    roots: tuple[int, ...] | None  # the roots that were asked for; None: all, or a few if there are many ranks
    rooted: bool  # whether any of the collectives has a root
    in_place: tuple[bool, ...]  # the places that were proved: out of place (False), in place (True) or both
    combined: str  # how ranks, sizes, dtypes and operations were combined, in words
    machine: str  # the machine on whose rings they were proved
    clusters: tuple[int, ...] = ()  # numbers of ranks in each cluster; empty without clusters
    ranks_per_host: int = 1  # how many ranks each host has
    unmet: tuple[str, ...] = ()  # dtypes with the operations that they did not meet, in words

    @classmethod
    def of(
        cls, calls: Iterable[Covered], *, machine: str, combined: str = COMBINED, ranks_per_host: int = 1
    ) -> Coverage:
        """Sum up calls that were proved."""
        covereds = list(calls)
        moving = [one for one in covereds if one.call.gemm is not None or COLLECTIVES[one.call.collective].moves_data]
        plain = [one for one in moving if one.call.gemm is None]
        pairs = {(one.call.dtype, one.call.redop) for one in plain}
        chosen = [one for one in plain if not COLLECTIVES[one.call.collective].one_buffer] or plain
        return cls(
            collectives=_unique(one.call.collective for one in covereds),
            variants=_unique(one.call.algorithm for one in covereds),
            ranks=tuple(sorted({one.call.ranks for one in covereds})),
            sizes=_unique(one.size if one.call.gemm is None else "small matrices" for one in moving),
            dtypes=_unique(one.call.dtype for one in moving),
            ops=_unique(one.call.redop for one in plain if one.call.redop != "none"),
            roots=_roots_of(covereds),
            rooted=any(_rooted(one.call) for one in covereds),
            in_place=tuple(sorted({one.call.in_place for one in chosen})),
            combined=combined,
            machine=machine,
            clusters=tuple(sorted({one.call.cluster for one in covereds} - {1})),
            ranks_per_host=ranks_per_host,
            unmet=tuple(_unmet(pairs)),
        )

    def as_dict(self) -> dict[str, Any]:
        """The coverage as JSON has it: all attributes, and both sentences."""
        return asdict(self) | {"covered": self.covered(), "not_covered": self.not_covered()}

    def sentence(self, more: Sequence[str] = (), *, violated: bool) -> str:
        """Say in a line what was proved, ``more``, and what is left open; ``violated``: not all proofs succeeded."""
        if violated and not self.ranks:
            return ". ".join(["covered: nothing, since every proof stopped at its violation", *more])
        return ". ".join([f"covered: {self.covered()}", *more, f"not covered: {self.not_covered()}"])

    def covered(self) -> str:
        """Say in words what was proved."""
        if not self.ranks:
            return "nothing"
        words = [
            ", ".join(self.collectives),
            f"n = {format_numbers(self.ranks)}"
            + (f", clusters of {format_numbers(self.clusters)}" if self.clusters else ""),
            "; ".join([", ".join(names) for names in (self.sizes, self.ops, self.dtypes) if names]),
        ]
        if self.ranks_per_host > 1:
            words.append(f"{self.ranks_per_host} ranks a host")
        if self.rooted:
            words.append(self._roots_text())
        if self.dtypes:
            words.append(" and ".join("in place" if place else "out of place" for place in self.in_place))
        if len(self.ranks) > 1 or len(self.sizes) > 1:
            words.append(self.combined)
        words.append(f"rings of {self.machine}; any calls before and after")
        return "; ".join(word for word in words if word)

    def not_covered(self) -> str:
        """Say in words what these proofs leave open."""
        if not self.ranks:
            return "everything"
        below = [count for count in range(2, self.ranks[-1]) if count not in self.ranks]  # one rank only copies
        words = [f"n = {format_numbers(below)}" if below else "", f"n above {self.ranks[-1]}"]
        if self.dtypes:
            words.append("other sizes")
        if self.rooted and self.roots is not None:
            words.append("other roots")
        elif self.rooted and self.ranks[-1] > ALL_ROOTS_RANKS:
            words.append(f"other roots of more than {ALL_ROOTS_RANKS} ranks")
        if self.ops:
            words.append(_others("ops", REDOPS, self.ops))
        if self.dtypes:
            words.append(_others("dtypes", tuple(DTYPE_NAMES), self.dtypes))
            words += self.unmet
            if self.in_place == (False,):
                words.append("in place")
            elif self.in_place == (True,):
                words.append("out of place")
        if not any(variant.endswith(CHECKED) for variant in self.variants):
            words.append("plans with checksums")
        words += ["other rings", "ranks that share a host" if self.ranks_per_host == 1 else "other ranks a host"]
        return "; ".join(word for word in words if word)

    def _roots_text(self) -> str:
        if self.roots is not None:
            return f"root {format_numbers(self.roots)}"
        if self.ranks[-1] > ALL_ROOTS_RANKS:
            return f"every root, of more than {ALL_ROOTS_RANKS} ranks the first, second, middle and last"
        return "every root"


def _roots_of(calls: Sequence[Covered]) -> tuple[int, ...] | None:
    some = [one.roots for one in calls if one.roots is not None and _rooted(one.call)]
    return tuple(sorted({root for roots in some for root in roots})) if some else None


def _unmet(pairs: Collection[tuple[str, str]]) -> Iterator[str]:
    ops = _unique(redop for _, redop in pairs if redop != "none")
    for dtype in _unique(dtype for dtype, _ in sorted(pairs)):
        if left := [redop for redop in REDOPS if redop in ops and folds(dtype, redop) and (dtype, redop) not in pairs]:
            yield f"{dtype} with {', '.join(left)}"


def _rooted(call: Call) -> bool:
    return call.collective in COLLECTIVES and COLLECTIVES[call.collective].rooted


def _unique(them: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(them))


def _others(what: str, there: Sequence[str], covered: Collection[str]) -> str:
    left = [name for name in there if name not in covered]
    return f"{what} {', '.join(left)}" if left else ""
