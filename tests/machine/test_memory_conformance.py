"""What every memory gives to those who use the full chain. A new backend is here by its name.

Writer: stores, flush, fence, signal. Reader: poll, invalidate, load. Random programs keep to these rules; the
oracle knows nothing of caches, only who may write what and which bytes are published.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.errors import ArgumentError
from cxlemu.memory import BACKENDS, AdversaryRates, HostCache, MemorySpec, host_segment_bytes
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES, Bytes, HostMemory
from cxlemu.memory.shadow import ShadowMemory
from tests.helpers.tiers import PATIENT_S, examples

Opener = Callable[[Sequence[Bytes], Sequence[int]], Iterator[list[HostMemory]]]
ALWAYS = AdversaryRates(evict=1.0, prefetch=1.0, land=1.0)
OFTEN = AdversaryRates(evict=0.4, prefetch=0.3, land=0.4)


def threads(spec: MemorySpec) -> Opener:
    """One memory per rank of ``hosts``; the ranks of one host share a HostCache object."""

    def opener(cards: Sequence[Bytes], hosts: Sequence[int]) -> Iterator[list[HostMemory]]:
        caches = {host: HostCache.private(cards) for host in hosts}
        yield [spec.open(cards, host_cache=caches[h], host=h, rank=rank) for rank, h in enumerate(hosts)]

    return opener


def processes(spec: MemorySpec) -> Opener:
    """As processes do it: every rank has a HostCache object of its own on its host's segment."""

    def opener(cards: Sequence[Bytes], hosts: Sequence[int]) -> Iterator[list[HostMemory]]:
        nbytes = host_segment_bytes(len(cards), cards[0].nbytes)
        segments = {host: np.zeros(nbytes, np.uint8) for host in hosts}
        with ExitStack() as stack:
            lock_file = stack.enter_context(tempfile.NamedTemporaryFile())
            memories = []
            for rank, host in enumerate(hosts):
                cache = HostCache.shared(cards, segments[host], Path(lock_file.name))
                stack.callback(cache.close)
                memories.append(spec.open(cards, host_cache=cache, host=host, rank=rank))
            yield memories

    return opener


def in_c(opener: Opener) -> Opener:
    """The same memories in C: see ShadowMemory.native."""

    def opens(cards: Sequence[Bytes], hosts: Sequence[int]) -> Iterator[list[HostMemory]]:
        for memories in opener(cards, hosts):
            yield [memory.native for memory in memories if isinstance(memory, ShadowMemory)]

    return opens


MEMORIES: dict[str, Opener] = {
    **{name: threads(MemorySpec(name)) for name in BACKENDS if name != "emulated"},
    "never-evict": threads(MemorySpec()),
    "seed-1": threads(MemorySpec(seed=1)),
    "seed-2-often": threads(MemorySpec(seed=2, rates=OFTEN)),
    "seed-3-often": threads(MemorySpec(seed=3, rates=OFTEN)),
    "seed-4-always": threads(MemorySpec(seed=4, rates=ALWAYS)),
    "shared-never-evict": processes(MemorySpec()),
    "shared-seed-5-often": processes(MemorySpec(seed=5, rates=OFTEN)),
    "c-never-evict": in_c(threads(MemorySpec())),
    "c-seed-2-often": in_c(threads(MemorySpec(seed=2, rates=OFTEN))),
    "c-seed-4-always": in_c(threads(MemorySpec(seed=4, rates=ALWAYS))),
    "c-shared-never-evict": in_c(processes(MemorySpec())),
    "c-shared-seed-5-often": in_c(processes(MemorySpec(seed=5, rates=OFTEN))),
}
every_memory = pytest.mark.parametrize("opener", MEMORIES.values(), ids=MEMORIES.keys())

HOSTS = (0, 0, 1, 2)  # the host of each rank
CARDS, DATA_LINES = 2, 12
RANKS = range(len(HOSTS))
DATA_BYTES = DATA_LINES * LINE_BYTES


def bell_of(rank: int) -> int:
    """Offset of the doorbell line of each rank, on card 0 behind the data."""
    return DATA_BYTES + rank * LINE_BYTES


@contextmanager
def opened(opener: Opener, hosts: Sequence[int] = HOSTS) -> Iterator[list[HostMemory]]:
    cards = [np.zeros(DATA_BYTES + len(RANKS) * LINE_BYTES, np.uint8) for _ in range(CARDS)]
    yield from opener(cards, hosts)


# -- random programs against an oracle


class Range(NamedTuple):
    card: int
    offset: int
    nbytes: int

    def lines(self) -> list[tuple[int, int]]:
        if not self.nbytes:
            return []
        first, last = self.offset // LINE_BYTES, (self.offset + self.nbytes - 1) // LINE_BYTES
        return [(self.card, line) for line in range(first, last + 1)]


class Write(NamedTuple):
    rank: int
    where: Range
    value: int
    nt: bool


class Publish(NamedTuple):
    """Flush and fence what ``rank`` wrote; any rank of its host can do that for cached stores."""

    rank: int
    by: int
    keep: bool


