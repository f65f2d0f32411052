"""What a campaign sweeps over, from a file or from flags, and the cases that this makes.

    collectives: [all_reduce, broadcast]        # default: all
    variants: [every]                           # or names, or auto
    ranks: [2, 3]                               # on hosts of their own; with `cluster: 2` two on each
    sizes: [64, 4K]                             # as `cxlemu run -b`: of all blocks together where there are several
    launches: [lockstep, turns, threads]
    scripts: [poison.yaml]                      # fault scripts, each run with every seed
    kinds: [nature, crash, poison]              # faults, one at a time, at a place that the seed draws

In lockstep there are no faults but nature's moves, and nature alone is tried there, unless nothing else runs.
Seeds come outermost: when a budget ends early, every combination was tried with some seeds, not a few with all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError

from collectives import sizes
from collectives.algorithms import catalog
from collectives.algorithms.choose import choose
from collectives.contracts import COLLECTIVES
from cxlemu.errors import ArgumentError, DeclinedError, NothingJudgedError
from cxlemu.plan import DTYPES
from cxlemu.suggest import unknown
from cxlemu.topology import Topology
from cxlemu.topology.clusters import ranks_per_cluster
from cxlemu.topology.document import Document
from cxlemu.topology.fields import Model, validated
from cxlemu.units import format_bytes, parse_bytes, typed_bytes
from faults.campaign.case import BLOCK_BYTES_MAX, CALLS_MAX, RANKS_MAX, CampaignCase, Launch, digest
from faults.campaign.judge import meant_plans, mutated
from faults.inject.fault import FAULTS, When
from faults.inject.script import NatureRates, Script
from faults.left_out import NOTHING, NotDone, left_out, of_plans, together

CASES_MAX = 1_000_000
RANKS = (2, 3)
UNTAKEN = (
    "faults need ranks in turns, threads or processes, which run only shipped algorithms, unchanged, in a campaign "
    "(`cxlemu faults sweep --algorithm` and `run --algorithm --faults` take your own)"
)
DECLINES, NO_RANK = "it declines every call", "a fault is on a rank that these worlds do not have"
ALL, EVERY, AUTO, NATURE = "all", "every", "auto", "nature"

Size = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, le=BLOCK_BYTES_MAX)]
Names = Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=1000)]


class Spec(Model):
    """A campaign as data. Every combination that means something is tried with every seed."""

    config: str = Field(default="", description="a topology, a file or a name; absent: a host for each rank")
    collectives: Names = Field(default=(ALL,), description="names, or all")
    variants: Names = Field(default=(EVERY,), description="names, every or auto")
    algorithms: Annotated[tuple[str, ...], Field(strict=False, max_length=100)] = Field(
        default=(), description="FILE.py:function of your own, instead of collectives"
    )
    ranks: (
        Annotated[tuple[Annotated[int, Field(ge=2, le=RANKS_MAX)], ...], Field(strict=False, min_length=1)] | None
    ) = Field(default=None, description="numbers of ranks; absent: 2 and 3, or all ranks of a topology with clusters")
    cluster: Annotated[int, Field(ge=1, le=RANKS_MAX)] = Field(
        default=1, description="ranks on each host, without a config"
    )
    sizes: Annotated[tuple[Size, ...], Field(strict=False, min_length=1, max_length=100)] = Field(
        default=(600,), description="sizes in bytes"
    )
    calls: Annotated[int, Field(ge=1, le=CALLS_MAX)] = Field(
        default=3, description="number of consecutive calls in each case"
    )
    launches: Annotated[tuple[Launch, ...], Field(strict=False, min_length=1)] | None = Field(
        default=None, description="lockstep, turns, threads, processes; absent: the first two, where possible"
    )
    engines: Annotated[tuple[Literal["reference", "native"], ...], Field(strict=False, min_length=1)] = Field(
        default=("native",), description="engines of threads and processes; the others use the reference engine"
    )
    scripts: Annotated[tuple[str, ...], Field(strict=False, max_length=1000)] = Field(
        default=(), description="files of fault scripts"
    )
    kinds: Annotated[tuple[str, ...], Field(strict=False, max_length=100)] = Field(
        default_factory=lambda: (NATURE, *FAULTS),
        description="kinds of faults, at places that the seed chooses; nature: only moves of caches",
    )
    integrity: Literal["crc32c"] | None = Field(default=None, description="checksums, in cases with faults")
    mutant: Annotated[str, Field(max_length=80)] | None = Field(
        default=None, description="a mistake in every plan, which must be found"
    )

    @classmethod
    def load(cls, name: str) -> Spec:
        """Read a campaign's file, or make the default campaign on a topology."""
        path = Path(name)
        if path.is_file():
            document = Document.read(path, "campaign")
            if "hosts" not in document.data:
                return validated(cls, document)
        Topology.load(name)
        return cls(config=name)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Spec:
        """Raises ArgumentError for values that no campaign can have."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            if place.startswith("sizes.") and first["type"] == "less_than_equal":
                most = format_bytes(BLOCK_BYTES_MAX)
                raise ArgumentError(f"size {typed_bytes(first['input'])} exceeds the limit of {most}") from None
            raise ArgumentError(f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None

    def sweep(self, seeds: int) -> CaseSweep:
        """List this campaign's cases, each with the seeds 0 to ``seeds`` - 1; nothing runs yet.

        Calls that an algorithm declines have none. Raises NothingJudgedError if all are declined.
        """
        scripts = [Script.eventful(Path(file)) for file in self.scripts]
        for kind in self.kinds:
            if kind != NATURE and kind not in FAULTS:
                raise ArgumentError(unknown("fault", kind, (NATURE, *FAULTS)))
        config = self._config()
        shapes: list[CaseShape] = []
        declined: dict[str, None] = {}
        for shape in self._shapes(config):
            try:
                shapes.append(_with_scripts(shape, scripts, self.kinds))
            except DeclinedError as error:
                declined[str(error)] = None
        if declined and not shapes:
            raise NothingJudgedError(f"nothing was judged: declined: {'; '.join(declined)}")
        self._check_taken(shapes, scripts)
        sweep = CaseSweep(shapes, seeds, [*declined], self._left_out(shapes, scripts), self._named_kinds())
        if not self.kinds and not scripts:
            raise ArgumentError("this campaign has no cases: write kinds or scripts")
        if not 0 < len(sweep) <= CASES_MAX:
            raise ArgumentError(f"this campaign has {len(sweep)} cases: change seeds or sizes to have 1 to {CASES_MAX}")
        return sweep

    def _named_kinds(self) -> tuple[str, ...]:
        return self.kinds if "kinds" in self.model_fields_set else ()

    def _left_out(self, shapes: Sequence[CaseShape], scripts: Sequence[Script]) -> NotDone:
        """Say which collectives, variants, numbers of ranks, launches and scripts were named and have no case."""
        collectives = None if self.collectives == (ALL,) else self.collectives
        variants = [name for name in self.variants if name not in (EVERY, AUTO)]
        calls = [shape.case.call for shape in shapes]
        done = [(call.collective, call.algorithm, call.ranks) for call in calls]
        launched = [(shape.case.launch,) for shape in shapes if shape.scripts or shape.kinds]
        each = zip(self.scripts, scripts, strict=True)
        run = [(file, its.case.ranks) for file, script in each for its in shapes if script in its.scripts]
        flat = self.variants == (EVERY,) and not self.algorithms and all(call.cluster == 1 for call in calls)
        names = collectives or COLLECTIVES
        return together(
            NotDone(catalog.on_levels_left_out(names, "no host has several ranks (cluster)") if flat else ()),
            left_out((collectives, variants or None, self.ranks), done, of_plans),
            left_out((self.algorithms or None,), [(its.case.algorithm or "",) for its in shapes], lambda own: DECLINES),
            left_out((self.launches,), launched, lambda launch: UNTAKEN),
            left_out((self.scripts, self.ranks), run, lambda file, ranks: NO_RANK)._replace(nowhere=""),
        )

    def _check_taken(self, shapes: Sequence[CaseShape], scripts: Sequence[Script]) -> None:
        """Raises ArgumentError for what was asked for and no case takes."""
        replaced = {"collectives": self.collectives != (ALL,), "variants": self.variants != (EVERY,)}
        if self.algorithms and any(replaced.values()):
            names = " and ".join(name for name, given in replaced.items() if given)
            raise ArgumentError(f"algorithms of your own replace {names}: leave out one or the other")
        for file, script in zip(self.scripts, scripts, strict=True):
            if shapes and not any(script in shape.scripts for shape in shapes):
                last, most = max((f.rank for f in script.faults), default=0), max(s.case.ranks for s in shapes)
                why = UNTAKEN if last < most else f"a fault is on rank {last}, but cases have {most} ranks at most"
                raise ArgumentError(f"no case takes {file}: {why}")
        for kind in self._named_kinds():
            if shapes and not any(kind in shape.kinds for shape in shapes):
                raise ArgumentError(f"no case takes the fault {kind}: {UNTAKEN}")
        launches = {shape.case.launch for shape in shapes}
        if "engines" in self.model_fields_set and not launches & {"threads", "processes"}:
            raise ArgumentError("engines are for ranks as threads and processes: give --launch, or leave out --engine")
        if self.integrity is not None and launches == {"lockstep"}:
            raise ArgumentError("no case takes checksums: ranks in lockstep have none")

    def _shapes(self, config: str | Topology | None) -> Iterator[CampaignCase]:
        algorithms, counts = self._algorithms(), self._ranks(config)
        for (collective, variant, own), ranks, size in product(algorithms, counts, self.sizes):
            contract = COLLECTIVES[collective]
            nbytes = sizes.block_bytes(collective, size, ranks, DTYPES["u8"].itemsize)
            if size != self.sizes[0] and not contract.moves_data:
                continue
            shape = CampaignCase(
                collective=collective,
                variant=choose(collective, nbytes, ranks, dtype="u8").variant if variant == AUTO else variant,
                ranks=ranks,
                nbytes=nbytes,
                op="sum" if contract.reduces else "none",
                calls=self.calls,
                config=config,
                cluster=self.cluster,
                algorithm=own,
                algorithm_sha256=digest(own) if own else None,
                mutant=self.mutant,
            )
            on_levels = shape.recipe().builder.takes_clusters
            if on_levels and self.variants == (EVERY,) and shape.ranks_per_cluster == 1:
                continue
            for launch, engine in self._runs(shape):
                integrity = self.integrity if launch != "lockstep" else None
                yield shape.model_copy(update={"launch": launch, "engine": engine, "integrity": integrity}).check()

    def _runs(self, shape: CampaignCase) -> Iterator[tuple[Launch, str]]:
        lockstep_only = shape.mutant is not None or shape.algorithm is not None
        usual: list[Launch] = ["lockstep"] if lockstep_only else ["lockstep", "turns"]
        for launch in self.launches or usual:
            for engine in self.engines if launch in ("threads", "processes") else ("reference",):
                yield launch, engine

    def _config(self) -> str | Topology | None:
        """By name where it is shipped; else all of it, so that a token needs no file."""
        if not self.config:
            return None
        topology = Topology.load(self.config)
        return self.config if not Path(self.config).is_file() else topology

    def _ranks(self, config: str | Topology | None) -> tuple[int, ...]:
        if self.ranks is not None:
            return self.ranks
        if config is not None:
            topology = Topology.load(config) if isinstance(config, str) else config
            if ranks_per_cluster(topology, topology.place_count) > 1 and topology.place_count <= RANKS_MAX:
                return (topology.place_count,)
        return RANKS if self.cluster == 1 else (2 * self.cluster,)

    def _algorithms(self) -> Iterator[tuple[str, str, str | None]]:
        """Yield (collective, variant, the user's own algorithm or None)."""
        if self.algorithms:
            for own in self.algorithms:
                recipe = catalog.load_algorithm(own)
                yield recipe.collective, recipe.name, own
            return
        chosen = COLLECTIVES if self.collectives == (ALL,) else self.collectives
        having = [name for name in chosen if self.variants[0] in (EVERY, AUTO, *catalog.variants(name, clusters=True))]
        for collective in chosen:
            there = catalog.variants(collective, clusters=True, checksums=self.integrity is not None)
            if not there:
                catalog.recipe(collective, AUTO)  # raises: there is no such collective
            for variant in there if self.variants == (EVERY,) else self.variants:
                alone = len(self.variants) == 1 and (
                    not having or self.collectives != (ALL,)
                )  # raises when it is built
                if variant == AUTO or variant in there or alone:
                    yield collective, variant, None


class CaseShape(NamedTuple):
    case: CampaignCase
    scripts: list[Script]  # fault scripts, each tried with every seed
    kinds: tuple[str, ...]  # kinds of faults that the seed places, one at a time
    instructions: tuple[int, ...]  # number of instructions of each rank's part, among which the seed draws a place
    fitting: Mapping[str, list[list[int]]]  # those of each rank at which a kind can happen, of kinds that fit not all


def _with_scripts(case: CampaignCase, scripts: list[Script], kinds: tuple[str, ...]) -> CaseShape:
    """Add to a case what may happen to it. Raises ArgumentError or PlanError if its plan is empty, or there is none."""
    plan = mutated(case, meant_plans(case))[0]
    counts = tuple(part.instruction_count for part in plan.parts)
    choosy = [FAULTS[kind] for kind in kinds if kind != NATURE and FAULTS[kind].fits is not None]
    fitting = {kind.name: [kind.places(part) for part in plan.parts] for kind in choosy}
    if not any(counts):
        raise ArgumentError(
            f"{case.collective} {case.variant} of {case.nbytes} B does nothing, so nothing can fail: give a larger size"
        )
    if case.launch == "lockstep":
        return CaseShape(case, [], tuple(kind for kind in kinds if kind == NATURE), counts, fitting)
    taken = [script for script in scripts if all(fault.rank < case.ranks for fault in script.faults)]
    return CaseShape(case, taken, kinds, counts, fitting)


@dataclass(frozen=True)
class CaseSweep:
    shapes: list[CaseShape]  # the cases without scripts
    seeds: int  # how many seeds each is tried with, from 0 on
    declined: list[str] = field(default_factory=list)  # calls of which there are no cases: why, in words
    left_out: NotDone = NOTHING  # what was named and has no case
    named_kinds: tuple[str, ...] = ()  # kinds of faults that were named

    @property
    def has_faults(self) -> bool:
        return any(shape.scripts or set(shape.kinds) - {NATURE} for shape in self.shapes)

    def __len__(self) -> int:
        return self.seeds * sum(len(shape.scripts) + len(shape.kinds) for shape in self.shapes)

    def __iter__(self) -> Iterator[CampaignCase]:
        for seed in range(self.seeds):
            for shape in self.shapes:
                for script in shape.scripts:
                    yield _with(shape, script.model_copy(update={"seed": seed}))
                for kind in shape.kinds:
                    yield _with(shape, drawn(shape, kind, seed))


def _with(shape: CaseShape, script: Script) -> CampaignCase:
    return shape.case.model_copy(update={"script": script})


def drawn(shape: CaseShape, kind: str, seed: int) -> Script:
    """Draw a script with one fault, at a place that depends on the case and the seed alone."""
    if kind == NATURE:
        return Script(seed=seed, adversary=NatureRates())
    case = shape.case
    rng = random.Random(f"{seed} {kind} {case.collective} {case.variant} {case.ranks} {case.nbytes}")
    places: Sequence[Sequence[int]] = shape.fitting.get(kind, ())
    places = places if any(places) else [range(count) for count in shape.instructions]
    rank, call = rng.choice([rank for rank, its in enumerate(places) if its]), rng.randrange(case.calls)
    extras = {"bit": rng.randrange(64)} if "bit" in FAULTS[kind].may else {}
    when = When(call=call, instruction=rng.choice(places[rank]))
    return Script(seed=seed, faults=(FAULTS[kind].at(rank, when, **extras),))
