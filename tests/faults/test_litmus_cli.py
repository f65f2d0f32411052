"""``cxlemu litmus``: what it prints, its exit codes, and its JSON."""

import json
from functools import partial
from pathlib import Path

import pytest

from cxlemu.cli import INTERRUPTED
from faults.litmus.language import Litmus, read
from faults.litmus.run import LitmusResult, run
from faults.machine.schedule import from_json
from faults.machine.steps import Machine, replay
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.tables import with_rows

LITMUS = Path(__file__).parent / "litmus"


litmus = partial(cxlemu, "litmus")


def test_ctrl_c_keeps_the_tests_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def third_is_interrupted(test: Litmus, *told: object) -> LitmusResult:
        begun.append(test.name)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return run(test, *told)  # type: ignore[arg-type]

    monkeypatch.setattr("faults.cli.litmus_run.litmus_run.run", third_is_interrupted)
    files = [LITMUS / f"{name}.yaml" for name in ("MP", "SB", "R", "S")]
    done, document = with_json("litmus", *files, code=INTERRUPTED)
    assert done.stderr == "cxlemu: interrupted; 2 tests not finished\n"
    assert document["interrupted"] and [row["name"] for row in document["rows"]] == ["MP", "SB"]


def test_all_of_a_directory() -> None:
    done, document = with_json("litmus", LITMUS, code=0)
    count = len(list(LITMUS.glob("*.yaml")))
    assert done.output.splitlines()[-1].startswith(f"{count} tests: {count} as expected, 0 not, 0 unknown; ")
    rows = document["rows"]
    assert len(rows) == count
    assert all(row["verdict"] == "ok" and row["complete"] for row in rows)


def test_a_witness_in_json_replays(tmp_path: Path) -> None:
    file = LITMUS / "FALSESHARE.yaml"
    assert litmus(file, "--json", tmp_path / "said.json").exit_code == 0
    (row,) = json.loads((tmp_path / "said.json").read_text())["rows"]
    machine = Machine(read(file).program)
    ends = [replay(machine, from_json(e["witness"]))[-1].pool for e in row["expectations"] if e["witness"]]
    assert ends == [(0, 1), (1, 0), (1, 1)]
    assert row["outcomes"] == [{"x": 0, "y": 1}, {"x": 1, "y": 0}, {"x": 1, "y": 1}]


@with_rows(
    ("MP", "allowed: [B.r == 0]", "allowed B.r == 0: not seen"),
    ("MP", "forbidden: [B.r == 1]", "forbidden B.r == 1: seen"),
    ("MP", "hangs: allowed", "no hanging execution was seen"),
    ("SIGNAL-missing", "hangs: forbidden", "B cannot go on, and nothing is under way"),
)
def test_what_is_not_as_expected_is_told(name: str, wrong: str, says: str, tmp_path: Path) -> None:
    head = (LITMUS / f"{name}.yaml").read_text().split("allowed:")[0].split("hangs:")[0]
    file = tmp_path / "wrong.yaml"
    file.write_text(head + wrong + "\n")
    done = litmus(file, code=1)
    assert says in done.output
    assert "1 test: 0 as expected, 1 not, 0 unknown" in done.output


def test_one_that_is_wrong_outweighs_one_that_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("name: W\nhosts: {A: [store x 1]}\nforbidden: [x == 0]\n")
    assert litmus(LITMUS / "IRIW.yaml", "--budget-states", 100).exit_code == 3
    assert litmus(file, LITMUS / "IRIW.yaml", "--budget-states", 100).exit_code == 1


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_verbose_prints_every_outcome_and_a_witness(engine: str) -> None:
    done = litmus(LITMUS / "MP-nofence.yaml", "-v", "--engine", engine)
    lines = [line.strip() for line in done.output.splitlines()]
    assert lines[1:3] == ["B.r=0  x=1  f=1", "B.r=1  x=1  f=1"], f"{done.output} {done.exception!r}"
    assert "MP-nofence: an execution that ends with B.r == 0:" in lines
    assert any(line.endswith("load x -> 0") for line in lines)


def test_a_witness_that_was_asked_for() -> None:
    assert "load x -> 0" in litmus(LITMUS / "MP-nofence.yaml", "--witness", "B.r == 0", code=0).output


HANGS = "name: H\nhosts: {A: [wait f 1], B: [load x r]}\nhangs: allowed\n"


@with_rows(
    (HANGS, [], 0, "no execution ends"),
    (HANGS + "forbidden: [B.r == 1]", [], 3, "forbidden B.r == 1: not seen; no execution ends"),
    (HANGS + "allowed: [B.r == 0]", [], 1, "allowed B.r == 0: not seen; no execution ends"),
    (
        "name: H\nhosts: {A: [signal f 1], B: [wait F 2, load f r]}\nforbidden: [B.r == 0]\n",
        [],
        1,
        "states B cannot go on, and nothing is under way; no rank stores 2 or more to F; no execution ends",
    ),
    ((LITMUS / "MP.yaml").read_text(), ["--witness", "B.r == 5"], 3, "MP: no execution ends with B.r == 5"),
)
def test_what_judges_nothing_is_no_success(
    test: str, arguments: list[str], code: int, says: str, tmp_path: Path
) -> None:
    (tmp_path / "test.yaml").write_text(test)
    done, document = with_json("litmus", tmp_path / "test.yaml", *arguments, code=code)
    assert says in " ".join(done.output.split()), done.output
    verdict = document["verdict"]
    assert verdict == {0: "ok", 1: "violation", 3: "unknown"}[code]


@with_rows(
    ([], "Missing argument"),
    (["nowhere.yaml"], "nowhere.yaml: No such file or directory; give a litmus test file"),
    (["EMPTY"], "holds no .yaml file"),
    (["MP", "--witness", "B.q == 0"], "there is no B.q; there are B.r, f, x, in "),
    (["MP", "--json", "/nowhere/x"], "--json /nowhere/x cannot be written"),
    (["MP", "--budget", "0"], "'0' is not a time above 0"),
)
def test_bad_input_gets_one_sentence(arguments: list[str], says: str, tmp_path: Path) -> None:
    there = {"EMPTY": str(tmp_path), "MP": str(LITMUS / "MP.yaml")}
    done = litmus(*(there.get(argument, argument) for argument in arguments), code=2)
    assert says in done.output
    assert "Traceback" not in done.output