class Retrieve(NamedTuple):
    rank: int
    where: Range
    invalidate: bool


class Signal(NamedTuple):
    rank: int
    payload: bytes


class Poll(NamedTuple):
    rank: int
    of: int


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    offset = draw(st.integers(0, DATA_BYTES))
    return Range(draw(st.integers(0, CARDS - 1)), offset, min(draw(st.integers(0, 200)), DATA_BYTES - offset))


ranks = st.sampled_from(RANKS)
steps = (
    st.builds(Write, ranks, ranges(), st.integers(1, 255), st.booleans())
    | st.builds(Publish, ranks, ranks, st.booleans())
    | st.builds(Retrieve, ranks, ranges(), st.booleans())
    | st.builds(Signal, ranks, st.binary(max_size=PAYLOAD_BYTES))
    | st.builds(Poll, ranks, ranks)
)


class Oracle:
    """Executes steps that keep the rules on real memories, skips the others, and checks every load.

    A line that a rank has written and not published is its own: ``owner`` says whose, and how it writes.
    """

    def __init__(self, memories: list[HostMemory]) -> None:
        self.memories = memories
        self.bytes = np.zeros((CARDS, DATA_BYTES), np.uint8)  # as the last writer of each byte left them
        self.owner: dict[tuple[int, int], tuple[int, bool]] = {}  # line -> (rank, nt)
        self.last_host: dict[tuple[int, int], int] = {}
        self.bells = [bytearray(LINE_BYTES) for _ in RANKS]

    def write(self, step: Write) -> None:
        claim = (step.rank, step.nt)
        memory, (card, offset, nbytes) = self.memories[step.rank], step.where
        if any(self.owner.get(line, claim) != claim for line in step.where.lines()):
            return
        for line in step.where.lines():
            if line not in self.owner:  # others may have written the rest of the line
                memory.invalidate(card, line[1] * LINE_BYTES, LINE_BYTES)
            self.owner[line] = claim
            self.last_host[line] = HOSTS[step.rank]
        data = (np.arange(nbytes) * 7 + step.value).astype(np.uint8)
        (memory.write_nt if step.nt else memory.write)(card, offset, data)
        self.bytes[card, offset : offset + nbytes] = data

    def publish(self, step: Publish) -> None:
        if HOSTS[step.by] != HOSTS[step.rank]:
            return
        own = {line: nt for line, (rank, nt) in self.owner.items() if rank == step.rank}
        for card, line in own:
            self.memories[step.by].flush(card, line * LINE_BYTES, LINE_BYTES, keep=step.keep)
        self.memories[step.by].fence()
        if any(own.values()):
            self.memories[step.rank].fence()
        for line in own:
            del self.owner[line]

    def retrieve(self, step: Retrieve) -> None:
        card, offset, nbytes = step.where
        out = np.full(nbytes, 0xEE, np.uint8)
        if step.invalidate:
            self.memories[step.rank].invalidate(*step.where)
        self.memories[step.rank].read(card, offset, out)
        for line in step.where.lines():
            if self.must_see(step, line):
                start = max(offset, line[1] * LINE_BYTES)
                end = min(offset + nbytes, (line[1] + 1) * LINE_BYTES)
                assert out[start - offset : end - offset].tobytes() == self.bytes[card, start:end].tobytes()

    def must_see(self, step: Retrieve, line: tuple[int, int]) -> bool:
        if line not in self.owner:  # published: whoever invalidates, and the host that wrote it
            return step.invalidate or self.last_host.get(line) == HOSTS[step.rank]
        rank, nt = self.owner[line]
        return rank == step.rank if nt else HOSTS[rank] == HOSTS[step.rank]

    def signal(self, step: Signal) -> None:
        bell = self.bells[step.rank]
        word = int.from_bytes(bell[:8], "little") + 1
        bell[: 8 + len(step.payload)] = word.to_bytes(8, "little") + step.payload
        self.memories[step.rank].signal(0, bell_of(step.rank), word, step.payload)

    def poll(self, step: Poll) -> None:
        word, payload = self.memories[step.rank].poll(0, bell_of(step.of))
        assert word.to_bytes(8, "little") + payload == self.bells[step.of]

    def run(self, step: NamedTuple) -> None:
        getattr(self, type(step).__name__.lower())(step)


@every_memory
@examples(100)
@given(program=st.lists(steps, min_size=10, max_size=60))
def test_random_programs_with_the_full_chain_read_what_was_published(opener: Opener, program: list[NamedTuple]) -> None:
    with opened(opener) as memories:
        oracle = Oracle(memories)
        for step in program:
            oracle.run(step)
        for rank in RANKS:
            oracle.publish(Publish(rank, rank, False))
        for rank in RANKS:
            for card in range(CARDS):
                oracle.retrieve(Retrieve(rank, Range(card, 0, DATA_BYTES), True))


# -- the same chain between threads that really run side by side


