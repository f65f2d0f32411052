"""``cxlemu simulate trace``: a workload's Chakra traces replayed on a modelled fabric."""

from pathlib import Path

import click

from cxlemu.choices import DEFAULT_TOPOLOGY
from cxlemu.cli.options import JsonFlags, argument, concept, flag, path, switch, taking


class TraceFlags(JsonFlags):
    prefix: Path = argument(type=click.Path(path_type=Path))
    config: str = concept("config", default=DEFAULT_TOPOLOGY, help="Topology of the modelled fabric: a file or a name.")
    groups_file: Path | None = path("--groups", help="JSON file that maps the name of each group to its ranks.")
    skip_missing: bool = switch(
        "--skip-missing", help="Let nodes wait only for existing nodes: a converter may drop some."
    )
    ctrl_deps: bool = switch(
        "--ctrl-deps", help="Let nodes also wait for their ctrl_deps, as Chakra's own reader does not."
    )
    accelerator: str | None = flag(
        "--accelerator",
        help="Take computing times of this accelerator: a shipped name or a file.  [default: what the trace recorded]",
    )
    trace_file: Path | None = concept("trace")
    verbose: bool = concept("verbose", help="List every collective call, in the order in which the calls begin.")


@click.command()
@taking(TraceFlags, work="simulate_trace_run:run")
def command() -> None:
    """Replay Chakra execution traces: PREFIX.0.et, PREFIX.1.et, ..., one for each rank.

    Collectives run as our plans between their ranks on the config's fabric. Computing takes its recorded time, or its
    time on --accelerator. docs/chakra.md lists the nodes that are read, and compares with ASTRA-sim. Needs protobuf.

    \b
    Examples:
      cxlemu simulate trace examples/traces/fsdp -c titan2-6xcz120
      cxlemu simulate trace my_trace --groups groups.json --trace replayed.json

    Exit codes: 0 replayed, 2 bad input, such as a rank without a file, 3 no node takes time.
    """
