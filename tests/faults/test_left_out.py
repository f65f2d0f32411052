"""What is named and not done is said: variants and numbers of ranks, pairs of dtype and operation, kinds of faults."""

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cxlemu.cli import main
from cxlemu.plan.reduction import not_folded
from faults.campaign.spec import Spec
from faults.left_out import NotDone, left_out, together
from tests.helpers.tables import with_rows

NO_CLUSTERS = "these ranks do not make two clusters of two or more"
OWN = Path(__file__).parents[1] / "helpers/wrong_algorithms.py"
POWERS = f"--algorithm {OWN}:powers_of_two"


def cxlemu(command: str) -> Result:
    return CliRunner().invoke(main, shlex.split(command))


def words(result: Result) -> str:
    return " ".join(result.output.replace("#", "").split())


@with_rows(
    ([None, None, None], [("a", "x", 2)], [], ""),
    ([("a", "b"), None, None], [("a", "x", 2), ("b", "x", 2)], [], ""),
    ([None, ("x", "y"), (2, 3)], [("a", "x", 2), ("b", "y", 3), ("b", "x", 3)], ["left out: y at n = 2: y2"], ""),
    (
        [None, ("x", "y"), (2, 3, 4)],
        [("a", "x", 3)],
        ["left out: x at n = 2: x2", "left out: x at n = 4: x4"] + [f"left out: y at n = {n}: y{n}" for n in (2, 3, 4)],
        "nothing was judged with y; n = 2, 4",
    ),
    ([("a",), ("x", "y"), None], [("a", "x", 2)], ["left out: a y: ay"], "nothing was judged with y"),
    ([(), None, (2,)], [], [], "nothing was judged with n = 2"),
)
def test_what_is_left_out(
    named: list[tuple[str | int, ...] | None], done: list[tuple[str | int, ...]], sentences: list[str], nowhere: str
) -> None:
    found = left_out(named, done, lambda *its: "".join(str(one) for one in its if one is not None))
    assert (found.sentences, found.nowhere) == (sentences, nowhere)


def test_one_reason_is_one_sentence() -> None:
    found = left_out([("a", "b"), (2, 3, 4)], [("a", 3), ("b", 2)], lambda *_: "why")
    assert found.lines == ["left out: a at n = 2, 4; b at n = 3, 4: why", "nothing was judged with n = 4"]
    assert together(found, NotDone(), found).nowhere == "; ".join([found.nowhere] * 2)
    assert found.data == {"left_out": found.sentences} and NotDone().data == {}


def test_pairs_of_names_that_are_no_reduction_are_said() -> None:
    assert not_folded(("i32",), None) == not_folded(None, ("sum",)) == not_folded(("i32", "f32"), ("sum", "max")) == []
    [said] = not_folded(("i32", "f32"), ("sum", "band"))
    assert said.startswith("left out: there is no band of f32")


def test_a_campaign_without_scripts_leaves_none_out() -> None:
    spec = Spec(collectives=("barrier",), variants=("line",), ranks=(2,), kinds=("nature",))
    assert spec.sweep(1).left_out.lines == []


# command, exit code, what it says
ROWS = [
    ("prove --variant hierarchical,naive -n 3 -b 64", 3, f"left out: hierarchical at n = 3: {NO_CLUSTERS}"),
    ("prove --variant hierarchical,naive -n 3 -b 64", 3, "nothing was judged with hierarchical"),
    ("prove gather --variant hierarchical -n 3,4 -b 64", 3, "left out: gather hierarchical at n = 3: these"),
    ("prove gather --variant hierarchical -n 3-5 -b 64", 3, "nothing was judged with n = 3, 5"),
    ("prove gather --variant hierarchical,naive -n 3-5 -b 64", 0, "gather hierarchical at n = 3, 5: these ranks"),
    ("prove gather --variant hierarchical -n 3 -b 64", 2, "cannot make two clusters"),
    ("prove gather -n 3 -b 64", 0, "left out: 1 variant on two levels: n = 3: no two clusters"),
    ("prove gather -n 4 -b 64", 0, "ok"),
    ("prove all_gather all_reduce --variant two_shot -n 2 -b 64", 3, "two_shot at n = 2: there is no such"),
    ("prove gather all_gather_gemm --variant naive -n 2 -b 64", 3, "nothing was judged with all_gather_gemm"),
    (
        "prove barrier all_gather --integrity crc32c -n 2 -b 64",
        3,
        "left out: barrier at n = 2: it carries no checksums",
    ),
    ("prove all_reduce --variant all -n 2 -b 64 -d i32,f32 -o sum,band", 0, "left out: there is no band of f32"),
    (f"prove {POWERS} -n 2,3 -d f32 -b 64 --in-place", 3, "nothing was judged with n = 3"),
    (f"prove {POWERS} -n 2,4 -d f32 -b 64 --in-place", 0, "2 ok"),
    ("mutate barrier gather --variant hierarchical,line -n 3 -j 1", 3, "nothing was judged with hierarchical"),
    ("mutate barrier -n 2,3 --variant line -j 1", 0, "all "),
    ("faults sweep barrier all_gather -n 2 -b 0 -j 1 --kinds kill", 3, "nothing was judged with all_gather"),
    ("faults sweep barrier all_gather -n 2 -j 1 --variant line --kinds kill,flip_payload", 0, "barrier flip_payl"),
    ("faults sweep barrier -n 2 -j 1 --sample 1 --kinds kill,crash", 3, "no place was drawn"),
    ("faults campaign gather -n 2 --variant naive,two_shot --kinds nature -j 1", 3, "nothing was judged with two_shot"),
    ("faults campaign barrier -n 2 --variant line --kinds nature,flip_payload -j 1", 3, "with flip_payload"),
    (f"faults campaign -n 2,3 {POWERS} --kinds nature -j 1", 3, "nothing was judged with n = 3"),
    ("faults campaign barrier -n 2 --launch lockstep,turns --kinds kill -j 1", 3, "left out: lockstep: faults need"),
    (
        "faults campaign barrier -n 2,3 --kinds nature --faults third.yaml -j 1",
        0,
        "third.yaml at n = 2: a fault is on a rank",
    ),
]


@pytest.mark.deep(rows=lambda command: command.startswith("faults campaign") and "--launch" not in command)
@pytest.mark.parametrize(("command", "code", "said"), ROWS, ids=[f"{row[0]} {row[2][:9]}" for row in ROWS])
def test_what_was_named_and_not_done_is_said(
    command: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("third.yaml").write_text("faults:\n  - {kind: stall, rank: 2, when: {instruction: 0}, seconds: 0.01}\n")
    done = cxlemu(f"{command} --json found.json")
    assert (done.exit_code, said in words(done)) == (code, True), done.output
    if code != 2:
        listed = json.loads(Path("found.json").read_text()).get("left_out", [])
        assert bool(listed) == ("left out: " in done.output), done.output
