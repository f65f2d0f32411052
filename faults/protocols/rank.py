"""One rank of a protocol, executed: its generator yields operations, memory does them, what its loads see goes back."""

from __future__ import annotations

import ast
import inspect
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from traceback import walk_tb
from types import FrameType, GeneratorType
from typing import Any

from cxlemu.budget import BudgetSpentError, within
from cxlemu.errors import ArgumentError
from cxlemu.pool.session_area import backoff
from cxlemu.userfile import foreign
from faults.explore.automaton import begun, said
from faults.explore.leash import RanAwayError, leash
from faults.explore.operations import as_step
from faults.explore.programs import RankProtocol
from faults.machine.program import Do, MachineProgram, Step
from faults.machine.text import step_text
from faults.protocols.memory import WordMemory

RESULT_CHARS = TEXT_CHARS = 800  # limits of what other ranks are told
ARRIVAL_S = 0.05  # what is posted arrives after this time, if it did not before
PAUSE_RATES, PAUSE_S = (0.05, 0.4), 0.01  # with a seed: how often a rank pauses before an operation; longest pause
LOOK_AT_OTHERS_S = 0.02
OWN_CODE_S = 0.5  # how much longer than its deadline a rank may stay in code of its own
IDLE = "without an operation"
_POSTS = {Do.FLUSH, Do.FLUSH_KEEP, Do.STORE_NT, Do.SIGNAL}


class How(StrEnum):
    RETURNED = "returned"
    CRASHED = "crashed"  # by its own Crash()
    FAILED = "failed"  # an assertion, or any other exception
    STUCK = "stuck"  # its deadline came first
    STOPPED = "stopped"  # another rank failed


@dataclass(frozen=True)
class Ending:
    how: How
    result: str = ""  # what the rank returned, as ``repr`` writes it; empty if it did not return
    text: str = ""  # what went wrong, or what the rank was doing
    where: str = ""  # the line of its generator: "file.py:12"

    @property
    def value(self) -> Any:
        return ast.literal_eval(self.result) if self.how == How.RETURNED else None

    @property
    def wrong(self) -> bool:
        return self.how in (How.FAILED, How.STUCK)


class StoppedError(Exception):
    """Another rank failed: ``look`` raises this."""


class _CrashedError(Exception):
    pass


class _StuckError(Exception):
    pass


