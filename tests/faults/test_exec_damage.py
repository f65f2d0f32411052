"""What `cxlemu exec` breaks, in programs that are recompiled and that are preloaded: links, cards, lines, hosts."""

import signal
from pathlib import Path

import pytest

from faults.programs.commands import parse_coherent, parse_commands, parse_pools
from faults.programs.findings import KINDS, ProgramFinding
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult, unfired
from faults.programs.run import run
from tests.helpers.pool_programs import MODES, built
from tests.helpers.tables import with_rows

WORST = RunChoice(None, 0)


@pytest.fixture(params=MODES)
def handed(request: pytest.FixtureRequest) -> Path:
    return built(request.param, "handed.c")


def after(handed: Path, words: str, **more: object) -> RunResult:
    """Runs ``words``, in which H stands for the program and its pool, in the worst case, or with ``choice``."""
    pool = handed.with_suffix(".pool")
    choice = more.pop("choice", WORST)
    assert isinstance(choice, RunChoice)
    parsed = parse_commands(words.replace("H", f"{handed} {pool}").split(), 2)
    return run(ExecSetting(parsed, parse_pools([f"{pool}=64K"]), **more), choice)  # type: ignore[arg-type]


def codes(result: RunResult) -> list[int]:
    return [one.code for one in result.exits]


def kinds(result: RunResult) -> list[str]:
    return [KINDS[ProgramFinding.one(bytes(raw)).kind].name for raw in result.findings]


def test_what_is_handed_on_is_there(handed: Path) -> None:
    result = after(handed, "H store :: @1 H value")
    assert codes(result) == [0, 0] and result.exits[1].output == "7\n" and kinds(result) == []


def test_a_link_that_is_down_loses_stores_and_fails_loads(handed: Path) -> None:
    lost = after(
        handed, "H store :: @1 H value", link_down=(0, 4)
    )  # the store is in the cache by then, and posted later
    assert codes(lost) == [0, 0] and lost.exits[1].output == "0\n"
    failing = after(handed, "H store :: @1 H value", link_down=(1, 1))
    assert codes(failing) == [0, -signal.SIGBUS]
    other = after(handed, "H store :: @0 H value", link_down=(1, 1))
    assert codes(other) == [0, 0] and other.exits[1].output == "7\n"


def test_lines_that_one_fence_lands_are_lost_one_by_one() -> None:
    lost = after(built("recompiled", "handed.c"), "H many :: @1 H value", link_down=(0, 11))  # behind all the flushes
    assert codes(lost) == [0, 0] and lost.exits[1].output == "0\n" and kinds(lost) == []


@pytest.mark.parametrize("stores", ["s:0:1 f:0 x s:0:2 f:0 x", "s:0:1 k:0 x s:0:2 k:0 x", "n:0:1 x n:0:2 x"])
def test_what_a_link_loses_no_program_has_undone(stores: str) -> None:
    """The only host that stores to a line overwrites nobody's stores, and no instruction is missing."""
    runs = [after(built("recompiled", "litmus.c"), f"H {stores} :: @1 H l:0", link_down=(0, at)) for at in range(4, 11)]
    loaded = [result.exits[1].output for result in runs if codes(result) == [0, 0]]
    assert {"2=1\n", "2=2\n"} <= set(loaded) and not any(map(kinds, runs))


def test_a_lost_card_fails_the_loads_of_every_host(handed: Path) -> None:
    for host in (0, 1):
        result = after(handed, f"H store :: @{host} H value", lose=(0, 1))
        assert -signal.SIGBUS in codes(result)


def test_a_poisoned_line_fails_its_loads_and_no_others(handed: Path) -> None:
    assert codes(after(handed, "H store :: @1 H value", poison=(0, 0, 1)))[-1] == -signal.SIGBUS
    beside = after(handed, "H store :: @1 H value", poison=(0, 64, 1))
    assert codes(beside) == [0, 0] and beside.exits[1].output == "7\n"


OVERWRITES = {  # by how they overwrite the line, and in which mode this is one step
    "f": MODES,  # memset
    "c": MODES,  # memcpy
    "t": ("recompiled",),  # a struct is assigned
    "r": ("preloaded",),  # rep stos
}


