"""A failing run as a token, and the shortest schedule that still fails the same way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from pydantic import Field, ValidationError

from cxlemu.errors import TokenError
from cxlemu.topology.fields import Model
from faults.programs.result import ExecSetting, RunChoice, RunResult
from faults.programs.run import run
from faults.replay.token import Token, parse

KIND = "exec"
TURNS_MAX = 20_000  # of a schedule in a token; for a longer one the token holds its seed alone
_Number = Annotated[int, Field(ge=0, le=(1 << 64) - 1)]
_Turn = Annotated[list[Annotated[int, Field(ge=0, le=(1 << 32) - 1)]], Field(min_length=2, max_length=2)]


class ExecBody(Model):
    """What a token says of a run. The commands are not in it: a replay is given them again."""

    hosts: Annotated[int, Field(ge=1, le=16)] = Field(description="emulated hosts")
    seed: _Number | None = Field(description="of nature's moves; none in the worst case")
    schedule: _Number = Field(description="of the turns")
    script: Annotated[list[_Turn], Field(max_length=TURNS_MAX)] = Field(description="turns to follow instead")
    trace: _Number = Field(description="the hash of all steps")


def token_of(setting: ExecSetting, result: RunResult) -> Token:
    """Make the token of a run.

    Args:
        setting: What was run.
        result: What it came to.
    """
    choice = result.choice
    body = ExecBody(
        hosts=setting.hosts,
        seed=choice.seed,
        schedule=choice.schedule,
        script=[list(turn) for turn in choice.script] if len(choice.script) <= TURNS_MAX else [],
        trace=result.trace,
    )
    return Token(KIND, body.model_dump())


def read_token(word: str) -> ExecBody:
    """Read the token of a run.

    Raises:
        TokenError: The word is damaged, or it is the token of something else.
    """
    token = parse(word)
    if token.kind != KIND:
        raise TokenError(f"this token is for cxlemu replay: it holds {token.kind}, not a run of programs")
    try:
        return ExecBody.model_validate(dict(token.body))
    except ValidationError as error:
        raise TokenError(f"this token is damaged: {error.errors()[0]['msg']}") from None


def choice_of(body: ExecBody) -> RunChoice:
    """Return the choice that a token holds."""
    return RunChoice(body.seed, body.schedule, tuple((thread, steps) for thread, steps in body.script))


def shrink(setting: ExecSetting, failed: RunResult, *, runs: int = 60, seconds: float = 20.0) -> RunResult:
    """Look for the shortest schedule that fails the same way.

    Turns are left out, first many at once, then one by one; the threads that are left take theirs as they come. A
    failure without nature's moves is simpler than one with them.

    Args:
        setting: What is run.
        failed: The run that failed.
        runs: The most further runs to make.
        seconds: How long to search at most, in seconds.

    Returns:
        The shortest run that was found, perhaps ``failed`` itself.
    """
    ends = time.monotonic() + seconds
    left = runs

    def attempt(choice: RunChoice) -> RunResult | None:
        nonlocal left
        if left <= 0 or time.monotonic() > ends:
            return None
        left -= 1
        again = run(quiet, choice)
        return again if again.signature() == failed.signature() else None

    quiet = replace(setting, show=False)
    if setting.free or len(failed.turns) > TURNS_MAX:
        return failed
    best = failed
    if failed.choice.seed is not None:
        calm = attempt(replace(failed.choice, seed=None, script=tuple(failed.turns)))
        best = calm or best
    script = _fewer(list(best.turns), lambda turns: attempt(replace(best.choice, script=tuple(turns))))
    return script if script is not None and len(script.choice.script) < len(failed.turns) else best


def _fewer(
    turns: list[tuple[int, int]], attempt: Callable[[list[tuple[int, int]]], RunResult | None]
) -> RunResult | None:
    """Leave out ever smaller parts of a schedule, as delta debugging does."""
    found: RunResult | None = None
    part = max(len(turns) // 2, 1)
    while part and turns:
        at = 0
        while at < len(turns):
            fewer = turns[:at] + turns[at + part :]
            shorter = attempt(fewer) if fewer else None
            if shorter is not None:
                found, turns = shorter, fewer
            else:
                at += part
        part //= 2
    return found
