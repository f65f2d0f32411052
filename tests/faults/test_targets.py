"""Every tool takes every plan: an algorithm of one's own, and a plan that was saved, resolved in one way."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from collectives.algorithms.catalog import build, load_algorithm, recipe
from cxlemu.plan import Call, file
from faults.explore.plans import tiny_layout
from faults.mutate.cases import MutationCase, plan_of
from faults.mutate.mutants import Mutant, apply
from tests.helpers import commands
from tests.helpers.tables import with_rows

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_all_reduce.py"
OWN = f"{EXAMPLE}:my_all_reduce"
ON_LAPTOP = ["-c", "laptop", "--region-bytes", "4K"]

# A rank retrieves a round's block when it has said that it is done with that round.
LATE = """
from collectives.builder import Builder
from collectives.builder.recipes import algorithm

@algorithm("broadcast")
def late(b: Builder) -> None:
    rounds = b.rounds(b.nbytes, writers=[b.root], spread="cards")
    for chunk in [chunk for chunks in rounds for chunk in take(b, chunks)]:
        b.carrier.take([b.output(chunk.offset)], chunk, b.root, 0)  # the word itself refuses a round that is over
    if b.rank == b.root:
        b.copy(b.output(), b.input(), b.nbytes)

def take(b, chunks):
    if b.rank != b.root:
        return chunks
    for chunk in chunks:
        b.publish(chunk, b.input(chunk.offset))
    return []

@algorithm("broadcast")
def outside(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, writers=[b.root], spread="cards"):
        for chunk in take(b, chunks):
            b.carrier.take([b.output(chunk.offset)], chunk._replace(slot_offset=1 << 40), b.root, 0)
