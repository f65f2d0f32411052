"""Two processes on files that stand in for cards, each a host with an image of them (see native/lines_image.c).

Run as a program, with a folder for the cards. Exit code 1 and a sentence: results of a collective are wrong, a rank did
not come in time, or the cache-line instructions that were executed are not those that the plan's records ask for.
"""

import ctypes
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from collectives.algorithms.catalog import build, recipe
from cxlemu import _native
from cxlemu.backends.dax import BACKEND
from cxlemu.engines.native import NativeEngine
from cxlemu.engines.streams import Binding, Running
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Call, Frame, Layout, Op, Plan, RankPart, Stream
from cxlemu.plan.accesses import RINGS, doorbells, pool_extents
from cxlemu.pool.device import map_device
from faults.lockstep.lockstep import fresh_buffers
from tests.helpers.expected import COLLECTIVES, expected, input_bytes

RANKS, CARDS, BASE, ROUNDS, DEADLINE_S = 2, 2, 4096, 3, 3.0
LAYOUT = Layout(RANKS, CARDS, slots=2, slot_card_bytes=8192, doorbells_per_rank=8, interleave_bytes=256)
VARIANTS = ("naive", "all", "line")
SIZES = (8, 200, 3000)

Lines = Counter[tuple[str, int, int]]  # of each kind, card and line of the card: how often


class _Event(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("kind", "card", "offset", "nbytes")]


class Ear:
    """What this process executes on mapped cards, from now on."""

    MOST = 1 << 18

    def __init__(self) -> None:
        self._host = ctypes.CDLL(_native.__file__)
        self._host.lines_heard.restype = ctypes.c_int64
        self._into = (_Event * self.MOST)()
        self._host.lines_listen()

    def heard(self) -> Lines:
        count = self._host.lines_heard(self._into, ctypes.c_int64(self.MOST))
        assert count < self.MOST, "too much was executed to be kept"
        found: Lines = Counter()
        for event in self._into[:count]:
            found += lines(chr(event.kind), event.card, event.offset, event.nbytes)
        return found


def lines(kind: str, card: int, offset: int, nbytes: int) -> Lines:
    if kind == "|":
        return Counter({(kind, -1, 0): 1})
    return Counter((kind, card, line) for line in range(offset // LINE_BYTES, -(-(offset + nbytes) // LINE_BYTES)))


KINDS = {Op.FLUSH: ("f", "a"), Op.INVALIDATE: ("i", "a"), Op.WRITE_NT: ("n", "dst")}


def asked_for(plan: Plan, rank: int, epoch: int) -> tuple[Lines, set[tuple[str, int, int]]]:
    """What its records ask for, and the lines of the doorbells that it looks at, each once or more."""
    sure: Lines = Counter()
    looked = set()
    for stream in plan.part(rank).streams:
        for i in stream.instructions:
            if i.op in KINDS:
                kind, field = KINDS[i.op]
                for extent in pool_extents(plan.frame, LAYOUT, epoch, getattr(i, field), i.nbytes):
                    sure += lines(kind, extent.card, BASE + extent.offset, extent.nbytes)
            if i.op is Op.FENCE:
                sure += lines("|", -1, 0, 0)
            if i.op is Op.WAIT_ALL and epoch + i.value <= 0:
                continue
            for doorbell in doorbells(plan.frame, i):
                card, offset = LAYOUT.doorbell_address(doorbell, epoch + i.value)
                line = lines("f" if i.op in RINGS else "i", card, BASE + offset, LINE_BYTES)
                if i.op in RINGS:
                    sure += line
                else:
                    looked |= set(line)
    return sure, looked


def compare(plan: Plan, rank: int, epoch: int, executed: Lines) -> None:
    """Raises AssertionError for the first line that was treated otherwise."""
    sure, looked = asked_for(plan, rank, epoch)
    for line in sorted(sure.keys() | looked | executed.keys()):
        wanted, got = sure[line], executed[line]
        fine = got > wanted if line in looked else got == wanted
        assert fine, f"[{plan.call}] rank {rank}: {line} was executed {got} times, its records ask for {wanted}"


def plans() -> Iterable[Plan]:
    for collective in COLLECTIVES:
        for variant in ("line",) if collective == "barrier" else VARIANTS:
            for nbytes in (0,) if collective == "barrier" else SIZES:
                redop = "sum" if "reduce" in collective else "none"
                for root in range(RANKS if collective in ("broadcast", "gather", "scatter", "reduce") else 1):
                    call = Call(collective, variant, RANKS, nbytes, "i64", redop, root)
                    yield (plan := build(recipe(collective, variant), LAYOUT, call))
                    if variant == VARIANTS[0]:
                        yield past_the_cache(plan)


def past_the_cache(plan: Plan) -> Plan:
    """The same with non-temporal stores, which no shipped algorithm has."""

    def part(rank: int) -> tuple[Frame, RankPart]:
        streams = []
        for stream in plan.part(rank).streams:
            records = stream.records.copy()
            records["op"][records["op"] == Op.WRITE] = Op.WRITE_NT
            streams.append(Stream(stream.name, records))
        return plan.frame, replace(plan.part(rank), streams=tuple(streams))

    return Plan(plan.call, plan.layout, part)


def run(rank: int, cards: list[str]) -> None:
    mapped = [map_device(path).pages for path in cards]
    engine, ear, epoch = NativeEngine(mapped, BACKEND.elides), Ear(), 1
    all_plans = list(plans())
    for number, plan in enumerate(all_plans * ROUNDS):
        chance = np.random.default_rng(number)
        given = [chance.integers(0, 256, input_bytes(plan.call, peer), np.uint8) for peer in range(RANKS)]
        buffers = fresh_buffers(plan.part(rank), given[rank])
        running = Running(plan.call, plan.frame, plan.part(rank), Binding(LAYOUT, BASE, epoch, plan.call.tag()))
        engine.run(running, buffers, deadline_s=DEADLINE_S)
        wanted = expected(plan.call, given)[rank]
        assert buffers[1][: wanted.size].tobytes() == wanted.tobytes(), f"[{plan.call}] rank {rank}: wrong bytes"
        compare(plan, rank, epoch, ear.heard())
        epoch += plan.rounds


def main(folder: Path) -> int:
    assert "image" in _native.lines_instructions(), "built with the machine's own instructions"
    cards = [folder / f"card{index}" for index in range(CARDS)]
    for card in cards:
        card.write_bytes(bytes(BASE + LAYOUT.extent_bytes))
    ranks = []
    for rank in range(RANKS):
        if (pid := os.fork()) == 0:
            try:
                run(rank, [*map(str, cards)])
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        ranks.append(pid)
    return int(max(os.waitpid(pid, 0)[1] for pid in ranks) > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
