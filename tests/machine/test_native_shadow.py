"""The shadow cache in C against its definition, in windows large enough for what it does with many lines at once."""

import random

import numpy as np
import pytest

from cxlemu.memory import AdversaryRates, HostCache
from cxlemu.memory.adversary import Adversary
from cxlemu.memory.native import NativeShadowMemory
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.memory.shadow import ShadowMemory
from studies.benchmarks import shadow_cache as speed

LINES = 48 << 10  # 3 MiB
CARD_BYTES = LINES * LINE_BYTES


class Host:
    """Two ranks of one host, of which each step names one, and the pool's bytes."""

    def __init__(self, *, in_c: bool, seed: int | None) -> None:
        self.pool: Bytes = np.resize(np.arange(251, dtype=np.uint8), CARD_BYTES)
        self.cache = HostCache.private([self.pool])
        rates = AdversaryRates(0.4, 0.4, 0.4)
        natures = [
            None if seed is None else Adversary(seed, rates, host=0, rank=rank, card_lines=LINES) for rank in range(2)
        ]
        self.ranks = [(NativeShadowMemory if in_c else ShadowMemory)(self.cache, nature) for nature in natures]

    def publish(self, rank: int, offset: int, data: Bytes, *, fences: bool = False) -> None:
        """A store, its flush and, if asked for, the fence after it, in one where that can be."""
        memory = self.ranks[rank]
        if isinstance(memory, NativeShadowMemory):
            memory.shadow.write(0, offset, data, 2 if fences else 1)
        else:
            memory.write(0, offset, data)
        memory.flush(0, offset, data.size)
        if fences:
            memory.fence()


def some_range(chance: random.Random) -> tuple[int, int]:
    """Whole lines, half of the time; of any size, the whole card among them."""
    nbytes = chance.choice([1, 64, 100, 1 << 12, 1 << 16, 1 << 20, (1 << 21) + 5, CARD_BYTES])
    offset = chance.randrange(CARD_BYTES - nbytes + 1)
    if chance.random() < 0.5:
        offset, nbytes = offset // LINE_BYTES * LINE_BYTES, max(nbytes // LINE_BYTES, 1) * LINE_BYTES
    return offset, nbytes


@pytest.mark.each_value_once
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("number", range(6))
def test_large_windows_are_as_in_the_definition(number: int, seed: int | None) -> None:
    """Any steps of two ranks, on the pool that another host writes to in between."""
    hosts = Host(in_c=False, seed=seed), Host(in_c=True, seed=seed)
    chance = random.Random(number)
    for step in range(60):
        what = chance.choice(
            ["write", "publish", "publish, fence", "nt", "flush", "keep", "fence", "drop", "read", "read", "pool"]
        )
        rank, (offset, nbytes) = chance.randrange(2), some_range(chance)
        outs = []
        for host in hosts:
            memory, data = host.ranks[rank], np.full(nbytes, step + 1, np.uint8)
            match what:
                case "write":
                    memory.write(0, offset, data)
                case "publish" | "publish, fence":
                    host.publish(rank, offset, data, fences=what != "publish")
                case "nt":
                    memory.write_nt(0, offset, data)
                case "flush" | "keep":
                    memory.flush(0, offset, nbytes, keep=what == "keep")
                case "fence":
                    memory.fence()
                case "drop":
                    memory.invalidate(0, offset, nbytes)
                case "read":
                    memory.read(0, offset, data)
                case "pool":
                    host.pool[offset : offset + nbytes] += 1
            outs.append(data)
        assert np.array_equal(*outs), f"step {step}: {what} {offset} {nbytes}"
        assert np.array_equal(hosts[0].pool, hosts[1].pool), f"step {step}: {what} {offset} {nbytes}"
    assert [memory.stats for memory in hosts[0].ranks] == [memory.stats for memory in hosts[1].ranks]
    for memory in (ShadowMemory(hosts[0].cache), ShadowMemory(hosts[1].cache)):
        outs.append(np.zeros(CARD_BYTES, np.uint8))
        memory.read(0, 0, outs[-1])
    assert np.array_equal(*outs[-2:])


def test_a_store_flushed_at_once_is_seen_as_one_flushed_later() -> None:
    """Its line has its bytes only in the write-back, until that lands or the line is fetched from there again."""
    for looks in (False, True):
        for host in (Host(in_c=False, seed=None), Host(in_c=True, seed=None)):
            (rank, sibling), out = host.ranks, np.zeros(1, np.uint8)
            host.publish(0, 0, np.full(LINE_BYTES, 99, np.uint8))
            if looks:
                sibling.read(0, 0, out)
                assert out[0] == 99
            assert host.pool[0] == 0
            rank.fence()
            assert host.pool[0] == 99
            host.pool[0] = 7
            sibling.read(0, 0, out)
            assert out[0] == 7  # gone at the fence, also if it was fetched in between


def test_many_flushes_without_a_fence_are_all_fenced() -> None:
    for step in (1, 3):
        host = Host(in_c=True, seed=None)
        host.ranks[0].write(0, 0, np.full(CARD_BYTES, 99, np.uint8))
        lines = [*range(0, 5000, step), *range(0, 5000, 2 * step)]
        random.Random(step).shuffle(lines)
        for line in lines:
            host.ranks[0].flush(0, line * LINE_BYTES, 1)
        host.ranks[0].fence()
        assert (host.pool.reshape(-1, LINE_BYTES) == 99).all(axis=1).nonzero()[0].tolist() == sorted(set(lines))


def test_speed_is_told_of_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_BYTES", 1 << 16)
    fractions = speed.fractions_of_memcpy(1 << 16)
    assert all(fraction > 0 for fraction in fractions.values())
    assert {"write, flush", "write and flush in one", "invalidate, read"} < set(fractions)


@pytest.mark.parametrize("follows", [-1, 3])
def test_what_follows_a_write_is_one_of_three(follows: int) -> None:
    host = Host(in_c=True, seed=None)
    memory = host.ranks[0]
    assert isinstance(memory, NativeShadowMemory)
    with pytest.raises(ValueError, match="follows is 0, 1 or 2"):
        memory.shadow.write(0, 0, np.zeros(64, np.uint8), follows)
