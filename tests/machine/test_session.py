"""The handshake, barrier and status lines, on every kind of memory, beside residue, damage and impostors."""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.errors import ArgumentError, MismatchError, PeerLostError
from cxlemu.memory import AdversaryRates, HostCache, MemorySpec
from cxlemu.memory.protocol import LINE_BYTES, Bytes, DoorbellLine, HostMemory
from cxlemu.pool import session_area as session_area_module
from cxlemu.pool.session import Session
from cxlemu.pool.session_area import (
    Admission,
    Answer,
    Checkin,
    Line,
    RankState,
    Record,
    SessionArea,
    Status,
    decode,
    encode,
    line_index,
)
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S, examples

OFFSET = 4096
MAX_RANKS = 8
AREA_BYTES = LINE_BYTES * (1 + 3 * MAX_RANKS)
SHORT_S = 0.2  # for what must fail

MEMORIES = {
    "shm": MemorySpec("shm"),
    "dax": MemorySpec("dax"),
    "never-evict": MemorySpec(),
    "adversary": MemorySpec(seed=7),
    "adversary-always": MemorySpec(seed=8, rates=AdversaryRates(evict=1.0, prefetch=1.0, land=1.0)),
}


def new_card() -> Bytes:
    return np.zeros(OFFSET + 4096, dtype=np.uint8)


def hosts_of(card: Bytes, hosts: Sequence[int], spec: MemorySpec = MEMORIES["shm"]) -> list[HostMemory]:
    """A memory per rank; ranks on the same host share its cache."""
    caches = {host: HostCache.private([card]) for host in set(hosts)}
    return [spec.open([card], host_cache=caches[h], host=h, rank=rank) for rank, h in enumerate(hosts)]


def enter(memory: HostMemory, rank: int, ranks: int, deadline_s: float = PATIENT_S, **options: Any) -> Session:
    usual = {"session_offset": OFFSET, "max_ranks": MAX_RANKS, "fingerprint": b"same"}
    return Session.open(memory, rank=rank, ranks=ranks, deadline_s=deadline_s, **(usual | options))


def all_at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What each call returned or raised."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(outcome, calls))


def meet(memories: Sequence[HostMemory], deadline_s: float = PATIENT_S) -> list[Session]:
    ranks = len(memories)
    met = all_at_once(*(lambda r=r, m=m: enter(m, r, ranks, deadline_s) for r, m in enumerate(memories)))
    assert all(isinstance(session, Session) for session in met), met
    return met


def put(card: Bytes, line: Line, rank: int) -> None:
    SessionArea(hosts_of(card, [0])[0], OFFSET).store(line, rank)


# -- meeting


@pytest.mark.parametrize("spec", MEMORIES.values(), ids=MEMORIES)
@pytest.mark.parametrize("hosts", [[0], [0, 1], [0, 1, 2], [0, 0, 1, 1]], ids=str)
def test_ranks_meet_and_pass_barriers(spec: MemorySpec, hosts: list[int]) -> None:
    sessions = meet(hosts_of(new_card(), hosts, spec))
    assert len({session.id for session in sessions}) == 1

    entered = [0] * len(hosts)

    def rank_program(session: Session) -> list[int]:
        behind = []
        for lap in range(1, 4):
            entered[session.rank] = lap
            session.barrier(PATIENT_S)
            behind += [rank for rank, laps in enumerate(entered) if laps < lap]
        return behind

    assert all_at_once(*(lambda s=s: rank_program(s) for s in sessions)) == [[] for _ in hosts]


def test_sessions_are_never_the_same_twice() -> None:
    card = new_card()
    ids = [meet(hosts_of(card, [0, 1]))[0].id for _ in range(5)]
    assert len(set(ids)) == 5


