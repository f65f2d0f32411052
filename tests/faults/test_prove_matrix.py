"""``cxlemu prove --algorithm``: mistakes that show for some calls only, what is declined, and the last line."""

import json
import re
import shlex
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from collectives.algorithms.catalog import build, load_algorithm
from collectives.contracts import COLLECTIVES
from cxlemu.cli.vocabulary import RanksParam
from cxlemu.topology import Topology
from faults.choices import MATRIX_DTYPES as DTYPES
from faults.choices import MATRIX_RANKS as RANKS
from faults.choices import MATRIX_REDOPS as REDOPS
from faults.cli import prove_matrix_report, violations
from faults.cli.violations import ViolationTold
from faults.prove import Proof
from faults.prove.coverage import Coverage, Covered
from faults.prove.matrix import Matrix, judge
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.tables import with_rows

TESTS = Path(__file__).parents[1] / "helpers"
MINE = f"{TESTS.parents[1]}/examples/my_all_reduce.py:my_all_reduce"
RING = f"{TESTS.parents[1]}/examples/algorithms/ring_all_gather.py:ring_all_gather"
KINDS = {*product(DTYPES, REDOPS), ("u8", "sum")}
THE_OLD_DEFAULT = ("-n", "2-4", "-b", "4K", "-d", "f32", "--out-of-place")


prove = partial(cxlemu, "prove")


def own(name: str) -> str:
    return f"{TESTS}/wrong_algorithms.py:{name}"


def last_line(result: Result) -> str:
    return result.output.splitlines()[-1]


@pytest.fixture(autouse=True)
def _searches_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(violations, "WITNESS_BUDGET_S", 0.1)


# --- the matrix ---------------------------------------------------------------------------------------------------


def test_the_whole_matrix_of_a_right_algorithm() -> None:
    result, document = with_json("prove", "--algorithm", MINE, code=0)
    rows, coverage = document["rows"], document["coverage"]
    assert (document["verdict"], {row["verdict"] for row in rows}) == ("ok", {"ok"})
    sizes = coverage["sizes"]
    assert sizes[:4] == ["0 B", "1 element", "13 elements", "101 elements"] and len(sizes) == 9
    assert coverage["ranks"] == list(RANKS) and set(coverage["ops"]) == set(REDOPS)
    assert (set(coverage["dtypes"]), coverage["in_place"]) == ({*DTYPES, "u8"}, [False, True])
    # What the last line says of combinations.
    cells = {(row["ranks"], row["size"], row["in_place"]) for row in rows}
    assert cells == set(product(RANKS, sizes, (False, True))) and len(rows) == len(cells) == 144
    for each, its in (("ranks", RANKS), ("size", sizes), ("in_place", (False, True))):
        met = {(row[each], row["dtype"], row["op"]) for row in rows}
        assert met == {(one, *kind) for one in its for kind in KINDS}, each
    assert "144 of 144 calls: 144 ok, 0 violation, 0 unknown, 0 declined" in result.output
    assert last_line(result).startswith("covered: all_reduce; n = 2-8, 17; 0 B, 1 element, 13 elements")
    assert last_line(result) == f"covered: {coverage['covered']}. not covered: {coverage['not_covered']}"
    assert "each dtype and op with each number of ranks and with each size" in last_line(result)
    assert "not covered: n = 9-16; n above 17; other sizes; ops band, bor, bxor; dtypes i8," in last_line(result)
    assert "; u8 with prod, min, max, avg; " in last_line(result)
    assert [(r["ranks"], r["calls"], r["ok"]) for r in document["by_ranks"]] == [(n, 18, 18) for n in RANKS]


