"""Protocols executed by real ranks: on every memory, held to what the explorer says can happen; and the command."""

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from cxlemu.errors import ArgumentError, RunError
from cxlemu.memory import WORST_CASE, HostCache, MemorySpec
from cxlemu.memory.dax import DaxMemory
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import HostMemory
from cxlemu.pool.arena import Arena
from cxlemu.world import launch
from faults.explore.exhaustive import exhaustive
from faults.explore.programs import (
    Crash,
    Fence,
    Flush,
    Invalidate,
    Load,
    ProtocolOperation,
    RankProtocol,
    Signal,
    Steps,
    Store,
    StoreNT,
    Wait,
    protocol,
)
from faults.explore.result import Budget
from faults.machine.program import Do, Step, Word
from faults.machine.steps import Machine
from faults.protocols.memory import WordMemory
from faults.protocols.places import PoolAddress, WordAddresses, over_cards
from faults.protocols.rank import TEXT_CHARS, Ending, How
from faults.protocols.reports import REPORT_BYTES, Reports
from faults.protocols.run import ProtocolRun, run
from tests.helpers import commands
from tests.helpers.card_files import blank_cards, device_flags, pool_of
from tests.helpers.tables import with_rows
from tests.machine.test_launchers import environment, torchrun

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "protocols").glob("*.py"))
# Two ranks that are in a lock at once are too rare in runs; the explorer finds them.
SHOWN_BY_RUNS = [file for file in EXAMPLES if "cxlemu run " in file.read_text()]
DEADLINE_S = 20.0
OFF = (None,) * 5


cxlemu = partial(commands.cxlemu, "run")


def runs_of(
    tested: RankProtocol,
    ranks: int = 2,
    seeds: Sequence[int | None] = OFF,
    *,
    memory: MemorySpec = WORST_CASE,
    deadline_s: float = DEADLINE_S,
) -> list[ProtocolRun]:
    """Its ranks are threads."""
    seen: list[Any] = []
    hosts = tested.hosts(ranks)
    main = partial(run, protocol=tested, seeds=seeds)
    launch(main, ranks=ranks, memory=memory, deadline_s=deadline_s, on_message=seen.append, hosts=hosts)
    return seen


def ranks_of(run: ProtocolRun) -> list[tuple[How, str]]:
    return [(ending.how, ending.result or ending.text) for ending in run.endings]


# -- words in lines


def test_lines_are_dealt_to_the_cards_and_words_lie_side_by_side() -> None:
    lines = over_cards(5, 2, 4096)
    assert lines == (
        PoolAddress(0, 4096),
        PoolAddress(1, 4096),
        PoolAddress(0, 4160),
        PoolAddress(1, 4160),
        PoolAddress(0, 4224),
    )
    places = WordAddresses.of([Word("a", 2), Word("b", 2), Word("c", 1)], lines)
    assert places.words == (PoolAddress(0, 4160), PoolAddress(0, 4168), PoolAddress(1, 4096))
    assert [place.slot for place in places.words] == [0, 1, 0]
    assert places.words[1].line == lines[2]


def test_a_line_has_room_for_eight_words() -> None:
    words = [Word(f"w{number}", 0) for number in range(9)]
    assert WordAddresses.of(words[:8], over_cards(1, 1, 0)).words[-1] == PoolAddress(0, 56)
    with pytest.raises(ArgumentError, match=r"a line has room for 8 words of 8 bytes, not for w0 w1 .* w8"):
        WordAddresses.of(words, over_cards(1, 1, 0))


CARD = Callable[[np.ndarray], HostMemory]
MEMORIES: dict[str, CARD] = {
    "emulated": lambda card: WORST_CASE.open([card], host_cache=HostCache.private([card]), host=0, rank=0),
    "shm": lambda card: DirectMemory([card]),
    "dax": lambda card: DaxMemory([card]),
}