"""


cxlemu = partial(commands.cxlemu, code=0)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """An all_reduce of two ranks on a small ring."""
    path = tmp_path / "mine.plan"
    cxlemu("plan", "save", "all_reduce", "-n", 2, "-b", 256, "-o", "max", *ON_LAPTOP, "-O", path)
    return path


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(LATE)
    return path


# --- what each tool makes of a saved plan


def test_run_takes_all_that_the_file_says(saved: Path, tmp_path: Path) -> None:
    for engine in ("native", "reference"):
        flags = ["-c", "laptop", "--launch", "threads", "--engine", engine, "--json", tmp_path / "run.json"]
        cxlemu("run", saved, *flags, "--iters", 2)
        document = json.loads((tmp_path / "run.json").read_text())
        [row] = document["rows"]
        assert (row["collective"], row["size_bytes"], row["redop"], row["wrong"]) == ("all_reduce", 256, "max", 0)
        assert row["chosen_by"] == "user"


@with_rows(
    ["broadcast", "-b", "3K"],
    ["reduce", "-b", "3K", "-r", "1", "-o", "avg", "--in-place"],
    ["all_gather", "-b", "3K", "--in-place"],
    ["scatter", "-b", "3K", "--variant", "zero_copy"],
    ["barrier"],
    ids=lambda words: "-".join(words),
)
def test_run_and_simulate_take_plans_of_every_kind(asked: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.plan"
    cxlemu("plan", "save", *asked, "-n", 3, "-c", "laptop", "-O", path)
    done = cxlemu("run", path, "-c", "laptop", "--launch", "threads", "--iters", 2)
    assert "1 result, 0 wrong" in done.output
    assert "1 result, 0 wrong" in cxlemu("simulate", path, "-c", "laptop", "--check").output


def test_explore_takes_a_saved_plan_on_its_own_ring(saved: Path) -> None:
    assert "all_reduce line of 256 B, 2 ranks: ok, in every execution" in cxlemu("explore", saved).output
    assert "2 ranks a host, 2 calls, 2 ranks: ok" in cxlemu("explore", saved, "--cluster", 2, "--calls", 2).output


IN_CLUSTER, ACROSS = "1.0.2:delete", "2.0.2:delete"  # the flush before a rank of the same cluster reads; of the other
UNFLUSHED = "did not flush after its store"


@with_rows(
    (IN_CLUSTER, (), 3, "right where the 2 ranks of each cluster share a host (prove --cluster 2), and wrong"),
    (IN_CLUSTER, ("--cluster", 2), 0, "; 2 ranks a host; "),
    (IN_CLUSTER, ("--cluster", 1), 1, UNFLUSHED),
    (ACROSS, (), 1, UNFLUSHED),
    (ACROSS, ("--cluster", 2), 1, UNFLUSHED),
    (ACROSS, ("--cluster", 3), 2, "--cluster: 4 ranks are not on hosts of 3 each"),
)
def test_a_plan_of_clusters_is_judged_on_its_hosts(
    mutant: str, flags: tuple[object, ...], code: int, words: str, tmp_path: Path
) -> None:
    """Where no flag says which ranks share one, a plan is wrong only if it is wrong on either."""
    plan, path = plan_of(MutationCase("gather", "hierarchical", 4, cluster=2)), tmp_path / "gather.plan"
    file.save(apply(plan, Mutant.parse(mutant)), path)
    assert words in cxlemu("prove", path, *flags, code=code).output
    cxlemu(*(("explore", path, *flags) if flags else ("mutate", path)), code=code)


def test_mutate_takes_a_saved_plan_and_its_mutant_replays(saved: Path) -> None:
    done = cxlemu("mutate", saved, "--mutant", "0.0.2:delete")
    again = next(line for line in done.output.splitlines() if line.startswith("again: "))
    assert again.endswith(f" --algorithm {saved}")
    cxlemu(*again.split()[2:], code=1)


def test_faults_are_swept_over_a_saved_plan(saved: Path, tmp_path: Path) -> None:
    cxlemu(
        "faults",
        "sweep",
        saved,
        "-c",
        "laptop",
        "--kinds",
        "kill",
        "--sample",
        4,
        "--json",
        tmp_path / "s.json",
        "-j",
        1,
    )
    document = json.loads((tmp_path / "s.json").read_text())
    assert (document["ranks"], document["bytes"]) == (2, 256)
    assert [row["scenarios"] for row in document["rows"]] == [4]


# --- --algorithm, whose collective is inferred


def test_every_tool_takes_an_algorithm_and_infers_its_collective(tmp_path: Path) -> None:
    assert "my_all_reduce" in cxlemu("simulate", "--algorithm", OWN, "-n", 3, "-b", "1K", "-e", "1K", "--check").output
    assert "all_reduce my_all_reduce of 128 B" in cxlemu("explore", "--algorithm", OWN).output
    swept = cxlemu("faults", "sweep", "--algorithm", OWN, "--kinds", "kill", "--sample", 3, "-j", 1)
    assert "my_all_reduce" in swept.output
    flags = ["--case", "all_reduce my_all_reduce 2 ranks", "-j", 1, "--json", tmp_path / "m.json"]
    cxlemu("mutate", "--algorithm", OWN, *flags)
    summary = json.loads((tmp_path / "m.json").read_text())["summary"]
    assert summary["killed"] > summary["equivalent"] > 0 == summary["survived"]


def test_a_plan_that_is_wrong_is_not_mutated(written: Path) -> None:
    done, told = commands.with_json("mutate", "--algorithm", f"{written}:late", code=1)
    assert "broadcast late 2 ranks: violation before anything is mutated: rank 0 overwrites" in done.output
    assert told["unmutated"]["verdict"] == "violation" and told["rows"] == [] and not told["complete"]


# --- rules come first


@with_rows(
    ["explore"],
    ["simulate", "-n", "2", "-e", "1K"],
    ["mutate"],
    ["faults", "sweep", "-n", "2"],
    ["run", "-n", "2", "-e", "1K", "--launch", "threads"],
    ids=lambda words: words[0],
)
def test_a_rule_that_is_broken_is_named_before_anything_runs(words: list[str], written: Path) -> None:
    refused = cxlemu(*words, "--algorithm", f"{written}:outside", code=1)
    assert "(rule region: an operand lies in a region)" in refused.output


# --- explore: more of a call, and what only the prover sees


def test_explore_takes_what_a_call_may_be() -> None:
    flags = ["-r", "1", "-o", "avg", "-d", "i32", "--in-place", "--variant", "zero_copy"]
    done = cxlemu("explore", "reduce", *flags)
    assert done.output.startswith("reduce zero_copy of 128 B, in place, 2 ranks: ok, in every execution")


def test_a_reader_that_comes_late_to_a_slot_is_wrong_only_among_other_calls(written: Path) -> None:
    assert "ok, in every execution" in cxlemu("explore", f"{written}:late").output
    assert "violation" in cxlemu("prove", "--algorithm", f"{written}:late", "-n", 2, "-b", 128, code=1).output


@pytest.mark.deep(rows=lambda rank: rank > 0)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_says_done_before_it_has_read_is_wrong_only_among_other_calls(rank: int, tmp_path: Path) -> None:
    """Its own calls do not show it, however many: each rank's next block is the answer to what it has read."""
    plan = build(recipe("all_gather", "naive"), tiny_layout(2, lines=3), Call("all_gather", "naive", 2, 64, "u8"))
    names = [i.op.name for i in plan.part(rank).streams[0].instructions]
    assert names[-1] == "SIGNAL" and "READ" in names
    for at in range(len(names) - 1, names.index("READ"), -1):  # its "done" before its read
        plan = apply(plan, Mutant(rank, 0, at, "earlier"))
    path = tmp_path / "early.plan"
    file.save(plan, path)
    assert "6 calls, 2 ranks: ok, in every execution" in cxlemu("explore", path, "--calls", 6).output
    assert "violation" in cxlemu("prove", path, code=1).output


# --- bad input


