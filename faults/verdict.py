"""What a judge says: right, wrong, or that it could not tell: a search that ran out of budget is never a success."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    OK = "ok"
    VIOLATION = "violation"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        return {Verdict.OK: 0, Verdict.VIOLATION: 1, Verdict.UNKNOWN: 3}[self]