@pytest.mark.parametrize("kind", MEMORIES)
def test_each_step_does_to_bytes_what_it_says(kind: str) -> None:
    """Doorbells, too, wherever in their line: y is the second word, and so no doorbell for hardware."""
    card = np.zeros(4096, np.uint8)
    places = WordAddresses.of([Word("x", 0), Word("y", 0), Word("z", 1)], over_cards(2, 1, 128))
    words = WordMemory(MEMORIES[kind](card), places)

    def in_pool() -> list[int]:
        return [int(card[place.offset :][:8].view("<u8")[0]) for place in places.words]

    assert words.do(Step(Do.STORE, 0, 7)) == 0
    assert in_pool() == ([0, 0, 0] if kind == "emulated" else [7, 0, 0])
    assert words.do(Step(Do.LOAD, 0)) == 7
    words.do(Step(Do.SIGNAL, 1, 5))
    assert words.do(Step(Do.WAIT, 1)) == 5
    assert words.do(Step(Do.WAIT, 0)) == 7
    assert in_pool() == [7, 5, 0], "a wait flushes its line and fences it"
    words.do(Step(Do.SIGNAL, 0, 8))
    assert in_pool() == [8, 5, 0]
    words.do(Step(Do.STORE_NT, 2, 2**31 - 1))
    words.do(Step(Do.FENCE))
    assert in_pool() == [8, 5, 2**31 - 1]
    for flush in (Do.FLUSH, Do.FLUSH_KEEP):
        words.do(Step(Do.STORE, 2, flush))
        words.do(Step(flush, 1))
        assert in_pool()[2] == (2**31 - 1 if (kind, flush) == ("emulated", Do.FLUSH) else in_pool()[2])
        words.settle()
        assert in_pool()[2] == flush
    words.do(Step(Do.INVALIDATE, 0))
    assert words.do(Step(Do.LOAD, 0)) == 8


# -- what ranks do is what the explorer says they can do


@protocol("data", "flag", "ack")
def lazy(rank: int, ranks: int) -> Steps[int]:
    """Nobody fences, so that all that is posted has to arrive by itself."""
    if rank == 0:
        yield StoreNT("data", 42)
        yield Store("flag", 1)
        yield Flush("flag")
        yield Wait("ack", 1)
        return 0
    while (yield Load("flag")) == 0:
        yield Flush("flag")
    yield Signal("ack", 1)
    yield Invalidate("data")
    return (yield Load("data"))


@protocol("x", "y")
def store_buffers(rank: int, ranks: int) -> Steps[int]:
    mine, other = "xy"[rank], "yx"[rank]
    yield Store(mine, 1)
    yield Flush(mine)
    yield Fence()
    return (yield Load(other))


@protocol("x y", initial={"y": 3})
def one_line(rank: int, ranks: int) -> Steps[int]:
    yield Store("xy"[rank], 1 + rank)
    yield Flush("x")
    yield Fence()
    yield Invalidate("x")
    return (yield Load("yx"[rank]))


@protocol("x", "f", ranks_per_host=2)
def scope(rank: int, ranks: int) -> Steps[int]:
    """Rank 1 fences what rank 0 of its host flushed, which is nothing of its own; rank 2 is elsewhere."""
    if rank == 0:
        yield Store("x", 1)
        yield Flush("x")
        return 0
    if rank == 1:
        yield Fence()
        yield Signal("f", 1)
        return (yield Load("x"))
    yield Wait("f", 1)
    yield Invalidate("x")
    return (yield Load("x"))


@protocol("x", "y", ranks_per_host=2)
def dirty_neighbours(rank: int, ranks: int) -> Steps[int]:
    """Of ranks 0 and 1 on one host, and 2 and 3 on another, only neighbours see what is never flushed."""
    yield Store("xxyy"[rank], 1 + rank)
    first = yield Load("x")
    return 10 * first + (yield Load("y"))


@protocol("x", "f")
def crashes(rank: int, ranks: int) -> Steps[int]:
    if rank == 0:
        yield Store("x", 1)
        yield Flush("x")
        yield Signal("f", 1)
        yield Crash()
    yield Wait("f", 1)
    yield Invalidate("x")
    return (yield Load("x"))


