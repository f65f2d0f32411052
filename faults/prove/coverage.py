"""What proofs covered and what they did not, in words and as data: every verdict states it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from collectives.builder.recipes import CHECKED
from collectives.contracts import COLLECTIVES
from cxlemu.choices import DTYPE_NAMES, REDOPS
from cxlemu.plan import Call
from cxlemu.units import format_numbers
from faults.prove.sequences import ALL_ROOTS_RANKS

COMBINED = "each with each"
IN_TURNS = "each number of ranks with each size, dtype and place; each op with each number of ranks and size"


@dataclass(frozen=True)
class Covered:
    """One call that was proved.

    Attributes:
        call: The call.
        size: Its size in words.
        roots: The roots that it was proved for; None: as `prove` chooses them.
    """

    call: Call
    size: str
    roots: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Coverage:
    """What all calls that were proved right have covered.

    Attributes:
        collectives: Names of the collectives and fused products.
        variants: Names of the variants, and of styles of fused products.
        ranks: Numbers of ranks, rising.
        sizes: Sizes in words.
        dtypes: Names of the dtypes.
        ops: Names of the operations.
        roots: The roots that were asked for; None: all, or a few if there are many ranks.
        rooted: Whether any of the collectives has a root.
        in_place: The places that were proved: out of place (False), in place (True) or both.
        combined: How ranks, sizes, dtypes and operations were combined, in words.
        machine: The machine on whose rings they were proved.
        clusters: Numbers of ranks in each cluster; empty without clusters.
    """

    collectives: tuple[str, ...]
    variants: tuple[str, ...]
    ranks: tuple[int, ...]
    sizes: tuple[str, ...]
    dtypes: tuple[str, ...]
    ops: tuple[str, ...]
    roots: tuple[int, ...] | None
    rooted: bool
    in_place: tuple[bool, ...]
    combined: str
    machine: str
    clusters: tuple[int, ...] = ()

    @classmethod
    def of(cls, calls: Iterable[Covered], *, machine: str, combined: str = COMBINED) -> Coverage:
        """Sum up calls that were proved.

        Args:
            calls: The calls.
            machine: The machine on whose rings they were proved.
            combined: How ranks, sizes, dtypes and operations were combined, in words.
        """
        its = list(calls)
        moving = [one for one in its if one.call.gemm is not None or COLLECTIVES[one.call.collective].moves_data]
        plain = [one for one in moving if one.call.gemm is None]
        chosen = [one for one in plain if not COLLECTIVES[one.call.collective].one_buffer] or plain
        return cls(
            collectives=_unique(one.call.collective for one in its),
            variants=_unique(one.call.algorithm for one in its),
            ranks=tuple(sorted({one.call.ranks for one in its})),
            sizes=_unique(one.size if one.call.gemm is None else "small matrices" for one in moving),
            dtypes=_unique(one.call.dtype for one in moving),
            ops=_unique(one.call.redop for one in plain if one.call.redop != "none"),
            roots=_roots_of(its),
            rooted=any(_rooted(one.call) for one in its),
            in_place=tuple(sorted({one.call.in_place for one in chosen})),
            combined=combined,
            machine=machine,
            clusters=tuple(sorted({one.call.cluster for one in its} - {1})),
        )

    def as_dict(self) -> dict[str, Any]:
        """The coverage as JSON has it: all attributes, and both sentences."""
        return asdict(self) | {"covered": self.covered(), "not_covered": self.not_covered()}

    def covered(self) -> str:
        """Say in words what was proved."""
        if not self.ranks:
            return "nothing"
        words = [
            ", ".join(self.collectives),
            f"n = {format_numbers(self.ranks)}"
            + (f", clusters of {format_numbers(self.clusters)}" if self.clusters else ""),
            "; ".join([", ".join(its) for its in (self.sizes, self.ops, self.dtypes) if its]),
        ]
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
        between = [count for count in range(self.ranks[0], self.ranks[-1]) if count not in self.ranks]
        words = [f"n = {format_numbers(between)}" if between else "", f"n above {self.ranks[-1]}"]
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
            if self.in_place == (False,):
                words.append("in place")
            elif self.in_place == (True,) and any(_has_two_buffers(name) for name in self.collectives):
                words.append("out of place")
        if not any(variant.endswith(CHECKED) for variant in self.variants):
            words.append("plans with checksums")
        words += ["other rings", "ranks that share a host"]
        return "; ".join(word for word in words if word)

    def _roots_text(self) -> str:
        if self.roots is not None:
            return f"root {format_numbers(self.roots)}"
        if self.ranks[-1] > ALL_ROOTS_RANKS:
            return f"every root, of more than {ALL_ROOTS_RANKS} ranks the first, second, middle and last"
        return "every root"


def _roots_of(its: Sequence[Covered]) -> tuple[int, ...] | None:
    some = [one.roots for one in its if one.roots is not None and _rooted(one.call)]
    return tuple(sorted({root for roots in some for root in roots})) if some else None


def _has_two_buffers(collective: str) -> bool:
    return collective in COLLECTIVES and not COLLECTIVES[collective].one_buffer


def _rooted(call: Call) -> bool:
    return call.collective in COLLECTIVES and COLLECTIVES[call.collective].rooted


def _unique(them: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(them))


def _others(what: str, there: Sequence[str], covered: Collection[str]) -> str:
    left = [name for name in there if name not in covered]
    return f"{what} {', '.join(left)}" if left else ""
