import errno
import gc
import hashlib
import os
import struct
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cxlemu.errors import ArgumentError, PoolError
from cxlemu.memory import host_segment_bytes
from cxlemu.pool import catalog, numa, segments
from cxlemu.pool.segments import Segment
from cxlemu.pool.shm import ShmPool
from cxlemu.pool.superblock import MAGIC, UNFINISHED, Superblock, parse
from tests.helpers.pool_helpers import (
    ATTACH,
    CREATE,
    MIB,
    SMALL,
    WHOLE,
    files,
    leave_dead_pool,
    let_go,
    own_name,
    run_script,
    running,
    small_pool,
)
from tests.helpers.tables import with_rows


@pytest.fixture
def name() -> Iterator[str]:
    with own_name() as fresh:
        yield fresh


@pytest.fixture
def pool(name: str) -> Iterator[ShmPool]:
    with small_pool(name) as made:
        yield made


def path(name: str, card: int) -> Path:
    return Segment(name, "card", card).path


def refusal(name: str) -> str:
    """The sentence with which attach refuses at once."""
    with pytest.raises(PoolError) as caught:
        ShmPool.attach(name, deadline_s=0)
    return str(caught.value)


def sign(card: np.ndarray[tuple[int], np.dtype[np.uint8]], block: Superblock) -> None:
    packed = np.frombuffer(block.pack(), dtype=np.uint8)
    card[: packed.size] = packed


# -- sharing


def test_attached_pool_is_the_created_one(pool: ShmPool) -> None:
    with ShmPool.attach(pool.name) as attached:
        for attribute in ("name", "uuid", "card_bytes", "interleave_bytes", "hosts", "max_ranks", "data_offset"):
            assert getattr(attached, attribute) == getattr(pool, attribute)
        assert (pool.owner, attached.owner) == (True, False)
        assert (pool.session_offset, pool.data_offset) == (4096, 8192)
        assert [card.nbytes for card in attached.cards] == [MIB, MIB]
        pool.cards[1][pool.data_offset] = 42
        assert attached.cards[1][pool.data_offset] == 42
        attached.host_segment(1)[7] = 43
        assert pool.host_segment(1)[7] == 43
        assert pool.host_segment(0).nbytes == host_segment_bytes(2, MIB)
        assert not pool.host_segment(0).any()


def test_another_process_reads_and_writes_the_same_bytes(pool: ShmPool) -> None:
    pool.cards[0][pool.data_offset :] = 7
    script = ATTACH + (
        "print(int(pool.cards[0][pool.data_offset:].sum()))\n"
        "pool.cards[1][-1] = 9\n"
        "pool.host_segment(0)[-1] = 11\n"
        "pool.unlink()\n"
    )
    result = run_script(script, pool.name)
    assert (result.stdout, result.stderr) == (f"{7 * (MIB - pool.data_offset)}\n", "")
    assert (pool.cards[1][-1], pool.host_segment(0)[-1]) == (9, 11)
    assert files(pool.name) == WHOLE


def test_attach_writes_nothing(pool: ShmPool) -> None:
    def digest() -> list[str]:
        return [hashlib.sha256(s.path.read_bytes()).hexdigest() for s in segments.find(pool.name)]

    before = digest()
    with ShmPool.attach(pool.name) as attached:
        attached.host_segment(0)
    assert digest() == before


def test_attach_waits_for_a_pool_that_is_being_made(name: str) -> None:
    attached: list[ShmPool] = []
    thread = threading.Thread(target=lambda: attached.append(ShmPool.attach(name, deadline_s=30)))
    thread.start()
    with small_pool(name) as pool:
        thread.join()
        assert [found.uuid for found in attached] == [pool.uuid]


def test_unnamed_pools_have_different_names() -> None:
    with ShmPool.create(**SMALL) as first, ShmPool.create(**SMALL) as second:
        assert first.name != second.name
        assert files(first.name) == files(second.name) == WHOLE


def test_segments_are_private_to_the_user(pool: ShmPool) -> None:
    assert {s.path.stat().st_mode & 0o777 for s in segments.find(pool.name)} == {0o600}


def test_cards_are_backed_at_once_and_hosts_when_used(pool: ShmPool) -> None:
    assert path(pool.name, 0).stat().st_blocks * 512 == MIB
    host = Segment(pool.name, "host", 0).path
    assert host.stat().st_blocks == 0
    pool.host_segment(0)[0] = 1
    assert host.stat().st_blocks * 512 == 4096


