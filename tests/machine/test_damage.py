"""Broken hardware: what a load, a store and nature get to see of it; and the same in C, operation for operation."""

import random
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest

from cxlemu.errors import CardLostError, FaultError, LinkDownError, PoisonError
from cxlemu.memory import AdversaryRates, HostCache
from cxlemu.memory.adversary import Action, Adversary, CacheMove
from cxlemu.memory.damage import DAMAGE_BYTES, Damage
from cxlemu.memory.native import NativeShadowMemory
from cxlemu.memory.protocol import LINE_BYTES, Bytes, HostMemory
from cxlemu.memory.shadow import ShadowMemory

LINES, CARDS, HOSTS = 12, 2, 2
WILD = AdversaryRates(0.3, 0.3, 0.3)
ENTRY = 3
IN_C = pytest.mark.parametrize("in_c", [False, True], ids=["python", "c"])


class World:
    """Two hosts with two ranks each, around two cards of a dozen lines; every byte is 1 at first."""

    def __init__(self, *, in_c: bool = False, seed: int | None = None) -> None:
        self.cards: list[Bytes] = [np.ones(LINES * LINE_BYTES, np.uint8) for _ in range(CARDS)]
        self.damage = Damage.none()
        self.caches = [HostCache.private(self.cards, host=host, damage=self.damage) for host in range(HOSTS)]
        make = NativeShadowMemory if in_c else ShadowMemory
        self.ranks: list[HostMemory] = []
        for rank in range(2 * HOSTS):
            host = rank // 2
            nature = None if seed is None else Adversary(seed, WILD, host=host, rank=rank, card_lines=LINES)
            self.ranks.append(make(self.caches[host], nature))

    def load(self, rank: int, offset: int = 0, nbytes: int = LINE_BYTES, card: int = 0) -> int:
        out = np.zeros(nbytes, np.uint8)
        self.ranks[rank].read(card, offset, out)
        return int(out[0])

    def publish(self, rank: int, value: int, offset: int = 0, nbytes: int = LINE_BYTES) -> None:
        memory = self.ranks[rank]
        memory.write(0, offset, np.full(nbytes, value, np.uint8))
        memory.flush(0, offset, nbytes)
        memory.fence()


@IN_C
def test_a_poisoned_line_fails_every_load_from_the_pool_until_it_is_overwritten(in_c: bool) -> None:
    world = World(in_c=in_c)
    world.damage.poison(ENTRY, 0, 1)
    with pytest.raises(PoisonError, match="card 0 is poisoned at byte 64") as told:
        world.load(0, 0, 3 * LINE_BYTES)
    assert (told.value.card, told.value.offset) == (0, 64)
    assert world.load(0, 2 * LINE_BYTES) == world.load(0, LINE_BYTES, card=1) == 1
    with pytest.raises(PoisonError):  # a store to a part of it is also a load of the rest
        world.publish(2, 7, LINE_BYTES, 8)
    with pytest.raises(PoisonError):
        world.ranks[0].poll(0, LINE_BYTES)
    with pytest.raises(PoisonError):
        world.ranks[0].signal(0, LINE_BYTES, 5)
    world.publish(2, 9, LINE_BYTES)
    assert world.load(0, LINE_BYTES) == 9
    assert world.damage.entries() == []


@IN_C
def test_what_a_cache_holds_is_read_though_the_line_is_poisoned_in_the_pool(in_c: bool) -> None:
    world = World(in_c=in_c)
    assert world.load(0) == 1
    world.damage.poison(ENTRY, 0, 0)
    assert world.load(0) == world.load(1) == 1
    with pytest.raises(PoisonError):
        world.load(2)
    world.ranks[0].invalidate(0, 0, LINE_BYTES)
    with pytest.raises(PoisonError):
        world.load(1)


@IN_C
def test_a_masked_store_leaves_poison_unless_it_covers_the_line(in_c: bool) -> None:
    world = World(in_c=in_c)
    world.damage.poison(ENTRY, 0, 1)
    world.ranks[0].write_nt(0, 64, np.full(63, 5, np.uint8))
    world.ranks[0].fence()
    with pytest.raises(PoisonError):
        world.load(2, 64)
    world.ranks[0].write_nt(0, 65, np.full(63, 5, np.uint8))
    world.ranks[0].fence()
    with pytest.raises(PoisonError):
        world.load(2, 64)
    world.ranks[0].write_nt(0, 32, np.full(96, 6, np.uint8))
    world.ranks[0].fence()
    assert world.load(2, 64) == 6


@IN_C
def test_a_lost_card_reads_as_an_error_and_its_stores_vanish(in_c: bool) -> None:
    world = World(in_c=in_c)
    world.damage.lose_card(ENTRY, 0)
    for rank in (0, 2):
        with pytest.raises(CardLostError, match="card 0 is lost") as told:
            world.load(rank)
        assert told.value.card == 0
    world.publish(0, 9)
    assert world.cards[0][0] == 1
    assert world.load(0, card=1) == 1


@IN_C
def test_a_link_that_is_down_loses_writes_silently_and_fails_loads_of_its_host_only(in_c: bool) -> None:
    world = World(in_c=in_c)
    world.damage.cut_link(ENTRY, 1)
    with pytest.raises(LinkDownError, match="the link of host 1 is down") as told:
        world.load(3)
    assert told.value.host == 1
    world.publish(2, 9)  # appears to succeed
    world.ranks[2].write_nt(0, LINE_BYTES, np.full(LINE_BYTES, 8, np.uint8))
    world.ranks[2].fence()
    assert world.load(0) == world.load(0, LINE_BYTES) == 1
    world.damage.mend(ENTRY)
    assert world.load(2) == 1  # up again, and nothing tells that something was lost
    world.publish(2, 9)
    assert world.cards[0][0] == 9


