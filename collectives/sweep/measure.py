"""What one rank does for a sweep: it prepares, times and checks every call.

Warm-up calls follow each other as closely as checking allows, so that fast ranks run ahead; before each timed
call the ranks meet in a barrier, on a communicator of its own. Every call is checked, outside of its time;
before it no byte of the output was right, except where the output is the input itself.
"""

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from collectives import contracts
from collectives.algorithms import catalog
from collectives.builder.recipes import Recipe
from collectives.checking import oracle
from collectives.checking.oracle import Array
from collectives.communicator.calls.transport import PROCESS
from collectives.communicator.communicator import Communicator
from collectives.contracts import COLLECTIVES
from collectives.defaults import AUTO
from collectives.sweep.sweep import Case, MeasuredRank, Sweep, WrongElement, load_algorithm
from cxlemu.engines import Engine
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.plan import DTYPES, Call, Layout
from cxlemu.world import RankContext

CONTROL_BYTES_PER_RANK = 32 << 10
EngineMaker = Callable[[RankContext, str], Engine]  # from the name of an engine


@dataclass(frozen=True)
class Opened:
    """The first message, from rank 0: how the ring lies in the pool."""

    layout: Layout


@dataclass(frozen=True)
class Finished:
    """One rank's message about one case."""

    case: int
    measured: MeasuredRank


def run_sweep(context: RankContext, sweep: Sweep, engine: EngineMaker | None = None) -> int:
    """Run all cases on one rank, and return how many elements were wrong there: emit Opened on rank 0, then Finished.

    Under a launcher where only rank 0 is heard, rank 0 emits for all ranks.
    """
    made = sweep.engine if engine is None else engine(context, sweep.engine)
    layout = None if sweep.plan is None else catalog.ring_of(sweep.plan)
    with (
        Communicator.world(
            context,
            region_bytes=sweep.region_bytes,
            engine=made,
            integrity=sweep.integrity,
            layout=layout,
            transport=sweep.transport,
        ) as comm,
        Communicator.world(context, region_bytes=context.ranks * CONTROL_BYTES_PER_RANK, paced=False) as control,
    ):
        if context.rank == 0:
            context.emit(Opened(comm.layout))
        wrong = 0
        for index, case in enumerate(sweep.cases(context.ranks)):
            measured = _measure(context, comm, control, sweep, index, case)
            wrong += measured.wrong
            for each in _reported(context, control, measured):
                context.emit(Finished(index, each))
        return wrong


def _measure(
    context: RankContext, comm: Communicator, control: Communicator, sweep: Sweep, index: int, case: Case
) -> MeasuredRank:
    entered, left = (
        array("q", bytes(8 * sweep.iterations)) for _ in range(2)
    )  # a million calls are no million objects
    wrong, moved, nature = 0, 0, context.memory
    first_wrong: WrongElement | None = None
    calls = sweep.warmup + sweep.iterations
    ordinary = sweep.transport == PROCESS and sweep.plan is None  # a saved plan says where its arrays lie
    in_heap = None if ordinary else heap_room(comm, case, sweep.algorithm)
    call = _declared(comm, case, sweep.algorithm)
    for number in range(calls):
        serial = index * calls + number
        x = oracle.inputs(call, comm.rank, sweep.seed, serial)
        right = oracle.expected(call, comm.rank, sweep.seed, serial) if sweep.check else None
        x, out = arrays(case, comm.rank, x, right, in_heap)
        if number >= sweep.warmup:
            control.barrier()
        moved -= nature.moved() if isinstance(nature, ShadowMemory) else 0
        before_ns = time.monotonic_ns()
        perform(comm, case, x, out, sweep.algorithm)
        after_ns = time.monotonic_ns()
        moved += nature.moved() if isinstance(nature, ShadowMemory) else 0
        if number >= sweep.warmup:
            entered[number - sweep.warmup], left[number - sweep.warmup] = before_ns, after_ns
        if right is not None and out is not None:
            slack = oracle.slack(call, comm.rank, sweep.seed, serial)
            held = None if slack is None else _held_by_first(control, call, out)
            places = oracle.wrong_elements(out, right, slack, held)
            wrong += places.size
            if places.size and first_wrong is None:
                offset = int(places[0])
                first_wrong = WrongElement.of(number, offset, out, right)
    return MeasuredRank(comm.rank, entered, left, wrong, first_wrong, moved)


def _declared(comm: Communicator, case: Case, algorithm: str | None) -> Call:
    """The call, with the fold order of the variant that it takes."""
    call = case.call
    if algorithm is not None:
        return replace(call, fold_order=load_algorithm(algorithm).fold_order)
    variant = comm.choice(call.collective, call.nbytes).variant if call.algorithm == AUTO else call.algorithm
    chosen = catalog.recipe(call.collective, variant)
    return replace(call, cluster=comm.cluster if chosen.builder.takes_clusters else 1, fold_order=chosen.fold_order)


def _held_by_first(control: Communicator, call: Call, out: Array) -> Array | None:
    """The result of rank 0, where all ranks get the same, else None."""
    if not oracle.held_by_all(call):
        return None
    held = out.copy()
    control.broadcast(held)
    return held


class HeapRoom(NamedTuple):
    """Room in the pool for one of a case's arrays."""

    array: Array  # a flat array of bytes
    for_result: bool  # it is for the result, which peers write; else for the input


