"""The shadow cache, rule by rule: one host's ranks against the bytes of the pool."""

import fcntl
import mmap
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.errors import ArgumentError, DeadlineError
from cxlemu.memory import AdversaryRates, HostCache, MemorySpec, host_segment_bytes, lock
from cxlemu.memory.adversary import Action, Adversary, AdversaryStats, SplitMix64
from cxlemu.memory.native import NativeShadowMemory
from cxlemu.memory.protocol import LINE_BYTES, Bytes, HostMemory
from cxlemu.memory.shadow import ShadowMemory
from tests.helpers.tiers import examples

LINES = 8
CARD_BYTES = LINES * LINE_BYTES


@pytest.fixture
def pool() -> Bytes:
    return np.arange(CARD_BYTES, dtype=np.uint8) % 50


@pytest.fixture
def cache(pool: Bytes) -> HostCache:
    return HostCache.private([pool])


Memory = ShadowMemory | NativeShadowMemory


@pytest.fixture(
    params=[(ShadowMemory, ShadowMemory), (NativeShadowMemory, NativeShadowMemory), (ShadowMemory, NativeShadowMemory)],
    ids=["numpy", "c", "both"],
)
def both(request: pytest.FixtureRequest, cache: HostCache) -> tuple[Memory, Memory]:
    first, second = request.param
    return first(cache), second(cache)


@pytest.fixture
def rank(both: tuple[Memory, Memory]) -> Memory:
    return both[0]


@pytest.fixture
def sibling(both: tuple[Memory, Memory]) -> Memory:
    """Another rank of the same host."""
    return both[1]


def filled(value: int, nbytes: int = LINE_BYTES) -> Bytes:
    return np.full(nbytes, value, np.uint8)


def load(memory: HostMemory, offset: int = 0) -> int:
    out = np.zeros(1, np.uint8)
    memory.read(0, offset, out)
    return int(out[0])


def evict_all(cache: HostCache) -> None:
    cache.cards[0].evict(0, LINES, np.ones(LINES, np.bool_))


# -- store, load


def test_a_store_stays_in_the_cache(rank: Memory, pool: Bytes) -> None:
    before = pool.copy()
    rank.write(0, 10, filled(99, 200))
    assert load(rank, 10) == 99
    assert (pool == before).all()


def test_a_partial_store_fetches_the_rest_of_its_line_now(rank: Memory, pool: Bytes) -> None:
    before = pool.copy()
    rank.write(0, 70, filled(99, 130))  # lines 1 and 3 in part, line 2 whole
    pool[64:256] = 77  # too late
    rank.flush(0, 64, 192)
    rank.fence()
    expected = before
    expected[70:200] = 99
    assert pool.tobytes() == expected.tobytes()


def test_a_load_keeps_what_it_fetched_however_old(rank: Memory, pool: Bytes) -> None:
    old = load(rank)
    pool[:] = 99
    assert load(rank) == old
    assert load(rank, LINE_BYTES) == 99  # a line that was absent


def test_ranks_of_one_host_share_their_cache(rank: Memory, sibling: Memory) -> None:
    rank.write(0, 0, filled(99))
    assert load(sibling) == 99


# -- flush, fence


def test_a_flush_fixes_the_bytes_and_the_fence_lands_them(rank: Memory, pool: Bytes) -> None:
    rank.write(0, 0, filled(98))
    rank.flush(0, 0, 1)
    rank.write(0, 0, filled(99))
    assert pool[0] == 0
    rank.fence()
    assert pool[0] == 98
    assert load(rank) == 99  # dirty again: the fence does not drop it


def test_of_one_lines_write_backs_only_the_last_is_pending(rank: Memory, pool: Bytes) -> None:
    for value in (98, 99):
        rank.write(0, 0, filled(value))
        rank.flush(0, 0, 1)
    assert pool[0] == 98
    rank.fence()
    assert pool[0] == 99


def test_a_flushed_line_is_gone_at_the_fence_and_not_before(rank: Memory, pool: Bytes) -> None:
    old = load(rank)
    rank.flush(0, 0, 1)
    pool[:] = 99
    assert load(rank) == old
    rank.fence()
    assert load(rank) == 99


def test_a_line_that_left_and_came_back_before_the_fence_stays(rank: Memory, sibling: Memory, pool: Bytes) -> None:
    """A prefetch between flush and fence: the flush is not what the next load can rely on."""
    old = load(rank)
    rank.flush(0, 0, 1)
    sibling.invalidate(0, 0, 1)
    assert load(rank) == old
    pool[:] = 99
    rank.fence()
    assert load(rank) == old


