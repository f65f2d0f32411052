"""``cxlemu run --protocol``: your own protocol, executed by real ranks again and again."""

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

import click

from collectives.cli.run_memory import adversary_seed, memory_of, real_cards
from cxlemu.capacity.lease import lease_for
from cxlemu.cli.params import given_flags
from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology
from cxlemu.units import counted
from cxlemu.world import from_environment, launch
from cxlemu.world.environment import find_place
from cxlemu.world.topology_of import machine
from faults.cli.run_protocol_report import ProtocolReport, Setting
from faults.protocols.run import load, run

RANKS, RUNS, RUNS_MAX = 2, 10, 100_000
TAKES = {"protocol", "seeds", "repeat", "exitfirst", "ranks", "config", "backend", "devices", "pool", "tenant"}
TAKES |= {"adversary", "how", "deadline_s", "json_file"}


def run_protocol(ctx: click.Context, spec: str) -> NoReturn:
    """Run a user's protocol with the parameters of ``cxlemu run``; exit with 0 if nothing went wrong, else 1."""
    given = ctx.params
    _check_flags(ctx)
    json_file = given["json_file"]
    how, deadline_s, tenant = given["how"], given["deadline_s"], given["tenant"]
    seed = adversary_seed(given["adversary"], given["backend"])
    memory, pool_name = memory_of(given["backend"], None, given["devices"], given["pool"], tenant)
    seeds = _seeds(seed, given)
    place = find_place(os.environ, one_machine=not memory.backend.on_devices) if how == "env" else None
    if place is not None and given["ranks"] not in (None, place.ranks):
        raise ArgumentError(f"--ranks is {given['ranks']}, but {place.launcher} started {place.ranks}: leave it out")
    protocol = load(spec)
    protocol.words()  # refuses what cannot be before anything is made
    ranks = place.ranks if place is not None else given["ranks"] or RANKS
    hosts = protocol.hosts(ranks)
    lease = None if tenant is None else lease_for(tenant, memory, pool_name, wait_s=deadline_s)
    topology = machine(given["config"], memory, lease)
    if given["config"] is not None and not memory.backend.on_devices:
        _check_hosts(topology, protocol.name, hosts)
    report = ProtocolReport(
        Setting(
            spec=spec,
            judges=protocol.judges,
            hosts=hosts,
            memory=memory,
            seed=seed,
            runs=len(seeds),
            launch=place.launcher if place is not None else how,
            cards=real_cards(memory) if lease is None else lease.describe(),
            topology=topology.name,
        ),
        json_file=json_file,
        silent=bool(place and place.rank),
    )
    world: dict[str, Any] = {
        "topology": topology,
        "memory": memory,
        "deadline_s": deadline_s,
        "on_message": report,
        "tenant": tenant,
        "pool_name": pool_name,
        "hosts": hosts,
        "heap_bytes": "cards",
    }
    again = partial(run, protocol=spec, seeds=seeds, exitfirst=given["exitfirst"])
    with report:
        if how == "env":
            with from_environment(**world) as context:
                wrong = again(context)
        else:
            wrong = launch(again, ranks=ranks, how=how, **world)[0]
    ctx.exit(1 if wrong else 3 if report.unjudged else 0)


def _check_flags(ctx: click.Context) -> None:
    """Raises ArgumentError for a flag that only collectives have."""
    for name, flag in given_flags(ctx).items():
        is_option = flag.startswith("-")
        if name not in TAKES and (is_option or ctx.params[name]):
            what = flag if is_option else "a collective"
            raise ArgumentError(f"{what} does not go with --protocol")


def _seeds(seed: int | None, given: Mapping[str, Any]) -> tuple[int | None, ...]:
    """List the seed of each run. Raises ArgumentError for seeds without an adversary, and for too many runs."""
    if seed is None and given["seeds"] is not None:
        raise ArgumentError("--seeds seed an adversary, and this run has none: use --repeat instead")
    seeds, repeat = given["seeds"] or (1 if given["repeat"] else RUNS), given["repeat"] or (RUNS if seed is None else 1)
    if seed is None:
        seeds = 1
    if seeds * repeat > RUNS_MAX:
        raise ArgumentError(
            f"{counted(seeds, 'seed')}, {counted(repeat, 'time')} each, are too many runs: {RUNS_MAX} at most"
        )
    return tuple(_each(seed, seeds, repeat))


def _each(seed: int | None, seeds: int, repeat: int) -> Iterator[int | None]:
    for number in range(seeds):
        for _ in range(repeat):
            yield None if seed is None else seed + number


def _check_hosts(topology: Topology, name: str, hosts: tuple[int, ...]) -> None:
    needed = max(hosts) + 1
    if needed > topology.host_count:
        raise ArgumentError(
            f"{topology.name} has {counted(topology.host_count, 'host')}, but {counted(len(hosts), 'rank')} of {name} "
            f"are on {needed}"
        )
