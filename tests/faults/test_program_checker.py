"""The checker of programs, on streams of events: each mistake is found, its repair and legal plans are silent."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.litmus.language import read
from faults.programs.findings import KINDS, ProgramFinding, merged
from faults.prove.proof import RULES
from tests.helpers.event_stream import DROP_ORDERED, KEEP, LFENCE, LINE, LOCKED, MFENCE, SFENCE, Found, Stream
from tests.helpers.litmus_stream import perform

X, Y, FLAG, SECOND = 1 * LINE, 2 * LINE, 3 * LINE, 4 * LINE
LITMUS = Path(__file__).with_name("litmus")


def written(s: Stream, *steps: str) -> None:
    """A stores X, and publishes it by FLAG; ``steps`` are those of the chain between, in their order."""
    for step in steps:
        match step:
            case "store":
                s.store("A", X, 1, "store")
            case "flush":
                s.flush("A", X, 8, "flush")
            case "keep":
                s.flush("A", X, 8, "flush", KEEP)
            case "clflush":
                s.flush("A", X, 8, "flush", DROP_ORDERED)
            case "fence":
                s.fence("A", SFENCE, "fence")
            case "signal":
                s.store("A", FLAG, 1, "signal")
                s.publish("A", FLAG)


def heard(s: Stream, name: str = "B") -> None:
    s.invalidate(name, FLAG, 8, "look")
    assert s.load(name, FLAG, 8, "wait") == bytes([1, 0, 0, 0, 0, 0, 0, 0])


WHOLE = ("store", "flush", "fence", "signal")
WRITER = {
    ("store", "fence", "signal"): "not-flushed",
    ("flush", "fence", "store", "signal"): "not-flushed",
    ("store", "signal", "flush", "fence"): "not-flushed",
    ("store", "flush", "signal", "fence"): "fence-too-late",
    WHOLE: None,
    ("store", "keep", "fence", "signal"): None,
    ("store", "clflush", "signal"): None,  # in order with later stores
}


@pytest.mark.parametrize("chain", WRITER, ids="-".join)
@pytest.mark.parametrize("luck", [False, True])
def test_the_writers_half_of_the_chain(chain: tuple[str, ...], luck: bool) -> None:
    """``luck``: an eviction publishes the store, so that the load is right in this run."""
    s = Stream("A", "B")
    s.load("B", X)
    written(s, *chain)
    if luck:
        s.evict("A", X)
    heard(s)
    s.invalidate("B", X)
    right = s.load("B", X, 8, "load") == bytes([1, 0, 0, 0, 0, 0, 0, 0])
    kind = WRITER[chain]
    if kind is None:
        assert right and s.finish() == set()
    else:
        assert s.found() == {Found(kind, not right, "store", "load")}
        (places,) = s.places()
        assert places["published"] == "signal" and places["told"] == "wait"
        assert places.get("flush") == ("flush" if chain.index("store") < chain.index("fence") - 1 else None)


def test_a_flush_without_a_fence_is_found_though_a_later_fence_lands_it() -> None:
    s = Stream("A", "B")
    s.store("A", X, 1, "store")
    s.flush("A", X, 8, "flush")
    s.store("A", FLAG, 1, "signal")
    s.flush("A", FLAG)
    s.land("A", FLAG // LINE)
    heard(s)
    s.invalidate("B", X)
    s.load("B", X, 8, "load")
    assert s.found() == {Found("not-fenced", True, "store", "load")}
    s.fence("A")
    s.load("B", X, 8, "load again")
    assert len(s.found()) == 1


OVERTAKES = "invalidate-overtakes"
READER: dict[str, tuple[Callable[[Stream], None], str | None]] = {
    "none": (lambda s: None, "no-invalidate"),
    "clwb": (lambda s: (s.flush("B", X, 8, "drop", KEEP), s.fence("B", MFENCE))[0], "no-invalidate"),
    "sfence": (lambda s: (s.flush("B", X, 8, "drop"), s.fence("B", SFENCE, "sfence"))[0], "invalidate-unfenced"),
    "lfence": (lambda s: (s.flush("B", X, 8, "drop"), s.fence("B", LFENCE))[0], "invalidate-unfenced"),
    "mfence": (lambda s: (s.flush("B", X, 8, "drop"), s.fence("B", MFENCE))[0], OVERTAKES),
    "locked": (lambda s: (s.flush("B", X, 8, "drop"), s.fence("B", LOCKED))[0], OVERTAKES),
    "sfence first": (lambda s: (s.fence("B", SFENCE), s.flush("B", X, 8, "drop"), s.fence("B", MFENCE))[0], OVERTAKES),
    "lfence first": (lambda s: (s.fence("B", LFENCE), s.flush("B", X, 8, "drop"), s.fence("B", MFENCE))[0], None),
    "mfence first": (lambda s: (s.fence("B", MFENCE), s.flush("B", X, 8, "drop"), s.fence("B", LOCKED))[0], None),
    "locked first": (lambda s: (s.fence("B", LOCKED), s.flush("B", X, 8, "drop"), s.fence("B", MFENCE))[0], None),
    "clflush": (lambda s: (s.flush("B", X, 8, "drop", DROP_ORDERED), s.fence("B", MFENCE))[0], None),
    "again": (lambda s: (s.flush("B", X), s.invalidate("B", X))[0], None),
}


@pytest.mark.parametrize("how", READER)
@pytest.mark.parametrize("cached", [False, True])
def test_the_readers_half_of_the_chain(how: str, cached: bool) -> None:
    """``cached``: the reader's cache has the old line; else only a prefetch could have brought it."""
    drop, kind = READER[how]
    s = Stream("A", "B")
    if cached:
        s.load("B", X)
    written(s, *WHOLE)
    heard(s)
    drop(s)
    right = s.load("B", X, 8, "load") == bytes([1, 0, 0, 0, 0, 0, 0, 0])
    assert s.found() == (set() if kind is None else {Found(kind, not right, "store", "load")})
    if how == "sfence":
        assert s.places()[0]["drop_fence"] == "sfence" and s.raw()[0].sfence
    if kind == OVERTAKES:
        assert s.places()[0]["drop"] == "drop" and s.places()[0]["told"] == "wait"


