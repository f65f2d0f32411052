"""Sweeps over calls in the terms of nccl-tests: what to run, what ranks measure, and the table's rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives import sizes
from collectives.algorithms import catalog
from collectives.algorithms.choose import Choice, choose
from collectives.algorithms.hierarchical.estimate import TwoLevelEstimate
from collectives.algorithms.nccl import RECIPES as NCCL
from collectives.builder.carriers import IN_PLACE
from collectives.builder.recipes import IN_LINES, Recipe, with_checksums
from collectives.checking import oracle
from collectives.communicator.calls import transport
from collectives.contracts import COLLECTIVES, Collective, contract_of
from collectives.defaults import AUTO, DEFAULT_SEED, EVERY, MAX_BYTES, MIN_BYTES, REGION_BYTES, STEP_FACTOR
from cxlemu.choices import REDOPS
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import DTYPES, Call, Plan
from cxlemu.plan.reduction import not_folded, reductions
from cxlemu.suggest import unknown
from cxlemu.units import format_bytes, typed_bytes

MOST_ROWS = 10_000
MOST_BYTES = 1 << 40  # of one size


def size_steps(first: int | None, last: int | None, factor: int | None, step: int | None) -> list[int]:
    """The sizes of a sweep, as nccl-tests has them, ascending."""
    first = MIN_BYTES if first is None else first
    last = max(first, MAX_BYTES) if last is None else last
    if factor is not None and step is not None:
        raise ArgumentError("--stepfactor and --stepbytes exclude each other: give one of them")
    if max(first, last) > MOST_BYTES:
        raise ArgumentError(f"size {typed_bytes(max(first, last))} exceeds the limit of 1 TiB")
    if first > last:
        raise ArgumentError(f"--minbytes {typed_bytes(first)} is more than --maxbytes {typed_bytes(last)}")
    if first == last and (factor, step) != (None, None):
        flag = "--stepfactor" if step is None else "--stepbytes"
        raise ArgumentError(f"{flag} does nothing here, because there is one size: leave it out, or give --maxbytes")
    if step == 0 or (step is None and first == 0 and last > 0):
        raise ArgumentError("sizes do not grow: give a positive --stepbytes, or a positive --minbytes")
    if step is not None:
        if (last - first) // step >= MOST_ROWS:
            raise ArgumentError(f"--stepbytes {step} gives more than {MOST_ROWS} sizes: make it larger")
        return list(range(first, last + 1, step))
    chosen = [first]
    while 0 < chosen[-1] * (factor or STEP_FACTOR) <= last:
        chosen.append(chosen[-1] * (factor or STEP_FACTOR))
    return chosen


def last_size(sizes: Sequence[int], maxbytes: int | None) -> list[str]:
    """Say that the sizes end below the largest one that was asked for, as in nccl-tests; nothing if they do not."""
    if maxbytes is None or not sizes or sizes[-1] >= maxbytes:
        return []
    last, most = format_bytes(sizes[-1]), format_bytes(maxbytes)
    return [f"the last size is {last}: the next step would exceed --maxbytes {most}"]


@dataclass(frozen=True)
class Sweep:
    """What a sweep runs: every collective, in every combination of the rest that means something.

    ``roots`` None stands for all ranks. ``variant`` is "auto", "every" or a name. ``algorithm`` is a user's own
    ``FILE.py:function``, which runs instead, or a saved plan ``FILE.plan``, which determines all the rest.
    """

    collectives: tuple[str, ...]
    sizes: Sequence[int]
    dtypes: tuple[str, ...] = ("f32",)
    redops: tuple[str, ...] = ("sum",)
    roots: tuple[int, ...] | None = (0,)
    variant: str = AUTO
    algorithm: str | None = None
    iterations: int = 5
    warmup: int = 1
    in_place: bool = False
    check: bool = True
    seed: int = DEFAULT_SEED
    region_bytes: int = REGION_BYTES
    engine: str = "native"
    integrity: str | None = None
    transport: str = "pool"
    cluster: int = 1  # ranks in a cluster, where the topology has clusters
    sends: bool = False  # where ranks send to each other: "every" variant has NCCL's algorithms, too

    def cases(self, ranks: int) -> list[Case]:
        if (plan := self.plan) is not None:
            return [self._case_of(plan, ranks)]
        cases: list[Case] = []
        for collective in self.collectives:
            for case in self._cases_of(collective, ranks):
                if len(cases) == MOST_ROWS:
                    raise ArgumentError(f"this sweep has more than {MOST_ROWS} rows: make its steps larger")
                cases.append(case)
        return cases

    @property
    def plan(self) -> Plan | None:
        return None if self.algorithm is None else load_algorithm(self.algorithm).plan

    def _case_of(self, plan: Plan, ranks: int) -> Case:
        if plan.ranks != ranks:
            raise ArgumentError(f"{self.algorithm} is a plan of {plan.ranks} ranks, here are {ranks}")
        if self.check:
            oracle.check_exact(plan.call)
        return Case(plan.call, in_place=plan.call.in_place or COLLECTIVES[plan.call.collective].one_buffer)

    def _cases_of(self, collective: str, ranks: int) -> Iterator[Case]:
        contract = contract_of(collective)
        moves = contract.moves_data
        roots = self.roots if self.roots is not None else tuple(range(ranks))
        folded = self._folded(contract) if contract.reduces else product(self.dtypes, ("none",))
        for (dtype, redop), root, nbytes, variant in product(
            folded if moves else (("u8", "none"),),
            roots if contract.rooted else (0,),
            self.sizes if moves else (0,),
            self._variants_of(collective),
        ):
            if dtype not in DTYPES:
                raise ArgumentError(unknown("dtype", dtype, DTYPES))
            unit = LINE_BYTES if variant in catalog.pushing(collective) else DTYPES[dtype].itemsize
            block_bytes = sizes.block_bytes(collective, nbytes, ranks, unit)
            call = Call(collective, variant, ranks, block_bytes, dtype, redop, root)
            if self._takes_levels(collective, variant):
                call = replace(call, cluster=self.cluster)
            catalog.check(call)
            if self.check:
                oracle.check_exact(call)
            yield Case(call, in_place=self.in_place or contract.one_buffer)

    def _folded(self, contract: Collective) -> list[tuple[str, str]]:
        """Reductions of this collective; where all operations are asked for, those that it has."""
        asks_all = len(self.redops) == len(REDOPS)
        return [
            reduction
            for reduction in reductions(self.dtypes, self.redops)
            if reduction[1] in contract.ops or not asks_all
        ]

    def left_out(self, maxbytes: int | None) -> list[str]:
        """Sentences on what was asked for and has no row: the largest size, as in nccl-tests, and what is no reduction;
        of every variant those that need clusters."""
        reduces = any(contract_of(name).reduces for name in self.collectives)
        flat = self.variant == EVERY and self.cluster == 1 and self.algorithm is None
        return [
            *last_size(self.sizes, maxbytes),
            *(not_folded(self.dtypes, self.redops) if reduces else ()),
            *(catalog.on_levels_left_out(self.collectives, "ranks are in no clusters") if flat else ()),
        ]

    def _takes_levels(self, collective: str, variant: str) -> bool:
        """Whether the algorithm declares that it takes clusters. For `auto` that is decided with the variant."""
        if self.algorithm is None and variant == AUTO:
            return False
        recipe = load_algorithm(self.algorithm) if self.algorithm else catalog.recipe(collective, variant)
        return recipe.builder.takes_clusters

    def _variants_of(self, collective: str) -> list[str]:
        if self.algorithm is not None:
            own = load_algorithm(self.algorithm)
            if own.collective != collective:
                raise ArgumentError(f"{self.algorithm} is an algorithm for {own.collective}, not {collective}")
            return [own.name]
        refusal = transport.refusal(collective, in_place=self.in_place)
        if self.variant == EVERY:
            checked = self.integrity is not None
            there = catalog.variants(collective, clusters=self.cluster > 1, checksums=checked)
            there += [name for verb, name in NCCL if verb == collective and self.sends]
            return [v for v in there if refusal is None or not catalog.recipe(collective, v).spec.zero_copy]
        if self.variant != AUTO:
            recipe = catalog.recipe(collective, self.variant)
            if recipe.spec.zero_copy and refusal is not None:
                raise ArgumentError(f"{collective} in place cannot be zero copy: {refusal}")
            if recipe.spec.pushes and self.in_place:
                raise ArgumentError(f"{collective} {recipe.name} {IN_PLACE}")
            if recipe.builder.takes_clusters and self.cluster == 1:
                raise ArgumentError(
                    f"{self.variant} needs clusters, two or more hosts with equally many ranks, two or more each, "
                    f"or as many domains of an XLink: change -n, ranks_per_host of the topology, or the switches that "
                    f"its XLink space is over"
                )
            if self.integrity is not None:
                with_checksums(recipe)  # says why not
                if recipe.spec.in_lines:
                    raise ArgumentError(IN_LINES)
        return [self.variant]


@dataclass(frozen=True)
class Case:
    """One row: a call, whose ``algorithm`` is a variant's name or "auto"."""

    call: Call
    in_place: bool

    @property
    def size_bytes(self) -> int:
        """The size as nccl-tests counts it: of all ranks' blocks together where each has one."""
        return sizes.size_bytes(self.call.collective, self.call.nbytes, self.call.ranks)

    @property
    def count(self) -> int:
        """Elements of one block, as nccl-tests counts them."""
        return self.call.nbytes // DTYPES[self.call.dtype].itemsize

    @property
    def root(self) -> int:
        """The root, or -1 where the collective has none, as nccl-tests prints it."""
        return self.call.root if COLLECTIVES[self.call.collective].rooted else -1


