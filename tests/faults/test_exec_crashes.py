"""``cxlemu exec --crash every``: what a crash may leave, programs that recover or do not, what is said."""

import json
import random
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cxlemu.cli import main
from cxlemu.errors import ArgumentError
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.crashes import CrashCoverage, Losses, crash_everywhere, other_losses
from faults.programs.damage import damage_everywhere
from faults.programs.result import TOO_EARLY, ExecSetting, RunChoice, RunResult
from faults.programs.run import run
from tests.faults.test_exec_every import EXAMPLES, HERE
from tests.helpers.pool_programs import build, on_x86
from tests.helpers.tables import with_rows

POOL = "/dev/shm/crashes"
pytestmark = on_x86


def setting(litmus: Path, words: str) -> ExecSetting:
    """Set hosts to the steps between ``:``; the host behind them looks at three words when all is over."""
    hosts = words.split(" : ")
    steps = " : ".join(f"{litmus} {POOL} {its}" for its in hosts)
    commands = parse_commands(f"{steps} :: @{len(hosts)} {litmus} {POOL} l:0 l:8 l:64".split(), len(hosts) + 1)
    return ExecSetting(commands, parse_pools([f"{POOL}=2M"]), hosts=len(hosts) + 1, check=False)


def seen(result: RunResult, crashed: int = 0) -> str:
    """Tell what all loads of hosts saw that did not crash."""
    its = [one for one in sorted(result.exits, key=lambda one: one.command) if one.command != crashed]
    return " ".join("".join(load.partition("=")[2] for load in one.output.split()) for one in its)


def found(setting: ExecSetting) -> tuple[set[str], int]:
    *_, (_, covered) = runs = list(crash_everywhere(setting, [0], 600))
    assert covered.failed is None and covered.undecided.keys() <= {TOO_EARLY}
    return {seen(result) for result, _ in runs[1:]}, len(runs) - 1


@pytest.mark.parametrize("what", ["crash", "poison"])
def test_a_search_in_several_calls_comes_to_what_one_call_comes_to(litmus: Path, tmp_path: Path, what: str) -> None:
    """Each call makes the run in which nothing breaks, and is given up behind one more."""
    words = f"{litmus} {POOL} e s:0:1 s:64:1 f:0 x g:8:1 :: @1 {litmus} {POOL} e l:0 l:8 l:64".split()
    its = ExecSetting(parse_commands(words, 2), parse_pools([f"{POOL}=2M"]), check=False)

    def search(resume: Path | None = None) -> Generator[tuple[RunResult, CrashCoverage], None, None]:
        if what == "crash":
            return crash_everywhere(its, [0], 600, resume=resume)
        return damage_everywhere(its, what, 600, resume=resume)

    _, *runs = search()
    whole, again = runs[-1][1], list[str]()
    for call in range(len(runs)):
        with closing(search(tmp_path / "journal")) as resumed:
            _, covered = next(resumed)
            again += [seen(result) for result, _ in islice(resumed, 1)]
            assert call or covered.runs == 2
    _, *more = list(search(tmp_path / "journal"))
    assert not more and again == [seen(result) for result, _ in runs] and len(again) > 4
    assert (covered.runs, covered.steps, covered.points) == (whole.runs, whole.steps, whole.points)
    assert replace(covered, seconds=0).sentence() == replace(whole, seconds=0).sentence()
    with pytest.raises(ArgumentError, match="is of another search"):
        next(crash_everywhere(its, [1], 600, resume=tmp_path / "journal"))


