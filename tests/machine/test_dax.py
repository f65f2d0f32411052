"""Pools on devices, here files in their place: attached in any order, refused with a sentence, used again and again."""

import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np
import posix_ipc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from cxlemu.errors import ArgumentError, PoolError
from cxlemu.memory import MemorySpec
from cxlemu.memory import dax as dax_memory
from cxlemu.pool.dax import DaxPool
from cxlemu.pool.superblock import PACKED_BYTES
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch
from cxlemu.world.topology_of import machine
from tests.helpers.card_files import MIB, blank_cards, cxlemu, device_flags, pool_of, unchanged
from tests.helpers.pool_helpers import own_name, small_pool
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples


@pytest.fixture
def cards(tmp_path: Path) -> list[str]:
    return blank_cards(tmp_path, 6)


# -- it works


@pytest.mark.deep(rows=lambda how: how == "processes")
@pytest.mark.each_value_once
@pytest.mark.parametrize("how", ["threads", "processes"])
@pytest.mark.parametrize("engine", ["reference", "native"])
def test_all_eight_collectives_run_on_six_cards(cards: list[str], how: str, engine: str) -> None:
    pool_of(cards)
    sizes = ["-b", "32", "-e", "32K", "-f", "32", "--iters", "2", "--deadline-s", "30"]
    flags = ["--backend", "dax", *device_flags(cards), "-n", "4", "--launch", how, "--engine", engine]
    assert "# 24 results, 0 wrong, " in cxlemu("run", *flags, *sizes).output


@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(6)))
def test_cards_are_attached_in_any_order(cards: list[str], order: list[int]) -> None:
    uuid = pool_of(cards)
    with DaxPool.attach([cards[index] for index in order]) as pool:
        assert [card.device.path for card in pool.mapped] == cards
        assert (pool.uuid, pool.card_bytes, pool.interleave_bytes, pool.max_ranks) == (uuid, MIB, 4096, 16)


def test_two_attached_pools_share_their_bytes(cards: list[str]) -> None:
    pool_of(cards)
    with DaxPool.attach(cards) as one, DaxPool.attach(cards[::-1]) as other:
        here, there = dax_memory.DaxMemory(one.cards), dax_memory.DaxMemory(other.cards)
        here.write(3, one.data_offset, np.full(1, 42, np.uint8))
        here.flush(3, one.data_offset, 1)
        here.fence()
        there.invalidate(3, other.data_offset, 1)
        there.read(3, other.data_offset, byte := np.zeros(1, np.uint8))
        assert byte == 42


def test_with_a_uuid_its_cards_are_chosen_among_all(cards: list[str], tmp_path: Path) -> None:
    odd, even = pool_of(cards[1::2]), pool_of(cards[::2])
    others = blank_cards(tmp_path, 1, name="blank")
    for uuid, expected in ((odd, cards[1::2]), (even, cards[::2])):
        with DaxPool.attach([*others, *cards], uuid) as pool:
            assert [card.device.path for card in pool.mapped] == expected


def test_attaching_writes_nothing(cards: list[str], tmp_path: Path) -> None:
    pool_of(cards)
    with unchanged(tmp_path), DaxPool.attach(cards):
        pass


def test_the_smallest_card_counts(tmp_path: Path) -> None:
    cards = [*blank_cards(tmp_path, 2, 2 * MIB), *blank_cards(tmp_path, 1, MIB + 5000, name="small")]
    pool_of(cards)
    with DaxPool.attach(cards) as pool:
        assert [card.nbytes for card in pool.cards] == [MIB + 4096] * 3


def meet(context: RankContext) -> int:
    context.session.barrier(context.deadline_s)
    return len(context.pool.cards)


