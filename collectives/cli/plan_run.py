"""The work of ``cxlemu plan``: it builds or loads a plan, and prints, saves or checks it."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich import box
from rich.table import Table

from collectives.algorithms.catalog import build, load_plan, pushing, recipe, variants
from collectives.algorithms.choose import choose
from collectives.algorithms.hierarchical.estimate import TwoLevelEstimate
from collectives.builder.recipes import Recipe
from collectives.contracts import COLLECTIVES, contract_of
from collectives.in_heap import results_in_heap, told_in_heap
from collectives.layouts import world_layout
from collectives.sizes import block_bytes
from collectives.sweep.sweep import load_algorithm
from cxlemu.chakra import export as chakra_export
from cxlemu.chakra import files as chakra_files
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.output import write_json, writing
from cxlemu.plan import DTYPES, Call, Plan, RankPart
from cxlemu.plan import file as plan_file
from cxlemu.plan.rules import check as check_rules
from cxlemu.plan.text import counts, text
from cxlemu.plan.view import render
from cxlemu.topology import Topology
from cxlemu.topology.clusters import ranks_per_cluster
from cxlemu.units import counted


@dataclass(frozen=True)
class Wanted:
    """A plan as the options of ``show``, ``save`` and ``traffic`` describe it."""

    collective: str | None
    algorithm: str | None
    ranks: int
    total_bytes: int
    config: str
    variant: str
    dtype: str
    op: str | None
    root: int
    in_place: bool
    region_bytes: int

    def plan(self) -> Plan:
        """Build the plan.

        Raises:
            click.UsageError: Neither or both of a collective and an algorithm are given, or a variant with an
            algorithm. ArgumentError: The call is not possible.
            ConfigError: The topology is wrong.
        """
        if (self.collective is None) == (self.algorithm is None):
            raise click.UsageError("give a COLLECTIVE, or --algorithm FILE.py:function.")
        if self.algorithm is not None and self.variant != "auto":
            raise click.UsageError("--variant does not go with --algorithm: your own algorithm has none.")
        own = load_algorithm(self.algorithm) if self.algorithm is not None else None
        collective = own.collective if own else str(self.collective)
        contract_of(collective)
        nbytes = block_bytes(collective, self.total_bytes, self.ranks, DTYPES[self.dtype].itemsize)
        chosen = own or self._recipe(collective, nbytes)
        op = self.op or ("sum" if COLLECTIVES[collective].reduces else "none")
        call = Call(collective, chosen.name, self.ranks, nbytes, self.dtype, op, self.root, self.in_place)
        if chosen.spec.pushes:
            call = replace(call, heap=results_in_heap())
        topology = Topology.load(self.config)
        layout = world_layout(topology, self.ranks, region_bytes=self.region_bytes)
        if chosen.spec.zero_copy:
            call = replace(call, heap=told_in_heap(call, layout, output=self.in_place))
        if chosen.builder.takes_clusters:
            call = replace(call, cluster=ranks_per_cluster(topology, self.ranks))
        return build(chosen, layout, call)

    def _recipe(self, collective: str, nbytes: int) -> Recipe:
        if self.variant != "auto":
            return recipe(collective, self.variant)
        ways = TwoLevelEstimate.of(Topology.load(self.config), self.ranks)
        return recipe(collective, choose(collective, nbytes, self.ranks, ways=ways, dtype=self.dtype).variant)


def show(wanted: Wanted, saved: Path | None, limit: int, json_file: Path | None) -> None:
    """Print a plan, and then check its rules.

    Args:
        wanted: The plan to build.
        saved: A plan file to load instead.
        limit: Rows of any one table at most.
        json_file: Where the same goes as JSON; None: nowhere.

    Raises:
        ArgumentError: The call is not possible.
        ConfigError: The topology is wrong.
        PlanFileError: The file cannot be read.
        PlanError: The plan breaks a rule; it was printed before.
    """
    if saved is not None:
        _refuse_others("saved", "limit", "json_file")
        plan = plan_file.load(saved)
    else:
        plan = wanted.plan()
    if not write_json(json_file, _as_dict(plan)):
        console().print(render(plan, limit=limit), soft_wrap=False)
    check_rules(plan)


def _refuse_others(*allowed: str) -> None:
    """Refuse options that would build another plan: with a plan from a file they are mistakes."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        if name not in allowed and context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{max(parameter.opts, key=len)} does not go with --file: the file says it all.")


def _as_dict(plan: Plan) -> dict[str, Any]:
    return {
        "call": asdict(plan.call),
        "layout": asdict(plan.layout),
        **asdict(plan.frame),
        "digest": plan.digest,
        "ranks": [_part_as_dict(plan, part) for part in plan.parts],
    }