@pytest.mark.deep(rows=lambda tested: tested not in (store_buffers, scope))
@with_rows(
    (lazy, 2),
    (store_buffers, 2),
    (one_line, 2),
    (scope, 3),
    (dirty_neighbours, 4),
    (crashes, 2),
    ids=lambda value: value.name if isinstance(value, RankProtocol) else None,
)
def test_every_run_ends_as_an_execution_of_the_explorer(tested: RankProtocol, ranks: int) -> None:
    machine = Machine(tested.program(ranks))
    explored = exhaustive(machine, Budget(), "native", past_hangs=True)
    names = [word.name for word in machine.program.words]
    possible = {
        (
            tuple(
                None if end < 0 else t.result(end) for t, end in zip(machine.program.threads, found.ends, strict=True)
            ),
            found.memory,
        )
        for found in explored.outcomes
    }
    seen = {
        (tuple(ending.value for ending in run.endings), tuple(run.memory[name] for name in names))
        for run in runs_of(tested, ranks, (*OFF, *range(20)))
    }
    assert seen <= possible


@pytest.mark.deep
def test_random_protocols_end_so_too() -> None:
    for number in range(6):
        random = Random(number)
        hosts = random.choice([1, 2])
        steps = [[random_operation(random, rank) for _ in range(4)] for rank in range(3)]

        @protocol("x y", "z", ranks_per_host=hosts)
        def does(rank: int, ranks: int, steps: Any = steps) -> Steps[tuple[int, ...]]:
            seen = []
            for step in steps[rank]:
                seen.append((yield step))
            return tuple(seen)

        ended = runs_of(does, 3, (None, 1, 2, 3))
        machine = Machine(does.program(3))
        explored = exhaustive(machine, Budget(), "native")
        assert explored.outcomes
        possible = {
            (tuple(t.result(end) for t, end in zip(machine.program.threads, found.ends, strict=True)), found.memory)
            for found in explored.outcomes
        }
        for run_ in ended:
            assert (tuple(e.value for e in run_.endings), tuple(run_.memory.values())) in possible, number


def random_operation(random: Random, rank: int) -> ProtocolOperation:
    word = random.choice("xyz")
    value = random.randint(1, 9) + 10 * rank
    return random.choice(
        [Store(word, value), StoreNT(word, value), Load(word), Load(word), Flush(word), Fence(), Invalidate(word)]
    )


# -- ranks that share a host


def never_flushed(ranks_per_host: int) -> RankProtocol:
    @protocol("x", "f", ranks_per_host=ranks_per_host)
    def stores(rank: int, ranks: int) -> Steps[int]:
        if rank == 0:
            yield Store("x", 1)
            yield Signal("f", 1)
            return 1
        yield Wait("f", 1)
        value = yield Load("x")
        assert value == 1, f"rank {rank} sees {value}"
        return value

    return stores


@pytest.mark.deep(rows=lambda ranks: ranks == 4)
@pytest.mark.parametrize(("ranks", "ranks_per_host"), [(2, 1), (2, 2), (3, 2), (4, 2), (4, 4)])
def test_ranks_of_one_host_share_its_cache(ranks: int, ranks_per_host: int) -> None:
    """Without an adversary nothing is evicted: only a rank of the same host sees what is never flushed."""
    for run_ in runs_of(never_flushed(ranks_per_host), ranks):
        failed = [rank for rank, ending in enumerate(run_.endings) if ending.how == How.FAILED]
        others = range(ranks_per_host, ranks)
        assert set(failed) <= set(others)
        assert bool(failed) == bool(others)


@pytest.mark.deep
def test_processes_of_one_host_share_it_as_well(tmp_path: Path) -> None:
    file = tmp_path / "shared.py"
    file.write_text(NEVER_FLUSHED)
    right = cxlemu("--protocol", f"{file}:shared", "--adversary", "off", "--repeat", "1", code=0)
    assert "2 ranks on 1 host (2), launch: processes" in right.output
    wrong = cxlemu("--protocol", f"{file}:shared", "--adversary", "off", "--repeat", "1", "-n", "3", code=1)
    assert "3 ranks on 2 hosts (2+1), launch: processes" in wrong.output
    assert re.search(r"  rank 2 failed at \S*shared.py:12: sees 0\n", wrong.output)


NEVER_FLUSHED = """
from faults.explore.programs import Load, Signal, Store, Wait, protocol

@protocol("x", "f", ranks_per_host=2)
def shared(rank, ranks):
    if rank == 0:
        yield Store("x", 1)
        yield Signal("f", 1)
        return
    yield Wait("f", 1)
    value = yield Load("x")
    assert value == 1, f"sees {value}"
"""


