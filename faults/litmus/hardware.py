"""Litmus tests as machine instructions on the pool that the ranks of a world share, many rounds each, counted."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from collectives.communicator.calls.loss import lost_among
from cxlemu._native import lines_instructions
from cxlemu.errors import ArgumentError, DeadlineError, MismatchError, RunError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.pool.owner import machine_digest
from cxlemu.pool.session import lost
from cxlemu.units import counted
from cxlemu.world import RankContext
from faults.litmus._straight import Straight
from faults.litmus.histogram import Histogram, LitmusTask
from faults.litmus.lowering import LoweredTest, Numbers, obstacle
from faults.litmus.variation import BATCH, STRIDE_MAX, TrialBatch, batch_bytes
from faults.verdict import Verdict

SPINS, SPINS_SHARED = 1000, 20  # looks before a rank gives its core away: where ranks have a core each, or not
HANGS_MAX = 20  # a test that hangs again and again is not run to its end: each of them takes long
_WORD = 8
_CLEAN = None  # in place of values: the lines leave this host's cache


@dataclass(frozen=True)
class HardwareSetting:
    rounds: int  # rounds of each test
    seed: int  # seeds everything that is varied
    budget_s: float  # seconds for each test: a batch that begins before they are over is finished


@dataclass(frozen=True)
class RankMachines:
    count: int

    def __str__(self) -> str:
        if self.count > 1:
            return f"ranks on {self.count} machines"
        return "all ranks on one machine: its caches are coherent, so no outcome that needs a stale line can occur"


def run(context: RankContext, tasks: Sequence[LitmusTask], setting: HardwareSetting) -> int:
    """Run litmus tests one after the other; rank 0 emits the `RankMachines`, and the `Histogram` of each.

    Every rank of the world calls this, with the same tests; what is ``possible`` is rank 0's alone. Return how many
    tests ended in a forbidden way.
    """
    if not lines_instructions():
        raise ArgumentError("the cache-line instructions of this machine are not known: it takes x86-64 or arm64")
    runs = _Runs(context, tasks, setting)
    wrong = runs.told(sum(runs.one(number).verdict == Verdict.VIOLATION for number in range(len(tasks))))
    context.session.barrier(context.deadline_s)  # no rank leaves while another one may still look for it
    context.session.memory.fence()  # nor says so before what completes the barrier is there
    return wrong


class _Runs:
    def __init__(self, context: RankContext, tasks: Sequence[LitmusTask], setting: HardwareSetting) -> None:
        self.context, self.tasks, self.setting = context, tasks, setting
        self.cards, self.ranks = context.pool.cards, context.ranks
        self.lowered = [None if obstacle(t.litmus.program) else LoweredTest.of(t.litmus.program) for t in tasks]
        most = max((test.lines for test in self.lowered if test), default=1)
        registers = max((test.registers for test in self.lowered if test), default=0)
        self.log_bytes = -(-(1 + BATCH * (1 + registers)) * _WORD // LINE_BYTES) * LINE_BYTES
        lines = context.arena.take((2 * self.ranks + self.ranks + 1) * LINE_BYTES).at
        self.about, self.decision = lines + 2 * self.ranks * LINE_BYTES, lines + 3 * self.ranks * LINE_BYTES
        self.logs = context.arena.take(self.ranks * self.log_bytes).at
        self.batch = _fitting(context.arena.nbytes, most, len(self.cards))
        self.room = context.arena.take(batch_bytes(self.batch, most, len(self.cards))).at
        self.decisions = 0
        self.peers = [rank for rank in range(self.ranks) if rank != context.rank]
        self.stands, self.since = -1, time.monotonic()
        self._clear(lines)
        self.machines = self._meet_all()
        here = [rank for rank in range(self.ranks) if self.machines[rank] == self.machines[context.rank]]
        self.cores, self.place = sorted(os.sched_getaffinity(0)), here.index(context.rank)
        self.crowded = len(here) > len(self.cores)
        spins = SPINS_SHARED if self.crowded else SPINS
        self.straight = Straight(self.cards, lines, context.rank, self.ranks, self._look, spins)
        if context.rank == 0:
            context.emit(RankMachines(len(set(self.machines))))

    # --- the ranks ---------------------------------------------------------------------------------------------

    def _clear(self, lines: int) -> None:
        """A pool on devices holds what earlier runs left: each rank clears its own lines."""
        for which in (0, 1):
            self.context.memory.signal(0, lines + (2 * self.context.rank + which) * LINE_BYTES, 0)
        if self.context.rank == 0:
            self.context.memory.signal(0, self.decision, 0)
        self.context.memory.fence()

    def _meet_all(self) -> list[int]:
        """Exchange what each rank is asked to run, and return each rank's machine."""
        memory = self.context.memory
        asked = blake2b(
            repr((self.setting, [task.litmus.program for task in self.tasks])).encode(), digest_size=8
        ).digest()
        memory.signal(0, self.about + self.context.rank * LINE_BYTES, machine_digest(), asked)
        memory.fence()
        self.context.session.barrier(self.context.deadline_s)
        machines = []
        for rank in range(self.ranks):
            machine, theirs = memory.poll(0, self.about + rank * LINE_BYTES)
            if theirs[: len(asked)] != asked:
                raise MismatchError(f"rank {rank} was started with other tests, rounds or seed than this rank")
            machines.append(machine)
        return machines

    def _look(self) -> None:
        """Called again and again while nothing progresses: give up where nothing will."""
        context = self.context
        context.check()
        context.session.beat()
        for rank, how in lost_among(context, self.peers).items():
            raise lost([rank], f"{how}, in the middle of a litmus test")
        stands, now = self.straight.progress, time.monotonic()
        if stands != self.stands:
            self.stands, self.since = stands, now
        elif now - self.since > context.deadline_s:
            raise DeadlineError(f"no rank has made a step of a litmus test for {context.deadline_s:g} s")

    def told(self, number: int) -> int:
        memory, self.decisions = self.context.memory, self.decisions + 1
        if self.context.rank == 0:
            memory.signal(0, self.decision, number, self.decisions.to_bytes(8, "little"))
            memory.fence()
        self.straight.meet()
        word, payload = memory.poll(0, self.decision)
        self.straight.meet()  # before the next one
        if payload[:8] != self.decisions.to_bytes(8, "little"):
            raise RunError("data from rank 0 did not arrive as it was sent")
        return word

    # --- a test ------------------------------------------------------------------------------------------------

    def one(self, number: int) -> Histogram:
        task, lowered = self.tasks[number], self.lowered[number]
        histogram = Histogram(task, wanted=self.setting.rounds)
        ranks = None if lowered is None else placed(lowered.hosts, self.machines)
        if lowered is None:
            histogram.skipped = obstacle(task.litmus.program)
        elif ranks is None:
            most = max(lowered.hosts.count(host) for host in lowered.hosts)
            beside = f", {most} of them on one machine" if most > 1 else ""
            histogram.skipped = f"it takes {counted(len(lowered.hosts), 'rank')}{beside}, and there are {self.ranks}"
        else:
            self._counted(number, lowered, ranks, histogram)
        if self.context.rank == 0:
            self.context.emit(histogram)
        return histogram

    def _counted(self, number: int, test: LoweredTest, ranks: tuple[int, ...], into: Histogram) -> None:
        began, done, batches = time.monotonic(), 0, 0
        while done < self.setting.rounds:
            trials = min(self.batch, self.setting.rounds - done)
            made = self._batch((self.setting.seed, number, batches), test, ranks, trials, into)
            into.seconds = time.monotonic() - began
            batches += 1
            over = into.seconds >= self.setting.budget_s or into.hangs >= HANGS_MAX
            done = self.told(self.setting.rounds if over else min(done + made, self.setting.rounds))

    def _batch(
        self, seed: tuple[int, ...], test: LoweredTest, ranks: tuple[int, ...], trials: int, into: Histogram
    ) -> int:
        """Make trials and count how they end, on rank 0. Returns how many all ranks have made, there."""
        cards, card_bytes = len(self.cards), self.context.pool.card_bytes
        drawn = TrialBatch.draw(seed, trials, test.lines, cards, card_bytes, self.room)
        rank = self.context.rank
        thread = ranks.index(rank) if rank in ranks else None
        steps = test.steps[thread] if thread is not None else np.zeros((0, 4), np.int64)
        log = np.zeros(1 + trials * (1 + test.registers), np.int64)
        hung, seen = np.zeros(trials, np.uint8), np.zeros((trials, test.registers), np.int64)
        with self._pinned(drawn.pinned):
            log[0] = self.straight.run(
                steps,
                drawn.addresses,
                test.slots,
                drawn.pauses_of((*seed, rank), len(steps)),
                drawn.meets,
                seen,
                hung,
                test.lines,
                test.registers,
                thread is not None and test.shares_host(thread),
                test.initial,
            )
        log[1 : 1 + trials], log[1 + trials :] = hung, seen.reshape(-1)
        self._publish(log)
        where = (drawn.addresses, test.slots, drawn.meets, test.lines)
        if drawn.evicts:
            self.straight.memory(*where, _CLEAN)
        self.straight.meet()
        made = 0
        if rank == 0:
            memory = np.zeros((trials, len(test.slots)), np.int64)
            self.straight.memory(*where, memory)
            made = self._count(self._logs(log.size, ranks), memory[:, : test.words], test.registers, into)
        self.straight.meet()  # the next batch stores to these lines
        return made

    def _count(self, logs: list[Numbers], memory: Numbers, registers: int, into: Histogram) -> int:
        trials = len(memory)
        made = min((int(log[0]) for log in logs), default=trials)
        if not 0 <= made <= trials:
            raise RunError("a rank's trials did not arrive as they were sent")
        hung = np.any([log[1 : 1 + trials] for log in logs], axis=0)[:made]
        seen = sum((log[1 + trials :].reshape(trials, registers) for log in logs), np.zeros((trials, registers), int))
        ends = np.concatenate([seen, memory], axis=1)[:made][~hung]
        for values, count in zip(*np.unique(ends, axis=0, return_counts=True), strict=True):
            into.add(tuple(map(int, values)), int(count))
        into.hangs += int(hung.sum())
        return made

    def _publish(self, log: Numbers) -> None:
        memory, begin = self.context.memory, self.logs + self.context.rank * self.log_bytes
        memory.write(0, begin, log.view(np.uint8))
        memory.flush(0, begin, log.nbytes)
        memory.fence()

    def _logs(self, size: int, ranks: tuple[int, ...]) -> list[Numbers]:
        memory, logs = self.context.memory, []
        for rank in ranks:
            begin, log = self.logs + rank * self.log_bytes, np.zeros(size, np.int64)
            memory.invalidate(0, begin, log.nbytes)
            memory.read(0, begin, log.view(np.uint8))
            logs.append(log)
        return logs

    @contextmanager
    def _pinned(self, first: int) -> Iterator[None]:
        """Keep this rank to one core within, where there is one for each."""
        if first < 0 or self.crowded:
            yield
            return
        with suppress(OSError):
            os.sched_setaffinity(0, {self.cores[(first + self.place) % len(self.cores)]})
        try:
            yield
        finally:
            with suppress(OSError):
                os.sched_setaffinity(0, self.cores)