@dataclass(frozen=True, slots=True)
class WrongElement:
    """The first wrong element that a rank saw: its call and place, its bits, and the bits that it should have had."""

    call: int
    element: int
    got: int
    right: int

    @classmethod
    def of(cls, call: int, element: int, got: NDArray[Any], right: NDArray[Any]) -> WrongElement:
        """Take the bits of element number ``element`` of what a rank has and of what it should have."""
        bits = (int.from_bytes(array.reshape(-1)[element].tobytes(), "little") for array in (got, right))
        return cls(call, element, *bits)

    def describe(self, dtype: str) -> str:
        of = DTYPES[dtype]
        got, right = (np.frombuffer(bits.to_bytes(of.itemsize, "little"), of)[0] for bits in (self.got, self.right))
        return f"call {self.call}, element {self.element}: {got} instead of {right}"


@dataclass(frozen=True, slots=True)
class MeasuredRank:
    """What one rank saw of one case: when it entered and left each timed call, and what was wrong in any.

    Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
    """

    rank: int
    entered_ns: Sequence[int]
    left_ns: Sequence[int]
    wrong: int
    first_wrong: WrongElement | None
    moved: int = 0  # how many lines nature moved in these calls and in those before them that warm up


class Paced(NamedTuple):
    """How a case ran in a world with a pace: ns here for one of the model, and the ns that the model gives it."""

    time_scale: float
    model_ns: int


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One row of a sweep's table.

    ``time_us`` is the slowest rank's, median over the timed calls. ``wrong`` counts elements of all calls on all ranks.
    """

    collective: str
    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    time_us: float
    algbw_gbytes_per_s: float
    busbw_gbytes_per_s: float
    wrong: int | None  # None where nothing was checked
    first_wrong: str | None
    variant: str
    chosen_by: str  # "auto" or "user"
    reason: str
    in_place: bool
    iterations: int
    model_us: float | None  # in a world with a pace: what the virtual engine says, by which time_us is to be judged


def nothing_compared(rows: Sequence[Any]) -> str:
    """Say so where results, of whichever engine, were checked and none has an element; empty: one has, or is a
    barrier's."""
    checked = [row for row in rows if row.wrong is not None]
    if not checked or any(row.count or not COLLECTIVES[row.collective].moves_data for row in checked):
        return ""
    return "nothing was judged: no result has an element"


