"""Ranges of ranks on the command line."""

from __future__ import annotations

import re

import click


class RanksParam(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """``3`` or ``2-64``, as a range."""

    name = "ranks"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def convert(self, value: str | range, param: click.Parameter | None, ctx: click.Context | None) -> range:
        if isinstance(value, range):
            return value
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", value, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not self.least <= first <= last <= self.most:
            self.fail(
                f"{value!r} is no number of ranks from {self.least} to {self.most}, nor a range as 2-4.", param, ctx
            )
        return range(first, last + 1)