def test_flush_keep_writes_back_and_keeps_the_line(rank: Memory, pool: Bytes, cache: HostCache) -> None:
    rank.write(0, 0, filled(98))
    rank.flush(0, 0, 1, keep=True)
    rank.fence()
    assert pool[0] == 98
    pool[:] = 99
    assert load(rank) == 98
    evict_all(cache)  # clean: dropped, not written back
    assert pool[0] == load(rank) == 99


def test_a_fence_lands_only_lines_that_its_own_rank_flushed(rank: Memory, sibling: Memory, pool: Bytes) -> None:
    rank.write(0, 0, filled(98))
    rank.flush(0, 0, 1)
    sibling.fence()
    assert pool[0] == 0
    sibling.flush(0, 0, 1)  # finds the other rank's write-back pending
    sibling.fence()
    assert pool[0] == 98


def test_a_fence_begins_anew(rank: Memory, sibling: Memory, pool: Bytes) -> None:
    rank.flush(0, 0, 1)
    rank.fence()
    sibling.write(0, 0, filled(98))
    sibling.flush(0, 0, 1)
    rank.fence()
    assert pool[0] == 0


def test_a_host_fetches_its_own_pending_write_back(rank: Memory, pool: Bytes, cache: HostCache) -> None:
    rank.write(0, 0, filled(98))
    rank.flush(0, 0, 1)
    evict_all(cache)
    whole = filled(0)
    rank.read(0, 0, whole)
    assert (whole == 98).all() and load(rank) == 98
    assert pool[0] == 0


def test_a_dirty_line_is_not_evicted_past_its_pending_write_back(rank: Memory, pool: Bytes, cache: HostCache) -> None:
    for value in (97, 98):
        rank.write(0, 0, filled(value))
        rank.flush(0, 0, 1, keep=True)  # 97 lands, 98 is pending
    rank.write(0, 0, filled(99))
    evict_all(cache)
    assert (pool[0], load(rank)) == (97, 99)
    rank.fence()
    evict_all(cache)
    assert pool[0] == 99


# -- invalidate


def test_invalidate_writes_a_dirty_line_back_and_drops_it(rank: Memory, pool: Bytes) -> None:
    rank.write(0, 0, filled(98, 2 * LINE_BYTES))
    rank.invalidate(0, 3, 1)
    assert (pool[0], pool[LINE_BYTES]) == (98, 14)
    pool[:] = 99
    assert (load(rank), load(rank, LINE_BYTES)) == (99, 98)


def test_invalidate_lands_no_other_line(rank: Memory, pool: Bytes) -> None:
    rank.write(0, 0, filled(98, 2 * LINE_BYTES))
    rank.flush(0, 0, 2 * LINE_BYTES)
    rank.invalidate(0, 0, 1)
    assert (pool[0], pool[LINE_BYTES]) == (98, 14)


# -- non-temporal stores


def test_a_non_temporal_store_is_its_ranks_own_until_the_fence(rank: Memory, sibling: Memory, pool: Bytes) -> None:
    before = pool.copy()
    rank.write_nt(0, 60, filled(98, 10))
    assert (load(rank, 60), load(sibling, 60)) == (98, 10)
    sibling.fence()
    assert (pool == before).all()
    rank.fence()
    before[60:70] = 98
    assert pool.tobytes() == before.tobytes()
    assert load(sibling, 60) == 98  # the line has left the cache


def test_a_fence_lands_a_non_temporal_store_once(rank: Memory, pool: Bytes) -> None:
    rank.write_nt(0, 0, filled(98))
    rank.fence()
    pool[0] = 99
    rank.fence()
    assert pool[0] == 99


def test_a_non_temporal_store_is_of_one_card() -> None:
    for kind in (ShadowMemory, NativeShadowMemory):
        memory = kind(HostCache.private([filled(1), filled(2)]))
        memory.write_nt(1, 0, filled(98))
        assert load(memory) == 1


def test_later_non_temporal_stores_win(rank: Memory, pool: Bytes) -> None:
    rank.write_nt(0, 0, filled(97, 100))
    rank.write_nt(0, 50, filled(98, 100))
    assert [load(rank, offset) for offset in (49, 50, 149, 150)] == [97, 98, 98, 0]
    rank.fence()
    assert pool[[49, 50, 149, 150]].tolist() == [97, 98, 98, 0]