def test_close_keeps_files_and_memory_balanced(name: str) -> None:
    def open_files() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    with small_pool(name) as pool, ShmPool.attach(name) as attached:
        pool.host_segment(0)
        attached.close()
        attached.close()
        assert attached.cards == []
        with pytest.raises(PoolError, match="is closed"):
            attached.host_segment(0)
    assert open_files() == before
    assert name not in Path("/proc/self/maps").read_text()


def test_a_late_view_is_stale_but_never_a_crash(name: str) -> None:
    with small_pool(name) as pool:
        card = pool.cards[0]
        card[-1] = 5
    assert card[-1] == 5


def test_a_host_that_is_not_there_is_an_argument_error(pool: ShmPool) -> None:
    for host in (-1, 2):
        with pytest.raises(ArgumentError, match=f"host {host} is not one of the 2 hosts"):
            pool.host_segment(host)


# -- who removes the names, and when


@with_rows(
    "",
    "pool.unlink(); pool.unlink()",
    "raise RuntimeError('boom')",
    "with pool: sys.exit(3)",
    "del pool",
    "os.kill(os.getpid(), signal.SIGINT)",
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1)); os.kill(os.getpid(), signal.SIGTERM)",
)
def test_names_go_however_the_owner_ends(ending: str, name: str) -> None:
    result = run_script(CREATE + "print(len(os.listdir('/dev/shm')) > 3)\n" + ending, name)
    assert result.stdout == "True\n"
    assert files(name) == []


def test_a_forked_child_is_not_the_owner(name: str) -> None:
    script = CREATE + (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    with pool: sys.exit(pool.owner)\n"
        "print(os.waitpid(child, 0)[1], os.path.exists(f'/dev/shm/cxlemu-{pool.name}-card0'), pool.owner)\n"
    )
    result = run_script(script, name)
    assert (result.stdout, result.stderr) == ("0 True True\n", "")
    assert files(name) == []


def test_killing_an_attached_process_changes_nothing(name: str) -> None:
    with small_pool(name):
        with running(ATTACH, name):
            pass
        assert files(name) == WHOLE
    assert files(name) == []


def test_clean_removes_what_a_killed_owner_left_and_no_live_pool(name: str) -> None:
    with own_name() as live_name, small_pool(live_name):
        leave_dead_pool(name)
        verdicts = {verdict.name: verdict for verdict in catalog.clean(dry_run=True)}
        assert (verdicts[name].removed, verdicts[live_name].removed) == (True, False)
        assert files(name) == WHOLE
        assert [verdict.removed for verdict in catalog.clean(live_name)] == [False]
        assert [verdict.removed for verdict in catalog.clean(name)] == [True]
        assert (files(name), files(live_name)) == ([], WHOLE)