@pytest.mark.each_value_once
@pytest.mark.parametrize("ranks", [(2,), (2, 3), (5, 6, 7, 8), RANKS])
@pytest.mark.parametrize("sizes", [(24,), (24, 48), None])
@pytest.mark.parametrize("name", ["wrong_min", "up_to_ten", "root_zero"])
def test_each_dtype_and_op_meets_each_number_of_ranks_and_each_size(
    name: str, ranks: tuple[int, ...], sizes: tuple[int, ...] | None
) -> None:
    asked = _matrix(own(name), ranks=ranks, sizes=sizes).questions()
    kinds = KINDS if name == "wrong_min" else set(product(("u8", "f64"), ("none",)))
    for each in ({q.call.ranks for q in asked}, {q.size.text for q in asked} - {"0 B"}):
        for value in each:
            its = [q.call for q in asked if value in (q.call.ranks, q.size.text)]
            assert {(call.dtype, call.redop) for call in its} == kinds, value
    assert len({(q.call, q.size.region_bytes) for q in asked}) == len(asked)


@pytest.mark.parametrize("spec", [MINE, RING])
def test_sizes_are_those_of_one_round_of_two_three_and_many(spec: str) -> None:
    for ranks in RANKS:
        asked = {q.size.text: q for q in _matrix(spec, ranks=(ranks,), dtypes=("f64",)).questions()}
        rounds = {text: build(q.recipe, q.layout, q.call).rounds for text, q in asked.items()}
        assert rounds["1 element"] == rounds["1 round"] == 1
        assert (rounds["1 round and 1 element"], rounds["3 rounds"]) == (2, 3)
        assert rounds["many rounds and 13 elements"] > 2 * asked["1 round"].layout.slots
        assert asked["1 round"].call.nbytes % (8 * ranks) == 0
        assert asked["4 KiB on the machine's ring"].layout.slot_bytes > asked["1 round"].layout.slot_bytes


def _matrix(spec: str, **narrowed: Any) -> Matrix:
    return Matrix(load_algorithm(spec), Topology.load("six-cards"), **narrowed)


@with_rows(
    (("-n", "2", "-b", "24"), 16, "n = 2; 24 B; sum, avg, max, min, prod; f16, f64, i32, u8; out of place and in"),
    (("-n", "2", "-b", "27", "-d", "f32"), 6, "n = 2; 24 B; sum, avg, max, min, prod; f32;"),
    (("-n", "2,5", "-b", "24", "-d", "f32"), 12, "n = 2, 5; 24 B; sum, avg, max, min, prod; f32; out of place"),
    (
        ("-n", "2-3", "-b", "8", "-e", "32", "-f", "4", "-o", "prod", "-d", "i8", "--in-place"),
        4,
        "n = 2, 3; 8 B, 32 B; prod; i8; in place",
    ),
    (("-n", "6", "-o", "all", "-d", "bf16", "--out-of-place"), 45, "n = 6; 0 B, 1 element"),
    (("-n", "2", "--region-bytes", "8K", "-d", "f64", "-o", "sum", "--in-place"), 8, "rings of six-cards, of 8 KiB"),
)
def test_flags_narrow_it_or_widen_it(flags: tuple[str, ...], calls: int, words: str) -> None:
    result = prove("--algorithm", MINE, *flags, code=0)
    assert f"{calls} of {calls} calls: {calls} ok" in result.output
    assert words in last_line(result)


def test_a_narrowed_root_is_the_only_one() -> None:
    result, document = with_json("prove", "--algorithm", own("root_zero"), "-r", "0", "-n", "2,3", "-b", "64", code=0)
    assert "root 0; out of place and in place" in last_line(result) and "other roots" in last_line(result)
    assert {tuple(row["roots"]) for row in document["rows"]} == {(0,)}