def wait(memory: HostMemory, offset: int, word: int) -> bytes:
    deadline = time.monotonic() + PATIENT_S
    while (line := memory.poll(0, offset)).word < word:
        assert time.monotonic() < deadline, f"doorbell {offset} stays {line.word}, expected {word}"
        time.sleep(0)
    return line.payload


def side_by_side(*bodies: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=guarded, args=(body,), daemon=True) for body in bodies]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


@every_memory
def test_a_ring_of_two_slots_carries_every_lap(opener: Opener) -> None:
    laps, slot_bytes = 25, 3 * LINE_BYTES + 17
    ready, done = bell_of(0), bell_of(1)

    def message(lap: int) -> Bytes:
        return np.random.default_rng(lap).integers(0, 256, slot_bytes, np.uint8)

    def slot(lap: int) -> int:
        return lap % 2 * 4 * LINE_BYTES + 5

    with opened(opener, hosts=(0, 1)) as (writer, reader):

        def write() -> None:
            for lap in range(1, laps + 1):
                wait(writer, done, lap - 2 if lap > 2 else 0)
                writer.write(1, slot(lap), message(lap))
                writer.flush(1, slot(lap), slot_bytes)
                writer.fence()
                writer.signal(0, ready, lap)

        def read() -> None:
            for lap in range(1, laps + 1):
                wait(reader, ready, lap)
                reader.invalidate(1, slot(lap), slot_bytes)
                out = np.empty(slot_bytes, np.uint8)
                reader.read(1, slot(lap), out)
                assert out.tobytes() == message(lap).tobytes(), f"lap {lap}"
                reader.signal(0, done, lap)

        side_by_side(write, read)


@every_memory
def test_who_sees_a_doorbells_word_finds_its_payload_or_a_newer_one(opener: Opener) -> None:
    last = 200
    with opened(opener, hosts=(0, 1)) as (writer, reader):

        def write() -> None:
            for word in range(1, last + 1):
                writer.signal(0, bell_of(0), word, np.full(7, word, "<u8").tobytes())

        def read() -> None:
            deadline = time.monotonic() + PATIENT_S
            word = 0
            while word < last:
                assert time.monotonic() < deadline
                now, payload = reader.poll(0, bell_of(0))
                assert word <= now <= np.frombuffer(payload, "<u8").min()
                word = now

        side_by_side(write, read)


# -- one sentence each


@every_memory
def test_strided_local_arrays_move_as_their_bytes_in_order(opener: Opener) -> None:
    local = np.arange(96, dtype=np.uint8).reshape(6, 16)
    with opened(opener) as (memory, *_):
        memory.write(0, 30, local[::2, 4:12])
        out = np.zeros((12, 4), np.uint8)
        memory.read(0, 30, out[1::2])
        assert out[1::2].tobytes() == local[::2, 4:12].tobytes()
        assert not out[::2].any()


@every_memory
def test_what_was_given_to_a_store_may_be_changed_afterwards(opener: Opener) -> None:
    with opened(opener) as (memory, *_):
        for store in (memory.write, memory.write_nt):
            data = np.full(100, 3, np.uint8)
            store(1, 0, data)
            data[:] = 9
            memory.fence()
            out = np.zeros(100, np.uint8)
            memory.read(1, 0, out)
            assert (out == 3).all()


@every_memory
def test_doorbell_words_are_unsigned_64_bit_numbers(opener: Opener) -> None:
    with opened(opener) as (memory, other, *_):
        for word in (0, 1, 2**63, 2**64 - 1):
            memory.signal(0, bell_of(0), word)
            assert other.poll(0, bell_of(0)) == (word, bytes(PAYLOAD_BYTES))


END = DATA_BYTES + len(RANKS) * LINE_BYTES
MISUSES: dict[str, Callable[[HostMemory], object]] = {
    "behind the end": lambda m: m.write(0, END - 3, np.zeros(4, np.uint8)),
    "before the start": lambda m: m.read(0, -1, np.zeros(1, np.uint8)),
    "no such card": lambda m: m.write_nt(CARDS, 0, np.zeros(1, np.uint8)),
    "card counted from the end": lambda m: m.flush(-1, 0, 64),
    "negative length": lambda m: m.invalidate(0, 64, -1),
    "not bytes": lambda m: m.write(0, 0, np.zeros(4, np.float32)),  # type: ignore[arg-type]
    "doorbell inside a line": lambda m: m.poll(0, 8),
    "doorbell behind the end": lambda m: m.signal(0, END, 1),
    "payload too long": lambda m: m.signal(0, 0, 1, bytes(PAYLOAD_BYTES + 1)),
    "word too large": lambda m: m.signal(0, 0, 2**64),
    "negative word": lambda m: m.signal(0, 0, -1),
}


@every_memory
@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES.keys())
def test_misuse_is_refused_and_changes_nothing(opener: Opener, misuse: Callable[[HostMemory], object]) -> None:
    with opened(opener) as (memory, *_):
        with pytest.raises(ArgumentError):
            misuse(memory)
        everything = np.ones(END, np.uint8)
        for card in range(CARDS):
            memory.read(card, 0, everything)
            assert not everything.any()