def test_a_world_whose_hosts_are_not_the_protocols_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"ranks are on hosts \(0, 1\), but stores says otherwise"):
        launch(partial(run, protocol=never_flushed(2), seeds=OFF), ranks=2)


# -- how ranks end


def test_each_rank_says_how_it_ended_and_where() -> None:
    @protocol("x", "f")
    def deadlock(rank: int, ranks: int) -> Steps[int]:
        if rank == 0:
            yield Signal("x", 2)
            return 5
        if rank == 1:
            yield from inner()
        while True:
            yield Load("x")

    def inner() -> Steps[None]:
        yield Wait("x", 3)

    (ended,) = runs_of(deadlock, 3, deadline_s=0.6)
    assert (ended.wrong, ended.stuck) == (True, True)
    (returned, waits, spins) = ended.endings
    assert returned == Ending(How.RETURNED, "5")
    assert (waits.how, waits.text) == (How.STUCK, "after 0.6 s it waits for x >= 3, and sees 2")
    code = inner.__code__
    assert waits.where.endswith(f"test_protocols.py:{code.co_firstlineno + 1}")
    assert spins.how == How.STUCK
    assert re.fullmatch(r"after 0.6 s it is at load x, operation \d+", spins.text)


def test_others_stop_when_one_has_failed() -> None:
    @protocol("x")
    def fails(rank: int, ranks: int) -> Steps[None]:
        yield Fence()
        if rank == 1:
            {}["key"]
        yield Wait("x", 1)

    began = time.monotonic()
    ended = runs_of(fails, 2, deadline_s=60)
    assert time.monotonic() - began < 50, "nobody waits for a deadline"
    for one in ended:
        (stopped, text), failed = ranks_of(one)
        assert stopped == How.STOPPED and failed == (How.FAILED, "KeyError: 'key'")
        assert re.fullmatch(
            r"stopped, because rank 1 failed, while it (is at fence.*|waits for x >= 1, and sees 0)", text
        )


def test_final_gets_what_ranks_returned_and_what_the_pool_holds() -> None:
    seen = []

    def final(memory: Mapping[str, int], results: Sequence[Any]) -> None:
        seen.append((dict(memory), results))
        assert results[0] == (1, {2: "two"}), "not that"

    @protocol("x", "y", initial={"x": 3}, final=final)
    def returns(rank: int, ranks: int) -> Steps[Any]:
        yield Store("y", 4)
        if rank == 1:
            yield Crash()
        return (1, {2: "two"})

    assert [run_.wrong for run_ in runs_of(returns, seeds=(None,))] == [False]
    assert seen[0] == ({"x": 3, "y": 0}, [(1, {2: "two"}), None])  # nobody flushed y, and nothing evicted it


def test_every_run_begins_with_the_same_memory() -> None:
    @protocol("x", "y z", "looked", initial={"x": 1, "z": 2})
    def changes(rank: int, ranks: int) -> Steps[tuple[int, int, int]]:
        """Rank 1 leaves its host's cache dirty."""
        if rank == 1:
            yield Wait("looked", 1)
        found = ((yield Load("x")), (yield Load("y")), (yield Load("z")))
        if rank == 0:
            yield Signal("looked", 1)
            return found
        for word in ("x", "y", "z"):
            yield Store(word, 50)
        yield StoreNT("z", 9)
        yield Flush("x")
        yield Store("x", 51)
        return found

    for run_ in runs_of(changes, 2, (None, None, 1, 2, None)):
        assert run_.endings == (Ending(How.RETURNED, "(1, 0, 2)"),) * 2


