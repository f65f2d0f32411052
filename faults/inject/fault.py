"""What a fault is, and what a kind of fault is: the one declaration that adds a kind to everything.

    register(
        FaultKind(
            "zero_line",
            "the first line that the instruction is about becomes zeros",
            Requirement.DETECT,
            before(zero_line),  # what it does, see faults/inject/effects.py
            errors=(IntegrityError, PeerLostError),
            emulated=True,
        )
    )

Scripts, sweeps, campaigns, shrinking, judging and the pytest plugin take the kind from there. The kinds that cxlemu
ships are in faults/inject/model.py; a package brings more by the entry points of ``cxlemu.fault_kinds``, so that every
process knows them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cxlemu.errors import ArgumentError, RunError
from cxlemu.plan import Instruction, RankPart
from cxlemu.topology.fields import Misplaced, Model, closest, listed
from faults.inject.injection import Injection
from faults.inject.places import InstructionPlace

NUMBER_MAX = 1 << 40
BITS = 512  # of a line
ENTRY_GROUP = "cxlemu.fault_kinds"

Number = Annotated[int, Field(ge=0, le=NUMBER_MAX)]
Seconds = Annotated[float, Field(ge=1e-9, le=3600, allow_inf_nan=False)]
GbytesPerS = Annotated[float, Field(ge=1e-9, le=10**6, allow_inf_nan=False)]


class When(Model):
    """At which moment of a rank a fault happens."""

    call: Number = Field(default=0, description="number of the rank's call, from 0")
    instruction: Number = Field(description="number of the call's instruction that it precedes, from 0")

    def __str__(self) -> str:
        return f"call {self.call}, instruction {self.instruction}"


class Fault(Model):
    """One fault of a script. Its kind says which of the optional fields it needs, and which it may have."""

    kind: str = Field(description="kind of the fault, such as poison or stall")
    rank: Annotated[int, Field(ge=0, le=65535)] = Field(description="rank whose instruction triggers it")
    when: When = Field(description="call and instruction")
    card: Annotated[int, Field(ge=0, le=255)] | None = Field(
        default=None, description="number of the card; absent: the instruction's first"
    )
    line: Number | None = Field(default=None, description="line of the card; absent: the instruction's first")
    lines: Annotated[int, Field(ge=1, le=NUMBER_MAX)] | None = Field(
        default=None, description="number of lines, from line on"
    )
    seconds: Seconds | None = Field(default=None, description="duration")
    gbytes_per_s: GbytesPerS | None = Field(default=None, description="remaining bandwidth")
    instructions: Annotated[int, Field(ge=1, le=NUMBER_MAX)] | None = Field(
        default=None, description="the rank's instructions until it ends; absent: for ever"
    )
    bit: Annotated[int, Field(ge=0, le=511)] | None = Field(
        default=None, description="number of the bit, from the first byte on"
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Fault:
        if self.kind not in FAULTS:
            raise Misplaced(("kind",), f"is {self.kind!r}, but there is no such fault; {closest(self.kind, FAULTS)}")
        kind = FAULTS[self.kind]
        for name in EXTRAS:
            given = getattr(self, name) is not None
            if given and name not in (*kind.needs, *kind.may):
                takes = listed([*kind.needs, *kind.may]) or "nothing but a rank and when"
                raise Misplaced((name,), f"does not apply to {self.kind}, which takes {takes}; leave it out")
            if not given and name in kind.needs:
                raise Misplaced((name,), f"is missing: {self.kind} needs it ({Fault.model_fields[name].description})")
        if self.line is not None and self.card is None:
            raise Misplaced(("card",), "is missing: a line is the line of a card")
        if self.lines is not None and self.line is None:
            raise Misplaced(("line",), "is missing: lines are counted from 1")
        if (self.bit or 0) >= kind.bits:
            raise Misplaced(("bit",), f"is {self.bit} but should be below {kind.bits}: {self.kind} has no more bits")
        return self

    def __str__(self) -> str:
        return ", ".join([f"{self.kind} at rank {self.rank}, {self.when}", *FAULTS[self.kind].tell(self)])


EXTRAS = ("card", "line", "lines", "seconds", "gbytes_per_s", "instructions", "bit")
"""The fields of a fault that only some kinds have."""


Effect = Callable[[Injection, int, Fault, InstructionPlace], None]
"""Adds to a call what fault number ``int`` of the script does there."""


class Requirement(Enum):
    """The duty of a run after a fault; faults/inject/model.py defines each."""

    SURVIVE = "survive"
    DETECT = "detect"
    CHECKSUM = "detect with a checksum"


def here(injection: Injection, start: InstructionPlace) -> InstructionPlace | None:
    """Where most faults happen: at the instruction that the script names, ``start``."""
    return start


def next_ring(injection: Injection, start: InstructionPlace) -> InstructionPlace | None:
    """Where a doorbell's faults happen: at the next instruction of the stream, from ``start`` on, that rings one."""
    return injection.next_ring(start)