def test_a_drop_overtakes_only_what_its_own_thread_was_told_and_matters_only_to_a_load() -> None:
    s = Stream("A", "B", "B.1")
    written(s, *WHOLE)
    heard(s)
    s.start("C")
    s.store("C", 7 * LINE, 1)
    s.publish("C", 7 * LINE)
    s.invalidate("B.1", 7 * LINE)
    s.load("B.1", 7 * LINE)  # this thread was told of something else
    s.flush("B.1", X)  # the threads have met by means that are not seen
    s.fence("B.1", MFENCE)
    s.load("B", X, 8, "load")
    assert s.finish() == set()
    s = Stream("A", "B")
    written(s, *WHOLE)
    heard(s)
    s.flush("B", X)
    s.fence("B", MFENCE)
    s.store("B", X, 2, "store")
    s.publish("B", X)
    assert s.finish() == set()


def test_an_invalidate_before_the_wait_is_called_early() -> None:
    s = Stream("A", "B")
    s.invalidate("B", X, 8, "early")
    s.prefetch("B", X)
    written(s, *WHOLE)
    heard(s)
    s.load("B", X, 8, "load")
    assert s.found() == {Found("invalidated-early", True, "store", "load")}
    assert s.places()[0]["drop"] == "early"


def test_a_fence_is_of_the_thread_that_flushed() -> None:
    s = Stream("A", "A.2", "B")
    s.store("A", X, 1, "store")
    s.flush("A", X)
    s.fence("A.2")
    s.store("A.2", FLAG, 1)
    s.publish("A.2", FLAG)
    heard(s)
    s.invalidate("B", X)
    s.load("B", X, 8, "load")
    assert {its.kind for its in s.found()} == {"not-fenced"}


