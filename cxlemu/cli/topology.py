"""``cxlemu topology``: show, check and list topology files."""

from __future__ import annotations

from pathlib import Path

import click

from cxlemu.cli.commands import VerbsGroup
from cxlemu.cli.vocabulary import option


@click.group(cls=VerbsGroup)
def command() -> None:
    """Draw and check a topology file.

    \b
    Examples:
      cxlemu topology list
      cxlemu topology show six-cards
      cxlemu topology show my-rack.yaml --json -
      cxlemu topology check configs/*.yaml
      cxlemu topology cost titan2-6xcz120
    """


@command.command("list")
@option("json")
def list_(json_file: Path | None) -> None:
    """Name the topologies that come with cxlemu.

    \b
    Examples:
      cxlemu topology list
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from cxlemu.cli.output import write_json
    from cxlemu.topology.summary import summaries

    if write_json(json_file, [its._asdict() for its in summaries()]):
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("name", no_wrap=True)
    for head in ("hosts", "cards"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("description")
    for its in summaries():
        table.add_row(its.name, str(its.hosts), str(its.cards), its.description)
    Console().print(table)


@command.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@option("json")
def check(files: tuple[str, ...], json_file: Path | None) -> None:
    """Check topology files: exit code 0 if all are right, 2 if one is not.

    Every wrong file is named with key, line and what would be right. A file that says how its values came about
    (source, fitted, assumed) is told which of them do not.

    \b
    Examples:
      cxlemu topology check my-rack.yaml
      cxlemu topology check configs/*.yaml
    """
    from cxlemu.cli.topology_run import check as work

    work(files, json_file)


@command.command()
@click.argument("config", metavar="CONFIG")
@option("json")
@click.option("--facts", "as_facts", is_flag=True, help="Only what its fabrics offer: counts, hops, bisection.")
@click.option("--svg", "svg_file", type=click.Path(path_type=Path), help="Draw every switch and link there as well.")
def show(config: str, json_file: Path | None, as_facts: bool, svg_file: Path | None) -> None:
    """Draw a topology: hosts on top, cards below, then every figure.

    Of a generated fabric, the groups that its top switches join are drawn, a box a group, and what it offers is
    counted: bisection is how much the lower half of its hosts can send to the upper half at once.

    CONFIG is a file, or a name that `cxlemu topology list` prints.

    \b
    Examples:
      cxlemu topology show six-cards
      cxlemu topology show my-rack.yaml --json -
      cxlemu topology show racks-2x72 --svg racks.svg
      cxlemu topology show racks-2x72 --facts --json -
    """
    from cxlemu.cli.topology_run import show as work

    work(config, json_file, as_facts, svg_file)


@command.command()
@click.argument("configs", nargs=-1, required=True, metavar="CONFIG...")
@option("json")
def cost(configs: tuple[str, ...], json_file: Path | None) -> None:
    """Add up what the fabrics of topologies cost and draw, and compare them with the last one.

    Prices and power are those of the file's `bill`, each with its standing.

    \b
    Examples:
      cxlemu topology cost titan2-6xcz120
      cxlemu topology cost my-rack.yaml titan2-6xcz120 --json cost.json
    """
    from cxlemu.cli.topology_cost import cost as work

    work(configs, json_file)
