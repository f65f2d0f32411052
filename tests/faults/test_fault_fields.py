"""A fault whose fields name nothing, such as a card that is not there, does not pass for one that happened."""

from pathlib import Path

import pytest
import yaml

from cxlemu.errors import ConfigError
from faults.inject import FAULTS, FaultKind, Scenario, ScenarioReport, ScenarioVerdict, Script, When, run
from faults.inject.script import check_faults
from tests.helpers.commands import cxlemu
from tests.helpers.tables import with_rows

RUN = [
    "run",
    "all_reduce",
    "-n",
    "2",
    "-b",
    "64",
    "-e",
    "64",
    "--iters",
    "1",
    "-w",
    "0",
    "--launch",
    "threads",
    "-c",
    "laptop",
    "--faults",
    "late.yaml",
]
FAR = 10**11
# A value that names nothing, of each field, and what it needs beside it. The others are amounts, which name nothing.
NOWHERE = {
    "rank": {"rank": 9},
    "call": {"when": {"call": 500, "instruction": 0}},
    "instruction": {"when": {"instruction": 9999}},
    "card": {"card": 99},
    "line": {"card": 0, "line": FAR},
    "lines": {"card": 0, "line": 0, "lines": FAR},
    "bit": {"bit": 512},
}
AMOUNTS = {"seconds", "gbytes_per_s", "instructions"}
SAID = {
    "rank": (2, "ranks are numbered 0 to 1"),
    "call": (3, "fault 1 never happened: rank 1 made"),
    "instruction": (3, "fault 1 never happened: rank 1 has"),
    "card": (2, "card is 99, but cards are numbered 0 to"),
    "line": (3, f"fault 1 never happened: there is no line {FAR}: card 0 has"),
    "lines": (3, f"fault 1 never happened: there is no line {FAR - 1}: card 0 has"),
    "bit": (2, "bit is 512 but should be"),
}


def fields(kind: FaultKind) -> list[str]:
    return ["rank", "call", "instruction", *kind.needs, *kind.may]


def test_every_field_of_every_kind_is_tried() -> None:
    assert {name for kind in FAULTS.values() for name in fields(kind)} == {*NOWHERE, *AMOUNTS}


@pytest.mark.each_value_once
@pytest.mark.parametrize(
    ("kind", "name"), [(kind.name, name) for kind in FAULTS.values() for name in fields(kind) if name not in AMOUNTS]
)
def test_what_names_nothing_never_passes(kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fault = {"kind": kind, "rank": 1, "when": {"instruction": 0}, **FAULTS[kind].needs, **NOWHERE[name]}
    Path("late.yaml").write_text(yaml.safe_dump({"faults": [fault]}))
    done = cxlemu(*RUN)
    code, said = SAID[name] if not FAULTS[kind].restarts else (2, "nothing begins again here")
    assert (done.exit_code, said in " ".join(done.output.split())) == (code, True), done.output


@pytest.mark.parametrize("name", ["card", "line", "lines"])
def test_in_a_sweep_or_a_campaign_it_never_happened(name: str) -> None:
    for kind in FAULTS.values():
        if name in kind.may:
            fault = kind.at(0, When(instruction=0), **NOWHERE[name])
            report = run(Scenario(collective="all_gather", ranks=2, script=Script(faults=(fault,))))
            assert report.verdict is ScenarioVerdict.NEVER and "there is no " in report.why


# all_gather, aggregate, rank 1: COPY, WAIT_ALL (of no round yet), WRITE, FLUSH, FENCE, SIGNAL, WAIT, INVALIDATE, READ
@with_rows(("flip_doorbell", "doorbell", {5, 6}), ("flip_payload", "data in the pool", {2, 3, 7, 8}))
def test_a_flip_at_an_instruction_without_its_bits_never_happened(kind: str, has: str, there: set[int]) -> None:
    for at in range(9):
        report = flipped(kind, at)
        assert bool(report.happened) == (at in there), (at, report)
        assert at in there or f"fault 1 never happened: instruction {at} has no {has}" in report.why


def test_a_bit_behind_the_data_never_happened() -> None:
    assert "the data of instruction 8 has 32 bits" in flipped("flip_payload", 8, nbytes=4, bit=32).why
    assert flipped("flip_payload", 8, nbytes=4, bit=31).happened


def flipped(kind: str, at: int, nbytes: int = 64, **fields: int) -> ScenarioReport:
    fault = FAULTS[kind].at(1, When(instruction=at), **fields)
    return run(Scenario(collective="all_gather", nbytes=nbytes, script=Script(faults=(fault,))))


def test_a_link_that_carries_nothing_more_is_not_slow() -> None:
    scenario = Scenario(collective="barrier", variant="line", ranks=2)
    fault = FAULTS["slow_link"].at(1, When(instruction=0))
    report = run(scenario.model_copy(update={"script": Script(faults=(fault,))}))
    assert report.verdict is ScenarioVerdict.NEVER and "nothing moves from there on" in report.why


def test_nothing_begins_again_but_where_it_can() -> None:
    fault = FAULTS["restart"].at(0, When(instruction=0))
    with pytest.raises(ConfigError, match=r"faults\[0\].kind restart: nothing begins again here; use faults sweep"):
        check_faults([fault], ranks=2, backend="emulated")
    check_faults([fault], ranks=2, backend="emulated", restarts=True)


def test_a_number_is_told_as_it_was_given() -> None:
    told = str(FAULTS["poison"].at(0, When(instruction=0), card=0, line=99999999999))
    assert told.endswith("card 0, line 99999999999")
