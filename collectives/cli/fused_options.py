"""The options that `cxlemu fused` has on every engine."""

from __future__ import annotations

import re

import click

RANKS_MAX = 64


class Dimensions(click.ParamType[tuple[int, ...]]):
    """A parameter such as ``MxNxK`` or ``ROWSxCOLS``, which becomes a tuple of that many numbers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse numbers of one to nine digits with an ``x`` between them; a wrong text is a usage error."""
        if isinstance(value, tuple):
            return value
        numbers = str(value).split("x")
        if len(numbers) != self.name.count("x") + 1 or not all(
            re.fullmatch("[0-9]{1,9}", n, re.ASCII) for n in numbers
        ):
            self.fail(
                f"{value!r} is not {self.name}, such as {'x'.join(['256'] * (self.name.count('x') + 1))}.", param, ctx
            )
        return tuple(map(int, numbers))