def test_a_cached_store_waits_for_its_ranks_own_non_temporal_stores(rank: Memory, pool: Bytes) -> None:
    rank.write_nt(0, 0, filled(98, CARD_BYTES))
    rank.write(0, 3 * LINE_BYTES, filled(99, 1))
    landed = [line for line in range(LINES) if pool[line * LINE_BYTES + 1] == 98]
    assert landed == [3]
    assert (load(rank, 3 * LINE_BYTES), load(rank, 3 * LINE_BYTES + 1)) == (99, 98)
    rank.fence()
    assert (pool == 98).all()  # 99 is still in the cache


def test_a_dirty_line_goes_before_a_non_temporal_store_to_it(rank: Memory, pool: Bytes) -> None:
    rank.write(0, 0, filled(97))
    rank.write_nt(0, 8, filled(98, 8))
    rank.fence()
    assert (pool[0], pool[8], pool[16]) == (97, 98, 97)


# -- doorbells


def test_a_signal_pushes_its_line_and_nothing_else(rank: Memory, pool: Bytes) -> None:
    rank.write(0, 0, filled(98))
    rank.flush(0, 0, 1)
    rank.signal(0, 64, 0x0102, b"ab")
    assert pool[64:76].tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 97, 98, 74 % 50, 75 % 50]
    assert pool[0] == 0


def test_a_signal_comes_after_what_its_host_wrote_to_the_line_before(rank: Memory, pool: Bytes) -> None:
    rank.write(0, 64, filled(98))
    rank.flush(0, 64, 1)
    rank.signal(0, 64, 7)
    rank.fence()
    assert (pool[64], pool[72]) == (7, 98)


def test_polling_writes_a_dirty_line_back_as_invalidate_does(rank: Memory, pool: Bytes) -> None:
    rank.write(0, 64, filled(98))
    assert rank.poll(0, 64).payload == bytes([98]) * 56
    assert pool[64] == 98


def test_a_polled_line_is_in_the_cache(rank: Memory, pool: Bytes) -> None:
    old = rank.poll(0, 64).word & 0xFF
    pool[64] = 99
    assert load(rank, 64) == old


def test_polling_sees_the_pool_and_never_disturbs(pool: Bytes, cache: HostCache) -> None:
    always = AdversaryRates(1.0, 1.0, 1.0)
    definition = MemorySpec(seed=1, rates=always).open([pool], host_cache=cache, host=0, rank=0)
    assert isinstance(definition, ShadowMemory)
    for memory in (definition, definition.native):
        for value in range(5):
            pool[64] = value
            assert memory.poll(0, 64).word & 0xFF == value
        assert memory.stats == AdversaryStats()


# -- crash


def test_a_crash_loses_the_cache_and_each_pending_line_by_chance() -> None:
    fates = set()
    for seed in range(20):
        pool = np.zeros(CARD_BYTES, np.uint8)
        cache = HostCache.private([pool])
        memory = ShadowMemory(cache)
        memory.write(0, 0, filled(98, 3 * LINE_BYTES))
        memory.flush(0, 0, 2 * LINE_BYTES)
        cache.crash(np.random.default_rng(seed))
        fates.add((int(pool[0]), int(pool[LINE_BYTES])))
        assert pool[2 * LINE_BYTES] == 0
        assert load(ShadowMemory(cache), 0) == pool[0]
    assert fates == {(0, 0), (0, 98), (98, 0), (98, 98)}


# -- adversary

small_ranges = st.tuples(st.integers(0, CARD_BYTES - 100), st.integers(1, 100))