@with_rows(
    ({"rank": 0, "ranks": MAX_RANKS + 1}, "9 ranks do not fit"),
    ({"rank": 0, "ranks": 0}, "0 ranks do not fit"),
    ({"rank": 3, "ranks": 3}, "rank 3 is not one of the ranks 0 to 2"),
    ({"rank": -1, "ranks": 3}, "rank -1 is not"),
    ({"rank": 0, "ranks": 1, "fingerprint": bytes(17)}, "at most 16 bytes, not 17"),
)
def test_impossible_ranks_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        enter(hosts_of(new_card(), [0])[0], **options)


# -- who is missing


def until_there(card: Bytes, kind: type[Record] | type[Checkin], rank: int) -> Callable[[int], None]:
    """A wait that goes on when the line is there: tests do not depend on which thread runs first."""
    area = SessionArea(hosts_of(card, [0])[0], OFFSET)

    def wait(attempt: int) -> None:
        end = time.monotonic() + PATIENT_S
        while area.load(kind, rank) is None and time.monotonic() < end:
            time.sleep(0.001)

    return wait


def test_a_missing_rank_is_named_on_every_side() -> None:
    card = new_card()
    first, second = hosts_of(card, [0, 1])
    errors = all_at_once(
        lambda: enter(first, 0, 4, SHORT_S, wait=until_there(card, Checkin, 1)),
        lambda: enter(second, 1, 4, 3600.0),  # rank 0 tells it, whatever its own deadline
    )
    assert [getattr(error, "ranks", error) for error in errors] == [(2, 3), (2, 3)]
    assert "ranks 2, 3 not there" in str(errors[0])


def test_a_rank_with_less_patience_than_a_living_rank_0_names_the_others() -> None:
    card = new_card()
    put(card, Record(5, 4, 1, 0, b"same".ljust(16, b"\0")), 0)

    def rank_0_lives(attempt: int) -> None:
        put(card, Status(5, attempt, 0, 0, 0, RankState.RUNNING, b""), 0)

    with pytest.raises(PeerLostError) as caught:
        enter(hosts_of(card, [0])[0], 1, 4, SHORT_S, wait=rank_0_lives)
    assert caught.value.ranks == (2, 3)


def test_a_missing_rank_0_is_named() -> None:
    with pytest.raises(PeerLostError, match="rank 0 published no session") as caught:
        enter(hosts_of(new_card(), [0])[0], 1, 3, SHORT_S)
    assert caught.value.ranks == (0,)


# -- residue of crashed runs


@pytest.mark.parametrize("spec", MEMORIES.values(), ids=MEMORIES)
def test_residue_is_answered_but_never_accepted(spec: MemorySpec) -> None:
    card = new_card()
    meet(hosts_of(card, [0, 1, 2]))  # and they all crash: record, check-ins, answers and statuses stay
    with pytest.raises(PeerLostError) as caught:
        enter(hosts_of(card, [0], spec)[0], 1, 3, SHORT_S)
    assert caught.value.ranks == (0,)


def test_check_ins_of_a_crashed_run_do_not_stand_in_for_missing_ranks() -> None:
    card = new_card()
    meet(hosts_of(card, [0, 1, 2]))
    with pytest.raises(PeerLostError) as caught:
        enter(hosts_of(card, [0])[0], 0, 3, SHORT_S)
    assert caught.value.ranks == (1, 2)


def test_a_rank_that_answered_residue_answers_again_when_the_living_rank_0_comes() -> None:
    card = new_card()
    stale = meet(hosts_of(card, [0, 1]))[0].id
    memories = hosts_of(card, [0, 1])
    with ThreadPoolExecutor(1) as threads:
        started = []

        def rank_0_comes_late(attempt: int) -> None:
            if attempt == 5:
                started.append(threads.submit(enter, memories[0], 0, 2))

        late = enter(memories[1], 1, 2, wait=rank_0_comes_late)
        assert late.id == started[0].result().id != stale


# -- who is different


