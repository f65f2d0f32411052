"""One case of a campaign as data: everything that decides what will happen, so that a token can hold it.

Ranks run in one of four ways, and faults need one of the last three:

    lockstep     single instructions and nature's moves in an order that the seed, or a schedule, decides
    turns        real communicators that take turns, in time of their own: deterministic, and every fault can happen
    threads, processes    real ones in real time
The machine is named if it is shipped, and written out if it is not; for a user's algorithm the token holds its path and
its digest, never the code.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from collectives.algorithms import catalog
from collectives.builder.recipes import Recipe
from collectives.checking import oracle
from collectives.choices import is_plan
from cxlemu.errors import ArgumentError, TokenError
from cxlemu.files import read_file
from cxlemu.plan import Call
from cxlemu.plan.checksums import check_integrity
from cxlemu.plan.file import MAX_FILE_BYTES
from cxlemu.suggest import unknown
from cxlemu.topology import Topology
from cxlemu.topology.clusters import ranks_per_cluster
from cxlemu.topology.fields import Model, Name
from cxlemu.topology.shipped import shipped_configs
from cxlemu.units import counted
from faults.choices import CAMPAIGN_RANKS_MAX
from faults.inject.scenario import Scenario
from faults.inject.script import Script
from faults.lockstep.schedule import LockstepMove, from_json
from faults.machine.schedule import MOVES_MAX

RANKS_MAX, CALLS_MAX, BLOCK_BYTES_MAX = CAMPAIGN_RANKS_MAX, 64, 1 << 26

Launch = Literal["lockstep", "turns", "threads", "processes"]
Word = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,63}$")]


class CampaignCase(Model):
    """Calls of one collective, in a world of their own, under a fault script."""

    collective: Word = Field(description="one of the collectives")
    variant: Word = Field(description="one of its variants; of an algorithm of your own, the function")
    ranks: Annotated[int, Field(ge=1, le=RANKS_MAX)] = Field(description="number of ranks")
    nbytes: Annotated[int, Field(ge=0, le=BLOCK_BYTES_MAX)] = Field(description="bytes of one block")
    dtype: Word = Field(default="u8", description="type of the elements")
    op: Word = Field(default="none", description="operation of reductions")
    root: Annotated[int, Field(ge=0, lt=RANKS_MAX)] = Field(default=0, description="root of rooted collectives")
    calls: Annotated[int, Field(ge=1, le=CALLS_MAX)] = Field(default=3, description="number of calls")
    launch: Launch = Field(default="lockstep", description="launch of the ranks")
    engine: Literal["reference", "native"] = Field(default="reference", description="engine that executes plans")
    integrity: Literal["crc32c"] | None = Field(default=None, description="checksums that travel with doorbells")
    config: Name | Topology | None = Field(
        default=None,
        description="a shipped topology's name, or all of one; absent: two cards, and a host for each rank",
    )
    cluster: Annotated[int, Field(ge=1, le=RANKS_MAX)] = Field(
        default=1, description="ranks on each host, without a topology"
    )
    algorithm: Annotated[str, Field(max_length=4096)] | None = Field(default=None, description="FILE.py:function")
    algorithm_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        default=None, description="its file"
    )
    mutant: Annotated[str, Field(max_length=80)] | None = Field(default=None, description="a mistake in the plan")
    script: Script = Field(default=Script(), description="faults, and the seed of all that is random")
    moves: list[Any] | None = Field(default=None, max_length=MOVES_MAX, description="a schedule, for lockstep")

    @property
    def topology(self) -> Topology | None:
        """The topology; None: two cards, and hosts of ``cluster`` ranks."""
        if self.config is None or isinstance(self.config, Topology):
            return self.config
        shipped = shipped_configs()
        if self.config not in shipped:
            raise ArgumentError(unknown("shipped topology", self.config, shipped))
        return Topology.load(shipped[self.config])

    @property
    def call(self) -> Call:
        """The call that every rank makes again and again."""
        cluster = self.ranks_per_cluster if self.recipe().builder.takes_clusters else 1
        fields = (self.collective, self.variant, self.ranks, self.nbytes, self.dtype, self.op, self.root)
        return Call(*fields, cluster=cluster)

    @property
    def hosts(self) -> tuple[int, ...]:
        topology = self.topology
        return topology.place(self.ranks) if topology else tuple(rank // self.cluster for rank in range(self.ranks))

    @property
    def ranks_per_cluster(self) -> int:
        topology = self.topology
        if topology is not None:
            return ranks_per_cluster(topology, self.ranks)
        return self.cluster if self.ranks % self.cluster == 0 and self.cluster < self.ranks else 1

    @property
    def schedule(self) -> list[LockstepMove] | None:
        """The schedule for ranks in lockstep; None: the seed decides."""
        return None if self.moves is None else from_json(self.moves)

    def recipe(self) -> Recipe:
        """Load the case's algorithm; a replay checks whether its file is the same (faults/replay/replay.py)."""
        if self.algorithm is None:
            return catalog.recipe(self.collective, self.variant)
        return _own(self.algorithm, digest(self.algorithm))

    def check(self) -> CampaignCase:
        """Return the case if it can run. This loads the algorithm, and so executes its file."""
        catalog.check(self.call)
        oracle.check_exact(self.call)
        if self.recipe().collective != self.collective:
            raise ArgumentError(
                f"{self.algorithm} is an algorithm for {self.recipe().collective}, not {self.collective}"
            )
        if self.launch != "lockstep" and (self.mutant or self.algorithm or self.moves is not None):
            raise ArgumentError(
                f"mutants, schedules and algorithms of your own are for ranks in lockstep, not for {self.launch}"
            )
        if self.launch in ("lockstep", "turns") and self.engine != "reference":
            raise ArgumentError(f"ranks in {self.launch} run on the reference engine: it alone makes single steps")
        if self.launch == "lockstep" and (self.script.faults or self.integrity):
            raise ArgumentError(
                "ranks in lockstep take no faults and no checksums: these need turns, threads or processes"
            )
        check_integrity(self.integrity)
        if self.cluster > 1 and self.topology is not None:
            raise ArgumentError(f"{self.topology.name} already sets each host's number of ranks: leave out cluster")
        self.script.check(ranks=self.ranks, backend="emulated", restarts=True)
        return self

    def scenario(self) -> Scenario:
        """Make the scenario of faults that equals the case; for ranks that are not in lockstep."""
        return Scenario(
            collective=self.collective,
            variant=self.variant,
            ranks=self.ranks,
            nbytes=self.nbytes,
            dtype=self.dtype,
            redop=self.op,
            root=self.root,
            engine=self.engine,
            launch=self.launch if self.launch != "lockstep" else "turns",
            integrity=self.integrity,
            config=self.topology or "",
            cluster=self.cluster,
            script=self.script,
        )

    def plain(self) -> dict[str, Any]:
        """Give the case as JSON has it, without fields that have their defaults: `parse` takes it back."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @classmethod
    def parse(cls, body: object) -> CampaignCase:
        """Read the case of a token. Nothing that it names is looked at."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))[:80]
            raise TokenError(
                f"this token's case is of another version, or no case: {place}: {first['msg'][:120]}"
            ) from None

    def __str__(self) -> str:
        words = [self.collective, self.variant, counted(self.ranks, "rank"), f"{self.nbytes} B"]
        words += [self.dtype, *([self.op] if self.op != "none" else []), *([f"root {self.root}"] if self.root else [])]
        words += [f"{self.cluster} ranks a host"] if self.cluster > 1 else []
        words += [counted(self.calls, "call")] if self.launch == "lockstep" else []
        words += [self.launch, *([self.engine] if self.launch in ("threads", "processes") else [])]
        words += [self.integrity] if self.integrity else []
        words += [f"mutant {self.mutant}"] if self.mutant else []
        words += [f"seed {self.script.seed}"] if self.moves is None else [f"{len(self.moves)} moves, then round robin"]
        return ", ".join([" ".join(words), *map(str, self.script.faults)])

    @property
    def id(self) -> str:
        """A digest that is the same for equal cases, on every machine."""
        return hashlib.blake2b(self.model_dump_json().encode(), digest_size=8).hexdigest()


@lru_cache
def _own(algorithm: str, contents: str) -> Recipe:
    """Load a user's algorithm once for the same contents: this executes its file."""
    return catalog.load_algorithm(algorithm)


def digest(algorithm: str) -> str:
    """Return the SHA-256 of an algorithm's file, as 64 hexadecimal digits."""
    path = Path(algorithm if is_plan(algorithm) else algorithm.rpartition(":")[0])
    try:
        return hashlib.sha256(read_file(path, MAX_FILE_BYTES)).hexdigest()
    except OSError as error:
        raise ArgumentError(f"--algorithm {algorithm}: the file cannot be read: {error.strerror}") from None
