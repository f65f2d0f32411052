"""``cxlemu prove``: rows, verdicts and exit codes, a violation told, shown and replayed, and bad input."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cxlemu.cli import INTERRUPTED
from cxlemu.topology import Topology
from faults.cli import prove_run
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.tables import with_rows

ROOT = Path(__file__).parents[2]

FORGETFUL = """
from collectives.builder.recipes import algorithm
from cxlemu.plan import Op

@algorithm("all_gather")
def forgets(b):
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        for chunk in chunks:
            b.copy(b.output(b.rank * b.nbytes + chunk.offset), b.input(chunk.offset), chunk.nbytes)
            b.publish(chunk, b.input(chunk.offset))
            for peer in b.peers:
                b.retrieve(b.output(peer * b.nbytes + chunk.offset), chunk, peer)
    for name, stream in b.written.streams.items():
        b.written.streams[name] = [i for i in stream if i.op != Op.{forgotten}]
"""


prove = partial(cxlemu, "prove")


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def test_all_we_ship_in_every_variant() -> None:
    result, document = with_json("prove", "-n", "2-3", "-b", "256", code=0)
    assert (document["verdict"], document["complete"]) == ("ok", True)
    rows = document["rows"]
    assert len(rows) == 2 * 102 and {row["verdict"] for row in rows} == {"ok"}
    assert all(row["instructions"] > 0 and row["reason"] == "" for row in rows)
    assert [(r["ranks"], r["proofs"]) for r in document["by_ranks"]] == [(2, 102), (3, 102)]
    assert "204 of 204 proofs: 204 ok, 0 violation, 0 unknown" in result.output


@pytest.mark.parametrize(("named", "variants"), [("all_gather", "every,line"), ("all_gather_gemm", "fused,every")])
def test_a_variant_beside_every_one_is_proved_once(named: str, variants: str) -> None:
    proofs = [prove(named, "-n", "2", "--variant", each, "-j", "1").output.split() for each in (variants, "every")]
    assert len(proofs[0]) == len(proofs[1])


def test_a_ring_that_is_too_small_is_told_with_one_that_is_large_enough() -> None:
    asked = ("all_reduce", "--variant", "two_shot", "-n", "16", "-b", "64", "-j", "1")
    told = prove(*asked, "--region-bytes", "16K", code=2).stderr
    enough = re.search(r"--region-bytes=(\w+) is enough", told.replace("\n", " "))
    assert enough and "1 ok" in prove(*asked, "--region-bytes", enough[1]).output


def test_a_ring_that_is_asked_for_is_not_cut_to_the_memory_of_the_emulation() -> None:
    ring = prove_run._ring(Topology.load("six-cards"), 4, 1 << 30)
    assert ring.slots * ring.slot_bytes > (1 << 30) * 9 // 10


def test_sizes_variants_and_in_place(tmp_path: Path) -> None:
    chosen = ("all_reduce", "reduce_scatter", "-n", "2", "-b", "64", "-e", "1K", "--variant", "all,two_shot,zero_copy")
    prove(*chosen, "-f", "4", "--in-place", "--json", str(tmp_path / "proofs.json"), code=0)
    found = [(row["collective"], row["variant"], row["bytes"]) for row in rows_of(tmp_path / "proofs.json")]
    sizes = (64, 256, 1024)
    assert found == [
        *(("all_reduce", "all", size) for size in sizes),
        *(("reduce_scatter", "all", size) for size in sizes),
        *(("all_reduce", "two_shot", size) for size in sizes),
        *(("all_reduce", "zero_copy", size) for size in sizes),
        *(("reduce_scatter", "zero_copy", size) for size in sizes),
    ]


def test_plans_that_carry_checksums() -> None:
    document = with_json("prove", "--integrity", "crc32c", "-n", "4", "-b", "256", code=0)[1]
    rows = document["rows"]
    assert document["integrity"] == "crc32c" and {row["verdict"] for row in rows} == {"ok"}
    assert {row["variant"] for row in rows} == {
        "naive",
        "aggregate",
        "all",
        "two_shot",
        "zero_copy",
        "doubling",
        "binomial",
        "pairwise",
        "staggered",
        "staged",
        "two_shot_staged",
        "two_shot_apart",
    }
    assert len(rows) == 66


def test_an_algorithm_of_the_users_own() -> None:
    one = ("-n", "2-4", "-b", "1K", "-o", "sum", "-d", "f32", "--out-of-place")
    result = prove("--algorithm", f"{ROOT}/examples/my_all_reduce.py:my_all_reduce", *one, code=0)
    assert "3 of 3 calls: 3 ok" in result.output


@with_rows(("INVALIDATE", "fresh", "did not invalidate it after the wait"), ("FENCE", "landed", "did not fence before"))
def test_a_mistake_is_told_and_shown(forgotten: str, rule: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FORGETFUL.replace("{forgotten}", forgotten))
    file = tmp_path / "proofs.json"
    one = ("-n", "2", "-b", "256", "-d", "f32", "--out-of-place", "--json", str(file))
    result = prove("--algorithm", f"{tmp_path}/mine.py:forgets", *one, code=1)
    assert words in result.output and "executed: wrong bytes" in result.output
    [row] = rows_of(file)
    assert (row["verdict"], row["rule"]) == ("violation", rule)
    assert words in row["reason"] and row["schedule"] and row["shown"]
    assert {"rank", "stream", "instruction", "card", "line", "call"} <= row.keys()


def test_a_mistake_in_a_plan_with_checksums_is_told_and_replayed(tmp_path: Path) -> None:
    """What a reader of stale bytes sees is false damage."""
    (tmp_path / "mine.py").write_text(FORGETFUL.replace("{forgotten}", "INVALIDATE"))
    own = ("--algorithm", f"{tmp_path}/mine.py:forgets")
    result = prove(*own, "-n", "2", "-b", "256", "-d", "f32", "--out-of-place", "--integrity", "crc32c", code=1)
    assert "did not invalidate it after the wait" in result.output
    assert "executed: false damage: data that rank" in result.output
    [again] = [line for line in result.output.splitlines() if line.startswith("  again: ")]
    replayed = cxlemu(*again.split()[2:], code=1)
    assert "fails again, exactly as recorded: false damage" in replayed.output, replayed.output


def test_what_it_cannot_tell_is_unknown(tmp_path: Path) -> None:
    text = FORGETFUL.replace("if i.op != Op.{forgotten}]", "]\n    from cxlemu.plan import Instruction\n")
    (tmp_path / "mine.py").write_text(
        text + "    b.written.streams['publish'].append(Instruction(Op.SIGNAL, arg=0 if b.rank else 5))\n"
        "    b.written.streams['retrieve'].append(Instruction(Op.SIGNAL, arg=5))\n"
    )
    result = prove(
        "--algorithm", f"{tmp_path}/mine.py:forgets", "-n", "2", "-b", "256", "-d", "f32", "--out-of-place", code=3
    )
    assert "it has no one writer" in result.output and "1 unknown" in result.output


@with_rows(
    ("prove_case", ["all_gather", "--variant", "all", "-n", "2-5", "-j", "1"], "2 of 4 proofs: 2 ok"),
    ("judge", ["--algorithm", f"{ROOT}/examples/my_all_reduce.py:my_all_reduce"], "calls: 2 ok"),
)
def test_ctrl_c_keeps_what_is_finished(
    function: str, words: list[str], done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged, begun = getattr(prove_run, function), []

    def third_is_interrupted(*arguments: Any, **told: Any) -> Any:
        begun.append(arguments)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return judged(*arguments, **told)

    monkeypatch.setattr(prove_run, function, third_is_interrupted)
    result, document = with_json("prove", *words, code=INTERRUPTED)
    assert document["interrupted"] and not document["complete"] and document["verdict"] == "unknown"
    assert [row["verdict"] for row in document["rows"]] == ["ok"] * 2
    assert done in result.stdout and "; interrupted\n" in result.stdout
    assert re.search(r"^cxlemu: interrupted; \d+ (proof|call)s did not end$", result.stderr, re.MULTILINE)


@with_rows(
    (("nonsense",), "unknown collective 'nonsense'"),
    (("mine.py:mine",), "'mine.py:mine' is not the name of a collective: write --algorithm mine.py:mine"),
    (("--algorithm", f"{ROOT}/examples/my_all_reduce.py:nope"), "my_all_reduce.py has no 'nope': it has my_all_reduce"),
    (("broadcast", "--variant", "two_shot"), "broadcast has no variant 'two_shot'"),
    (("--variant", "all", "--algorithm", "x.py:y"), "--variant does not go with --algorithm"),
    (("--algorithm", "nowhere.py:y"), "no file nowhere.py"),
    (("-b", "4K", "-e", "8"), "is more than"),
    (
        ("--integrity", "crc32c", "barrier"),
        "--integrity does nothing here, because no collective of barrier moves data",
    ),
    (("--integrity", "crc32c", "--variant", "all,line"), "the line variant carries its payload where"),
    (("-c", "no-such-machine"), "no-such-machine"),
    (("--json", "/nowhere/proofs.json"), "cannot be written"),
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = prove(*arguments, code=2)
    assert words in result.output and result.output.count("\n") == 1


def test_ranks_out_of_bounds_are_a_usage_error() -> None:
    assert prove("-n", "0").exit_code == 2
    assert prove("-n", "4-2").exit_code == 2
