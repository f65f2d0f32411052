"""`cxlemu pool format` and `show`: what is on a card is said, and overwritten only when that was agreed to."""

import json
import re
from pathlib import Path

import pytest

from cxlemu.cli import pool_devices
from cxlemu.pool import format as format_module
from cxlemu.pool.dax import DaxPool
from tests.helpers.card_files import MIB, blank_cards, cxlemu, device_flags, pool_of, unchanged
from tests.helpers.tables import with_rows

DATA = b"\x00" * 5000 + b"someone's data \x01\x02\x03" + bytes(MIB - 5018)


@pytest.fixture
def cards(tmp_path: Path) -> list[str]:
    return blank_cards(tmp_path, 3)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    class Sys:
        stdin = Terminal()

    monkeypatch.setattr(pool_devices, "sys", Sys)


def test_empty_cards_become_a_pool_in_the_order_given(cards: list[str]) -> None:
    output = cxlemu("pool", "format", *device_flags(cards[::-1]), "--interleave", "1K", "--max-ranks", "9").output
    assert f"{cards[0]}: file, 1 MiB, aligned to 4 KiB, MAP_SHARED; empty\n" in output
    with DaxPool.attach(cards) as pool:
        assert [card.device.path for card in pool.mapped] == cards[::-1]
        assert (pool.interleave_bytes, pool.max_ranks, pool.hosts) == (1024, 9, 0)
        assert output.endswith(
            f"formatted pool {pool.uuid}: 3 cards of 1 MiB, interleaved by 1 KiB, room for 9 ranks\n"
        )


def test_nothing_but_the_superblocks_is_written(cards: list[str]) -> None:
    Path(cards[1]).write_bytes(DATA)
    cxlemu("pool", "format", *device_flags(cards), "--yes")
    for path, before in zip(cards, (bytes(MIB), DATA, bytes(MIB)), strict=True):
        assert Path(path).read_bytes()[4096:] == before[4096:]


@pytest.mark.parametrize("what", ["data", "last byte", "pool", "unfinished", "damaged"])
def test_without_a_terminal_what_is_there_stays(cards: list[str], tmp_path: Path, what: str) -> None:
    uuid = pool_of(cards)
    Path(cards[0]).write_bytes(bytes(MIB))
    Path(cards[2]).write_bytes(bytes(MIB))
    card = Path(cards[1])
    expected = f"card 1 of 3 of cxlemu pool {uuid}"
    if what == "data":
        card.write_bytes(DATA)
        expected = "foreign data: 73 6f 6d 65 6f 6e 65 27 73 20 64 61 74 61 20 01 (someone's data .) at byte 5000"
    elif what == "last byte":
        card.write_bytes(bytes(MIB - 1) + b"x")
        expected = f"foreign data: 78 (x) at byte {MIB - 1}"
    elif what == "unfinished":
        card.write_bytes(bytes(8) + card.read_bytes()[8:])
        expected = f"unfinished {expected}"
    elif what == "damaged":
        card.write_bytes(card.read_bytes()[:50] + b"?" + card.read_bytes()[51:])
        expected = "foreign data: 43 58 4c 45 4d 55 53 42 "
    with unchanged(tmp_path):
        result = cxlemu("pool", "format", *device_flags(cards), code=2)
    assert f"{card}: file, 1 MiB, aligned to 4 KiB, MAP_SHARED; {expected}" in result.stdout
    assert result.stderr == (
        f"cxlemu: nothing was written: {card} would be overwritten, and there is no terminal to ask; add --yes\n"
    )


def test_at_a_terminal_the_answer_counts(cards: list[str], tmp_path: Path, terminal: None) -> None:
    Path(cards[1]).write_bytes(DATA)
    for answer, code in (("n\n", 2), ("\n", 2), ("", 1)):
        with unchanged(tmp_path):
            output = cxlemu("pool", "format", *device_flags(cards), code=code, stdin=answer).output
        assert f"Overwrite {cards[1]}? [y/N]: " in output
    cxlemu("pool", "format", *device_flags(cards), stdin="y\n")
    with DaxPool.attach(cards):
        pass


def test_yes_overwrites_a_pool_with_a_new_one(cards: list[str]) -> None:
    old = pool_of(cards)
    cxlemu("pool", "format", *device_flags(cards), "--yes")
    with DaxPool.attach(cards) as pool:
        assert pool.uuid != old


