"""The protocols that are shipped, as programs in C: ``--every`` is right of the right ones, and finds each mistake."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cxlemu.cli import main
from tests.faults.test_exec_every import EXAMPLES
from tests.helpers.pool_programs import build, on_x86

pytestmark = on_x86
# Each with its hosts. Not examples/protocols/shrink.py, which is made of code of cxlemu itself, in Python.
PROTOCOLS = {
    "early_free": 2,
    "early_ready": 2,
    "fast_mutex": 2,
    "granted_lock": 2,
    "group_room": 3,
    "once": 2,
    "reread_lock": 2,
    "ring_queue": 2,
    "shared_line": 2,
    "spsc_ring": 2,
    "unflushed_index": 2,
}
RACING = {"fast_mutex", "reread_lock"}  # hosts store to one word at once, which the checker calls a mistake in any case
SLOW = {"fast_mutex", "group_room", "once", "spsc_ring"}


@pytest.fixture(scope="module")
def right() -> Path:
    return build("shipped.c", f"-I{EXAMPLES}")


@pytest.fixture(scope="module")
def wrong() -> Path:
    return build("shipped.c", f"-I{EXAMPLES}", "-DBUG")


def search(words: str, *flags: str) -> tuple[int, int]:
    """Return the exit code, and how many executions there are."""
    every = ["exec", "--every", "--budget", "10m", "--no-shrink", "--json", "-", *flags, "--", *words.split()]
    its = CliRunner().invoke(main, every)
    return its.exit_code, json.loads(its.stdout)["every"]["executions"]


def search_protocol(program: Path, name: str) -> tuple[int, int]:
    words = " : ".join(f"{program} {name} {host}" for host in range(PROTOCOLS[name]))
    words += f" :: {program} {name} check" * (name == "shared_line")
    flags = ["--no-check"] * (name in RACING)
    return search(words, "--pool", "/dev/shm/shipped=2M", "--hosts", str(PROTOCOLS[name]), *flags)


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.deep(rows=lambda name: name in SLOW)
def test_a_right_one_is_ok_in_every_interleaving(right: Path, name: str) -> None:
    code, executions = search_protocol(right, name)
    assert code == 0 and executions > 0


@pytest.mark.parametrize("name", PROTOCOLS)
def test_each_mistake_is_found(wrong: Path, name: str) -> None:
    assert search_protocol(wrong, name)[0] == 1


def test_a_queue_with_two_locks_loses_a_message_where_the_tail_is_read_too_early() -> None:
    for flags, hosts, expected in (((), ("0 2 e", "1 2 d"), 0), (("-DBUG",), ("0 2 edd", "1 2 e"), 1)):
        program = build(EXAMPLES / "two_lock_queue.c", *flags)
        words = " : ".join(f"{program} {host}" for host in hosts)
        assert search(words, "--pool", "/dev/shm/two_lock=2M")[0] == expected
