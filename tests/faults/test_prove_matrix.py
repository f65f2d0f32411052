"""``cxlemu prove --algorithm``: mistakes that show for some calls only, refusals, and what the last line says."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from collectives.algorithms.catalog import build, load_algorithm
from collectives.contracts import COLLECTIVES
from cxlemu.cli import main
from cxlemu.cli.vocabulary import RanksParam
from cxlemu.topology import Topology
from faults.choices import MATRIX_RANKS as RANKS
from faults.choices import MATRIX_REDOPS as REDOPS
from faults.cli import violations
from faults.prove.coverage import Coverage, Covered
from faults.prove.matrix import Matrix, judge

TESTS = Path(__file__).parents[1] / "helpers"
MINE = f"{TESTS.parents[1]}/examples/my_all_reduce.py:my_all_reduce"
THE_OLD_DEFAULT = ("-n", "2-4", "-b", "4K", "-d", "f32", "--out-of-place")


def prove(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["prove", *arguments])


def own(name: str) -> str:
    return f"{TESTS}/wrong_algorithms.py:{name}"


def last_line(result: Result) -> str:
    return result.output.splitlines()[-1]


@pytest.fixture(autouse=True)
def _searches_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(violations, "WITNESS_BUDGET_S", 0.1)


# --- the matrix ---------------------------------------------------------------------------------------------------


def test_the_whole_matrix_of_a_right_algorithm(tmp_path: Path) -> None:
    file = tmp_path / "proofs.json"
    result = prove("--algorithm", MINE, "--json", str(file))
    assert result.exit_code == 0, result.output
    document = json.loads(file.read_text())
    rows, coverage = document["rows"], document["coverage"]
    assert (document["verdict"], {row["verdict"] for row in rows}) == ("ok", {"ok"})
    sizes = coverage["sizes"]
    assert sizes[:4] == ["0 B", "1 element", "13 elements", "101 elements"] and len(sizes) == 8
    assert coverage["ranks"] == list(RANKS) and set(coverage["ops"]) == set(REDOPS)
    assert (coverage["dtypes"], coverage["in_place"]) == (["f16", "f64"], [False, True])
    # What the last line says of combinations.
    pairs = {(row["ranks"], row["size"], row["dtype"], row["in_place"]) for row in rows}
    assert pairs == set(product(RANKS, sizes, ("f16", "f64"), (False, True))) and len(rows) == len(pairs) == 192
    assert {(row["ranks"], row["size"], row["op"]) for row in rows} == set(product(RANKS, sizes, REDOPS))
    assert {(row["op"], row["dtype"], row["in_place"]) for row in rows} == set(
        product(REDOPS, ("f16", "f64"), (False, True))
    )
    assert "192 of 192 calls: 192 ok, 0 violation, 0 unknown, 0 refused" in result.output
    assert last_line(result).startswith("covered: all_reduce; n = 2-5, 7, 8; 0 B, 1 element, 13 elements")
    assert last_line(result) == f"covered: {coverage['covered']}. not covered: {coverage['not_covered']}"
    assert "not covered: n = 6; n above 8; other sizes; ops prod, min, band, bor, bxor; dtypes u8," in last_line(result)
    assert [(r["ranks"], r["calls"], r["ok"]) for r in document["by_ranks"]] == [(n, 32, 32) for n in RANKS]


def test_sizes_are_those_of_one_round_of_two_and_of_many() -> None:
    for ranks in RANKS:
        asked = {q.size.text: q for q in _matrix(MINE, ranks=(ranks,)).questions() if q.call.dtype == "f64"}
        rounds = {text: build(q.recipe, q.layout, q.call).rounds for text, q in asked.items()}
        assert rounds["1 element"] == rounds["1 round"] == 1
        assert rounds["1 round and 1 element"] == 2
        assert rounds["many rounds and 13 elements"] > 2 * asked["1 round"].layout.slots
        assert asked["1 round"].call.nbytes % (8 * ranks) == 0
        assert asked["4 KiB on the machine's ring"].layout.slot_bytes > 100 * asked["1 round"].layout.slot_bytes / ranks


def _matrix(spec: str, **narrowed: Any) -> Matrix:
    return Matrix(load_algorithm(spec), Topology.load("six-cards"), **narrowed)


@pytest.mark.parametrize(
    ("flags", "calls", "words"),
    [
        (("-n", "2", "-b", "24"), 4, "n = 2; 24 B; sum, avg, max; f16, f64; out of place and in place"),
        (("-n", "2,5", "-b", "24", "-d", "f32"), 12, "n = 2, 5; 24 B; sum, avg, max; f32; out of place and in place"),
        (
            ("-n", "2-3", "-b", "8", "-e", "32", "-f", "4", "-o", "prod", "-d", "i8", "--in-place"),
            4,
            "n = 2, 3; 8 B, 32 B; prod; i8; in place",
        ),
        (("-n", "6", "-o", "all", "-d", "bf16", "--out-of-place"), 40, "n = 6; 0 B, 1 element"),
        (("-n", "1", "-b", "24"), 4, "n = 1; 24 B"),
        (
            ("-n", "2", "--region-bytes", "8K", "-d", "f64", "-o", "sum", "--in-place"),
            7,
            "rings of six-cards, of 8 KiB",
        ),
    ],
)
def test_flags_narrow_it_or_widen_it(flags: tuple[str, ...], calls: int, words: str) -> None:
    result = prove("--algorithm", MINE, *flags)
    assert result.exit_code == 0, result.output
    assert f"{calls} of {calls} calls: {calls} ok" in result.output
    assert words in last_line(result)


def test_a_narrowed_root_is_the_only_one(tmp_path: Path) -> None:
    file = tmp_path / "proofs.json"
    result = prove("--algorithm", own("root_zero"), "-r", "0", "-n", "2,3", "-b", "64", "--json", str(file))
    assert result.exit_code == 0, result.output
    assert "root 0; in place" in last_line(result) and "other roots" in last_line(result)
    assert {tuple(row["roots"]) for row in json.loads(file.read_text())["rows"]} == {(0,)}


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.deep(rows=lambda name: name in ("splits_f64", "up_to_five", "until_it_wraps"))
@pytest.mark.parametrize(
    ("name", "ranks", "case", "common", "sentence"),
    [
        ("never_divides", "2,3", "(contract): 2 ranks, 1 element of f16 (blocks of 2 B), avg,", "avg", "/ 2"),
        (
            "splits_f64",
            "2,3",
            "(plan): 2 ranks, 1 element of f64 (blocks of 8 B),",
            "f64",
            "no whole number of elements",
        ),
        ("only_pairs", "2,3", "(contract): 2 ranks, 1 element of f16", "all but 0 B, 1 round, 4 KiB", "never written"),
        ("wrong_in_place", "2,3", "in place, a ring of 24 KiB", "in place", "may still read it"),
        ("up_to_five", "5,7", "(contract): 7 ranks, 1 element of f16", "n = 7", "bytes 10..11 of rank 0's output"),
        ("first_round", "2,3", "2 ranks, 1 round and 1 element of f16", "1 round and 1 element, many rounds", "output"),
        ("until_it_wraps", "3", "3 ranks, many rounds and 13 elements of f16", "many rounds", "output"),
        ("no_bytes", "2,3", "(raises): 2 ranks, 0 B of f16", "0 B", "fails for rank 0 with ZeroDivisionError"),
    ],
)
def test_a_mistake_that_the_old_default_passed(name: str, ranks: str, case: str, common: str, sentence: str) -> None:
    op = ("-o", "sum") if COLLECTIVES[load_algorithm(own(name)).collective].reduces else ()
    old = prove("--algorithm", own(name), *THE_OLD_DEFAULT, *op)
    assert old.exit_code == 0, old.output
    result = prove("--algorithm", own(name), "-n", ranks)
    assert result.exit_code == 1, result.output
    lines = result.output.splitlines()
    [told] = [line for line in lines if line.startswith("violation ")]
    assert case in told and sentence in lines[lines.index(told) + 1]
    [more] = [line for line in lines if line.startswith("  and ")]
    assert common in more
    _shown_again(result, sentence)


def _shown_again(result: Result, sentence: str) -> None:
    [command] = [line.removeprefix("  this call alone: ") for line in result.output.splitlines() if "alone: " in line]
    cxlemu, *words = shlex.split(command)
    again = CliRunner().invoke(main, words)
    assert cxlemu == "cxlemu" and again.exit_code == 1, again.output
    assert sentence in again.output and "1 of 1 call: 0 ok, 1 violation" in again.output


def test_a_root_other_than_zero_is_named() -> None:
    result = prove("--algorithm", own("root_zero"), "-n", "2,3")
    assert result.exit_code == 1, result.output
    assert "violation (plan): 2 ranks, 1 element of f16 (blocks of 2 B), root 1, in place" in result.output
    assert " -r 1 --in-place" in result.output
    _shown_again(result, "which has 0 (rule buffer")


@pytest.mark.parametrize("name", ["chain", "ring", "tree"])
@pytest.mark.parametrize("ranks", ["2", "3"])
def test_ranks_that_fold_differently_whatever_it_is_called(name: str, ranks: str) -> None:
    result = prove("--algorithm", own(name), "-n", ranks, "-b", "8", "-d", "f16")
    assert result.exit_code == 1, result.output
    assert f"[all_reduce wrong_algorithms.{name} 8 B f16" in result.output
    assert "the contract says rank 0[0] + rank 1[0]" in result.output


def test_a_mistake_in_the_matrix_is_executed_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(violations, "WITNESS_BUDGET_S", 60)
    result = prove("--algorithm", own("up_to_five"), "-n", "7", "-b", "14", "-d", "f16", "--out-of-place")
    assert "executed: wrong bytes" in result.output
    [again] = [line for line in result.output.splitlines() if line.startswith("  again: ")]
    replayed = CliRunner().invoke(main, shlex.split(again)[2:])
    assert replayed.exit_code == 1 and "fails again, exactly as recorded" in replayed.output, replayed.output


# --- refusals -----------------------------------------------------------------------------------------------------


def test_what_an_algorithm_refuses_is_no_mistake_and_no_proof(tmp_path: Path) -> None:
    file = tmp_path / "proofs.json"
    result = prove("--algorithm", own("powers_of_two"), "-n", "2-4", "-d", "f16", "--json", str(file))
    assert result.exit_code == 0, result.output
    assert "44 of 44 calls: 32 ok, 0 violation, 0 unknown, 12 refused" in result.output
    assert "refused: 12 calls: n = 3 (powers_of_two needs a power of two ranks, not 3)" in last_line(result)
    assert "covered: all_gather; n = 2, 4;" in last_line(result) and "not covered: n = 3;" in last_line(result)
    document = json.loads(file.read_text())
    [refused] = document["coverage"]["refused"]
    assert (refused["calls"], refused["common"]) == (12, "n = 3") and document["coverage"]["ranks"] == [2, 4]
    assert {row["verdict"] for row in document["rows"] if row["ranks"] == 3} == {"refused"}


def test_an_algorithm_that_takes_equal_shares_alone_is_proved_in_many_rounds() -> None:
    result = prove("--algorithm", own("equal_shares"), "-n", "3,7", "-d", "f64")
    assert result.exit_code == 0, result.output
    assert "covered: all_gather; n = 3, 7; 0 B, 1 round, many rounds; f64;" in last_line(result)
    assert "refused: 20 calls: " in last_line(result) and "(equal_shares needs blocks of 3 equal" in last_line(result)


def test_roots_that_are_refused_are_said() -> None:
    result = prove("--algorithm", own("refuses_roots"), "-n", "2,3", "-d", "f16")
    assert result.exit_code == 0, result.output
    assert "root 0; in place" in last_line(result) and "other roots" in last_line(result)
    assert "refused: roots 1, 2 (refuses_roots broadcasts from rank 0, not from 1)" in last_line(result)


def test_where_everything_is_refused_nothing_is_ok(tmp_path: Path) -> None:
    result = prove("--algorithm", own("refuses"), "-n", "2", "--json", str(tmp_path / "proofs.json"))
    assert result.exit_code == 2, result.output
    assert last_line(result).startswith("covered: nothing. refused: 24 calls (refuses takes nothing at all)")
    assert json.loads((tmp_path / "proofs.json").read_text())["verdict"] == "refused"


def test_two_levels_are_proved_with_clusters_of_every_size() -> None:
    result = prove("--algorithm", own("on_two_levels"), "-n", "3,8", "-b", "48", "-d", "f64")
    assert result.exit_code == 0, result.output
    assert "18 of 18 calls: 12 ok, 0 violation, 0 unknown, 6 refused" in result.output
    assert "covered: all_reduce; n = 8, clusters of 2, 4; 48 B; sum, avg, max; f64;" in last_line(result)


def test_zero_copy_in_place_is_refused_where_no_call_can_be(tmp_path: Path) -> None:
    matrix = _matrix(own("exchanges_lent"), ranks=(3,), sizes=(600,))
    fates = {(q.call.in_place, judge(q).fate) for q in matrix.questions()}
    assert fates == {(False, "ok"), (True, "refused")}


# --- plan files ---------------------------------------------------------------------------------------------------


def save(path: Path, *arguments: str) -> str:
    saved = CliRunner().invoke(main, ["plan", "save", *arguments, "-O", str(path)])
    assert saved.exit_code == 0, saved.output
    return str(path)


def test_plan_files_are_proved(tmp_path: Path) -> None:
    files = [
        save(tmp_path / "a.plan", "broadcast", "-n", "3", "-b", "1K", "-r", "1"),
        save(tmp_path / "b.plan", "all_reduce", "-n", "3", "-b", "1K", "--variant", "zero_copy", "--in-place"),
    ]
    result = prove(*files, "--json", "-")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [(row["file"], row["verdict"]) for row in document["rows"]] == [(file, "ok") for file in files]
    assert document["coverage"]["roots"] == [1] and document["coverage"]["sizes"] == ["1 KiB"]
    assert "2 of 2 proofs: 2 ok" in result.stderr and "covered: broadcast, all_reduce; n = 3" in result.stderr


def test_a_mistake_in_a_plan_file_is_told_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(violations, "WITNESS_BUDGET_S", 60)
    file = save(tmp_path / "five.plan", "--algorithm", own("up_to_five"), "-n", "7", "-b", "448")
    result = prove(file)
    assert result.exit_code == 1, result.output
    assert "bytes 320..383 of rank 0's output are never written" in result.output
    assert "executed: wrong bytes" in result.output and "cxlemu replay" not in result.output


def test_bad_input_with_plan_files_is_one_sentence(tmp_path: Path) -> None:
    good = save(tmp_path / "good.plan", "all_gather", "-n", "2", "-b", "1K")
    (tmp_path / "bad.plan").write_bytes(Path(good).read_bytes()[:-9])
    for arguments, words in (
        ((str(tmp_path / "bad.plan"),), "damaged or truncated"),
        ((str(tmp_path / "none.plan"),), "cannot be read"),
        ((good, "all_gather"), "'all_gather' does not end in .plan"),
        ((good, "-n", "3"), "--ranks does not go with a plan file"),
        ((good, "--in-place"), "--in-place does not go with a plan file"),
    ):
        result = prove(*arguments)
        assert (result.exit_code, words in result.output, result.output.count("\n")) == (2, True, 1), result.output


# --- the command line ---------------------------------------------------------------------------------------------


def test_numbers_of_ranks_in_every_form() -> None:
    takes = RanksParam(1, 64)
    for text, right in (("3", (3,)), ("2-4", (2, 3, 4)), ("8,2,2", (2, 8)), ("2-5,7,8", (2, 3, 4, 5, 7, 8))):
        assert takes.convert(text, None, None) == right
        assert takes.convert(right, None, None) == right
    for text in ("", "0", "65", "4-2", "2,", "2-", "a", "2--3", "1-2-3", "٣"):
        with pytest.raises(click.BadParameter, match="no number of ranks from 1 to 64"):
            takes.convert(text, None, None)


def test_all_that_we_ship_says_what_it_covered() -> None:
    result = prove("all_reduce", "broadcast", "barrier", "-n", "2", "--variant", "all,line", "--json", "-")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    last = result.stderr.splitlines()[-1]
    assert last.startswith("covered: all_reduce, broadcast, barrier; n = 2; 4 KiB; sum; f32; every root; out of place;")
    assert (
        "not covered: n above 2; other sizes; ops prod, min, max, avg, band, bor, bxor;" in last and "in place;" in last
    )
    assert last == f"covered: {document['coverage']['covered']}. not covered: {document['coverage']['not_covered']}"


def test_many_ranks_have_a_few_roots_and_the_coverage_says_so() -> None:
    call = build(load_algorithm(own("root_zero")), *_layout_and_call(2)).call
    coverage = Coverage.of([Covered(replace(call, ranks=16), "8 B")], machine="six-cards")
    assert "every root, of more than 8 ranks the first, second, middle and last" in coverage.covered()
    assert "other roots of more than 8 ranks" in coverage.not_covered()


def _layout_and_call(ranks: int) -> tuple[Any, Any]:
    question = _matrix(own("root_zero"), ranks=(ranks,), sizes=(8,)).questions()[0]
    return question.layout, question.call


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--algorithm", own("up_to_five"), "-o", "sum"), "all_gather reduces nothing: leave out -o"),
        (("--algorithm", own("up_to_five"), "-r", "1"), "all_gather has no root: leave out -r"),
        (("--algorithm", own("up_to_five"), "broadcast"), "is an algorithm for all_gather: leave out broadcast"),
        (("--algorithm", own("root_zero"), "-r", "3", "-n", "2-4"), "root 3 is not one of 2 ranks"),
        (("--algorithm", own("root_zero"), "-r", "x"), "-r takes a rank, or all, not 'x'"),
        (("broadcast", "-r", "3", "-n", "2-4"), "root 3 is not one of 2 ranks"),
        (("gemm_reduce_scatter", "-d", "f64"), "matrix products are proved without -d"),
        (("--algorithm", MINE, "--region-bytes", "1K"), "a ring of 1024 bytes has no line for each"),
        (("--algorithm", MINE, "-n", "2-300", "-o", "all", "-d", "all"), "more than 10000 calls: narrow it"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = prove(*arguments)
    assert result.exit_code == 2, result.output
    assert words in result.output and result.output.count("\n") == 1
