"""What ``cxlemu topology`` does: reads topologies, and prints what they say."""

from collections.abc import Iterator
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.options import JsonFlags
from cxlemu.cli.output import check_svg, write_json, write_output
from cxlemu.cli.topology import TopologyCheckFlags, TopologyCostFlags, TopologyShowFlags
from cxlemu.cli.topology_parts import parts
from cxlemu.cli.topology_svg import topology_svg
from cxlemu.cli.topology_text import ASCII, topology_text
from cxlemu.errors import ArgumentError, ConfigError
from cxlemu.topology import Item, Topology
from cxlemu.topology.bill import SUMS, bill_of, power_watts, price_usd
from cxlemu.topology.document import dotted
from cxlemu.topology.fields import listed
from cxlemu.topology.metrics import fabric_metrics
from cxlemu.topology.provenance import kinds_of
from cxlemu.topology.summary import summaries
from cxlemu.units import counted, format_bytes


def list_(_ctx: click.Context, asked: JsonFlags) -> None:
    if write_json(asked.json_file, [summary._asdict() for summary in summaries()]):
        return
    table = _table("name", "hosts", "cards", "description")
    for summary in summaries():
        table.add_row(summary.name, str(summary.hosts), str(summary.cards), summary.description)
    Console().print(table)


def check(_ctx: click.Context, asked: TopologyCheckFlags) -> None:
    wrong: list[ConfigError] = []
    rows: list[dict[str, str | None]] = []
    for file in asked.files:
        try:
            topology = Topology.load(file)
        except ConfigError as error:
            wrong.append(error)
            rows.append({"file": file, "error": str(error)})
            if len(wrong) > 1:
                click.echo(f"cxlemu: {wrong[-2]}", err=True)
        else:
            rows.append({"file": file, "error": None})
            click.echo(f"{file}: ok, {_summary(topology)}")
            for line in _provenance(topology):
                click.echo(f"  {line}")
            joined = {end for link in topology.expanded.links for end in link.ends}
            for name in (switch.name for switch in topology.switches if switch.name not in joined):
                click.echo(f"  note: no link joins the switch {name}")
    write_json(asked.json_file, rows)
    if wrong:
        raise wrong[-1]


def show(_ctx: click.Context, asked: TopologyShowFlags) -> None:
    check_svg(asked.svg_file)
    topology = Topology.load(asked.config)
    if asked.as_facts and not topology.fabrics:
        raise ArgumentError(
            f"--facts does nothing here, because {topology.name} has no fabrics of many switches: leave it out"
        )
    if asked.svg_file is not None:
        write_output("--svg", asked.svg_file, topology_svg(topology).encode())
    facts = [fabric_metrics(topology, fabric)._asdict() for fabric in topology.fabrics] if asked.as_facts else []
    if write_json(asked.json_file, facts if asked.as_facts else topology.document()):
        return
    if asked.as_facts:
        for each in facts:
            for name, value in each.items():
                click.echo(f"{name:<{max(map(len, each))}}  {value}")
        return
    out = Console()
    out.print(Text(topology.name, style="bold"))
    out.print(Text(topology.description))
    out.print()
    for line in topology_text(topology, out.width):
        out.print(Text(line.translate(ASCII) if out.options.ascii_only else line), no_wrap=True)
    for table in (_parts(topology), _costs(topology), _links(topology), _spaces(topology)):
        out.print()
        out.print(table)
    out.print()
    out.print(_notes(topology))


def _summary(topology: Topology) -> str:
    room = sum(len(numbers) * group.capacity_bytes for numbers, group in topology.card_groups())
    hosts, cards = topology.host_count, topology.card_count
    return f"{counted(hosts, 'host')}, {counted(cards, 'card')}, {format_bytes(room)}"


def _provenance(topology: Topology) -> Iterator[str]:
    """How its values came about, if the file says so, and those that do not say."""
    if topology.provenance:
        yield kinds_of(topology.provenance)
        if bare := topology.bare_figures():
            yield f"without source, fitted or assumed: {listed(map(dotted, bare))}"


def _table(*columns: str, folds: str = "description") -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        right = column.endswith(("GB/s", "ns", "$", "W")) or column in {"size", "hosts", "cards", "granule", "value"}
        table.add_column(column, justify="right" if right else "left", no_wrap=column != folds)
    return table