def row(
    case: Case,
    seen: Mapping[int, MeasuredRank],
    *,
    checked: bool,
    one_clock: bool = True,
    paced: Paced | None = None,
    ways: TwoLevelEstimate | None = None,
    in_process: bool = False,
) -> SweepRow:
    call, measured = case.call, [seen[rank] for rank in sorted(seen)]
    entered, left = (np.array([getattr(m, name) for m in measured]) for name in ("entered_ns", "left_ns"))
    from statistics import median  # not for ranks, which make no rows

    time_ns = median((left - entered).max(axis=0).tolist())
    time_ns /= 1.0 if paced is None else paced.time_scale
    algbw = sizes.algbw_gbytes_per_s(case.size_bytes, time_ns)
    auto = call.algorithm == AUTO
    choice = Choice(call.algorithm, "")
    if auto:
        may = in_process and transport.refusal(call.collective, in_place=case.in_place) is None
        choice = choose(call.collective, call.nbytes, call.ranks, in_process=may, ways=ways, dtype=call.dtype)
    wrong = sum(m.wrong for m in measured)
    if not COLLECTIVES[call.collective].moves_data:  # a barrier is wrong on ranks that left before all had come
        checked &= one_clock
        wrong += int((left < entered.max(axis=0)).sum())
    firsts = (f"rank {m.rank}, {m.first_wrong.describe(call.dtype)}" for m in measured if m.first_wrong)
    return SweepRow(
        collective=call.collective,
        size_bytes=case.size_bytes,
        count=case.count,
        dtype=call.dtype,
        redop=call.redop,
        root=case.root,
        time_us=time_ns / 1e3,
        algbw_gbytes_per_s=algbw,
        busbw_gbytes_per_s=sizes.busbw_gbytes_per_s(call.collective, call.ranks, algbw),
        wrong=wrong if checked else None,
        first_wrong=next(firsts, None),
        variant=choice.variant,
        chosen_by="auto" if auto else "user",
        reason=choice.reason,
        in_place=case.in_place,
        iterations=entered.shape[1],
        model_us=None if paced is None else paced.model_ns / 1e3,
    )


@lru_cache
def load_algorithm(spec: str) -> Recipe:
    """Load an algorithm once per process, as threads must not execute the file side by side.

    Arguments and errors are those of `collectives.algorithms.catalog.load_algorithm`.
    """
    return catalog.load_algorithm(spec)