def test_files_are_made_where_a_size_is_given(cards: list[str], tmp_path: Path) -> None:
    new = [str(tmp_path / "new0"), str(tmp_path / "new1")]
    cxlemu("pool", "format", *device_flags([cards[0], *new]), "--create-size", "2M")
    assert [Path(path).stat().st_size for path in new] == [2 * MIB] * 2
    assert [Path(path).stat().st_blocks * 512 for path in new] == [2 * MIB] * 2  # no hole, and no SIGBUS later
    with DaxPool.attach([*new, cards[0]]) as pool:
        assert pool.card_bytes == MIB


def test_files_made_for_a_pool_that_was_refused_are_gone(cards: list[str], tmp_path: Path) -> None:
    Path(cards[0]).write_bytes(DATA)
    with unchanged(tmp_path):
        cxlemu("pool", "format", *device_flags([str(tmp_path / "new"), cards[0]]), "--create-size", "1M", code=2)


@with_rows(
    ([], "{dir}/new does not exist: give a device that `cxlemu doctor` lists, or a file"),
    (["--create-size", "100"], "{dir}/new has 100 B, which is less than its alignment, 4 KiB"),
    (["--create-size", "16K"], "these cards cannot become a pool: card_bytes is 16384, but must be"),
    (["--create-size", "1M", "--interleave", "100"], "these cards cannot become a pool: interleave_bytes is 100"),
    (["--create-size", "1M", "--max-ranks", "70000"], "these cards cannot become a pool: max_ranks is 70000"),
    (["--create-size", "1E"], "{dir}/new has no room for 1E: "),
    (["--device", "{dir}/card0", "--create-size", "1M"], "--device {dir}/card0 is given twice"),
)
def test_impossible_pools_are_refused_and_nothing_is_left(
    arguments: list[str], sentence: str, cards: list[str], tmp_path: Path
) -> None:
    flags = [argument.format(dir=tmp_path) for argument in arguments]
    with unchanged(tmp_path):
        result = cxlemu("pool", "format", *device_flags([cards[0], str(tmp_path / "new")]), *flags, code=2)
    assert sentence.format(dir=tmp_path) in result.stderr


@pytest.mark.parametrize("puts", range(9))
def test_an_interrupted_format_leaves_no_pool(cards: list[str], monkeypatch: pytest.MonkeyPatch, puts: int) -> None:
    """Three cards: three magics erased, three bodies, three magics. Neither the old pool nor half of the new one."""
    pool_of(cards)
    done = iter(range(puts))
    put = format_module._put

    def interrupted(*arguments: object) -> None:
        if next(done, None) is None:
            raise KeyboardInterrupt
        put(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(format_module, "_put", interrupted)
        cxlemu("pool", "format", *device_flags(cards), "--yes", code=130)
    if puts:
        result = cxlemu("run", "--backend", "dax", *device_flags(cards), code=2)
        assert re.search("is incomplete: its creator is still at work, or died", result.stderr)
    cxlemu("pool", "format", *device_flags(cards), "--yes")
    with DaxPool.attach(cards):
        pass


def test_show_says_what_devices_are_and_hold(cards: list[str], tmp_path: Path) -> None:
    uuid = pool_of(cards[:2])
    Path(cards[2]).write_bytes(DATA)
    with unchanged(tmp_path):
        lines = cxlemu("pool", "show", *device_flags(cards)).output.splitlines()
        rows = json.loads(cxlemu("pool", "show", *device_flags(cards), "--json", "-").output)
    assert lines[1] == f"{cards[1]}: file, 1 MiB, aligned to 4 KiB, MAP_SHARED; card 1 of 2 of cxlemu pool {uuid}"
    assert rows[1] == {
        "path": cards[1],
        "kind": "file",
        "nbytes": MIB,
        "align_bytes": 4096,
        "mapping": "MAP_SHARED",
        "content": "card",
        "text": f"card 1 of 2 of cxlemu pool {uuid}",
        "uuid": str(uuid),
        "card": 1,
        "cards": 2,
        "card_bytes": MIB,
        "interleave_bytes": 4096,
        "max_ranks": 16,
    }
    assert (rows[2]["content"], rows[2]["uuid"]) == ("foreign", None)