def _fitting(nbytes: int, lines: int, cards: int) -> int:
    """Return how many trials a batch has, so that its lines fit into ``nbytes`` of every card."""
    fits = (nbytes // (STRIDE_MAX * LINE_BYTES) - 2 * LINE_BYTES) * cards // lines
    return max(1, min(BATCH, fits))


def placed(hosts: Sequence[int], machines: Sequence[int]) -> tuple[int, ...] | None:
    """Return the rank of each thread of a test; None if a host's threads find no machine with a rank for each.

    Threads of one host need one machine, hosts take different ones.
    """
    free = {machine: [r for r, home in enumerate(machines) if home == machine] for machine in dict.fromkeys(machines)}
    on = dict.fromkeys(free, 0)  # hosts on each machine
    ranks = [0] * len(hosts)
    for host in sorted(set(hosts), key=lambda h: (-hosts.count(h), h)):
        threads = [thread for thread, home in enumerate(hosts) if home == host]
        fitting = [machine for machine, theirs in free.items() if len(theirs) >= len(threads)]
        if not fitting:
            return None
        machine = min(fitting, key=lambda m: (on[m], -len(free[m])))  # the first one of equals
        on[machine] += 1
        for thread in threads:
            ranks[thread] = free[machine].pop(0)
    return tuple(ranks)