def test_an_answer_that_blames_a_rank_of_no_world_is_none() -> None:
    card = new_card()
    _, session = meet(hosts_of(card, [0, 1]))
    answer = session.my_answer()
    assert answer is not None
    for blamed in (MAX_RANKS - 1, 2, 1):
        put(card, answer._replace(admission=Admission.MISSING, culprit=blamed), 1)
        assert (session.my_answer() is None) == (blamed > 1)


def test_rank_0_finds_a_second_process_of_a_peer_in_a_barrier() -> None:
    card = new_card()
    session, peer = meet(hosts_of(card, [0, 1]))
    checkin = peer.checkin(1)
    put(card, checkin._replace(nonce=checkin.nonce ^ 1, counter=1, pid=99), 1)
    with pytest.raises(MismatchError, match="two processes run as rank 1, one of them is pid 99"):
        session.barrier(SHORT_S)


def test_a_sealed_line_whose_numbers_cannot_be_is_none() -> None:
    status = Status(1, 1, 1, 1, 1, RankState.DONE, b"\x1b[2J ok")
    for line, whole in ((status, True), (status._replace(state=77), False), (status._replace(call=2**63), False)):
        found = decode(Status, 6, *encode(line, 6))
        assert (found == line.__class__(*line[:-1], line.text_utf8.ljust(24, b"\0"))) if whole else found is None
    assert status.text == "\N{REPLACEMENT CHARACTER}[2J ok"  # no terminal clears its screen


def test_another_fingerprint_is_refused_on_both_sides() -> None:
    memories = hosts_of(new_card(), [0, 1])
    errors = all_at_once(lambda: enter(memories[0], 0, 2), lambda: enter(memories[1], 1, 2, fingerprint=b"other"))
    assert [type(error) for error in errors] == [MismatchError, MismatchError]
    assert "rank 1 was started with another topology, memory or version than rank 0" in str(errors[0])
    assert "rank 0 was started with another topology, memory or version than rank 1" in str(errors[1])


def test_another_number_of_ranks_is_refused_on_both_sides() -> None:
    memories = hosts_of(new_card(), [0, 1])
    errors = all_at_once(lambda: enter(memories[0], 0, 2), lambda: enter(memories[1], 1, 3))
    assert [type(error) for error in errors] == [MismatchError, MismatchError]
    assert str(errors[0]) == "rank 1 was started with 3 ranks, but rank 0 with 2"
    assert str(errors[1]) == "rank 0 was started with 2 ranks, but rank 1 with 3"


@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes_of_one_rank_are_detected_in_the_handshake(rank: int) -> None:
    card = new_card()
    put(card, Record(5, 3, 1, 0, b"same".ljust(16, b"\0")), 0)
    claimed = threading.Barrier(2)

    def wait(attempt: int) -> None:
        if attempt == 0:
            claimed.wait(PATIENT_S)

    errors = all_at_once(*(lambda m=m: enter(m, rank, 3, SHORT_S, wait=wait) for m in hosts_of(card, [0, 1])))
    assert [e for e in errors if f"two processes run as rank {rank}" in str(e)], errors
    assert not [e for e in errors if isinstance(e, Session)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_process_of_a_rank_is_detected_in_the_next_barrier(rank: int) -> None:
    memories = hosts_of(new_card(), [0, 1, 2])
    sessions = meet(memories[:2])
    with pytest.raises((PeerLostError, MismatchError)):
        enter(memories[2], rank, 2, SHORT_S)
    with pytest.raises(MismatchError, match=f"two processes run as rank {rank}"):
        sessions[rank].barrier(SHORT_S)


# -- barriers that cannot complete


def enter_barrier(session: Session) -> None:
    """Its first half: what `barrier` does before it waits."""
    session._counter += 1
    if session.rank == 0:
        session.answer_all(Admission.ACCEPTED)
    else:
        session.check_in()


def test_a_barrier_names_who_did_not_enter() -> None:
    sessions = meet(hosts_of(new_card(), [0, 1, 2]))
    enter_barrier(sessions[1])
    with pytest.raises(PeerLostError, match="rank 2 not in barrier 1") as caught:
        sessions[0].barrier(SHORT_S)
    assert caught.value.ranks == (2,)
    with pytest.raises(PeerLostError, match="rank 0 did not complete barrier 1"):
        sessions[2].barrier(SHORT_S)


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_barrier_does_not_wait_for_who_left(leaver: int) -> None:
    sessions = meet(hosts_of(new_card(), [0, 1]))
    sessions[leaver].leave(failed=True)
    with pytest.raises(PeerLostError, match="gone before barrier 1") as caught:
        sessions[1 - leaver].barrier(3600.0)
    assert leaver in caught.value.ranks


class Interrupted:
    """Memory in which something happens right after a line was polled for the first time."""

    def __init__(self, memory: HostMemory) -> None:
        self.memory = memory
        self.happening: dict[int, Callable[[], None]] = {}  # by offset

    def poll(self, card: int, offset: int) -> DoorbellLine:
        line = self.memory.poll(card, offset)
        self.happening.pop(offset, lambda: None)()
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)