def fields_given(fault: Fault) -> list[str]:
    """Tell the optional fields that a fault has: ``["card 0", "line 3"]``."""
    return [f"{name} {value:.15g}" for name in EXTRAS if (value := getattr(fault, name)) is not None]


def without_one_field(fault: Fault) -> Iterator[Fault]:
    """Yield the fault without one of its optional fields, the last field first, because a line needs its card."""
    for name in reversed(FAULTS[fault.kind].may):
        if getattr(fault, name) is not None:
            yield fault.model_copy(update={name: None})


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault: all that scripts, sweeps, campaigns, shrinking and judging know of it."""

    name: str  # the ``kind`` of a script's fault, a lower-case word
    what: str  # what happens, for people
    requirement: Requirement  # what a run must do when the fault has come
    effect: Effect  # adds what happens to the rank's call
    errors: tuple[type[RunError], ...] = ()  # errors that survivors may raise where the fault may be detected
    # finds the instruction of the rank's call at which the fault happens, from the one that the script names; None: it
    # does not come
    where: Callable[[Injection, InstructionPlace], InstructionPlace | None] = here
    # tells at which instructions sweeps and campaigns place it; None: at all
    fits: Callable[[Instruction], bool] | None = None
    # the fields that a script must give, each with the value that sweeps and campaigns give it: for a fault that lasts,
    # a time far below any deadline
    needs: Mapping[str, float] = field(default_factory=dict)
    may: tuple[str, ...] = ()  # the fields that a script may give, each before those that need it
    emulated: bool = False  # whether it happens on the emulated backend only
    bits: int = BITS  # how many bits a fault with a ``bit`` can flip
    # whether the rank alone or its whole host dies, so that peers must notice; None: neither
    kills: Literal["rank", "host"] | None = None
    restarts: bool = False  # whether all ranks begin again in the same pool
    # name of a field; a fault that has it loses bytes, which only a checksum detects
    loses_data_with: str | None = None
    # whether it breaks hardware, an entry of `cxlemu.memory.damage.Damage`: nothing comes of it before an access meets
    # it
    met: bool = False
    # yields simpler faults than one of this kind, the boldest first; repeated, it ends at a fault that has no simpler
    # one. The fault's moment is simplified separately
    simpler: Callable[[Fault], Iterator[Fault]] = without_one_field
    tell: Callable[[Fault], list[str]] = fields_given  # lists what a report says of a fault besides kind, rank and when

    def at(self, rank: int, when: When, **extras: Any) -> Fault:
        """Make a fault of this kind; ``extras`` override the values that the kind gives its fields."""
        return Fault(kind=self.name, rank=rank, when=when, **{**self.needs, **extras})

    def places(self, part: RankPart) -> list[int]:
        """List the instructions of a rank's part at which sweeps and campaigns place it."""
        instructions = [i for stream in part.streams for i in stream.instructions]
        return [number for number, i in enumerate(instructions) if self.fits is None or self.fits(i)]

    def may_lose_data(self, fault: Fault) -> bool:
        """Whether a fault of this kind makes wrong bytes that only a checksum can tell from right ones."""
        lost = self.loses_data_with is not None and getattr(fault, self.loses_data_with) is not None
        return lost or self.requirement is Requirement.CHECKSUM


FAULTS: dict[str, FaultKind] = {}
"""All kinds by name, in the order in which they were registered."""


def register(kind: FaultKind) -> FaultKind:
    """Add a kind of fault to everything that knows kinds, in this process."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", kind.name):
        raise ArgumentError(f"a kind of fault is a short lower-case word, such as lose_card, not {kind.name!r:.80}")
    if kind.name in FAULTS:
        raise ArgumentError(f"there is a kind of fault {kind.name!r} already: give yours another name")
    for name in (*kind.needs, *kind.may):
        if name not in EXTRAS:
            raise ArgumentError(f"fault kind {kind.name}: a fault has no field {name!r}; it may have {listed(EXTRAS)}")
    if not kind.errors and kind.requirement is not Requirement.SURVIVE:
        raise ArgumentError(f"fault kind {kind.name}: name the errors by which survivors may detect it")
    FAULTS[kind.name] = kind
    return kind


def register_installed() -> None:
    """Register the kinds that installed packages bring: the entry points of ``cxlemu.fault_kinds``.

    A kind that cannot be loaded is left out with a warning, so that it does not take all others with it.
    """
    for entry in sorted(entry_points(group=ENTRY_GROUP), key=lambda entry: entry.name):
        try:
            register(entry.load())
        except Exception as error:
            warnings.warn(f"the fault kind {entry.value} cannot be used: {error!r}", stacklevel=2)