def test_a_broadcast_is_tried_out_of_place_and_what_is_not_tried_is_said() -> None:
    asked = "--algorithm", own("in_place_alone"), "-r", "0", "-n", "2", "-b", "64"
    result = prove(*asked, code=1)
    assert "out of place" in result.output and "bytes 0..63 of rank 0's output are never written" in result.output
    assert "out of place; plans with" in last_line(prove(*asked, "--in-place", code=0)).partition("not covered: ")[2]
    shipped = "broadcast", "-n", "2", "--variant", "naive"
    assert "out of place; plans with" in last_line(prove(*shipped, code=0)).partition("not covered: ")[2]
    assert "f32; every root; out of place; " in last_line(prove(*shipped, "--out-of-place", code=0))


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.deep(rows=lambda name: name not in ("never_divides", "first_round"))
@with_rows(
    ("never_divides", "2,3", "(contract): 2 ranks, 1 element of f64 (blocks of 8 B), avg,", "avg", "/ 2"),
    (
        "splits_f64",
        "2,3",
        "(plan): 2 ranks, 1 element of f64 (blocks of 8 B),",
        "f64",
        "not a whole number of elements",
    ),
    ("only_pairs", "2,3", "(contract): 2 ranks, 1 element of f64", "all but 0 B, 1 round, 4 KiB", "never written"),
    ("wrong_in_place", "2,3", "in place, a ring of 24 KiB", "in place", "may still read it"),
    ("up_to_five", "5,7", "(contract): 7 ranks, 1 element of u8", "n = 7", "bytes 5..5 of rank 0's output"),
    ("first_round", "2,3", "2 ranks, 1 round and 1 element of f64", "1 round and 1 element, 3 rounds, many", "output"),
    ("until_it_wraps", "3", "3 ranks, many rounds and 13 elements of f64", "many rounds", "output"),
    ("no_bytes", "2,3", "(builder): 2 ranks, 0 B of u8", "0 B", "ZeroDivisionError"),
)
def test_a_mistake_that_the_old_default_passed(name: str, ranks: str, case: str, common: str, sentence: str) -> None:
    op = ("-o", "sum") if COLLECTIVES[load_algorithm(own(name)).collective].reduces else ()
    prove("--algorithm", own(name), *THE_OLD_DEFAULT, *op, code=0)
    result = prove("--algorithm", own(name), "-n", ranks, code=1)
    lines = result.output.splitlines()
    [told] = [line for line in lines if line.startswith("violation ")]
    assert case in told and sentence in lines[lines.index(told) + 1]
    [more] = [line for line in lines if line.startswith("  and ")]
    assert common in more
    _shown_again(result, sentence)


def _shown_again(result: Result, sentence: str) -> None:
    [command] = [line.removeprefix("  this call alone: ") for line in result.output.splitlines() if "alone: " in line]
    name, *words = shlex.split(command)
    again = cxlemu(*words, code=1)
    assert name == "cxlemu"
    assert sentence in again.output and "1 of 1 call: 0 ok, 1 violation" in again.output


def test_a_root_other_than_zero_is_named() -> None:
    result = prove("--algorithm", own("root_zero"), "-n", "2,3", code=1)
    assert "violation (builder): 2 ranks, 1 element of f64 (blocks of 8 B), root 1, out of place" in result.output
    assert " -r 1 --out-of-place" in result.output
    _shown_again(result, "copy of rank 0, which is not the root and has no input")


def test_of_a_kind_the_call_is_told_that_an_execution_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def told_of(_: object, proof: Proof, **__: object) -> ViolationTold:
        return ViolationTold("seen" * (proof.calls[0].ranks == 3), "", {})

    monkeypatch.setattr(prove_matrix_report, "told_of", told_of)
    result = prove("--algorithm", own("in_place_alone"), "-r", "0", "-n", "2-4", "-b", "64", code=1)
    assert "violation (contract): 3 ranks" in result.output and "  executed: seen" in result.output


@pytest.mark.parametrize("name", ["chain", "ring", "tree"])
@pytest.mark.parametrize("ranks", ["2", "3"])
def test_ranks_that_fold_differently_whatever_it_is_called(name: str, ranks: str) -> None:
    result = prove("--algorithm", own(name), "-n", ranks, "-b", "8", "-d", "f16", code=1)
    assert f"[all_reduce wrong_algorithms.{name} 8 B f16" in result.output
    assert re.search(r"the contract says (max\()?rank 0\[0\](,| \+) rank 1\[0\]", result.output), result.output


def test_a_mistake_in_the_matrix_is_executed_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(violations, "WITNESS_BUDGET_S", 60)
    result = prove("--algorithm", own("up_to_five"), "-n", "7", "-b", "14", "-d", "f16", "--out-of-place")
    assert "executed: wrong bytes" in result.output
    [again] = [line for line in result.output.splitlines() if line.startswith("  again: ")]
    replayed = cxlemu(*shlex.split(again)[2:], code=1)
    assert "fails again, exactly as recorded" in replayed.output, replayed.output