@examples(30)
@given(seed=st.integers(0, 2**64), touched=st.lists(small_ranges, min_size=1, max_size=20))
def test_moves_stay_on_the_card_and_repeat_with_the_seed(seed: int, touched: list[tuple[int, int]]) -> None:
    def moves(rank: int) -> list[tuple[Action, int, int, bytes]]:
        rates = AdversaryRates(0.5, 0.5, 0.5)
        adversary = Adversary(seed, rates, host=1, rank=rank, card_lines=LINES)
        chosen = []
        for offset, nbytes in touched:
            adversary.touched(0, offset // LINE_BYTES, -(-(offset + nbytes) // LINE_BYTES))
            chosen += adversary.moves()
        assert all(0 <= move.first <= move.first + move.among.size <= LINES for move in chosen)
        return [(move.action, move.card, move.first, move.among.tobytes()) for move in chosen]

    assert moves(rank=3) == moves(rank=3)


def run_some_operations(
    seed: int | None, rates: AdversaryRates, polls: int = 0, *, in_c: bool = False
) -> tuple[bytes, AdversaryStats]:
    pool = np.zeros(64 * LINE_BYTES, np.uint8)
    definition = MemorySpec(seed=seed, rates=rates).open([pool], host_cache=HostCache.private([pool]), host=0, rank=0)
    assert isinstance(definition, ShadowMemory)
    memory = definition.native if in_c else definition
    for step in range(40):
        memory.write(0, step * 37, filled(step + 1, 150))
        for _ in range(polls):
            memory.poll(0, 63 * LINE_BYTES)
        memory.flush(0, step * 31, 100)
        memory.write_nt(0, 40 * LINE_BYTES + step * 20, filled(step + 1, 150))
        load(memory, step * 17)
    return pool.tobytes(), memory.stats


HALF = AdversaryRates(0.5, 0.5, 0.5)


@pytest.mark.parametrize("seed", [0, 1, 7, 2**64 - 1, 2**64, 2**200])
def test_c_makes_the_same_moves(seed: int) -> None:
    for rates in (HALF, AdversaryRates(1, 1, 1), AdversaryRates(), AdversaryRates(0, 0, 0.9)):
        assert run_some_operations(seed, rates, in_c=True) == run_some_operations(seed, rates)


def test_seeds_hosts_and_ranks_each_have_numbers_of_their_own() -> None:
    keys = [(seed, host, rank) for seed in (0, 1, 2**64, 2**64 + 1) for host in (0, 1) for rank in (0, 1)]
    assert len({SplitMix64(*key).bits() for key in keys}) == len(keys)


def test_random_numbers_are_those_of_the_paper() -> None:
    """The first five for the seed 1234567, as the authors' C gives them."""
    numbers = SplitMix64()
    numbers.state = 1234567
    assert [numbers.bits() for _ in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_the_same_seed_gives_the_same_run_however_often_it_polls() -> None:
    assert run_some_operations(7, HALF) == run_some_operations(7, HALF, polls=3)
    assert run_some_operations(7, HALF) != run_some_operations(8, HALF)


@pytest.mark.parametrize("only", ["evict", "prefetch", "land"])
def test_a_rate_of_zero_is_never(only: str) -> None:
    none = {"evict": 0.0, "prefetch": 0.0, "land": 0.0}
    stats = run_some_operations(7, AdversaryRates(**{**none, only: 0.5}))[1]
    acted = {"evict": stats.evictions, "prefetch": stats.prefetches, "land": stats.landings}
    assert [name for name, lines in acted.items() if lines] == [only]
    assert run_some_operations(7, AdversaryRates(**none)) == run_some_operations(None, HALF)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), "often"])
def test_a_rate_is_a_probability(rate: Any) -> None:
    with pytest.raises(ArgumentError, match="adversary rate land must be from 0 to 1"):
        AdversaryRates(land=rate)


# -- one host, several processes


@pytest.fixture
def segment_file(tmp_path: Path) -> Path:
    path = tmp_path / "host0"
    path.write_bytes(bytes(host_segment_bytes(1, CARD_BYTES)))
    return path


def mapped(path: Path) -> Bytes:
    with path.open("r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)


def shared_cache(pool: Bytes, path: Path) -> HostCache:
    return HostCache.shared([pool], mapped(path), path)


def store_many(pool_file: Path, segment_file: Path, word: int) -> None:
    memory = ShadowMemory(shared_cache(mapped(pool_file), segment_file))
    for count in range(1, 301):
        memory.write(0, word * 8, np.array([count], "<u8").view(np.uint8))
        memory.flush(0, 0, 8)
        memory.fence()


def test_processes_of_one_host_lose_no_store_in_a_shared_line(tmp_path: Path, segment_file: Path) -> None:
    pool_file = tmp_path / "card0"
    pool_file.write_bytes(bytes(CARD_BYTES))
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=store_many, args=(pool_file, segment_file, word)) for word in range(3)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    assert [process.exitcode for process in ranks] == [0, 0, 0]
    assert mapped(pool_file)[:24].view("<u8").tolist() == [300, 300, 300]


def lock_and_die(path: Path) -> None:
    cache = shared_cache(np.zeros(CARD_BYTES, np.uint8), path)
    cache.lock.__enter__()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_leaves_the_lock_free(pool: Bytes, segment_file: Path) -> None:
    for _ in range(2):  # also when the one who got it from a killed process is killed
        process = multiprocessing.get_context("spawn").Process(target=lock_and_die, args=(segment_file,))
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    cache = shared_cache(pool, segment_file)
    for memory in (ShadowMemory(cache), NativeShadowMemory(cache)):
        assert load(memory) == pool[0]


