"""A fault script: which faults happen at which instruction, and what nature does meanwhile. Data, never code.

    seed: 7
    adversary: {evict: 0.05, prefetch: 0.1, land: 0.05}
    faults:
      - {kind: poison, rank: 1, when: {call: 0, instruction: 5}, card: 0}
      - {kind: stall, rank: 2, when: {call: 1, instruction: 0}, seconds: 0.1}

A rank's instructions are numbered through its streams, stream after stream; a fault comes before its instruction.
Calls are numbered from 0, from when the script was armed. The same script, seed and program give the same run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import AfterValidator, Field, model_validator

from cxlemu.errors import ConfigError
from cxlemu.memory import MemorySpec
from cxlemu.memory.adversary import DEFAULT_RATES, AdversaryRates
from cxlemu.memory.backends import BACKENDS
from cxlemu.plan import RankPart
from cxlemu.topology.document import Document
from cxlemu.topology.fields import Misplaced, Model, closest, listed, validated
from faults.inject.model import FAULTS

FAULTS_MAX = 63  # a pool's fault page has an entry for each
NUMBER_MAX = 1 << 40

Number = Annotated[int, Field(ge=0, le=NUMBER_MAX)]
Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), AfterValidator(lambda rate: round(rate, 9))]
Seconds = Annotated[float, Field(ge=1e-9, le=3600, allow_inf_nan=False)]
GbytesPerS = Annotated[float, Field(ge=1e-9, le=10**6, allow_inf_nan=False)]


class Place(NamedTuple):
    """One instruction of a rank's part."""

    stream: int
    at: int


def place(part: RankPart, instruction: int) -> Place | None:
    """Instruction number ``instruction`` of a part, through its streams; None beyond the last."""
    for stream, one in enumerate(part.streams):
        if instruction < len(one.records):
            return Place(stream, instruction)
        instruction -= len(one.records)
    return None


class When(Model):
    call: Number = Field(default=0, description="which call of the rank, from 0")
    instruction: Number = Field(description="before which of its instructions, from 0")


class Rates(Model):
    """The adversary's, as AdversaryRates has them."""

    evict: Rate = Field(default=DEFAULT_RATES.evict, description="probability of an eviction around each operation")
    prefetch: Rate = Field(default=DEFAULT_RATES.prefetch, description="probability of a prefetch")
    land: Rate = Field(default=DEFAULT_RATES.land, description="probability that posted writes arrive")


class Fault(Model):
    """One fault. Which of the optional fields a kind takes and needs, `faults.inject.model.FAULTS` says."""

    kind: str = Field(description="one of faults.inject.model.FAULTS")
    rank: Annotated[int, Field(ge=0, le=65535)] = Field(description="the rank at whose instruction it happens")
    when: When = Field(description="call and instruction")
    card: Annotated[int, Field(ge=0, le=255)] | None = Field(
        default=None, description="absent: the instruction's first"
    )
    line: Number | None = Field(default=None, description="of the card; absent: the instruction's first")
    lines: Annotated[int, Field(ge=1, le=NUMBER_MAX)] | None = Field(default=None, description="from line on")
    seconds: Seconds | None = Field(default=None, description="for how long")
    gbytes_per_s: GbytesPerS | None = Field(default=None, description="what is left of the bandwidth")
    instructions: Annotated[int, Field(ge=1, le=NUMBER_MAX)] | None = Field(
        default=None, description="of the rank, until it is over; absent: for ever"
    )
    bit: Annotated[int, Field(ge=0, le=511)] | None = Field(
        default=None, description="which bit, from the first byte on"
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Fault:
        if self.kind not in FAULTS:
            raise Misplaced(("kind",), f"is {self.kind!r}, but there is no such fault; {closest(self.kind, FAULTS)}")
        kind = FAULTS[self.kind]
        for field in ("card", "line", "lines", "seconds", "gbytes_per_s", "instructions", "bit"):
            given = getattr(self, field) is not None
            if given and field not in kind.needs + kind.may:
                takes = listed(kind.needs + kind.may) or "nothing but a rank and when"
                raise Misplaced((field,), f"does not apply to {self.kind}, which takes {takes}; leave it out")
            if not given and field in kind.needs:
                raise Misplaced((field,), f"is missing: {self.kind} needs it, {Fault.model_fields[field].description}")
        if self.line is not None and self.card is None:
            raise Misplaced(("card",), "is missing: a line is the line of a card")
        if self.lines is not None and self.line is None:
            raise Misplaced(("line",), "is missing: lines are counted from one on")
        if self.kind == "flip_doorbell" and (self.bit or 0) >= 64:
            raise Misplaced(("bit",), f"is {self.bit} but should be below 64: a doorbell's word has no more")
        return self

    def __str__(self) -> str:
        extras = [f"{name} {value:g}" for name in _EXTRAS if (value := getattr(self, name)) is not None]
        where = f"rank {self.rank}, call {self.when.call}, instruction {self.when.instruction}"
        return ", ".join([f"{self.kind} at {where}", *extras])


_EXTRAS = ("card", "line", "lines", "seconds", "gbytes_per_s", "instructions", "bit")


class Script(Model):
    """A whole script. Immutable, equal where the files say the same."""

    seed: Annotated[int, Field(ge=0, lt=10**18)] = Field(default=0, description="of everything that is random")
    adversary: Rates | None = Field(default=None, description="absent: nature moves nothing by itself")
    faults: Annotated[tuple[Fault, ...], Field(strict=False, max_length=FAULTS_MAX)] = Field(
        default=(), description="what happens, in any order"
    )

    @classmethod
    def load(cls, path: Path) -> Script:
        """From a file. Raises ConfigError, one sentence: ``FILE:LINE: KEY what is wrong and what would be right``."""
        return validated(cls, Document.read(path, "fault script"))

    @classmethod
    def parse(cls, text: str, file: str = "script") -> Script:
        """From text; ``file`` is its name in errors. Raises ConfigError as ``load`` does."""
        return validated(cls, Document(text.encode(), file, "fault script"))

    def dump(self) -> str:
        """YAML that ``parse`` turns into an equal script."""
        return yaml.safe_dump(self.plain(), sort_keys=False, default_flow_style=None, width=120)

    def plain(self) -> dict[str, Any]:
        """The script as JSON has it: ``Script.model_validate`` takes it back."""
        return self.model_dump(mode="json", exclude_none=True)

    def memory(self) -> MemorySpec:
        """An emulated memory with this script's adversary."""
        if self.adversary is None:
            return MemorySpec()
        return MemorySpec(seed=self.seed, rates=AdversaryRates(**self.adversary.model_dump()))

    def check(self, *, ranks: int, backend: str) -> None:
        """Raises ConfigError for what cannot happen there."""
        for number, fault in enumerate(self.faults):
            if fault.rank >= ranks:
                raise ConfigError(f"faults[{number}].rank is {fault.rank}, but ranks are numbered 0 to {ranks - 1}")
            if FAULTS[fault.kind].emulated and not BACKENDS[backend].emulates_caches:
                raise ConfigError(
                    f"faults[{number}].kind {fault.kind} needs emulated memory, not the backend {backend!r}: "
                    f"on all backends there are {listed(n for n, k in FAULTS.items() if not k.emulated)}"
                )