def heap_room(comm: Communicator, case: Case, algorithm: str | None = None) -> HeapRoom | None:
    """For zero copy, allocate room in the pool for the input or, in place, for what the input lies in.

    For a variant that writes to peers' results, allocate it for the output. The room has the same size on every rank.
    """
    if algorithm is None and case.call.algorithm == AUTO:
        return None
    recipe = load_algorithm(algorithm) if algorithm else catalog.recipe(case.call.collective, case.call.algorithm)
    if not recipe.spec.takes_heap:
        return None
    source, target = contracts.buffers(replace(case.call, in_place=case.in_place, root=comm.rank), comm.rank)
    nbytes = target.nbytes if source.inside or recipe.spec.pushes else source.nbytes
    return HeapRoom(comm.heap.empty(nbytes, np.uint8), recipe.spec.pushes)


def arrays(
    case: Case, rank: int, x: Array | None, right: Array | None, room: HeapRoom | None
) -> tuple[Array | None, Array | None]:
    """Lay out a case's flat arrays (x, out), None where the rank has none; ``out`` gets the inverse of the right
    bits."""
    call, dtype = replace(case.call, in_place=case.in_place), DTYPES[case.call.dtype]
    source, target = contracts.buffers(call, rank)
    flat = None if x is None else x.reshape(-1).view(np.uint8)
    in_heap = None if room is None or room.for_result else room.array
    if in_heap is not None and not source.inside and not COLLECTIVES[call.collective].one_buffer:
        sources = (
            in_heap if flat is None else in_heap[: flat.nbytes]
        )  # in place, a gather's root has room for all blocks
        if flat is not None:
            sources[:] = flat
        flat = sources
    if not oracle.gives_output(call, rank):
        return None if flat is None else flat.view(dtype), None
    in_pool = in_heap is not None and (source.inside or COLLECTIVES[call.collective].one_buffer)
    out = in_heap if in_pool and in_heap is not None else np.empty(target.nbytes, np.uint8)
    if room is not None and room.for_result:
        out = room.array[: target.nbytes]
    if right is not None:
        np.invert(right.reshape(-1).view(np.uint8), out=out)
    if flat is None:
        return None, out.view(dtype)
    if target.inside:
        out = flat[target.at : target.at + target.nbytes]
    elif source.inside:
        block = out[source.at : source.at + source.nbytes]
        block[:] = flat
        flat = block
    return flat.view(dtype), out.view(dtype)


def perform(comm: Communicator, case: Case, x: Array | None, out: Array | None, algorithm: str | None) -> None:
    call, contract = case.call, COLLECTIVES[case.call.collective]
    variant: str | Recipe = call.algorithm if algorithm is None else load_algorithm(algorithm)
    if not contract.moves_data:
        comm.barrier(variant=variant)
        return
    arguments: dict[str, Any] = {"variant": variant}
    if contract.reduces:
        arguments["op"] = call.redop
    if contract.rooted:
        arguments["root"] = call.root
    if contract.uneven:
        arguments |= _counts(call, comm.rank)
    if contract.one_buffer:
        assert out is not None
        comm.broadcast(out, **arguments)
    elif contract.to_next:
        size = np.empty(call.nbytes // DTYPES[call.dtype].itemsize, DTYPES[call.dtype]) if x is None else x
        comm.pass_on(size, out, **arguments)
    else:
        getattr(comm, call.collective)(x, out=out, **arguments)


def _counts(call: Call, rank: int) -> dict[str, list[int]]:
    """The counts of an uneven verb, in elements."""
    sizes = contracts.block_sizes(call) // DTYPES[call.dtype].itemsize
    if call.collective == "all_to_allv":
        return {"send_counts": sizes[rank].tolist(), "recv_counts": sizes[:, rank].tolist()}
    by_source = COLLECTIVES[call.collective].input_blocks == "one"
    return {"counts": (sizes[:, 0] if by_source else sizes[0]).tolist()}


def _reported(context: RankContext, control: Communicator, measured: MeasuredRank) -> list[MeasuredRank]:
    """What this rank has to report: about itself or, where only rank 0 is heard, there about all."""
    if context.launch in ("threads", "processes"):
        return [measured]
    everyone = control.gather(_as_numbers(measured))
    return [] if everyone is None else [_from_numbers(rank, row) for rank, row in enumerate(everyone)]


def _as_numbers(measured: MeasuredRank) -> Array:
    first = measured.first_wrong
    bits = (0, 0) if first is None else (first.got, first.right)
    words = [word for value in bits for word in divmod(value, 1 << 64)]  # an element has up to 16 bytes
    place = [0, 0] if first is None else [first.call, first.element]
    return np.array(
        [measured.wrong, measured.moved, *place, *words, *measured.entered_ns, *measured.left_ns], np.uint64
    )


def _from_numbers(rank: int, row: Array) -> MeasuredRank:
    wrong, moved, call, element, *rest = row.tolist()
    got, right = ((high << 64) + low for high, low in (rest[:2], rest[2:4]))
    times = array("q", rest[4:])
    half = len(times) // 2
    first = WrongElement(call, element, got, right) if wrong else None
    return MeasuredRank(rank, times[:half], times[half:], wrong, first, moved)
