"""What ``cxlemu run`` does: the options become a sweep and a world, which are checked before anything is made."""

import os
from dataclasses import replace
from functools import partial
from typing import Any

import click

from collectives.algorithms.catalog import ring_of
from collectives.cli.fault_scripts import RunFaults, load_script, run_protocol
from collectives.cli.run import RANKS, RunFlags
from collectives.cli.run_memory import adversary_seed, memory_of, number, real_cards, remove_dead_pools, topology_for
from collectives.cli.run_pace import check_flags, time_scale_of
from collectives.cli.run_report import RunReport, RunSetup
from collectives.cli.targets import NEVER, Target, check_applies, check_called, check_options, target
from collectives.communicator.calls.transport import check_transport
from collectives.contracts import COLLECTIVES
from collectives.defaults import AUTO, DEFAULT_SEED
from collectives.layouts import check_fits_world, world_layout
from collectives.sweep.measure import run_sweep
from collectives.sweep.sweep import Sweep, size_steps
from cxlemu.capacity.lease import lease_for
from cxlemu.cli.first_time import measure_machine
from cxlemu.cli.params import given_flags
from cxlemu.engines import check_engine
from cxlemu.engines.pace import Pace
from cxlemu.errors import ArgumentError
from cxlemu.memory import BACKENDS, MemorySpec
from cxlemu.plan.checksums import check_integrity
from cxlemu.topology.clusters import memories_behind_pool, ranks_per_cluster
from cxlemu.units import counted, format_bytes
from cxlemu.world import from_environment, launch
from cxlemu.world.environment import Place, find_place


def run(ctx: click.Context, asked: RunFlags) -> None:
    if asked.protocol is not None:
        run_protocol(ctx, asked.protocol)
    if asked.seeds is not None or asked.repeat is not None or asked.exitfirst:
        raise ArgumentError("--seeds, --repeat and --exitfirst go with --protocol")
    what = target(asked.collectives, asked.algorithm, variant=asked.variant != AUTO)
    check_options(ctx, what, _fixed(what))
    check_applies(ctx, what.collectives)
    seed = adversary_seed(asked.adversary, asked.backend)
    sweep = _sweep(asked, what, seed)
    memory, pool_name = memory_of(asked.backend, seed, asked.devices, asked.pool, asked.tenant)
    faults, disturbed = None, seed is not None and asked.adversary is not None
    if asked.script_file is not None:
        faults = load_script(asked.script_file, how=asked.how, adversary=asked.adversary)
        before, memory = memory, faults.memory(memory)
        disturbed = (disturbed or memory != before) and memory.seed is not None
    check_flags(pace=asked.pace, time_scale=asked.time_scale, sweep=sweep, backend=asked.backend)
    place = _place(asked)
    setup = replace(_setup(asked, what, memory, pool_name, place), faults="" if faults is None else str(faults))
    check_called(what, setup.ranks)
    sweep = replace(sweep, cluster=ranks_per_cluster(setup.topology, setup.ranks))
    report = RunReport(
        setup, sweep, json_file=asked.json_file, verbose=asked.verbose, silent=bool(place and place.rank)
    )
    if what.plan is None:  # refuses what cannot work before anything is made
        ring = world_layout(setup.topology, setup.ranks, region_bytes=asked.region_bytes)
        if "region_bytes" in given_flags(ctx):
            _note_smaller(ring.slots * ring.slot_bytes, asked.region_bytes)
        if asked.ranks is None and place is None:
            _note_fewer(setup)
    else:
        check_fits_world(ring_of(what.plan), setup.topology, setup.ranks)
    if faults is not None:
        cards = setup.topology.pool_card_count + memories_behind_pool(setup.topology, setup.ranks)
        faults.check(ranks=setup.ranks, backend=asked.backend, cards=cards)
    if memory.backend.maps_cards and place is None and asked.engine == "native":
        measure_machine()
    if place is None or not place.rank:
        for sentence in sweep.left_out(asked.maxbytes) if what.plan is None else ():
            click.echo(f"note: {sentence}", err=True)
    with report:
        wrong = _measure(asked, setup, sweep, report, faults)
    never = faults.unfired() if faults is not None else []
    if disturbed and not report.moved and not (place and place.rank):
        why = f"so little work draws no move from seed {memory.seed}: repeat it (--iters), or take another seed"
        never.append(f"the adversary moved no line: {why}")
    never += [report.nothing_compared] if report.nothing_compared else []
    for sentence in never:
        click.echo(sentence, err=True)
    ctx.exit(1 if wrong or report.wrong else 3 if never else 0)