def _parts(topology: Topology) -> Table:
    table = _table("part", "size", "latency ns", "read GB/s", "write GB/s", "both GB/s")
    memory = topology.hosts.memory
    reads, writes = f"{memory.read_gbytes_per_s:g}", f"{memory.write_gbytes_per_s:g}"
    table.add_row("each host's DRAM", "", str(memory.latency_ns), reads, writes)
    for switch in topology.switches:
        table.add_row(f"switch {switch.name}", "", str(switch.port_latency_ns))
    for fabric in topology.fabrics:
        table.add_row(f"switches of {fabric.name}", "", str(fabric.port_latency_ns))
    for group in topology.cards:
        node = "" if group.numa_node is None else f", NUMA node {group.numa_node}"
        speeds = (group.read_gbytes_per_s, group.write_gbytes_per_s, group.total_gbytes_per_s)
        figures = (str(group.latency_ns), *(f"{speed:g}" for speed in speeds))
        name = f"{group.count} x card" if group.owner is None else f"each {group.owner[:-1]}'s memory"
        table.add_row(name + node, format_bytes(group.capacity_bytes), *figures)
    return table


def _costs(topology: Topology) -> Table:
    table = _table("cost of each rank", "value", "origin")
    for name, cost in topology.costs.model_dump(exclude_none=True).items():
        standing = topology.provenance.get(("costs", name))
        table.add_row(name, f"{cost:g}", standing.kind if standing else "")
    return table


def _links(topology: Topology) -> Table:
    table = _table("link", "joins", "each way GB/s", "latency ns")
    for link in topology.links:
        joins = f"{_each(link.ends[0])} - {_each(link.ends[1])}"
        table.add_row(link.name, joins, f"{link.gbytes_per_s:g}", str(link.latency_ns))
    for part in parts(topology):
        if part.fabric is None:
            continue
        for kind in part.kinds:
            figures = f"{kind.link.gbytes_per_s:g}", str(kind.link.latency_ns)
            table.add_row(f"{kind.links} of {part.fabric.name}", kind.joins, *figures)
    return table


def _each(end: str) -> str:
    return f"each {end[:-1]}" if end in {"hosts", "ranks", "cards"} else end


def _spaces(topology: Topology) -> Table:
    table = _table("space", "kind", "on cards", "size", "granule", "coherent")
    for space in topology.spaces:
        cards = topology.cards_of(space)
        on = "-" if not cards else f"{cards[0]}" if len(cards) == 1 else f"{cards[0]} to {cards[-1]}"
        room = space.capacity_bytes or sum(topology.card(card).capacity_bytes for card in cards)
        granule = format_bytes(space.interleave_bytes) if space.interleave_bytes else "-"
        coherent = "yes" if space.coherent else "no"
        table.add_row(space.name, space.kind, on, format_bytes(room), granule, coherent)
    return table


def _notes(topology: Topology) -> str:
    pool = topology.cards_of(topology.pool_space)
    far = pool[-1] if topology.pool_space.owned else pool[0]
    node = "" if topology.pool_numa_node is None else f" on NUMA node {topology.pool_numa_node}"
    fits = topology.host_count * topology.hosts.ranks_per_host
    return (
        f"idle 64 B load, host0 from {topology.card_name(far)}: {topology.load_latency_ns(0, far)} ns\n"
        f"emulated here with {format_bytes(topology.card_bytes)} for each card{node}\n"
        f"placement: {topology.describe_placement(fits)}"
    )


# --- cost ----------------------------------------------------------------------------------------------------------


def cost(_ctx: click.Context, asked: TopologyCostFlags) -> None:
    topologies = [Topology.load(config) for config in asked.configs]
    bills = [bill_of(topology) for topology in topologies]
    out = console()
    for topology, bill in zip(topologies, bills, strict=True):
        print_wrapped(out, topology.title, "bold")
        out.print(_bill(topology, bill), soft_wrap=False)
        out.print()
    for line in _comparison(topologies, bills):
        print_wrapped(out, line)
    write_json(asked.json_file, {"configs": [_priced(*pair) for pair in zip(topologies, bills, strict=True)]})


def _bill(topology: Topology, bill: tuple[Item, ...]) -> Table:
    table = _table("part", "each $", "all $", "origin", "all W", "origin", folds="part")
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


def _priced(topology: Topology, bill: tuple[Item, ...]) -> dict[str, Any]:
    return {
        "config": topology.name,
        "bill": topology.document()["bill"],
        "price_usd": {what: price_usd(bill, what) for what in SUMS},
        "power_watts": {what: power_watts(bill, what) for what in SUMS},
    }