@with_rows(
    (["run", "FILE", "-n", "3"], "with 2 ranks: leave out --ranks"),
    (["run", "FILE", "-d", "f64"], "leave out --datatype"),
    (["run", "FILE", "--in-place"], "leave out --in-place"),
    (["run", "FILE", "--region-bytes", "1M"], "leave out --region-bytes"),
    (["run", "FILE", "broadcast"], "a plan file names its own collective"),
    (["run", "FILE", "--algorithm", "x.py:f"], "a plan file names its own collective"),
    (["run", "FILE", "--variant", "all"], "--variant does not go with"),
    (["run", "FILE"], "a ring on 2 cards interleaved by 4096 bytes does not lie on 6 cards interleaved by 65536"),
    (["simulate", "FILE"], "choose the topology that it was made for"),
    (["simulate", "FILE", "-c", "laptop", "--split", "2"], "leave out --split"),
    (["faults", "sweep", "FILE"], "choose the topology that it was made for"),
    (["faults", "sweep", "FILE", "-b", "64"], "leave out --minbytes"),
    (["mutate", "FILE", "-n", "3"], "leave out --ranks"),
    (["mutate", "FILE", "--integrity", "crc32c"], "leave out --integrity"),
    (["explore", "FILE", "-b", "64"], "leave out --minbytes"),
    (["explore"], "give a COLLECTIVE, a FILE.plan or a FILE.py:FUNCTION"),
    (["explore", "all_to_all", "--in-place", "--variant", "zero_copy"], "all_to_all in place cannot be zero copy"),
    (["explore", "broadcast", "-r", "2"], "root 2 is not one of the ranks 0..1"),
    (["run", "nowhere.plan"], "nowhere.plan cannot be read"),
    (["run", "broadcast", "--algorithm", OWN], "is an algorithm for all_reduce, not broadcast"),
    (["simulate", "broadcast", "--algorithm", OWN], "is an algorithm for all_reduce, not broadcast"),
    (["mutate", "broadcast", "--algorithm", OWN], "is an algorithm for all_reduce, not broadcast"),
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_what_contradicts_is_one_sentence(words: list[str], sentence: str, saved: Path) -> None:
    assert sentence in cxlemu(*(str(saved) if word == "FILE" else word for word in words), code=2).output


def test_a_plan_that_is_too_large_is_not_searched(tmp_path: Path) -> None:
    cxlemu("plan", "save", "all_reduce", "-n", 2, "-b", "256K", "-O", tmp_path / "large.plan")
    done = cxlemu("explore", tmp_path / "large.plan", "--calls", 16, code=2)
    assert "too many to search; 100000 at most: give fewer bytes or calls" in done.output


# --- an algorithm whose plan breaks a rule is a mistake found, and such a file is bad input

ILLEGAL = """
from collectives.builder import Builder
from collectives.builder.recipes import algorithm

@algorithm("broadcast")
def beyond(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, writers=[b.root], spread="cards"):
        for chunk in chunks:
            if b.is_root:
                b.publish(chunk, b.input(chunk.offset))
            else:
                b.retrieve(b.output(chunk.offset + 64), chunk, b.root)
"""
BROKEN = r"rank 1, stream (retrieve|main), instruction \d+ \(READ [^)]*\): operand dst is .* \(rule buffer: "
JUDGES = {
    "prove": ["-n", 2, "-b", 256, "-d", "f32"],
    "explore": ["-n", 2, "-b", 256],
    "mutate": ["-n", 2],
    "simulate": ["-n", 2, "-b", 256, "-e", 256],
    "run": ["-n", 2, "-b", 256, "-e", 256, "--launch", "threads", "--iters", 1],
    "plan show": ["-n", 2, "-b", 256],
}


@pytest.mark.parametrize("verb", JUDGES)
def test_an_algorithm_whose_plan_breaks_a_rule_is_a_mistake_found(verb: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ILLEGAL)
    done = cxlemu(*verb.split(), "--algorithm", f"{tmp_path / 'mine.py'}:beyond", *JUDGES[verb], code=1)
    assert re.search(BROKEN, " ".join(done.output.split())), done.output


@pytest.mark.parametrize("verb", [*(verb for verb in JUDGES if verb != "plan show"), "plan check"])
def test_a_file_whose_plan_breaks_a_rule_is_bad_input(verb: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ILLEGAL)
    own = load_algorithm(f"{tmp_path / 'mine.py'}:beyond")
    file.save(build(own, tiny_layout(2), Call("broadcast", "beyond", 2, 64, "u8")), tmp_path / "mine.plan")
    done = cxlemu(*verb.split(), tmp_path / "mine.plan", code=2)
    assert "rule buffer: " in done.output and "rank 1, stream" in done.output


RULE_BREAKER = """
from collectives import Builder, algorithm
from cxlemu.plan import Op

@algorithm("all_gather")
def rings_for_another(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        for chunk in chunks:
            b.publish(chunk, b.input(chunk.offset))
    for name, stream in b.written.streams.items():
        b.written.streams[name] = [i._replace(arg=0) if i.op == Op.SIGNAL else i for i in stream]
"""


def test_explore_writes_a_document_of_a_plan_that_breaks_a_rule(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(RULE_BREAKER)
    document = tmp_path / "found.json"
    done = cxlemu("explore", f"{tmp_path / 'wrong.py'}:rings_for_another", "--json", document, code=1)
    found = json.loads(document.read_text())
    assert found["verdict"] == "violation" and found["reason"] and found["schedule"] == []
    assert found["reason"].splitlines()[0][:40] in " ".join(done.output.split())