@IN_C
def test_nature_fetches_nothing_that_reads_as_an_error(in_c: bool) -> None:
    for breaks in (
        lambda damage: damage.poison(0, 0, 1),
        lambda damage: damage.lose_card(0, 0),
        lambda damage: damage.cut_link(0, 0),
    ):
        world = World()
        memory = world.ranks[0]
        assert isinstance(memory, ShadowMemory)
        breaks(world.damage)
        memory.disturb(CacheMove(Action.PREFETCH, 0, 0, np.ones(3, np.bool_)))
        reader = memory.native if in_c else memory
        for line in range(3):
            poisoned = [where for _, kind, where, at in world.damage.entries() if kind == 3 and at == line]
            broken = bool(poisoned) or any(kind != 3 for _, kind, _, _ in world.damage.entries())
            with pytest.raises(FaultError) if broken else nullcontext():
                reader.read(0, line * LINE_BYTES, np.zeros(1, np.uint8))


def test_a_page_that_was_never_armed_is_not_looked_at() -> None:
    page = np.zeros(DAMAGE_BYTES, np.uint8)
    damage = Damage(page)
    assert not damage.armed
    damage.poison(62, 255, (1 << 40) - 1)
    assert damage.armed and damage.entries() == [(62, 3, 255, (1 << 40) - 1)]
    damage.mend(62)
    assert damage.armed and damage.entries() == []


def some_breaking(chance: random.Random) -> Callable[[Damage], None]:
    entry, card, line, host = (chance.randrange(most) for most in (4, CARDS, LINES, HOSTS))
    return chance.choice(
        [
            lambda damage: damage.poison(entry, card, line),
            lambda damage: damage.lose_card(entry, card),
            lambda damage: damage.cut_link(entry, host),
            lambda damage: damage.mend(entry),
        ]
    )


@pytest.mark.deep(rows=lambda seed: seed is not None)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_c_does_the_same_step_for_step(seed: int | None) -> None:
    """Any operations of four ranks on two hosts, while hardware breaks and is mended: same bytes, same errors."""
    failed: set[str] = set()
    for number in range(150):
        worlds = World(in_c=False, seed=seed), World(in_c=True, seed=seed)
        for world in worlds:
            world.damage.arm()
        chance = random.Random(number)
        for step in range(40):
            what = chance.choice(["write", "nt", "flush", "fence", "drop", "read", "read", "poll", "signal", "break"])
            rank, card = chance.randrange(2 * HOSTS), chance.randrange(CARDS)
            offset = chance.randrange(LINES * LINE_BYTES)
            if chance.random() < 0.5 or what in ("poll", "signal"):
                offset = offset // LINE_BYTES * LINE_BYTES
            nbytes = chance.choice([1, 8, 64, 100, 128, 256])
            nbytes = min(nbytes, LINES * LINE_BYTES - offset)
            breaks = some_breaking(chance)
            results = []
            for world in worlds:
                memory, data = world.ranks[rank], np.full(nbytes, step + 2, np.uint8)
                told: object = None
                try:
                    match what:
                        case "write":
                            memory.write(card, offset, data)
                        case "nt":
                            memory.write_nt(card, offset, data)
                        case "flush":
                            memory.flush(card, offset, nbytes)
                        case "fence":
                            memory.fence()
                        case "drop":
                            memory.invalidate(card, offset, nbytes)
                        case "read":
                            memory.read(card, offset, data)
                        case "poll":
                            told = memory.poll(card, offset)
                        case "signal":
                            memory.signal(card, offset, step, b"payload")
                        case "break":
                            breaks(world.damage)
                except FaultError as error:
                    told = (type(error), str(error))
                    failed.add(f"{what} {type(error).__name__}")
                pool = [one.tobytes() for one in world.cards]
                results.append((told, data.tobytes(), pool, world.damage.entries()))
            assert results[0] == results[1], (
                f"number {number} step {step}: {what} by {rank} at {card}, {offset} +{nbytes}"
            )
        assert [memory.stats for memory in worlds[0].ranks] == [memory.stats for memory in worlds[1].ranks]  # type: ignore[attr-defined]
    kinds = ("PoisonError", "CardLostError", "LinkDownError")
    assert failed == {f"{what} {kind}" for what in ("write", "read", "poll", "signal") for kind in kinds}


@IN_C
def test_the_page_tells_which_faults_an_access_met(in_c: bool) -> None:
    world = World(in_c=in_c)
    world.load(0)
    world.damage.lose_card(1, 1)
    world.damage.poison(2, 0, 0)
    world.damage.poison(3, 0, 1)
    world.load(0)  # from the cache: nothing is fetched
    assert world.damage.met() == []
    with pytest.raises(PoisonError):
        world.load(2)
    assert world.damage.met() == [2]
    world.ranks[2].write_nt(0, LINE_BYTES, np.full(LINE_BYTES, 8, np.uint8))
    world.ranks[2].fence()  # heals the line
    assert world.damage.met() == [2, 3]
    with pytest.raises(CardLostError):
        world.load(0, card=1)
    assert world.damage.met() == [1, 2, 3]
    world.damage.poison(3, 0, 2)
    assert world.damage.met() == [1, 2]
