"""A deterministic world in one thread: real bytes, real caches, and every interleaving is a schedule's choice.

    world = Lockstep(layout, memory=MemorySpec(seed=7), schedule=in_random_order(7))
    outputs = world.call(plan, inputs)                          # one call, to its end on every rank
    outputs, ... = world.calls([(plan, inputs), (plan2, inputs2)])  # ranks may be calls apart, as in life

Ring, caches and epoch live on from call to call. Outputs and scratch begin as poison, so that bytes nobody wrote
are wrong bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from cxlemu.engines.reference import Runner
from cxlemu.engines.streams import Binding, Blocked, run_together
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import Call, InHeap, Layout, Plan, RankPart
from cxlemu.rounding import round_up

POISON = 0xA5
PUBLISH, RETRIEVE = 0, 1  # streams of an overlapped plan
HEAP_INPUT, HEAP_OUTPUT = 192, 40 << 10  # where zero-copy calls have their arrays
HEAP_RANK_BYTES = 80 << 10

Step = tuple[int, int]  # (rank, stream)
Schedule = Callable[[Sequence[Step]], Step]


def in_random_order(seed: int) -> Schedule:
    return random.Random(seed).choice


def by(priority: Callable[[Step], Any]) -> Schedule:
    """The step of least priority; among equals, the one that was chosen longest ago."""
    chosen_at: dict[Step, int] = {}

    def choose(steps: Sequence[Step]) -> Step:
        step = min(steps, key=lambda step: (priority(step), chosen_at.get(step, -1)))
        chosen_at[step] = max(chosen_at.values(), default=0) + 1
        return step

    return choose


def round_robin() -> Schedule:
    return by(lambda step: 0)


def hasty(rank: int) -> Schedule:
    """This rank goes on whenever it can: its peers are as slow as they can be."""
    return by(lambda step: step[0] != rank)


def slow(rank: int, stream: int | None = None) -> Schedule:
    """This rank, and of its streams this one, goes on only when nobody else can: its peers are eager."""
    return by(lambda step: (step[0] == rank, step == (rank, stream)))


def writers_first() -> Schedule:
    return by(lambda step: step[1] != PUBLISH)


def readers_first() -> Schedule:
    return by(lambda step: step[1] == PUBLISH)


def lent(call: Call, *, output: bool = False) -> Call:
    """The call with its input in the heap and, asked for or in place, its output."""
    place = HEAP_INPUT if call.in_place else HEAP_OUTPUT if output else None
    return replace(call, heap=InHeap(HEAP_INPUT, output=place))


def lent_if_zero_copy(call: Call) -> Call:
    return lent(call) if call.algorithm == "zero_copy" else call


def may_be_in_place(collective: str, variant: str) -> bool:
    """With zero copy peers would still read what they are to replace."""
    return (collective, variant) != ("all_to_all", "zero_copy")


def with_heap(layout: Layout) -> Layout:
    return replace(layout, heap_card_bytes=HEAP_RANK_BYTES * -(-layout.ranks // layout.cards))


@dataclass
class Queued(Runner):
    """A rank's call that begins when the rank's call before it has ended."""

    clock: Iterator[int] = field(kw_only=True)
    steps: list[int] = field(init=False, default_factory=list)  # when each was done
    its_turn: bool = field(init=False, default=False)
    given: Bytes | None = field(kw_only=True, default=None)  # the input, where the array is only there in its turn
    output: Bytes = field(init=False)

    def begin(self) -> None:
        if not self.its_turn and self.given is not None:
            if not self.part.buffers[0].inside:
                self.buffers[1][:] = POISON
            self.buffers[0][:] = self.given
        self.its_turn = True

    def end(self) -> None:
        if not hasattr(self, "output"):
            self.output = self.buffers[1].copy()

    def step(self, stream: int) -> Blocked | None:
        if not self.its_turn:
            return Blocked("", 0, self.part.streams[stream].instructions[self.position[stream]])
        blocked = super().step(stream)
        if blocked is None:
            self.steps.append(next(self.clock))
        return blocked

    def describe(self, blocked: Blocked) -> str:
        return super().describe(blocked) if self.its_turn else "its call before"


class Lockstep:
    """Ranks on hosts (default: each on its own) around one communicator's part of the cards.

    ``steps[call][rank]``, of the last calls: when, on a clock of all ranks, each instruction was done.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        hosts: Sequence[int] | None = None,
        memory: MemorySpec | None = None,
        schedule: Schedule | None = None,
        base: int = 4096,
        mapped: bool = False,
    ) -> None:
        """``mapped``: what lies in the heap lies on the cards themselves, as NumPy's arrays of a coherent pool."""
        self.mapped = mapped
        memory = memory or MemorySpec()
        hosts = hosts or range(layout.ranks)
        self.layout, self.base, self.epoch = layout, base, 1
        self.schedule = schedule or round_robin()
        self.cards = [np.zeros(base + round_up(layout.extent_bytes, 64), np.uint8) for _ in range(layout.cards)]
        self.caches = {host: HostCache.private(self.cards) for host in hosts}
        self.memories = [
            memory.open(self.cards, host_cache=self.caches[host], host=host, rank=rank)
            for rank, host in enumerate(hosts)
        ]
        self.steps: list[list[list[int]]] = []

    def call(self, plan: Plan, inputs: Sequence[Bytes]) -> list[Bytes]:
        """Every rank's output."""
        return self.calls([(plan, inputs)])[0]

    def calls(self, program: Sequence[tuple[Plan, Sequence[Bytes]]]) -> list[list[Bytes]]:
        """Every rank's output of every call. Raises what the ranks raise, DeadlineError for a deadlock."""
        ranks, clock = range(self.layout.ranks), count()
        calls: list[list[Queued]] = []
        for plan, inputs in program:
            binding = Binding(self.layout, self.base, self.epoch, plan.call.tag())
            self.epoch += plan.rounds
            arrays = [self._arrays(plan, rank, inputs[rank]) for rank in ranks]
            calls.append(
                [
                    Queued(
                        plan.call,
                        plan.frame,
                        plan.part(rank),
                        binding,
                        memory=self.memories[rank],
                        buffers=arrays[rank],
                        clock=clock,
                        given=inputs[rank] if self.mapped else None,
                    )
                    for rank in ranks
                ]
            )
        self.steps = [[runner.steps for runner in call] for call in calls]
        self._run([runner for call in calls for runner in call])
        return [[runner.output for runner in call] for call in calls]

    def _arrays(self, plan: Plan, rank: int, given: Bytes) -> list[Bytes]:
        source, target, scratch = fresh_buffers(plan.part(rank), given)
        heap, inner = plan.call.heap, plan.part(rank).buffers[0]
        if not self.mapped or heap is None:
            return [source, target, scratch]
        strip = self.layout.heap_strip(rank)
        mine = self.cards[strip.card][self.base + self.layout.heap_offset + strip.offset :][: strip.nbytes]
        at = heap.input + rank * heap.step
        source = mine[at : at + source.nbytes]
        if inner.inside:
            target = mine[at - inner.at :][: target.nbytes]
        elif heap.output is not None:
            target = mine[heap.output : heap.output + target.nbytes]
        if plan.part(rank).buffers[1].inside:
            target = source[plan.part(rank).buffers[1].at :][: target.nbytes]
        return [source, target, scratch]

    def _run(self, runners: list[Queued]) -> None:
        ranks = self.layout.ranks
        turn = list(range(ranks))  # of each rank, its runner

        def choose(candidates: Sequence[tuple[int, int]]) -> tuple[int, int]:
            for rank in range(ranks):
                while not runners[turn[rank]].pending():
                    runners[turn[rank]].end()
                    if turn[rank] + ranks >= len(runners):
                        break
                    turn[rank] += ranks
                    runners[turn[rank]].begin()
                runners[turn[rank]].begin()
            current = {(r % ranks, stream): (r, stream) for r, stream in candidates if r == turn[r % ranks]}
            return current[self.schedule(list(current))] if current else candidates[0]

        run_together(runners, choose)
        for runner in runners:
            runner.end()


def fresh_buffers(part: RankPart, given: Bytes) -> list[Bytes]:
    """Input, output and scratch; in place, the smaller of the first two lies in the other."""
    source, target, scratch = (np.full(buffer.nbytes, POISON, np.uint8) for buffer in part.buffers)
    inner_input, inner_output, _ = part.buffers
    if inner_input.inside:
        source = target[inner_input.at : inner_input.at + inner_input.nbytes]
    source[:] = given
    if inner_output.inside:
        target = source[inner_output.at : inner_output.at + inner_output.nbytes]
    return [source, target, scratch]
