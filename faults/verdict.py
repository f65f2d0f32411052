"""The verdict of a judge: right, wrong or unknown. A search that ran out of budget is never a success."""

from enum import Enum


class Verdict(Enum):
    """Right, wrong or unknown."""

    OK = "ok"
    VIOLATION = "violation"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        """The exit code of a command that comes to this verdict: 0, 1 or 3."""
        return {Verdict.OK: 0, Verdict.VIOLATION: 1, Verdict.UNKNOWN: 3}[self]
