"""Ours, our peers and the machine's limit, measured alternately in one run, because other load on a machine shifts.

For every cell (collective and size) each implementation prepares the same buffers and checks its results, then all are
timed in turn, several times over; medians are compared. A time is that of the slowest rank, per call, of as many calls
as fit `BUDGET_NS`, after a barrier. Where sources are rewritten before each call, as applications do, the time that the
writing alone takes is measured likewise and subtracted.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from collectives import sizes
from collectives.contracts import COLLECTIVES, buffers, postcondition
from cxlemu.errors import CxlemuError
from cxlemu.plan import Call
from studies.peers import bounds as limits
from studies.peers.find import Absent, Peer
from studies.peers.group import Group, PeerProcess, worker_arguments
from studies.peers.limit import CONTROL_BYTES
from studies.peers.ratios import LEAST_US, LIMIT, OURS, Lane, RatioRow, Samples, Timing, row

MEASURED_MOST = 3  # times that a cell is measured in which times are impossible
BUDGET_NS = 20_000_000  # one timing
MOST_ITERATIONS = 100_000
MIN_BYTES, MAX_BYTES, STEP_FACTOR = 8, 64 << 20, 4
ITEM_BYTES = 4  # float32
PAGE_BYTES = 2 << 20
BANDWIDTH_BYTES = 64 << 20
HEAP_SLACK_BYTES = 1 << 20


def default_sizes(first: int = MIN_BYTES, last: int = MAX_BYTES) -> list[int]:
    """List 8 bytes and every power of four above them, from ``first`` to ``last``."""
    every = [MIN_BYTES, *(STEP_FACTOR**power for power in range(2, 20))]
    return [size for size in every if first <= size <= last]


def cells(collectives: Sequence[str], wanted: Sequence[int], ranks: int) -> list[Call]:
    calls: dict[tuple[str, int], Call] = {}
    for collective in collectives:
        for size in wanted:
            block = max(ITEM_BYTES, sizes.block_bytes(collective, size, ranks, ITEM_BYTES))
            op = "sum" if COLLECTIVES[collective].reduces else "none"
            call = Call(collective, "auto", ranks, block, "f32", op, 0, in_place=COLLECTIVES[collective].one_buffer)
            calls.setdefault((collective, block), call)
    return list(calls.values())


@dataclass
class Comparison:
    """All implementations that take part, started and asleep."""

    ranks: int
    groups: dict[str, Group]
    absent: list[Absent]

    def measure(self, call: Call, *, alternations: int, modes: Sequence[bool]) -> list[RatioRow]:
        """Measure one cell; again, `MEASURED_MOST` times at most, while any time in it is impossible."""
        lanes, wrong, absent = self._prepare(call)
        for measured in range(1, MEASURED_MOST + 1):
            samples = self._timed(lanes, alternations, modes)
            rows = [row(call, samples, rewritten, wrong, absent, measured) for rewritten in modes]
            if not any(row.impossible for row in rows):
                break
        return rows

    def _timed(self, lanes: Sequence[Lane], alternations: int, modes: Sequence[bool]) -> dict[Lane, Samples]:
        samples = {lane: Samples(_calibrated(self.groups[lane.name], lane.path)) for lane in lanes}
        for _ in range(alternations):
            for lane, taken in samples.items():
                for rewritten in modes:
                    group = self.groups[lane.name]
                    timing = _timing(group, lane.path, taken.iterations, rewritten)
                    taken.taken.setdefault(rewritten, []).append(timing)
        return samples

    def _prepare(self, call: Call) -> tuple[list[Lane], dict[str, int], dict[str, str]]:
        lanes, wrong, absent = [], {}, {}
        for name, group in self.groups.items():
            commands = [_preparation(call, rank, limit=name == LIMIT) for rank in range(self.ranks)]
            answers = group.ask({"do": "prepare"}, commands)
            reasons = [answer["absent"] for answer in answers if "absent" in answer]
            if reasons:
                absent[name] = reasons[0]
                continue
            lanes += [Lane(name, path) for path in answers[0]["wrong"]]
            wrong[name] = sum(sum(answer["wrong"].values()) for answer in answers)
        return lanes, wrong, absent

    def bandwidths(self) -> MachineSpeed:
        """Measure local copies and two-operand sums of 64 MiB on all ranks at once, and a cache line to and fro."""
        group, count = self.groups[LIMIT], BANDWIDTH_BYTES
        rates = []
        for sources in ([(0, 0)], [(0, 0), (1 % self.ranks, 0)]):
            command = {
                "do": "prepare",
                "input_bytes": count,
                "output_bytes": count,
                "pieces": [],
                "moves": [(0, count, sources)],
            }
            group.ask(command)
            time_us = _median_us(group, "moves", 1)
            rates.append(self.ranks * count / time_us / 1e3)
        return MachineSpeed(rates[0], rates[1], 1e3 * _median_us(group, "line", _calibrated(group, "line")))


class MachineSpeed(NamedTuple):
    copy_gbytes_per_s: float  # bytes that all ranks together write per time, copying
    reduce_gbytes_per_s: float  # bytes that all ranks together write per time, summing two vectors
    round_trip_ns: float  # one cache line between two ranks, there and back


@contextmanager
def started(
    ranks: int,
    peers: Sequence[Peer | Absent],
    *,
    largest: Sequence[Call],
    config: str,
    single_copy: bool,
    transport: str,
    deadline_s: float,
    accelerator: str | None = None,
    on_start: Callable[[str], None] = lambda name: None,
) -> Iterator[Comparison]:
    """Start all implementations, pinned alike; as a context, it ends them.

    A peer that does not start is absent, with its reason; ours must start.
    """
    absent = [peer for peer in peers if isinstance(peer, Absent)]
    with ExitStack() as stack:
        groups: dict[str, Group] = {}

        def begin(name: str, start: Callable[[Group], None]) -> None:
            on_start(name)
            with ExitStack() as attempt:
                group = attempt.enter_context(Group(name, ranks, deadline_s=deadline_s))
                start(group)
                _pin(group)
                stack.push(attempt.pop_all())
            groups[name] = group

        begin(OURS, lambda group: _start_ours(group, largest, config, deadline_s, accelerator, transport))
        for peer in peers:
            if isinstance(peer, Peer):
                try:
                    begin(
                        peer.name,
                        lambda group, peer=peer: peer.start(group, single_copy=single_copy, deadline_s=deadline_s),  # type: ignore[misc]
                    )
                except CxlemuError as error:
                    absent.append(Absent(peer.name, str(error)))
        begin(LIMIT, lambda group: _start_limit(group, largest, deadline_s))
        yield Comparison(ranks, groups, absent)


def _start_ours(
    group: Group, calls: Sequence[Call], config: str, deadline_s: float, accelerator: str | None, transport: str
) -> None:
    heap_bytes = HEAP_SLACK_BYTES + max(sum(buffer.nbytes for buffer in buffers(call, call.root)) for call in calls)
    sizes = (str(deadline_s), str(heap_bytes))
    arguments = (group.socket_path, str(group.ranks), config, *sizes, accelerator or "", transport)
    group.start([PeerProcess(worker_arguments(sys.executable, "ours", *arguments))])


def _start_limit(group: Group, calls: Sequence[Call], deadline_s: float) -> None:
    most = max([BANDWIDTH_BYTES, *(limits.source_bytes(call) for call in calls)])
    stride = -(-most // PAGE_BYTES) * PAGE_BYTES
    fd = os.memfd_create("cxlemu-limit")
    try:
        os.ftruncate(fd, CONTROL_BYTES + group.ranks * stride)
        group.start(
            PeerProcess(
                worker_arguments(
                    sys.executable,
                    "limit",
                    *map(str, (group.socket_path, fd, rank, group.ranks, stride, deadline_s)),
                ),
                pass_fds=(fd,),
            )
            for rank in range(group.ranks)
        )
    finally:
        os.close(fd)


def _pin(group: Group) -> None:
    """Pin rank k to the k-th core, where every rank has one.

    The limit's ranks share the cores evenly, as is best for them.
    """
    cores = sorted(os.sched_getaffinity(0))
    if group.ranks <= len(cores) or group.name == LIMIT:
        group.ask({"do": "pin"}, [{"core": cores[rank % len(cores)]} for rank in range(group.ranks)])


def _preparation(call: Call, rank: int, *, limit: bool) -> dict[str, Any]:
    source, target = buffers(call, rank)
    command = {
        "collective": call.collective,
        "ranks": call.ranks,
        "root": call.root,
        "input_bytes": source.nbytes,
        "output_bytes": target.nbytes,
        "in_place": call.in_place,
    }
    if limit:  # it does not synchronize, so there is nothing to check
        moves = limits.moves(call, rank)
        written = max((move.at + move.nbytes for move in moves), default=0)  # also by ranks that get nothing
        return command | {"pieces": [], "moves": moves, "output_bytes": written}
    return command | {"pieces": [(p.at, p.nbytes, p.contributions) for p in postcondition(call, rank)]}


def _calibrated(group: Group, path: str) -> int:
    """Find how many calls take about BUDGET_NS."""
    iterations = 1
    while True:
        time_us = _timing(group, path, iterations, rewritten=False).calls_us
        fit = max(1, min(MOST_ITERATIONS, int(BUDGET_NS / 1e3 / max(time_us, LEAST_US))))
        if fit <= 4 * iterations:
            return fit
        iterations = min(fit, 30 * iterations)


def _median_us(group: Group, path: str, iterations: int) -> float:
    return statistics.median(_timing(group, path, iterations, rewritten=False).calls_us for _ in range(5))


def _timing(group: Group, path: str, iterations: int, rewritten: bool) -> Timing:
    answers = group.ask({"do": "time", "path": path, "iterations": iterations, "rewritten": rewritten})
    calls_ns, rewrite_ns = (max(int(answer[key]) for answer in answers) for key in ("ns", "rewrite_ns"))
    return Timing(calls_ns / iterations / 1e3, rewrite_ns / iterations / 1e3)
