"""Where turns end: before a step that another host can observe."""

from pathlib import Path

import pytest

from faults.programs.commands import parse_commands, parse_pools
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult
from faults.programs.run import run
from tests.helpers.pool_programs import build, on_x86
from tests.helpers.pool_programs import ran as ran_once

STEP_BY_STEP = 0  # a schedule
POOL = "/dev/shm/turns"
pytestmark = on_x86


@pytest.fixture
def program() -> Path:
    return build("litmus.c")


def ran(
    program: Path, *hosts: str, script: tuple[tuple[int, int], ...] = (), choice: RunChoice | None = None
) -> RunResult:
    words = " : ".join(f"{program} {POOL} {steps}" for steps in hosts).split()
    setting = ExecSetting(parse_commands(words, len(hosts)), parse_pools([POOL]), hosts=len(hosts), check=False)
    result = run(setting, choice or RunChoice(None, STEP_BY_STEP, script))
    assert result.ending is RunEnding.ENDED
    return result


def stores(line: int, count: int) -> str:
    return " ".join(f"s:{64 * line}:{k + 1}" for k in range(count))


def longest(result: RunResult, *threads: int) -> int:
    return max(steps for thread, steps in result.turns if thread in threads)


def test_stores_that_hit_take_one_turn(program: Path) -> None:
    """The first one fetches the line."""
    result = ran(program, stores(0, 40), stores(1, 40))
    assert longest(result, 0) == longest(result, 1) == 40
    assert sum(steps > 1 for _, steps in result.turns) == 2


def test_a_turn_ends_before_a_fence_that_lands_what_was_posted(program: Path) -> None:
    result = ran(program, f"{stores(0, 40)} f:0 x {stores(1, 30)}", stores(2, 40))
    assert [steps for thread, steps in result.turns if thread == 0 and steps > 1] == [41, 30]


def test_a_turn_ends_after_a_while_all_the_same(program: Path) -> None:
    result = ran(program, stores(0, 600), stores(1, 600))
    assert longest(result, 0) == longest(result, 1) == 257


def test_threads_of_one_host_observe_each_others_stores(program: Path) -> None:
    result = ran(program, f"{stores(0, 20)} / {stores(1, 20)}", stores(2, 40))
    assert longest(result, 1) == 40
    with_both = result.turns[: max(k for k, turn in enumerate(result.turns) if turn[0] == 2)]
    assert {steps for thread, steps in with_both if thread != 1} == {1}


def test_a_script_says_itself_where_turns_end(program: Path) -> None:
    hosts = stores(0, 300), stores(1, 300)
    first = ran(program, *hosts)
    again = ran(program, *hosts, script=tuple(first.turns))
    assert (again.trace, again.turns) == (first.trace, first.turns)


def test_a_look_at_what_did_not_change_lets_others_go_on(program: Path) -> None:
    result = ran(program, stores(0, 1) + " l:0" * 40, stores(1, 40))
    assert longest(result, 0) == 3


def published(gap: int) -> str:
    """Store and flush 420 lines, each `gap` lines behind the one before, with a fence now and then."""
    lines = range(0, 60, gap)
    stored = [" ".join(f"s:{64 * line}:{k + 1}" for line in lines) for k in range(7 * gap)]
    flushed = " ".join(f"f:{64 * line}" for line in lines)
    return " ".join(f"{some} {flushed} x" for some in stored)


def test_others_seldom_come_before_the_next_line_of_a_message(program: Path) -> None:
    """Each time costs two changes of threads. Lines that lie apart are no message."""
    lasts_long = 9  # a schedule
    row, apart = (
        [len(ran(program, published(gap), choice=RunChoice(seed, lasts_long)).turns) for seed in range(6)]
        for gap in (1, 2)
    )
    undisturbed = len(ran(program, published(1), choice=RunChoice(None, lasts_long)).turns)
    assert 6 * undisturbed < sum(row) < sum(apart) / 3


def test_a_range_is_flushed_as_its_lines_are_one_by_one() -> None:
    """One call makes the steps, and ends the turns, of as many calls; nature moves between them."""
    size = ("-DBODY=1000", "-DMESSAGES=6")
    both = [build("queue.c", *size, *flags) for flags in ((), ("-DLINE_BY_LINE",))]
    for choice in (*(RunChoice(None, k) for k in range(10)), *(RunChoice(k, k) for k in range(6))):
        its, other = (
            ran_once(f"{q} {POOL} new :: {q} {POOL} produce : {q} {POOL} consume", choice, pool=POOL) for q in both
        )
        assert (its.trace, its.turns) == (other.trace, other.turns), choice
