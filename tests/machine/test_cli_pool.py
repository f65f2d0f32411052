import json
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.pool import segments
from cxlemu.pool.segments import Segment
from cxlemu.pool.shm import ShmPool
from cxlemu.pool.superblock import PACKED_BYTES
from tests.helpers.commands import cxlemu
from tests.helpers.pool_helpers import MIB, SMALL, WHOLE, files, leave_dead_pool, let_go, own_name, small_pool
from tests.helpers.tiers import examples

cxlemu_pool = partial(cxlemu, "pool", columns=200)


@pytest.fixture
def name() -> Iterator[str]:
    with own_name() as fresh:
        yield fresh


@pytest.fixture
def pool(name: str) -> Iterator[ShmPool]:
    with small_pool(name) as made:
        yield made


def listed(name: str) -> dict[str, Any]:
    result = cxlemu_pool("list", "--json", "-", code=0)
    (row,) = (row for row in json.loads(result.output) if row["name"] == name)
    return dict(row)


def refused(result: Result, sentence: str) -> bool:
    """Exit code 2 and exactly one line that holds the sentence."""
    lines = result.output.splitlines()
    return result.exit_code == 2 and len(lines) == 1 and lines[0].startswith("cxlemu: ") and sentence in lines[0]


def test_list_shows_a_live_pool(pool: ShmPool) -> None:
    row = listed(pool.name)
    assert row.pop("age_s") is not None
    assert row == {
        "name": pool.name,
        "cards": 2,
        "cards_bytes": 2 * MIB,
        "hosts": 2,
        "uid": os.geteuid(),
        "owner_pid": os.getpid(),
        "state": "alive",
        "complete": True,
        "mode": "0600",
        "damage": [],
    }
    (line,) = (line for line in cxlemu_pool("list").output.splitlines() if pool.name in line)
    assert line.split()[:7] == [pool.name, "2", "2", "MiB", "2", str(os.getpid()), "alive"]


def test_list_shows_a_dead_pool(name: str) -> None:
    leave_dead_pool(name)
    assert listed(name)["state"] == "dead"


def test_list_shows_damage_and_goes_on(pool: ShmPool) -> None:
    pool.cards[1][:PACKED_BYTES] = 0xFF
    row = listed(pool.name)
    assert (row["state"], row["owner_pid"]) == ("alive", os.getpid())
    (damage,) = row["damage"]
    assert f"{pool.name}-card1 is not a cxlemu card" in damage
    pool.cards[0][40] ^= 0xFF
    let_go(pool)
    assert (listed(pool.name)["state"], listed(pool.name)["owner_pid"]) == ("damaged", None)
    assert f"damaged: /dev/shm/cxlemu-{pool.name}-card0 has a damaged superblock" in cxlemu_pool("list").output


def test_inspect_tells_pool_cards_and_hosts(pool: ShmPool) -> None:
    pool.host_segment(1)[0] = 1
    facts = json.loads(cxlemu_pool("show", pool.name, "--json", "-").output)
    assert (facts["uuid"], facts["data_offset"]) == (str(pool.uuid), pool.data_offset)
    assert (facts["owner"]["state"], facts["owner"]["pid"]) == ("alive", os.getpid())
    assert [card["segment"] for card in facts["cards"]] == [f"/dev/shm/cxlemu-{pool.name}-card{i}" for i in (0, 1)]
    assert [host["used_bytes"] for host in facts["hosts"]] == [0, 4096]
    text = cxlemu_pool("show", pool.name).output
    assert all(word in text for word in (str(pool.uuid), f"{pool.name}-card1", f"{pool.name}-host1"))


def test_inspect_tells_a_pool_without_hosts(name: str) -> None:
    pool = ShmPool.create(name, **(SMALL | {"hosts": 0}))
    try:
        assert cxlemu_pool("show", name, code=0).output.splitlines()[-1].startswith("1 ")  # the last card
    finally:
        pool.unlink()


def test_inspect_refuses_what_is_not_there(name: str) -> None:
    assert refused(cxlemu_pool("show", name), f"there is no pool {name}; existing pools: ")
    assert refused(cxlemu_pool("show", "a/b"), "pool name 'a/b'")
    assert refused(cxlemu_pool("clean", name), f"there is no pool {name}; existing pools: ")


@examples(40)
@given(card=st.integers(0, 1), start=st.integers(0, PACKED_BYTES - 1), noise=st.binary(min_size=1, max_size=32))
def test_inspect_of_an_overwritten_superblock_is_one_sentence(card: int, start: int, noise: bytes) -> None:
    with own_name() as name, small_pool(name) as pool:
        end = min(start + len(noise), PACKED_BYTES)
        before = pool.cards[card][start:end].tobytes()
        pool.cards[card][start:end] = np.frombuffer(noise[: end - start], dtype=np.uint8)
        result = cxlemu_pool("show", name)
        if before == noise[: end - start]:
            assert result.exit_code == 0
        else:
            assert refused(result, f"cxlemu-{name}-card{card}")


@examples(40)
@given(content=st.binary(max_size=5000), head=st.integers(0, PACKED_BYTES))
def test_any_file_under_a_pools_name_is_one_sentence_and_never_breaks_list(content: bytes, head: int) -> None:
    with own_name() as name:
        with small_pool(name) as pool:
            packed = pool.cards[0][:head].tobytes()
        with segments.create(Segment(name, "card", 0), 0) as fd:
            os.write(fd, packed + content)
        assert refused(cxlemu_pool("show", name), f"cxlemu-{name}-card0")
        assert listed(name)["cards"] == 1


def test_clean_says_what_it_would_do_then_does_it(name: str) -> None:
    leave_dead_pool(name)
    would = cxlemu_pool("clean", name, "--dry-run").output
    assert would.startswith(f"would remove {name} (4 segments): its owner, process ")
    assert files(name) == WHOLE
    assert cxlemu_pool("clean", name).output == would.replace("would remove", "removed")
    assert files(name) == []


def test_clean_leaves_a_live_pool_and_says_why(pool: ShmPool) -> None:
    result = cxlemu_pool("clean", pool.name)
    assert result.output == f"left {pool.name} (4 segments): its owner, process {os.getpid()}, is alive\n"
    assert files(pool.name) == WHOLE


@pytest.mark.parametrize("verb", [[], ["list"], ["show"], ["clean"]])
def test_every_help_shows_examples(verb: list[str]) -> None:
    assert "Examples:\n" in cxlemu_pool(*verb, "--help").output
