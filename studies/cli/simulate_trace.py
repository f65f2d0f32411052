"""``cxlemu simulate trace``: a workload's Chakra traces replayed on a modelled fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cxlemu.choices import DEFAULT_TOPOLOGY
from cxlemu.cli.vocabulary import option


@click.command()
@click.argument("prefix", type=click.Path(path_type=Path))
@option("config", default=DEFAULT_TOPOLOGY, show_default=True, help="The modelled fabric: a topology file or name.")
@click.option("--groups", "groups_file", type=click.Path(path_type=Path), help="JSON: group's name -> its ranks.")
@click.option("--accelerator", help="Computing takes what it would.  [default: what the trace recorded]")
@option("json")
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), help="Write what happened when, for Perfetto.")
@click.option("-v", "--verbose", is_flag=True, help="Every collective call, in the order in which they begin.")
def command(**flags: Any) -> None:
    """Replay Chakra execution traces: PREFIX.0.et, PREFIX.1.et, ..., one for each rank.

    Collectives run as our plans between their ranks on the config's fabric; computing takes what was recorded, or what
    the accelerator would take. docs/chakra.md says which nodes are read, and how to compare with ASTRA-sim. Needs
    protobuf.

    \b
    Examples:
      cxlemu simulate trace examples/traces/fsdp -c titan2-6xcz120
      cxlemu simulate trace my_trace --groups groups.json --trace replayed.json
    """
    from studies.cli.simulate_trace_run import run

    run(**flags)