@pytest.mark.parametrize("leaver", [0, 1])
def test_who_leaves_right_after_a_barrier_was_in_it(leaver: int) -> None:
    """It enters and leaves between the moments at which the other looks at its line and at its status."""
    memories = [Interrupted(memory) for memory in hosts_of(new_card(), [0, 1])]
    sessions = meet(memories)  # type: ignore[arg-type]

    def enter_and_leave() -> None:
        enter_barrier(sessions[leaver])
        sessions[leaver].leave()

    line = line_index(Answer if leaver == 0 else Checkin, 1)
    memories[1 - leaver].happening[OFFSET + line * LINE_BYTES] = enter_and_leave
    sessions[1 - leaver].barrier(PATIENT_S)


# -- status


def test_a_status_says_what_a_rank_does() -> None:
    first, second = meet(hosts_of(new_card(), [0, 1]))
    first.report(comm=3, call=2**40, tag=65535, text="all_reduce")
    seen = second.peek(0)
    assert (seen.comm, seen.call, seen.tag, seen.text, seen.state) == (3, 2**40, 65535, "all_reduce", RankState.RUNNING)
    first.leave()
    assert second.departed([0, 1]) == {0: RankState.DONE}


def test_a_long_text_is_cut_between_characters() -> None:
    first, second = meet(hosts_of(new_card(), [0, 1]))
    first.report(0, 0, 0, "x" + "ä" * 30)
    seen = second.peek(0)
    assert seen.text == "x" + "ä" * 11  # 23 bytes: a twelfth would need two more


def test_a_status_of_another_session_is_no_status() -> None:
    card = new_card()
    old = meet(hosts_of(card, [0, 1, 2]))
    put(card, Status(old[0].id, 5, 0, 0, 0, RankState.FAILED, b""), 1)
    assert old[0].departed([1]) == {1: RankState.FAILED}
    new = enter(hosts_of(card, [0])[0], 0, 1)
    assert new.peek(1) is None
    assert new.departed([1, 2]) == {}


def test_silence_is_judged_by_the_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = meet(hosts_of(new_card(), [0, 1, 2, 3]))
    watcher, beating, quiet, leaving = sessions
    now = itertools.count()
    monkeypatch.setattr(session_area_module.time, "monotonic", lambda: float(next(now)) * 0.01)
    assert watcher.silent([1, 2, 3], 1.0) == ()  # the clock starts with the first look
    leaving.leave()
    for _ in range(200):
        beating.beat()
        silent = watcher.silent([1, 2, 3], 1.0)
    assert silent == (2,)
    quiet.beat()
    assert watcher.silent([1, 2, 3], 1.0) == ()


class _Pulse:
    """The signs of life of ranks whose pulse shows one number, and no more."""

    def watched(self, rank: int) -> bool:
        return False

    def ended(self, ranks: Iterable[int]) -> dict[int, int]:
        return {}

    def pulse(self, rank: int) -> int:
        return 7

    def stop(self) -> None: ...