def test_clean_knows_whose_a_half_made_pool_was(name: str) -> None:
    dies_before_the_magic = (
        "import os, signal, cxlemu.pool.segments as segments\n"
        "segments.opened = lambda segment: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run_script(dies_before_the_magic + CREATE, name)
    assert files(name) == WHOLE
    (entry,) = catalog.entries(name)
    assert (entry.state, entry.complete) == ("dead", False)
    assert "is still incomplete" in refusal(name)
    assert [verdict.removed for verdict in catalog.clean(name)] == [True]
    assert files(name) == []


def test_clean_spares_a_pool_of_another_container(pool: ShmPool) -> None:
    for card in pool.cards:
        block = parse(card[:4096].tobytes(), "card")
        sign(card, replace(block, owner=replace(block.owner, pid=1, pid_namespace=1)))
    let_go(pool)
    (verdict,) = catalog.clean(pool.name)
    assert (verdict.removed, verdict.reason) == (False, "its owner, process 1, is in another container")


def test_clean_removes_segments_nobody_signed_only_when_old_and_unused(name: str) -> None:
    orphan = Segment(name, "host", 0)
    with segments.create(orphan, 4096) as fd:
        pages = segments.map_shared(fd, 4096)
    assert "is younger than" in catalog.clean(name)[0].reason
    os.utime(orphan.path, (0, 0))
    assert f"is in use by process {os.getpid()}" in catalog.clean(name)[0].reason
    assert files(name) == ["host0"]
    del pages
    gc.collect()
    assert catalog.clean(name)[0].removed
    assert files(name) == []


def test_clean_never_touches_another_users_segments(name: str) -> None:
    needs_root()
    leave_dead_pool(name)
    for segment in segments.find(name):
        os.chown(segment.path, 12345, -1)
    (verdict,) = catalog.clean(name)
    assert (verdict.removed, verdict.reason) == (False, "it belongs to user 12345")
    assert files(name) == WHOLE


# -- what create refuses


@pytest.mark.parametrize("bad", ["", "a/b", "..\n", "a b", "x" * 65, "ä"])
def test_bad_names_are_refused(bad: str) -> None:
    with pytest.raises(ArgumentError, match="pool name"):
        small_pool(bad)
    with pytest.raises(ArgumentError, match="pool name"):
        ShmPool.attach(bad)


@with_rows(("cards", 0), ("card_bytes", 8192), ("interleave_bytes", 100), ("hosts", -1), ("max_ranks", 0))
def test_impossible_geometry_is_an_argument_error(key: str, value: int, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{key} is {value}"):
        ShmPool.create(name, **{**SMALL, key: value})
    assert files(name) == []


def test_a_name_in_use_is_refused_and_the_pool_stays(pool: ShmPool) -> None:
    with pytest.raises(PoolError, match="exists already"):
        small_pool(pool.name)
    assert files(pool.name) == WHOLE


def test_losing_a_race_for_a_name_removes_only_what_was_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with segments.create(Segment(name, "host", 1), 4096):
        pass
    monkeypatch.setattr(segments, "find", lambda _: [])  # as seen before the other one came
    with pytest.raises(PoolError, match="host1 exists already"):
        small_pool(name)
    monkeypatch.undo()
    assert files(name) == ["host1"]


def test_a_pool_larger_than_dev_shm_is_refused(name: str) -> None:
    with pytest.raises(PoolError, match=r"B free, but this pool needs [\d.]+ TiB \(2 TiB for its cards"):
        ShmPool.create(name, **{**SMALL, "card_bytes": 1 << 40})
    assert files(name) == []


def test_room_for_host_caches_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 2 * MIB + 2 * host_segment_bytes(2, MIB)
    monkeypatch.setattr(segments, "free_bytes", lambda: needed - 1)
    with pytest.raises(PoolError, match=r"free, but this pool needs .* for its hosts' caches"):
        small_pool(name)
    monkeypatch.setattr(segments, "free_bytes", lambda: needed)
    with small_pool(name):
        assert files(name) == WHOLE


def test_running_full_half_way_leaves_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fallocate, calls = os.posix_fallocate, []

    def full_at_the_second_card(fd: int, offset: int, nbytes: int) -> None:
        calls.append(fd)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fallocate(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", full_at_the_second_card)
    with pytest.raises(PoolError, match="cannot be made in /dev/shm: No space left on device"):
        small_pool(name)
    assert len(calls) == 2
    assert files(name) == []


# -- what attach refuses


def test_a_missing_pool_is_refused_with_those_that_exist(pool: ShmPool) -> None:
    sentence = refusal(f"{pool.name}-no")
    assert sentence.startswith(f"there is no pool {pool.name}-no; existing pools: ")
    assert pool.name in sentence


def test_a_stale_pool_is_refused(name: str) -> None:
    leave_dead_pool(name)
    sentence = refusal(name)
    assert sentence.startswith(f"pool {name} is stale: its owner, process ")
    assert sentence.endswith(f"`cxlemu pool clean {name}`")


def test_another_users_segment_is_refused(pool: ShmPool) -> None:
    needs_root()
    os.chown(path(pool.name, 1), 12345, -1)
    assert f"card1 belongs to user 12345, not to user {os.geteuid()}" in refusal(pool.name)


def test_a_segment_that_others_may_open_is_refused(pool: ShmPool) -> None:
    path(pool.name, 1).chmod(0o640)
    assert "card1 is open to others: mode 0640, at most 0600 is safe" in refusal(pool.name)


def test_a_fifo_is_refused_without_blocking(name: str) -> None:
    os.mkfifo(path(name, 0), 0o600)
    assert "is not a shared-memory segment" in refusal(name)


def test_a_missing_card_is_refused(pool: ShmPool) -> None:
    segments.remove(Segment(pool.name, "card", 1))
    assert refusal(pool.name) == f"{path(pool.name, 1)} does not exist"


def test_a_card_too_many_is_refused(pool: ShmPool) -> None:
    with segments.create(Segment(pool.name, "card", 2), MIB):
        pass
    assert "card2 is one card too many" in refusal(pool.name)
    segments.remove(Segment(pool.name, "card", 2))


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of another user")
def test_a_file_of_another_user_is_no_card_of_ours(pool: ShmPool) -> None:
    strange = Segment(pool.name, "card", 7).path
    strange.touch(mode=0o600)
    try:
        os.chown(strange, 65534, 65534)
        with ShmPool.attach(pool.name) as attached:
            assert len(attached.cards) == len(pool.cards)
        os.chown(strange, 0, 0)
        assert "card7 is one card too many" in refusal(pool.name)
    finally:
        strange.unlink()


def test_a_card_of_another_size_is_refused(pool: ShmPool) -> None:
    os.truncate(path(pool.name, 1), 2 * MIB)
    assert f"card1 has {2 * MIB} bytes, its superblock says {MIB}" in refusal(pool.name)


def test_a_host_segment_of_another_size_is_refused(pool: ShmPool) -> None:
    os.truncate(Segment(pool.name, "host", 0).path, 4096)
    with pytest.raises(PoolError, match="host0 has 4096 bytes, a host of this pool needs 4263936"):
        pool.host_segment(0)


def test_a_card_of_another_pool_is_refused(pool: ShmPool) -> None:
    block = parse(pool.cards[1][:4096].tobytes(), "card 1")
    sign(pool.cards[1], replace(block, uuid=uuid.uuid4()))
    assert "card1 belongs to another pool" in refusal(pool.name)


def test_a_repeated_card_is_refused(pool: ShmPool) -> None:
    pool.cards[1][:4096] = pool.cards[0][:4096]
    assert "card1 says it is card 0, but card 1 was expected in its place" in refusal(pool.name)


def test_another_number_of_cards_is_refused(pool: ShmPool) -> None:
    block = parse(pool.cards[1][:4096].tobytes(), "card 1")
    sign(pool.cards[1], replace(block, geometry=replace(block.geometry, cards=3)))
    assert "disagree on geometry" in refusal(pool.name)


def test_another_layout_version_is_refused(pool: ShmPool) -> None:
    pool.cards[1][8:12] = np.frombuffer(struct.pack("<I", 2), dtype=np.uint8)
    assert "card1 has layout version 2, this cxlemu reads version 1" in refusal(pool.name)


def test_an_incomplete_pool_is_refused_at_the_deadline(pool: ShmPool) -> None:
    pool.cards[0][: len(MAGIC)] = np.frombuffer(UNFINISHED, dtype=np.uint8)
    assert "is still incomplete" in refusal(pool.name)


# -- where the pages lie


def test_pages_are_bound_to_their_node_in_every_process(name: str) -> None:
    """The kernel's own account: policy and node of every page, in the creator and in who attaches."""
    needs_numa()
    with ShmPool.create(name, **SMALL, numa_node=0) as pool, ShmPool.attach(name) as attached:
        assert [numa.node_of(card) for card in pool.cards + attached.cards] == [0, 0, 0, 0]
        assert all(card.max() >= 0 for card in pool.cards + attached.cards)  # touch: numa_maps counts those
        numa_maps = Path("/proc/self/numa_maps").read_text().splitlines()
        ours = [line.split() for line in numa_maps if f"cxlemu-{name}-card" in line]
        assert len(ours) == 4
        assert all(line[1] == "bind:0" and f"N0={MIB // 4096}" in line for line in ours)


def test_an_absent_node_is_refused_with_those_that_exist(name: str) -> None:
    with pytest.raises(PoolError, match=r"NUMA node 77 has no memory here; nodes with memory: (0|none)"):
        ShmPool.create(name, **SMALL, numa_node=77)
    assert files(name) == []


def test_a_kernel_that_refuses_to_place_pages_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "check_node", lambda node: None)
    with pytest.raises(PoolError, match=r"the kernel refuses mbind\(2\): "):
        ShmPool.create(name, **SMALL, numa_node=63)
    assert files(name) == []


def test_node_lists_read_as_sysfs_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "_SYSFS", tmp_path)
    assert numa.nodes_with_memory() == []
    (tmp_path / "has_memory").write_text("0-1,3\n")
    assert numa.nodes_with_memory() == [0, 1, 3]


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")


def needs_numa() -> None:
    try:
        numa.node_of(np.zeros(4096, dtype=np.uint8))
        numa.check_node(0)
    except PoolError as error:
        pytest.skip(str(error))