class Rank:
    def __init__(
        self,
        protocol: RankProtocol,
        rank: int,
        ranks: int,
        words: WordMemory,
        *,
        deadline_s: float,
        pauses: Random | None,
        look: Callable[[], None],
        crash: Callable[[], None],
    ) -> None:
        """Prepare the rank, whose deadline begins now; ``look`` is called every LOOK_AT_OTHERS_S, and may raise."""
        self._protocol, self._rank, self._ranks = protocol, rank, ranks
        self._words, self._look, self._crash = words, look, crash
        self._pauses = pauses
        self._pause_rate = 0.0 if pauses is None else pauses.choice(PAUSE_RATES)
        self._deadline_s, self._ends = deadline_s, time.monotonic() + deadline_s
        self._program = MachineProgram((), protocol.words(), protocol.line_names)
        self._lines = {word.name: word.line for word in self._program.words}
        self._who = f"{protocol.name}, rank {rank}"
        self._posted_at: float | None = None
        self._looks_at = 0.0
        self._operations = 0
        self._doing = "has not begun"

    def run(self) -> Ending:
        """Run the rank's generator to its end, or to its deadline.

        What the rank posted then arrives, unless the rank crashed. An exception of the generator other than
        ArgumentError ends it with How.FAILED.
        """
        try:
            with within(self._deadline_s + OWN_CODE_S):
                return self._run()
        except BudgetSpentError as spent:
            text = f"after {self._deadline_s:g} s it runs code of its own, after operation {self._operations}"
            return Ending(How.STUCK, text=text, where=_raised(spent))

    def _run(self) -> Ending:
        try:
            with foreign():
                generator = begun(self._protocol.function, self._rank, self._ranks)
        except ArgumentError:
            raise
        except Exception as error:
            return Ending(How.FAILED, text=said(error)[:TEXT_CHARS])
        try:
            ending = self._driven(generator)
        except _CrashedError:
            return Ending(How.CRASHED, where=_standing(generator))
        except _StuckError:
            text = f"after {self._deadline_s:g} s it {self._doing}"
            ending = Ending(How.STUCK, text=text[:TEXT_CHARS], where=_standing(generator))
        except StoppedError as stopped:
            text = f"{stopped}, while it {self._doing}"
            ending = Ending(How.STOPPED, text=text[:TEXT_CHARS], where=_standing(generator))
        finally:
            with suppress(Exception), foreign():  # its end is known
                generator.close()
        self._all_arrives()
        return ending

    def _driven(self, generator: GeneratorType[Any, Any, Any]) -> Ending:
        seen = None
        while True:
            try:
                with leash(), foreign():
                    operation = generator.send(seen)
            except StopIteration as stop:
                return Ending(How.RETURNED, self._told(stop.value), "" if self._operations else IDLE)
            except RanAwayError:
                raise ArgumentError(f"{self._who} runs too long without a yield") from None
            except ArgumentError:
                raise
            except Exception as error:
                return Ending(How.FAILED, text=said(error)[:TEXT_CHARS], where=_raised(error))
            seen = self._done(as_step(operation, self._lines, self._who))

    def _done(self, step: Step) -> int | None:
        self._operations += 1
        self._doing = f"is at {step_text(self._program, step)}, operation {self._operations}"
        if self._pauses is not None and self._pauses.random() < self._pause_rate:
            time.sleep(self._pauses.random() * PAUSE_S)
        self._go_on()
        if step.do == Do.CRASH:
            self._crash()
            raise _CrashedError
        if step.do == Do.WAIT:
            self._wait(step)
            return None
        seen = self._words.do(step)
        if step.do in _POSTS and self._posted_at is None:
            self._posted_at = time.monotonic()
        elif step.do == Do.FENCE:
            self._posted_at = None
        return seen if step.do == Do.LOAD else None

    def _wait(self, step: Step) -> None:
        attempt = 0
        while (seen := self._words.do(step)) < step.value:
            self._doing = f"waits for {self._program.words[step.place].name} >= {step.value}, and sees {seen}"
            backoff(attempt)
            attempt += 1
            self._go_on()

    def _go_on(self) -> None:
        """Let posted lines arrive that are due, and look at the others if that is due."""
        now = time.monotonic()
        if self._posted_at is not None and now >= self._posted_at + ARRIVAL_S:
            self._words.settle()
            self._posted_at = None
        if now >= self._looks_at:
            self._looks_at = now + LOOK_AT_OTHERS_S
            self._look()
        if now >= self._ends:
            raise _StuckError

    def _all_arrives(self) -> None:
        if self._posted_at is not None:
            time.sleep(max(0.0, self._posted_at + ARRIVAL_S - time.monotonic()))
        self._words.settle()

    def _told(self, result: Any) -> str:
        text = repr(result)
        try:
            same = len(text) <= RESULT_CHARS and ast.literal_eval(text) == result
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            same = False
        if self._protocol.final is not None and not same:
            raise ArgumentError(
                f"{self._who} returns {text:.60}: for `final`, return numbers, text, tuples, lists, dicts or sets "
                f"of them, {RESULT_CHARS} characters at most"
            )
        return text[:RESULT_CHARS]


def _standing(generator: GeneratorType[Any, Any, Any]) -> str:
    """Return the line at which a generator is suspended, or the innermost one of those that it yields from."""
    while isinstance(generator.gi_yieldfrom, GeneratorType):
        generator = generator.gi_yieldfrom
    frame = generator.gi_frame
    return "" if frame is None else _line(frame, frame.f_lineno)


def _raised(error: BaseException) -> str:
    """Return the innermost line of a generator that the error came through."""
    frames = [
        (frame, line) for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_flags & inspect.CO_GENERATOR
    ]
    return _line(*frames[-1]) if frames else ""


def _line(frame: FrameType, number: int) -> str:
    file = Path(frame.f_code.co_filename)
    with suppress(ValueError, OSError):
        file = file.relative_to(Path.cwd())
    return f"{file}:{number}"[-TEXT_CHARS:]
