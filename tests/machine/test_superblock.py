import os
import subprocess
import sys
import uuid
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.errors import PoolError
from cxlemu.memory import host_segment_bytes
from cxlemu.pool.owner import Owner
from cxlemu.pool.superblock import (
    MAGIC,
    PACKED_BYTES,
    SESSION_OFFSET,
    SUPERBLOCK_BYTES,
    UNFINISHED,
    Geometry,
    Superblock,
    check_pool,
    data_offset,
    parse,
)
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples

MIB = 1 << 20
GEOMETRY = Geometry(cards=3, hosts=2, max_ranks=16, card_bytes=MIB, interleave_bytes=4096)
CARD_1 = Superblock.new(GEOMETRY, Owner.current()).for_card(1)
ON_CARD = CARD_1.pack().ljust(SUPERBLOCK_BYTES, b"\0")

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)


def test_a_superblock_reads_back_as_it_was_written() -> None:
    assert parse(ON_CARD, "card") == CARD_1


def test_every_single_flipped_bit_is_noticed() -> None:
    for bit in range(8 * PACKED_BYTES):
        flipped = bytearray(ON_CARD)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PoolError):
            parse(bytes(flipped), "card")


@examples(200)
@given(start=st.integers(0, SUPERBLOCK_BYTES), noise=st.binary(max_size=64), length=st.integers(0, 5000))
def test_overwritten_and_truncated_superblocks_are_refused_or_the_same(start: int, noise: bytes, length: int) -> None:
    damaged = (ON_CARD[:start] + noise + ON_CARD[start + len(noise) :])[:length]
    try:
        assert parse(damaged, "card") == CARD_1
    except PoolError as error:
        assert str(error).startswith("card ")


@examples(200)
@given(
    geometry=st.builds(Geometry, *[u32 | st.integers(0, 8)] * 3, u64 | st.just(MIB), u64 | st.just(4096)),
    card=u32 | st.integers(0, 8),
    owner=st.builds(Owner, u32, u32, u64, u64, st.uuids()),
    created_ns=u64,
)
def test_a_right_crc_does_not_excuse_impossible_values(
    geometry: Geometry, card: int, owner: Owner, created_ns: int
) -> None:
    written = Superblock(uuid.uuid4(), card, geometry, owner, created_ns)
    if geometry.flaw() is None and card < geometry.cards:
        assert parse(written.pack(), "card") == written
    else:
        with pytest.raises(PoolError, match="impossible"):
            parse(written.pack(), "card")


@with_rows(
    ({"cards": 0}, "cards is 0, but must be 1 to 1024"),
    ({"cards": 1025}, "cards is 1025"),
    ({"hosts": 65537}, "hosts is 65537, but must be 0 to 65536"),
    ({"max_ranks": 65537}, "max_ranks is 65537"),
    ({"card_bytes": data_offset(16)}, "card_bytes is 8192, but must be 12288 (room for 16 ranks) to "),
    ({"card_bytes": MIB + 64}, "card_bytes is 1048640"),
    ({"interleave_bytes": 128}, "interleave_bytes is 128, but must be a power of two from 256 to 16777216"),
    ({"interleave_bytes": 768}, "interleave_bytes is 768"),
    ({"interleave_bytes": 32 * MIB}, "interleave_bytes is 33554432"),
)
def test_impossible_geometry_is_named(change: dict[str, int], sentence: str) -> None:
    flaw = replace(GEOMETRY, **change).flaw()
    assert flaw.startswith(sentence)


def test_each_kind_of_damage_has_its_own_sentence() -> None:
    def sentence(data: bytes) -> str:
        with pytest.raises(PoolError) as caught:
            parse(data, "card 1")
        return str(caught.value)

    head = MAGIC + (2).to_bytes(4, "little") + ON_CARD[12 : PACKED_BYTES - 4]
    next_version = head + zlib.crc32(head).to_bytes(4, "little")
    assert sentence(b"short") == f"card 1 is cut short: 5 bytes, a superblock needs {PACKED_BYTES}"
    assert sentence(b"ELF\x7f" + ON_CARD[4:]).startswith("card 1 is not a cxlemu card")
    assert sentence(UNFINISHED + ON_CARD[8:]).startswith("card 1 is incomplete")
    assert sentence(next_version) == "card 1 has layout version 2, this cxlemu reads version 1"
    assert sentence(ON_CARD[:-1].replace(CARD_1.uuid.bytes, bytes(16))) == (
        "card 1 has a damaged superblock: its CRC is wrong"
    )


def test_cards_must_be_one_pool_in_order() -> None:
    blocks = [CARD_1.for_card(index) for index in range(3)]
    names = ["a", "b", "c"]
    check_pool(blocks, names)
    with pytest.raises(PoolError, match=r"^c belongs to another pool"):
        check_pool([*blocks[:2], replace(blocks[2], uuid=uuid.uuid4())], names)
    with pytest.raises(PoolError, match=r"^c says it is card 1, but card 2 was expected in its place"):
        check_pool([blocks[0], blocks[1], blocks[1]], names)
    with pytest.raises(PoolError, match=r"^c and a disagree on geometry"):
        check_pool([*blocks[:2], replace(blocks[2], geometry=replace(GEOMETRY, cards=4))], names)


def test_areas_of_a_card_do_not_overlap() -> None:
    assert SESSION_OFFSET == SUPERBLOCK_BYTES >= PACKED_BYTES
    assert data_offset(1) == 8192
    assert data_offset(21) == 8192  # 64 lines fill the page exactly
    assert data_offset(22) == 12288
    assert host_segment_bytes(2, MIB) == 2 * (2 * MIB + 2 * MIB // 64) + 4096 == 4263936  # a page for the lock
    assert host_segment_bytes(1, 4096) == 12288  # 8384 rounded up to whole pages


def test_this_process_is_alive() -> None:
    assert Owner.current().pid == os.getpid()
    assert Owner.current().state() == "alive"


def test_a_reused_pid_is_not_the_owner() -> None:
    owner = Owner.current()
    assert replace(owner, start_ticks=owner.start_ticks - 1).state() == "dead"


def test_nobody_survives_a_reboot() -> None:
    assert replace(Owner.current(), boot_id=uuid.uuid4()).state() == "dead"


def test_a_pid_of_another_container_says_nothing() -> None:
    assert replace(Owner.current(), pid_namespace=1).state() == "unknown"


def test_a_killed_owner_is_dead_before_and_after_it_is_reaped() -> None:
    script = (
        "import time; from cxlemu.pool.owner import Owner; "
        "print(Owner.current().start_ticks, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        owner = replace(Owner.current(), pid=process.pid, start_ticks=int(process.stdout.readline()))
        assert owner.state() == "alive"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # now it is a zombie
        assert owner.state() == "dead"
    assert owner.state() == "dead"
