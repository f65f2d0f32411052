"""The litmus tests of tests/faults/litmus/README.md on the shadow cache: every order of the steps, then every seed.

"allowed": the outcome is really reached, by the never-evict worst case or, where it needs a step of nature,
by a seed of the adversary (``by="seed"``). "forbidden": no interleaving of the steps and no seed shows it.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations, product
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from cxlemu.memory import AdversaryRates, HostCache, MemorySpec
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.memory.shadow import ShadowMemory

SEEDS = range(50)
RATES = AdversaryRates(evict=0.3, prefetch=0.3, land=0.3)

X, Y, Z = 0, LINE_BYTES, 2 * LINE_BYTES  # words in lines of their own ...
X1 = X + 8  # ... and one in the line of X
F, G = 4 * LINE_BYTES, 5 * LINE_BYTES  # doorbells
LINES = 6


class World:
    """Ranks on hosts, and the registers that their loads fill. ``in_c``: the shadow cache in C."""

    def __init__(self, hosts: Sequence[int], seed: int | None, *, in_c: bool) -> None:
        cards = [np.zeros(LINES * LINE_BYTES, np.uint8)]
        spec = MemorySpec(seed=seed, rates=RATES)
        self.hosts = hosts
        self.caches = {host: HostCache.private(cards) for host in hosts}
        self.memories = [spec.open(cards, host_cache=self.caches[h], host=h, rank=r) for r, h in enumerate(hosts)]
        if in_c:
            self.memories = [memory.native for memory in self.memories if isinstance(memory, ShadowMemory)]
        self.done = [0] * len(hosts)  # steps that each rank has completed
        self.registers: dict[str, int] = {}
        self.seed = seed or 0


Step = Callable[[World, int], bool | None]  # False: cannot go on yet


def store(word: int, value: int) -> Step:
    return lambda w, r: w.memories[r].write(0, word, np.array([value], "<u8").view(np.uint8))


def store_nt(word: int, value: int) -> Step:
    return lambda w, r: w.memories[r].write_nt(0, word, np.array([value], "<u8").view(np.uint8))


def flush(word: int, keep: bool = False) -> Step:
    return lambda w, r: w.memories[r].flush(0, word, 8, keep=keep)


def fence() -> Step:
    return lambda w, r: w.memories[r].fence()


def invalidate(word: int) -> Step:
    return lambda w, r: w.memories[r].invalidate(0, word, 8)


def load(word: int, register: str) -> Step:
    def step(world: World, rank: int) -> None:
        out = np.zeros(8, np.uint8)
        world.memories[rank].read(0, word, out)
        world.registers[register] = int(out.view("<u8")[0])

    return step


def signal(bell: int, value: int, payload: int = 0) -> Step:
    return lambda w, r: w.memories[r].signal(0, bell, value, payload.to_bytes(8, "little") if payload else b"")


def wait(bell: int, value: int, payload: str = "") -> Step:
    def step(world: World, rank: int) -> bool:
        line = world.memories[rank].poll(0, bell)
        if line.word >= value and payload:
            world.registers[payload] = int.from_bytes(line.payload[:8], "little")
        return line.word >= value

    return step


def after(rank: int, steps: int) -> Step:
    """Order that comes from outside the pool, such as two ranks of one process."""
    return lambda w, _: w.done[rank] >= steps


def crash() -> Step:
    return lambda w, r: w.caches[w.hosts[r]].crash(np.random.default_rng(w.seed))


def interleavings(lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every order in which programs of these lengths can be merged: which rank moves at each step."""
    if not any(lengths):
        yield ()
    for rank, length in enumerate(lengths):
        if length:
            fewer = [n - (r == rank) for r, n in enumerate(lengths)]
            for rest in interleavings(fewer):
                yield rank, *rest


