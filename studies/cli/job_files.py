"""Jobs from flags of ``cxlemu simulate``, and from files whose keys are these flags.

    simulate: training     # or serving, or a collective
    ranks: 4
    parallel: fsdp

A key is an option of the command, without its dashes; ``trace`` is TRACE of serving.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from collectives.choices import SIMULATED_MIN_BYTES
from collectives.cli import simulate
from collectives.cli.simulate import SimulateFlags
from collectives.contracts import COLLECTIVES
from collectives.sweep.sweep import Sweep
from cxlemu.cli.options import Flags
from cxlemu.cli.params import given_flags
from cxlemu.errors import ArgumentError
from cxlemu.suggest import with_choices
from cxlemu.topology import Accelerator, Topology
from cxlemu.topology.document import Document, shown
from studies.cli import simulate_serving, simulate_training
from studies.cli.serving_setups import requests_of, setups_of
from studies.cli.simulate_serving import ServingFlags
from studies.cli.simulate_training import TrainingFlags
from studies.jobs.job import FabricJob
from studies.jobs.rounds import CollectiveJob, TrainingJob
from studies.jobs.server import ServingJob
from studies.training.language_model import LanguageModel
from studies.training.machine import TrainingMachine
from studies.training.parallelism import Parallelism
from studies.training.step import train
from studies.training.symmetric import fabric_of

COLLECTIVE, TRAINING, SERVING = "collective", "training", "serving"
COMMON = {"config", "json", "with", "help"}  # of the first job's command, for both


class JobKind(NamedTuple):
    """A kind of job: the command whose options its file may have, and which these are."""

    command: click.Command
    flags: type[Flags]
    options: frozenset[str]


KINDS = {
    COLLECTIVE: JobKind(
        simulate.command,
        SimulateFlags,
        frozenset({"collectives", "ranks", "minbytes", "datatype", "op", "root", "variant", "iters"}),
    ),
    TRAINING: JobKind(
        simulate_training.command,
        TrainingFlags,
        frozenset({"model", "parallel", "ranks", "accelerator", "batch", "microbatch", "recompute"}),
    ),
    SERVING: JobKind(
        simulate_serving.command,
        ServingFlags,
        frozenset(
            {"trace", "place", "capacity", "warm", "model", "accelerator", "tp", "inside", "hosts", "prefill", "route"}
            | {"chunk", "batch", "requests", "workload", "rate", "seed", "ep"}
        ),
    ),
}


def check_flags(ctx: click.Context, kind: str) -> None:
    """Refuse flags of the first job's command that mean nothing beside another job."""
    for flag in given_flags(ctx).values():
        if (name := flag.lstrip("-")) not in KINDS[kind].options | COMMON:
            raise ArgumentError(f"--{name} does not go with --with: two jobs are compared by their times alone")


def read_job(path: Path, topology: Topology) -> FabricJob:
    document = Document.read(path, "job")
    data = dict(document.data)
    word = data.pop("simulate", None)
    kinds = (TRAINING, SERVING, *(name for name, contract in COLLECTIVES.items() if contract.among_all))
    if word not in kinds:
        raise document.error(
            ("simulate",), with_choices(f"is {shown(word)}, which is not a job", str(word), kinds, ": {}")
        )
    kind = word if word in KINDS else COLLECTIVE
    options = KINDS[kind].options - {"collectives"}
    args = [word] if kind == COLLECTIVE else []
    for key, value in data.items():
        if key not in options:
            raise document.error(
                (key,), with_choices(f"is not a key of {word}", key, sorted(options), "; these are: {}")
            )
        if not isinstance(value, str | int | float):
            raise document.error((key,), f"is {shown(value)} but should be text, a number, true or false")
        if key == "trace":
            args.append(str(value))
        elif value is not False:
            args.append(f"--{key}" if value is True else f"--{key}={value}")
    try:
        flags = KINDS[kind].command.make_context(word, args).params
    except click.UsageError as error:
        key = _key(error.param) if isinstance(error, click.BadParameter) and error.param is not None else ""
        where, message = ((key,), getattr(error, "message", "")) if key in data else ((), error.format_message())
        raise document.error(where, message.rstrip(".")) from None
    ranks = flags.get("ranks")
    if ranks is not None and len(ranks) != 1:
        raise document.error(("ranks",), "should be one number")
    flags |= {} if ranks is None else {"ranks": ranks[0]}
    try:
        return job_of(kind, KINDS[kind].flags(**flags), topology)
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}") from None


def job_of(kind: str, asked: Any, topology: Topology) -> FabricJob:
    """Make a job of its command's flags, to run on a topology's pool."""
    space = topology.pool_space
    if space.owned or space.protocols is not None:
        raise ArgumentError(f"{topology.name} has no pool, which jobs share: give -c a topology with one")
    makers: dict[str, Callable[[Any, Topology], FabricJob]] = {
        COLLECTIVE: _collective,
        TRAINING: _training,
        SERVING: _serving,
    }
    return makers[kind](asked, topology)


def _collective(asked: SimulateFlags, topology: Topology) -> CollectiveJob:
    if len(asked.collectives) != 1 or asked.collectives[0] not in COLLECTIVES:
        raise ArgumentError("a job calls one collective: name it")
    if len(asked.datatype) != 1 or len(asked.op) != 1:
        raise ArgumentError("a job has one datatype and one op")
    ranks = _ranks(asked.ranks)
    size = SIMULATED_MIN_BYTES if asked.minbytes is None else asked.minbytes
    sweep = Sweep(
        asked.collectives, [size], asked.datatype, asked.op, (asked.root,), variant=asked.variant, check=False
    )
    cases = sweep.cases(ranks)
    if len(cases) != 1:
        raise ArgumentError("a job calls one variant of a collective: --variant every has several")
    return CollectiveJob(topology, cases[0], asked.iters)


def _training(asked: TrainingFlags, topology: Topology) -> TrainingJob:
    shape = LanguageModel.load(asked.model)
    if asked.batch is not None:
        shape = shape.varied(batch_sequences=asked.batch)
    ranks = _ranks(asked.ranks)
    how = Parallelism.parse(asked.parallel, ranks)
    if not how.sharded or how.data != ranks:
        raise ArgumentError(f"--parallel {asked.parallel}: beside another job, training is fsdp, without other degrees")
    machine = TrainingMachine(Accelerator.load(asked.accelerator), fabric_of(topology, ranks))
    step = train(shape, how, machine, microbatch=asked.microbatch, recompute=asked.recompute)
    return TrainingJob(topology, step, 1)


def _serving(asked: ServingFlags, topology: Topology) -> ServingJob:
    if asked.hosts is None:
        raise ArgumentError("a server beside another job needs its number of hosts: --hosts, or the key hosts")
    asked.places = asked.places or ("pool",)
    setups = setups_of(asked, topology)
    if len(setups) != 1:
        raise ArgumentError("a server beside another job has one --place")
    return ServingJob(setups[0], requests_of(asked, asked.hosts), asked.hosts)


def _ranks(asked: int | None) -> int:
    if asked is None or asked < 2:
        raise ArgumentError("a job beside another one needs its number of ranks, 2 or more: --ranks, or the key ranks")
    return asked


def _key(param: click.Parameter) -> str:
    name = param.name or ""
    return name if isinstance(param, click.Argument) else max(param.opts, key=len).lstrip("-")
