"""Numbers of ranks on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

_ITEM = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


class RanksParam(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """``3``, ``2-64`` or ``2,3,8``, or several of these as ``2-5,7,8``: the numbers, each once, from small to large.

    Args:
        least: The smallest number that is allowed.
        most: The largest number that is allowed.
    """

    name = "ranks"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def convert(
        self, value: str | Sequence[int], param: click.Parameter | None, ctx: click.Context | None
    ) -> Sequence[int]:
        """Convert the text to numbers; a default that is a sequence already is left as it is."""
        if not isinstance(value, str):
            return value
        found: set[int] = set()
        for item in value.split(","):
            match = _ITEM.fullmatch(item)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
            if not self.least <= first <= last <= self.most:
                self.fail(
                    f"{item!r} is no number of ranks from {self.least} to {self.most}, nor a range as 2-4; write 3, "
                    f"2-4, 2,4,8 or 2-5,8.",
                    param,
                    ctx,
                )
            found.update(range(first, last + 1))
        return tuple(sorted(found))
