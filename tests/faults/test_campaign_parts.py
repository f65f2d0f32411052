"""What campaigns are made of: making things smaller, journals, specifications, cases."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.errors import ArgumentError, ConfigError, TokenError
from faults.campaign.case import CampaignCase
from faults.campaign.journal import Journal
from faults.campaign.judge import Judgement
from faults.campaign.shrink import simpler
from faults.campaign.spec import Spec
from faults.delta import fewer, smaller
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples

# --- fewer ---------------------------------------------------------------------------------------------------


@examples(200)
@given(st.integers(1, 40), st.data())
def test_exactly_the_needed_items_remain(count: int, data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.integers(0, count - 1), max_size=6))
    asked: list[int] = []

    def fails(items: Sequence[int]) -> bool:
        asked.append(len(items))
        return needed <= set(items)

    assert fewer(range(count), fails) == sorted(needed)
    assert max(asked, default=0) < count  # never about what is known to fail


@examples(100)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 30))
def test_no_single_item_can_be_taken_from_what_remains(items: list[int], least: int) -> None:
    def fails(some: Sequence[int]) -> bool:
        return sum(some) >= least

    kept = fewer(items, fails)
    if sum(items) >= least:
        assert sum(kept) >= least
        assert all(sum(kept) - item < least for item in kept)


def test_smaller_follows_the_boldest_step_that_still_fails() -> None:
    asked = []

    def fails(value: int) -> bool:
        asked.append(value)
        return value >= 37

    assert smaller(100, lambda n: (n // 2, n - 1), fails) == 37
    assert asked[:3] == [50, 25, 49]


# --- cases ---------------------------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[2] / "examples/my_all_reduce.py"
CASE = CampaignCase(collective="broadcast", variant="all", ranks=2, nbytes=64, launch="lockstep", engine="reference")


@with_rows(
    ({"algorithm": f"{EXAMPLE}:my_all_reduce"}, "is an algorithm for all_reduce, not broadcast"),
    ({"engine": "native"}, "ranks in lockstep run on the reference engine"),
    ({"launch": "turns", "engine": "native"}, "ranks in turns run on the reference engine"),
    ({"launch": "threads", "mutant": "x"}, "are for ranks in lockstep, not for threads"),
    ({"integrity": "crc32c"}, "ranks in lockstep take no faults"),
    ({"config": "nowhere", "cluster": 2}, "unknown shipped topology 'nowhere'"),
    ({"config": "laptop", "cluster": 2}, "laptop already sets each host's number of ranks"),
)
def test_a_case_that_cannot_run_is_one_sentence(changes: dict[str, object], sentence: str) -> None:
    assert CASE.check() is CASE
    with pytest.raises(ArgumentError, match=sentence):
        CASE.model_copy(update=changes).check()


# --- journals ------------------------------------------------------------------------------------------------

CAMPAIGN = {"spec": {"ranks": [2]}, "seeds": 3}


def written(path: Path, *records: dict[str, object]) -> Path:
    with Journal(path, CAMPAIGN) as journal:
        for record in records:
            journal.add(record)
    return path


def case_record(case: str, kind: str = "survived") -> dict[str, object]:
    return {"case": case, "judgement": Judgement(kind).plain(), "seconds": 0.5}


A, B, C = (case_record(name) for name in "abc")


def test_a_journal_remembers(tmp_path: Path) -> None:
    with Journal(written(tmp_path / "j", A, B), CAMPAIGN) as journal:
        assert journal.done == [A, B] and not journal.dropped


@pytest.mark.parametrize("cut", [1, 2, 50, 99, -1])
def test_a_journal_that_was_cut_off_goes_on_from_its_last_whole_line(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "j", A, B)
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    path.write_bytes(whole[: -(last - 1 if cut < 0 else cut)])
    with Journal(path, CAMPAIGN) as journal:
        assert journal.done == [A] and journal.dropped == 3
        journal.add(C)
    with Journal(path, CAMPAIGN) as journal:
        assert journal.done == [A, C] and not journal.dropped


@pytest.mark.parametrize("kept", [1, 17, 30])
def test_a_first_line_that_was_cut_off_is_written_again(tmp_path: Path, kept: int) -> None:
    path = written(tmp_path / "j")
    path.write_bytes(path.read_bytes()[:kept])
    with Journal(path, CAMPAIGN) as journal:
        assert journal.done == [] and journal.dropped == 1
        journal.add(A)
    with Journal(path, CAMPAIGN) as journal:
        assert journal.done == [A]


def edited(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b"survived", b"right"), *lines[2:]]


@with_rows(
    (edited, 2),
    (lambda lines: [lines[0], lines[2]], 2),  # a line was taken out
    (lambda lines: [lines[0], lines[2], lines[1]], 2),
    (lambda lines: [*lines, lines[2]], 4),
)
def test_a_journal_that_was_edited_is_not_believed(
    change: Callable[[list[bytes]], list[bytes]], line: int, tmp_path: Path
) -> None:
    path = written(tmp_path / "j", A, B)
    content = b"".join(change(path.read_bytes().splitlines(keepends=True)))
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=f"line {line} was changed .* its checksum does not match"):
        Journal(path, CAMPAIGN)
    assert path.read_bytes() == content


@with_rows(
    {**A, "judgement": 5},
    {**A, "judgement": {"kind": "right"}},
    {**A, "judgement": {**Judgement("right").plain(), "detail": 1}},
    {**A, "seconds": "1"},
    {**A, "seconds": float("nan")},
    {**A, "seconds": -1},
    {**A, "seconds": True},
    {**A, "case": 3},
    {"case": "a"},
)
def test_a_record_that_is_no_cases_is_refused(record: dict[str, object], tmp_path: Path) -> None:
    path = written(tmp_path / "j", A, record)
    with pytest.raises(ArgumentError, match="line 3 is not a campaign's"):
        Journal(path, CAMPAIGN)


def test_two_campaigns_do_not_write_to_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, CAMPAIGN) as journal:
        with pytest.raises(ArgumentError, match="another campaign writes to it"):
            Journal(path, CAMPAIGN)
        journal.add(A)
    with Journal(path, CAMPAIGN) as journal:
        assert journal.done == [A]


@with_rows(
    (b"hello\n", "line 1 is not a campaign's"),
    (b"hello", "line 1 is not a campaign's"),  # perhaps somebody's other file
    (b"[" * 100_000 + b"\n", "line 1 is not a campaign's"),
    (b'{"journal":2}\n', "line 1 is not a campaign's"),
    (b'{"checksum":"0","journal":2}\n', "line 1 was changed"),
    (b"[" * 900 + b"]" * 900 + b"\n", "line 1 is not a campaign's"),
    (b'{"journal":1,"campaign":{"seeds":4}}\n', "has no checksums: give another file"),
)
def test_a_file_that_is_no_journal_of_this_campaign_is_left_as_it_is(
    content: bytes, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=sentence):
        Journal(path, CAMPAIGN)
    assert path.read_bytes() == content


def test_a_journal_of_another_campaign_is_left_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path / "j", A)
    content = path.read_bytes()
    with pytest.raises(ArgumentError, match="is of another campaign"):
        Journal(path, {"seeds": 4})
    assert path.read_bytes() == content


def test_a_directory_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="not a regular file"):
        Journal(tmp_path, CAMPAIGN)


def test_a_fifo_is_no_journal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "j")
    with pytest.raises(ArgumentError, match="not a regular file"):
        Journal(tmp_path / "j", CAMPAIGN)


# --- specifications and cases --------------------------------------------------------------------------------

FILE = """
collectives: [all_gather, barrier]
variants: [naive, line]
ranks: [2, 3]
sizes: [60, 4K]
kinds: [nature, crash]
launches: [lockstep, turns]
"""


def test_every_combination_is_a_case_and_seeds_come_outermost(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(FILE)
    sweep = Spec.load(str(tmp_path / "c.yaml")).sweep(5)
    cases = list(sweep)
    # all_gather: 2 variants, 2 numbers of ranks, 2 sizes; barrier has one of the variants, and no sizes;
    # in lockstep there is nature alone
    assert len(cases) == len(sweep) == 5 * (1 + 2) * (2 * 2 * 2 + 2)
    assert len({case.id for case in cases}) == len(cases)
    assert [case.script.seed for case in cases] == sorted(case.script.seed for case in cases)
    assert {case.nbytes for case in cases if case.ranks == 3 and case.collective == "all_gather"} == {20, 4096 // 3}


def test_cases_and_their_ids_do_not_depend_on_the_run() -> None:
    spec = Spec(collectives=("broadcast",), variants=("naive",), ranks=(2,), kinds=("poison", "flip_payload"))
    first, second = (list(spec.sweep(20)) for _ in range(2))
    assert first == second
    assert [case.id for case in first] == [case.id for case in second]
    places = {(case.script.faults[0].rank, case.script.faults[0].when) for case in first}
    assert len(places) > 10  # seeds do move the faults about


def test_a_topology_stands_for_the_default_campaign_on_it(tmp_path: Path) -> None:
    assert Spec.load("laptop") == Spec(config="laptop")
    text = (Path(__file__).parents[2] / "configs/laptop.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("name: laptop", "name: mine"))
    spec = Spec.load(str(tmp_path / "mine.yaml"))
    case = next(iter(spec.sweep(1)))
    (tmp_path / "mine.yaml").unlink()
    again = CampaignCase.parse(json.loads(json.dumps(case.plain())))  # a token needs no file
    assert again.plain() == case.plain()
    assert again.topology.name == "mine"


@with_rows(
    ("ranks: [0]", "c.yaml:1: ranks"),
    ("ranks: [65]", "c.yaml:1: ranks"),
    ("collective: [all_reduce]", "did you mean collectives"),
    ("launches: [lockstep, fork]", "c.yaml:1: launches"),
    ("sizes: [1T]", "c.yaml:1: sizes"),
    ("sizes: [-1]", "c.yaml:1: sizes"),
    ("collectives: []", "c.yaml:1: collectives"),
    ("- a", "mapping"),
)
def test_a_wrong_file_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text + "\n")
    with pytest.raises(ConfigError, match=sentence):
        Spec.load(str(tmp_path / "c.yaml"))


@with_rows(
    (Spec(collectives=("all_redcue",)), "unknown collective 'all_redcue'"),
    (Spec(variants=("nonsense",)), "no variant 'nonsense'"),
    (Spec(kinds=("crush",)), "unknown fault 'crush'"),
    (Spec(kinds=()), "no cases: write kinds or scripts"),
    (Spec(mutant="x"), "a mutant is written"),
    (Spec(mutant="0.0.99:delete", collectives=("barrier",)), "has no mutant"),
    (Spec(algorithms=("nowhere.py:f",)), "there is no file"),
)
def test_what_cannot_run_is_refused_before_anything_runs(spec: Spec, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        spec.sweep(1)


def test_too_many_cases_are_refused() -> None:
    with pytest.raises(ArgumentError, match="1 to 1000000"):
        Spec(collectives=("barrier",)).sweep(1_000_000)


@with_rows(
    {"ranks": 0},
    {"ranks": "2"},
    {"collective": "../x"},
    {"config": "../../etc/passwd"},
    {"calls": 10**9},
    {"moves": "x"},
    {"more": 1},
    {"script": {"faults": [{"kind": "nonsense", "rank": 0, "when": {"instruction": 0}}]}},
    {"algorithm_sha256": "x"},
)
def test_a_case_of_a_foreign_token_is_one_sentence(change: dict[str, object]) -> None:
    body = CampaignCase(collective="barrier", variant="line", ranks=2, nbytes=0).plain() | change
    with pytest.raises(TokenError, match="another version, or no case") as caught:
        CampaignCase.parse(body)
    assert "\n" not in str(caught.value)


@examples(50)
@given(
    ranks=st.integers(2, 6),
    nbytes=st.integers(0, 500),
    calls=st.integers(1, 8),
    seed=st.integers(0, 2**32),
    launch=st.sampled_from(["lockstep", "turns", "threads", "processes"]),
)
def test_simpler_cases_always_end(ranks: int, nbytes: int, calls: int, seed: int, launch: str) -> None:
    engine = "reference" if launch in ("lockstep", "turns") else "native"
    body = {"collective": "broadcast", "variant": "naive", "ranks": ranks, "nbytes": nbytes, "calls": calls}
    case = CampaignCase.parse(body | {"launch": launch, "engine": engine, "script": {"seed": seed}})
    smallest = smaller(case, simpler, lambda candidate: True)
    assert (smallest.ranks, smallest.launch) == (2, "lockstep" if launch == "lockstep" else "turns")
    assert smallest.calls == (1 if launch == "lockstep" else calls)
    assert smallest.nbytes == min(nbytes, 1)
    assert smallest.script.seed == 0


def test_an_item_that_can_go_only_after_another_is_left_out_too() -> None:
    def fails(some: Sequence[str]) -> bool:
        return {"z", "c"} <= set(some) and ("b" not in some or "a" in some)

    assert fewer(["z", "a", "b", "c"], fails) == ["z", "c"]
