"""``cxlemu topology``: show, check and list topology files."""

from __future__ import annotations

from pathlib import Path

import click


@click.group
def command() -> None:
    """Draw and check a topology file.

    \b
    Examples:
      cxlemu topology list
      cxlemu topology show six-cards
      cxlemu topology show my-rack.yaml --json
      cxlemu topology check configs/*.yaml
      cxlemu topology cost titan2-6xcz120
    """


@command.command("list")
def list_() -> None:
    """Name the topologies that come with cxlemu.

    \b
    Examples:
      cxlemu topology list
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from cxlemu.topology.summary import summaries

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
def check(files: tuple[str, ...]) -> None:
    """Check topology files: exit code 0 if all are right, 2 if one is not.

    Every wrong file is named with key, line and what would be right. A file that says how its values came about
    (source, fitted, assumed) is told which of them do not.

    \b
    Examples:
      cxlemu topology check my-rack.yaml
      cxlemu topology check configs/*.yaml
    """
    from cxlemu.cli.topology_run import check as work

    work(files)


@command.command()
@click.argument("config", metavar="CONFIG")
@click.option(
    "--json", "as_json", is_flag=True, help="Print every value, defaults included, with its standing, as JSON."
)
@click.option(
    "--facts", "as_facts", is_flag=True, help="Print what its fabrics offer, as JSON: counts, hops, bisection."
)
@click.option("--svg", "svg_file", type=click.Path(path_type=Path), help="Draw every switch and link there as well.")
def show(config: str, as_json: bool, as_facts: bool, svg_file: Path | None) -> None:
    """Draw a topology: hosts on top, cards below, then every figure.

    Of a generated fabric, the groups that its top switches join are drawn, a box a group, and what it offers is
    counted: bisection is how much the lower half of its hosts can send to the upper half at once.

    CONFIG is a file, or a name that `cxlemu topology list` prints.

    \b
    Examples:
      cxlemu topology show six-cards
      cxlemu topology show my-rack.yaml --json
      cxlemu topology show racks-2x72 --svg racks.svg
      cxlemu topology show racks-2x72 --facts
    """
    from cxlemu.cli.topology_run import show as work

    work(config, as_json, as_facts, svg_file)


@command.command()
@click.argument("configs", nargs=-1, required=True, metavar="CONFIG...")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
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
