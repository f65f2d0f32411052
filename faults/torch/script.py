"""A fault script for training: what happens at which call of which process group. Data, never code.

    seed: 7
    leave_out:
      - {rank: 1, instruction: INVALIDATE}
    faults:
      - {kind: kill, rank: 1, group: "0", when: {call: 20, instruction: 0}}
      - {kind: stall, rank: 2, when: {message: 30, instruction: 0}, seconds: 0.5}

Group "0" is the world. Its calls and messages have the numbers that errors name: the first is 1. Kinds of faults are
those of ``cxlemu run --faults``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from cxlemu.errors import ConfigError
from cxlemu.plan import Op
from cxlemu.topology.document import Document
from cxlemu.topology.fields import Misplaced, Model, closest, validated
from faults.inject.fault import NUMBER_MAX, Fault, Number
from faults.inject.script import FAULTS_MAX, check_faults

Rank = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1, le=NUMBER_MAX)]


class GroupWhen(Model):
    """At which call or message of a group a fault happens, by the number that errors give it."""

    call: Count | None = Field(default=None, description="number of the call, from 1; 1 if nothing else is said")
    message: Count | None = Field(
        default=None, description="number of the message, sent or received, after whose beginning it happens, from 1"
    )
    instruction: Number = Field(description="number of the call's instruction that it precedes, from 0")

    @model_validator(mode="after")
    def _is_one(self) -> GroupWhen:
        if self.call is not None and self.message is not None:
            raise Misplaced(("message",), "and call exclude each other: leave one out")
        return self

    @property
    def moment(self) -> tuple[str, int]:
        return ("call", self.call or 1) if self.message is None else ("message", self.message)

    def __str__(self) -> str:
        return f"{self.moment[0]} {self.moment[1]}, instruction {self.instruction}"


class GroupFault(Fault):
    """A fault, and the process group at whose call it happens."""

    when: GroupWhen = Field(description="call or message, and instruction")  # type: ignore[assignment]
    group: Annotated[str, Field(max_length=64)] = Field(default="0", description="torch's name of the group")


class LeftOut(Model):
    """A kind of instruction that a rank never executes, in any call of any group."""

    rank: Rank = Field(description="the rank in the world")
    instruction: str = Field(description="the instruction, such as INVALIDATE")

    @field_validator("instruction")
    @classmethod
    def _exists(cls, name: str) -> str:
        if name not in Op.__members__:
            raise Misplaced((), f"is {name!r}, but there is no such instruction; {closest(name, Op.__members__)}")
        return name


class TrainingScript(Model):
    """A whole script; immutable."""

    seed: Annotated[int, Field(ge=0, lt=10**18)] = Field(default=0, description="seed of all random choices")
    leave_out: Annotated[tuple[LeftOut, ...], Field(strict=False, max_length=FAULTS_MAX)] = Field(
        default=(), description="instructions that ranks omit"
    )
    faults: Annotated[tuple[GroupFault, ...], Field(strict=False, max_length=FAULTS_MAX)] = Field(
        default=(), description="faults, in any order"
    )

    @classmethod
    def load(cls, path: Path) -> TrainingScript:
        """Read a script from a file. Raises ConfigError: one sentence says where and what is wrong with it."""
        return validated(cls, Document.read(path, "fault script"))

    def check(self, *, ranks: int, backend: str) -> None:
        """Check that every fault can happen in a world."""
        check_faults(self.faults, ranks=ranks, backend=backend)
        for number, left in enumerate(self.leave_out):
            if left.rank >= ranks:
                raise ConfigError(f"leave_out[{number}].rank is {left.rank}, but ranks are numbered 0 to {ranks - 1}")
