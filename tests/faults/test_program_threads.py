"""Programs of several threads, side by side (--free) and in turns. scripts/sanitize looks for races in them."""

import os
import resource
import time
from pathlib import Path

import pytest

from faults.programs.commands import parse_commands, parse_pools
from faults.programs.result import ExecSetting, RunChoice, RunEnding
from faults.programs.run import run
from tests.helpers.pool_programs import MODES, built


def compiled(name: str, mode: str = "recompiled", *flags: str) -> Path:
    return built(mode, f"{name}.c", "-D_GNU_SOURCE", *flags)


@pytest.mark.each_value_once
@pytest.mark.parametrize("name", ["threads", "side_by_side"])
@pytest.mark.parametrize("way", MODES)
@pytest.mark.parametrize("free", [True, False], ids=["free", "turns"])
def test_threads_of_one_host_are_coherent(name: str, way: str, free: bool) -> None:
    its = compiled(name, way)
    pool = its.with_suffix(".pool")
    for check in (False, True):
        commands, pools = parse_commands([str(its), str(pool)], 1), parse_pools([f"{pool}=64K"])
        setting = ExecSetting(commands, pools, hosts=1, check=check, free=free)
        for choice in (RunChoice(None, 0), RunChoice(3, 3)):
            result = run(setting, choice)
            assert [(one.code, one.output) for one in result.exits] == [(0, "")]
            assert result.ending is RunEnding.ENDED and result.unannounced == 0
            assert name == "threads" or result.findings == []  # it leaves the last stores in the cache


def told_processors(program: Path, *, free: bool) -> list[list[int]]:
    """The processors that each thread of two hosts may use: the first one, how many, and how many the library says."""
    pool = program.with_suffix(".pool")
    commands = parse_commands(f"{program} {pool} : {program} {pool}".split(), 2)
    result = run(ExecSetting(commands, parse_pools([f"{pool}=64K"]), free=free), RunChoice(None, 0))
    assert result.ending is RunEnding.ENDED
    lines = [line for one in result.exits for line in one.output.splitlines()]
    assert len(lines) == 6
    return [[int(word) for word in line.replace(" of", ",").split(",")] for line in lines]


def test_threads_in_turns_share_one_processor_and_do_not_see_it() -> None:
    """Another processor would have to wake up, or to leave other work, each time the turn passes on."""
    usual = len(os.sched_getaffinity(0))
    told = told_processors(compiled("processors"), free=False)
    assert len({line[0] for line in told}) == 1 and {line[1] for line in told} == {1}
    assert [line[2:] for line in told] == [[usual] * 2, [usual] * 2, [1, 1]] * 2


def test_threads_side_by_side_use_all_processors() -> None:
    usual = len(os.sched_getaffinity(0))
    told = told_processors(compiled("processors"), free=True)
    assert [line[1:] for line in told] == [[usual] * 3, [usual] * 3, [1] * 3] * 2


def test_side_by_side_hosts_that_alternate_share_a_processor_until_they_compute() -> None:
    """As in turns: another processor would have to wake up each time. Threads that they make may run anywhere."""
    usual = len(os.sched_getaffinity(0))
    program = compiled("alternate")
    pool = program.with_suffix(".pool")
    commands = parse_commands(f"{program} {pool} 0 : {program} {pool} 1".split(), 2)
    setting = ExecSetting(commands, parse_pools([f"{pool}=64K"]), free=True, deadline_s=5)
    result = run(setting, RunChoice(None, 6))
    assert result.ending is RunEnding.ENDED
    assert [one.output for one in result.exits] == [f"{usual} {usual} {usual}\n"] * 2


def test_side_by_side_a_thread_that_polls_rests() -> None:
    """Six looks, then 100 us: as long as it looks, it has the lock that others need.

    However slow the machine, it looks no more often; without a rest it makes a million steps in a second.
    """
    program = compiled("late_flag")
    pool = program.with_suffix(".pool")
    commands = parse_commands(f"{program} {pool} set : {program} {pool} poll".split(), 2)
    began = time.monotonic()
    result = run(ExecSetting(commands, parse_pools([f"{pool}=64K"]), free=True), RunChoice(None, 0))
    looks = 6 * (time.monotonic() - began) / 100e-6
    assert result.ending is RunEnding.ENDED and result.steps < looks + 1000


def test_side_by_side_a_thread_at_rest_is_told_before_another_one_waits_elsewhere() -> None:
    """After two looks it rests until the flag is set; the other one sleeps then, and makes no step meanwhile."""
    program = compiled("late_flag", "recompiled", "-DROUNDS=100", "-DWHILE_US=2000")
    pool = program.with_suffix(".pool")
    commands = parse_commands(f"{program} {pool} set : {program} {pool} poll".split(), 2)
    result = run(ExecSetting(commands, parse_pools([f"{pool}=64K"]), free=True), RunChoice(None, 6))
    assert result.ending is RunEnding.ENDED
    assert int(result.exits[1].output) < 7


def test_side_by_side_hosts_that_alternate_hand_over_as_rarely_as_in_turns() -> None:
    """Once for the four slots of the queue: a consumer that every message wakes would rest after most of them."""
    messages = 5000
    program = compiled("queue", "recompiled", "-DBODY=48", f"-DMESSAGES={messages}")
    pool = program.with_suffix(".pool")
    words = f"{program} {pool} new :: {program} {pool} produce : {program} {pool} consume".split()
    setting = ExecSetting(parse_commands(words, 2), parse_pools([str(pool)]), free=True)

    def waits() -> int:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw
        assert run(setting, RunChoice(None, 6)).ending is RunEnding.ENDED
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw - before

    assert min(waits() for _ in range(3)) < 0.6 * messages  # on a busy machine, rests may end by themselves
