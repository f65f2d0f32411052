"""The work of ``cxlemu plan``: it builds or loads a plan, and prints, saves or checks it."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table

from collectives.algorithms.catalog import build, load_plan, pushing, recipe, variants
from collectives.algorithms.choose import choose
from collectives.algorithms.hierarchical.estimate import TwoLevelEstimate
from collectives.builder.recipes import Recipe
from collectives.choices import is_plan
from collectives.cli.plan import PlanCallFlags, PlanCheckFlags, PlanSaveFlags, PlanShowFlags, PlanTrafficFlags
from collectives.cli.targets import check_applies
from collectives.contracts import COLLECTIVES, contract_of
from collectives.in_heap import results_in_heap, told_in_heap
from collectives.layouts import world_layout
from collectives.sizes import block_bytes
from collectives.sweep.sweep import load_algorithm
from cxlemu.chakra import export as chakra_export
from cxlemu.chakra import files as chakra_files
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.options import JsonFlags
from cxlemu.cli.output import check_kept, write_json, writing
from cxlemu.cli.params import given_flags
from cxlemu.plan import DTYPES, Call, Plan, RankPart
from cxlemu.plan import file as plan_file
from cxlemu.plan.rules import check as check_rules
from cxlemu.plan.text import counts, text
from cxlemu.plan.view import PlanView
from cxlemu.topology import Topology
from cxlemu.topology.clusters import ranks_per_cluster
from cxlemu.units import counted


def _plan(ctx: click.Context, asked: PlanCallFlags) -> Plan:
    if (asked.collective is None) == (asked.algorithm is None):
        raise click.UsageError("give a COLLECTIVE, or --algorithm FILE.py:function.")
    if asked.algorithm is not None and asked.variant != "auto":
        raise click.UsageError("--variant does not go with --algorithm: your own algorithm has none.")
    own = load_algorithm(asked.algorithm) if asked.algorithm is not None else None
    collective = own.collective if own else str(asked.collective)
    contract_of(collective)
    check_applies(ctx, (collective,))
    nbytes = block_bytes(collective, asked.total_bytes, asked.ranks, DTYPES[asked.dtype].itemsize)
    chosen = own or _recipe(asked, collective, nbytes)
    op = asked.op or ("sum" if COLLECTIVES[collective].reduces else "none")
    call = Call(collective, chosen.name, asked.ranks, nbytes, asked.dtype, op, asked.root, asked.in_place)
    if chosen.spec.pushes:
        call = replace(call, heap=results_in_heap())
    topology = Topology.load(asked.config)
    layout = world_layout(topology, asked.ranks, region_bytes=asked.region_bytes)
    if chosen.spec.zero_copy:
        call = replace(call, heap=told_in_heap(call, layout, output=asked.in_place))
    if chosen.builder.takes_clusters:
        call = replace(call, cluster=ranks_per_cluster(topology, asked.ranks))
    return build(chosen, layout, call)


def _recipe(asked: PlanCallFlags, collective: str, nbytes: int) -> Recipe:
    if asked.variant != "auto":
        return recipe(collective, asked.variant)
    ways = TwoLevelEstimate.of(Topology.load(asked.config), asked.ranks)
    return recipe(collective, choose(collective, nbytes, asked.ranks, ways=ways, dtype=asked.dtype).variant)


def show(ctx: click.Context, asked: PlanShowFlags) -> None:
    if asked.saved is not None:
        _refuse_others(ctx, "saved", "limit", "json_file")
        plan = load_plan(asked.saved)
    elif asked.collective is not None and is_plan(asked.collective):
        _refuse_others(ctx, "collective", "limit", "json_file", file=asked.collective)
        plan = load_plan(Path(asked.collective))
    else:
        plan = _plan(ctx, asked)
    if not write_json(asked.json_file, _as_dict(plan)):
        console().print(PlanView(plan, asked.limit), soft_wrap=False)
    check_rules(plan)


def _refuse_others(ctx: click.Context, *allowed: str, file: str = "--file") -> None:
    """Refuse options that would build another plan: with a plan from a file they are mistakes."""
    for name, flag in given_flags(ctx).items():
        if name not in allowed:
            raise click.UsageError(f"{flag} does not go with {file}: the file defines the call.")


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


def save(ctx: click.Context, asked: PlanSaveFlags) -> None:
    check_kept("--output", asked.output)
    plan = _plan(ctx, asked)
    check_rules(plan)
    plan_file.save(plan, asked.output)
    write_json(asked.json_file, {"files": [str(asked.output)]} | _facts(plan))
    print_wrapped(console(), f"{asked.output}: {_summary(plan)}")


def traffic(ctx: click.Context, asked: PlanTrafficFlags) -> None:
    """Write what a plan moves as Chakra traces, one for each endpoint."""
    plan = _plan(ctx, asked)
    check_rules(plan)
    endpoints = chakra_export.traffic(plan)
    with writing("--output", asked.output):
        chakra_files.write(asked.output, endpoints)
    last, nodes = len(endpoints) - 1, sum(map(len, endpoints))
    files = [f"{asked.output}.{endpoint}.et" for endpoint in range(len(endpoints))]
    write_json(asked.json_file, {"files": files, "nodes": nodes} | _facts(plan))
    print_wrapped(
        console(),
        f"{asked.output}.0.et to {asked.output}.{last}.et: {_summary(plan)}; {counted(nodes, 'node')} of "
        f"{counted(plan.ranks, 'rank')} and, from endpoint {plan.ranks} on, "
        f"{counted(len(endpoints) - plan.ranks, 'card')}",
    )


def check(_ctx: click.Context, asked: PlanCheckFlags) -> None:
    plan = load_plan(str(asked.file))
    write_json(asked.json_file, {"files": [str(asked.file)]} | _facts(plan))
    print_wrapped(console(), f"{asked.file}: ok, {_summary(plan)}")


def _facts(plan: Plan) -> dict[str, Any]:
    instructions = sum(part.instruction_count for part in plan.parts)
    facts = {"ranks": plan.ranks, "rounds": plan.rounds, "instructions": instructions, "digest": plan.digest}
    return {"call": asdict(plan.call)} | facts


def _summary(plan: Plan) -> str:
    instructions = sum(part.instruction_count for part in plan.parts)
    ranks, rounds = counted(plan.ranks, "rank"), counted(plan.rounds, "round")
    return f"{plan.call}, {ranks}, {rounds}, {counted(instructions, 'instruction')}"


def list_(_ctx: click.Context, asked: JsonFlags) -> None:
    rows = [
        {"collective": collective, "variant": variant, "algorithm": _first_line(recipe(collective, variant))}
        for collective in COLLECTIVES
        for variant in (*variants(collective, clusters=True), *pushing(collective))
    ]
    if write_json(asked.json_file, rows):
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
    return (sys.modules[recipe.algorithm.__module__].__doc__ or "").strip().partition("\n")[0]