def _part_as_dict(plan: Plan, part: RankPart) -> dict[str, Any]:
    c = counts(part)
    return {
        "rank": part.rank,
        "instructions": {op.name: count for op, count in c.instructions.items()},
        "written_bytes": c.written_bytes,
        "read_bytes": c.read_bytes,
        "buffers": [asdict(buffer) for buffer in part.buffers],
        "events": part.events,
        "streams": {s.name: [text(i, plan, part.rank) for i in s.instructions] for s in part.streams},
    }


def save(wanted: Wanted, output: Path, json_file: Path | None) -> None:
    """Build a plan, check its rules and write it to a file.

    Args:
        wanted: The plan to build.
        output: The file to write.
        json_file: Where the same goes as JSON; None: nowhere.

    Raises:
        ArgumentError: The call is not possible.
        ConfigError: The topology is wrong.
        PlanError: The plan breaks a rule.
    """
    plan = wanted.plan()
    check_rules(plan)
    plan_file.save(plan, output)
    write_json(json_file, {"files": [str(output)]} | _facts(plan))
    print_wrapped(console(), f"{output}: {_summary(plan)}")


def traffic(wanted: Wanted, output: Path, json_file: Path | None) -> None:
    """Write what a plan moves as Chakra traces, one for each endpoint.

    Args:
        wanted: The plan to build.
        output: How the names of the files begin.
        json_file: Where the same goes as JSON; None: nowhere.

    Raises:
        ArgumentError: The call is not possible, or a file cannot be written.
        ConfigError: The topology is wrong.
        PlanError: The plan breaks a rule.
    """
    plan = wanted.plan()
    check_rules(plan)
    endpoints = chakra_export.traffic(plan)
    with writing("--output", output):
        chakra_files.write(output, endpoints)
    last, nodes = len(endpoints) - 1, sum(map(len, endpoints))
    files = [f"{output}.{endpoint}.et" for endpoint in range(len(endpoints))]
    write_json(json_file, {"files": files, "nodes": nodes} | _facts(plan))
    print_wrapped(
        console(),
        f"{output}.0.et to {output}.{last}.et: {_summary(plan)}; {counted(nodes, 'node')} of "
        f"{counted(plan.ranks, 'rank')} and, from endpoint {plan.ranks} on, "
        f"{counted(len(endpoints) - plan.ranks, 'card')}",
    )


def check(file: Path, json_file: Path | None) -> None:
    """Check a plan file and print a summary.

    Args:
        file: The plan file.
        json_file: Where the same goes as JSON; None: nowhere.

    Raises:
        PlanFileError: The plan is wrong.
    """
    plan = load_plan(str(file))
    write_json(json_file, {"files": [str(file)]} | _facts(plan))
    print_wrapped(console(), f"{file}: ok, {_summary(plan)}")


def _facts(plan: Plan) -> dict[str, Any]:
    instructions = sum(part.instruction_count for part in plan.parts)
    facts = {"ranks": plan.ranks, "rounds": plan.rounds, "instructions": instructions, "digest": plan.digest}
    return {"call": asdict(plan.call)} | facts


def _summary(plan: Plan) -> str:
    instructions = sum(part.instruction_count for part in plan.parts)
    ranks, rounds = counted(plan.ranks, "rank"), counted(plan.rounds, "round")
    return f"{plan.call}, {ranks}, {rounds}, {counted(instructions, 'instruction')}"


def list_(json_file: Path | None) -> None:
    """Print the table of collectives, variants and algorithms.

    Args:
        json_file: Where the same goes as JSON; None: nowhere.
    """
    rows = [
        {"collective": collective, "variant": variant, "algorithm": _first_line(recipe(collective, variant))}
        for collective in COLLECTIVES
        for variant in (*variants(collective, clusters=True), *pushing(collective))
    ]
    if write_json(json_file, rows):
        return
    table = Table("collective", "variants", "algorithm", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for collective in COLLECTIVES:
        by_algorithm: dict[str, list[str]] = {}
        for variant in (*variants(collective, clusters=True), *pushing(collective)):
            by_algorithm.setdefault(_first_line(recipe(collective, variant)), []).append(variant)
        for line, names in by_algorithm.items():
            table.add_row(collective, " ".join(names), line)
    console().print(table, soft_wrap=False)


def _first_line(recipe: Recipe) -> str:
    """The first line of the docstring of the page that the algorithm is on."""
    return (sys.modules[recipe.algorithm.__module__].__doc__ or "").strip().partition("\n")[0]
