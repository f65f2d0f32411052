"""Faults that happen to real runs: what each kind does, that both engines agree, and that judging can say no."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import faults.inject.sweep as sweep_module
from cxlemu.cli import INTERRUPTED
from cxlemu.engines import reference
from cxlemu.errors import (
    ArgumentError,
    CancelledError,
    DeadlineError,
    IntegrityError,
    LinkDownError,
    PeerLostError,
    PoisonError,
)
from cxlemu.memory.cache import CardCache
from cxlemu.plan import Op
from cxlemu.plan.layout import doorbell_word, is_damaged
from faults.inject import RankEnd, RankOutcome, Scenario, ScenarioReport, ScenarioVerdict, run
from faults.inject.fault import FAULTS, Fault, Requirement, When
from faults.inject.injection import Happened
from faults.inject.judge import judge
from faults.inject.script import NatureRates, Script
from faults.inject.sweep import everywhere, some, sweep
from tests.helpers.commands import cxlemu
from tests.helpers.tables import with_rows


def script(kind: str, rank: int = 1, instruction: int = 0, call: int = 0, seed: int = 0, **fields: object) -> Script:
    fault = Fault(kind=kind, rank=rank, when=When(call=call, instruction=instruction), **fields)  # type: ignore[arg-type]
    return Script(seed=seed, faults=(fault,))


def scenario(collective: str, faults: Script, **fields: object) -> Scenario:
    return Scenario(collective=collective, script=faults, deadline_s=0.5, **fields)  # type: ignore[arg-type]


def ends(collective: str, faults: Script, **fields: object) -> tuple[ScenarioVerdict, list[str]]:
    """The verdict, and of each rank its end or the class of its error."""
    report = run(scenario(collective, faults, **fields))
    assert [each.fault for each in report.happened] == list(range(len(faults.faults)))
    names = [type(b.error).__name__ if b.end == RankEnd.ERROR else b.end.value for b in report.ranks[0].values()]
    return report.verdict, names


# --- what each kind does -------------------------------------------------------------------------------------------

# all_gather, aggregate, rank 1: COPY, WAIT_ALL, WRITE, FLUSH, FENCE, SIGNAL, then for each peer WAIT, INVALIDATE, READ
COPY, WRITE, FENCE, SIGNAL, WAIT, READ = 0, 2, 4, 5, 6, 8
DETECTED, SURVIVED = ScenarioVerdict.DETECTED, ScenarioVerdict.SURVIVED
RIGHT = ["right"] * 3


@pytest.mark.each_value_once
@pytest.mark.parametrize("kind", [name for name, kind in FAULTS.items() if kind.requirement is Requirement.SURVIVE])
@pytest.mark.parametrize("instruction", [COPY, FENCE, SIGNAL, READ])
def test_what_must_be_survived_is(kind: str, instruction: int) -> None:
    fields: dict[str, object] = {field: {"seconds": 0.01, "gbytes_per_s": 1e-3}[field] for field in FAULTS[kind].needs}
    verdict, ended = ends("all_gather", script(kind, 1, instruction, **fields))
    assert ended == RIGHT
    assert verdict is SURVIVED or (verdict is ScenarioVerdict.NEVER and kind in ("evict", "prefetch", "land", "tear"))


@with_rows(
    (script("kill", 0, WRITE), ["dead", "PeerLostError", "PeerLostError"]),
    (script("crash", 1, FENCE), ["PeerLostError", "dead", "PeerLostError"]),
    (script("poison", 1, READ), ["PoisonError"] * 3),
    (script("lose_card", 2, READ, card=1), ["CardLostError"] * 3),
    (script("skip_doorbell", 2, SIGNAL), ["DeadlineError"] * 3),
    (script("link_down", 1, WAIT), ["PeerLostError", "LinkDownError", "PeerLostError"]),
    (script("stall", 1, READ, seconds=3.0), ["PeerLostError"] * 3),
    ids=lambda value: value.faults[0].kind if isinstance(value, Script) else "",
)
def test_what_must_be_detected_is_by_every_survivor(faults: Script, names: list[str]) -> None:
    verdict, found = ends("all_gather", faults)
    assert verdict is DETECTED
    assert found == names


def test_a_skipped_done_shows_when_the_ring_comes_round() -> None:
    last = 12  # the only signal that is left
    assert ends("all_gather", script("skip_doorbell", 1, last)) == (SURVIVED, RIGHT)  # the next call's says as much
    faults = Script(faults=tuple(script("skip_doorbell", 1, last, call).faults[0] for call in range(5)))
    report = run(scenario("all_gather", faults))
    assert report.verdict is DETECTED and isinstance(report.ranks[0][0].error, DeadlineError)


def test_who_is_lost_is_named_on_every_survivor() -> None:
    for rank in range(3):
        report = run(scenario("all_reduce", script("kill", rank, 3)))
        errors = [b.error for b in report.ranks[0].values() if b.end == RankEnd.ERROR]
        assert [error.ranks for error in errors if isinstance(error, PeerLostError)] == [(rank,)] * 2


def test_after_a_restart_all_ranks_begin_again_in_the_same_pool() -> None:
    report = run(scenario("broadcast", script("restart", 0, 3)))
    assert report.verdict is DETECTED
    assert [b.end for b in report.ranks[1].values()] == [RankEnd.RIGHT] * 3


def test_a_link_that_comes_back_loses_data_that_only_a_checksum_could_tell() -> None:
    """Down for the fence alone: the doorbell that follows arrives, the data before it did not."""
    faults = script("link_down", 1, FENCE, instructions=1)
    report = run(scenario("all_gather", faults))
    assert report.verdict is ScenarioVerdict.UNPROTECTED
    assert [b.end for b in report.ranks[0].values()] == [RankEnd.WRONG, RankEnd.RIGHT, RankEnd.WRONG]
    report = run(scenario("all_gather", faults, integrity="crc32c"))
    assert report.verdict is DETECTED
    assert [type(b.error) for b in report.ranks[0].values()] == [IntegrityError] * 3
    assert {b.error.rank for b in report.ranks[0].values() if isinstance(b.error, IntegrityError)} == {1}


def test_a_flipped_bit_of_data_is_wrong_data() -> None:
    """In the pool, just before the reader drops its line and loads it."""
    report = run(scenario("all_gather", script("flip_payload", 2, WAIT + 1, bit=5)))
    assert report.verdict is ScenarioVerdict.UNPROTECTED
    assert [b.wrong for b in report.ranks[0].values()].count(1) >= 1
    report = run(scenario("all_gather", script("flip_payload", 2, WAIT + 2, bit=5), integrity="crc32c"))
    assert report.verdict is DETECTED and isinstance(report.ranks[0][2].error, IntegrityError)


@pytest.mark.deep(rows=lambda bit: bit % 4 and bit != 63)
@pytest.mark.each_value_once
@pytest.mark.parametrize("variant", ["aggregate", "line"])
@pytest.mark.parametrize("bit", range(64))
def test_no_flipped_bit_of_a_doorbell_passes_for_right(bit: int, variant: str) -> None:
    """The doorbell of a peer, flipped right before it is looked at."""
    word = doorbell_word(5, 0xABCD)
    assert not is_damaged(word) and is_damaged(word ^ 1 << bit)
    where = {"aggregate": WAIT, "line": 4}[variant]
    for engine, launch in (("reference", "turns"), ("native", "threads")):
        if engine == "native" and bit not in (0, 16, 63):
            continue
        flip = script("flip_doorbell", 2, where, bit=bit)
        deadline_s = 0.5 if launch == "turns" else 2.0  # of the world's own time, or of this machine's
        how = {"engine": engine, "launch": launch, "variant": variant, "deadline_s": deadline_s}
        for _ in range(5 if launch == "threads" and bit == 63 else 1):  # a thread may look too late to be misled
            report = run(Scenario(collective="all_gather", script=flip, **how))
            assert report.ok and report.verdict is not ScenarioVerdict.UNPROTECTED, report.why


# --- both engines --------------------------------------------------------------------------------------------------

SAME = [
    script("evict", 1, SIGNAL),
    script("tear", 0, FENCE),
    script("repeat_doorbell", 2, COPY),
    script("skip_doorbell", 1, SIGNAL),
    script("poison", 0, READ),
    script("lose_card", 1, FENCE, card=1),
    script("link_down", 1, FENCE, instructions=1),
    script("kill", 2, READ),
]


@pytest.mark.deep(rows=lambda faults: faults.faults[0].kind == "kill")  # which a deadline ends, as skip_doorbell
@pytest.mark.parametrize("faults", SAME, ids=lambda faults: faults.faults[0].kind)
def test_the_native_engine_ends_as_the_reference_engine_does(faults: Script) -> None:
    """The rank at which the fault happens ends the same way, with the same words; and so does the whole."""
    found = []
    for engine in ("reference", "native"):
        slowly = Scenario(collective="all_gather", script=faults, engine=engine, launch="threads", deadline_s=2.0)
        report = run(slowly)
        end = report.ranks[0][faults.faults[0].rank]
        told = str(end.error) if isinstance(end.error, PoisonError | LinkDownError) else type(end.error).__name__
        found.append((report.verdict, end.end, end.wrong, told))
    assert found[0] == found[1]


def test_a_run_in_turns_is_the_same_every_time() -> None:
    wild = Script.parse(
        "seed: 3\nadversary: {evict: 0.3, prefetch: 0.3, land: 0.3}\nfaults:\n"
        "- {kind: crash, rank: 1, when: {instruction: 5}}"
    )
    first, second = (run(scenario("all_reduce", wild, variant="all")) for _ in range(2))
    told = [[(b.end, b.wrong, str(b.error)) for b in report.ranks[0].values()] for report in (first, second)]
    assert told[0] == told[1] and first.verdict is DETECTED


@with_rows(("kill", SIGNAL), pytest.param("crash", READ, marks=pytest.mark.deep))
def test_processes_are_killed_for_good(kind: str, instruction: int) -> None:
    faults = script(kind, 1, instruction)
    report = run(Scenario(collective="all_gather", script=faults, engine="native", launch="processes", deadline_s=3.0))
    assert report.verdict is DETECTED, report.why
    assert report.ranks[0][1].end is RankEnd.DEAD and "SIGKILL" in str(report.ranks[0][1].error)


# --- sweeps --------------------------------------------------------------------------------------------------------


def all_of(scenarios: Sequence[Scenario]) -> list[str]:
    """What is not as it should be."""
    found: list[str] = []
    sweep(
        scenarios,
        tell=lambda r: found.append(r.why) if not r.verdict.ok or r.verdict is ScenarioVerdict.NEVER else None,
    )
    return found


@pytest.mark.deep(rows=lambda collective: collective != "reduce")
@pytest.mark.parametrize("collective", ["all_gather", "reduce", "scatter", "barrier"])
def test_faults_at_every_instruction_of_some_collectives(collective: str) -> None:
    base = scenario(collective, Script(), variant="line" if collective == "barrier" else "naive")
    every = list(everywhere(base, ["crash", "poison", "lose_card", "link_down"]))
    assert len({str(each.script.faults[0]) for each in every}) == len(every) > 30
    assert all_of(some(every, 30, seed=1)) == []


# --- judging can say no --------------------------------------------------------------------------------------------


def test_a_plan_without_its_invalidates_is_silently_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference._EXECUTE, Op.INVALIDATE, lambda runner, instruction: None)
    report = run(scenario("all_gather", script("prefetch", 1, WAIT)))
    assert report.verdict is ScenarioVerdict.SILENTLY_WRONG and "elements wrong" in report.why


def test_poison_that_nobody_notices_is_silently_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CardCache, "check_load", lambda self, first, last: None)
    flip = Script(faults=(*script("poison", 1, READ).faults, *script("flip_payload", 1, READ).faults))
    report = run(scenario("all_gather", flip))
    assert report.verdict is ScenarioVerdict.UNPROTECTED  # a flip is only told by a checksum
    assert [each.fault for each in report.happened] == [0, 1]


HOSTS = (0, 1, 2)


@with_rows(
    (script("evict"), RankOutcome(RankEnd.WRONG, 3), ScenarioVerdict.SILENTLY_WRONG),
    (script("evict"), RankOutcome(RankEnd.ERROR, error=DeadlineError("late")), ScenarioVerdict.WRONG_ERROR),
    (script("poison"), RankOutcome(RankEnd.ERROR, error=PoisonError(0, 64)), ScenarioVerdict.DETECTED),
    (script("poison"), RankOutcome(RankEnd.ERROR, error=LinkDownError(0)), ScenarioVerdict.WRONG_ERROR),
    (script("poison"), RankOutcome(RankEnd.WRONG, 1), ScenarioVerdict.SILENTLY_WRONG),
    (script("poison"), RankOutcome(RankEnd.HUNG, error=CancelledError("hangs")), ScenarioVerdict.HUNG),
    (script("poison"), RankOutcome(RankEnd.ERROR, error=ValueError("?")), ScenarioVerdict.WRONG_ERROR),
    (script("kill", 1), RankOutcome(RankEnd.ERROR, error=PeerLostError("lost", (1,))), ScenarioVerdict.DETECTED),
    (script("kill", 1), RankOutcome(RankEnd.ERROR, error=PeerLostError("lost", (2,))), ScenarioVerdict.WRONG_ERROR),
    (script("kill", 1), RankOutcome(RankEnd.DEAD), ScenarioVerdict.WRONG_ERROR),
    (
        script("stall", seconds=0.1),
        RankOutcome(RankEnd.ERROR, error=DeadlineError("late")),
        ScenarioVerdict.WRONG_ERROR,
    ),
    (script("stall", seconds=0.4), RankOutcome(RankEnd.ERROR, error=DeadlineError("late")), ScenarioVerdict.DETECTED),
    (script("flip_payload"), RankOutcome(RankEnd.WRONG, 1), ScenarioVerdict.UNPROTECTED),
)
def test_every_end_is_held_against_what_is_owed(faults: Script, end: RankOutcome, verdict: ScenarioVerdict) -> None:
    happened = [Happened(0, faults.faults[0].rank, faults.faults[0].seconds or 0.0)]
    right = RankOutcome(RankEnd.RIGHT)
    assert judge(faults, HOSTS, [{0: end, 1: right, 2: right}], happened, 0.5).verdict is verdict
    if verdict is not ScenarioVerdict.SILENTLY_WRONG:  # what did not happen excuses nothing
        worst = judge(faults, HOSTS, [{0: end, 1: right, 2: right}], [], 0.5)
        assert not worst.ok


def test_ranks_of_a_crashed_host_owe_nothing() -> None:
    lost = RankOutcome(RankEnd.ERROR, error=LinkDownError(0))
    told = RankOutcome(RankEnd.ERROR, error=PeerLostError("lost", (0, 1)))
    report = judge(
        script("crash", 1), (0, 0, 1), [{0: lost, 1: RankOutcome(RankEnd.DEAD), 2: told}], [Happened(0, 1)], 0.5
    )
    assert report.verdict is ScenarioVerdict.DETECTED


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(ArgumentError, match="ranks take turns on the reference engine and an emulated pool only"):
        run(scenario("all_gather", Script(), engine="native"))
    with pytest.raises(ArgumentError, match="all_gather has no variant 'two_shot'"):
        run(scenario("all_gather", Script(), variant="two_shot"))


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "sweep.json"
    words = ["faults", "sweep", "barrier", "-j", "1", "--kinds", "crash,skip_doorbell", "--json", str(file)]
    result = cxlemu(*words, code=0)
    told = json.loads(file.read_text())
    assert [(row["fault"], row["scenarios"], row["silently_wrong"], row["hung"]) for row in told["rows"]] == [
        ("crash", 9, 0, 0),
        ("skip_doorbell", 9, 0, 0),
    ]
    assert told["findings"] == [] and "18 runs of 3 ranks on the reference engine" in result.output


def test_a_row_is_printed_as_soon_as_its_last_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []

    def looks(scenario: Scenario) -> ScenarioReport:
        printed.append(sys.stdout.buffer.getvalue().decode())
        return run(scenario)

    monkeypatch.setattr(sweep_module, "run", looks)
    result = cxlemu("faults", "sweep", "barrier", "-j", "1", "--kinds", "crash,evict", "--sample", "4", code=3)
    assert ["fault" in text for text in printed] == [True] * 4
    assert ["crash" in text for text in printed] == [False, False, True, True], printed
    assert [line.split()[2:] for line in result.stdout.splitlines()[2:4]] == [
        ["crash", "2", "0", "2", "0", "0", "0"],
        ["evict", "2", "0", "0", "0", "0", "0", "2", "never", "happened"],
    ]


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Scenario] = []

    def fifth_is_interrupted(scenario: Scenario) -> ScenarioReport:
        begun.append(scenario)
        if len(begun) == 5:
            raise KeyboardInterrupt
        return run(scenario)

    monkeypatch.setattr(sweep_module, "run", fifth_is_interrupted)
    file = tmp_path / "sweep.json"
    words = ["faults", "sweep", "barrier", "-j", "1", "--kinds", "crash,skip_doorbell", "--json", str(file)]
    result = cxlemu(*words, code=INTERRUPTED)
    told = json.loads(file.read_text())
    assert [(row["fault"], row["scenarios"]) for row in told["rows"]] == [("crash", 4)] and told["interrupted"]
    assert "4 of 18 runs of 3 ranks" in result.stdout and "interrupted; 14 runs did not end" in result.stderr


@with_rows(
    (["nothing"], "unknown collective 'nothing'"),
    (["barrier", "--variant", "naive"], "barrier has no variant 'naive'"),
    (["--engine", "native", "--launch", "turns"], "--launch turns is for --engine reference"),
)
def test_bad_input_is_one_sentence(words: list[str], sentence: str) -> None:
    assert sentence in cxlemu("faults", "sweep", *words, code=2).output


# --- ordinary runs -------------------------------------------------------------------------------------------------


def test_a_script_happens_to_an_ordinary_run(tmp_path: Path) -> None:
    file = tmp_path / "script.yaml"
    words = ["run", "all_reduce", "-n", "3", "-e", "32", "--variant", "aggregate", "--launch", "threads"]
    file.write_text(script("stall", 1, 3, call=2, seconds=0.05).dump())
    result = cxlemu(*words, "--faults", file, code=0)
    assert "fault: stall at rank 1, call 2, instruction 3, seconds 0.05" in result.output
    file.write_text(script("lose_card", 1, 3, call=2).dump())
    assert "is lost" in cxlemu(*words, "--faults", file, code=1).output


@with_rows(
    ([], "faults[0].rank is 7, but ranks are numbered 0 to 2"),
    (["--launch", "env"], "--faults does not work with --launch env"),
    (["--adversary", "3"], "which has an adversary of its own"),
    (["--backend", "shm"], "faults[0].rank is 7"),
)
def test_a_script_that_does_not_fit_the_run_is_refused(words: list[str], sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "script.yaml"
    file.write_text("adversary: {}\n" + script("poison", 7).dump().replace("seed: 0\n", ""))
    given = {"RANK": "0", "WORLD_SIZE": "3"}
    result = cxlemu("run", "-n", "3", "--faults", file, *words, env=given, code=2)
    assert sentence in result.output, result.output


@with_rows(("evict", 3, 0), ("prefetch", 0, 3), ("tear", 4, 0), ("land", None, 0))
def test_a_move_of_nature_that_moves_no_line_never_happened(kind: str, moves: int | None, moves_none: int) -> None:
    nothing = run(scenario("all_gather", script(kind, 1, moves_none), ranks=2))
    assert nothing.verdict is ScenarioVerdict.NEVER
    assert f"fault 1 changed nothing: there was no line to move [{kind} at rank 1" in nothing.why
    assert moves is None or run(scenario("all_gather", script(kind, 1, moves), ranks=2)).verdict is SURVIVED


@pytest.mark.parametrize(("rate", "verdict"), [(0.0, ScenarioVerdict.NEVER), (0.3, ScenarioVerdict.SURVIVED)])
def test_an_adversary_that_moves_no_line_is_not_survived(rate: float, verdict: ScenarioVerdict) -> None:
    nature = Script(seed=1, adversary=NatureRates(evict=rate, prefetch=rate, land=rate))
    assert run(scenario("all_gather", nature)).verdict is verdict