@pytest.mark.parametrize("fenced", [True, False])
def test_a_non_temporal_store_needs_a_fence(fenced: bool) -> None:
    s = Stream("A", "B")
    s.store_nt("A", X, 1, "store")
    if fenced:
        s.fence("A")
    s.store("A", FLAG, 1)
    s.flush("A", FLAG)
    s.land("A", FLAG // LINE)
    heard(s)
    s.invalidate("B", X)
    s.load("B", X, 8, "load")
    assert s.found() == (set() if fenced else {Found("not-fenced", True, "store", "load")})


def test_a_stale_entry_on_the_second_lap_is_found_though_its_flag_is_valid() -> None:
    s = Stream("A", "B")
    for lap in (1, 2):
        s.store("A", X, bytes([lap] * 16), f"entry of lap {lap}")
        s.publish("A", X)
        s.store("A", FLAG, lap)
        s.publish("A", FLAG)
        s.invalidate("B", FLAG)
        s.load("B", FLAG)
        if lap == 1:
            s.invalidate("B", X)
        s.load("B", X, 16, "load")
    assert s.found() == {Found("no-invalidate", True, "entry of lap 2", "load")}


def test_stores_of_the_bytes_that_are_there_are_no_versions() -> None:
    s = Stream("A", "B")
    s.store("A", X, 0, "zeros on zeros")
    s.store("A", FLAG, 1)
    s.publish("A", FLAG)
    heard(s)
    s.load("B", X)
    assert s.finish() == set()


def test_what_had_ended_is_known_to_what_starts_later() -> None:
    for flushed in (False, True):
        s = Stream("A")
        s.store("A", X, 7, "header")
        if flushed:
            s.publish("A", X)
        s.end("A")
        s.next_stage()
        s.start("B")
        s.load("B", X, 8, "open")
        assert s.found() == (set() if flushed else {Found("not-flushed", True, "header", "open")})
        assert flushed or s.raw()[0].by_start


def test_msync_is_no_flush() -> None:
    s = Stream("A", "B")
    s.store("A", X, 7, "header")
    s.msync("A", 0, 4096, "msync")
    assert s.found() == {Found("msync", False, "header", "msync")}
    s = Stream("A", "B")
    s.store("A", X, 7, "header")
    s.publish("A", X)
    s.msync("A", 0, 4096, "msync")
    assert s.finish() == set()


def test_dirty_at_exit() -> None:
    s = Stream("A", "B")
    s.store("A", X, 1, "flushed")
    s.publish("A", X)
    s.store("A", Y, 1, "left")
    s.evict("A", Y)
    assert s.finish() == {Found("dirty-at-exit", True, "left", "")}
    s = Stream("A", "B")
    s.store("A", Y, 1, "left")
    s.crash("A")
    assert s.finish() == set()


def test_a_flush_outside_of_the_pool() -> None:
    s = Stream("A")
    s.flush_outside("A", 0x7FFF_0000_1234, "clwb")
    assert s.found() == {Found("flush-outside", True, "", "clwb")}
    assert s.raw()[0].offset == 0x7FFF_0000_1234


def test_locked_increments_of_two_hosts() -> None:
    s = Stream("A", "B")
    s.add("A", X, "A's")
    s.add("A", X, "A's")
    assert s.found() == set()
    s.publish("A", X)
    s.invalidate("B", X)
    s.add("B", X, "B's")
    assert s.found() == {Found("locked-across-hosts", True, "A's", "B's")}


@pytest.mark.parametrize("first", [Stream.add, Stream.store])
@pytest.mark.parametrize("second", [Stream.add, Stream.store])
def test_locked_instructions_in_an_order_that_another_word_tells(
    first: Callable[..., None], second: Callable[..., None]
) -> None:
    s = Stream("A", "B")
    value = (1,) if first is Stream.store else ()
    first(s, "A", X, *value, "A's")
    s.publish("A", X)
    s.store("A", FLAG, 1, "signal")
    s.publish("A", FLAG)
    heard(s)
    s.invalidate("B", X)
    second(s, "B", X, *((1,) if second is Stream.store else ()), "B's")
    s.publish("B", X)
    assert s.finish() == set()


def test_two_writers_of_one_line_and_a_line_for_each() -> None:
    s = Stream("A", "B")
    s.store("A", X, 1, "A's")
    s.store("B", X + 8, 1, "B's")
    assert s.found() == {Found("two-writers", False, "A's", "B's")}
    s = Stream("A", "B")
    s.store("A", X, 1, "A's")
    s.store("B", Y, 1, "B's")
    assert s.found() == set()
    s = Stream("A", "B")
    s.store("A", X, bytes([1]) * LINE, "A's")
    s.store("B", X, bytes([2]) * LINE, "B's")
    assert s.found() == {Found("two-writers", False, "A's", "B's")}


def test_bytes_of_one_word_are_judged_each_by_itself() -> None:
    """The next message begins in the word in which the published one ends, and is no part of what was published."""
    s = Stream("A", "B")
    s.store("A", X, bytes([1, 1, 1]), "first")
    s.publish("A", X)
    s.store("A", FLAG, 1, "signal")
    s.publish("A", FLAG)
    s.store("A", X + 3, bytes([2, 2]), "next")
    s.store("A", SECOND, 1, "second signal")
    s.publish("A", SECOND)
    heard(s)
    s.invalidate("B", SECOND)
    s.load("B", SECOND)
    s.invalidate("B", X)
    assert s.load("B", X, 3, "load") == bytes([1, 1, 1]) and s.found() == set()
    s.load("B", X + 2, 2, "further")
    assert s.found() == {Found("not-flushed", True, "next", "further")}


def test_a_store_is_kept_until_each_of_its_bytes_is_stored_anew() -> None:
    s = Stream("A", "B")
    for at, site in enumerate(("first", "second")):
        s.store("A", X + at, bytes([1]), site)
    for at in (8, 16, 24):
        s.store("A", X + at, 1, f"at {at}")
    s.store("A", FLAG, 1, "signal")
    s.publish("A", FLAG)
    heard(s)
    s.invalidate("B", X)
    s.load("B", X, 1, "load")
    assert s.found() == {Found("not-flushed", True, "first", "load")}


def test_bytes_between_stores_of_one_place_are_nobodys() -> None:
    s = Stream("A", "B")
    for at in (0, 8):
        s.store("A", X + at, bytes([1] * 4), "fill")
    s.store("A", FLAG, 1, "signal")
    s.publish("A", FLAG)
    heard(s)
    s.load("B", X + 4, 4)
    assert s.found() == set()


def test_a_byte_that_this_host_stored_hides_none_beside_it() -> None:
    s = Stream("A", "B")
    written(s, "store", "signal")
    heard(s)
    s.store("B", X + 1, bytes([2]), "own")
    s.load("B", X, 1, "load")
    assert {found.kind for found in s.found()} == {"not-flushed", "older-write"}


def test_old_bytes_beside_new_ones_of_their_word_teach_nothing() -> None:
    s = Stream("A", "B")
    s.store("A", X, bytes([1]), "first")
    s.publish("A", X)
    s.store("A", FLAG, 1, "signal")
    s.publish("A", FLAG)
    s.store("A", Y, 1, "unpublished")
    s.store("A", X + 1, bytes([2]), "next")
    s.publish("A", X)
    heard(s)
    s.invalidate("B", X, site="drop")
    s.load("B", X, 1)
    s.load("B", Y, 8, "race")
    assert s.found() == set()
    s.load("B", X + 1, 1)
    s.load("B", Y, 8, "load")
    assert s.found() == {Found("not-flushed", True, "unpublished", "load")}


@pytest.mark.parametrize("waits", [False, True])
def test_a_store_of_two_lines_whose_reader_does_not_wait_is_found_and_said(waits: bool) -> None:
    s = Stream("A", "B")
    s.store("A", X, bytes([1]) * 2 * LINE, "store")
    s.publish("A", X)
    s.store("A", FLAG, 1, "signal")
    s.publish("A", FLAG)
    if waits:
        heard(s)
    s.invalidate("B", X, 2 * LINE)
    s.load("B", X)
    s.load("B", Y, 8, "load")
    (finding,) = s.raw()
    assert KINDS[finding.kind].name == "not-flushed" and finding.publishes_itself != waits


@pytest.mark.parametrize("thread", ["A", "A2"])
def test_a_store_is_not_taken_for_a_later_one_of_its_place(thread: str) -> None:
    """A loop fills the line; between two rounds this thread or another one of the host has published the first."""
    s = Stream("A", "A2", "B")
    s.store("A", X, 1, "fill")
    s.store(thread, FLAG, 1, "signal")
    s.publish(thread, FLAG)
    s.store("A", X + 16, 1, "beside" if thread == "A" else "fill")
    s.store("A", X + 8, 1, "fill")
    heard(s)
    s.invalidate("B", X)
    s.load("B", X, 8, "load")
    assert s.found() == {Found("not-flushed", True, "fill", "load")}


def test_a_line_filled_byte_by_byte_is_one_version() -> None:
    """Else its first stores would be forgotten: there is room for 14 versions of a line."""
    s = Stream("A", "B")
    for at in range(LINE):
        s.store("A", X + at, bytes([at + 1]), "fill")
    s.store("A", FLAG, 1, "signal")
    s.publish("A", FLAG)
    heard(s)
    s.invalidate("B", X)
    s.load("B", X, 1, "load")
    assert s.found() == {Found("not-flushed", True, "fill", "load")}


def test_a_load_that_may_be_stale_is_no_finding() -> None:
    for expects in (False, True):
        s = Stream("A", "B")
        s.load("B", X)
        if expects:
            s.expect_stale("B", X + 8, 8)
            s.expect_stale("B", X, 8)
        written(s, *WHOLE)
        heard(s)
        s.load("B", X)
        assert bool(s.found()) != expects


def test_a_host_that_waits_for_ever_is_told_what_is_missing() -> None:
    def spun(prepare: Callable[[Stream], None]) -> set[Found]:
        s = Stream("A", "B")
        s.load("B", FLAG)
        prepare(s)
        for _ in range(20):
            s.load("B", FLAG, 8, "spin")
        assert s.found() == set()
        found = s.stuck()
        assert all(its.stuck for its in s.raw()) and s.finish() == found  # nothing is said about what is dirty
        return found

    def stored(s: Stream) -> None:
        s.store("A", FLAG, 1, "flag")

    assert spun(stored) == {Found("not-flushed", True, "flag", "spin")}
    assert spun(lambda s: (stored(s), s.publish("A", FLAG))[0]) == {Found("no-invalidate", True, "flag", "spin")}
    assert spun(lambda s: (stored(s), s.flush("A", FLAG))[0]) == {Found("not-fenced", True, "flag", "spin")}
    assert spun(lambda s: None) == set()


@pytest.mark.parametrize(("looks", "given_up"), [(2000, True), (2000, False), (900, True)])
def test_of_a_run_that_is_given_up_an_old_store_that_a_host_awaits_is_told(looks: int, given_up: bool) -> None:
    s = Stream("A", "B")
    s.store("A", FLAG, 1, "flag")
    for _ in range(looks):
        s.load("B", FLAG, 8, "spin")
    told = Found("not-flushed", True, "flag", "spin") in s.finish(given_up=given_up)
    assert told == (given_up and looks > 1000) == any(its.so_far and its.warns for its in s.raw())


def test_a_host_that_also_reads_a_message_at_each_look_is_told_what_is_missing() -> None:
    s = Stream("A", "B")
    s.load("B", FLAG)
    s.store("A", FLAG, 1, "flag")
    s.publish("A", FLAG)
    for _ in range(20):
        s.load("B", FLAG, 8, "spin")
        s.load("B", 64 * 64, 64 * 64, "message")
    assert s.stuck() == {Found("no-invalidate", True, "flag", "spin")}


def test_a_host_that_waits_for_a_store_that_another_write_back_undid() -> None:
    s = Stream("A", "B")
    s.load("B", FLAG)
    s.store("A", FLAG, 1, "flag")
    s.publish("A", FLAG)
    s.store("B", FLAG + 8, 1, "beside")
    s.publish("B", FLAG)
    for _ in range(20):
        s.load("B", FLAG, 8, "spin")
    lost = Found("lost-update", True, "flag", "spin")
    assert s.stuck() == {Found("two-writers", False, "flag", "beside"), lost}


@pytest.mark.parametrize("looks_since", [False, True])
def test_a_host_that_waits_rightly_is_not_blamed(looks_since: bool) -> None:
    """It has just dropped what was new, or has had no turn since the store."""
    s = Stream("A", "B")
    for step in range(40):
        if step == (0 if looks_since else 39):
            s.store("A", FLAG, 1, "flag")
            s.publish("A", FLAG)
        if looks_since:
            s.invalidate("B", FLAG)
        if looks_since or step < 39:
            s.load("B", FLAG, 8, "spin")
    if looks_since:
        s.invalidate("B", FLAG)
    assert s.stuck() == set()


def test_a_version_that_the_pool_holds_is_kept_when_all_of_its_line_is_stored_anew() -> None:
    """Host B sees the first version, and so learns nothing of what came later."""
    s = Stream("A", "B")
    s.store("A", X, bytes([1]) * LINE)
    s.publish("A", X)
    s.store("A", X, bytes([2]) * LINE)
    s.store("A", Y, 1)
    s.store("A", X, bytes([3]) * LINE)
    s.invalidate("B", X)
    assert s.load("B", X, LINE) == bytes([1]) * LINE
    s.load("B", Y)
    assert s.found() == set()


def test_one_of_many_versions_is_kept_as_long_as_the_pool_holds_it() -> None:
    """Host B sees the third version, and so learns what came before it."""
    s = Stream("A", "B")
    s.store("A", X, bytes([1]) * LINE)
    s.publish("A", X)
    s.store("A", Y, 1, "store")
    for k in (2, 3):
        s.store("A", X, bytes([k]) * LINE)
    s.publish("A", X)
    for k in (4, 5):
        s.store("A", X, bytes([k]) * LINE)
    s.invalidate("B", X)
    assert s.load("B", X, LINE) == bytes([3]) * LINE
    s.load("B", Y, 8, "load")
    assert s.found() == {Found("not-flushed", True, "store", "load")}


def test_what_has_landed_does_not_land_again_with_a_store_beside_it() -> None:
    s = Stream("A", "B")
    s.store_nt("A", X, 1)
    s.fence("A")
    s.store("A", FLAG, 1)
    s.publish("A", FLAG)
    s.invalidate("B", FLAG)
    s.load("B", FLAG)
    s.store("A", X + 8, 2)
    s.invalidate("B", X)
    s.load("B", X)
    assert s.found() == set()


def test_a_mistake_is_reported_once_and_counted() -> None:
    s = Stream("A", "B")
    for k in range(1, 21):
        s.store("A", X, k, "store")
        s.store("A", FLAG, k)
        s.publish("A", FLAG)
        s.invalidate("B", FLAG)
        s.load("B", FLAG)
        s.invalidate("B", X)
        s.load("B", X, 8, "load")
        s.flush("A", X)
        s.fence("A")
    assert len(merged(s.raw())) == 1 and merged(s.raw())[0].times == 20


def test_kinds_have_rules_of_the_prover_or_of_their_own() -> None:
    own = {"assertion", "atomic", "crash", "invariant", "linearizable", "msync", "outside", "room", "torn"}
    assert {kind.rule for kind in KINDS.values()} - own <= set(RULES)
    assert len({kind.name for kind in KINDS.values()}) == len(KINDS)
    for kind in KINDS.values():
        kind.sentence.format(host="host 0", by="host 1", line="line 3")


@pytest.mark.parametrize("data", [b"x", bytes(ProgramFinding.SIZE), b"\xff" * ProgramFinding.SIZE])
def test_findings_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        ProgramFinding.many(data)


def test_a_checker_without_room_says_so() -> None:
    s = Stream(*"ABC")
    s.checker.test_fill()
    for name in "ABC":  # a third copy of a line takes room
        s.load(name, X)
    assert s.finish() == {Found("out-of-room", True, "", "")}


# --- the litmus tests ------------------------------------------------------------------------------------------------

# What is found in some interleaving of a litmus test that has a stale read, or a lost store, among its outcomes.
ROWS = {
    "2+2W-nofence": {"two-writers"},
    "2+2W": {"two-writers"},
    "CARDS": {"fence-too-late"},
    "CoWR": {"two-writers"},
    "DOORBELLS": {"not-fenced"},
    "FALSESHARE": {"two-writers"},
    "FLUSHREAD-fenced": {OVERTAKES},
    "FENCESCOPE": {"not-fenced"},
    "FLUSHREAD-keep": {"no-invalidate"},
    "FLUSHREAD": {"invalidate-unfenced"},
    "ISA2-nofence": {"not-fenced"},
    "MP-earlyfence": {"not-fenced"},
    "MP-earlyinv-prefetch": {"invalidated-early"},
    "MP-earlyinv": {"no-invalidate"},
    "MP-latefence": {"not-fenced", "fence-too-late"},
    "MP-nofence": {"not-fenced"},
    "MP-noflush": {"not-flushed"},
    "MP-noinv-prefetch": {"no-invalidate"},
    "MP-noinv": {"no-invalidate"},
    "MP-nt-nofence": {"not-fenced"},
    "MP-storeafterflush": {"not-flushed"},
    "NT-order": {"fence-too-late"},
    "OWNSTALE": {"no-invalidate"},
    "R-noinv": {"two-writers"},
    "R": {"two-writers"},
    "READER-dirties": {"residue", "lost-update"},
    "RESIDUE-eviction": {"residue"},
    "RESIDUE": {"residue"},
    "S-nofence": {"older-write"},
    "S-noflush": {"older-write"},
    "SEQLOCK-nofence": {"fence-too-late"},
    "SEQLOCK-stalepayload": {"no-invalidate"},
    "SEQLOCK-stalesecond": {"no-invalidate"},
    "STALEALLOC": {"stale-allocate"},
    "TURNS-noinv": {"stale-allocate"},
    "TORN": {"not-flushed"},
    "WRC-nofence": {"not-fenced"},
    "WRC-noinv": {"no-invalidate"},
}


FILES = sorted(LITMUS.glob("*.yaml"))


@pytest.mark.deep(rows=lambda file: FILES.index(file) % 6 > 0)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_litmus_test_as_a_stream(file: Path) -> None:
    litmus = read(file)
    found = {
        its.kind for seed in range(12) for nature in (False, True) for its in perform(litmus, seed, nature).found()
    }
    assert found == ROWS.get(file.stem, set())


# --- legal plans, and one mistake in them ----------------------------------------------------------------------------

MISTAKES = ("flush", "fence", "invalidate", "early", "sfence", "late")


def channel(
    s: Stream, draw: random.Random, first: int, names: list[str], rounds: int, mistake: str = ""
) -> Iterator[None]:
    """Two hosts hand three lines to each other, in turns; the mistake is made in every round. A step at a time."""
    data, flags = first * LINE, [(first + 3) * LINE, (first + 4) * LINE]
    for number in range(1, rounds + 1):
        writer, reader = names[number % 2], names[1 - number % 2]
        flag = flags[number % 2]
        words = sorted(draw.sample(range(24), draw.randrange(1, 24)))
        expected = {}
        for word in words:
            value = draw.randrange(1, 1 << 62)
            expected[word] = value.to_bytes(8, "little")
            if draw.random() < 0.1 and mistake != "flush":
                s.store_nt(writer, data + 8 * word, value, f"{writer} nt")
            else:
                s.store(writer, data + 8 * word, value, f"{writer} store")
            yield
        if mistake != "flush":
            s.flush(writer, data, 3 * LINE, f"{writer} flush", draw.choice([1, KEEP]))
            yield
        if mistake not in ("fence", "late"):
            s.fence(writer, draw.choice([SFENCE, MFENCE, LOCKED]), f"{writer} fence")
            yield
        s.store(writer, flag, number, f"{writer} flag")
        yield
        if mistake == "late":
            s.fence(writer, SFENCE)
        s.flush(writer, flag, 8)
        yield
        s.fence(writer, SFENCE) if mistake != "fence" else s.land(writer, flag // LINE)
        yield
        if mistake == "early":
            s.invalidate(reader, data, 3 * LINE)
            yield
        while True:
            s.invalidate(reader, flag, 8)
            yield
            if int.from_bytes(s.load(reader, flag, 8, f"{reader} look"), "little") == number:
                break
        if mistake == "sfence":
            s.flush(reader, data, 3 * LINE)
            s.fence(reader, SFENCE)
        elif mistake not in ("invalidate", "early"):
            s.invalidate(reader, data, 3 * LINE, f"{reader} invalidate")
        yield
        for word in words:
            got = s.load(reader, data + 8 * word, 8, f"{reader} load")
            assert mistake or got == expected[word]
            yield


def together(s: Stream, draw: random.Random, channels: list[Iterator[None]], names: list[str], nature: float) -> None:
    while channels:
        at = draw.randrange(len(channels))
        if draw.random() < nature:
            move, line = draw.choice(["evict", "prefetch", "land"]), draw.randrange(5 * 3)
            name = draw.choice(names)
            s.land(name, line) if move == "land" else getattr(s, move)(name, line * LINE)
        if next(channels[at], "end") == "end":
            channels.pop(at)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), hosts=st.integers(2, 3), nature=st.sampled_from([0.0, 0.3, 0.8]))