def test_a_rank_that_was_stopped_itself_takes_none_for_lost_until_it_has_looked_for_long_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a virtual machine that pauses: all its ranks stop, and the one that goes on first sees no pulse beat."""
    watcher, _ = meet(hosts_of(new_card(), [0, 1]))
    watcher.life = _Pulse()
    now_s = 0.0
    monkeypatch.setattr(session_area_module.time, "monotonic", lambda: now_s)

    def lost(every_s: float, looks: int) -> list[tuple[int, ...]]:
        nonlocal now_s
        found = []
        for _ in range(looks):
            now_s += every_s
            found.append(watcher.stopped_beating([1], 2.0))
        return found

    assert lost(every_s=0.25, looks=8) == [()] * 8  # 1.75 s since the first
    assert lost(every_s=5.0, looks=1) == [()]
    assert lost(every_s=0.25, looks=8) == [()] * 7 + [(1,)]
    assert lost(every_s=1.0, looks=1) == [(1,)]


def test_a_heartbeat_looks_at_the_record_writes_one_line_and_fences_nothing() -> None:
    class Recorder:
        """Memory that notes the name of every operation."""

        def __init__(self, memory: HostMemory) -> None:
            self.memory, self.operations = memory, []

        def __getattr__(self, name: str) -> Any:
            self.operations.append(name)
            return getattr(self.memory, name)

    recorder = Recorder(hosts_of(new_card(), [0])[0])
    session = enter(recorder, 0, 1)  # type: ignore[arg-type]
    recorder.operations.clear()
    session.beat()
    session.report(1, 2, 3, "broadcast")
    assert recorder.operations == ["poll", "signal"] * 2


def test_a_rank_of_a_run_that_is_over_stores_over_no_line_of_the_next() -> None:
    """Not while it waits, nor to say what it does, nor when it leaves."""
    card = new_card()
    _, old = meet(hosts_of(card, [0, 1]))
    theirs = Status(9, 5, 0, 0, 0, RankState.RUNNING, bytes(24))

    def next_run(attempt: int) -> None:
        put(card, Record(9, 2, 77, 0, b"same".ljust(16, b"\0")), 0)
        put(card, theirs, 1)
        old._beat_at = -60.0  # it is time for a beat

    old._wait = next_run
    for what in (lambda: old.barrier(SHORT_S), lambda: old.report(1, 2, 3, "broadcast"), old.beat):
        with pytest.raises(MismatchError, match="another run has begun in this pool: its rank 0 is process 77"):
            what()
    old.leave()
    assert SessionArea(hosts_of(card, [0])[0], OFFSET).load(Status, 1) == theirs


def test_threads_of_a_rank_never_leave_a_torn_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second thread comes between the two stores of the first one's line."""
    first, second = meet(hosts_of(new_card(), [0, 1]))
    store, threads = SessionArea.store, ThreadPoolExecutor(1)

    def meanwhile(area: SessionArea, line: Line, rank: int) -> None:
        monkeypatch.setattr(SessionArea, "store", store)
        later.append(threads.submit(first.report, 1, 2, 3, "broadcast"))
        with suppress(TimeoutError):
            later[0].result(SHORT_S)
        assert not later[0].done(), "it did not wait for the line's other thread"
        store(area, line, rank)

    later: list[Any] = []
    monkeypatch.setattr(SessionArea, "store", meanwhile)
    with threads:
        first.leave()
        later[0].result(PATIENT_S)
    assert second.departed([0]) == {0: RankState.DONE}


