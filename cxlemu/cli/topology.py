"""``cxlemu topology``: show, check and list topology files."""

from pathlib import Path

import click

from cxlemu.cli.commands import VerbsGroup
from cxlemu.cli.options import JsonFlags, argument, path, switch, taking


class TopologyCheckFlags(JsonFlags):
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")


class TopologyShowFlags(JsonFlags):
    config: str = argument(metavar="CONFIG")
    as_facts: bool = switch("--facts", help="Show only the figures of generated fabrics: counts, hops, bisection.")
    svg_file: Path | None = path("--svg", help="Also draw every switch and link to an SVG file.")


class TopologyCostFlags(JsonFlags):
    configs: tuple[str, ...] = argument(nargs=-1, required=True, metavar="CONFIG...")


@click.group(cls=VerbsGroup)
def command() -> None:
    """Draw, check and price topologies.

    \b
    Examples:
      cxlemu topology list
      cxlemu topology show six-cards
      cxlemu topology show my-rack.yaml --json -
      cxlemu topology check configs/*.yaml
      cxlemu topology cost titan2-6xcz120
    """


@command.command("list")
@taking(JsonFlags, work="topology_run:list_")
def list_() -> None:
    """List the topologies that come with cxlemu.

    \b
    Examples:
      cxlemu topology list
    """


@command.command()
@taking(TopologyCheckFlags, work="topology_run:check")
def check() -> None:
    """Check topology files.

    Exit code 0 if all files are valid, 2 if one is not; each error names the key, the line and what would be right.
    In a file that marks values as source, fitted or assumed, the values without a mark are listed.

    \b
    Examples:
      cxlemu topology check my-rack.yaml
      cxlemu topology check configs/*.yaml
    """


@command.command()
@taking(TopologyShowFlags, work="topology_run:show")
def show() -> None:
    """Draw a topology: hosts on top, cards below, then every figure.

    For a generated fabric, draws one box per group that its top switches join, and counts what the fabric offers:
    bisection is the bandwidth from the lower half of its hosts to the upper half.

    CONFIG is a file, or a name that `cxlemu topology list` prints.

    \b
    Examples:
      cxlemu topology show six-cards
      cxlemu topology show my-rack.yaml --json -
      cxlemu topology show racks-2x72 --svg racks.svg
      cxlemu topology show racks-2x72 --facts --json -
    """


@command.command()
@taking(TopologyCostFlags, work="topology_run:cost")
def cost() -> None:
    """Add up the price and the power of topologies' fabrics, and compare them with the last one.

    The `bill` of a file has the prices and powers, each with its origin.

    \b
    Examples:
      cxlemu topology cost titan2-6xcz120
      cxlemu topology cost my-rack.yaml titan2-6xcz120 --json cost.json
    """