def test_no_shared_memory_is_needed(cards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pool_of(cards)
    monkeypatch.setattr(posix_ipc, "SharedMemory", None)
    assert launch(meet, ranks=3, memory=MemorySpec("dax", devices=tuple(cards))) == [6] * 3


# -- which machine


def test_without_a_config_the_machine_has_the_devices_as_cards(cards: list[str]) -> None:
    uuid = pool_of(cards[:4], interleave_bytes=1024)
    derived = machine(None, MemorySpec("dax", devices=tuple(cards[:4])))
    assert (derived.name, derived.description, derived.card_count) == ("devices", f"pool {uuid}", 4)
    assert (derived.card_bytes, derived.interleave_bytes) == (MIB, 1024)
    assert machine(derived, MemorySpec("dax", devices=tuple(cards[:4]))) == derived
    Topology.model_validate(derived.model_dump())  # it is a whole machine


def test_a_config_must_have_as_many_cards(cards: list[str]) -> None:
    uuid = pool_of(cards[:4])
    sentence = f"laptop has 2 cards, but pool {uuid} has 4: leave the config out, or give one with as many"
    with pytest.raises(ArgumentError) as caught:
        machine("laptop", MemorySpec("dax", devices=tuple(cards[:4])))
    assert str(caught.value) == sentence
    pool_of(cards[:2], interleave_bytes=1024)
    chosen = machine("laptop", MemorySpec("dax", devices=tuple(cards[:2])))
    assert (chosen.name, chosen.interleave_bytes, chosen.card_bytes) == ("laptop", 1024, MIB)


# -- what is refused


def damaged(cards: list[str]) -> None:
    with Path(cards[2]).open("r+b") as file:
        file.seek(40)
        file.write(b"\xff")


def of_another_version(cards: list[str]) -> None:
    with Path(cards[2]).open("r+b") as file:
        head = bytearray(file.read(PACKED_BYTES - 4))
        head[8:12] = struct.pack("<I", 7)
        file.seek(0)
        file.write(head + struct.pack("<I", zlib.crc32(head)))


def unfinished(cards: list[str]) -> None:
    with Path(cards[2]).open("r+b") as file:
        file.write(bytes(8))


def foreign(cards: list[str]) -> None:
    Path(cards[2]).write_bytes(b"precious" * (MIB // 8))


def blank(cards: list[str]) -> None:
    Path(cards[2]).write_bytes(bytes(MIB))


def empty(cards: list[str]) -> None:
    Path(cards[2]).write_bytes(b"")


def too_small(cards: list[str]) -> None:
    os.truncate(cards[2], MIB - 4096)


def missing_card(cards: list[str]) -> None:
    del cards[4], cards[1]


def copied(cards: list[str]) -> None:
    shutil.copy(cards[2], cards[4])


def twice(cards: list[str]) -> None:
    cards.append(cards[2])


def linked(cards: list[str]) -> None:
    Path(cards[0]).with_name("link").symlink_to(cards[2])
    cards.append(str(Path(cards[0]).with_name("link")))


def of_another_pool(cards: list[str]) -> None:
    other = blank_cards(Path(cards[0]).parent, 6, name="other")
    pool_of(other)
    cards[2] = other[2]


def gone(cards: list[str]) -> None:
    cards[2] = str(Path(cards[0]).with_name("nothing"))


def directory(cards: list[str]) -> None:
    cards[2] = str(Path(cards[2]).parent)


def pipe(cards: list[str]) -> None:
    Path(cards[2]).unlink()
    os.mkfifo(cards[2])


def none_at_all(cards: list[str]) -> None:
    cards.clear()


def character_device(cards: list[str]) -> None:
    cards[2] = "/dev/null"


def unprintable(cards: list[str]) -> None:
    cards[2] = "a\0b"


@with_rows(
    (damaged, "{2} has a damaged superblock: its CRC is wrong"),
    (of_another_version, "{2} has layout version 7, this cxlemu reads version 1"),
    (unfinished, "{2} is incomplete: its creator is still at work, or died"),
    (foreign, "{2} is not a cxlemu card: it starts with b'precious' instead of b'CXLEMUSB'"),
    (blank, "{2} is not formatted: `cxlemu pool format` makes a pool of cards"),
    (empty, "{2} has 0 B, which is less than its alignment, 4 KiB"),
    (too_small, "{2} has 1044480 bytes in whole pages of 4096, its superblock says 1048576"),
    (missing_card, "pool {uuid} has 6 cards, but its card 1, 4 is not among {0}, {2}, {3}, {5}"),
    (copied, "{2} and {4} both claim to be card 2 of pool {uuid}: one is a copy"),
    (twice, "{2} and {2} are one device, and so one card"),
    (linked, "{2} and {dir}/link are one device, and so one card"),
    (
        of_another_pool,
        "{0} belongs to pool {uuid}, but {dir}/other2 to pool {other}: "
        "give the cards of one pool, or choose one with --pool",
    ),
    (
        gone,
        "{dir}/nothing does not exist: give a device that `cxlemu doctor` lists, or a file, as `cxlemu pool format "
        "--create-size 64M` makes",
    ),
    (directory, "{dir} is neither a device nor a regular file"),
    (pipe, "{2} is neither a device nor a regular file"),
    (none_at_all, "a pool of real cards needs its devices: give --device once for every card"),
    (character_device, "/dev/null is a character device but not a device-DAX: /sys/dev/char/1:3 links to none"),
    (unprintable, "a\0b cannot be opened: embedded null byte"),
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_is_wrong_with_the_cards_is_one_sentence_and_nothing_is_written(
    defect: Callable[[list[str]], None], sentence: str, cards: list[str], tmp_path: Path
) -> None:
    uuid, paths = pool_of(cards), list(cards)
    defect(cards)
    other = ""
    if defect is of_another_pool:
        with DaxPool.attach([str(tmp_path / f"other{index}") for index in range(6)]) as pool:
            other = str(pool.uuid)
    expected = sentence.format(*paths, uuid=uuid, dir=tmp_path, other=other)
    with unchanged(tmp_path):
        with pytest.raises((PoolError, ArgumentError)) as caught:
            DaxPool.attach(cards)
        assert str(caught.value) == expected
        if "\0" not in expected:
            result = cxlemu("run", "--backend", "dax", *device_flags(cards), code=2)
            said = "--device {2} is given twice".format(*paths) if defect is twice else expected
            assert result.stderr == f"cxlemu: {said}\n"


def test_a_uuid_that_no_card_has_is_refused(cards: list[str]) -> None:
    pool_of(cards)
    wanted = uuid4()
    with pytest.raises(PoolError) as caught:
        DaxPool.attach(cards, wanted)
    assert str(caught.value) == f"none of {', '.join(cards)} is a card of pool {wanted}"


def test_a_card_that_may_not_be_written_is_refused() -> None:
    user = os.geteuid()
    nobody = 65534 if user == 0 else user  # no mode stops root
    with tempfile.TemporaryDirectory() as directory:
        [card] = blank_cards(Path(directory), 1)
        pool_of([card])
        Path(directory).chmod(0o755)
        Path(card).chmod(0o444)
        os.seteuid(nobody)
        try:
            with pytest.raises(PoolError) as caught:
                DaxPool.attach([card])
        finally:
            os.seteuid(user)
    assert str(caught.value) == f"{card} may not be read and written by user {nobody}: see its permissions"


def test_a_card_of_an_emulated_pool_is_refused() -> None:
    with own_name() as name, small_pool(name) as pool:
        with pytest.raises(PoolError) as caught:
            DaxPool.attach([f"/dev/shm/cxlemu-{name}-card0", f"/dev/shm/cxlemu-{name}-card1"])
        assert str(caught.value) == (
            f"/dev/shm/cxlemu-{pool.name}-card0 is a card of an emulated pool, which ends with process {os.getpid()}"
        )


@with_rows(
    (["--device", "card0"], "devices and their pool are for the backend 'dax', not for 'emulated'"),
    (["--backend", "shm", "--device", "card0"], "devices and their pool are for the backend 'dax', not for 'shm'"),
    (["--backend", "dax"], "a pool of real cards needs its devices: give --device once for every card"),
    (["--backend", "dax", "--adversary", "1"], "needs emulated caches, which the backend 'dax' does not have"),
    (["--backend", "dax", "--pool", "1"], "'1' is not a valid UUID."),
)
def test_flags_that_do_not_fit_are_refused(arguments: list[str], sentence: str) -> None:
    assert sentence in cxlemu("run", *arguments, code=2).stderr


def test_a_name_for_a_pool_on_devices_is_refused(cards: list[str]) -> None:
    pool_of(cards)
    with pytest.raises(ArgumentError, match=r"^a pool on devices has a UUID and takes no name such as 'mine'$"):
        launch(meet, ranks=1, memory=MemorySpec("dax", devices=tuple(cards)), pool_name="mine")


def test_a_machine_without_known_instructions_is_refused(cards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pool_of(cards)
    monkeypatch.setattr(dax_memory._native, "lines_instructions", lambda: "")
    with pytest.raises(ArgumentError, match=r"^the cache-line instructions of this machine are not known: "):
        DaxPool.attach(cards)


def test_more_ranks_than_a_pool_was_formatted_for_are_refused(cards: list[str]) -> None:
    pool_of(cards, max_ranks=3)
    result = cxlemu("run", "--backend", "dax", *device_flags(cards), "-n", "4", "--launch", "threads", code=2)
    assert result.stderr == "cxlemu: 4 ranks do not fit: this pool has room for 1 to 3\n"


# -- what is printed


def test_a_run_says_what_it_runs_on(cards: list[str]) -> None:
    uuid = pool_of(cards[:2])
    flags = ["barrier", "-n", "2", "--launch", "threads", "-v"]
    output = cxlemu("run", "--backend", "dax", *device_flags(cards[1::-1]), *flags).output
    for line in (
        f"# config   devices: pool {uuid}\n",
        "# ranks    2 ranks, launch: threads\n",
        "# backend  dax: coherence within a host only; nothing is elided\n",
        f"# cards    2 of 1 MiB, interleaved by 4 KiB: {cards[0]} (file, MAP_SHARED), {cards[1]} (file, MAP_SHARED)\n",
    ):
        assert line in output
    assert "# host" not in output
    assert (
        "# backend  shm: coherence: a store is in the pool at once, a load is never stale; elided: FLUSH, FENCE, "
        "INVALIDATE, PUSH, FETCH; in their place: the release of SIGNAL and the acquire of WAIT\n"
    ) in cxlemu("run", "--backend", "shm", "-c", "laptop", *flags).output
    emulated = cxlemu("run", "-c", "laptop", *flags).output
    assert "# backend  emulated: nothing: another host's stores are visible" in emulated


def test_bytes_of_non_temporal_stores_replace_no_neighbours(cards: list[str]) -> None:
    pool_of(cards[:1])
    with DaxPool.attach(cards[:1]) as pool:
        memory, at = MemorySpec("dax").open(pool.cards, host_cache=None, host=0, rank=0), pool.data_offset
        pool.cards[0][at : at + 512] = 1
        memory.write_nt(0, at + 70, np.full(300, 2, np.uint8))
        memory.fence()
        assert pool.cards[0][at : at + 512].tolist() == [1] * 70 + [2] * 300 + [1] * 142


def test_files_are_not_called_real_cards(tmp_path: Path) -> None:
    file = tmp_path / "card"
    file.touch()
    assert MemorySpec("dax", devices=(str(file),)).describe().startswith("files in place of devices, reached with ")
    assert MemorySpec("dax", devices=("/dev/null",)).describe().startswith("real cards, reached with ")