# -- damage

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
COUNTS, SIZES, HOSTS, PIDS = (
    st.integers(0, 2**62),
    st.integers(1, 65536),
    st.integers(0, 65535),
    st.integers(1, 1 << 22),
)
DIGEST = st.binary(min_size=16, max_size=16)
RECORDS = st.builds(Record, U64, SIZES, PIDS, HOSTS, DIGEST)
CHECKINS = st.builds(Checkin, U64, U64, COUNTS, SIZES, PIDS, HOSTS, DIGEST)
ANSWERS = st.builds(Answer, U64, U64, COUNTS, st.sampled_from(list(Admission)), HOSTS)
STATUSES = st.builds(
    Status, U64, U64, COUNTS, U32, st.integers(0, 65535), st.sampled_from(list(RankState)), st.binary(max_size=24)
)
LINES = RECORDS | CHECKINS | ANSWERS | STATUSES
RANKS = st.integers(0, MAX_RANKS - 1)


@given(LINES, RANKS)
def test_a_line_survives_the_pool(line: Line, rank: int) -> None:
    area = SessionArea(hosts_of(new_card(), [0])[0], OFFSET)
    area.store(line, rank)
    found = area.load(type(line), rank)
    assert found is not None
    if isinstance(line, Status):
        line = line._replace(text_utf8=line.text_utf8.ljust(24, b"\0"))
    assert found == line


@given(LINES, RANKS, st.integers(0, LINE_BYTES * 8 - 1))
def test_a_line_with_any_bit_flipped_is_no_line(line: Line, rank: int, bit: int) -> None:
    index = line_index(type(line), rank)
    word, payload = encode(line, index)
    raw = int.from_bytes(word.to_bytes(8, "little") + payload, "little") ^ (1 << bit)
    damaged = raw.to_bytes(LINE_BYTES, "little")
    assert decode(type(line), index, int.from_bytes(damaged[:8], "little"), damaged[8:]) is None


@given(LINES, RANKS, st.integers(0, 3 * MAX_RANKS))
def test_a_line_in_another_place_is_no_line(line: Line, rank: int, elsewhere: int) -> None:
    index = line_index(type(line), rank)
    assert (decode(type(line), elsewhere, *encode(line, index)) is None) == (elsewhere != index)


def test_lines_do_not_overlap_and_fill_the_area() -> None:
    of_ranks = [line_index(kind, rank) for rank in range(MAX_RANKS) for kind in (Checkin, Answer, Status)]
    assert sorted([line_index(Record, 0), *of_ranks]) == list(range(AREA_BYTES // LINE_BYTES))


@examples(40)
@given(st.binary(min_size=AREA_BYTES, max_size=AREA_BYTES))
def test_random_bytes_are_never_accepted_and_never_in_the_way(noise: bytes) -> None:
    card = new_card()
    card[OFFSET : OFFSET + AREA_BYTES] = np.frombuffer(noise, np.uint8)
    with pytest.raises(PeerLostError) as caught:
        enter(hosts_of(card, [0])[0], 1, 2, 0.0)
    assert caught.value.ranks == (0,)
    with pytest.raises(PeerLostError) as caught:
        enter(hosts_of(card, [0])[0], 0, 3, 0.0)
    assert caught.value.ranks == (1, 2)
    meet(hosts_of(card, [0, 1]))


@examples(40)
@given(RECORDS, st.lists(st.tuples(RANKS, U64, st.sampled_from(list(Admission)), U32, U64), max_size=8), st.data())
def test_well_formed_lies_are_never_accepted(
    record: Record, answers: list[tuple[int, int, Admission, int, int]], data: st.DataObject
) -> None:
    """Valid lines of the same session, but nobody who could know our nonce."""
    card = new_card()
    put(card, record, 0)
    for rank, nonce, admission, culprit, counter in answers:
        put(card, Answer(record.session, nonce, counter, admission, culprit), rank)
    put(card, data.draw(STATUSES)._replace(session=record.session), 0)
    put(card, data.draw(CHECKINS)._replace(session=record.session), 2)
    with pytest.raises((PeerLostError, MismatchError)):
        enter(hosts_of(card, [0])[0], 1, 3, 0.002, wait=lambda attempt: None)