def test_legal_plans_are_silent(seed: int, hosts: int, nature: float) -> None:
    draw, names = random.Random(seed), ["A", "B", "C"][:hosts]
    s = Stream(*names)
    together(s, draw, [channel(s, draw, 5 * k, draw.sample(names, 2), 4) for k in range(3)], names, nature)
    assert s.finish() == set()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), mistake=st.sampled_from(MISTAKES), nature=st.sampled_from([0.0, 0.3, 0.8]))
def test_one_mistake_in_a_legal_plan_is_found_in_every_order(seed: int, mistake: str, nature: float) -> None:
    """The legal plan beside it is of other hosts: one of the same might fence for it, or tell its reader, by chance."""
    draw, names = random.Random(seed), ["A", "B", "C", "D"]
    s = Stream(*names)
    both = [channel(s, draw, 0, names[:2], 3, mistake), channel(s, draw, 5, names[2:], 3)]
    together(s, draw, both, names, nature)
    kinds = {its.kind for its in s.found()}
    expected = {
        "flush": {"not-flushed"},
        "fence": {"not-fenced", "fence-too-late"},
        "late": {"not-fenced", "fence-too-late"},
        "invalidate": {"no-invalidate", "invalidated-early"},
        "early": {"invalidated-early"},
        "sfence": {"invalidate-unfenced"},
    }[mistake]
    assert kinds & expected


