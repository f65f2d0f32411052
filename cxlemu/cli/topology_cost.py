"""``cxlemu topology cost``: what a fabric's parts cost and draw, and how configurations compare."""

from typing import Any

import click
from rich import box
from rich.table import Table

from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.output import write_json
from cxlemu.cli.topology import TopologyCostFlags
from cxlemu.topology import Item, Topology
from cxlemu.topology.bill import SUMS, bill_of, power_watts, price_usd


def cost(_ctx: click.Context, asked: TopologyCostFlags) -> None:
    topologies = [Topology.load(config) for config in asked.configs]
    bills = [bill_of(topology) for topology in topologies]
    out = console()
    for topology, bill in zip(topologies, bills, strict=True):
        print_wrapped(out, topology.title, "bold")
        out.print(_table(topology, bill), soft_wrap=False)
        out.print()
    for line in _comparison(topologies, bills):
        print_wrapped(out, line)
    write_json(asked.json_file, {"configs": [_document(*pair) for pair in zip(topologies, bills, strict=True)]})


def _table(topology: Topology, bill: tuple[Item, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("part", "each $", "all $", "standing", "all W", "standing"):
        table.add_column(name, justify="left" if name in ("part", "standing") else "right", no_wrap=name != "part")
    for index, item in enumerate(bill):
        stands = [topology.provenance.get(("bill", index, key)) for key in ("price_usd", "power_watts")]
        kinds = [standing.kind if standing else "" for standing in stands]
        whole = (f"{item.count * item.price_usd:,.0f}", kinds[0], f"{item.count * item.power_watts:,.0f}", kinds[1])
        table.add_row(f"{item.count} x {item.name}", f"{item.price_usd:,.0f}", *whole)
    table.add_section()
    for what in SUMS:
        table.add_row(what, "", f"{price_usd(bill, what):,.0f}", "", f"{power_watts(bill, what):,.0f}", "")
    return table


def _comparison(topologies: list[Topology], bills: list[tuple[Item, ...]]) -> list[str]:
    last = bills[-1]
    lines = []
    for topology, bill in zip(topologies[:-1], bills[:-1], strict=True):
        ratios = [
            f"{what} {price_usd(bill, what) / price_usd(last, what):.2f} x the price, "
            f"{power_watts(bill, what) / power_watts(last, what):.2f} x the power"
            for what in SUMS
            if price_usd(last, what) and power_watts(last, what)
        ]
        lines.append(f"{topology.name} by {topologies[-1].name}: {'; '.join(ratios)}")
    return lines


def _document(topology: Topology, bill: tuple[Item, ...]) -> dict[str, Any]:
    return {
        "config": topology.name,
        "bill": topology.document()["bill"],
        "price_usd": {what: price_usd(bill, what) for what in SUMS},
        "power_watts": {what: power_watts(bill, what) for what in SUMS},
    }