def documented() -> dict[str, tuple[str, str]]:
    """Name, outcome and who shows it, from the table of litmus/README.md."""
    table = (Path(__file__).parent / "litmus" / "README.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line[:1] == "|"]
    return {name: (outcome, by.split(" (")[0]) for name, _, outcome, by in rows[2:]}


def test_the_documentation_lists_these_litmus_tests_with_these_outcomes() -> None:
    shown_by = {"never-evict": "worst case", "seed": "seed"}
    tested = {litmus.name: ("allowed", shown_by[litmus.by]) for litmus in allowed()}
    tested |= {litmus.name: ("forbidden", "") for litmus in forbidden()}
    assert documented() == tested | {"IRIW": ("forbidden", "")}


def test_there_are_as_many_interleavings_as_distinct_permutations() -> None:
    assert sorted(interleavings((2, 3, 1))) == sorted(set(permutations((0, 0, 1, 1, 1, 2))))


@dataclass
class Litmus:
    name: str
    programs: list[list[Step]]
    outcome: dict[str, int]
    hosts: tuple[int, ...] = ()
    by: Literal["never-evict", "seed"] = "never-evict"
    in_c: bool = False

    def __post_init__(self) -> None:
        self.hosts = self.hosts or tuple(range(len(self.programs)))

    @cached_property
    def worst_case(self) -> dict[tuple[int, ...], dict[str, int]]:
        """What each possible order leads to when nothing moves by itself."""
        runs = {order: self.run(order, None) for order in interleavings([len(p) for p in self.programs])}
        return {order: registers for order, registers in runs.items() if registers is not None}

    @property
    def orders(self) -> list[tuple[int, ...]]:
        """Possible under any seed: doorbells arrive at once, so waits depend on the order alone."""
        return list(self.worst_case)

    def run(self, order: tuple[int, ...], seed: int | None) -> dict[str, int] | None:
        """The registers at the end, None where this order would have to pass an unsatisfied wait."""
        world = World(self.hosts, seed, in_c=self.in_c)
        for rank in order:
            step = self.programs[rank][world.done[rank]]
            if step(world, rank) is False:
                return None
            world.done[rank] += 1
        return world.registers

    def in_worst_case(self) -> bool:
        return any(registers.items() >= self.outcome.items() for registers in self.worst_case.values())

    def shows(self, order: tuple[int, ...], seed: int) -> bool:
        registers = self.run(order, seed)
        return registers.items() >= self.outcome.items()


PUBLISH_X = [store(X, 1), flush(X), fence(), signal(F, 1)]
RETRIEVE_X = [wait(F, 1), invalidate(X), load(X, "x")]
SAW_X_OLD = {"x": 0}


def allowed() -> Iterator[Litmus]:
    yield Litmus("MP-noflush", [[store(X, 1), fence(), signal(F, 1)], RETRIEVE_X], SAW_X_OLD)
    yield Litmus("MP-nofence", [[store(X, 1), flush(X), signal(F, 1)], RETRIEVE_X], SAW_X_OLD)
    yield Litmus("MP-noinv", [PUBLISH_X, [load(X, "before"), wait(F, 1), load(X, "x")]], SAW_X_OLD)
    never_loaded = [store(Y, 1), wait(F, 1), load(X, "x")]  # X is the neighbour of Y: prefetched with it
    yield Litmus("MP-noinv-prefetch", [PUBLISH_X, never_loaded], SAW_X_OLD, by="seed")
    earlyinv = [load(X, "before"), invalidate(X), load(X, "between"), wait(F, 1), load(X, "x")]
    yield Litmus("MP-earlyinv", [PUBLISH_X, earlyinv], SAW_X_OLD)
    earlyinv = [invalidate(X), wait(F, 1), load(X, "x")]
    yield Litmus("MP-earlyinv-prefetch", [PUBLISH_X, earlyinv], SAW_X_OLD, by="seed")
    yield Litmus("MP-nt-nofence", [[store_nt(X, 1), signal(F, 1)], RETRIEVE_X], SAW_X_OLD)

    flag_first = [[store(X, 1), store(X1, 7), flush(X), fence()], [invalidate(X), load(X, "f"), load(X1, "x")]]
    yield Litmus("SAMELINE-flagfirst", flag_first, {"f": 1, "x": 0}, by="seed")
    unacknowledged = [[signal(F, 1, 10), signal(F, 2, 20)], [wait(F, 1, "p1"), wait(F, 1, "p2")]]
    yield Litmus("PAYLOAD-overwritten", unacknowledged, {"p1": 10, "p2": 20})
    torn = [[store(X, 1), store(Y, 1), flush(X), flush(Y), fence()], [load(Y, "y"), load(X, "x")]]
    yield Litmus("TORN", torn, {"y": 1, "x": 0}, by="seed")

    def share(word: int) -> list[Step]:
        return [store(word, 1), flush(word), fence()]

    both = [after(0, 3), after(1, 3), load(X, "x"), load(X1, "x1")]
    yield Litmus("FALSESHARE", [share(X), share(X1), both], {"x": 0, "x1": 1})
    residue = [[store(X1, 1), signal(F, 1), after(1, 4), flush(X1), fence()]]
    residue += [[wait(F, 1), store(X, 1), flush(X), fence()], [after(0, 5), load(X, "x")]]
    yield Litmus("RESIDUE", residue, {"x": 0})
    eviction = [[store(X1, 1), signal(F, 1), after(1, 4), load(Z, "z")], residue[1]]
    eviction += [[after(0, 4), load(X1, "x1"), load(X, "x")]]
    yield Litmus("RESIDUE-eviction", eviction, {"x1": 1, "x": 0}, by="seed")
    stale = [[load(X, "before"), wait(F, 1), store(X1, 1), flush(X1), fence()], PUBLISH_X]
    yield Litmus("STALEALLOC", [*stale, [after(0, 5), load(X, "x")]], {"x": 0})
    overwrite = [wait(F, 1), invalidate(X), store(X, 2), flush(X), fence(), signal(G, 1)]
    kept = [store(X, 1), flush(X, keep=True), fence(), signal(F, 1), wait(G, 1), load(X, "x")]
    yield Litmus("OWNSTALE", [kept, overwrite], {"x": 1})

    scope = [[store(X, 1), flush(X)], [after(0, 2), fence(), signal(F, 1)], RETRIEVE_X]
    yield Litmus("FENCESCOPE", scope, SAW_X_OLD, hosts=(0, 0, 1))
    yield Litmus("CRASH-unflushed", [[store(X, 1), crash()], [after(0, 2), load(X, "x")]], SAW_X_OLD)
    posted = [[store(X, 1), flush(X), crash()], [after(0, 3), load(X, "x")]]
    yield Litmus("CRASH-posted-lost", posted, {"x": 0})
    yield Litmus("CRASH-posted-landed", posted, {"x": 1}, by="seed")


def forbidden() -> Iterator[Litmus]:
    yield Litmus("MP", [PUBLISH_X, RETRIEVE_X], SAW_X_OLD)
    yield Litmus("MP-nt", [[store_nt(X, 1), fence(), signal(F, 1)], RETRIEVE_X], SAW_X_OLD)
    same_line = [[store(X1, 7), store(X, 1), flush(X), fence()], [invalidate(X), load(X, "f"), load(X1, "x")]]
    yield Litmus("MP-sameline", same_line, {"f": 1, "x": 0})
    yield Litmus("MP-payload", [[signal(F, 1, 10)], [wait(F, 1, "x")]], SAW_X_OLD)
    rewrite = [store(X, 1), flush(X, keep=True), store(X, 2), flush(X), fence()]
    yield Litmus("OWNFLUSH", [rewrite, [after(0, 5), invalidate(X), load(X, "x")]], {"x": 1})
    own_flush = [store(X, 1), flush(X), load(X, "x"), fence(), load(X, "later")]
    yield Litmus("OWNPENDING", [own_flush, [load(X, "other")]], {"x": 0})
    yield Litmus("OWNLATER", [own_flush, [load(X, "other")]], {"later": 0})

    def sb(mine: int, other: int, register: str) -> list[Step]:
        return [store(mine, 1), flush(mine), fence(), invalidate(other), load(other, register)]

    yield Litmus("SB", [sb(X, Y, "y"), sb(Y, X, "x")], {"x": 0, "y": 0})
    twice = [load(X, "new"), invalidate(X), load(X, "old")]
    yield Litmus("CoRR", [[store(X, 1), flush(X), fence()], twice], {"new": 1, "old": 0})
    flushed = [[store(X, 1), flush(X), fence(), crash()], [after(0, 4), invalidate(X), load(X, "x")]]
    yield Litmus("CRASH-flushed", flushed, SAW_X_OLD)
    yield Litmus("OBSERVED", [[store(X, 1), flush(X), crash()], twice], {"new": 1, "old": 0})


in_both = pytest.mark.parametrize("in_c", [False, True], ids=["numpy", "c"])


@pytest.mark.deep(rows=lambda litmus, in_c: not in_c or litmus.name in ("RESIDUE", "RESIDUE-eviction", "STALEALLOC"))
@in_both
@pytest.mark.parametrize("litmus", list(allowed()), ids=lambda litmus: litmus.name)
def test_an_allowed_outcome_is_reached(litmus: Litmus, in_c: bool) -> None:
    litmus = replace(litmus, in_c=in_c)
    assert litmus.in_worst_case() == (litmus.by == "never-evict")
    if litmus.by == "seed":
        assert any(litmus.shows(order, seed) for seed in SEEDS for order in litmus.orders)


@pytest.mark.deep(rows=lambda litmus, in_c: not in_c or litmus.name == "SB")
@in_both
@pytest.mark.parametrize("litmus", list(forbidden()), ids=lambda litmus: litmus.name)
def test_a_forbidden_outcome_is_never_reached(litmus: Litmus, in_c: bool) -> None:
    litmus = replace(litmus, in_c=in_c)
    assert not litmus.in_worst_case()
    for order, seed in product(litmus.orders, SEEDS):
        assert not litmus.shows(order, seed), f"order {order}, seed {seed}"


@pytest.mark.deep
@in_both
def test_two_readers_agree_on_the_order_of_two_writers(in_c: bool) -> None:
    """IRIW: 6300 orders in the worst case; under the adversary, 20 other orders for each seed."""

    def write(word: int) -> list[Step]:
        def publish(world: World, rank: int) -> None:
            for step in (store(word, 1), flush(word), fence()):
                step(world, rank)

        return [publish]

    def read(first: int, then: int, reader: str) -> list[Step]:
        names = (f"{reader}1", f"{reader}2")
        return [invalidate(first), load(first, names[0]), invalidate(then), load(then, names[1])]

    opposite = {"a1": 1, "a2": 0, "b1": 1, "b2": 0}
    iriw = Litmus("IRIW", [write(X), write(Y), read(X, Y, "a"), read(Y, X, "b")], opposite, in_c=in_c)
    assert len(iriw.orders) == 6300
    assert not iriw.in_worst_case()
    for seed in SEEDS:
        for order in random.Random(seed).sample(iriw.orders, 20):
            assert not iriw.shows(order, seed), f"order {order}, seed {seed}"