@pytest.mark.deep
@with_rows(
    ("pairs_of_folded_bytes", "2 ranks, many rounds and 13 elements of u8", "u8"),
    ("pairs_of_bytes", "2 ranks, 1 element of u8", "u8"),
    ("wrong_min", "13 elements of f64 (", "min"),
    ("wrong_integers", "of i32 (", "i32"),
    ("up_to_ten", "17 ranks, 1 element of", "n = 17"),
    ("last_of_three", "2 ranks, 3 rounds of", "3 rounds"),
    ("no_grids", "6 ranks, 1 element of", "n = 6"),
)
def test_what_one_row_or_column_shows(name: str, told: str, common: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(violations, "WITNESS_BUDGET_S", 0.01)  # what an execution shows is not asked here
    result = prove("--algorithm", own(name), code=1)
    lines = [line for line in result.output.splitlines() if line.startswith(("violation ", "  and "))]
    assert told in lines[0] and common in lines[1] and len(lines) == 2, lines


def test_what_is_built_differently_the_second_time() -> None:
    result = prove("--algorithm", own("another_each_time"), "-n", "3", "-b", "24", "-d", "u8", "-j", "1", code=1)
    assert "violation (twice): 3 ranks" in result.output
    assert "the algorithm builds another plan the second time: it depends on more than its builder" in result.output


@pytest.mark.parametrize(("flags", "code"), [((), 1), (("--cluster", "2"), 0), (("--cluster", "1"), 1)])
def test_ranks_that_share_a_host(flags: tuple[str, ...], code: int) -> None:
    result = prove("--algorithm", own("never_invalidates"), "-n", "2", "-b", "128", *flags, code=code)
    assert ("; 2 ranks a host;" in last_line(result)) is (code == 0)
    assert last_line(result).endswith("other ranks a host" if code == 0 else "every proof stopped at its violation")


def test_hosts_of_some_ranks_are_one_to_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is executed is so on those hosts: a rank reads wrong bytes of the other host's ranks alone."""
    monkeypatch.setattr(violations, "WITNESS_BUDGET_S", 60)
    result = prove("--algorithm", own("never_invalidates"), "--cluster", "3", "-b", "384", "-d", "f64", code=1)
    assert "violation (fresh): 6 ranks" in result.output and "and 5 more: all but n = 3" in result.output
    assert "executed: wrong bytes" in result.output and ": 192 of rank" in result.output
    assert "again: " not in result.output
    _shown_again(result, "did not invalidate it after the wait")


@pytest.mark.deep(rows=lambda name: name == "up_to_five")
@pytest.mark.parametrize("name", ["up_to_five", "declines_roots"])
def test_workers_find_the_same(name: str, tmp_path: Path) -> None:
    found = []
    for jobs in ("1", "3"):
        result = prove("--algorithm", own(name), "-n", "2,7", "-j", jobs, "--json", str(tmp_path / jobs))
        document = json.loads((tmp_path / jobs).read_text())
        for row in document["rows"]:
            del row["seconds"]
        found.append((result.exit_code, document["rows"], document["coverage"]))
    assert found[0] == found[1]


# --- misuse of the builder ----------------------------------------------------------------------------------------


@with_rows(
    ("right_for_no_bytes", "# the line that is named", "publish of a chunk of round 0, which is over", "but 0 B"),
    ("blocks_of_four", "block=peer // 4", "retrieve of block 1, the loop has 1 a rank", "n = 6"),
    ("raises", "raise ArgumentError", "fails for rank 0 .*ArgumentError: takes nothing.*; b.decline", ""),
)
def test_misuse_is_a_violation_with_its_line(name: str, line: str, sentence: str, common: str) -> None:
    numbers = [n for n, text in enumerate((TESTS / "wrong_algorithms.py").read_text().splitlines(), 1) if line in text]
    result = prove("--algorithm", own(name), "-n", "2,6", code=1)
    lines = result.output.splitlines()
    [told] = [number for number, text in enumerate(lines) if text.startswith("violation (builder): ")]
    assert re.search(rf"wrong_algorithms\.py:{numbers[-1]}: .*{sentence}", lines[told + 1]), lines[told + 1]
    assert common in lines[told + 3]
    for words in (
        ("run", "--algorithm", own(name), "-n", "6", "--launch", "threads"),
        ("explore", own(name), "-n", "6"),
        ("mutate", "--algorithm", own(name), "-n", "6"),
        ("simulate", "all_gather", "--algorithm", own(name), "-n", "6", "-b", "1K"),
        ("faults", "campaign", "--algorithm", own(name), "-n", "6", "--seeds", "1", "-j", "1"),
        ("faults", "sweep", "--algorithm", own(name), "-n", "6", "-j", "1"),
    ):
        other = cxlemu(*words, code=1)
        assert re.search(rf"py:{numbers[-1]}: .*{sentence}", other.output), other.output


# --- what is declined ---------------------------------------------------------------------------------------------


def test_what_an_algorithm_declines_is_no_mistake_and_no_proof() -> None:
    # n = 3 was named
    result, document = with_json("prove", "--algorithm", own("powers_of_two"), "-n", "2-4", "-d", "f16", code=3)
    assert "48 of 48 calls: 36 ok, 0 violation, 0 unknown, 12 declined" in result.output
    assert "s; nothing was judged with n = 3\n" in result.output
    assert (
        "declined: 12 calls: n = 3 (all_gather powers_of_two 0 B f16, 3 ranks: needs a power of two ranks"
        in last_line(result)
    )
    assert "covered: all_gather; n = 2, 4;" in last_line(result) and "not covered: n = 3;" in last_line(result)
    [declined] = document["coverage"]["declined"]
    assert (declined["calls"], declined["common"]) == (12, "n = 3") and document["coverage"]["ranks"] == [2, 4]
    assert {row["verdict"] for row in document["rows"] if row["ranks"] == 3} == {"declined"}


def test_an_algorithm_that_takes_equal_shares_alone_is_proved_in_many_rounds() -> None:
    result = prove("--algorithm", own("equal_shares"), "-n", "3,7", "-d", "f64", code=0)
    assert "covered: all_gather; n = 3, 7; 0 B, 1 round, 3 rounds, many rounds; f64;" in last_line(result)
    assert "declined: 20 calls: " in last_line(result) and "f64, 3 ranks: needs blocks of 3 equal" in last_line(result)


def test_roots_that_are_declined_are_said() -> None:
    result = prove("--algorithm", own("declines_roots"), "-n", "2,3", "-d", "f16", code=0)
    assert "root 0; out of place and in place" in last_line(result) and "other roots" in last_line(result)
    assert "declined: roots 1, 2 (broadcast declines_roots 0 B" in last_line(result)


def test_where_everything_is_declined_nothing_is_ok() -> None:
    result, document = with_json("prove", "--algorithm", own("declines"), "-n", "2", code=3)
    assert "0 proved, 12 declined: all_gather declines 0 B u8, 2 ranks: takes nothing at all" in result.output
    assert last_line(result).startswith("covered: nothing. declined: 12 calls (all_gather declines 0 B u8, 2 ranks: ")
    assert document["verdict"] == "declined"


def test_where_every_proof_found_a_mistake_it_is_said() -> None:
    result = prove("--algorithm", own("raises"), "-n", "2", "-b", "24", "-d", "f16", code=1)
    assert last_line(result) == "covered: nothing, since every proof stopped at its violation"


def test_where_most_is_declined_it_is_said() -> None:
    result = prove("--algorithm", own("powers_of_two"), "-n", "2,3,5", "-b", "24", "-d", "f16", code=3)
    assert (
        "\n2 proved, 4 declined: all_gather powers_of_two 8 B f16, 3 ranks: needs a power of two ranks, not 3"
        in result.output.replace("\n  ", " ")
    )


def test_two_levels_are_proved_with_clusters_of_every_size() -> None:
    result = prove("--algorithm", own("on_two_levels"), "-n", "3,8", "-b", "48", "-d", "f64", code=3)
    assert "18 of 18 calls: 12 ok, 0 violation, 0 unknown, 6 declined" in result.output
    assert "covered: all_reduce; n = 8, clusters of 2, 4; 48 B; min, prod, sum, avg, max; f64;" in last_line(result)


def test_zero_copy_in_place_is_declined_where_no_call_can_be() -> None:
    matrix = _matrix(own("exchanges_lent"), ranks=(3,), sizes=(600,))
    fates = {(q.call.in_place, judge(q).fate) for q in matrix.questions()}
    assert fates == {(False, "ok"), (True, "declined")}


# --- plan files ---------------------------------------------------------------------------------------------------


def save(path: Path, *arguments: str) -> str:
    cxlemu("plan", "save", *arguments, "-O", path, code=0)
    return str(path)


def test_plan_files_are_proved(tmp_path: Path) -> None:
    files = [
        save(tmp_path / "a.plan", "broadcast", "-n", "3", "-b", "1K", "-r", "1"),
        save(tmp_path / "b.plan", "all_reduce", "-n", "3", "-b", "1K", "--variant", "zero_copy", "--in-place"),
    ]
    result = prove(*files, "--json", "-", code=0)
    document = json.loads(result.stdout)
    assert [(row["file"], row["verdict"]) for row in document["rows"]] == [(file, "ok") for file in files]
    assert document["coverage"]["roots"] == [1] and document["coverage"]["sizes"] == ["1 KiB"]
    assert "2 of 2 proofs: 2 ok" in result.stderr and "covered: broadcast, all_reduce; n = 3" in result.stderr


def test_a_mistake_in_a_plan_file_is_told_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(violations, "WITNESS_BUDGET_S", 60)
    file = save(tmp_path / "five.plan", "--algorithm", own("up_to_five"), "-n", "7", "-b", "448")
    result = prove(file, code=1)
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
    assert "not covered: n = 2, 4; n above 5; " in last_line(prove("all_gather", "-n", "3,5", code=0))
    takes = RanksParam(1, 64)
    for text, right in (("3", (3,)), ("2-4", (2, 3, 4)), ("8,2", (2, 8)), ("2-5,7,8", (2, 3, 4, 5, 7, 8))):
        assert takes.convert(text, None, None) == right
        assert takes.convert(right, None, None) == right
    for text in ("", "0", "65", "4-2", "2,", "2-", "a", "2--3", "1-2-3", "٣"):
        with pytest.raises(click.BadParameter, match=r"invalid rank count .*: must be 1 to 64"):
            takes.convert(text, None, None)


def test_all_that_we_ship_says_what_it_covered() -> None:
    result = prove("all_reduce", "broadcast", "barrier", "-n", "2", "--variant", "all,line", "--json", "-", code=0)
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


@with_rows(
    (("--algorithm", own("up_to_five"), "-o", "sum"), "all_gather reduces nothing: leave out -o"),
    (("--algorithm", own("up_to_five"), "-r", "1"), "all_gather has no root: leave out -r"),
    (("--algorithm", own("up_to_five"), "broadcast"), "is an algorithm for all_gather: leave out broadcast"),
    (("--algorithm", own("root_zero"), "-r", "3", "-n", "2-4"), "root 3 is not one of 2 ranks"),
    (("--algorithm", own("root_zero"), "-r", "x"), "-r takes a rank, or all, not 'x'"),
    (("broadcast", "-r", "3", "-n", "2-4"), "root 3 is not one of 2 ranks"),
    (("--algorithm", MINE, "--cluster", "2", "-n", "3"), "--cluster: 3 ranks are not on hosts of 2 each"),
    (("broadcast", "--cluster", "2"), "--cluster goes with --algorithm or a plan file"),
    (("gemm_reduce_scatter", "-d", "f64"), "matrix products are proved without -d"),
    (("--algorithm", MINE, "--region-bytes", "1K"), "a ring of 1024 bytes has no line for each"),
    (("--algorithm", MINE, "-n", "2-300", "-o", "all", "-d", "all"), "more than 10000 calls: narrow it"),
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = prove(*arguments, code=2)
    assert words in result.output and result.output.count("\n") == 1