# Steps of the host that crashes, and what is left of the words at 0, 8 and 64; the first two share a line.
LEFT = {
    "one line holds the stores in their order": ("s:0:1 s:8:1", {"000", "100", "110"}),
    "two lines hold any of them": ("s:0:1 s:64:1", {"000", "100", "001", "101"}),
    "a fence holds the later one back": ("s:0:1 f:0 x s:64:1", {"000", "100", "101"}),
    "a flush alone does not": ("s:0:1 f:0 s:64:1", {"000", "100", "001", "101"}),
    "a fence before the flush does not": ("s:0:1 x f:0 s:64:1", {"000", "100", "001", "101"}),
    "a clflush waits for its line": ("g:0:1 s:64:1", {"000", "100", "101"}),
    "what was flushed stays, what came later may not": (
        "s:0:1 f:0 s:8:1 x s:64:1",
        {"000", "100", "110", "101", "111"},
    ),
    "past the cache without a fence": ("n:0:1 s:64:1", {"000", "100", "001", "101"}),
    "past the cache with a fence": ("n:0:1 x s:64:1", {"000", "100", "101"}),
    "each of several values": ("s:0:1 s:0:2 s:0:3", {"000", "100", "200", "300"}),
    "parts of each store of a line": ("o:0:1 f:0 x o:0:2", {"000", "100", "010", "110", "210", "120", "220"}),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_crash_leaves_what_the_model_allows(litmus: Path, name: str) -> None:
    words, allowed = LEFT[name]
    assert found(setting(litmus, words))[0] == allowed


def whole(setting: ExecSetting) -> Iterator[RunResult]:
    """Crash host 0 at every step of the first stage, with every choice of what arrives."""
    first_stage = run(replace(setting, commands=setting.commands[:-1]), RunChoice(None, 0))
    for step in range(1, first_stage.steps + 1):
        losses: Losses | None = ()
        while losses is not None:
            result = run(replace(setting, crash=(0, step)), RunChoice(None, 0, losses=losses))
            assert result.crashes is not None and not result.unfired
            yield result
            losses = other_losses(result.crashes.arrivals, {})


def generated(seed: int) -> str:
    draw = random.Random(seed)
    each = ["s:0:1", "s:8:1", "s:64:1", "f:0", "f:64", "x", "n:64:2", "g:0:2", "l:64", "o:0:3"]
    steps = [draw.choice(each) for _ in range(5)]
    other = draw.choice(["", "", " : i:0 l:0 i:64 l:64", " : i:64 l:64 s:64:3 f:64 x"])
    return " ".join(steps) + other


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.deep(rows=lambda seed: seed not in (0, 7))
def test_points_that_are_left_out_would_show_nothing_new(litmus: Path, seed: int) -> None:
    its = setting(litmus, generated(seed))
    every = [seen(result) for result in whole(its)]
    reduced, count = found(its)
    assert set(every) == reduced, generated(seed)
    assert count < len(every)


# --- programs --------------------------------------------------------------------------------------------------------

PROGRAMS = {
    "undo_log": (EXAMPLES / "undo_log.c", "/dev/shm/bank", "transfer", "recover"),
    "redo_log": (HERE / "programs/redo_log.c", "/dev/shm/bank", "apply", "main"),
    "allocator": (HERE / "programs/allocator.c", "/dev/shm/heap", "allocate", "main"),
}


def invoke(*words: object) -> Result:
    return CliRunner().invoke(main, ["exec", *map(str, words)])


def stages(program: Path, recovers: str = "") -> list[str]:
    return f"{program} go :: {recovers} {program} recover".split()


@pytest.mark.each_value_once
@pytest.mark.parametrize("recovers", ["@0", "@1"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_recovers_is_ok_at_every_crash(name: str, recovers: str) -> None:
    source, pool, *_ = PROGRAMS[name]
    program = build(source)
    words = ("--crash", "every", "--budget", "10m", "--json", "-", "--", *stages(program, recovers))
    result = invoke("--pool", f"{pool}=2M", *words)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["verdict"] == "ok" and told["crashes"]["undecided"] == []
    (host,) = told["crashes"]["hosts"]
    assert host["host"] == 0 and host["points"] >= 9 and host["images"] > host["points"]


def test_what_has_arrived_is_known_to_have() -> None:
    """Host 1 knows the lines from before, and drops them in its recovery, before it is decided what they hold."""
    source, pool, *_ = PROGRAMS["undo_log"]
    program = build(source)
    words = f"@1 {program} recover :: @0 {program} go :: @1 {program} recover".split()
    result = invoke("--pool", f"{pool}=2M", "--crash", "0@every", "--", *words)
    assert result.exit_code == 0, result.output
    assert "every crash point of host 0: 10 points, 13 images" in " ".join(result.output.split())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_missing_flush_is_found_and_repeats(name: str) -> None:
    source, pool, stored_in, read_in = PROGRAMS[name]
    program = build(source, "-DBUG")
    result = invoke("--pool", f"{pool}=2M", "--crash", "every", "--json", "-", "--", *stages(program))
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    (lost,) = [its for its in told["found"]["findings"] if its["kind"] == "lost-in-crash"]
    assert [step["function"] for step in lost["steps"]] == [stored_in, read_in]
    crash = "{host}@{step}".format(**told["crashes"]["crash"])
    again = invoke("--pool", f"{pool}=2M", "--crash", crash, "--replay", told["token"], "--", *stages(program))
    assert again.exit_code == 1 and "another trace" not in again.output
    assert "lost-in-crash" in again.output


def test_a_survivor_that_waits_for_ever_is_found(litmus: Path) -> None:
    words = f"{litmus} {POOL} g:0:1 : {litmus} {POOL} w:0:1 :: {litmus} {POOL} l:0".split()
    result = invoke("--pool", f"{POOL}=2M", "--steps", 500, "--no-check", "--crash", "0@every", "--", *words)
    assert result.exit_code == 1, result.output
    assert "the programs hang" in result.output and "after a crash of host 0" in result.output


@pytest.mark.parametrize(("check", "code", "verdict"), [("--no-check", 3, "unknown"), ("--check", 1, "violation")])
def test_a_spent_budget_is_unknown_unless_a_mistake_was_found(
    litmus: Path, check: str, code: int, verdict: str
) -> None:
    many = " ".join(f"s:{64 * k}:1" for k in range(12))
    read = " ".join(f"l:{64 * k}" for k in range(12))
    words = f"{litmus} {POOL} {many} :: {litmus} {POOL} {read}".split()
    result = invoke("--pool", f"{POOL}=2M", "--crash", "every", "--budget", "0.3s", check, "--", *words)
    assert result.exit_code == code, result.output
    assert f"{verdict}: " in result.output and "the budget of 0.3 s is spent" in result.output
    assert ("dirty-at-exit" in result.output) == (code == 1)


TORN = """#include <cxl.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
typedef struct { uint64_t first, between[6], last; } record;
int main(int n, char **word) {
    int file = open("/dev/shm/crashes", O_RDWR | O_CREAT, 0600);
    volatile record *its = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    volatile uint64_t *valid = &its[1].first;
    if (n == 3) {
        record all = {1, {1, 1, 1, 1, 1, 1}, 1};
        memcpy((void *)its, &all, sizeof all);
        cxl_flush((void *)its, sizeof all), cxl_fence();
        *valid = 1;
        cxl_flush((void *)valid, 8), cxl_fence();
    }
    else if (!strcmp(word[1], "first")) return its->first && !its->last;
    else if (!strcmp(word[1], "last")) return its->last && !its->first;
    else return *valid && !(its->first && its->last);
}
"""


@with_rows(("first", 1), ("last", 1), ("flag", 0))
def test_a_crash_tears_a_store_of_many_words(reads: str, code: int, tmp_path: Path) -> None:
    source = tmp_path / "torn.c"
    source.write_text(TORN)
    its = build(source)
    words = f"{its} {reads} put :: {its} {reads}".split()
    result = invoke("--pool", f"{POOL}=2M", "--crash", "every", "--no-shrink", "--", *words)
    assert result.exit_code == code, result.output
    assert ("1. torn-in-crash" in result.output and "torn.c:12 in main" in result.output) == code


def test_a_load_that_awaits_a_store_past_the_cache_leaves_its_crash_unknown(litmus: Path) -> None:
    """In the memory model that store may still be lost, though the one behind it has arrived."""
    for words, code in (("n:0:1 l:0 s:64:1 f:64 x", 3), ("n:0:1 x l:0 s:64:1 f:64 x", 0)):
        its = f"{litmus} {POOL} {words} :: {litmus} {POOL} l:64 l:0".split()
        result = invoke("--pool", f"{POOL}=2M", "--crash", "every", "--", *its)
        assert result.exit_code == code and ("non-temporal stores there" in result.output) == bool(code), result.output


def test_more_stores_than_can_be_followed_are_unknown(litmus: Path) -> None:
    words = f"{litmus} {POOL} {' '.join(f's:0:{k}' for k in range(1, 72))} :: {litmus} {POOL} l:0".split()
    result = invoke("--pool", f"{POOL}=2M", "--crash", "every", "--no-check", "--", *words)
    assert result.exit_code == 3, result.output
    assert "more stores were under way at once than can be followed" in result.output


RECOVERED = "L s:0:1 :: L l:0"
NOT_SEARCHED = "--every injects no faults but --crash every, --poison every"


@with_rows(
    ("--crash every", "L l:0 :: L l:0", 3, "host 0 stores nothing to a pool before the last stage"),
    ("--crash every", "L s:0:1", 2, "needs a stage that recovers"),
    ("--crash 1@every", "L s:0:1 :: @1 L l:0", 2, "no command runs on host 1 before the last stage"),
    ("--crash every --seeds 3", RECOVERED, 2, "--crash every makes its own runs"),
    ("--crash every --poison 0@1", RECOVERED, 2, "injects nothing else"),
    ("--crash every", "true :: true", 2, "was not compiled with cxlemu cc"),
    ("--crash 0@never", RECOVERED, 2, "is not HOST@STEP, HOST@every or every"),
    ("--poison every", "L s:0:1", 2, "--poison every needs a stage that recovers"),
    ("--poison every --lose-card every", RECOVERED, 2, "injects nothing else"),
    ("--lose-card every --seeds 3", RECOVERED, 2, "--lose-card every makes its own runs"),
    ("--poison every", "true :: true", 3, "no program touched a pool"),
    ("--poison every", "L x :: L x", 3, "no program touched the pool"),
    ("--poison 1:0@1", "L s:0:1", 2, "--poison: there are pools 0 to 0, not 1"),
    ("--poison never", "L s:0:1", 2, "is not [POOL:]OFFSET@STEP or every"),
    ("--every --crash every", "L l:0 :: L l:0", 3, "no host stores anything to a pool before the last stage"),
    ("--every --crash every", "L s:0:1", 2, "needs a stage that recovers"),
    ("--every --crash 1@every", "L s:0:1 :: @1 L l:0", 2, "no command runs on host 1 before the last stage"),
    ("--every --crash 0@5", RECOVERED, 2, NOT_SEARCHED),
    ("--every --crash every --poison 0@1", RECOVERED, 2, "injects nothing else"),
    ("--every --poison every", "L s:0:1", 2, "--poison every needs a stage that recovers"),
    ("--every --poison 0@1", RECOVERED, 2, NOT_SEARCHED),
    ("--every --lose-card 0@1", RECOVERED, 2, NOT_SEARCHED),
    ("--every --lose-card every --poison every", RECOVERED, 2, "injects nothing else"),
)
def test_what_cannot_be_searched_is_said(flags: str, words: str, code: int, says: str, litmus: Path) -> None:
    commands = words.replace("L", f"{litmus} {POOL}").split()
    result = invoke("--pool", f"{POOL}=2M", *flags.split(), "--", *commands)
    assert result.exit_code == code, result.output
    assert says in " ".join(result.output.split())