@with_rows(
    (Load("z"), 0, "wrong, rank 1: there is no word 'z', only x"),
    (Store("x", 2**31), 0, "x can hold 0 to 2147483647, not 2147483648"),
    ("fence", 0, "wrong, rank 1 yields 'fence': yield operations such as Load('x')"),
    (Fence(), object, "wrong, rank 1 returns <class 'object'>: for `final`, return numbers, text"),
    (Fence(), "x" * TEXT_CHARS, "of them, 800 characters at most"),
)
def test_what_no_rank_can_do_is_refused_at_once(operation: Any, result: Any, says: str) -> None:
    @protocol("x", final=lambda memory, results: None)
    def wrong(rank: int, ranks: int) -> Steps[Any]:
        if rank == 1:
            yield operation
            return result
        yield Wait("x", 1)

    with pytest.raises(ArgumentError) as raised:
        runs_of(wrong, deadline_s=1)
    assert says in str(raised.value)


@pytest.mark.skipif(sys.gettrace() is not None, reason="whoever traces the tests has taken the leash's place")
def test_a_loop_without_a_yield_ends_the_run() -> None:
    @protocol("x")
    def runs_away(rank: int, ranks: int) -> Steps[None]:
        yield Fence()
        while True:
            pass

    with pytest.raises(ArgumentError, match="runs_away, rank 0 runs too long without a yield"):
        runs_of(runs_away, 1)


def test_a_host_that_cannot_crash_alone_is_not_crashed() -> None:
    with pytest.raises(ArgumentError, match=r"Crash\(\) is for the emulated pool"):
        runs_of(crashes, memory=MemorySpec("shm"), deadline_s=1)
    shared = protocol("x", "f", ranks_per_host=2)(crashes.function)
    with pytest.raises(ArgumentError, match=r"Crash\(\) of a host that ranks share can be explored, and not run"):
        runs_of(shared, deadline_s=1)


def test_a_protocol_larger_than_the_pool_is_refused(tmp_path: Path) -> None:
    cards = blank_cards(tmp_path, 1, 64 << 10)
    pool_of(cards, max_ranks=4)
    tested = partial(run, protocol=lazy, seeds=OFF)
    with pytest.raises(ArgumentError, match=r"the pool has .* bytes left on every card"):
        launch(tested, ranks=3, memory=MemorySpec("dax", devices=tuple(cards)), hosts=(0, 1, 2))


# -- reports in the pool


def reports() -> tuple[Reports, np.ndarray]:
    card = np.zeros(1 << 20, np.uint8)
    return Reports(DirectMemory([card]), Arena(4096, card.nbytes), 2), card


def test_reports_come_back_as_they_were() -> None:
    told, _ = reports()
    endings = (
        Ending(How.RETURNED, repr("\0" * 100)),
        Ending(How.FAILED, "\U0001f600" * TEXT_CHARS, "\1" * TEXT_CHARS, "f:1"),
    )
    for rank, ending in enumerate(endings):
        told.publish(rank, ending)
    assert told.read() == endings


@with_rows(
    b"",
    b"{",
    b"[]",
    b'{"how": "returned"}',
    b'{"how": "won", "result": "", "text": "", "where": ""}',
    b'{"how": "returned", "result": 1, "text": "", "where": ""}',
    b'{"how": "returned", "result": "' + b"x" * 801 + b'", "text": "", "where": ""}',
    b"[" * 20_000,
    b"\xff\xfe",
)
def test_a_damaged_report_is_found(text: bytes) -> None:
    told, card = reports()
    for rank in range(2):
        told.publish(rank, Ending(How.RETURNED, "1"))
    page = np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8)
    card[4096 + REPORT_BYTES :][: page.size] = page
    with pytest.raises(RunError, match="the report of rank 1 in the pool is damaged"):
        told.read()


# -- the command line


@pytest.mark.deep(rows=lambda file: file.stem not in ("early_free", "early_ready", "peterson", "ring_queue", "shrink"))
@pytest.mark.each_value_once
@pytest.mark.parametrize("backend", ["emulated", "off", "shm", "dax"])
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_repaired_protocols_are_right_on_every_memory(file: Path, backend: str, tmp_path: Path) -> None:
    flags = {"emulated": ["--seeds", "12"], "off": ["--adversary", "off", "--repeat", "4"]}.get(
        backend, ["--backend", backend, "--repeat", "4"]
    )
    if backend == "dax":
        cards = [str(tmp_path / f"card{number}") for number in range(2)]
        words = ("--create-size", "1M", "--max-ranks", "8")
        commands.cxlemu("pool", "format", *device_flags(cards), *words, code=0)
        flags += device_flags(cards)
    done = cxlemu("--protocol", f"{file}:fixed", "--launch", "threads", *flags, code=0)
    assert "rank 1 returned None\n" in done.output
    assert f"# {12 if backend == 'emulated' else 4} runs, 0 wrong, " in done.output


