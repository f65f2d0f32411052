"""Turns of a schedule: a thread and its steps, or a move as a step of its own: of a line, or the crash of a host."""

from __future__ import annotations

from collections.abc import Sequence

MOVE_TURNS, CRASH = 1 << 16, 3  # as in native/moves.h


def crash_in(turns: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the host that crashes in turns, and the step."""
    crash = next((k for k, (thread, _) in enumerate(turns) if thread >= MOVE_TURNS and thread & 255 == CRASH), None)
    return None if crash is None else (turns[crash][0] >> 8 & 15, steps_of(turns[: crash + 1]))


def steps_of(turns: Sequence[tuple[int, int]]) -> int:
    """Count the steps of turns; a move is one."""
    return sum(1 if thread >= MOVE_TURNS else steps for thread, steps in turns)
