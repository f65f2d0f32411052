"""Kinds of values that several commands' flags take."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource

from cxlemu.errors import ArgumentError
from cxlemu.suggest import unknown
from cxlemu.units import parse_bytes


def each_once(ctx: click.Context | None, parameter: click.Parameter | None, values: Any) -> Any:
    """Raises ArgumentError for a word that stands twice in an option's values, an argument's or a comma list."""
    each = values.split(",") if isinstance(values, str) else values or ()
    for value in each:
        if each.count(value) > 1:
            repeats = (
                f"{parameter.opts[0]} {value} is given" if isinstance(parameter, click.Option) else f"{value} is named"
            )
            raise ArgumentError(f"{repeats} twice")
    return values


def given_flags(ctx: click.Context) -> dict[str, str]:
    """Return the parameters that the command line gives, by name, each with its longest flag."""
    flags = {str(parameter.name): max(parameter.opts, key=len) for parameter in ctx.command.params}
    return {name: flag for name, flag in flags.items() if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}


class Names(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """A comma list of some names, or all; a function that gives the names is called only when a value is given."""

    name = "names"

    def __init__(self, names: Sequence[str] | Callable[[], Sequence[str]]) -> None:
        self._names = names

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the chosen names; click's usage error for a name that there is not."""
        names = tuple(self._names() if callable(self._names) else self._names)
        chosen = names if value == "all" else tuple(each_once(ctx, param, value).split(","))
        for name in chosen:
            if name == "all":
                self.fail("all has every name: leave the others out.", param, ctx)
            if name not in names:
                self.fail(unknown("value", name, names, " or all."), param, ctx)
        return chosen


class NumberParam(click.FloatRange):
    """A number within bounds: never nan, which no bound keeps out, nor infinite."""

    def _describe_range(self) -> str:
        return "" if self.min is self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class BytesParam(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """A size on the command line: ``--size 64K``."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a size as click asks: a wrong one is a usage error."""
        try:
            return parse_bytes(value)
        except ArgumentError as error:
            self.fail(f"{error}.", param, ctx)
