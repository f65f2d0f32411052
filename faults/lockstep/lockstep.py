"""A deterministic world in one thread: real bytes, real caches, and every interleaving is an order's choice.

    world = Lockstep(layout, order=in_random_order(7))
    outputs = world.call(plan, inputs)                          # one call, to its end on every rank
    outputs, ... = world.calls([(plan, inputs), (plan2, inputs2)])  # ranks may be calls apart, as in life
    world.moves                                                 # the schedule that was followed, as data
    Lockstep(layout, order=replay(world.moves))                 # ... and again, move by move

Ring, caches and epoch live on from call to call. Outputs and scratch begin as poison, so that bytes that no rank
wrote are wrong bytes. An order chooses steps of ranks and, between two of them, moves of nature
(faults/lockstep/schedule.py); the memory's own adversary, if it has one, moves inside a step and is not recorded: a
seed replays it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeAlias

import numpy as np

from collectives.in_heap import lends
from cxlemu.engines.peer_memory import PeerMemory
from cxlemu.engines.reference import Runner
from cxlemu.engines.streams import RELEASES, Binding, Blocked, deadlock
from cxlemu.errors import ArgumentError
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.adversary import CacheMove
from cxlemu.memory.protocol import LINE_BYTES, Bytes, HostMemory
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.plan import Layout, Plan, RankPart
from cxlemu.plan.features import declared
from cxlemu.rounding import round_up
from faults.lockstep.orders import Order, round_robin
from faults.lockstep.schedule import LockstepMove, Nature, StreamStep

MODELS = declared(
    "CHECKSUMS EVENTS FOLDS HEAP MATRIX_PRODUCTS NON_TEMPORAL OWN_MEMORIES PAYLOADS PEER_WRITES PROCESS_ARRAYS "
    "TOLD_PLACES UNEVEN_BLOCKS UNIFORM_ORDER"
)
POISON = 0xA5
ONE_LINE = np.ones(1, np.bool_)  # of a window of one line, that one

Ended: TypeAlias = Callable[[int, int, Bytes], None]


@dataclass
class Queued(Runner):
    """A rank's call that begins when the rank's call before it has ended."""

    # the input, where the array is only there in its turn; None: the arrays hold it already
    given: Bytes | None = field(kw_only=True)
    steps: list[int] = field(init=False, default_factory=list)  # when each instruction was done, on the world's clock
    output: Bytes = field(init=False)  # the output bytes, once the call has ended

    def begin(self) -> None:
        """Put the input into the arrays, if it is not there yet.

        An output that does not hold the input is then poisoned before.
        """
        if self.given is not None:
            if not self.part.buffers[0].inside:
                self.buffers[1][:] = POISON
            fill_inputs(self.buffers, self.given)

    def end(self) -> Bytes:
        """Return, and keep, a copy of the output bytes."""
        self.output = self.buffers[1].copy()
        return self.output


class Lockstep:
    """Ranks on hosts around one communicator's part of the cards."""

    def __init__(
        self,
        layout: Layout,
        *,
        hosts: Sequence[int] | None = None,
        memory: MemorySpec | None = None,
        order: Order | None = None,
        base: int = 4096,
        mapped: bool = False,
        quick: bool = False,
        apart: int = 0,
    ) -> None:
        """Make the world; nothing runs yet. ``apart``: rank k's arrays lie k times as many bytes further on in its
        strip."""
        self.mapped, self.apart = mapped, apart
        memory = memory or MemorySpec()
        self.layout, self.base, self.epoch = layout, base, 1
        self.hosts = list(hosts or range(layout.ranks))
        self.order = order or round_robin()
        self.cards = [np.zeros(base + round_up(layout.extent_bytes, 64), np.uint8) for _ in range(layout.cards)]
        self.caches = {host: HostCache.private(self.cards) for host in self.hosts}
        self.memories: list[HostMemory] = [
            memory.open(self.cards, host_cache=self.caches[host], host=host, rank=rank)
            for rank, host in enumerate(self.hosts)
        ]
        self._reached = [m.native if quick and isinstance(m, ShadowMemory) else m for m in self.memories]
        self._own: dict[int, Bytes] = {}  # of each rank, what stands for its process's memory
        self._of_host: dict[int, list[HostMemory]] = {host: [] for host in self.hosts}
        for host, cache in zip(self.hosts, self.memories, strict=True):
            self._of_host[host].append(cache)
        self.steps: list[list[list[int]]] = []
        self.moves: list[LockstepMove] = []

    def call(self, plan: Plan, inputs: Sequence[Bytes]) -> list[Bytes]:
        """Run one call to its end on every rank; return every rank's output bytes."""
        return self.calls([(plan, inputs)])[0]

    def calls(
        self, program: Sequence[tuple[Plan, Sequence[Bytes]]], *, ended: Ended | None = None
    ) -> list[list[Bytes]]:
        """Run calls, one after another on each rank, ranks maybe calls apart; return ``[call][rank]`` output bytes."""
        calls: list[list[Queued]] = []
        for plan, inputs in program:
            binding = Binding(self.layout, self.base, self.epoch, plan.call.tag())
            self.epoch += plan.rounds
            calls.append([self._queued(plan, rank, binding, inputs[rank]) for rank in range(plan.ranks)])
        self.steps = [[runner.steps for runner in call] for call in calls]
        self._run(calls, ended or (lambda number, rank, output: None))
        return [[runner.output for runner in call] for call in calls]

    def _queued(self, plan: Plan, rank: int, binding: Binding, given: Bytes) -> Queued:
        arrays = self._arrays(plan, rank, given)
        memory, later = self._reached[rank], given if self.mapped else None
        if plan.call.heap is not None and plan.call.heap.in_process:
            peers = PeerMemory(rank, (os.getpid(),) * plan.ranks)
            binding = replace(binding, layout=plan.layout, peers=peers)
        if self.apart and plan.call.heap is not None and plan.call.heap.told:
            binding = replace(binding, places=self._places(plan, rank))
        return Queued(plan.call, plan.frame, plan.part(rank), binding, memory=memory, buffers=arrays, given=later)

    def _places(self, plan: Plan, rank: int) -> tuple[int, int]:
        """Return where a rank's input and output lie in its strip."""
        heap = plan.call.heap
        assert heap is not None
        source, target = heap.places(rank)
        further = rank * self.apart if heap.told else 0
        return source + further, target + further if heap.output is not None else target

    def _arrays(self, plan: Plan, rank: int, given: Bytes) -> list[Bytes]:
        buffers = fresh_buffers(plan.part(rank), given)
        heap, inner = plan.call.heap, plan.part(rank).buffers[0]
        if not self.mapped or heap is None:
            return buffers
        source, target, scratch = buffers
        mine, (begin, to) = self._strip(plan, rank), self._places(plan, rank)
        if heap.is_written_by_peers:  # nothing else lies in the heap
            return [source, mine[to:][: target.nbytes], scratch]
        if heap.told and not lends(plan.call, rank):
            return buffers
        begin = inner.at if heap.in_process else begin
        source = mine[begin : begin + source.nbytes]
        if inner.inside:
            target = mine[begin - inner.at :][: target.nbytes]
        elif heap.output is not None:
            target = mine[to : to + target.nbytes]
        if plan.part(rank).buffers[1].inside:
            target = source[plan.part(rank).buffers[1].at :][: target.nbytes]
        return [source, target, scratch]

    def _strip(self, plan: Plan, rank: int) -> Bytes:
        strip = plan.layout.heap_strip(rank)
        if plan.call.heap is not None and plan.call.heap.in_process:
            return self._own.setdefault(rank, np.zeros(strip.nbytes, np.uint8))[: strip.nbytes]
        return self.cards[strip.card][self.base + self.layout.heap_offset + strip.offset :][: strip.nbytes]

    def _run(self, calls: list[list[Queued]], ended: Ended) -> None:
        turn = [-1] * self.layout.ranks  # number of each rank's call
        now: dict[int, Queued] = {}  # the call of each rank that has not ended

        def go_on(rank: int) -> None:
            """Go on to the rank's next call that has anything to do."""
            while turn[rank] < 0 or not now[rank].pending():
                if turn[rank] >= 0:
                    ended(turn[rank], rank, now.pop(rank).end())
                turn[rank] += 1
                if turn[rank] == len(calls):
                    return
                now[rank] = calls[turn[rank]][rank]
                now[rank].begin()

        for rank in range(self.layout.ranks):
            go_on(rank)
        stuck: dict[tuple[int, int], Blocked] = {}
        steps = [StreamStep(rank, stream) for rank, runner in now.items() for stream in runner.pending()]
        clock = count()
        while now:
            choices = [step for step in steps if step not in stuck]
            if not choices:
                raise deadlock(now, stuck)
            step = self._next_step(choices)
            runner, index = now[step.rank], now[step.rank].position[step.stream]
            try:
                obstacle = runner.step(step.stream)
            except Exception:
                self.moves.append(step)  # so that who replays them comes to the same error
                raise
            if obstacle is not None:
                stuck[step] = obstacle
                continue
            runner.steps.append(next(clock))
            self.moves.append(step)
            if runner.part.streams[step.stream].instructions[index].op in RELEASES:
                stuck.clear()
            if runner.ended(step.stream):
                go_on(step.rank)
                steps = [StreamStep(rank, stream) for rank, runner in now.items() for stream in runner.pending()]

    def _next_step(self, steps: list[StreamStep]) -> StreamStep:
        while isinstance(move := self.order(steps), Nature):
            self.disturb(move)
        return move

    def disturb(self, move: Nature) -> None:
        """Make a move of nature now.

        A move that changes nothing is not recorded, and no move on a doorbell's line is: every look at a doorbell
        fetches the line anew. Looks that find the old value bring the line to the cache, and are not recorded either.
        """
        line, memories = move.line + self.base // LINE_BYTES, self._of_host.get(move.host)
        if memories is None or move.card >= len(self.cards) or (line + 1) * LINE_BYTES > self.cards[0].nbytes:
            raise no_such_line(move, len(self.caches), len(self.cards))
        moved = 0
        for memory in memories:
            if not isinstance(memory, ShadowMemory):
                raise ArgumentError(f"[{move}]: this memory has no cache that nature could disturb")
            moved += memory.disturb(CacheMove(move.action, move.card, line, ONE_LINE))
        if moved and move.line * LINE_BYTES >= self.layout.data_offset:
            self.moves.append(move)


def no_such_line(move: Nature, caches: int, cards: int) -> ArgumentError:
    return ArgumentError(f"[{move}]: there is no such line in {caches} caches of {cards} cards")


def fresh_buffers(part: RankPart, given: Bytes) -> list[Bytes]:
    """Make a rank's arrays of POISON and inputs: input, output (in place one lies in the other), scratch, and
    others."""
    arrays = [np.full(buffer.nbytes, POISON, np.uint8) for buffer in part.buffers]
    inner_input, inner_output = part.buffers[:2]
    if inner_input.inside:
        arrays[0] = arrays[1][inner_input.at : inner_input.at + inner_input.nbytes]
    fill_inputs(arrays, given)
    if inner_output.inside:
        arrays[1] = arrays[0][inner_output.at : inner_output.at + inner_output.nbytes]
    return arrays


def fill_inputs(arrays: Sequence[Bytes], given: Bytes) -> None:
    """Copy the bytes of all inputs into a rank's arrays: the input, then those after the scratch memory."""
    for array in (arrays[0], *arrays[3:]):
        if not given.size:
            return
        array[:], given = given[: array.nbytes], given[array.nbytes :]
