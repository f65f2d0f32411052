"""Real bytes for a modelled run: its instructions in its order, and every result compared with NumPy's."""

import numpy as np

from collectives.checking import oracle
from collectives.sweep.sweep import Case, WrongElement
from cxlemu.engines.reference import Runner
from cxlemu.engines.streams import Binding
from cxlemu.engines.virtual import VirtualRun, replay
from cxlemu.errors import ArgumentError
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.plan import Plan
from cxlemu.units import format_bytes

CHECKED_BYTES_MAX = 1 << 28  # of all cards and buffers together
CHECKED_INSTRUCTIONS_MAX = 200_000


def check_size(plan: Plan) -> None:
    """Check that a plan is small enough for real bytes."""
    layout = plan.layout
    nbytes = layout.cards * layout.extent_bytes
    nbytes += sum(buffer.nbytes for part in plan.parts for buffer in part.buffers)
    instructions = sum(part.instruction_count for part in plan.parts)
    if nbytes > CHECKED_BYTES_MAX or instructions > CHECKED_INSTRUCTIONS_MAX:
        raise ArgumentError(
            f"[{plan.call}] is too large to be checked on real bytes: {format_bytes(nbytes)} and {instructions} "
            f"instructions, where the limits are {format_bytes(CHECKED_BYTES_MAX)} and {CHECKED_INSTRUCTIONS_MAX}: "
            "leave out --check, or use a smaller -e"
        )


def execute(case: Case, plan: Plan, run: VirtualRun, seed: int) -> tuple[int, str | None]:
    """Execute a logged run's instructions on real bytes; return how many elements are wrong, and the first or None."""
    layout, hosts = plan.layout, run.model.hosts
    cards = [np.zeros(layout.extent_bytes, np.uint8) for _ in range(layout.cards)]
    caches = {host: HostCache.private(cards) for host in hosts}
    memory = MemorySpec(seed=seed)
    memories = [memory.open(cards, host_cache=caches[host], host=host, rank=rank) for rank, host in enumerate(hosts)]
    runners: list[list[Runner]] = []
    epoch = 1
    for serial in range(len(run.calls)):
        binding = Binding(layout, 0, epoch, plan.call.tag())
        runners.append([])
        for rank in range(plan.ranks):
            buffers = _buffers(plan, rank, oracle.inputs(plan.call, rank, seed, serial))
            runners[-1].append(
                Runner(plan.call, plan.frame, plan.part(rank), binding, memory=memories[rank], buffers=buffers)
            )
        epoch += plan.rounds
    replay(run, runners)
    wrong, first = 0, None
    for serial, call in enumerate(runners):
        held: np.ndarray | None = None  # by the first rank, where all get the same
        for rank, runner in enumerate(call):
            right = oracle.expected(plan.call, rank, seed, serial)
            if right is None:
                continue
            got = runner.buffers[1].view(right.dtype)
            places = oracle.wrong_elements(got, right, oracle.slack(plan.call, rank, seed, serial), held)
            held = got if held is None and oracle.held_by_all(plan.call) else held
            wrong += places.size
            if places.size and first is None:
                offset = int(places[0])
                first = f"rank {rank}, {WrongElement.of(serial, offset, got, right).describe(case.call.dtype)}"
    return wrong, first


def _buffers(plan: Plan, rank: int, x: np.ndarray | None) -> list[np.ndarray]:
    """Input, output and scratch of one rank, as the plan's table says; what is not input begins as poison."""
    arrays = [np.full(buffer.nbytes, 0xA5, np.uint8) for buffer in plan.part(rank).buffers]
    source, target, _ = plan.part(rank).buffers
    if source.inside:
        arrays[0] = arrays[1][source.at : source.at + source.nbytes]
    if target.inside:
        arrays[1] = arrays[0][target.at : target.at + target.nbytes]
    if x is not None:
        arrays[0][:] = x.reshape(-1).view(np.uint8)
    return arrays
