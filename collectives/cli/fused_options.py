"""The options that `cxlemu fused` has on every engine."""

import re
from pathlib import Path

import click

from collectives.choices import ORDERS
from cxlemu.cli.options import Flags, choice, concept, flag, path, switch

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


class TilingFlags(Flags):
    comm_rows: int | None = flag(
        "--comm-rows", type=click.IntRange(1), metavar="N", help="Rows per communication tile."
    )
    tile: tuple[int, int] | None = flag(
        "--tile", type=Dimensions("ROWSxCOLS"), metavar="ROWSxCOLS", help="Size of a compute tile."
    )
    order: str | None = choice(
        "--order", of=ORDERS, help=f"Order in which ranks read their peers.  [default: {ORDERS[0]}]"
    )
    transport: str | None = flag("--transport", help="pull: readers fetch tiles; push: writers copy to every reader.")
    tunes: bool = switch("--tune", help="Search tiles, order and transport for this shape first.")
    tuned_file: Path | None = path("--tuned", help="Like --tune; keep the choice in this file, for this machine.")
    json_file: Path | None = concept("json")
    trace_file: Path | None = concept("trace")
