"""``cxlemu run``: collectives on a pool, every result checked, in a table as nccl-tests prints it."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from collectives.cli.fault_scripts import RunFaults, load_script, run_protocol
from collectives.cli.texts import ALGORITHM_HELP
from collectives.sweep.defaults import AUTO, DEFAULT_SEED, MIN_BYTES, REGION_BYTES, STEP_FACTOR
from cxlemu.choices import (
    DEFAULT_TOPOLOGY,
    DTYPE_NAMES,
    ENGINES,
    INTEGRITIES,
    REDOPS,
    TIME_SCALE_MAX,
    TIME_SCALE_MIN,
    TRANSPORTS,
)
from cxlemu.cli.backends import backends
from cxlemu.cli.params import BytesParam, Names
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam, option
from cxlemu.errors import ArgumentError
from cxlemu.units import format_bytes

if TYPE_CHECKING:
    from collectives.cli.run_report import RunReport, RunSetup
    from collectives.cli.targets import Target
    from collectives.sweep.sweep import Sweep

RANKS = 4


@click.command()
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...|FILE.plan")
@option("minbytes", help=f"Smallest size.  [default: {MIN_BYTES}]")
@option("maxbytes", help="Largest size.  [default: 1M, or -b if larger]")
@click.option(
    "-f",
    "--stepfactor",
    type=click.IntRange(2),
    metavar="N",
    help=f"From size to size, times.  [default: {STEP_FACTOR}]",
)
@click.option("-i", "--stepbytes", type=BytesParam(), help="From size to size, plus; instead of -f.")
@option(
    "datatype",
    type=Names(DTYPE_NAMES),
    default="f32",
    show_default=True,
    help=f"{', '.join(DTYPE_NAMES)}; a comma list or all.",
)
@option("op", type=Names(REDOPS), default="sum", show_default=True, help=f"{', '.join(REDOPS)}; a comma list or all.")
@option("root", default="0", metavar="RANK|all", show_default=True, help="For those that have one.")
@click.option(
    "--variant",
    default=AUTO,
    show_default=True,
    help="auto; every; or naive, aggregate, all, line, and two_shot for all_reduce; NAME-K for at most K chunks.",
)
@click.option("--algorithm", metavar="FILE.py:FUNCTION", help=ALGORITHM_HELP)
@click.option("--protocol", metavar="FILE.py:NAME", help="Run a protocol of your own instead; executes the file.")
@click.option(
    "--seeds", type=click.IntRange(1), metavar="N", help="Of a protocol: runs under N adversaries.  [default: 10]"
)
@click.option(
    "--repeat", type=click.IntRange(1), metavar="N", help="Of a protocol: runs of each seed.  [default: 1; 10 if none]"
)
@click.option("-x", "--exitfirst", is_flag=True, help="Of a protocol: no more runs after the first that is wrong.")
@click.option("--in-place", is_flag=True, help="The smaller buffer is part of the larger one, as NCCL has it.")
@click.option("--iters", type=click.IntRange(1), metavar="N", default=5, show_default=True, help="Timed calls per row.")
@click.option(
    "-w", "--warmup", type=click.IntRange(0), default=1, show_default=True, help="Calls before them, checked too."
)
@click.option(
    "-C", "--check", type=click.Choice(["0", "1"]), default="1", show_default=True, help="0: do not look at results."
)
@option("ranks", type=RanksParam(1, 4096), help=f"[default: {RANKS}, or as many as were launched]")
@option("config", help=f"A topology: a file or a name.  [default: {DEFAULT_TOPOLOGY}, or as many cards as devices]")
@click.option(
    "--backend",
    type=click.Choice(backends().names),
    default="emulated",
    show_default=True,
    help=f"Where the pool's bytes live. {backends().help}",
)
@click.option("--device", "devices", multiple=True, metavar="PATH", help="A card of dax: once for each, in any order.")
@click.option("--pool", metavar="UUID|NAME", help="Of the devices, those of this pool; or a tenant's in shared memory.")
@click.option(
    "--tenant",
    envvar="CXLEMU_TENANT",
    help="In what was lent to this tenant: see cxlemu pool capacity.  [default: $CXLEMU_TENANT]",
)
@click.option(
    "--adversary",
    metavar="SEED|off",
    help=f"Evicts, prefetches and delays lines at random; off: none leaves by itself.  [default: {DEFAULT_SEED}]",
)
@option("faults", type=click.Path(path_type=Path), help="Let the faults of this script happen.")
@click.option("--engine", type=click.Choice(ENGINES), default="native", show_default=True)
@click.option(
    "--integrity",
    type=click.Choice(INTEGRITIES),
    help="Compare what is read with a checksum that travels with its doorbell.  [default: none]",
)
@click.option(
    "--transport",
    type=click.Choice(TRANSPORTS),
    default="pool",
    show_default=True,
    help="process: large arrays go from process to process, as MPI's do; needs --backend shm and one host.",
)
@option(
    "launch",
    type=click.Choice(["processes", "threads", "env"]),
    default="processes",
    show_default=True,
    help="env: started by mpirun, torchrun or srun.",
)
@click.option(
    "--pace", is_flag=True, help="Ranks take the time that the config's cost model gives them, times the time scale."
)
@click.option(
    "--time-scale",
    type=click.FloatRange(TIME_SCALE_MIN, TIME_SCALE_MAX),
    metavar="X",
    help="Nanoseconds here for one of the model, with --pace.  [default: so that this machine keeps up]",
)
@click.option(
    "--region-bytes",
    type=BytesParam(),
    default=format_bytes(REGION_BYTES).replace(" ", ""),
    show_default=True,
    help="The communicator's ring in the pool.",
)
@click.option(
    "--deadline-s",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    help="For any one wait, not for the run.",
)
@option("json")
@click.option("-v", "--verbose", is_flag=True, help="Why each variant was taken; layout and placement.")
@for_each_ranks()
@click.pass_context
def command(
    ctx: click.Context,
    collectives: tuple[str, ...],
    minbytes: int | None,
    maxbytes: int | None,
    stepfactor: int | None,
    stepbytes: int | None,
    datatype: tuple[str, ...],
    op: tuple[str, ...],
    root: str,
    variant: str,
    algorithm: str | None,
    protocol: str | None,
    seeds: int | None,
    repeat: int | None,
    exitfirst: bool,
    in_place: bool,
    iters: int,
    warmup: int,
    check: str,
    ranks: int | None,
    config: str | None,
    backend: str,
    devices: tuple[str, ...],
    pool: str | None,
    tenant: str | None,
    adversary: str | None,
    script_file: Path | None,
    engine: str,
    integrity: str | None,
    transport: str,
    how: Literal["processes", "threads", "env"],
    pace: bool,
    time_scale: float | None,
    region_bytes: int,
    deadline_s: float,
    json_file: Path | None,
    verbose: bool,
) -> None:
    """Run collectives on a pool, emulated or real, and check every byte.

    Without arguments: all eight collectives, 4 ranks in 4 processes, on six cards. Sizes, columns and flags are
    those of nccl-tests, but for two: -n is the number of ranks, as for mpirun (its -n is --iters here), and -c the
    config (its -c is -C).

    A plan file, which `cxlemu plan save` wrote, says ranks, size, dtype, operation, root and ring: give its topology as
    -c, as it was saved with.

    \b
    Examples:
      cxlemu run
      cxlemu run all_reduce -n 3 -b 8 -e 4M -f 2 -d f32,bf16 -o all
      cxlemu run broadcast --variant every --root all --adversary 7 -v
      cxlemu run --algorithm examples/my_all_reduce.py:my_all_reduce
      cxlemu run all_reduce.plan
      cxlemu run --protocol examples/protocols/ring_queue.py:fixed --seeds 20
      cxlemu run all_gather --launch threads --json result.json
      cxlemu run all_reduce -n 3 -e 4K --faults examples/disturbed.yaml
      cxlemu run all_gather -n 2 -b 64K -e 4M -f 8 -c laptop --pace
      mpirun -np 3 cxlemu run --launch env
      cxlemu run -e 16M -c one-host-four-ranks --backend shm --transport process
      cxlemu run --backend dax --device /dev/dax0.0 --device /dev/dax1.0
      cxlemu run --tenant red --pool shared --backend shm
    """
    from collectives.algorithms.catalog import ring_of
    from collectives.cli.run_memory import (
        adversary_seed,
        memory_of,
        number,
        real_cards,
        remove_dead_pools,
        topology_for,
    )
    from collectives.cli.run_pace import check_flags, time_scale_of
    from collectives.cli.run_report import RunReport, RunSetup
    from collectives.cli.targets import check_options, target
    from collectives.communicator.transport import check_transport
    from collectives.contracts import COLLECTIVES
    from collectives.layouts import check_fits_world, world_layout
    from collectives.sweep.sweep import Sweep, size_steps
    from cxlemu.capacity.lease import lease_for
    from cxlemu.cli.first_time import measure_machine
    from cxlemu.engines import check_engine
    from cxlemu.memory import BACKENDS
    from cxlemu.plan.checksums import check_integrity
    from cxlemu.topology.clusters import ranks_per_cluster
    from cxlemu.world.environment import find_place

    if protocol is not None:
        run_protocol(ctx, protocol)
    if seeds is not None or repeat is not None or exitfirst:
        raise ArgumentError("--seeds, --repeat and --exitfirst go with --protocol")
    asked = target(collectives, algorithm, variant=variant != AUTO)
    check_options(ctx, asked, _fixed(asked))
    plan = asked.plan
    nature = adversary_seed(adversary, backend)
    sweep = Sweep(
        collectives=asked.collectives or tuple(name for name, its in COLLECTIVES.items() if its.among_all),
        sizes=size_steps(minbytes, maxbytes, stepfactor, stepbytes),
        dtypes=datatype,
        redops=op,
        roots=None if root == "all" else (number(root, "--root", "all"),),
        variant=variant,
        algorithm=asked.source,
        iterations=iters,
        warmup=warmup,
        in_place=in_place,
        check=check == "1",
        seed=DEFAULT_SEED if nature is None else nature,
        region_bytes=region_bytes,
        engine=engine,
        integrity=integrity,
        transport=transport,
    )
    check_integrity(integrity)
    memory, pool_name = memory_of(backend, nature, devices, pool, tenant)
    check_engine(engine)
    faults = None if script_file is None else load_script(script_file, how=how, adversary=adversary)
    if faults is not None:
        memory = faults.memory(memory)
    check_flags(pace=pace, time_scale=time_scale, sweep=sweep, backend=backend)
    place = find_place(os.environ, one_machine=not BACKENDS[backend].on_devices) if how == "env" else None
    if place is not None and ranks not in (None, place.ranks):
        raise ArgumentError(f"--ranks is {ranks}, but {place.launcher} started {place.ranks}: leave it out")
    lease = None if tenant is None else lease_for(tenant, memory, pool_name, wait_s=deadline_s)
    if not memory.backend.on_devices and (place is None or place.rank == 0):
        remove_dead_pools()
    setup = RunSetup(
        topology=topology_for(config, memory, lease, may_be_smaller=place is None and plan is None),
        ranks=place.ranks if place is not None else ranks or (RANKS if plan is None else plan.ranks),
        memory=memory,
        launch=place.launcher if place is not None else how,
        engine=engine,
        cards=real_cards(memory) if lease is None else lease.describe(),
        tenant=tenant,
        pool_name=pool_name,
    )
    check_transport(
        transport,
        memory.backend,
        setup.topology.place(setup.ranks),
        integrity=integrity,
        tenant=tenant is not None,
        paced=pace,
    )
    sweep = replace(sweep, cluster=ranks_per_cluster(setup.topology, setup.ranks))
    if pace:
        setup = replace(setup, pace=time_scale_of(time_scale, setup.topology, setup.ranks, backend))
    report = RunReport(setup, sweep, json_file=json_file, verbose=verbose, silent=bool(place and place.rank))
    topology = setup.topology
    if plan is None:  # refuses what cannot work before anything is made
        world_layout(topology, setup.ranks, region_bytes=region_bytes)
    else:
        check_fits_world(ring_of(plan), topology, setup.ranks)
    if faults is not None:
        faults.check(ranks=setup.ranks, backend=backend)
    if memory.backend.maps_cards and place is None and engine == "native":
        measure_machine()
    with report:
        wrong = _run(setup, sweep, report, how, deadline_s, faults)
    ctx.exit(1 if wrong or report.wrong else 0)


def _run(
    setup: RunSetup,
    sweep: Sweep,
    report: RunReport,
    how: Literal["processes", "threads", "env"],
    deadline_s: float,
    faults: RunFaults | None,
) -> int:
    """Run the sweep, and return how many elements were wrong on the ranks of this process."""
    from collectives.sweep.measure import run_sweep
    from cxlemu.engines.pace import Pace
    from cxlemu.world import from_environment, launch

    topology, memory = setup.topology, setup.memory
    pace = None if setup.pace is None else Pace(setup.pace.value)
    if how == "env":
        with from_environment(
            topology=topology,
            memory=memory,
            deadline_s=deadline_s,
            on_message=report,
            pace=pace,
            tenant=setup.tenant,
            pool_name=setup.pool_name,
            heap_bytes="cards",  # so that a run depends on no machine's memory
        ) as context:
            return run_sweep(context, sweep)
    return sum(
        launch(
            partial(run_sweep, sweep=sweep, engine=None if faults is None else faults.engine),
            ranks=setup.ranks,
            topology=topology,
            memory=memory,
            how=how,
            deadline_s=deadline_s,
            on_message=report if faults is None else faults.listening(report),
            pace=pace,
            tenant=setup.tenant,
            pool_name=setup.pool_name,
            heap_bytes="cards",
        )
    )


def _fixed(asked: Target) -> dict[str, object]:
    """The flags that a plan file determines, with their values."""
    from collectives.cli.targets import NEVER

    if asked.plan is None:
        return {}
    call = asked.plan.call
    return {
        "ranks": call.ranks,
        "minbytes": asked.size_bytes,
        "maxbytes": asked.size_bytes,
        "stepfactor": NEVER,
        "stepbytes": NEVER,
        "datatype": (call.dtype,),
        "op": (call.redop,),
        "root": str(call.root),
        "in_place": call.in_place,
        "integrity": NEVER,
        "region_bytes": NEVER,
    }