def test_a_store_that_goes_on_is_not_newer_than_what_came_over_its_first_words() -> None:
    """As a loop does whose vectors do not lie on words: two of its stores change one word in turns."""
    s = Stream("A")
    s.store("A", X, bytes(range(1, 17)), "even")
    s.store("A", X + 12, bytes(range(1, 17)), "odd")
    s.store("A", X + 32, bytes(range(1, 17)), "even")
    s.load("A", X + 8, 8)
    s.publish("A", X, LINE)
    assert s.finish() == set()


def test_versions_that_nobody_can_read_any_more_are_used_again() -> None:
    """Eight words of a line, each stored at a place of its own, a hundred times: eight versions, and one that comes."""
    s = Stream("A")
    for lap in range(100):
        for word in range(8):
            s.store("A", X + 8 * word, 100 * word + lap + 1, f"place {word}")
    assert s.bytes_per_line(1) == 5 * 128


def test_a_line_has_fourteen_versions_at_most_and_forgets_the_oldest() -> None:
    """Sixteen are alive, eight in each host's cache. What is forgotten is not judged; what is newer still is."""
    s = Stream("A", "B")
    for word in range(8):
        s.store("A", X + 8 * word, word + 1, f"old {word}")
    s.publish("A", X, LINE)
    s.store("A", FLAG, 1, "signal")
    s.publish("A", FLAG)
    heard(s)
    s.invalidate("B", X)
    s.load("B", X, LINE)
    for word in range(8):
        s.store("A", X + 8 * word, word + 101, f"new {word}")
    s.publish("A", X, LINE)
    assert s.bytes_per_line(1) <= 7 * 128
    s.store("A", SECOND, 1, "again")
    s.publish("A", SECOND)
    s.invalidate("B", SECOND)
    s.load("B", SECOND, 8, "told")
    assert s.load("B", X + 56, 8, "load") == (8).to_bytes(8, "little")
    assert s.found() == {Found("no-invalidate", True, "new 7", "load")}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("flushed", [True, False])