@contextmanager
def held_elsewhere(cache: HostCache) -> Iterator[None]:
    """The lock, by a thread that neither is this one nor ends before the block does."""
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.lock:
            taken.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(60)
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_lock_that_is_never_released_is_an_error(
    pool: Bytes, segment_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "DEADLINE_S", 0.05)
    cache, other = shared_cache(pool, segment_file), shared_cache(pool, segment_file)
    with held_elsewhere(other):
        for memory in (ShadowMemory(cache), NativeShadowMemory(cache)):
            for _ in range(2):
                with pytest.raises(DeadlineError, match=r"another rank of this host has held its cache for more"):
                    load(memory)
    assert load(memory) == pool[0]


def test_a_cache_that_is_never_made_is_an_error(
    pool: Bytes, segment_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "DEADLINE_S", 0.05)
    with segment_file.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DeadlineError, match=r"host0 has been locked for more than 0\.05 s"):
            shared_cache(pool, segment_file)


def test_whoever_was_interrupted_as_a_holder_can_go_on(cache: HostCache) -> None:
    """Ctrl-C between the acquisition and the block leaves the lock taken: the next operation lets go of it."""
    for memory in (ShadowMemory(cache), NativeShadowMemory(cache)):
        cache.lock.__enter__()
        load(memory)
        with ThreadPoolExecutor(1) as another:
            assert another.submit(cache.lock.native.acquire, 0).result()
            another.submit(cache.lock.native.release).result()


def test_processes_of_a_host_see_one_cache(pool: Bytes, segment_file: Path) -> None:
    one, other = (ShadowMemory(shared_cache(pool, segment_file)) for _ in range(2))
    one.write(0, 0, filled(98))
    one.flush(0, 0, 1, keep=True)
    one.write(0, LINE_BYTES, filled(99))
    assert (load(other), load(other, LINE_BYTES)) == (98, 99)
    other.flush(0, 0, 1)
    other.fence()
    assert (pool[0], pool[LINE_BYTES]) == (98, 14)


# -- specification


def test_a_specification_says_what_it_is_and_travels() -> None:
    spec = MemorySpec(seed=7, rates=AdversaryRates(evict=0.05, prefetch=0.1, land=0.2))
    assert spec.describe() == "non-coherent, adversary seed 7 (evict 0.05, prefetch 0.1, land 0.2)"
    assert MemorySpec("shm").describe() == "coherent shared memory"
    assert MemorySpec().describe() == "non-coherent, worst case (nothing leaves a cache by itself)"
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize("wrong", [{"kind": "hardware"}, {"seed": -1}, {"kind": "shm", "seed": 1}])
def test_a_wrong_specification_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        MemorySpec(**wrong)


def test_a_shadow_memory_needs_a_cache(pool: Bytes) -> None:
    with pytest.raises(ArgumentError, match="needs the cache of its host"):
        MemorySpec().open([pool], host_cache=None, host=0, rank=0)


def bad_cards() -> dict[str, list[Bytes]]:
    whole = np.zeros(4 * LINE_BYTES, np.uint8)
    read_only = whole.copy()
    read_only.flags.writeable = False
    return {
        "none": [],
        "two sizes": [whole, whole[:LINE_BYTES]],
        "empty": [whole[:0]],
        "not whole lines": [whole[:100]],
        "not contiguous": [whole[::2]],
        "not aligned": [whole[4 : 4 + LINE_BYTES]],
        "not bytes": [np.zeros(64, np.float32)],  # type: ignore[list-item]
        "read-only": [read_only],
    }


@pytest.mark.parametrize("cards", bad_cards().values(), ids=bad_cards().keys())
def test_wrong_cards_are_refused(cards: list[Bytes]) -> None:
    for open_cards in (HostCache.private, lambda c: MemorySpec("shm").open(c, host_cache=None, host=0, rank=0)):
        with pytest.raises(ArgumentError):
            open_cards(cards)


def test_a_segment_too_small_is_refused(pool: Bytes, segment_file: Path) -> None:
    with pytest.raises(ArgumentError, match=r"needs 4096 bytes, but its segment has 4095"):
        HostCache.shared([pool], mapped(segment_file)[:4095], segment_file)