@pytest.mark.deep
@pytest.mark.parametrize(
    "file", [file for file in EXAMPLES if "_l" in file.stem or "_q" in file.stem], ids=lambda file: file.stem
)
def test_so_they_are_as_processes(file: Path) -> None:
    cxlemu("--protocol", f"{file}:fixed", "--seeds", "5", code=0)


@pytest.mark.deep(rows=lambda backend: backend == "shm")
@pytest.mark.parametrize("backend", ["shm", "dax"])
def test_processes_meet_on_memory_that_is_not_emulated(backend: str, tmp_path: Path) -> None:
    flags: list[str] = []
    if backend == "dax":
        cards = blank_cards(tmp_path, 2)
        pool_of(cards)
        flags = device_flags(cards)
    done = cxlemu("--protocol", f"{EXAMPLES[0]}:fixed", "--backend", backend, *flags, code=0)
    hidden = "no flush or invalidate that is missing shows" if backend == "shm" else "whose cache is coherent"
    assert hidden in done.output


@pytest.mark.deep(rows=lambda file: file.stem != "ring_queue")
@pytest.mark.parametrize("file", SHOWN_BY_RUNS, ids=lambda file: file.stem)
def test_known_bugs_show_with_the_command_that_their_file_has(file: Path) -> None:
    """With the one that executes them; the other one is test_explore's."""
    (words,) = re.findall(r"^cxlemu run (.*)$", ast.get_docstring(ast.parse(file.read_text())) or "", re.MULTILINE)
    done = cxlemu(*shlex.split(words.replace("examples/protocols", str(file.parent))), code=1)
    assert re.search(r"^run \d+(, seed \d+)?: wrong$", done.output, re.MULTILINE)


def test_stuck_ranks_end_the_series_and_json_says_all_of_it(tmp_path: Path) -> None:
    said = tmp_path / "said.json"
    index = next(file for file in EXAMPLES if file.stem == "unflushed_index")
    flags = ["--adversary", "off", "--deadline-s", "0.5", "--launch", "threads", "--json"]
    done = cxlemu("--protocol", f"{index}:broken", *flags, said, code=1)
    assert "# 1 run, 1 wrong, 9 more not made after a rank was stuck, " in done.output
    document = json.loads(said.read_text())
    assert (document["hosts"], document["asked_for"], document["wrong"]) == ([0, 1], 10, 1)
    (run_,) = document["runs"]
    assert (run_["seed"], run_["wrong"], run_["final"]) == (None, True, "")
    assert run_["memory"] == {"index": 0, "item": 42}
    assert [rank["how"] for rank in run_["ranks"]] == ["returned", "stuck"]
    assert "unflushed_index.py:" in run_["ranks"][1]["where"]
    both = cxlemu("--protocol", f"{index}:fixed", "--launch", "threads", "--json", "-")
    assert json.loads(both.stdout)["wrong"] == 0


def test_seeds_and_repeats_make_runs(tmp_path: Path) -> None:
    def seeds(*flags: str) -> list[int | None]:
        said = tmp_path / "said.json"
        cxlemu("--protocol", f"{EXAMPLES[1]}:fixed", "--launch", "threads", "--json", said, *flags, code=0)
        return [run_["seed"] for run_ in json.loads(said.read_text())["runs"]]

    assert seeds() == list(range(1, 11))
    assert seeds("--seeds", "2", "--repeat", "2", "--adversary", "7") == [7, 7, 8, 8]
    assert seeds("--repeat", "2") == [1, 1]
    assert seeds("--adversary", "off", "--repeat", "2") == [None, None]