def test_any_stores_of_one_host_to_a_line_are_right_if_they_are_published(seed: int, flushed: bool) -> None:
    """More stores in a row than a line has versions for, of all sizes, as a sort makes them."""
    draw, s, bytes_of = random.Random(seed), Stream("A", "B"), bytearray(LINE)
    for number in range(draw.choice([15, 20, 60])):
        nbytes = draw.choice([1, 2, 4, 8])
        at = draw.randrange(0, LINE, nbytes)
        data = draw.randbytes(nbytes)
        s.store("A", X + at, data, f"place {draw.choice([number, number % 5])}")
        bytes_of[at : at + nbytes] = data
        at = draw.randrange(0, LINE - 8)
        assert s.load("A", X + at, 8) == bytes_of[at : at + 8]
    assert s.found() == set()
    if flushed:
        s.publish("A", X, LINE)
    s.store("A", FLAG, 1, "signal")
    s.publish("A", FLAG)
    heard(s)
    s.invalidate("B", X)
    assert (s.load("B", X, LINE) == bytes_of) is flushed
    assert {found.kind for found in s.found()} == (set() if flushed else {"not-flushed"})


def test_sixteen_hosts_share_a_line() -> None:
    names = "ABCDEFGHIJKLMNOP"
    s = Stream(*names)
    for k, name in enumerate(names):  # a ring: each reads what the one before it wrote, and writes the same line
        s.invalidate(name, X)
        assert s.load(name, X) == k.to_bytes(8, "little")
        s.store(name, X, k + 1)
        s.publish(name, X)
    assert s.finish() == set()


def test_no_more_than_256_bytes_for_a_line_of_a_queue() -> None:
    """Eight entries of four lines, twenty laps; a header of two words in either index's line."""
    s, entries, lines_each = Stream("A", "B"), 8, 4
    head, tail, first = X, Y, 8 * LINE
    for number in range(20 * entries):
        at = first + number % entries * lines_each * LINE
        s.invalidate("A", tail)
        s.load("A", tail)
        s.store("A", at, bytes([number % 251 + 1] * lines_each * LINE), "entry")
        s.publish("A", at, lines_each * LINE)
        s.store("A", head, number + 1, "head")
        s.publish("A", head)
        s.invalidate("B", head)
        s.load("B", head)
        s.invalidate("B", at, lines_each * LINE)
        s.load("B", at, lines_each * LINE)
        s.store("B", tail, number + 1, "tail")
        s.publish("B", tail)
    assert s.finish() == set()
    assert s.bytes_per_line(2 + entries * lines_each) <= 256