def _note_fewer(setup: RunSetup) -> None:
    """Say that a topology has hosts for more ranks than run by default."""
    there = setup.topology.host_count * setup.topology.hosts.ranks_per_host
    if there > setup.ranks:
        ours = counted(setup.ranks, "rank")
        told = f"note: {ours} by default, and {setup.topology.name} has hosts for {there}: give -n {there}"
        click.echo(told, err=True)


def _note_smaller(ring_bytes: int, asked_bytes: int) -> None:
    """Say that a ring is much smaller than --region-bytes; slots of whole lines are always a little smaller."""
    if 2 * ring_bytes < asked_bytes:
        has = format_bytes(ring_bytes)
        click.echo(f"note: the ring has {has}, because it takes at most three eighths of the pool", err=True)


def _sweep(asked: RunFlags, what: Target, seed: int | None) -> Sweep:
    check_integrity(asked.integrity)
    check_engine(asked.engine)
    return Sweep(
        collectives=what.collectives or tuple(name for name, contract in COLLECTIVES.items() if contract.among_all),
        sizes=size_steps(asked.minbytes, asked.maxbytes, asked.stepfactor, asked.stepbytes),
        dtypes=asked.datatype,
        redops=asked.op,
        roots=None if asked.root == "all" else (number(asked.root, "--root", "all"),),
        variant=asked.variant,
        algorithm=what.source,
        iterations=asked.iters,
        warmup=asked.warmup,
        in_place=asked.in_place,
        check=asked.check == "1",
        seed=DEFAULT_SEED if seed is None else seed,
        region_bytes=asked.region_bytes,
        engine=asked.engine,
        integrity=asked.integrity,
        transport=asked.transport,
    )


def _place(asked: RunFlags) -> Place | None:
    """This process among those that a launcher started; None where this command starts the ranks itself."""
    if asked.how != "env":
        return None
    place = find_place(os.environ, one_machine=not BACKENDS[asked.backend].on_devices)
    if asked.ranks not in (None, place.ranks):
        raise ArgumentError(f"--ranks is {asked.ranks}, but {place.launcher} started {place.ranks}: leave it out")
    return place


def _setup(asked: RunFlags, what: Target, memory: MemorySpec, pool_name: str | None, place: Place | None) -> RunSetup:
    tenant, plan = asked.tenant, what.plan
    lease = None if tenant is None else lease_for(tenant, memory, pool_name, wait_s=asked.deadline_s)
    if not memory.backend.on_devices and (place is None or place.rank == 0):
        remove_dead_pools()
    setup = RunSetup(
        topology=topology_for(asked.config, memory, lease, may_be_smaller=place is None and plan is None),
        ranks=place.ranks if place is not None else asked.ranks or (RANKS if plan is None else plan.ranks),
        memory=memory,
        launch=place.launcher if place is not None else asked.how,
        engine=asked.engine,
        cards=real_cards(memory) if lease is None else lease.describe(),
        tenant=tenant,
        pool_name=pool_name,
    )
    check_transport(
        asked.transport,
        memory.backend,
        setup.topology.place(setup.ranks),
        integrity=asked.integrity,
        tenant=tenant is not None,
        paced=asked.pace,
    )
    if not asked.pace:
        return setup
    return replace(setup, pace=time_scale_of(asked.time_scale, setup.topology, setup.ranks, asked.backend))


def _measure(asked: RunFlags, setup: RunSetup, sweep: Sweep, report: RunReport, faults: RunFaults | None) -> int:
    """Run the sweep, and return how many elements were wrong on the ranks of this process."""
    world: dict[str, Any] = {
        "topology": setup.topology,
        "memory": setup.memory,
        "deadline_s": asked.deadline_s,
        "on_message": report if faults is None else faults.listening(report),
        "pace": None if setup.pace is None else Pace(setup.pace.value),
        "tenant": setup.tenant,
        "pool_name": setup.pool_name,
        "heap_bytes": "cards",  # so that a run depends on no machine's memory
    }
    if asked.how == "env":
        with from_environment(**world) as context:
            return run_sweep(context, sweep)
    measured = partial(run_sweep, sweep=sweep, engine=None if faults is None else faults.engine)
    return sum(launch(measured, ranks=setup.ranks, how=asked.how, **world))


def _fixed(what: Target) -> dict[str, object]:
    """The flags that a plan file determines, with their values."""
    if what.plan is None:
        return {}
    call = what.plan.call
    return {
        "ranks": call.ranks,
        "minbytes": what.size_bytes,
        "maxbytes": what.size_bytes,
        "stepfactor": NEVER,
        "stepbytes": NEVER,
        "datatype": (call.dtype,),
        "op": (call.redop,),
        "root": str(call.root),
        "in_place": call.in_place,
        "integrity": NEVER,
        "region_bytes": NEVER,
    }