@pytest.mark.deep
def test_ranks_of_a_launcher_run_a_protocol(tmp_path: Path) -> None:
    said = tmp_path / "said.json"
    line = next(file for file in EXAMPLES if file.stem == "early_ready")
    command = [sys.executable, "-m", "cxlemu", "run", "--protocol", f"{line}:broken", "--launch", "env"]
    command += ["--adversary", "off", "--repeat", "5", "--json", str(said)]
    ranks = [
        subprocess.Popen(
            command, env=environment(**torchrun(rank, 2)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=90)[0].decode() for process in ranks]
    assert [process.returncode for process in ranks] == [1, 1], outputs
    assert "rank 1 failed" in outputs[0]
    assert outputs[1] == ""
    document = json.loads(said.read_text())
    assert document["launch"] == "torchrun"
    assert len(document["runs"]) == 5


@pytest.mark.deep(rows=lambda how: how == "threads")
@pytest.mark.parametrize("how", ["processes", "threads"])
def test_ctrl_c_leaves_nothing_behind(how: str, tmp_path: Path) -> None:
    said = tmp_path / "said.json"
    command = [sys.executable, "-m", "cxlemu", "run", "--protocol", f"{EXAMPLES[0]}:fixed", "--launch", how]
    command += ["--seeds", "100000", "--json", str(said)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("# cxlemu")  # the pool's name may be gone again at once
            time.sleep(1)  # some runs
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert json.loads(said.read_text())["error"] == "interrupted"
    assert not list(Path("/dev/shm").glob(f"cxlemu-{process.pid}-*"))


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    file = tmp_path / "dies.py"
    file.write_text(
        "import os\nfrom faults.explore.programs import Wait, Fence, protocol\n"
        "@protocol('x')\ndef dies(rank, ranks):\n    yield Fence()\n"
        "    if rank == 1: os.kill(os.getpid(), 9)\n    yield Wait('x', 1)\n"
    )
    assert "rank 1 was killed by SIGKILL" in cxlemu("--protocol", f"{file}:dies", "--deadline-s", "2", code=1).output


@with_rows(
    (["nowhere.py:f"], "--protocol nowhere.py:f: there is no file nowhere.py"),
    (["nowhere"], "--protocol takes FILE.py:function, not 'nowhere'"),
    (["FILE:nothing"], "has no 'nothing': it has broken, fixed"),
    (["FILE:fixd"], "has no 'fixd'; did you mean fixed?"),
    (["FILE:fixed", "--variant", "all"], "--variant does not go with --protocol"),
    (["FILE:fixed", "-b", "1K"], "--minbytes does not go with --protocol"),
    (["FILE:fixed", "--pace"], "--pace does not go with --protocol"),
    (["FILE:fixed", "all_reduce"], "a collective does not go with --protocol"),
    (["FILE:fixed", "--adversary", "luck"], "--adversary takes a number that is not negative, or 'off'"),
    (["FILE:fixed", "--adversary", "off", "--seeds", "3"], "--seeds seed an adversary, and this run has none"),
    (["FILE:fixed", "--backend", "shm", "--seeds", "3"], "--seeds seed an adversary, and this run has none"),
    (["FILE:fixed", "--seeds", "1000", "--repeat", "101"], "are too many runs: 100000 at most"),
    (["FILE:fixed", "--seeds", "0"], "0 is not in the range x>=1"),
    (["FILE:fixed", "-n", "3", "-c", "laptop"], "laptop has 2 hosts, but 3 ranks of fixed are on 3"),
    (["FILE:fixed", "-c", "nowhere"], "is neither a file nor a shipped topology"),
    (["FILE:fixed", "--backend", "dax"], "give --device once for every card"),
    (["FILE:fixed", "--json", "/nowhere/x"], "--json /nowhere/x cannot be written"),
)
def test_bad_input_gets_one_sentence(flags: list[str], says: str) -> None:
    before = {path.name for path in Path("/dev/shm").iterdir()}
    assert says in cxlemu("--protocol", *(flag.replace("FILE", str(EXAMPLES[0])) for flag in flags), code=2).output
    assert not {
        name for name in {path.name for path in Path("/dev/shm").iterdir()} - before if f"-{os.getpid()}-" in name
    }


def test_seeds_are_for_protocols_only() -> None:
    done = cxlemu("all_reduce", "--seeds", "3")
    assert (done.exit_code, done.output) == (2, "cxlemu: --seeds, --repeat and --exitfirst go with --protocol\n")