@pytest.mark.parametrize("how", OVERWRITES)
def test_a_line_that_is_overwritten_whole_is_poisoned_no_longer(handed: Path, how: str) -> None:
    if not any(mode in OVERWRITES[how] for mode in MODES if handed == built(mode, "handed.c")):
        pytest.skip("it is no step of its own")
    whole = after(handed, f"H {how}64 :: @1 H value", poison=(0, 0, 1))
    assert codes(whole) == [0, 0] and int(whole.exits[1].output) % 256 == 3 and whole.unfired == {}
    if how != "t":
        assert codes(after(handed, f"H {how}63 :: @1 H value", poison=(0, 0, 1))) == [-signal.SIGBUS]
    assert codes(after(handed, f"H {how}64 :: @1 H value", lose=(0, 1))) == [0, -signal.SIGBUS]
    lost = after(handed, f"H {how}64 :: @1 H value", link_down=(0, 1))
    assert codes(lost) == [0, 0] and lost.exits[1].output == "0\n"


def test_of_several_lines_those_are_overwritten_that_a_store_has_whole(handed: Path) -> None:
    """`f` begins at line 0, `b` a byte behind it."""
    for words, line, code in (
        ("f128", 64, 0),
        ("f100", 64, -signal.SIGBUS),
        ("b127", 64, 0),
        ("b127", 0, -signal.SIGBUS),
    ):
        assert codes(after(handed, f"H {words}", poison=(0, line, 1))) == [code], (words, line)


def test_bytes_that_the_kernel_was_asked_for_and_does_not_store_leave_the_poison(handed: Path) -> None:
    assert codes(after(handed, "H k64", poison=(0, 0, 1))) == [-signal.SIGBUS]


def test_where_caches_are_coherent_a_store_arrives_at_once_or_fails(handed: Path) -> None:
    ranges = parse_coherent(["all"], parse_pools([f"{handed.with_suffix('.pool')}=64K"]))
    assert codes(after(handed, "H f64 :: @1 H value", poison=(0, 0, 1), coherent=ranges)) == [0, 0]
    assert codes(after(handed, "H f64 :: @1 H value", link_down=(0, 1), coherent=ranges)) == [-signal.SIGBUS]


def test_a_cache_outlives_its_processes_and_not_its_host(handed: Path) -> None:
    """A dirty word is there for the host's next process; a crash in between takes it, and what was published stays."""
    alive = after(handed, "H store :: H dirty :: H value")
    assert alive.exits[2].output == "8\n" and "dirty-at-exit" in kinds(alive)
    elsewhere = after(handed, "H store :: H dirty :: @1 H value")
    assert elsewhere.exits[2].output == "7\n"
    for step in range(alive.steps + 1, alive.steps + 40):
        crashed = after(handed, "H store :: H dirty :: H again :: H value", crash=(0, step))
        if codes(crashed) == [0, 0, -signal.SIGKILL, 0]:
            assert crashed.exits[3].output == "7\n" and "lost-update" not in kinds(crashed)
            return
    pytest.fail("no crash hit the third command")


def test_a_locked_instruction_in_assembly_is_seen(handed: Path) -> None:
    result = after(handed, "H locked : H locked")
    assert codes(result) == [0, 0] and result.ending is RunEnding.ENDED and result.unannounced == 0
    assert set(kinds(result)) == {"locked-across-hosts"}


@pytest.mark.parametrize(("mode", "unannounced"), [("recompiled", 1), ("preloaded", 0)])
def test_a_store_in_assembly_is_found_where_nobody_saw_it(mode: str, unannounced: int) -> None:
    result = after(built(mode, "handed.c"), "H hidden")
    assert result.unannounced == unannounced and codes(result) == [0] and kinds(result) == []


@with_rows(
    ({"crash": (0, 99_999)}, "--crash", "never happened: it is at step 99999"),
    ({"crash": (0, 0)}, "--crash", "never happened: it is at step 0"),
    ({"link_down": (1, 99_999)}, "--link-down", "never happened"),
    ({"lose": (0, 99_999)}, "--lose-card", "never happened"),
    ({"poison": (0, 0, 99_999)}, "--poison", "never happened"),
    ({"poison": (0, 32 << 10, 1)}, "--poison", "changed nothing: no access met it"),
    ({"link_down": (1, 1)}, "--link-down", "changed nothing: no access met it"),
)
def test_a_fault_that_never_happened_or_that_nothing_met_is_told(
    broken: dict[str, object], flag: str, said: str, handed: Path
) -> None:
    result = after(handed, "H store :: @0 H value", **broken)
    assert list(result.unfired) == [flag] and said in result.unfired[flag]
    assert unfired([result]) == [result.unfired[flag]]
    assert unfired([result, after(handed, "H store :: @0 H value")]) == []


def test_a_fault_that_was_met_is_not_told(handed: Path) -> None:
    for broken in ({"link_down": (1, 1)}, {"lose": (0, 1)}, {"crash": (0, 1)}):
        assert after(handed, "H store :: @1 H value", **broken).unfired == {}
