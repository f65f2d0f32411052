"""A failing run as a token, and the shortest schedule that still fails the same way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field, ValidationError

from cxlemu.errors import TokenError
from cxlemu.topology.fields import Model
from faults.delta import fewer
from faults.programs.area import LINES_MOST
from faults.programs.result import ExecSetting, RunChoice, RunResult
from faults.programs.run import run
from faults.token import Token, parse

KIND = "exec"
TURNS_MAX = 20_000  # of a schedule in a token; for a longer one the token holds its seed alone
_Number = Annotated[int, Field(ge=0, le=(1 << 64) - 1)]
_Turn = Annotated[list[Annotated[int, Field(ge=0, le=(1 << 32) - 1)]], Field(min_length=2, max_length=2)]


class ExecBody(Model):
    """What a token says of a run. The commands are not in it: a replay is given them again."""

    hosts: Annotated[int, Field(ge=1, le=16)] = Field(description="emulated hosts")
    seed: _Number | None = Field(description="seed of nature's moves; none in the worst case")
    schedule: _Number = Field(description="seed of the turns")
    script: Annotated[list[_Turn], Field(max_length=TURNS_MAX)] = Field(description="turns to follow instead")
    losses: Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(max_length=LINES_MOST)] | None = Field(
        default=None, description="number of lost stores for each line of the crashed host, by its number"
    )
    trace: _Number = Field(description="the hash of all steps")


def token_of(setting: ExecSetting, result: RunResult) -> Token:
    choice = result.choice
    body = ExecBody(
        hosts=setting.hosts,
        seed=choice.seed,
        schedule=choice.schedule,
        script=[list(turn) for turn in choice.script] if len(choice.script) <= TURNS_MAX else [],
        losses=None if choice.losses is None else list(choice.losses),
        trace=result.trace,
    )
    return Token(KIND, body.model_dump(exclude_defaults=True))


def read_token(word: str) -> ExecBody:
    token = parse(word)
    if token.kind != KIND:
        raise TokenError(f"this token is for cxlemu replay: it holds {token.kind}, not a run of programs")
    try:
        return ExecBody.model_validate(dict(token.body))
    except ValidationError as error:
        raise TokenError(f"this token is damaged: {error.errors()[0]['msg']}") from None


def choice_of(body: ExecBody) -> RunChoice:
    script = tuple((thread, steps) for thread, steps in body.script)
    return RunChoice(body.seed, body.schedule, script, None if body.losses is None else tuple(body.losses))


def shrink(setting: ExecSetting, failed: RunResult, *, runs: int = 60, seconds: float = 20.0) -> RunResult:
    """Look for the shortest schedule that fails the same way.

    Turns are left out, first many at once, then one by one; the threads that are left take theirs as they come. A
    failure without nature's moves is simpler than one with them. The result may be ``failed`` itself.
    """
    ends = time.monotonic() + seconds
    left = runs

    def attempt(choice: RunChoice) -> RunResult | None:
        nonlocal left
        if left <= 0 or time.monotonic() > ends:
            return None
        left -= 1
        quiet = replace(setting, show=False, deadline_s=min(setting.deadline_s, max(ends - time.monotonic(), 0.01)))
        again = run(quiet, choice)
        return again if again.signature() == failed.signature() else None

    if setting.free or len(failed.turns) > TURNS_MAX:
        return failed
    best = failed
    if failed.choice.seed is not None:
        best = attempt(replace(failed.choice, seed=None, script=tuple(failed.turns))) or failed
    shorter: RunResult | None = None

    def fails(turns: Sequence[tuple[int, int]]) -> bool:
        nonlocal shorter
        again = attempt(replace(best.choice, script=tuple(turns))) if turns else None
        shorter = again or shorter
        return again is not None

    fewer(best.turns, fails)
    return shorter if shorter is not None and len(shorter.choice.script) < len(failed.turns) else best
